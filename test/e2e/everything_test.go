package e2e

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// load takes all of something in a sandbox of its own.
type load struct {
	name, cmd string
	memory    bool // so much that it may be ended for it, and the sandbox with it
	box       hutch.SandboxID
	exec      hutch.ExecID
}

func loads() []*load {
	return []*load{
		// A shell that can't fork ends: perl begins anew.
		{name: "fork bomb", memory: true, cmd: `exec perl -e 'while (1) { system("sh", "-c", "bomb() { bomb | bomb & }; bomb") }'`},
		{name: "memory hog", memory: true, cmd: `while :; do python3 -c 'b = bytearray(10**9)'; done`},
		{name: "disk filler", cmd: `while :; do dd if=/dev/zero of=/workspace/big bs=1M 2>/dev/null; rm -f /workspace/big; done`},
		{name: "output flood", cmd: `yes`},
		{name: "CPU burner", cmd: `for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait`},
	}
}

// Everything that can be taken, all of it at once, each in a sandbox of its own: the calls that
// control each of them are answered, and neighbours work. HUTCH_SOAK=1 goes on for minutes and
// says how fast.
func TestEverythingIsTakenAtOnce(t *testing.T) {
	s := own(t)
	rounds, took := 2, newTimes()
	if os.Getenv("HUTCH_SOAK") != "" {
		rounds = 200
	}
	neighbour := s.create(t, api.CreateSandbox{MemoryMB: ptr(128)})
	s.inside(t, neighbour.ID, `echo here`, "here")
	all := loads()
	for _, l := range all {
		l.box = s.create(t, api.CreateSandbox{MemoryMB: ptr(256), DiskMB: ptr(128), Pids: ptr(128)}).ID
		s.out(t, l.box, `echo kept >/workspace/small`)
		l.exec = s.background(t, l.box, l.cmd)
	}
	for range rounds {
		var wg sync.WaitGroup
		for _, l := range all {
			wg.Go(func() { s.control(t, l, took) })
		}
		wg.Wait()
		took.time(t, "neighbour's command", func() {
			if res, err := s.client.Exec(t.Context(), neighbour.ID, api.ExecRequest{Cmd: "echo here"}); err != nil || res.Stdout != "here\n" {
				t.Errorf("a neighbour: %q, %v", res.Stdout, err)
			}
		})
		for _, l := range all {
			s.keepUp(t, l)
		}
	}
	for _, l := range all {
		took.time(t, l.name+": kill", func() {
			if err := s.client.Kill(t.Context(), l.box); err != nil && !s.endedByMemory(t, l) {
				t.Errorf("%s: kill: %v", l.name, err)
			}
		})
	}
	if n := s.sentries(); n != 1 {
		t.Errorf("%d sandboxes are on the host after all but one were killed", n)
	}
	took.log(t)
}

// keepUp fails the test if a load has ended that had no reason to, and begins one anew that was
// ended for memory.
func (s *server) keepUp(t *testing.T, l *load) {
	t.Helper()
	x, err := s.client.ExecRecord(t.Context(), l.exec)
	switch {
	case err != nil:
		t.Errorf("%s: %v", l.name, err)
	case x.Running:
	case !l.memory || x.Result.EndReason != hutch.ExecOOM && x.Result.EndReason != hutch.ExecSandboxGone:
		t.Errorf("%s has ended: %+v", l.name, x.Result)
	default:
		again, err := s.client.StartExec(t.Context(), l.box, api.ExecRequest{Cmd: l.cmd, Background: true})
		if err == nil {
			l.exec = again.ExecID
		} else if !s.endedByMemory(t, l) {
			t.Errorf("%s, again: %v", l.name, err)
		}
	}
}

// control makes the calls that somebody who minds a sandbox makes. One that its load has ended
// whole, as a fork bomb may do over memory, says so.
func (s *server) control(t *testing.T, l *load, took *times) {
	file := client.File{Sandbox: l.box, Path: "/workspace/small"}
	for what, call := range map[string]func(ctx context.Context) error{
		"list commands": func(ctx context.Context) error {
			for _, err := range s.client.Execs(ctx, l.box, true) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"look": func(ctx context.Context) error { _, err := s.client.Sandbox(ctx, l.box); return err },
		"read a file": func(ctx context.Context) error {
			_, err := s.client.ReadFile(ctx, file, &strings.Builder{})
			return err
		},
		"usage": func(ctx context.Context) error { _, err := s.client.Usage(ctx, l.box); return err },
		"ports": func(ctx context.Context) error { _, err := s.client.Ports(ctx, l.box); return err },
	} {
		took.time(t, l.name+": "+what, func() {
			if err := call(t.Context()); err != nil && !s.endedByMemory(t, l) {
				t.Errorf("%s: %s: %v", l.name, what, err)
			}
		})
	}
}

// endedByMemory says whether the sandbox of a load that takes memory, in which a call has failed,
// has ended whole over it. That takes a moment to be on record.
func (s *server) endedByMemory(t *testing.T, l *load) bool {
	t.Helper()
	if !l.memory {
		return false
	}
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	var why hutch.SandboxEnd
	_ = poll(ctx, "it has ended", func() (bool, error) {
		a := s.ask(t, "GET", "/v1/sandboxes/"+string(l.box), "")
		if a.status == http.StatusNotFound {
			why = answered[api.Error](a).EndReason
		}
		return a.status == http.StatusNotFound, nil
	})
	return why == hutch.EndOOM
}

// times are how long calls took, by what they are.
type times struct {
	mu sync.Mutex
	of map[string][]time.Duration
}

func newTimes() *times { return &times{of: map[string][]time.Duration{}} }

// hangs is when a call under load is taken to hang. How fast they are is measured on a machine
// that does nothing else.
const hangs = 20 * time.Second

func (m *times) time(t *testing.T, what string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	d := time.Since(began)
	if d > hangs {
		t.Errorf("%s took %v", what, d)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[what] = append(m.of[what], d)
}

func (m *times) log(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for what, d := range m.of {
		slices.Sort(d)
		t.Logf("%-32s n %4d  p50 %9v  p99 %9v  max %9v", what, len(d), d[len(d)/2].Round(10*time.Microsecond), d[len(d)*99/100].Round(10*time.Microsecond), d[len(d)-1].Round(10*time.Microsecond))
	}
}
