// Package node is the node agent: it runs the sandboxes of one host.
//
// It owns what lives and dies with a sandbox on this host: its machine (through the
// runtime port), its place in the keeper and on the egress gateway, the connection to
// its guest agent, a watch on each of its commands, and its lifetime. It keeps no
// records: what must be remembered it tells its [Reports], which the control plane
// implements, and after a restart it is told what to adopt.
//
// Every call that acts on a sandbox carries its epoch. A call with an older epoch than
// the one the node holds is refused with [hutch.ErrStale]; a newer one is taken on.
//
// Nothing that comes from a guest is believed further than its own sandbox: results are
// bounded by guestclient, and a guest that does not answer costs a deadline, then its
// sandbox, never the node.
//
// Lock order: Node.mu, then box.mu. Neither is held across a call to the runtime, the
// guest, the keeper or Reports. box.telling comes before both, and is held across calls to the
// keeper: what that is told of a sandbox's lifetime last is then what holds.
//
// Whoever works inside a sandbox, with files, ports or shells, does so through [Node.Guest],
// for one run of the sandbox: whatever is under way is cut when it is paused or ended.
//
// Start with [Node.StartSandbox] in start.go and the type box in box.go.
package node

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// Keeper holds what must outlive this process: descriptors and lifetimes.
type Keeper interface {
	// Put stores duplicates of a sandbox's handles under its id, with its lifetime.
	Put(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, l hutch.Lifetime) error
	// SetLifetime changes the lifetime and the epoch of what is stored.
	SetLifetime(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, l hutch.Lifetime) error
	// Get returns fresh duplicates, which the caller owns, and what the keeper saw
	// happen to the sandbox. hutch.ErrNotFound if it holds nothing of that name.
	Get(ctx context.Context, id hutch.SandboxID) (Kept, error)
	// Delete drops what is stored; dropping nothing is no error.
	Delete(ctx context.Context, id hutch.SandboxID) error
	// List names everything that is stored, as traces.
	List(ctx context.Context) ([]hutch.Trace, error)
}

// Kept is what a keeper hands back.
type Kept struct {
	Handles runtime.Handles
	Killed  time.Time        // when the keeper ended it; zero if it did not
	Why     hutch.SandboxEnd // it did: hutch.EndExpired or hutch.EndIdle
	Exited  time.Time        // when the keeper saw it exit; zero if it did not
	UsedAt  time.Time        // the last that it was told of hutch.Lifetime.UsedAt; zero if nothing
}

// Egress is the gateway that serves the links.
type Egress interface {
	// Attach makes the gateway serve a sandbox's link. It does not take over f.
	Attach(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, kind runtime.LinkKind, f *os.File) error
	// Detach ends that; detaching what is not attached is no error.
	Detach(ctx context.Context, id hutch.SandboxID) error
	// List names every link that is served, as traces.
	List(ctx context.Context) ([]hutch.Trace, error)
}

// Reports is told what happens to sandboxes unasked. Its methods may block; the node
// calls them from goroutines of their own, in order for each sandbox.
type Reports interface {
	// SandboxUsed says what CPU time a sandbox whose processes have ended used since its start,
	// and when that was; 0 if nobody knows it any more.
	// SandboxEnded follows it, or the answer to the kill that was asked for.
	SandboxUsed(ctx context.Context, id hutch.SandboxID, at time.Time, cpu time.Duration)
	// SandboxEnded says a sandbox is gone, and everything of it is off this host.
	SandboxEnded(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, why hutch.SandboxEnd, detail string)
	// ExecFound says that a sandbox which was taken over knows a command, which ran or ended
	// there: its start may not have come to be recorded.
	ExecFound(ctx context.Context, id hutch.SandboxID, x hutch.ExecID, pid int, at time.Time) error
	// ExecEnded says how a command ended. When it returns nil the guest forgets the
	// command; until then it is told again after a restart.
	ExecEnded(ctx context.Context, id hutch.SandboxID, x hutch.ExecID, r hutch.ExecResult) error
	// SandboxSilent says that a running sandbox's guest does not answer any more, or that it
	// does again.
	SandboxSilent(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, silent bool)
}

