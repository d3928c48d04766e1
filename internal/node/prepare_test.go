package node

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/runtime/fake"
	"hutch.dev/hutch/internal/x/id"
	"hutch.dev/hutch/internal/x/pidfd"
)

// prepare makes a machine for a sandbox that nobody has asked for.
func (b *bench) prepare() hutch.Sandbox {
	b.t.Helper()
	rec := record()
	if err := b.Prepare(b.ctx(), rec); err != nil {
		b.t.Fatalf("prepare: %v", err)
	}
	if !b.Prepared()[rec.ID] || !b.Held()[rec.ID] {
		b.t.Fatal("a machine that was prepared is not there")
	}
	return rec
}

// left names what is on the host.
func (b *bench) left() []hutch.SandboxID {
	b.t.Helper()
	ids, err := fake.New(b.host).List(b.ctx())
	if err != nil {
		b.t.Fatal(err)
	}
	return ids
}

// awaitKept waits until the keeper has a sandbox under its epoch.
func (b *bench) awaitKept(rec hutch.Sandbox) {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !b.shelf.knows(rec.ID, rec.Epoch) {
		if <-tick.C; time.Now().After(deadline) {
			b.t.Fatal("the keeper was given nothing")
		}
	}
}

func TestStartOnAPreparedMachine(t *testing.T) {
	b := newBench(t)
	rec := b.prepare()
	if h := b.host.Guest(rec.ID).Hello(); h.Epoch != 0 || h.Sandbox != rec.ID || !b.shelf.knows(rec.ID, 0) || b.Count() != 0 {
		t.Errorf("it was greeted with %+v, is not kept or counts before anybody has asked for it", h)
	}
	b.untouched(rec)
	wantError(t, "prepare another under its id", b.Prepare(b.ctx(), rec), hutch.ErrConflict)
	wantError(t, "sweep it", b.Sweep(b.ctx(), rec.ID), hutch.ErrConflict)
	rec.Hostname = "other" // what a guest is told does not make another machine of it
	stages, err := b.StartSandbox(b.ctx(), rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := stages[hutch.BootPrepared]; !ok || b.host.Calls(fake.OpCreate) != 1 || b.host.Calls(fake.OpStart) != 1 {
		t.Errorf("stages %v, %d machines were made", stages, b.host.Calls(fake.OpCreate))
	}
	if h := b.host.Guest(rec.ID).Hello(); h.Sandbox != rec.ID || h.Hostname != "other" || h.Epoch != rec.Epoch {
		t.Errorf("the guest was told %+v", h)
	}
	if !b.shelf.knows(rec.ID, rec.Epoch) || b.Count() != 1 || len(b.Prepared()) != 0 {
		t.Errorf("kept %v, %d run, %v are prepared", b.shelf.has(rec.ID), b.Count(), b.Prepared())
	}
	if err := b.Discard(b.ctx(), rec.ID); err != nil { // it is a sandbox now
		t.Error(err)
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "exec exit")
	if err := b.KillSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil || len(b.left()) != 0 {
		t.Errorf("kill: %v, left %v", err, b.left())
	}
}

// A guest that knows all that a hello would tell it hears of its sandbox with the next one: no call
// waits for it.
func TestStartOnAMachineThatKnowsEverything(t *testing.T) {
	b := newBench(t)
	rec := b.prepare()
	g := b.host.Guest(rec.ID)
	g.Silence(true) // it would not answer
	stages, err := b.StartSandbox(b.ctx(), rec)
	if _, ok := stages[hutch.BootPrepared]; err != nil || !ok || g.Hello().Epoch != 0 {
		t.Fatalf("stages %v, %v; the guest was told %+v", stages, err, g.Hello())
	}
	g.Silence(false)
	b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "exec exit")
	b.restart()
	if _, err := b.Adopt(b.ctx(), rec); err != nil {
		t.Fatal(err)
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "exec exit")
	next := rec.Epoch + 1
	if err := errors.Join(b.PauseSandbox(b.ctx(), rec.ID, next), b.ResumeSandbox(b.ctx(), rec.ID, next)); err != nil {
		t.Fatal(err)
	}
	if got := g.Hello().Epoch; got != next {
		t.Errorf("resumed, the guest is in epoch %d, want %d", got, next)
	}
}

// One that dies in this very moment is replaced all the same.
func TestMachineThatKnowsEverythingDies(t *testing.T) {
	b := newBench(t)
	rec := b.prepare()
	proc := b.ready[rec.ID].sb.Handles().Procs[0]
	b.shelf.onSet = func() {
		b.shelf.onSet = nil
		if err := errors.Join(pidfd.Signal(proc, unix.SIGKILL), pidfd.Wait(b.ctx(), proc)); err != nil {
			t.Error(err)
		}
	}
	stages, err := b.StartSandbox(b.ctx(), rec)
	if _, ok := stages[hutch.BootPrepared]; err != nil || ok || b.host.Calls(fake.OpCreate) != 2 {
		t.Fatalf("stages %v, %v; %d machines were made", stages, err, b.host.Calls(fake.OpCreate))
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "exec exit")
}

