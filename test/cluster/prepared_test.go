package cluster

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/runtime/fake"
)

// ahead keeps two machines ready at the most.
func ahead(w *world) { w.control.Prepare = 2 }

// prepared waits until so many machines stand ready, and returns their ids.
func (w *world) prepared(n int) map[hutch.SandboxID]bool {
	w.t.Helper()
	var ids map[hutch.SandboxID]bool
	eventually(w.t, fmt.Sprintf("%d machines stand ready", n), func() error {
		if ids = w.n.Prepared(); len(ids) != n {
			return fmt.Errorf("%d do", len(ids))
		}
		return nil
	})
	return ids
}

// onHost names what is on the host.
func (w *world) onHost() []hutch.SandboxID {
	w.t.Helper()
	ids, err := fake.New(w.host).List(w.ctx())
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// A create is answered by a machine that stands ready, if there is one like it, whoever the
// others were for; each is used once.
func TestCreateOnAPreparedMachine(t *testing.T) {
	w := newWorld(t, ahead, quick)
	first := w.create()
	if first.BootMode != hutch.BootCold {
		t.Errorf("the first of all is %q", first.BootMode)
	}
	ready := w.prepared(1)
	if left, _ := w.leaks(true); len(left) != 0 {
		t.Errorf("a machine that stands ready is taken for a leak: %+v", left)
	}
	other := request()
	other.Project, other.Hostname, other.Env = "another", "other", map[string]string{"A": "b"}
	sb, err := w.c.CreateSandbox(w.ctx(), other)
	if err != nil {
		t.Fatal(err)
	}
	if !ready[sb.ID] || sb.BootMode != hutch.BootPrepared || w.record(sb.ID).BootMode != hutch.BootPrepared {
		t.Errorf("it is %s, %q; ready was %v", sb.ID, sb.BootMode, ready)
	}
	if h := w.guest(sb.ID).Hello(); h.Hostname != "other" || h.Env["A"] != "b" || h.Sandbox != sb.ID {
		t.Errorf("its guest was told %+v", h)
	}
	if w.prepared(2)[sb.ID] {
		t.Error("a machine that is used stands ready")
	}
	big := w.create(func(r *hutch.CreateSandbox) { r.Resources.MemoryMB = 512 })
	if big.BootMode != hutch.BootCold {
		t.Errorf("one of another size is %q", big.BootMode)
	}
	seen := map[hutch.SandboxID]bool{first.ID: true, sb.ID: true, big.ID: true}
	for range 3 {
		w.prepared(2)
		sb := w.create()
		if seen[sb.ID] || sb.BootMode != hutch.BootPrepared {
			t.Errorf("%s is %q", sb.ID, sb.BootMode)
		}
		seen[sb.ID] = true
	}
	w.wantEnd(w.exec(first, "echo on"), hutch.ExecExit, 0, "on\n")
}

// Under an Idempotency-Key the id of a machine is on record before the create begins.
func TestClaimOfAPreparedMachine(t *testing.T) {
	w := newWorld(t, ahead, quick)
	none, release := w.c.ClaimPrepared(w.ctx(), request())
	release()
	if none != "" {
		t.Errorf("claimed %q of nothing", none)
	}
	w.create()
	ready := w.prepared(1)
	nothing := request()
	nothing.Template = "nothing"
	if id, _ := w.c.ClaimPrepared(w.ctx(), nothing); id != "" {
		t.Errorf("claimed %q for a template that there is not", id)
	}
	id, release := w.c.ClaimPrepared(w.ctx(), request())
	if !ready[id] {
		t.Fatalf("claimed %q of %v", id, ready)
	}
	if again, _ := w.c.ClaimPrepared(w.ctx(), request()); again == id {
		t.Errorf("%q was claimed twice", again)
	}
	if left, _ := w.leaks(true); len(left) != 0 {
		t.Errorf("what is claimed is taken for a leak: %+v", left)
	}
	release() // a caller who gave up
	if again, _ := w.c.ClaimPrepared(w.ctx(), request()); again != id {
		t.Errorf("claimed %q, want %q again", again, id)
	}
	req := request()
	req.ID = id
	for range 2 { // the second time it is the same call again
		sb, err := w.c.CreateSandbox(w.ctx(), req)
		if err != nil || sb.ID != id || sb.BootMode != hutch.BootPrepared {
			t.Fatalf("%+v, %v", sb, err)
		}
	}
}

// M03: many creates at once, and no machine is two's.
func TestNoPreparedMachineIsTwos(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.Prepare = 4 })
	for range 4 {
		w.create()
	}
	w.prepared(4)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		made []hutch.Sandbox
	)
	for range 20 {
		wg.Go(func() {
			sb, err := w.c.CreateSandbox(w.ctx(), request())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, sb)
		})
	}
	wg.Wait()
	ids, ahead := map[hutch.SandboxID]bool{}, 0
	for _, sb := range made {
		if ids[sb.ID] = true; sb.BootMode == hutch.BootPrepared {
			ahead++
		}
	}
	if len(ids) != 20 || ahead < 4 {
		t.Errorf("%d sandboxes, %d of them on prepared machines; want 20 and at least 4", len(ids), ahead)
	}
	w.prepared(4)
}

