package fake_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/fake"
)

func TestInjectedFailures(t *testing.T) {
	h := fake.NewHost()
	t.Cleanup(h.Close)
	r := fake.New(h)
	boom := hutch.Errorf(hutch.CodeUnavailable, "boom")

	h.Fail(fake.OpCreate, boom)
	if _, err := r.Create(within(t), spec(id)); !errors.Is(err, boom) {
		t.Fatalf("Create: got %v", err)
	}
	if ids, _ := r.List(within(t)); len(ids) != 0 {
		t.Fatalf("a failed Create left %v", ids)
	}
	h.Fail(fake.OpCreate, nil)

	blocked, release := h.Blocked(), h.Block(fake.OpCreate)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := r.Create(ctx, spec(id))
		failed <- err
	}()
	<-blocked
	if _, err := r.Create(within(t), spec(id)); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("Create of an id that is being made: got %v", err)
	}
	cancel()
	if err := <-failed; !errors.Is(err, hutch.ErrCancelled) {
		t.Errorf("blocked Create: got %v", err)
	}
	release()
	if h.Calls(fake.OpCreate) != 2 {
		t.Errorf("%d calls of Create", h.Calls(fake.OpCreate))
	}

	sb, err := r.Create(within(t), spec(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Pause(within(t)); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("Pause before Start: got %v", err)
	}
	h.Fail(fake.OpStart, boom)
	if err := sb.Start(within(t), runtime.StartOptions{}); !errors.Is(err, boom) {
		t.Errorf("Start: got %v", err)
	}
	h.Fail(fake.OpStart, nil)
	if err := sb.Start(within(t), runtime.StartOptions{}); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("Start after a failed one: got %v", err)
	}
}

func TestGuestMisbehaves(t *testing.T) {
	h, _, sb, c := start(t)
	g := h.Guest(id)
	g.Silence(true)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := c.Health(ctx); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("silent guest: got %v", err)
	}
	g.Silence(false)
	if _, err := c.Health(within(t)); err != nil {
		t.Errorf("after the silence: %v", err)
	}
	g.Garble(true)
	if _, err := c.Health(within(t)); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("garbling guest: got %v", err)
	}
	g.Garble(false)
	run(t, c, hutch.ExecSpec{Cmd: "memory-high"})
	if e := <-sb.Events(); e.Kind != runtime.KindMemoryHigh {
		t.Errorf("got %+v", e)
	}
	run(t, c, hutch.ExecSpec{Cmd: "oom"})
	if e := <-sb.Events(); e.Kind != runtime.KindOOMKill {
		t.Errorf("got %+v", e)
	}
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: execID(), Spec: hutch.ExecSpec{Cmd: "oom-sandbox"}}); err != nil && !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("oom-sandbox: %v", err)
	}
	if e := <-sb.Events(); e.Kind != runtime.KindExited || !e.OOM {
		t.Errorf("got %+v", e)
	}
	if _, ok := <-sb.Events(); ok {
		t.Error("an event after the end")
	}
}

// TestTheDeadSayNothing: not that all is well, not that they were cut off, not even that
// they know no such command.
func TestTheDeadSayNothing(t *testing.T) {
	h := fake.NewHost()
	t.Cleanup(h.Close)
	h.Serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.Guest(id).Die()
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(guestapi.Error{Error: "cut off", Code: hutch.CodeInternal})
	}))
	sb := startOn(t, fake.New(h))
	c := attach(t, sb)
	x := execID()
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: hutch.ExecSpec{Cmd: "echo x"}}); err != nil {
		t.Fatal(err)
	}
	end(t, c, x)
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"a service that the machine dies under", func() error { _, err := c.DiskUsage(within(t)); return err }},
		{"a command's status", func() error { _, err := c.Exec(within(t), x); return err }},
		{"a command that is not known", func() error { _, err := c.Exec(within(t), execID()); return err }},
		{"a command's output", func() error { _, err := c.Follow(within(t), x, guestclient.FollowOptions{}); return err }},
		{"hello", func() error { _, err := c.Hello(within(t), guestapi.Hello{}); return err }},
	} {
		if err := call.do(); !errors.Is(err, hutch.ErrGuestUnresponsive) {
			t.Errorf("%s: got %v", call.name, err)
		}
	}
}

// TestMuteGuestRefusesNothing: to refuse is to answer.
func TestMuteGuestRefusesNothing(t *testing.T) {
	h, _, _, c := start(t)
	g := h.Guest(id)
	g.Restart()
	g.Mute(true)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := c.Health(ctx); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("got %v", err)
	}
}

