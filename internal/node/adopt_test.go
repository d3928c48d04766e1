package node

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

func TestAdopt(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	running := b.exec(rec, hutch.ExecSpec{Cmd: "echo a; cat", StdinOpen: true})
	b.reports.set(hutch.ErrUnavailable)
	ended := b.exec(rec, hutch.ExecSpec{Cmd: "out 300"})
	b.reports.until(t, "refused "+string(ended))
	b.restart()
	rec.ExpiresAt = rec.ExpiresAt.Add(time.Hour) // the row is newer than what the keeper heard
	rec.Epoch++
	if why, err := b.Adopt(b.ctx(), rec); err != nil {
		t.Fatalf("adopt: %s, %v", why, err)
	}
	_, err := b.Adopt(b.ctx(), rec)
	wantError(t, "adopt it again", err, hutch.ErrConflict)
	b.reports.until(t, "found "+string(running))
	b.reports.until(t, "exec exit")
	if res := b.reports.ends[ended]; len(res.Stdout.Head) != 300 {
		t.Errorf("what ended meanwhile is told without its output: %+v", res)
	}
	if k := b.shelf.has(rec.ID); k.epoch != rec.Epoch || !k.lifetime.ExpiresAt.Equal(rec.ExpiresAt) {
		t.Errorf("the keeper was not told what the row says: %+v", k)
	}
	var got string
	res, err := b.FollowExec(b.ctx(), rec.ID, rec.Epoch, running, hutch.FollowOptions{NoWait: true}, func(ev hutch.OutputEvent) error {
		got += string(ev.Data)
		return nil
	})
	if err != nil || res != nil || got != "a\n" {
		t.Errorf("follow: %q, %+v, %v", got, res, err)
	}
	b.reports.forget()
	n, err := b.WriteStdin(b.ctx(), rec.ID, rec.Epoch, running, hutch.StdinChunk{Data: strings.NewReader("b\n"), End: true})
	if err != nil || n != 2 {
		t.Errorf("stdin: %d, %v", n, err)
	}
	b.reports.until(t, "exec exit")
	if res := b.reports.ends[running]; string(res.Stdout.Head) != "a\nb\n" {
		t.Errorf("reported: %+v", res)
	}
	if held := b.Held(); len(held) != 1 || !held[rec.ID] {
		t.Errorf("the node has %v in hand", held)
	}
}

func TestAdoptWhatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		happen func(b *bench, rec hutch.Sandbox)
		want   hutch.SandboxEnd
		note   bool // the keeper's note stays until Sweep
	}{
		"handles lost": {func(b *bench, rec hutch.Sandbox) { _ = b.shelf.Delete(b.ctx(), rec.ID) }, hutch.EndLost, false},
		"killed by the keeper": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).Killed = time.Now()
			b.host.Guest(rec.ID).Crash()
		}, hutch.EndExpired, true},
		"killed by the keeper, idle": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).Killed, b.shelf.has(rec.ID).Why = time.Now(), hutch.EndIdle
			b.host.Guest(rec.ID).Crash()
		}, hutch.EndIdle, true},
		"ended for idleness, and not recorded": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).lifetime.UsedAt = time.Now().Add(-idleAfter)
			b.shelf.has(rec.ID).Exited = time.Now()
			b.host.Guest(rec.ID).Crash()
		}, hutch.EndIdle, true},
		"exited": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).Exited = time.Now()
			b.host.Guest(rec.ID).Crash()
		}, hutch.EndCrashed, true},
		"ended by the kernel, over its memory": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).Exited = time.Now()
			b.host.Guest(rec.ID).OOM()
		}, hutch.EndOOM, true},
		"ended by the cap of its processes": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).Exited = time.Now()
			b.host.Guest(rec.ID).PidsLimit()
		}, hutch.EndPidsLimit, true},
		"ended by the kernel, while it is taken over": {func(b *bench, rec hutch.Sandbox) {
			b.host.Guest(rec.ID).OOM()
			b.host.Fail(fake.OpAdopt, hutch.ErrSandboxGone)
		}, hutch.EndOOM, true},
		"died, and its exit comes while it is taken over": {func(b *bench, rec hutch.Sandbox) {
			b.host.Fail(fake.OpAdopt, hutch.ErrSandboxGone)
			looks := 0
			b.shelf.look = func() {
				if looks++; looks == 3 {
					b.shelf.has(rec.ID).Exited = time.Now()
				}
			}
		}, hutch.EndCrashed, true},
		"ended at its deadline, and not recorded": {func(b *bench, rec hutch.Sandbox) {
			b.shelf.has(rec.ID).Exited = rec.ExpiresAt.Add(time.Second)
			b.host.Guest(rec.ID).Crash()
		}, hutch.EndExpired, true},
		"the isolator says so": {func(b *bench, _ hutch.Sandbox) { b.host.Fail(fake.OpAdopt, hutch.ErrSandboxGone) }, hutch.EndLost, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rec := b.start()
			rec.IdleTimeout = idleAfter
			b.restart()
			c.happen(b, rec)
			why, err := b.Adopt(b.ctx(), rec)
			wantError(t, "adopt", err, hutch.ErrSandboxGone)
			if why != c.want {
				t.Errorf("ended as %s, want %s", why, c.want)
			}
			if left, err := b.rt.List(b.ctx()); err != nil || len(left) != 0 || b.Count() != 0 {
				t.Errorf("left: %v, %v, %d", left, err, b.Count())
			}
			if (b.shelf.has(rec.ID) != nil) != c.note {
				t.Errorf("the keeper's note: %+v", b.shelf.has(rec.ID))
			}
			if err := b.Sweep(b.ctx(), rec.ID); err != nil || b.shelf.has(rec.ID) != nil {
				t.Errorf("sweep: %v", err)
			}
		})
	}
}

