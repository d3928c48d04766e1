package hutch

import "time"

// TraceKind is a kind of thing that a sandbox has on its host.
type TraceKind string

// The kinds of trace.
const (
	TraceProcess TraceKind = "process" // of the isolator
	TraceCgroup  TraceKind = "cgroup"  // a control group below our parent, or that parent
	TraceState   TraceKind = "state"   // a directory or a file of the isolator's state
	TraceMount   TraceKind = "mount"   // below the isolator's state
	TraceDisk    TraceKind = "disk"    // a file without a name that a process holds open
	TraceKeeper  TraceKind = "keeper"  // an entry of the keeper
	TraceLink    TraceKind = "link"    // a link that the egress gateway serves
	TraceTemp    TraceKind = "temp"    // what is there only while something is made: a build, a file
	TraceMachine TraceKind = "machine" // something, of an isolator that does not say what
)

// TraceRecord is the kind of a [Leak] that is the other way round: a record says that a
// sandbox lives, and nothing of it is on the host.
const TraceRecord TraceKind = "record"

// Trace is one thing that was found on a host. Its Kind and Name say which one it is.
type Trace struct {
	Kind    TraceKind
	Name    string    // for people: a number, a path, an id
	Sandbox SandboxID // whose it is; empty = nobody's, as far as can be told
	Since   time.Time // when it came to be; zero = not known
	// Shared says that it is there for all sandboxes together: while there is a server or a
	// sandbox, it is where it belongs.
	Shared bool
	// Noted says, of a keeper's entry, that it is a note on the sandbox's end, for the
	// next server to read.
	Noted bool
}

// Leak is a difference between the records and the host.
type Leak struct {
	Kind    TraceKind
	Name    string
	Sandbox SandboxID // empty = of none
	Why     string    // a sentence: why it is a leak
	Since   time.Time // zero = not known
}