// TestUnreadEventsAreMerged: nobody reads, nothing blocks, and the end is kept.
func TestUnreadEventsAreMerged(t *testing.T) {
	_, _, sb, c := start(t)
	run(t, c, hutch.ExecSpec{Cmd: strings.Repeat("memory-high;", 100)})
	if err := sb.Kill(within(t)); err != nil {
		t.Fatal(err)
	}
	var last runtime.Event
	n := 0
	for e := range sb.Events() {
		last = e
		n++
	}
	if last.Kind != runtime.KindExited || n > 20 {
		t.Errorf("%d events, the last was %+v", n, last)
	}
}

// TestCrashAndAdopt: the runtime's process dies; the sandbox, whose descriptors
// somebody keeps, does not, and another runtime takes it over. Without a keeper the
// guest's stream ends, and the guest with it.
func TestCrashAndAdopt(t *testing.T) {
	h, r, sb, c := start(t)
	x := execID()
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: hutch.ExecSpec{Cmd: "echo x; sleep 1000"}}); err != nil {
		t.Fatal(err)
	}
	kept := sb.Handles()
	kept.Guest, kept.Link, kept.Procs = dup(t, kept.Guest), dup(t, kept.Link), []*os.File{dup(t, kept.Procs[0])}
	r.Crash()
	_ = c.Close()
	if err := sb.Pause(within(t)); err == nil {
		t.Error("a crashed runtime goes on working")
	}
	next, err := fake.New(h).Adopt(within(t), spec(id), kept)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Attach(id, runtime.Handles{}); err == nil {
		t.Error("an adoption that the crash found under way was made")
	}
	c = attach(t, next)
	if st, err := c.Exec(within(t), x); err != nil || !st.Running {
		t.Fatalf("the command that ran: %+v, %v", st, err)
	}
	_ = c.Close()
	_ = kept.Guest.Close()
	if e := <-next.Events(); e.Kind != runtime.KindExited {
		t.Errorf("without its stream: got %+v", e)
	}
}

// TestAdoptOfTheDying: a machine that dies while it is taken over has an end all the same.
func TestAdoptOfTheDying(t *testing.T) {
	h, _, sb, _ := start(t)
	h.Guest(id).Crash()
	for range sb.Events() { // until its end is told
	}
	next, err := fake.New(h).Attach(id, runtime.Handles{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-next.Events():
		if e.Kind != runtime.KindExited {
			t.Errorf("got %+v", e)
		}
	case <-within(t).Done():
		t.Error("nobody is told of its end")
	}
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	rc, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	var opErr error
	if err := rc.Control(func(n uintptr) { fd, opErr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || opErr != nil {
		t.Fatal(err, opErr)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// TestSnapshotIsWholeState: what a clone knows is what its source knew, and nothing
// that happens to one reaches the other.
func TestSnapshotIsWholeState(t *testing.T) {
	_, r, sb, c := start(t)
	done, running := execID(), execID()
	for x, cmd := range map[hutch.ExecID]string{done: "echo done; exit 7", running: "echo on; cat; echo off"} {
		if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: hutch.ExecSpec{Cmd: cmd, StdinOpen: true}}); err != nil {
			t.Fatal(err)
		}
	}
	end(t, c, done)
	if _, err := c.Stdin(within(t), running, 0, strings.NewReader("half "), false); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := sb.Checkpoint(within(t), dir, true); err != nil {
		t.Fatal(err)
	}
	other, err := r.Create(within(t), spec("ibbbbbbbbbbbbbbbbbbbb"))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(within(t), runtime.StartOptions{Snapshot: dir}); err != nil {
		t.Fatal(err)
	}
	clone := attach(t, other)
	st, err := clone.Exec(within(t), done)
	if err != nil || st.Result == nil || st.Result.ExitCode != 7 || string(st.Result.Stdout.Head) != "done\n" {
		b, _ := json.Marshal(st)
		t.Errorf("ended command in the clone: %s, %v", b, err)
	}
	for who, c := range map[string]*guestclient.Client{"source": c, "clone": clone} {
		if _, err := c.Stdin(within(t), running, 5, strings.NewReader(who), true); err != nil {
			t.Fatal(err)
		}
		if r := end(t, c, running); string(r.Stdout.Head) != "on\nhalf "+who+"off\n" {
			t.Errorf("%s: got %q", who, r.Stdout.Head)
		}
	}
}
