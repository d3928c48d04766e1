package runtime

import "time"

// Scheduled is a [Sandbox] that can say how it fares among what else runs on its host.
type Scheduled interface {
	// Turns says for how long, in sum since it was first asked, threads of the sandbox have run,
	// and for how long they could have and had to wait for a CPU or a disk. Of a sandbox that
	// wants nothing the second stays what it is, however busy the host.
	Turns() (ran, waited time.Duration)
}
