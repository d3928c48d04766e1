//go:build quietgc

package collect

import (
	"time"
	_ "unsafe" // for go:linkname
)

//go:linkname forcegcperiod runtime.forcegcperiod
var forcegcperiod int64

// Every has garbage collected that often where nothing else asks for it, and says that it does. It
// is to be called first thing in a program: what the runtime waits for already, two minutes at the
// most, it waits for.
func Every(d time.Duration) bool {
	forcegcperiod = int64(d)
	return true
}