// What a server keeps ready ends with it: at once if it is told to stop, at the next start if
// it was killed.
func TestPreparedMachinesEndWithTheirServer(t *testing.T) {
	w := newWorld(t, ahead)
	sb := w.create()
	w.prepared(1)
	w.restart() // a kill
	if on := w.onHost(); !slices.Equal(on, []hutch.SandboxID{sb.ID}) {
		t.Errorf("after a kill and a start there are %v", on)
	}
	again := w.create()
	w.prepared(1)
	id, _ := w.c.ClaimPrepared(w.ctx(), request()) // a call is recorded under the id, and the server dies
	w.restart()
	req := request()
	req.ID = id
	if got, err := w.c.CreateSandbox(w.ctx(), req); err != nil || got.ID != id || got.BootMode != hutch.BootCold {
		t.Errorf("the call again: %+v, %v", got, err)
	}
	w.prepared(1)
	if err := w.c.Drain(w.ctx()); err != nil {
		t.Fatal(err)
	}
	want := []hutch.SandboxID{sb.ID, again.ID, id}
	slices.Sort(want)
	if on := w.onHost(); !slices.Equal(on, want) {
		t.Errorf("a server that stops leaves %v, want %v", on, want)
	}
	w.wantAgreement()
}

// A machine that is kept ready costs no caller a place.
func TestPreparedMachinesMakeRoom(t *testing.T) {
	w := newWorld(t, ahead, func(w *world) {
		w.control.MaxSandboxes, w.control.Overcommit, w.control.MemoryReserveMB = 3, 1, 512
		w.control.HostMemory = func() (control.Memory, error) { return control.Memory{TotalMB: 1536, AvailableMB: 1536}, nil }
	})
	size := func(mb int) func(*hutch.CreateSandbox) {
		return func(r *hutch.CreateSandbox) { r.Resources.MemoryMB = mb }
	}
	w.create(size(256))
	w.prepared(1)
	big := w.create(size(768)) // all that is left
	w.prepared(0)
	if on := w.onHost(); len(on) != 2 {
		t.Errorf("on the host are %v", on)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, big.ID); err != nil {
		t.Fatal(err)
	}
	w.create(size(256))
	w.prepared(1)
	w.create(size(128))
	w.prepared(0) // the third place
	small := request()
	small.Resources.MemoryMB = 64
	_, err := w.c.CreateSandbox(w.ctx(), small)
	wantError(t, "a fourth", err, hutch.ErrNoCapacity)
	w.wantAgreement()
}

// One that dies is replaced, and one that cannot be made costs nobody a create.
func TestPreparedMachinesThatFail(t *testing.T) {
	w := newWorld(t, ahead)
	w.create()
	first := w.prepared(1)
	for id := range first {
		w.host.Kill(id)
	}
	eventually(t, "another takes its place", func() error {
		for id := range w.n.Prepared() {
			if !first[id] {
				return nil
			}
		}
		return errors.New("not yet")
	})
	if sb := w.create(); sb.BootMode != hutch.BootPrepared || first[sb.ID] {
		t.Errorf("it is %s, %q", sb.ID, sb.BootMode)
	}
	w.prepared(2)
	w.host.Fail(fake.OpCreate, errors.New("no"))
	made := w.host.Calls(fake.OpCreate)
	for range 2 {
		if sb := w.create(); sb.BootMode != hutch.BootPrepared {
			t.Errorf("while none can be made, one that stood ready is %q", sb.BootMode)
		}
	}
	eventually(t, "it is tried", func() error {
		if w.host.Calls(fake.OpCreate) == made {
			return errors.New("not yet")
		}
		return nil
	})
	w.host.Fail(fake.OpCreate, nil)
	if sb := w.create(); sb.BootMode != hutch.BootCold {
		t.Errorf("after it is %q", sb.BootMode)
	}
	w.prepared(1)
}
