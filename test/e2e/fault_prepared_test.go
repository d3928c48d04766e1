package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	fp "hutch.dev/hutch/internal/x/failpoint"
)

// The stories of machines that are made before anybody asks for them. The server that dies keeps
// one ready; the one after it keeps none, so that what is on the host is what is on record.

// ahead are the flags of the server that dies.
func ahead(*walk) []string { return []string{"--prepare", "1"} }

// primed makes a sandbox of which another one like it is then made ready, and waits for that.
func (w *walk) primed() error {
	sb, err := w.client.CreateSandbox(w.t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
	if err != nil {
		return err
	}
	w.box = sb.ID
	return w.ready()
}

// ready waits until a machine stands ready.
func (w *walk) ready() error {
	return poll(w.t.Context(), "a machine stands ready", func() (bool, error) {
		n, err := w.readMetric("hutch_prepared_machines")
		return n == "1", err
	})
}

// runs says whether a process of the sandbox's kernel is on the host.
func (w *walk) runs(id hutch.SandboxID) bool {
	return slices.ContainsFunc(w.processes(), func(p string) bool {
		return strings.HasPrefix(p, "runsc-sandbox") && strings.Contains(p, string(id))
	})
}

// spare is a machine on the host that is no sandbox of the records.
func (w *walk) spare() (hutch.SandboxID, error) {
	known := map[string]bool{}
	for sb, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{}) {
		if err != nil {
			return "", err
		}
		known[string(sb.ID)] = true
	}
	all, err := os.ReadDir(filepath.Join(w.dir, "run", "sandboxes"))
	for _, e := range all {
		if !known[e.Name()] {
			return hutch.SandboxID(e.Name()), nil
		}
	}
	return "", errors.Join(err, errors.New("every machine is a sandbox"))
}

// unharmed says that the sandbox which was there before is, and ends it.
func (w *walk) unharmed() {
	w.t.Helper()
	if out := w.out(w.t, w.box, "echo here"); out != "here" {
		w.t.Errorf("the one that was there says %q", out)
	}
	w.must(w.client.Kill(w.t.Context(), w.box))
}

// A machine that is made for nobody yet: nothing is left of it, and the create before it, which
// was answered, is not touched.
func prepares() story {
	s := creates()
	s.name, s.with = "machine made ready", ahead
	s.stops = join(
		[]stop{{at: fp.MachineProcesses, nth: 2, after: true}, {at: fp.MachinePrepared, nth: 2, after: true}, {at: fp.MachineBooted, nth: 2, after: true}},
		done(fp.PrepareMade, fp.PrepareShelved),
	)
	return s
}

// A create that is given a machine which stands ready: as any other, and its guest has been told
// who it is before anybody hears of it.
func claims() story {
	s := creates()
	s.name, s.with = "create on a machine made ready", ahead
	create, check := s.act, s.check
	s.act = func(w *walk) {
		if err := w.primed(); err != nil {
			w.t.Errorf("nothing to claim: %v", err)
		}
		create(w)
	}
	s.check = func(w *walk) {
		check(w)
		w.unharmed()
	}
	second := func(s stop) stop {
		s.nth = 2 // at the first time, it is the one made before
		if s.hold != "" {
			s.holdNth = 2
		}
		return s
	}
	s.stops = []stop{
		{at: fp.PrepareTaken},
		{at: fp.PrepareTaken, hold: fp.CreateBegun, holdNth: 2},
		second(stop{at: fp.CallBegun}),
		second(stop{at: fp.CreateBegun}),
		{at: fp.CreateRecorded, nth: 2, hold: fp.PrepareTaken},
		second(stop{at: fp.StartRuns}),
		second(stop{at: fp.StartKept, hold: fp.StartRuns}),
		second(stop{at: fp.StartLinked, hold: fp.StartKept}),
		second(stop{at: fp.StartGreeted, hold: fp.CreateBegun}),
		second(stop{at: fp.StartGreeted}),
		second(stop{at: fp.StartUp}),
		second(stop{at: fp.CreateMade, after: true}),
		second(stop{at: fp.CreateFinished, after: true}),
		second(stop{at: fp.CallFinished, after: true}),
	}
	s.stops[6].short = true
	return s
}

// A machine that has to make room for a create of another kind.
func discards() story {
	s := creates()
	check := s.check
	return story{
		name: "machine that makes room",
		ready: func(w *walk) {
			living := 0
			for _, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{}) {
				w.must(err)
				living++
			}
			w.path = fmt.Sprint(living + 2) // room for the first and a machine
		},
		with: func(w *walk) []string { return append(ahead(w), "--max-sandboxes", w.path) },
		act: func(w *walk) {
			if err := w.primed(); err != nil {
				w.t.Errorf("nothing to give up: %v", err)
			}
			_, _ = w.call(http.MethodPost, "/v1/sandboxes", creation(w, 64))
		},
		check: func(w *walk) {
			w.size = 64
			check(w)
			w.unharmed()
		},
		stops: each(fp.MachineDead, fp.MachineNoFiles, fp.PrepareDiscarded),
	}
}

// A create that is given a machine which has just died: it is removed first. The server may find
// out before the create does, and make another one; so it is tried until it does not.
func disposes() story {
	return story{
		name: "create on a machine that died", with: ahead,
		act: func(w *walk) {
			err := w.primed()
			for err == nil {
				var id hutch.SandboxID
				if id, err = w.spare(); err != nil {
					break
				}
				w.killSentry(id)
				// Not before all of it is dead: a create that comes earlier has the machine greeted in vain.
				if err = poll(w.t.Context(), "the machine is dead", func() (bool, error) { return !w.runs(id), nil }); err != nil {
					break
				}
				var sb api.Sandbox
				if sb, err = w.client.CreateSandbox(w.t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)}); err != nil {
					break // the server has died
				}
				if err = w.client.Kill(w.t.Context(), sb.ID); err == nil {
					err = w.ready()
				}
			}
		},
		check: (*walk).unharmed,
		stops: each(fp.PrepareDisposed),
	}
}

// A server that is told to end, and is killed while it removes what it keeps ready.
func endsAhead() story {
	return story{
		name: "end of a server with a machine ready", with: ahead,
		act: func(w *walk) {
			if err := w.primed(); err != nil {
				w.t.Errorf("nothing to remove: %v", err)
			}
			_ = w.cmd.Process.Signal(syscall.SIGTERM) // it is ours
		},
		check: (*walk).unharmed,
		stops: each(fp.MachineDead, fp.MachineNoGroup, fp.PrepareDiscarded),
	}
}

// creation is the create that a story makes, of so many MiB.
func creation(w *walk, mb int) api.CreateSandbox {
	return api.CreateSandbox{
		Template: "base", MemoryMB: &mb, Hostname: "walked",
		Metadata: map[string]string{"walk": w.mark}, Env: map[string]string{"WALK": w.mark},
	}
}

// told says whether the guest of a sandbox was told who it is.
func (w *walk) told(id hutch.SandboxID) {
	w.t.Helper()
	if out := w.out(w.t, id, `echo $WALK $(uname -n)`); out != w.mark+" walked" {
		w.t.Errorf("its guest was told %q", out)
	}
}