// Config is what a node needs to know about its host.
type Config struct {
	Guest     string                                       // guest agent's image
	ImagePath func(digest string) (path string, err error) // root image of a digest
	Log       *slog.Logger
	// Temp names what is there only while something is made, and is left; nil = nothing.
	Temp func(ctx context.Context) ([]hutch.Trace, error)

	// StartTimeout bounds a start, from the prepared machine to the guest's answer. 0 = 30 s.
	StartTimeout time.Duration
	// CallTimeout bounds a short call to a guest. 0 = 10 s: on a machine whose CPUs are
	// all taken a guest has been seen to need 2 s.
	CallTimeout time.Duration
	// StopSlack is how much longer than its timeout and grace a command may take to be
	// reported ended before the node steps in. 0 = 5 s: the guest needs milliseconds, on a
	// machine with every CPU taken it has been seen to need 2 s.
	StopSlack time.Duration
	// Answer is how long a guest may leave the question for a sign of life without an answer
	// before calls to it fail and Reports is told. 0 = 3 s: with the second that passes before
	// it is asked, and two of this package's ticks, a caller hears within 5 s. Time in which the
	// host kept the sandbox from its work is not counted, so that on a busy host it may take up
	// to four times as long.
	Answer time.Duration
	// Idle is how often a guest is asked that nobody waits for, and that runs no command; one in
	// whose sandbox nothing has run since it answered, twelve times as seldom. 0 = 5 min.
	Idle time.Duration
	// EndSilent is after how long without an answer, counted in the same way, a sandbox is
	// ended. 0 = it is kept.
	EndSilent time.Duration
	// IdleSlack is how much longer than its idle timeout a sandbox is kept here and in the keeper:
	// they are told of its use now and then only. 0 = 10 s, twice what the control plane leaves
	// between two times.
	IdleSlack time.Duration
	// Silence is how long a guest may send nothing to who follows a command. 0 = 30 s: it
	// says every 10 s that it has nothing to say.
	Silence time.Duration
}

// Node runs the sandboxes of one host.
type Node struct {
	cfg     Config
	rt      runtime.Runtime
	keeper  Keeper
	egress  Egress
	reports Reports
	log     *slog.Logger

	// work ends when Close is called; what watches a sandbox runs under it.
	work   context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	clock atomic.Int64 // how long Run has run, in nanoseconds; see tick
	made  atomic.Int64 // boxes

	mu    sync.Mutex
	boxes map[hutch.SandboxID]*box
	comes map[hutch.SandboxID]*coming   // being started, taken over or swept, and not in boxes
	ready map[hutch.SandboxID]*prepared // in neither of the others
	fills fills                         // of new companions so far
}

// New returns a Node. It does no I/O and starts no goroutine.
func New(cfg Config, rt runtime.Runtime, k Keeper, e Egress, r Reports) *Node {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.StartTimeout, 30*time.Second)
	def(&cfg.CallTimeout, 10*time.Second)
	def(&cfg.StopSlack, 5*time.Second)
	def(&cfg.Silence, 30*time.Second)
	def(&cfg.IdleSlack, 10*time.Second)
	def(&cfg.Answer, 3*time.Second)
	def(&cfg.Idle, 5*time.Minute)
	work, cancel := context.WithCancelCause(context.Background())
	return &Node{
		cfg: cfg, rt: rt, keeper: k, egress: e, reports: r,
		log:  cfg.Log.With("component", "node"),
		work: work, cancel: cancel,
		boxes: map[hutch.SandboxID]*box{}, comes: map[hutch.SandboxID]*coming{}, ready: map[hutch.SandboxID]*prepared{},
	}
}

// Close lets go of every sandbox and returns once nothing of the node runs. The
// sandboxes go on: the keeper has what it takes to adopt them. Prepared machines are removed.
func (n *Node) Close() {
	n.cancel(hutch.Errorf(hutch.CodeUnavailable, "the node agent is stopping"))
	n.wg.Wait()
	n.emptyShelf()
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, b := range n.boxes {
		_ = b.guest.Close() // the stream goes on in the keeper
		delete(n.boxes, id)
	}
}

// Runtime is the name of the isolator this node uses.
func (n *Node) Runtime() string { return n.rt.Name() }

// Count says how many sandboxes this node holds, those being started included.
func (n *Node) Count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.boxes) + len(n.comes)
}

// box returns the sandbox id if it is alive and e is not older than what the node holds of it.
func (n *Node) box(id hutch.SandboxID, e hutch.Epoch) (*box, error) {
	b := n.find(id)
	if b == nil {
		return nil, hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s is not running here", id)
	}
	if b.isGone() {
		return nil, b.goneError()
	}
	return b, b.fence(e)
}

// find returns a sandbox of which anything is left to do, nil if there is none.
func (n *Node) find(id hutch.SandboxID) *box {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boxes[id]
}

// call runs f with the time limit of a short call.
func (n *Node) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	return f(ctx)
}
