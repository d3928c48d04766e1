package runtime

import "time"

// Scheduled is a [Sandbox] that can say how it fares among what else runs on its host.
type Scheduled interface {
	// Turns says for how long, in sum since it was first asked, threads of the sandbox have run,
	// and for how long they could have and had to wait for a CPU or a disk. Of a sandbox that
	// wants nothing the second stays what it is, however busy the host.
	Turns() (ran, waited time.Duration)
}

// Yielding is a [Sandbox] that can be made to stand back behind others of its runtime.
type Yielding interface {
	// Yield makes the sandbox stand back, or no longer: where there is not CPU enough for all,
	// it gets a [YieldShare] of what its size makes it due beside those that don't. Where there
	// is enough, nothing changes. It lasts until it is called again, for an adopted sandbox
	// too; of one that is gone it does nothing.
	Yield(on bool) error
}

// YieldShare is the inverse of what a sandbox that yields is still due: a sixteenth is next to
// nothing beside one that asks for a CPU now and then, and gets a long piece of work done.
const YieldShare = 16
