package e2e

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// kill -9 of the server while sandboxes run commands costs neither.
func TestServerIsKilledAndComesBack(t *testing.T) {
	const boxes = 20
	s := own(t)
	ids := make([]hutch.SandboxID, boxes)
	execs := make([]hutch.ExecID, boxes)
	for i := range boxes {
		sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(256)})
		ids[i] = sb.ID
		execs[i] = s.background(t, sb.ID, `i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo line $i; sleep 0.2; done; echo end; exit 7`)
	}
	doomed := s.create(t, api.CreateSandbox{MemoryMB: ptr(256), TTLSeconds: ptr(3.0)})
	var before api.Exec
	eventually(t, "a command has ended", func() bool {
		before = s.ended(t, s.background(t, ids[0], `echo before`))
		return true
	})

	s.kill9(t)
	eventually(t, "the keeper ended the one whose time was over", func() bool { return s.sentries() == boxes })
	if err := s.start(); err != nil {
		t.Fatal(err)
	}

	if _, err := s.client.Sandbox(t.Context(), doomed.ID); !errors.Is(err, hutch.ErrSandboxGone) || !strings.Contains(err.Error(), string(hutch.EndExpired)) {
		t.Errorf("the one whose time was over: got %v, want gone, expired", err)
	}
	if x, err := s.client.ExecRecord(t.Context(), before.ExecID); err != nil || x.Result == nil || x.Result.Stdout != "before\n" {
		t.Errorf("a command that had ended before: got %+v, %v", x, err)
	}
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() { s.checkSurvivor(t, ids[i], execs[i]) })
	}
	wg.Wait()
}

// checkSurvivor re-attaches to a command from its first byte and lets it end.
func (s *server) checkSurvivor(t *testing.T, id hutch.SandboxID, x hutch.ExecID) {
	rec, err := s.client.ExecRecord(t.Context(), x)
	if err != nil || !rec.Running {
		t.Errorf("%s: its command: got %+v, %v; want it running", id, rec, err)
		return
	}
	if _, err := s.client.Exec(t.Context(), id, api.ExecRequest{Cmd: "touch /tmp/stop"}); err != nil {
		t.Errorf("%s: a new command: %v", id, err)
		return
	}
	var all []byte
	end, err := s.client.Follow(t.Context(), x, client.StreamOptions{}, func(o client.Output) error {
		if o.Stream == hutch.Stdout {
			if o.Offset != int64(len(all)) {
				t.Errorf("%s: output at %d, want %d", id, o.Offset, len(all))
			}
			all = append(all, o.Data...)
		}
		return nil
	})
	if err != nil || end.ExitCode != 7 {
		t.Errorf("%s: its command ended with %v, %+v; want exit code 7", id, err, end)
	}
	if !strings.HasPrefix(string(all), "line 1\nline 2\n") || !strings.HasSuffix(string(all), "end\n") {
		t.Errorf("%s: its output is %d bytes: %.40q", id, len(all), all)
	}
}

func TestPausedSandboxSurvivesARestart(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `while :; do date +%s.%N > /tmp/tick; sleep 0.05; done`)
	eventually(t, "it ticks", func() bool { return s.run(t, sb.ID, `test -s /tmp/tick`).ExitCode == 0 })
	if err := s.client.Pause(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: "true"}); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("exec in a paused sandbox: got %v, want invalid_state", err)
	}
	s.kill9(t)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	got, err := s.client.Sandbox(t.Context(), sb.ID)
	if err != nil || got.State != hutch.StatePaused {
		t.Fatalf("got %+v, %v; want it paused", got, err)
	}
	if err := s.client.Resume(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	first := s.out(t, sb.ID, `cat /tmp/tick`)
	eventually(t, "it ticks again", func() bool { return s.out(t, sb.ID, `cat /tmp/tick`) != first })
	if x, err := s.client.Cancel(t.Context(), id, nil); err != nil || x.Result == nil {
		t.Errorf("cancel: %+v, %v", x, err)
	}
}

func TestGracefulStopCostsNothing(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, `echo kept > /tmp/f`)
	if err := s.cmd.Process.Signal(stopSignal); err != nil {
		t.Fatal(err)
	}
	if err := <-s.exited; err != nil {
		t.Fatalf("the server ended with %v\n%s", err, s.log.String())
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if out := s.out(t, sb.ID, `cat /tmp/f`); out != "kept" {
		t.Errorf("got %q", out)
	}
}

// Whenever the server dies in a create, the next one leaves no orphan and no record that
// is not true.
func TestCaseC08KilledInTheMiddleOfACreate(t *testing.T) {
	s := own(t)
	for i := range 6 {
		delay := time.NewTimer(time.Duration(i*20) * time.Millisecond)
		done := make(chan struct{})
		c, err := client.New(s.base, client.WithKey(s.key), client.WithRetries(0))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(done)
			_, _ = c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(256)})
		}()
		<-delay.C
		s.kill9(t)
		<-done
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		alive := 0
		for sb, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if sb.State != hutch.StateRunning {
				t.Errorf("killed after %v: %s is %s %s", time.Duration(i*20)*time.Millisecond, sb.ID, sb.State, sb.Transition)
				continue
			}
			alive++
			if out := s.out(t, sb.ID, `echo alive`); out != "alive" {
				t.Errorf("it answers %q", out)
			}
		}
		if n := s.sentries(); n != alive {
			t.Errorf("killed after %v: %d sandboxes on the host, %d on record", time.Duration(i*20)*time.Millisecond, n, alive)
		}
	}
}

func TestCompanionsAreReplaced(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	for _, name := range []string{"keeper", "egress"} {
		if n := s.killCompanion(t, name); n != 1 {
			t.Fatalf("%d processes of the %s were found, want 1", n, name)
		}
		eventually(t, "there is a new "+name, func() bool { return s.companions(name) == 1 })
	}
	if res := s.run(t, sb.ID, `curl -sS -m 20 http://192.0.2.1/`, timeout(15)); res.ExitCode == 0 || res.EndReason != hutch.ExecExit {
		t.Errorf("the network after the gateway was replaced: %s, %d", res.EndReason, res.ExitCode)
	}
	// The new keeper was given what the old one held.
	eventually(t, "the new keeper is filled", func() bool {
		s.kill9(t)
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		return s.run(t, sb.ID, `true`).ExitCode == 0
	})
}

func TestDeadlines(t *testing.T) {
	s := own(t)
	short := s.create(t, api.CreateSandbox{TTLSeconds: ptr(2.0)})
	long, paused := s.create(t, api.CreateSandbox{}), s.create(t, api.CreateSandbox{})
	if err := s.client.Pause(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		id hutch.SandboxID
		to time.Duration
	}{{long.ID, 2 * time.Second}, {long.ID, time.Hour}, {paused.ID, 2 * time.Second}} {
		if _, err := s.client.Extend(t.Context(), x.id, x.to); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []hutch.SandboxID{short.ID, paused.ID} {
		eventually(t, "it has expired", func() bool {
			_, err := s.client.Sandbox(t.Context(), id)
			return errors.Is(err, hutch.ErrSandboxGone) && strings.Contains(err.Error(), string(hutch.EndExpired))
		})
	}
	if out := s.out(t, long.ID, `echo here`); out != "here" {
		t.Errorf("the extended one: %q", out)
	}
	if n := s.sentries(); n != 1 {
		t.Errorf("%d sandboxes are on the host, want 1", n)
	}
}
