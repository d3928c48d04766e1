package node

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/id"
	"hutch.dev/hutch/internal/x/pidfd"
)

var nonsense = map[string]guestapi.Frame{
	"end in the middle": {Type: guestapi.FrameEnd},
	"unknown":           {Type: 99},
	"gap of nothing":    {Type: guestapi.FrameGap, Payload: []byte(`{"stream":"stdout","from":5,"to":5}`)},
	"gap backwards":     {Type: guestapi.FrameGap, Payload: []byte(`{"stream":"stdout","from":5,"to":1}`)},
	"gap before it all": {Type: guestapi.FrameGap, Payload: []byte(`{"stream":"stdout","from":-5,"to":1}`)},
	"gap elsewhere":     {Type: guestapi.FrameGap, Payload: []byte(`{"stream":"stdin","from":1,"to":5}`)},
	"gap of words":      {Type: guestapi.FrameGap, Payload: []byte(`gap`)},
}

// FuzzOutputEvent feeds gaps, the one frame whose payload the node reads.
func FuzzOutputEvent(f *testing.F) {
	for _, fr := range nonsense {
		f.Add(byte(fr.Type), fr.Offset, fr.Payload)
	}
	f.Add(byte(guestapi.FrameStdout), int64(3), []byte("abc"))
	f.Add(byte(guestapi.FrameGap), int64(0), []byte(`{"stream":"stderr","from":1,"to":5}`))
	f.Fuzz(func(t *testing.T, typ byte, offset int64, payload []byte) {
		ev, err := outputEvent(guestapi.Frame{Type: guestapi.FrameType(typ), Offset: offset, Payload: payload})
		if err != nil {
			if !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Errorf("got %v", err)
			}
			return
		}
		if ev.GapTo != 0 && (ev.GapTo <= ev.Offset || ev.Offset < 0) || !ev.Keepalive && ev.Stream != hutch.Stdout && ev.Stream != hutch.Stderr {
			t.Errorf("let through %+v", ev)
		}
	})
}

func TestBoxKeepsTheFirstReason(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	box := b.find(rec.ID)
	box.beginEnding(hutch.EndUnstoppable, "first")
	if err := b.KillSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	b.reports.until(t, "sandbox unstoppable")
	if b.reports.detail != "first" {
		t.Errorf("the detail is %q", b.reports.detail)
	}
	if b.find(rec.ID) != nil || b.Count() != 0 {
		t.Error("it is still in service")
	}
}

func TestStoodStill(t *testing.T) {
	b := &box{work: t.Context()}
	b.beginRunLocked()
	if b.stoodStill(time.Hour) {
		t.Error("one that was never paused")
	}
	b.setPaused(true)
	if !b.stoodStill(0) || !b.isPaused() {
		t.Error("one that is paused")
	}
	b.setPaused(false)
	if !b.stoodStill(time.Hour) || b.stoodStill(0) {
		t.Error("one that was resumed just now")
	}
}

