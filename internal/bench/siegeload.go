package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// load takes all of something in a sandbox of its own.
type load struct {
	name, cmd string
	// memory says that it takes so much memory that it may be ended for it, or the whole
	// sandbox: it is then begun anew. Any other load goes on until it is stopped.
	memory bool
}

var loads = []load{
	// A shell that cannot fork ends: perl begins anew.
	{name: "fork bomb", memory: true, cmd: `exec perl -e 'while (1) { system("sh", "-c", "bomb() { bomb | bomb & }; bomb") }'`},
	{name: "memory hog", memory: true, cmd: `while :; do python3 -c 'b = bytearray(10**9)'; done`},
	{name: "disk filler", cmd: `while :; do dd if=/dev/zero of=/workspace/big bs=1M 2>/dev/null; rm -f /workspace/big; done`},
	{name: "output flood", cmd: `yes`},
	{name: "CPU burner", cmd: `for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait`},
}

// What a sandbox with a load has: little, so that there soon is none of it left.
const (
	wardMemoryMB = 256
	wardDiskMB   = 128
	wardPids     = 128
)

func wardRequest(s Settings) api.CreateSandbox {
	memory, disk, pids := wardMemoryMB, wardDiskMB, wardPids
	req := s.request()
	req.MemoryMB, req.DiskMB, req.Pids = &memory, &disk, &pids
	ttl := (s.Limit + time.Minute).Seconds()
	req.TTLSeconds = &ttl
	return req
}

// mindEvery is how long whoever minds a sandbox waits between one round of questions and the next.
const mindEvery = 500 * time.Millisecond

// A file that is in every sandbox with a load before that begins.
const (
	keptPath = "/workspace/kept"
	keptText = "kept\n"
)

var keepArgv = []string{"/bin/sh", "-c", "echo kept >" + keptPath}

// errTaken says that a load has taken the whole sandbox with it.
var errTaken = errors.New("the sandbox has ended over its load")

// ward is a sandbox with a load. Once the load has taken it every call fails with errTaken.
type ward interface {
	// begin starts the load and does not wait for its end.
	begin(ctx context.Context, cmd string) error
	// running says whether the load goes on.
	running(ctx context.Context) (bool, error)
	// calls are what is asked of it, by metric.
	calls() map[string]func(ctx context.Context) error
	// used is the CPU time that it has taken, and the most memory it was charged with.
	used(ctx context.Context) (cpu time.Duration, memory int64, err error)
	// kill removes it, also when ctx has ended.
	kill(ctx context.Context) error
}

// post is where a load is kept up for a round.
type post struct {
	load  load
	page  page
	found func(ctx context.Context) (ward, error)

	ward  ward // nil: there is none
	since time.Time
	anew  int64
	taken int64
}

// begin makes the sandbox, and the load begin in it.
func (p *post) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	w, err := p.found(ctx)
	if err != nil {
		return err
	}
	p.ward, p.since = w, time.Now()
	if err := w.begin(ctx, p.load.cmd); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

// mind asks what whoever minds the sandbox would ask, and keeps the load up, until over, but
// at least once.
func (p *post) mind(ctx context.Context, over <-chan struct{}) {
	for {
		if err := p.look(ctx); err != nil && ctx.Err() == nil {
			p.page.fault("%v", err)
			if p.page.b.hopeless(p.page.phase) != nil {
				return
			}
		}
		t := time.NewTimer(mindEvery)
		select {
		case <-t.C:
		case <-over:
			t.Stop()
			return
		}
	}
}

// look is one round of questions.
func (p *post) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	err := p.ask(ctx)
	if !errors.Is(err, errTaken) || !p.load.memory {
		return err
	}
	p.taken++
	if err := p.ward.kill(ctx); err != nil && !errors.Is(err, errTaken) {
		return fmt.Errorf("remove what is left: %w", err)
	}
	p.ward = nil
	return p.begin(ctx)
}

func (p *post) ask(ctx context.Context) error {
	if p.ward == nil { // to take the place of the last one none could be made
		return p.begin(ctx)
	}
	for metric, call := range p.ward.calls() {
		begun := time.Now()
		if err := call(ctx); err != nil {
			return fmt.Errorf("%s: %w", metric, err)
		}
		p.page.time(metric, time.Since(begun))
	}
	on, err := p.ward.running(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("look after the load: %w", err)
	case on:
		return nil
	case !p.load.memory:
		return errors.New("the load has ended, which nothing should have made it do")
	}
	if err := p.ward.begin(ctx, p.load.cmd); err != nil {
		if errors.Is(err, hutch.ErrUnavailable) {
			return nil // for want of memory, which is still being given back: it is tried again
		}
		return fmt.Errorf("begin anew: %w", err)
	}
	p.anew++
	return nil
}

// weigh books what the load took in the sandbox that it is in now, and how often it had to be
// begun anew.
func (p *post) weigh(ctx context.Context) error {
	p.page.add(MetricAnew, Count, p.anew)
	p.page.add(MetricTaken, Count, p.taken)
	if p.ward == nil {
		return nil
	}
	cpu, memory, err := p.ward.used(ctx)
	switch {
	case errors.Is(err, errTaken) && p.load.memory:
		return nil
	case err != nil:
		return fmt.Errorf("%s: read what it has used: %w", p.load.name, err)
	}
	p.page.add(MetricCPU, CPUShare, int64(float64(cpu)/float64(time.Since(p.since))*1e6))
	p.page.add(MetricCharge, Bytes, memory)
	return nil
}
