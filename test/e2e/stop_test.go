package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// stubborn are ways in which a command and its children try to outlive a stop. Each
// leaves processes that sleep for 98765 seconds.
var stubborn = map[string]string{
	"plain":              `sleep 98765`,
	"child of a shell":   `sh -c 'sleep 98765 & wait'`,
	"then more":          `sh -c 'sleep 98765; echo x'`,
	"own session":        `setsid sleep 98765 & sleep 98765`,
	"double fork":        `(setsid sh -c 'sleep 98765 & sleep 98765 &' &) ; sleep 98765`,
	"ignores TERM":       `trap '' TERM; sleep 98765; sleep 98765`,
	"children ignore":    `sh -c "trap '' TERM HUP INT; sleep 98765 & sleep 98765 & wait; sleep 98765"`,
	"stopped":            `sleep 98765 & kill -STOP $!; wait`,
	"daemon, pipe held":  `python3 -c 'import os,time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(98765)' & sleep 98765`,
	"left its cgroup":    `sh -c 'echo 0 > /sys/fs/cgroup/cgroup.procs 2>/dev/null; mkdir -p /sys/fs/cgroup/x && echo 0 > /sys/fs/cgroup/x/cgroup.procs; exec sleep 98765' & sleep 98765`,
	"clean environment":  `env -i setsid sleep 98765 & sleep 98765`,
	"a crowd":            `for i in $(seq 60); do setsid sleep 98765 & done; wait`,
	"respawns":           `sh -c 'while :; do setsid sleep 98765 & wait $!; done' & wait`,
	"reads a quiet pipe": `mkfifo /tmp/f$$; sleep 98765 > /tmp/f$$ & cat /tmp/f$$`,
}

func TestTimeoutLeavesNothing(t *testing.T) {
	t.Parallel()
	s := common(t)
	for name, cmd := range stubborn {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := s.create(t, api.CreateSandbox{})
			within(t, time.Second+hutch.DefaultGrace, "the answer", func() {
				res := s.run(t, sb.ID, cmd, timeout(1))
				if res.EndReason != hutch.ExecTimeout || res.ExitCode != hutch.ExitTimeout || len(res.Killed) == 0 {
					t.Errorf("got %s, exit code %d, %d killed", res.EndReason, res.ExitCode, len(res.Killed))
				}
			})
			if n := s.alive(t, sb.ID, "98765"); n != 0 {
				t.Errorf("%d processes of it are alive", n)
			}
		})
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	t.Parallel()
	s := common(t)
	for name, cmd := range stubborn {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := s.create(t, api.CreateSandbox{})
			id := s.background(t, sb.ID, cmd)
			eventually(t, "it runs", func() bool { return s.alive(t, sb.ID, "98765") > 0 })
			other, err := client.New(s.base, client.WithKey(s.key)) // from another client
			if err != nil {
				t.Fatal(err)
			}
			within(t, hutch.DefaultGrace, "the answer", func() {
				x, err := other.Cancel(t.Context(), id, nil)
				if err != nil {
					t.Fatal(err)
				}
				if x.Result == nil || x.Result.EndReason != hutch.ExecCancelled {
					t.Errorf("got %+v, want cancelled", x.Result)
				}
			})
			if n := s.alive(t, sb.ID, "98765"); n != 0 {
				t.Errorf("%d processes of it are alive", n)
			}
		})
	}
}

func TestKillLeavesNothing(t *testing.T) {
	s := own(t)
	var boxes []api.Sandbox
	for _, cmd := range stubborn {
		sb := s.create(t, api.CreateSandbox{})
		s.background(t, sb.ID, cmd)
		boxes = append(boxes, sb)
	}
	if s.sandboxProcesses() == 0 {
		t.Fatal("no sandbox is on the host before the kills: the count below would prove nothing")
	}
	var wg sync.WaitGroup
	for _, sb := range boxes {
		wg.Go(func() {
			if err := s.client.Kill(t.Context(), sb.ID); err != nil {
				t.Errorf("kill %s: %v", sb.ID, err)
			}
		})
	}
	wg.Wait()
	if n := s.sandboxProcesses(); n != 0 {
		t.Errorf("%d sandbox processes are on the host after every kill was answered", n)
	}
	for _, sb := range boxes {
		if _, err := s.client.Sandbox(t.Context(), sb.ID); !errors.Is(err, hutch.ErrSandboxGone) {
			t.Errorf("a killed sandbox: got %v, want sandbox_gone", err)
		}
		for x, err := range s.client.Execs(t.Context(), sb.ID, false) {
			if err != nil {
				t.Fatal(err)
			}
			if x.Result == nil || x.Result.EndReason != hutch.ExecSandboxGone {
				t.Errorf("a command of a killed sandbox: got %+v, want sandbox_gone", x.Result)
			}
		}
	}
}