// untouched fails unless a prepared machine is as if nothing had run in it.
func (b *bench) untouched(rec hutch.Sandbox) {
	b.t.Helper()
	g := b.ready[rec.ID].guest
	l, err := g.Execs(b.ctx())
	ps, perr := g.Processes(b.ctx())
	if err := errors.Join(err, perr); err != nil || len(l.Execs) != 0 || len(ps.Processes) != 0 {
		b.t.Errorf("its guest knows of %+v and %+v: %v", l.Execs, ps.Processes, err)
	}
}

// What warms a machine up leaves nothing in it, whatever an image makes of the commands.
func TestWarmUpLeavesNothing(t *testing.T) {
	b := newBench(t)
	rec := b.prepare()
	p := b.ready[rec.ID]
	for name, spec := range map[string]hutch.ExecSpec{
		"leaves a process": {Cmd: "spawn miner"},
		"fails":            {Cmd: "false"},
		"is not there":     {Argv: []string{"/no/such"}},
		"hangs":            {Cmd: "hang", Timeout: time.Millisecond, Grace: time.Millisecond},
		"talks":            {Cmd: "out 100000"},
	} {
		spec.MaxOutputBytes = hutch.MinOutputBytes
		if err := p.run(b.ctx(), hutch.ExecID(id.NewExec()), spec); err != nil {
			t.Errorf("one that %s: %v", name, err)
		}
		b.untouched(rec)
	}
	if _, err := p.guest.StartExec(b.ctx(), guestapi.StartExec{ID: hutch.ExecID(id.NewExec()), Spec: hutch.ExecSpec{Cmd: "hang"}}); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a process that no stop has ended", p.warmUp(b.ctx()), hutch.ErrConflict)
}

// Nothing runs in a locked machine before it is known to whom it is to be confined.
func TestPreparedLockedMachine(t *testing.T) {
	b := newBench(t)
	rec := record()
	rec.Profile = hutch.ProfileLocked
	if err := b.Prepare(b.ctx(), rec); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ready[rec.ID].guest.Health(b.ctx()); !notIdentified(err) {
		t.Errorf("its guest answers: %v", err)
	}
	stages, err := b.StartSandbox(b.ctx(), rec)
	if _, ok := stages[hutch.BootPrepared]; err != nil || !ok {
		t.Fatalf("stages %v, %v", stages, err)
	}
	if h := b.host.Guest(rec.ID).Hello(); h.Epoch != rec.Epoch || h.Profile != hutch.ProfileLocked {
		t.Errorf("the guest was told %+v", h)
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "exec exit")
}

// A machine that is dead or of another kind is replaced, under the same id, and never started.
func TestStartWhereThePreparedMachineIsOfNoUse(t *testing.T) {
	tests := map[string]func(b *bench, rec *hutch.Sandbox){
		"other memory":  func(_ *bench, rec *hutch.Sandbox) { rec.Resources.MemoryMB *= 2 },
		"other tier":    func(_ *bench, rec *hutch.Sandbox) { rec.Resources.DiskTier = hutch.TierMemory },
		"other profile": func(_ *bench, rec *hutch.Sandbox) { rec.Profile = hutch.ProfileLocked },
		"dead": func(b *bench, rec *hutch.Sandbox) {
			f := b.ready[rec.ID].sb.Handles().Procs[0]
			if err := pidfd.Signal(f, unix.SIGKILL); err != nil {
				b.t.Fatal(err)
			}
			if err := pidfd.Wait(b.ctx(), f); err != nil {
				b.t.Fatal(err)
			}
			if len(b.Prepared()) != 0 {
				b.t.Error("a dead machine is said to stand ready")
			}
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rec := b.prepare()
			spoil(b, &rec)
			stages, err := b.StartSandbox(b.ctx(), rec)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := stages[hutch.BootPrepared]; ok || b.host.Calls(fake.OpCreate) != 2 {
				t.Errorf("stages %v, %d machines were made", stages, b.host.Calls(fake.OpCreate))
			}
			if got := b.host.Guest(rec.ID).Hello().Profile; got != rec.Profile || !slices.Equal(b.left(), []hutch.SandboxID{rec.ID}) {
				t.Errorf("profile %q, on the host %v", got, b.left())
			}
		})
	}
}

// One that dies while it is greeted costs its caller nothing but time.
func TestPreparedMachineDiesAsItIsTaken(t *testing.T) {
	b := newBench(t)
	rec := b.prepare()
	rec.Env = map[string]string{"A": "b"} // of which its guest has to be told
	g := b.host.Guest(rec.ID)
	g.Silence(true)
	type started struct {
		stages map[string]time.Duration
		err    error
	}
	got := make(chan started, 1)
	go func() {
		stages, err := b.StartSandbox(b.ctx(), rec)
		got <- started{stages, err}
	}()
	b.awaitKept(rec)
	g.Crash()
	s := <-got
	if _, ok := s.stages[hutch.BootPrepared]; s.err != nil || ok || b.host.Calls(fake.OpCreate) != 2 {
		t.Fatalf("stages %v, %v; %d machines were made", s.stages, s.err, b.host.Calls(fake.OpCreate))
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "exec exit")
	if left := b.left(); !slices.Equal(left, []hutch.SandboxID{rec.ID}) {
		t.Errorf("on the host: %v", left)
	}
}

