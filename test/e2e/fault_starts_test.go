package e2e

import (
	"strings"
	"syscall"
	"time"

	"hutch.dev/hutch"
	fp "hutch.dev/hutch/internal/x/failpoint"
)

// The stories of a server's start on what the last one left, and of its end.

// The next start: with sandboxes that run, stand still, have died and have expired meanwhile.
func restarts() story {
	return story{
		name: "restart",
		ready: func(w *walk) {
			w.box, w.path = w.make(nil), string(w.make(nil))
			_, err := w.client.Extend(w.t.Context(), w.box, 5*time.Second)
			w.must(err)
		},
		down: func(w *walk) {
			w.killSentry(hutch.SandboxID(w.path))
			eventually(w.t, "the keeper has ended the one whose time is over", func() bool { return w.sentries() == 2 })
		},
		check: func(w *walk) {
			w.wantEnd(w.box, hutch.EndExpired)
			w.wantEnd(hutch.SandboxID(w.path), hutch.EndCrashed)
		},
		stops: join(
			each(fp.ServeRecordsOpen, fp.ServeCompanionsUp, fp.ServeListening),
			nths(fp.AdoptFetched, 2), nths(fp.AdoptLinked, 2), nths(fp.AdoptMade, 2), []stop{short(fp.AdoptTold)}, nths(fp.RecoverAdopted, 2),
			nths(fp.AdoptGone, 2), nths(fp.RecoverLost, 2), nths(fp.SweepKilled, 2), nths(fp.SweepNoGroup, 2),
			nths(fp.SweepNoFiles, 2), each(fp.SweepNoLink),
			each(fp.EndExecs, fp.EndCharged, fp.EndRecorded, fp.RecoverMended, fp.RecoverBuilds),
			commits(3),
		),
	}
}

// The removal of what no record knows.
func orphans() story {
	return story{
		name: "orphan",
		down: func(w *walk) { w.orphan(hutch.SandboxID("i" + strings.Repeat("z", 20))) },
		check: func(w *walk) {
			select {
			case <-w.orphaned:
			case <-time.After(time.Minute):
				w.t.Error("its process lives")
			}
		},
		stops: each(fp.SweepKilled, fp.GroupRemoved, fp.SweepNoGroup, fp.SweepNoFiles, fp.SweepNoLink, fp.RecoverMended),
	}
}

// A server that is told to end, and is killed before it has: it has let go of nothing that the
// next one could not take up.
func ends() story {
	return story{
		name:  "end of the server",
		ready: func(w *walk) { w.box = w.make(nil) },
		act:   func(w *walk) { _ = w.cmd.Process.Signal(syscall.SIGTERM) }, // it is ours
		check: func(w *walk) {
			if out := w.out(w.t, w.box, "echo here"); out != "here" {
				w.t.Errorf("it says %q", out)
			}
			w.must(w.client.Kill(w.t.Context(), w.box))
		},
		stops: each(fp.ServeUnlisted, fp.ServeLetGo),
	}
}