func TestCaseA01GrandchildHoldsThePipe(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	for _, cmd := range []string{`sh -c 'sleep 31234 & wait'`, `sh -c 'sleep 31234; echo x'`} {
		within(t, 2*time.Second+hutch.DefaultGrace, cmd, func() {
			if res := s.run(t, sb.ID, cmd, timeout(2)); res.EndReason != hutch.ExecTimeout {
				t.Errorf("%s: got %s, want timeout", cmd, res.EndReason)
			}
		})
		if n := s.alive(t, sb.ID, "sleep 31234"); n != 0 {
			t.Errorf("%s: %d are left", cmd, n)
		}
	}
}

// errEnough ends a stream of which enough was seen.
var errEnough = errors.New("enough")

func TestCaseA03ServerPortIsFreeAgain(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	const serve = `python3 -c 'import os
if os.fork() == 0:
    os.setsid()
    import socket, time
    s = socket.socket()
    s.bind(("127.0.0.1", 8000))
    s.listen()
    print("bound", flush=True)
    time.sleep(1000)
os.wait()'`
	// Once stopped by its limit, which must leave it the time to start, and twice as soon as
	// it listens: a stop is the same act whoever wants it.
	for _, limit := range []float64{8, 600, 600} {
		id := s.background(t, sb.ID, serve, timeout(limit))
		if limit > 8 {
			_, err := s.client.Follow(t.Context(), id, client.StreamOptions{}, func(o client.Output) error {
				if o.Stream == hutch.Stdout {
					return errEnough
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				t.Fatalf("it ended before it listened: %v", err)
			}
			if _, err := s.client.Cancel(t.Context(), id, nil); err != nil {
				t.Fatal(err)
			}
		}
		res := s.ended(t, id).Result
		if res.EndReason != hutch.ExecTimeout && res.EndReason != hutch.ExecCancelled || res.Stderr != "" || res.Stdout != "bound\n" {
			t.Fatalf("got %s, stdout %q, stderr %q", res.EndReason, res.Stdout, res.Stderr)
		}
	}
}

func TestCaseA05TermIgnored(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `trap '' TERM; sleep 600; sleep 600; sleep 600; sleep 600`, timeout(1))
	if res.EndReason != hutch.ExecTimeout || !res.Escalated {
		t.Errorf("got %s, escalated %v; want a timeout that needed KILL", res.EndReason, res.Escalated)
	}
	polite := s.run(t, sb.ID, `trap 'echo bye; exit 3' TERM; sleep 600 & wait`, timeout(1))
	if polite.EndReason != hutch.ExecTimeout || polite.Escalated || polite.Stdout != "bye\n" {
		t.Errorf("one that obeys TERM: got %s, escalated %v, %q", polite.EndReason, polite.Escalated, polite.Stdout)
	}
}

func TestCaseA06LeaderExitEndsTheCall(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	within(t, 2*time.Second, "the answer", func() {
		res := s.run(t, sb.ID, `(setsid sleep 600 &) ; echo done`)
		if res.EndReason != hutch.ExecExit || res.ExitCode != 0 || res.Stdout != "done\n" {
			t.Errorf("got %s, %d, %q", res.EndReason, res.ExitCode, res.Stdout)
		}
	})
}

func TestCaseA08KillIsIdempotent(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `sleep 1000`)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := s.client.Cancel(t.Context(), id, nil); err != nil {
				t.Errorf("cancel: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := s.client.Cancel(t.Context(), id, nil); err != nil {
		t.Errorf("cancel once more: %v", err)
	}
	if n := s.alive(t, sb.ID, "sleep 1000"); n != 0 {
		t.Errorf("%d are left", n)
	}
	for x, err := range s.client.Execs(t.Context(), sb.ID, true) {
		if err != nil {
			t.Fatal(err)
		}
		if x.ExecID == id {
			t.Error("the cancelled command is listed as running")
		}
	}
}

func TestCaseA10OutputBeforeTheTimeoutIsKept(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `for i in 1 2 3; do echo $i; done; sleep 60; echo late`, timeout(2))
	if res.Stdout != "1\n2\n3\n" || res.EndReason != hutch.ExecTimeout || res.ExitCode != hutch.ExitTimeout {
		t.Errorf("got %q, %s, %d", res.Stdout, res.EndReason, res.ExitCode)
	}
}

