// Package chaos breaks a server that is at work, at random, and says whether everything that
// was promised was kept.
//
// Callers make sandboxes, run commands in them, pause, extend and end them, leave some to their
// deadline, and note what was answered; meanwhile kernels of sandboxes, their guest agents, the server, its keeper and its gateway
// are killed, as by kill -9. A caller makes a call again under the same key until it is
// answered, so that no death of ours may be noticed but in time. What was broken is known,
// and what that excuses: a sandbox whose kernel was killed is gone, and nothing else is.
//
// It owns the load, the choice of what to break, the notes and the judgement. How a machine's
// processes are found and ended is its caller's ([Machine]). It never ends keeper and server at
// once: what that costs is documented, and tried by the fault walk.
//
// A seed makes the same choices, as far as the same sandboxes are there to choose from. The
// moments are the machine's: a run is not repeated.
//
// Start with [Run], then caller.go and judge.go.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/x/backoff"
)

// Machine is what chaos breaks. All its methods return once what they say is done.
type Machine interface {
	// Crash ends the server as a crash does.
	Crash() error
	// Restart starts the server again on the same address and returns once it is ready.
	Restart(ctx context.Context) error
	// EndCompanion kills "keeper" or "egress", and returns once the server has another one that
	// holds what it must.
	EndCompanion(ctx context.Context, name string) error
	// EndMachine kills a sandbox's kernel, or the process its guest agent runs in. It is false
	// if there was none any more.
	EndMachine(id hutch.SandboxID, part Part) (bool, error)
	// Remains counts the kernels that are on the host, and names what `hutch leaks` does.
	Remains(ctx context.Context) (kernels int, leaks []string, err error)
}

// Part is a part of a sandbox's machine.
type Part string

// The parts.
const (
	Kernel Part = "kernel"
	Guest  Part = "guest"
)

// Settings say what is done.
type Settings struct {
	Seed     uint64
	For      time.Duration // how long things are broken
	Every    time.Duration // mean time between two faults
	Callers  int
	Boxes    int    // sandboxes of each caller at once
	Template string // of them
	MemoryMB int
}

// Report is what came of a run.
type Report struct {
	Seed       uint64         `json:"seed"`
	Seconds    float64        `json:"seconds"`
	Callers    int            `json:"callers"`
	Boxes      int            `json:"boxes_each"`
	Faults     map[string]int `json:"faults"`   // what was broken, how often
	Calls      map[string]int `json:"calls"`    // what was asked for and answered, how often
	Struck     int            `json:"struck"`   // sandboxes that were broken
	RestartMS  []int64        `json:"restart"`  // from each start of the server to its being ready, in ms
	Violations []string       `json:"violated"` // what was promised and not kept
}

// settleTime is how long the server may take to put right what the last fault left.
const settleTime = time.Minute

// Run breaks m for a while under the load of callers, lets it settle, and judges. An error says that
// it could not be done; what was not kept is in the report. c must make calls again for longer
// than the server takes to come back.
func Run(ctx context.Context, s Settings, m Machine, c *client.Client) (*Report, error) {
	r := &run{
		Settings: s, m: m, c: c, notes: newNotes(),
		rep: &Report{Seed: s.Seed, Callers: s.Callers, Boxes: s.Boxes, Faults: map[string]int{}, Violations: []string{}},
	}
	begun := time.Now()
	work, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for i := range s.Callers {
		wg.Go(func() { newCaller(r, i).work(work) })
	}
	err := r.rage(ctx)
	stop()
	wg.Wait()
	r.rep.Seconds = time.Since(begun).Seconds()
	if err != nil {
		return nil, err
	}
	return r.rep, r.judge(ctx)
}

// run is one under way.
type run struct {
	Settings

	m     Machine
	c     *client.Client
	notes *notes
	rep   *Report
}