// TestAdoptFailsForOurOwnReasons must not cost a living sandbox its life.
func TestAdoptFailsForOurOwnReasons(t *testing.T) {
	for name, c := range map[string]struct {
		fail, heal func(b *bench)
	}{
		"isolator": {
			func(b *bench) { b.host.Fail(fake.OpAdopt, hutch.ErrInternal) },
			func(b *bench) { b.host.Fail(fake.OpAdopt, nil) },
		},
		"keeper": {
			func(b *bench) { b.shelf.set(hutch.ErrUnavailable) },
			func(b *bench) { b.shelf.set(nil) },
		},
		"gateway": {
			func(b *bench) { b.links.fail = hutch.ErrUnavailable },
			func(b *bench) { b.links.fail = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rec := b.start()
			b.restart()
			c.fail(b)
			if why, err := b.Adopt(b.ctx(), rec); err == nil || why != "" {
				t.Errorf("adopt: %s, %v", why, err)
			}
			if b.Count() != 0 {
				t.Error("half of it is in service")
			}
			c.heal(b)
			for _, by := range []string{"the same process", "another one"} {
				if _, err := b.Adopt(b.ctx(), rec); err != nil {
					t.Fatalf("adopt by %s when it works again: %v", by, err)
				}
				if by == "the same process" {
					b.restart()
				}
			}
			b.exec(rec, hutch.ExecSpec{Cmd: "true"})
			b.reports.until(t, "exec exit")
		})
	}
}

func TestAdoptWithoutItsImage(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	b.cfg.ImagePath = func(string) (string, error) { return "", os.ErrNotExist }
	b.restart()
	if _, err := b.Adopt(b.ctx(), rec); err != nil {
		t.Errorf("a running sandbox was not taken over because its image has no name any more: %v", err)
	}
}

func TestAdoptPaused(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	x := b.exec(rec, hutch.ExecSpec{Cmd: "cat", StdinOpen: true})
	rec.Epoch++
	if err := b.PauseSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	b.restart()
	rec.State = hutch.StatePaused
	if _, err := b.Adopt(b.ctx(), rec); err != nil {
		t.Fatal(err)
	}
	ghost := hutch.Exec{ID: "e00000000000000000000", CreatedAt: time.Now()}
	if err := b.WatchExecs(b.ctx(), rec.ID, rec.Epoch, []hutch.Exec{{ID: x, CreatedAt: time.Now()}, ghost}); err != nil {
		t.Fatal(err)
	}
	rec.Epoch++
	if err := b.ResumeSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	b.reports.until(t, "found "+string(x))
	b.reports.until(t, "exec sandbox_gone") // of the one that nobody knows
	if _, err := b.StopExec(b.ctx(), rec.ID, rec.Epoch, x, 0); err != nil {
		t.Errorf("stop: %v", err)
	}
	b.reports.until(t, "exec cancelled")
}

func TestBackstop(t *testing.T) {
	b := newBench(t, func(c *Config) { c.CallTimeout = aBusyMachines })
	rec := b.start()
	b.exec(rec, hutch.ExecSpec{Cmd: "hang", Timeout: aBusyMachines, Grace: time.Millisecond})
	b.host.Guest(rec.ID).Silence(true)
	b.reports.until(t, "sandbox unstoppable")
	if want := []string{"exec sandbox_gone", "sandbox unstoppable"}; !slices.Equal(b.reports.told, want) {
		t.Errorf("told: %q, want %q", b.reports.told, want)
	}
}

func TestResumeOfADeafGuest(t *testing.T) {
	b := newBench(t, func(c *Config) { c.CallTimeout = aBusyMachines })
	rec := b.start()
	if err := b.PauseSandbox(b.ctx(), rec.ID, 4); err != nil {
		t.Fatal(err)
	}
	b.host.Guest(rec.ID).Silence(true)
	wantError(t, "resume", b.ResumeSandbox(b.ctx(), rec.ID, 5), hutch.ErrGuestUnresponsive)
	if !b.find(rec.ID).isPaused() {
		t.Error("it runs, and its record will say that it is paused")
	}
	b.host.Guest(rec.ID).Silence(false)
	if err := b.ResumeSandbox(b.ctx(), rec.ID, 6); err != nil {
		t.Errorf("resume again: %v", err)
	}
}

func TestOutputEventRefusesNonsense(t *testing.T) {
	for name, frame := range nonsense {
		if ev, err := outputEvent(frame); err == nil {
			t.Errorf("%s: taken as %+v", name, ev)
		}
	}
}
