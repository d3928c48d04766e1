package control

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
)

const (
	// flushEvery is how often intervals that have ended are written, growEvery how often one
	// that only grows is: what a crash loses of either is one interval at the next start,
	// with the same sums.
	flushEvery = 5 * time.Second
	growEvery  = 30 * time.Second
	// Neighbours that differ by no more than these are one interval: a hundredth of a CPU,
	// and a mebibyte.
	sameCPU   = 0.01
	sameBytes = 1 << 20
)

// ledger charges every living sandbox for what it uses, from its start to its end without
// a hole. It measures nothing and stores nothing itself.
type ledger struct {
	mu       sync.Mutex
	accounts map[hutch.SandboxID]*account
	closed   []hutch.Usage // intervals that grow no more and are not stored yet
	takers   int           // who have taken intervals and have not given back
	spent    map[hutch.ProjectID]*spent
}

// account is what one sandbox is charged.
type account struct {
	project hutch.ProjectID
	epoch   hutch.Epoch
	state   hutch.State // what it is charged as
	budget  hutch.Budget
	total   hutch.UsageTotal

	opened time.Time
	at     time.Time     // it is charged up to here, by a clock that makes no steps from its start on
	seen   time.Time     // the same instant by the machine's clock, with a reading of the one that makes no steps
	cpu    time.Duration // of the counter, what it is charged for
	known  time.Duration // of the counter, the highest that was read; not less than cpu
	// last is the newest look at it, of which only memory and disk are used; not looked at yet
	// if its time is zero.
	last reading

	row    hutch.Usage // the last interval, which may grow; none while From is zero
	stored time.Time   // how far row is stored

	every time.Duration // between looks
	next  time.Time     // of them
	ended time.Time     // zero while it lives
}

// reading is what the host says of a sandbox at one instant.
type reading struct {
	at           time.Time
	cpu          time.Duration // since its start
	memory, disk int64
}

// look is a sandbox to be measured.
type look struct {
	id    hutch.SandboxID
	epoch hutch.Epoch
	state hutch.State
}

func newLedger() *ledger {
	return &ledger{accounts: map[hutch.SandboxID]*account{}, spent: map[hutch.ProjectID]*spent{}}
}

// open begins to charge a sandbox from at on; total is what it was charged before. One that
// is charged already stays as it is. An instant that is yet to come, by a clock that has been
// set back since it was stored, is taken for now: time that nobody can tell the length of is none.
func (l *ledger) open(sb hutch.Sandbox, at time.Time, total hutch.UsageTotal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accounts[sb.ID] == nil {
		now := time.Now()
		l.accounts[sb.ID] = &account{
			project: sb.Project, epoch: sb.Epoch, state: sb.State, budget: sb.Budget, total: total, opened: now,
			at: at.Round(0), seen: now.Add(min(0, at.Sub(now))), cpu: total.CPU, known: total.CPU,
		}
	}
}

func (l *ledger) has(id hutch.SandboxID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[id] != nil
}

// refresh takes the epoch from a record, and says whether the sandbox is charged at all.
func (l *ledger) refresh(sb hutch.Sandbox) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[sb.ID]
	if a != nil && sb.Epoch > a.epoch {
		a.epoch = sb.Epoch
	}
	return a != nil
}

// keep forgets every sandbox that is not in alive, a list that was begun at the given time.
func (l *ledger) keep(alive map[hutch.SandboxID]bool, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.accounts, func(id hutch.SandboxID, a *account) bool {
		gone := !alive[id] && a.opened.Before(at)
		if gone && a.unstored() {
			l.closed = append(l.closed, a.named(id))
		}
		return gone
	})
}

// due lists the sandboxes to be measured now: those whose time has come, and those that
// somebody used since they were last looked at.
func (l *ledger) due(now time.Time, lastUse func(hutch.SandboxID) time.Time) []look {
	l.mu.Lock()
	var all []look
	looked := map[hutch.SandboxID]time.Time{}
	var due []look
	for id, a := range l.accounts {
		k := look{id, a.epoch, a.state}
		switch {
		case !a.ended.IsZero():
		case !now.Before(a.next):
			due = append(due, k)
		default:
			all = append(all, k)
			looked[id] = a.last.at
		}
	}
	l.mu.Unlock()
	for _, k := range all {
		if lastUse(k.id).After(looked[k.id]) {
			due = append(due, k)
		}
	}
	return due
}