// fault is something to break.
type fault struct {
	name   string
	weight int
	do     func(ctx context.Context, rnd *rand.Rand) (done bool, err error)
}

// atMost is how many times its time a run may take until something has come of it.
const atMost = 10

// goOn reports whether there is more to break: until the end, and on a machine so busy that
// callers were not answered by then, until they were.
func (r *run) goOn(end time.Time) bool {
	now := time.Now()
	if now.Before(end) {
		return true
	}
	return now.Before(end.Add((atMost-1)*r.For)) && (!r.notes.sawAll("create", "exec", "read back") || r.rep.Faults["server"] == 0)
}

// rage breaks things until its time is over. It returns with a server that is ready.
func (r *run) rage(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(r.Seed, 0))
	faults := []fault{
		{"kernel", 4, func(_ context.Context, rnd *rand.Rand) (bool, error) { return r.strike(rnd, Kernel) }},
		{"guest", 3, func(_ context.Context, rnd *rand.Rand) (bool, error) { return r.strike(rnd, Guest) }},
		{"server", 4, r.crash},
		{"keeper", 2, func(ctx context.Context, _ *rand.Rand) (bool, error) { return r.companion(ctx, "keeper") }},
		{"egress", 2, func(ctx context.Context, _ *rand.Rand) (bool, error) { return r.companion(ctx, "egress") }},
	}
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	for end := time.Now().Add(r.For); r.goOn(end); {
		if err := backoff.Sleep(ctx, time.Duration(rnd.Float64()*2*float64(r.Every))); err != nil {
			return err
		}
		n := rnd.IntN(sum)
		for _, f := range faults {
			if n -= f.weight; n >= 0 {
				continue
			}
			done, err := f.do(ctx, rnd)
			if err != nil {
				return fmt.Errorf("break the %s: %w", f.name, err)
			}
			if done {
				r.rep.Faults[f.name]++
			}
			break
		}
	}
	return nil
}

// strike kills a part of a sandbox of some caller. What comes of that sandbox is excused from
// now on.
func (r *run) strike(rnd *rand.Rand, part Part) (bool, error) {
	b := r.notes.strike(rnd)
	if b == nil {
		return false, nil
	}
	struck, err := r.m.EndMachine(b.id, part)
	if !struck && err == nil {
		r.notes.missed(b)
	}
	return struck, err
}

// crash ends the server and starts it again, at once or after a while.
func (r *run) crash(ctx context.Context, rnd *rand.Rand) (bool, error) {
	if err := r.m.Crash(); err != nil {
		return false, err
	}
	if rnd.IntN(2) == 0 { // what happens meanwhile is for the keeper, and for the next server to find
		if _, err := r.strike(rnd, Kernel); err != nil {
			return true, err
		}
		if err := backoff.Sleep(ctx, time.Duration(rnd.Float64()*float64(2*time.Second))); err != nil {
			return true, err
		}
	}
	begun := time.Now()
	if err := r.m.Restart(ctx); err != nil {
		return true, fmt.Errorf("start it again: %w", err)
	}
	r.rep.RestartMS = append(r.rep.RestartMS, time.Since(begun).Milliseconds())
	return true, nil
}

// companion kills one. Until the server has another that holds what the old one did, a second
// fault could be the one that nothing is to survive, so that is waited for.
func (r *run) companion(ctx context.Context, name string) (bool, error) {
	return true, r.m.EndCompanion(ctx, name)
}

// until asks until why is empty, for settleTime at the most.
func (r *run) until(ctx context.Context, what string, ask func(context.Context) (why string, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime, errTooLong)
	defer cancel()
	for {
		why, err := ask(ctx)
		if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
			return fmt.Errorf("wait until %s: %w: %w", what, errTooLong, err)
		}
		if err != nil || why == "" {
			return err
		}
		if err := backoff.Sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("wait until %s: %w: %s", what, err, why)
		}
	}
}

var errTooLong = errors.New("it took too long")
