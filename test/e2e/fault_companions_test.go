package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/template/imagetest"
	"hutch.dev/hutch/internal/x/cgroup"
	fp "hutch.dev/hutch/internal/x/failpoint"
)

// The stories that need a server of their own: its first start, its builds, and the deaths of
// its companions.

// The first start in a directory.
func firstStarts() story {
	return story{
		name: "first start", alone: true,
		stops: join(
			each(fp.KeyWritten, fp.KeyPlaced), nths(fp.DaemonSpawned, 2), each(fp.ServeRecordsOpen, fp.ServeCompanionsUp), []stop{short(fp.ServeKeyOnRecord)}, each(fp.ServeListening),
			nths(fp.FileWritten, 3), nths(fp.FileRenamed, 3), commits(2),
		),
	}
}

// A build: there is a template or there is none, its record says which, and it can be built.
func builds() story {
	request := func(w *walk) api.BuildTemplate { return api.BuildTemplate{Name: "app", ImageRef: w.path} }
	return story{
		name: "build", alone: true,
		scene: func(w *walk) {
			house := newSlowRegistry(w.t)
			house.goOn()
			w.path = house.ref
			cache := w.t.TempDir()
			w.flags = []string{"--cache-dir", cache, "--registry-insecure"}
			note := imagetest.Image(w.t, v1.Config{}, imagetest.Layer(w.t, imagetest.File("note", "alone\n")))
			buildTemplate(w.t, w.server, cache, "--oci", imagetest.Layout(w.t, map[string]v1.Image{"": note}), "--name", "scratch")
		},
		act: func(w *walk) { _, _ = w.call(http.MethodPost, "/v1/templates/build", request(w)) },
		check: func(w *walk) {
			a := w.again(http.MethodPost, "/v1/templates/build", request(w))
			if !a.ok() {
				w.t.Fatalf("asked for again: %s", a)
			}
			var b api.Build
			a.decode(w.t, &b)
			b, err := w.client.FollowBuild(w.t.Context(), b.ID, func(string) error { return nil })
			w.must(err)
			_, terr := w.client.Template(w.t.Context(), "app")
			switch {
			case b.Status == string(hutch.BuildDone) && terr != nil:
				w.t.Errorf("the build is on record as done, and there is no template: %v", terr)
			case b.Status != string(hutch.BuildDone) && (b.Status != string(hutch.BuildFailed) || b.Error == ""):
				w.t.Errorf("the build is on record as %+v", b)
			case w.stop.after && b.Status != string(hutch.BuildDone):
				w.t.Errorf("the build that was made is on record as %+v", b)
			}
			next, err := w.client.BuildTemplate(w.t.Context(), request(w))
			w.must(err)
			next, err = w.client.FollowBuild(w.t.Context(), next.ID, func(string) error { return nil })
			if err != nil || next.Status != string(hutch.BuildDone) {
				w.t.Fatalf("the next build: %+v, %v", next, err)
			}
			sb := w.make(func(r *api.CreateSandbox) { r.Template = "app" })
			if out := w.out(w.t, sb, "echo built"); out != "built" {
				w.t.Errorf("got %q", out)
			}
			w.must(w.client.Kill(w.t.Context(), sb))
		},
		stops: join(
			each(fp.BuildRecorded), nths(fp.BuildStored, 2), []stop{short(fp.ImageInstalled)}, each(fp.BuildLogKept, fp.BuildRemembered, fp.BuildMade, fp.TemplateRecorded),
			nths(fp.FileWritten, 5), nths(fp.FileRenamed, 5), commits(4),
		),
	}
}

// A keeper that dies under a call: the call is made again of the next keeper, which is given
// what the old one held, and nobody notices.
func keepersDie() story {
	return companionDies("keeper", fp.KeeperStored, fp.KeeperMoved, fp.KeeperDropped)
}

// A gateway that does.
func gatewaysDie() story { return companionDies("egress", fp.EgressServes, fp.EgressDropped) }

func companionDies(kind string, points ...fp.Name) story {
	return story{
		name: kind + " dies", alone: true,
		walk: func(w *walk) {
			died := w.hand(kind)
			w.must(w.start())
			stays := w.make(nil)
			if _, err := w.client.Extend(w.t.Context(), stays, 0); err != nil {
				w.t.Errorf("extend: %v", err)
			}
			goes := w.make(nil)
			w.must(w.client.Kill(w.t.Context(), goes))
			died.wait(w.t)
			w.wantMark(died)
			eventually(w.t, "there is another one, which holds what it must", func() bool {
				res, err := http.Get(w.base + "/readyz")
				if err != nil {
					return false
				}
				_ = res.Body.Close()
				return res.StatusCode == http.StatusOK && w.companions(kind) == 1
			})
			w.truth()
			w.kill9(w.t)
			w.must(w.start())
			if out := w.out(w.t, stays, "echo here"); out != "here" {
				w.t.Errorf("after a restart it says %q", out)
			}
			w.truth()
		},
		stops: each(points...),
	}
}