// pace is how often a sandbox is looked at: at least and at most.
type pace struct{ often, seldom time.Duration }

// charge charges a sandbox up to a reading. One of before adds no time, and what it says of CPU
// goes to the next interval; one of a sandbox that is not charged does nothing. It returns what the
// sandbox has been charged in all.
func (l *ledger) charge(id hutch.SandboxID, r reading, p pace) (hutch.UsageTotal, hutch.Budget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	if a == nil || !a.ended.IsZero() {
		return hutch.UsageTotal{}, hutch.Budget{}
	}
	if l.chargeLocked(id, a, r) || a.budget != (hutch.Budget{}) {
		a.every = p.often
	} else {
		a.every = min(max(2*a.every, p.often), max(p.seldom, p.often))
	}
	a.next = r.at.Add(a.every - a.every/8) // a tick that comes a little early is its tick
	return a.total, a.budget
}

// chargeLocked adds the interval up to r and says whether anything changed in it.
func (l *ledger) chargeLocked(id hutch.SandboxID, a *account, r reading) (changed bool) {
	a.known = max(a.known, r.cpu)
	d := r.at.Sub(a.seen)
	if d <= 0 {
		return false
	}
	if a.last.at.IsZero() {
		a.last = r
	}
	u := hutch.Usage{
		From: a.at, To: a.at.Add(d), State: a.state,
		Memory: a.last.memory/2 + r.memory/2, Disk: a.last.disk/2 + r.disk/2,
	}
	if a.state == hutch.StateRunning {
		// What a paused one's kernel used is charged when it goes on: the sum stays the host's.
		u.CPU, a.cpu = a.known-a.cpu, a.known
	}
	changed = cpus(u) > sameCPU || differ(a.last.memory, r.memory) || differ(a.last.disk, r.disk)
	a.at, a.seen, a.last = u.To, r.at, r
	a.total.Add(u)
	if s := l.spent[a.project]; s != nil {
		s.addLocked(id, u)
	}
	switch {
	case a.row.From.IsZero():
		a.row = u
	case same(a.row, u):
		a.row = join(a.row, u)
	default:
		l.closed = append(l.closed, a.named(id))
		a.row, a.stored = u, time.Time{}
	}
	return changed
}

// cpus is how many CPUs were used.
func cpus(u hutch.Usage) float64 { return float64(u.CPU) / float64(u.To.Sub(u.From)) }

func differ(a, b int64) bool { return max(a, b)-min(a, b) > sameBytes }

// same says whether two intervals, the second right after the first, can be told as one.
func same(a, b hutch.Usage) bool {
	ra, rb := cpus(a), cpus(b)
	return a.State == b.State && max(ra, rb)-min(ra, rb) <= sameCPU && !differ(a.Memory, b.Memory) && !differ(a.Disk, b.Disk)
}

// join is a and, right after it, b.
func join(a, b hutch.Usage) hutch.Usage {
	da, db := float64(a.To.Sub(a.From)), float64(b.To.Sub(b.From))
	// Rounded: what is cut off each time adds up over the thousands of times that an interval grows.
	mean := func(x, y int64) int64 { return int64(math.Round((float64(x)*da + float64(y)*db) / (da + db))) }
	a.Memory, a.Disk = mean(a.Memory, b.Memory), mean(a.Disk, b.Disk)
	a.CPU += b.CPU
	a.Egress += b.Egress
	a.To = b.To
	return a
}

// named is the row with the names that it is stored under.
func (a *account) named(id hutch.SandboxID) hutch.Usage {
	u := a.row
	u.Project, u.Sandbox = a.project, id
	return u
}

func (a *account) unstored() bool { return !a.row.From.IsZero() && !a.stored.Equal(a.row.To) }

// rest is the reading of a sandbox that cannot be measured: it goes on as it was, and uses no
// CPU. One that was never looked at uses nothing.
func (a *account) rest(at time.Time) reading {
	return reading{at: at, memory: a.last.memory, disk: a.last.disk}
}

