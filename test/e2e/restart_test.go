package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/keeper"
)

// kill -9 of the server while sandboxes run commands costs neither.
func TestServerIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	const boxes = 20
	s := own(t)
	ids := make([]hutch.SandboxID, boxes)
	execs := make([]hutch.ExecID, boxes)
	for i := range boxes {
		sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(256)})
		ids[i] = sb.ID
		execs[i] = s.background(t, sb.ID, `i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo line $i; sleep 0.2; done; echo end; exit 7`)
	}
	before := s.ended(t, s.background(t, ids[0], `echo before`))
	doomed := s.create(t, api.CreateSandbox{MemoryMB: ptr(256), TTLSeconds: ptr(20.0)}) // not over before the server is

	s.kill9(t)
	if n := s.sentries(); n != boxes+1 {
		t.Fatalf("%d sandboxes outlived the server, want %d", n, boxes+1)
	}
	eventually(t, "the keeper ended the one whose time was over", func() bool { return s.sentries() == boxes })
	if err := s.start(); err != nil {
		t.Fatal(err)
	}

	if _, err := s.client.Sandbox(t.Context(), doomed.ID); !errors.Is(err, hutch.ErrSandboxGone) || !strings.Contains(err.Error(), string(hutch.EndExpired)) {
		t.Errorf("the one whose time was over: got %v, want gone, expired", err)
	}
	// Its end need not have been on record when the server died; then its guest tells it again.
	if x := s.ended(t, before.ExecID); x.Result.ExitCode != 0 || x.Result.Stdout != "before\n" {
		t.Errorf("a command that had ended before: got %+v", x)
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

// A stream that is open when the server is killed goes on where it broke off once there is a
// server again: its caller has every byte, and has it once.
func TestAStreamOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	addr := strings.TrimPrefix(s.base, "http://")
	c, err := client.New(s.base, client.WithKey(s.key), client.WithRetries(30)) // a busy machine starts servers slowly
	if err != nil {
		t.Fatal(err)
	}
	type ending struct {
		end api.ExecEnd
		err error
	}
	var all []byte
	begun, ended := make(chan struct{}), make(chan ending, 1)
	go func() {
		var e ending
		e.end, e.err = c.Stream(t.Context(), sb.ID, api.ExecRequest{Cmd: `i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo line $i; sleep 0.01; done; echo end; exit 7`}, client.StreamOptions{}, func(o client.Output) error {
			if o.Stream != hutch.Stdout || o.Offset != int64(len(all)) {
				return fmt.Errorf("%s at %d, want stdout at %d", o.Stream, o.Offset, len(all))
			}
			if len(all) == 0 {
				close(begun)
			}
			all = append(all, o.Data...)
			return nil
		})
		ended <- e
	}()
	received(t, "the stream has begun", begun)
	for range 2 {
		s.kill9(t)
		if err := s.start("--listen", addr); err != nil {
			t.Fatal(err)
		}
		s.out(t, sb.ID, "true")
	}
	s.out(t, sb.ID, "touch /tmp/stop")
	if e := received(t, "the stream has ended", ended); e.err != nil || e.end.ExitCode != 7 {
		t.Fatalf("it ended with %+v, %v; want exit code 7", e.end, e.err)
	}
	lines := strings.Split(string(all), "\n")
	for i, line := range lines[:len(lines)-2] {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Fatalf("line %d is %q, want %q", i+1, line, want)
		}
	}
	if tail := lines[len(lines)-2:]; len(lines) < 10 || tail[0] != "end" || tail[1] != "" {
		t.Errorf("%d lines, the last %q", len(lines), tail)
	}
}

func TestPausedSandboxSurvivesARestart(t *testing.T) {
	t.Parallel()
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

// A server that is told to stop finishes the creates under way, and does not leave its address
// to whoever listens there next.
func TestStopFinishesCreates(t *testing.T) {
	s := own(t)
	once, err := client.New(s.base, client.WithKey(s.key), client.WithRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	const boxes = 4
	made := make([]error, boxes)
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			_, made[i] = once.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(256)})
		})
	}
	eventually(t, "all are under way", func() bool {
		n := 0
		for _, err := range once.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n == boxes
	})
	if err := s.cmd.Process.Signal(stopSignal); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, err := range made {
		if err != nil {
			t.Errorf("create %d: %v", i, err)
		}
	}
	if err := <-s.exited; err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "listen")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its address is left: %v", err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if n := s.sentries(); n != boxes {
		t.Errorf("%d sandboxes run after it has come back, want %d", n, boxes)
	}
}

func TestGracefulStopCostsNothing(t *testing.T) {
	t.Parallel()
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
	middle := 0
	for i := range 10 {
		c, err := client.New(s.base, client.WithKey(s.key), client.WithRetries(0))
		if err != nil {
			t.Fatal(err)
		}
		create := func() error {
			_, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(256)})
			return err
		}
		when := fmt.Sprintf("%d ms after the call", i*20)
		if i < 5 {
			delay := time.NewTimer(time.Duration(i*20) * time.Millisecond)
			done := make(chan struct{})
			go func() { defer close(done); _ = create() }()
			<-delay.C
			s.kill9(t)
			<-done
		} else { // once it is on record, whenever that is
			when = "once it was on record"
			if err := s.createUntilOnRecord(t, s.client, func() { s.kill9(t) }, create); err != nil {
				middle++
			}
		}
		within(t, 10*time.Second, "the start after a crash in a create", func() {
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
		})
		alive := 0
		for sb, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if sb.State != hutch.StateRunning {
				t.Errorf("killed %s: %s is %s %s", when, sb.ID, sb.State, sb.Transition)
				continue
			}
			alive++
			if out := s.out(t, sb.ID, `echo alive`); out != "alive" {
				t.Errorf("it answers %q", out)
			}
		}
		if n := s.sentries(); n != alive {
			t.Errorf("killed %s: %d sandboxes on the host, %d on record", when, n, alive)
		}
	}
	if middle == 0 {
		t.Error("no create was under way when the server was killed: each had been answered")
	}
}

func TestCompanionsAreReplaced(t *testing.T) {
	t.Parallel()
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
	eventually(t, "the new keeper is filled", func() bool { return s.keeps(t, sb.ID) })
	s.kill9(t)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if res := s.run(t, sb.ID, `true`); res.ExitCode != 0 {
		t.Errorf("after the server was killed: %s, exit code %d", res.EndReason, res.ExitCode)
	}
}

// keeps says whether the keeper of today holds a sandbox.
func (s *server) keeps(t *testing.T, id hutch.SandboxID) bool {
	t.Helper()
	k, err := keeper.Dial(t.Context(), s.dir)
	if err != nil {
		return false // it is being replaced
	}
	defer k.Close()
	all, err := k.List(t.Context())
	return err == nil && slices.ContainsFunc(all, func(i keeper.Info) bool { return i.Name == id })
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := own(t)
	short := s.create(t, api.CreateSandbox{TTLSeconds: ptr(5.0)})
	long, paused := s.create(t, api.CreateSandbox{}), s.create(t, api.CreateSandbox{})
	if err := s.client.Pause(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		id hutch.SandboxID
		to time.Duration
	}{{long.ID, 5 * time.Second}, {long.ID, time.Hour}, {paused.ID, 5 * time.Second}} {
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