// A companion that dies before anybody can find it: the server starts another one.
func companionStarts(kind string) story {
	return story{
		name: kind + " dies in its start", alone: true,
		walk: func(w *walk) {
			died := w.launch(kind)
			died.wait(w.t)
			w.wantMark(died)
			w.must(w.start())
			w.must(w.client.Kill(w.t.Context(), w.make(nil)))
			w.truth()
		},
		stops: each(fp.SocketMade),
	}
}

// wantMark says that a companion has died where it was to.
func (w *walk) wantMark(died *companionProcess) {
	w.t.Helper()
	if !strings.Contains(died.log.String(), fp.Mark+string(w.stop.at)+"\n") {
		w.t.Fatalf("it did not die at %s: %s", w.stop.at, died.log)
	}
}

// A keeper that ends a sandbox at its deadline while there is no server, and dies. Both of
// those who hold the handles are dead then: what cannot be reached any more is on record as lost,
// and is gone.
func keepersEnd() story {
	return story{
		name: "keeper ends one and dies", alone: true,
		walk: func(w *walk) {
			died := w.hand("keeper")
			w.must(w.start())
			expires, other := w.make(nil), w.make(nil)
			_, err := w.client.Extend(w.t.Context(), expires, 3*time.Second)
			w.must(err)
			w.kill9(w.t)
			died.wait(w.t)
			w.wantMark(died)
			// The other one ends too: its guest finds that nobody holds the other end of its stream.
			eventually(w.t, "the one whose time was over has ended", func() bool { return w.sentries() <= 1 })
			w.must(w.start())
			w.wantEnd(expires, hutch.EndExpired, hutch.EndLost)
			w.wantEnd(other, hutch.EndLost)
			w.truth()
		},
		stops: each(fp.KeeperKilled),
	}
}

// A companion that has died is being replaced when the server dies. What the keeper held is
// lost as long as the new one was not given it; a gateway's loss costs nothing.
func replaced(kind string) story {
	return story{
		name: kind + " is replaced", alone: true,
		ready: func(w *walk) { w.box = w.make(nil) },
		act: func(w *walk) {
			for _, pid := range w.companionPIDs(kind) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it is ours
			}
		},
		check: func(w *walk) {
			if kind == "keeper" && w.stop.at != fp.CompanionFilled {
				w.wantEnd(w.box, hutch.EndLost)
				return
			}
			if out := w.out(w.t, w.box, "echo here"); out != "here" {
				w.t.Errorf("it says %q", out)
			}
		},
		stops: each(fp.DaemonSpawned, fp.CompanionEmpty, fp.CompanionFilled),
	}
}

// companionProcess is one that was started by hand.
type companionProcess struct {
	log    *syncBuffer
	exited chan struct{}
}

// wait waits for its end.
func (p *companionProcess) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		t.Fatalf("it does not die: %s", p.log)
	}
}

// hand starts a companion by hand, armed, before there is a server, as a service manager may,
// and returns once it can be called.
func (w *walk) hand(kind string) *companionProcess {
	w.t.Helper()
	p := w.launch(kind)
	eventually(w.t, "the "+kind+" can be called", func() bool {
		_, err := os.Stat(filepath.Join(w.dir, kind+".sock"))
		return err == nil
	})
	return p
}

// launch does not wait for that.
func (w *walk) launch(kind string) *companionProcess {
	w.t.Helper()
	exe, err := hutchBinary()
	w.must(err)
	p := &companionProcess{log: &syncBuffer{}, exited: make(chan struct{})}
	cmd := exec.Command(exe, append([]string{kind, "--data-dir", w.dir}, w.stop.args()...)...)
	cmd.Stderr = p.log
	w.must(cmd.Start())
	go func() {
		_ = cmd.Wait() // it is killed
		close(p.exited)
	}()
	return p
}

// orphan makes by hand what is left of a sandbox that is not on record: control groups, a
// directory and a process that looks like its kernel.
func (w *walk) orphan(id hutch.SandboxID) {
	w.t.Helper()
	tree, err := cgroup.Detect(w.cgroup())
	w.must(err)
	g, err := tree.Create(string(id), cgroup.Limits{})
	w.must(err)
	w.must(os.Mkdir(filepath.Join(w.dir, "run", "sandboxes", string(id)), 0o711))
	cmd := exec.Command("sleep", "1000")
	w.must(cmd.Start())
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(gone)
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		<-gone
	})
	for _, file := range g.ProcsFiles() {
		w.must(os.WriteFile(file, []byte(itoa(cmd.Process.Pid)), 0o600))
	}
	w.orphaned = gone
}