func TestNothingIsLeftOfAPreparedMachine(t *testing.T) {
	tests := map[string]func(b *bench, rec hutch.Sandbox){
		"discarded": func(b *bench, rec hutch.Sandbox) {
			for range 2 {
				if err := b.Discard(b.ctx(), rec.ID); err != nil {
					b.t.Error(err)
				}
			}
		},
		"the node is closed": func(b *bench, _ hutch.Sandbox) { b.Close() },
		"no keeper takes it": func(b *bench, rec hutch.Sandbox) {
			b.shelf.set(hutch.ErrUnavailable)
			defer b.shelf.set(nil)
			_, err := b.StartSandbox(b.ctx(), rec)
			wantError(b.t, "start", err, hutch.ErrUnavailable)
		},
		"its image is gone": func(b *bench, rec hutch.Sandbox) {
			b.cfg.ImagePath = nil
			b.Node.cfg.ImagePath = func(string) (string, error) { return "", hutch.ErrNotFound }
			_, err := b.StartSandbox(b.ctx(), rec)
			wantError(b.t, "start", err, hutch.ErrNotFound)
		},
		"killed while it is greeted": func(b *bench, rec hutch.Sandbox) {
			b.host.Guest(rec.ID).Silence(true)
			rec.Env = map[string]string{"A": "b"}
			got := make(chan error, 1)
			go func() {
				_, err := b.StartSandbox(b.ctx(), rec)
				got <- err
			}()
			b.awaitKept(rec)
			wantError(b.t, "kill", b.KillSandbox(b.ctx(), rec.ID, rec.Epoch), hutch.ErrSandboxGone)
			wantError(b.t, "the start", <-got, hutch.ErrSandboxGone)
		},
		"its node dies": func(b *bench, rec hutch.Sandbox) {
			b.restart()
			if !slices.Equal(b.left(), []hutch.SandboxID{rec.ID}) || len(b.Held()) != 0 {
				b.t.Errorf("left %v, held %v", b.left(), b.Held())
			}
			if err := b.Sweep(b.ctx(), rec.ID); err != nil {
				b.t.Error(err)
			}
		},
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rec := b.prepare()
			end(b, rec)
			if l, err := b.links.List(b.t.Context()); err != nil || len(l) != 0 || b.shelf.has(rec.ID) != nil {
				t.Errorf("on the gateway: %v, %v; in the keeper: %v", l, err, b.shelf.has(rec.ID))
			}
			if left := b.left(); len(left) != 0 || b.Node != nil && (len(b.Held()) != 0 || len(b.Prepared()) != 0) {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestPrepareFails(t *testing.T) {
	b := newBench(t)
	for _, op := range []fake.Op{fake.OpCreate, fake.OpStart} {
		b.host.Fail(op, errors.New("no"))
		if err := b.Prepare(b.ctx(), record()); err == nil || len(b.Held()) != 0 || len(b.left()) != 0 {
			t.Errorf("%s: %v, held %v, left %v", op, err, b.Held(), b.left())
		}
		b.host.Fail(op, nil)
	}
	for part, fail := range map[string]func(error){
		"keeper":  b.shelf.set,
		"gateway": func(err error) { b.links.fail = err },
	} {
		fail(hutch.ErrUnavailable)
		if err := b.Prepare(b.ctx(), record()); err == nil || len(b.Held()) != 0 || len(b.left()) != 0 {
			t.Errorf("without a %s: %v, held %v, left %v", part, err, b.Held(), b.left())
		}
		fail(nil)
	}
	b.Close()
	if err := b.Prepare(b.ctx(), record()); !errors.Is(err, hutch.ErrUnavailable) || len(b.left()) != 0 {
		t.Errorf("on a closed node: %v, left %v", err, b.left())
	}
}

// Companions that were replaced since a machine was prepared are given it when it is taken.
func TestStartOnAPreparedMachineWithNewCompanions(t *testing.T) {
	b := newBench(t)
	rec := b.prepare()
	if err := errors.Join(b.shelf.Delete(b.ctx(), rec.ID), b.links.Detach(b.ctx(), rec.ID), b.RefillKeeper(b.ctx()), b.RefillEgress(b.ctx())); err != nil {
		t.Fatal(err)
	}
	stages, err := b.StartSandbox(b.ctx(), rec)
	if _, ok := stages[hutch.BootPrepared]; err != nil || !ok {
		t.Fatalf("stages %v, %v", stages, err)
	}
	if l, err := b.links.List(b.ctx()); err != nil || len(l) != 1 || !b.shelf.knows(rec.ID, rec.Epoch) {
		t.Errorf("on the gateway: %v, %v; in the keeper: %+v", l, err, b.shelf.has(rec.ID))
	}
}
