package node

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
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