func TestCaseA11NoOutputTimeout(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	silent := func(r *api.ExecRequest) { r.NoOutputTimeoutSeconds = ptr(1.5) }
	within(t, 2*time.Second+hutch.DefaultGrace, "the answer", func() {
		res := s.run(t, sb.ID, `echo a; sleep 60`, silent)
		if res.EndReason != hutch.ExecNoOutput || res.Stdout != "a\n" {
			t.Errorf("got %s, %q; want no_output", res.EndReason, res.Stdout)
		}
	})
	res := s.run(t, sb.ID, `for i in 1 2 3 4 5; do echo $i >&2; sleep 0.5; done`, silent)
	if res.EndReason != hutch.ExecExit {
		t.Errorf("one that goes on writing: got %s", res.EndReason)
	}
}

func TestCaseA15DefaultTimeout(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	running := func() (n int) {
		for x, err := range s.client.Execs(t.Context(), sb.ID, true) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			if x.TimeoutSeconds != hutch.DefaultExecTimeout.Seconds() {
				t.Errorf("its timeout is %v s, want the default of %v", x.TimeoutSeconds, hutch.DefaultExecTimeout)
			}
		}
		return n
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	answered := make(chan error, 1)
	go func() {
		_, err := s.client.Exec(ctx, sb.ID, api.ExecRequest{Cmd: `tail -f /dev/null`})
		answered <- err
	}()
	eventually(t, "it runs", func() bool { return running() == 1 })
	leave()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Fatalf("a command that never ends was answered: %v", err)
	}
	if running() != 1 {
		t.Error("it is not listed as running after its caller left")
	}
}

func TestCaseA21CallerLeavesDuringCreate(t *testing.T) {
	s := own(t)
	for i := range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*15)*time.Millisecond)
		_, _ = s.client.CreateSandbox(ctx, api.CreateSandbox{Template: "base", MemoryMB: ptr(256)})
		cancel()
	}
	// Those left at a fixed time may all have been too early or too late. These are left once
	// the server has begun.
	middle := 0
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		err := s.createUntilOnRecord(t, s.client, cancel, func() error {
			_, err := s.client.CreateSandbox(ctx, api.CreateSandbox{Template: "base", MemoryMB: ptr(256)})
			return err
		})
		if errors.Is(err, context.Canceled) {
			middle++
		}
	}
	if middle == 0 {
		t.Error("no caller left during a create: each was answered first")
	}
	eventually(t, "records and host agree", func() bool {
		listed := 0
		for sb, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if sb.State != hutch.StateRunning || sb.Transition != "" {
				return false
			}
			listed++
		}
		return s.sentries() == listed
	})
}

// createUntilOnRecord begins a create, does what is to happen in its middle once there is a
// record of it, and returns how the create ended.
func (s *server) createUntilOnRecord(t *testing.T, c *client.Client, middle func(), create func() error) error {
	t.Helper()
	count := func() (n int) {
		for _, err := range c.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	before := count()
	ended := make(chan error, 1)
	go func() { ended <- create() }()
	eventually(t, "there is a record of it", func() bool { return count() > before })
	middle()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the create goes on without an end")
		return nil
	}
}

func TestCaseB23AbortedCommandIsDead(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `echo partial; sleep 4321`)
	eventually(t, "it sleeps", func() bool { return s.alive(t, sb.ID, "^sleep 4321") == 1 })
	within(t, time.Second, "the cancel", func() {
		x, err := s.client.Cancel(t.Context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x.Result == nil || x.Result.Stdout != "partial\n" {
			t.Errorf("got %+v, want the partial output", x.Result)
		}
	})
	if n := s.alive(t, sb.ID, "^sleep 4321"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// sentries counts sandboxes on the host by their kernel processes.
func (s *server) sentries() int {
	n := 0
	for _, p := range s.processes() {
		if strings.HasPrefix(p, "runsc-sandbox") {
			n++
		}
	}
	return n
}