// moment is the shortest interval that the API can tell from none.
const moment = time.Microsecond

// settleLocked charges what a reading that came late said of CPU, before it is too late: there
// may be no next interval as what the sandbox was. It takes a moment.
func (l *ledger) settleLocked(id hutch.SandboxID, a *account) {
	if a.state == hutch.StateRunning && a.known > a.cpu {
		l.chargeLocked(id, a, a.rest(a.seen.Add(moment)))
	}
}

// final charges a sandbox whose processes have ended. Its memory is what it was before.
func (l *ledger) final(id hutch.SandboxID, at time.Time, cpu time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil && a.ended.IsZero() {
		r := a.rest(at)
		r.cpu = max(r.cpu, cpu)
		l.chargeLocked(id, a, r)
		l.settleLocked(id, a)
		a.ended = a.at // whenever it comes to be recorded
	}
}

// turn makes a sandbox be charged as what it is from now on.
func (l *ledger) turn(id hutch.SandboxID, e hutch.Epoch, to hutch.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil {
		if a.state != to {
			l.settleLocked(id, a)
		}
		a.epoch, a.state, a.next = max(a.epoch, e), to, time.Time{}
	}
}

// end charges a sandbox up to its end, and no further. Ending twice keeps the first time,
// which is returned.
func (l *ledger) end(id hutch.SandboxID, at time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	if a == nil {
		return at
	}
	if a.ended.IsZero() {
		l.chargeLocked(id, a, a.rest(at))
		l.settleLocked(id, a)
		a.ended = a.at
	}
	return a.ended
}

// choice is which intervals to take.
type choice struct {
	project hutch.ProjectID // empty = of all
	sandbox hutch.SandboxID // empty = of all
	grown   bool            // also those that may grow yet, however little they grew
}

func (c choice) fits(p hutch.ProjectID, id hutch.SandboxID) bool {
	return (c.project == "" || c.project == p) && (c.sandbox == "" || c.sandbox == id)
}

// take returns intervals to be stored, for stored to be told of those that are, and then giveBack.
// Until then they are taken by whoever asks: who says that a sandbox has ended has stored all
// of it.
func (l *ledger) take(c choice) []hutch.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takers++
	var rows []hutch.Usage
	for _, u := range l.closed {
		if c.fits(u.Project, u.Sandbox) {
			rows = append(rows, u)
		}
	}
	for id, a := range l.accounts {
		if !c.fits(a.project, id) || !a.unstored() {
			continue
		}
		since := a.stored
		if since.IsZero() {
			since = a.row.From
		}
		if c.grown || a.row.To.Sub(since) >= growEvery {
			rows = append(rows, a.named(id))
		}
	}
	return rows
}

// stored notes that rows are stored.
func (l *ledger) stored(rows []hutch.Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := make(map[hutch.Usage]bool, len(rows))
	for _, u := range rows {
		done[u] = true
		if a := l.accounts[u.Sandbox]; a != nil && a.row.From.Equal(u.From) && u.To.After(a.stored) {
			a.stored = u.To
		}
	}
	l.closed = slices.DeleteFunc(l.closed, func(u hutch.Usage) bool { return done[u] })
}

// giveBack says that nothing more will be heard of what take returned.
func (l *ledger) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takers--
	// Not while somebody has intervals in hand: he would store some of them beside the one
	// that they have become part of.
	if l.takers == 0 && len(l.closed) > maxUnstored {
		l.closed = thin(l.closed)
	}
}

// maxUnstored is how many intervals are kept while the store takes none; beyond, those of a
// sandbox are made one for each state it was in.
const maxUnstored = 20_000

// thin joins neighbours of one sandbox and state. What they used stays the same.
func thin(rows []hutch.Usage) []hutch.Usage {
	last := map[hutch.SandboxID]int{}
	var out []hutch.Usage
	for _, u := range rows {
		if i, ok := last[u.Sandbox]; ok && out[i].State == u.State && out[i].To.Equal(u.From) {
			out[i] = join(out[i], u)
			continue
		}
		last[u.Sandbox] = len(out)
		out = append(out, u)
	}
	return out
}
