package runtime

import "time"

// Counted is a [Sandbox] whose CPU time can be had by itself, for less than all of Stats costs.
type Counted interface {
	// CPU is what Stats says of it.
	CPU() (time.Duration, error)
}
