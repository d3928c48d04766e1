package control

import (
	"context"
	"strconv"
	"sync"
	"time"

	"hutch.dev/hutch"
)

// admission lets a bounded number of creates start at once; a bounded number more waits, served
// project by project in turn. On few CPUs more starts at once only make each slower: with 100
// at once on 2 CPUs the median create took 2.3 s, with 4 at once 64 ms.
//
// It also counts what lives against the limits of the server and of each project, what is
// being started included: two creates that each find the last place free are one too many.
type admission struct {
	cfg    Config
	report func(int)

	mu       sync.Mutex
	stopped  bool
	free     int // starts that may begin now
	queue    *fairQueue[*queued]
	rates    *rates
	alive    map[hutch.SandboxID]living // has a machine, or is being given one
	projects map[hutch.ProjectID]taken  // what each project's of them take
	memoryMB int                        // what they may use, in all
	over     chan struct{}              // closed once stopped and nothing is being started
	spares   map[hutch.SandboxID]int    // memory of the machines that are prepared for nobody yet
	spareMB  int                        // the sum of it
}

// living is what a sandbox takes of the limits.
type living struct {
	project hutch.ProjectID
	taken   taken
}

// taken is what sandboxes take of the limits, in sum.
type taken struct{ sandboxes, milliCPU, memoryMB int }

func takenBy(sb hutch.Sandbox) taken {
	return taken{1, sb.Resources.MilliCPU, sb.Resources.MemoryMB}
}

// plus is both together; times is 1, or -1 to take o away.
func (t taken) plus(o taken, times int) taken {
	return taken{t.sandboxes + times*o.sandboxes, t.milliCPU + times*o.milliCPU, t.memoryMB + times*o.memoryMB}
}

// queued is a create that waits. Its channel is told nil when its turn has come.
type queued struct{ turn chan error }

func newAdmission(cfg Config, report func(int)) *admission {
	return &admission{
		cfg: cfg, report: report, free: cfg.Creates, queue: newFairQueue[*queued](cfg.Queue), rates: newRates(cfg.ProjectCreates),
		alive: map[hutch.SandboxID]living{}, projects: map[hutch.ProjectID]taken{}, over: make(chan struct{}),
		spares: map[hutch.SandboxID]int{},
	}
}

// ask says whether a create of sb is worth waiting for, and counts it against its project's
// rate.
func (a *admission) ask(sb hutch.Sandbox, now time.Time) error {
	host, err := a.host()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.roomLocked(sb, host); err != nil {
		return err
	}
	if wait := a.rates.take(sb.Project, now); wait > 0 {
		e := hutch.Errorf(hutch.CodeRateLimited, "this project may make %s a minute: try again later", counted(a.cfg.ProjectCreates, "sandbox", "sandboxes"))
		e.RetryAfter = max(wait, time.Second)
		return e
	}
	return nil
}

// askedInVain gives back what ask counted, of a create for which nothing was made.
func (a *admission) askedInVain(p hutch.ProjectID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rates.giveBack(p)
}

// reserve takes a place among the living, until unreserve.
func (a *admission) reserve(sb hutch.Sandbox) error {
	host, err := a.host()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, taken := a.alive[sb.ID]; taken { // a start that came to nothing, and is not cleared yet
		return hutch.Errorf(hutch.CodeConflict, "sandbox %s is being removed: choose another id, or try again later", sb.ID)
	}
	if err := a.roomLocked(sb, host); err != nil {
		return err
	}
	a.unspareLocked(sb.ID)
	a.countLocked(sb)
	return nil
}

// restore counts a sandbox that is alive already, limit or not.
func (a *admission) restore(sb hutch.Sandbox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, counted := a.alive[sb.ID]; !counted {
		a.countLocked(sb)
	}
}

func (a *admission) countLocked(sb hutch.Sandbox) {
	t := takenBy(sb)
	a.alive[sb.ID] = living{sb.Project, t}
	a.projects[sb.Project] = a.projects[sb.Project].plus(t, 1)
	a.memoryMB += t.memoryMB
}

// unreserve gives a place back, once: whoever sees a sandbox end may call it.
func (a *admission) unreserve(id hutch.SandboxID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, ok := a.alive[id]
	if !ok {
		return
	}
	delete(a.alive, id)
	a.memoryMB -= l.taken.memoryMB
	left := a.projects[l.project].plus(l.taken, -1)
	a.projects[l.project] = left
	if left.sandboxes == 0 {
		delete(a.projects, l.project)
	}
}

// enter waits for a start to be possible and returns the function that says it is over. A
// caller who leaves while waiting is dropped; a full queue is hutch.ErrNoCapacity.
func (a *admission) enter(ctx context.Context, p hutch.ProjectID) (leave func(), err error) {
	q, err := a.line(p)
	switch {
	case err != nil:
		return nil, err
	case q == nil:
		return a.leave, nil
	}
	select {
	case err := <-q.turn:
		if err != nil {
			return nil, err
		}
		return a.leave, nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	waited := a.queue.remove(p, q)
	a.report(a.queue.n)
	a.mu.Unlock()
	if !waited && <-q.turn == nil { // its turn came in the same moment
		a.leave()
	}
	return nil, errLeftQueued(ctx)
}

// errLeftQueued is what nobody hears any more.
func errLeftQueued(ctx context.Context) error {
	return hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while the create was queued: nothing was made")
}

// line takes a start, or a place in the queue: nil if there was no need for one.
func (a *admission) line(p hutch.ProjectID) (*queued, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return nil, errStopping()
	}
	if a.free > 0 { // then nobody waits
		a.free--
		return nil, nil
	}
	q := &queued{turn: make(chan error, 1)}
	out, isOut, ok := a.queue.push(p, q)
	if !ok {
		return nil, noCapacity("%s waiting already, and this project has its share of them: try again in %s", counted(a.queue.n, "create is", "creates are"), retryAfter)
	}
	if isOut {
		out.turn <- noCapacity("other projects need the places in the queue of creates: try again in %s", retryAfter)
	}
	a.report(a.queue.n)
	return q, nil
}

// leave says that a start is over: another one begins.
func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q, ok := a.queue.pop(); ok {
		q.turn <- nil
		a.report(a.queue.n)
		return
	}
	a.free++
	a.overLocked()
}

// stop refuses further creates and those that wait, and returns a channel that is closed
// once nothing is being started any more.
func (a *admission) stop() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return a.over
	}
	a.stopped = true
	for q, ok := a.queue.pop(); ok; q, ok = a.queue.pop() {
		q.turn <- errStopping()
	}
	a.report(0)
	a.overLocked()
	return a.over
}

func (a *admission) overLocked() {
	if a.stopped && a.free == a.cfg.Creates {
		close(a.over)
	}
}

// ready says whether another create would be let in or queued.
func (a *admission) ready() error {
	host, err := a.host()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queue.n >= a.cfg.Queue {
		return noCapacity("the create queue is full (%d)", a.queue.n)
	}
	// The smallest sandbox there is, of nobody in particular.
	return a.roomLocked(hutch.Sandbox{Resources: hutch.Resources{MemoryMB: minMemoryMB}}, host)
}

// errStopping refuses a create because the server is about to end.
func errStopping() error {
	e := hutch.Errorf(hutch.CodeUnavailable, "the server is stopping: try again in %s", retryAfter)
	e.RetryAfter = retryAfter
	return e
}

// counted is a number of something, in words of one and of many.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// noCapacity refuses a create and says when to come back.
func noCapacity(format string, args ...any) error {
	e := hutch.Errorf(hutch.CodeNoCapacity, format, args...)
	e.RetryAfter = retryAfter
	return e
}