func TestWhyGone(t *testing.T) {
	b := &box{id: "i1", gone: make(chan struct{}), work: t.Context()}
	b.beginRunLocked()
	if b.whyGone(nil) != nil {
		t.Error("no error was made one")
	}
	wantError(t, "alive", b.whyGone(hutch.ErrConflict), hutch.ErrConflict)
	wantError(t, "alive and silent", b.whyGone(hutch.ErrGuestUnresponsive), hutch.ErrGuestUnresponsive)
	// To clear a machine that has died takes its time where every CPU is taken.
	dead := exec.CommandContext(t.Context(), "true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.proc, err = pidfd.Open(dead.Process.Pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.proc.Close() }()
	if err := pidfd.Wait(t.Context(), b.proc); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait()
	late := time.AfterFunc(2*deathRattle, func() {
		b.beginEnding(hutch.EndCrashed, "")
		close(b.gone)
	})
	defer late.Stop()
	wantError(t, "dead and not cleared yet", b.whyGone(hutch.ErrGuestUnresponsive), hutch.ErrSandboxGone)
	b = &box{id: "i1", gone: make(chan struct{}), work: t.Context()}
	b.beginRunLocked()
	b.beginEnding(hutch.EndExpired, "")
	wantError(t, "ending", b.whyGone(hutch.ErrConflict), hutch.ErrSandboxGone)
	close(b.gone)
	wantError(t, "gone", b.whyGone(hutch.ErrGuestUnresponsive), hutch.ErrSandboxGone)
}

// A machine whose end of the stream is closed is dying: where every CPU is taken it may take its
// time, and only then is it known why.
func TestWhyGoneOfTheDying(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	host, inside := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "inside")
	defer func() { _ = host.Close() }()
	if hungUp(host) || hungUp(nil) {
		t.Error("a stream with two ends is said to be cut")
	}
	_ = inside.Close()
	if !hungUp(host) {
		t.Error("a stream with one end is said to be whole")
	}
	dying := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := dying.Start(); err != nil {
		t.Fatal(err)
	}
	b := &box{id: "i1", gone: make(chan struct{}), work: t.Context(), stream: host}
	b.beginRunLocked()
	if b.proc, err = pidfd.Open(dying.Process.Pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.proc.Close() }()
	late := time.AfterFunc(2*deathRattle, func() {
		_ = dying.Process.Kill()
		_ = dying.Wait()
		b.beginEnding(hutch.EndOOM, "all of it")
		close(b.gone)
	})
	defer late.Stop()
	err = b.whyGone(hutch.ErrGuestUnresponsive)
	if he, ok := errors.AsType[*hutch.Error](err); !ok || he.Code != hutch.CodeSandboxGone || he.Reason != string(hutch.EndOOM) || !strings.Contains(he.Message, "all of it") {
		t.Errorf("got %v", err)
	}
}

// However many starts a guest leaves without an answer, one goroutine looks for them, and past so
// many it is asked for no more. Those that were made are found.
func TestStartsThatAreNotAnswered(t *testing.T) {
	b := newBench(t, func(c *Config) { c.CallTimeout = aBusyMachines })
	rec := b.start()
	bx := b.find(rec.ID)
	g := b.host.Guest(rec.ID)
	g.Mute(true)
	x := hutch.ExecID(id.NewExec())
	_, _, err := b.StartExec(b.ctx(), rec.ID, rec.Epoch, x, hutch.ExecSpec{Cmd: "echo done"})
	wantError(t, "a start that is not answered", err, hutch.ErrGuestUnresponsive)
	before := runtime.NumGoroutine()
	for range 2 * maxSought {
		b.seek(bx, sought{id: hutch.ExecID(id.NewExec())})
	}
	if n := runtime.NumGoroutine(); n > before+maxSought/2 {
		t.Errorf("%d goroutines, and %d before", n, before)
	}
	asked := hutch.ExecID(id.NewExec())
	_, _, err = b.StartExec(b.ctx(), rec.ID, rec.Epoch, asked, hutch.ExecSpec{Cmd: "echo never"})
	wantError(t, "one too many", err, hutch.ErrGuestUnresponsive)
	g.Mute(false)
	b.reports.until(t, "found "+string(x))
	b.reports.until(t, "exec "+string(hutch.ExecExit))
	b.reports.mu.Lock()
	defer b.reports.mu.Unlock()
	if _, ran := b.reports.ends[asked]; ran || len(b.reports.ends) != 1 {
		t.Errorf("ended: %v", b.reports.ends)
	}
}

// Whoever comes to a sandbox that has just ended hears why.
func TestGoneSaysWhy(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	x := b.exec(rec, hutch.ExecSpec{Cmd: "hang"})
	bx := b.find(rec.ID)
	b.host.Guest(rec.ID).OOM()
	b.reports.until(t, "sandbox "+string(hutch.EndOOM))
	if r := b.reports.ends[x]; r.End != hutch.ExecSandboxGone || !slices.Equal(r.LimitsHit, []string{"memory"}) || !strings.Contains(r.Detail, "(oom): it was ended over its memory limit") {
		t.Errorf("its command ended with %+v", r)
	}
	if e := bx.goneError(); e.Reason != string(hutch.EndOOM) || !strings.Contains(e.Message, "memory limit") {
		t.Errorf("it says %q, %s", e.Reason, e.Message)
	}
}
