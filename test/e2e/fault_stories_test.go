package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/keeper"
	fp "hutch.dev/hutch/internal/x/failpoint"
)

// stories are all that a server is killed in.
func stories() []story {
	return []story{
		creates(), aborts(), prepares(), claims(), discards(), disposes(), endsAhead(), execs(), pauses(), resumes(), extends(), kills(), crashes(), expires(), idles(), charges(),
		restarts(), orphans(), ends(), firstStarts(), builds(), companionStarts("keeper"), companionStarts("egress"),
		keepersDie(), keepersEnd(), gatewaysDie(), replaced("keeper"), replaced("egress"),
	}
}

func each(names ...fp.Name) []stop {
	var out []stop
	for _, n := range names {
		out = append(out, stop{at: n})
	}
	return out
}

// nths are a point at the first to the nth time.
func nths(n fp.Name, times int) []stop {
	var out []stop
	for i := range times {
		out = append(out, stop{at: n, nth: i + 1})
	}
	return out
}

func short(n fp.Name) stop { return stop{at: n, short: true} }

func done(names ...fp.Name) []stop {
	var out []stop
	for _, n := range names {
		out = append(out, stop{at: n, after: true})
	}
	return out
}

func join(parts ...[]stop) []stop {
	var out []stop
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// commits are those that a story makes: before each, and behind it.
func commits(n int) []stop { return join(nths(fp.RecordsWritten, n), nths(fp.RecordsCommitted, n)) }

// A create: at the end there is one sandbox, and if its machine was made it is that one.
func creates() story {
	request := func(w *walk) api.CreateSandbox { return creation(w, w.size) }
	return story{
		name: "create",
		act:  func(w *walk) { _, _ = w.call(http.MethodPost, "/v1/sandboxes", request(w)) },
		check: func(w *walk) {
			mine := w.marked()
			if w.stop.after && len(mine) != 1 {
				w.t.Errorf("%d sandboxes are there before it is asked for again, want the one that was made", len(mine))
			}
			a := w.again(http.MethodPost, "/v1/sandboxes", request(w))
			if !a.ok() && !w.stop.after && strings.Contains(string(a.body), string(hutch.CodeSandboxGone)) {
				a = w.again(http.MethodPost, "/v1/sandboxes", request(w)) // what was begun could not be finished: a new one
			}
			if !a.ok() {
				w.t.Fatalf("asked for again: %s", a)
			}
			var sb api.Sandbox
			a.decode(w.t, &sb)
			now := w.marked()
			if len(now) != 1 || now[0].ID != sb.ID || len(mine) > 0 && mine[0].ID != sb.ID {
				w.t.Errorf("it is %s; there were %d and are %d", sb.ID, len(mine), len(now))
			}
			w.told(sb.ID)
			w.must(w.client.Kill(w.t.Context(), sb.ID))
		},
		stops: join(
			each(fp.CallBegun, fp.CreateBegun),
			[]stop{{at: fp.CreateRecorded, hold: fp.MachineDir}, {at: fp.CreateRecorded}, {at: fp.StartGreeted, hold: fp.CreateBegun, short: true}},
			[]stop{short(fp.MachineProcesses)},
			each(fp.MachineDir, fp.GroupMade, fp.MachineGroup, fp.MachineBundle, fp.MachineHandles, fp.MachineLink, fp.MachinePrepared,
				fp.MachineStarting, fp.MachineBooted, fp.MachineRunning, fp.StartRuns, fp.StartKept, fp.StartLinked, fp.StartUp, fp.StartGreeted),
			nths(fp.StateWritten, 3),
			[]stop{{at: fp.MachineBooted, hold: fp.StartKept}, {at: fp.MachineRunning, hold: fp.StartKept}, {at: fp.StartKept, hold: fp.MachineStarting}, {at: fp.StartLinked, hold: fp.StartKept}},
			[]stop{{at: fp.CreateMade, after: true, short: true}},
			done(fp.CreateFinished, fp.CallFinished),
			commits(7),
		),
	}
}

// marked are the living sandboxes that this stop made.
func (w *walk) marked() []api.Sandbox {
	w.t.Helper()
	var all []api.Sandbox
	for sb, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{Metadata: map[string]string{"walk": w.mark}}) {
		w.must(err)
		all = append(all, sb)
	}
	return all
}

// A create whose sandbox is killed before it is there. The gateway stands still, so that the
// start cannot come to its end first.
func aborts() story {
	signal := func(w *walk, s syscall.Signal) {
		for _, pid := range w.companionPIDs("egress") {
			_ = syscall.Kill(pid, s) // it is ours
		}
	}
	return story{
		name: "create that is ended",
		act: func(w *walk) {
			signal(w, syscall.SIGSTOP)
			go func() {
				_, _ = w.call(http.MethodPost, "/v1/sandboxes", api.CreateSandbox{Template: "base", MemoryMB: ptr(128), Metadata: map[string]string{"walk": w.mark}})
			}()
			_ = poll(w.t.Context(), "its machine is made, and on record", func() (bool, error) {
				for sb, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{Metadata: map[string]string{"walk": w.mark}}) {
					if err == nil {
						w.box = sb.ID
					}
				}
				k, err := keeper.Dial(w.t.Context(), w.dir)
				if err != nil {
					return false, err
				}
				defer k.Close()
				kept, err := k.Get(w.t.Context(), w.box)
				for _, f := range append(kept.Handles.Procs, kept.Handles.Guest, kept.Handles.Link) {
					_ = f.Close() // of a nil file, an error
				}
				return err == nil, nil
			})
			_, _ = w.call(http.MethodDelete, "/v1/sandboxes/"+string(w.box), nil)
		},
		down: func(w *walk) { signal(w, syscall.SIGCONT) },
		check: func(w *walk) {
			if a := w.again(http.MethodDelete, "/v1/sandboxes/"+string(w.box), nil); !a.ok() {
				w.t.Errorf("killed again: %s", a)
			}
			w.wantEnd(w.box, hutch.EndKilled)
		},
		stops: each(fp.UndoKilled),
	}
}

// A command: it runs once, and its end and all of its output come onto record.
func execs() story {
	request := func(w *walk) api.ExecRequest {
		return api.ExecRequest{Cmd: "echo x >> /tmp/" + w.mark + "; echo out; sleep 0.3; exit 3", Background: true}
	}
	return story{
		name:  "exec",
		ready: func(w *walk) { w.box = w.make(nil) },
		act:   func(w *walk) { _, _ = w.call(http.MethodPost, "/v1/sandboxes/"+string(w.box)+"/exec", request(w)) },
		check: func(w *walk) {
			a := w.again(http.MethodPost, "/v1/sandboxes/"+string(w.box)+"/exec", request(w))
			if !a.ok() {
				w.t.Fatalf("asked for again: %s", a)
			}
			var x api.Exec
			a.decode(w.t, &x)
			x = w.ended(w.t, x.ExecID)
			if r := x.Result; r.ExitCode != 3 || r.EndReason != hutch.ExecExit || r.Stdout != "out\n" {
				w.t.Errorf("it ended with %+v", r)
			}
			if n := w.out(w.t, w.box, "wc -l < /tmp/"+w.mark); n != "1" {
				w.t.Errorf("it was started %s times", n)
			}
			w.must(w.client.Kill(w.t.Context(), w.box))
		},
		stops: join([]stop{short(fp.ExecLaunched)}, nths(fp.ExecRecorded, 2), each(fp.ExecReported), commits(6)),
	}
}

// turn is a pause or a resume: afterwards it is one or the other, and asked for again it is done.
func turn(name, verb string, from, to hutch.State) story {
	path := func(w *walk) string { return "/v1/sandboxes/" + string(w.box) + "/" + verb }
	return story{
		name: name,
		ready: func(w *walk) {
			w.box = w.make(nil)
			w.exec = w.background(w.t, w.box, "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went on")
			if from == hutch.StatePaused {
				w.must(w.client.Pause(w.t.Context(), w.box))
			}
		},
		act: func(w *walk) { _, _ = w.call(http.MethodPost, path(w), nil) },
		check: func(w *walk) {
			sb, err := w.client.Sandbox(w.t.Context(), w.box)
			w.must(err)
			if sb.Transition != "" || sb.State != to && (w.stop.after || sb.State != from) {
				w.t.Errorf("it is %s %s", sb.State, sb.Transition)
			}
			if a := w.again(http.MethodPost, path(w), nil); !a.ok() {
				w.t.Errorf("asked for again: %s", a)
			}
			if sb, err = w.client.Sandbox(w.t.Context(), w.box); err != nil || sb.State != to {
				w.t.Errorf("then it is %s, %v", sb.State, err)
			}
			w.must(w.client.Resume(w.t.Context(), w.box)) // of one that runs, nothing
			w.out(w.t, w.box, "touch /tmp/go")
			if r := w.ended(w.t, w.exec).Result; r.Stdout != "went on\n" {
				w.t.Errorf("its command ended with %+v", r)
			}
			w.must(w.client.Kill(w.t.Context(), w.box))
		},
		stops: join(
			each(fp.TurnBegun, fp.MachineTurning), []stop{short(fp.MachineTurned)}, each(fp.TurnMade), done(fp.TurnFinished),
			nths(fp.StateWritten, 2), commits(5),
		),
	}
}

func pauses() story { return turn("pause", "pause", hutch.StateRunning, hutch.StatePaused) }

func resumes() story { return turn("resume", "resume", hutch.StatePaused, hutch.StateRunning) }

// A new deadline: afterwards everybody holds the one on record (which truth looks at), the new
// one if it came to be there.
func extends() story {
	const ttl = 7200.0
	path := func(w *walk) string { return "/v1/sandboxes/" + string(w.box) + "/lifecycle" }
	return story{
		name:  "extend",
		ready: func(w *walk) { w.box = w.make(nil) },
		act:   func(w *walk) { _, _ = w.call(http.MethodPatch, path(w), api.UpdateLifecycle{TTLSeconds: ptr(ttl)}) },
		check: func(w *walk) {
			l, err := w.client.Lifecycle(w.t.Context(), w.box)
			w.must(err)
			if l.TTLSeconds != ttl && (w.stop.after || l.TTLSeconds != 3600) {
				w.t.Errorf("its time to live is %v", l.TTLSeconds)
			}
			if a := w.again(http.MethodPatch, path(w), api.UpdateLifecycle{TTLSeconds: ptr(ttl)}); !a.ok() {
				w.t.Errorf("asked for again: %s", a)
			}
			if l, err = w.client.Lifecycle(w.t.Context(), w.box); err != nil || l.TTLSeconds != ttl {
				w.t.Errorf("then it is %v, %v", l.TTLSeconds, err)
			}
			w.truth()
			w.must(w.client.Kill(w.t.Context(), w.box))
		},
		stops: join([]stop{{at: fp.ExtendRecorded, after: true, short: true}}, done(fp.DeadlineKept), commits(4)),
	}
}

// A kill: it is killed, or, as long as nothing of the kill was on record, it lives.
func kills() story {
	path := func(w *walk) string { return "/v1/sandboxes/" + string(w.box) }
	return story{
		name: "kill",
		ready: func(w *walk) {
			w.box = w.make(nil)
			w.exec = w.background(w.t, w.box, "echo last words; sleep 1000")
			eventually(w.t, "it speaks", func() bool { return w.alive(w.t, w.box, "sleep 1000") > 0 })
		},
		act: func(w *walk) { _, _ = w.call(http.MethodDelete, path(w), nil) },
		check: func(w *walk) {
			if _, err := w.client.Sandbox(w.t.Context(), w.box); w.stop.after && !errors.Is(err, hutch.ErrSandboxGone) {
				w.t.Errorf("it is there: %v", err)
			}
			if a := w.again(http.MethodDelete, path(w), nil); !a.ok() {
				w.t.Errorf("asked for again: %s", a)
			}
			w.wantEnd(w.box, hutch.EndKilled)
			if r := w.ended(w.t, w.exec).Result; r.EndReason != hutch.ExecSandboxGone {
				w.t.Errorf("its command ended with %+v", r)
			}
		},
		stops: join(done(fp.KillBegun), []stop{{at: fp.MachineDead, after: true, short: true}}, done(fp.GroupRemoved, fp.MachineNoGroup, fp.MachineNoState,
			fp.MachineNoFiles, fp.EndCleared, fp.EndForgotten, fp.KillMade, fp.EndExecs, fp.EndCharged, fp.EndRecorded), commits(7)),
	}
}

// A sandbox whose kernel dies by itself.
func crashes() story {
	return story{
		name:  "crash",
		ready: func(w *walk) { w.box = w.make(nil) },
		act:   func(w *walk) { w.killSentry(w.box) },
		check: func(w *walk) { w.wantEnd(w.box, hutch.EndCrashed) },
		stops: join(each(fp.MachineDead, fp.GroupRemoved, fp.MachineNoGroup, fp.MachineNoState, fp.MachineNoFiles, fp.EndCleared, fp.EndExecs, fp.EndCharged),
			done(fp.EndRecorded, fp.EndTold, fp.EndForgotten)),
	}
}

// asked makes a sandbox beside the test: what fails shows in the check, which finds none.
func (w *walk) asked(req api.CreateSandbox) {
	a, err := w.call(http.MethodPost, "/v1/sandboxes", req)
	var sb api.Sandbox
	if err == nil && json.Unmarshal(a.body, &sb) == nil {
		w.box = sb.ID
	}
}

// killSentry ends a sandbox's kernel as a fault of it would.
func (w *walk) killSentry(id hutch.SandboxID) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil || !strings.HasPrefix(string(b), "runsc-sandbox\x00") || !strings.Contains(string(b), string(id)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A sandbox whose time is over.
func expires() story {
	return story{
		name:  "expiry",
		act:   func(w *walk) { w.asked(api.CreateSandbox{Template: "base", MemoryMB: ptr(128), TTLSeconds: ptr(2.0)}) },
		check: func(w *walk) { w.wantEnd(w.box, hutch.EndExpired) },
		stops: join(each(fp.MachineDead, fp.MachineNoFiles), []stop{short(fp.EndCleared)}, each(fp.EndExecs, fp.EndCharged), done(fp.EndRecorded, fp.EndTold, fp.EndForgotten)),
	}
}

// A sandbox that nobody uses.
func idles() story {
	return story{
		name: "idleness",
		act: func(w *walk) {
			w.asked(api.CreateSandbox{Template: "base", MemoryMB: ptr(128), IdleTimeoutSeconds: ptr(1.0)})
		},
		check: func(w *walk) { w.wantEnd(w.box, hutch.EndIdle) },
		stops: each(fp.ReapDue, fp.MachineDead, fp.EndCleared, fp.EndExecs, fp.EndCharged, fp.EndRecorded),
	}
}

// A sandbox that is charged for what it uses.
func charges() story {
	return story{
		name:  "usage",
		ready: func(w *walk) { w.box = w.make(nil) },
		act: func(w *walk) {
			_, _ = w.call(http.MethodPost, "/v1/sandboxes/"+string(w.box)+"/exec", api.ExecRequest{Cmd: "while :; do :; done", Background: true, TimeoutSeconds: ptr(60.0)})
		},
		check: func(w *walk) { w.must(w.client.Kill(w.t.Context(), w.box)) },
		stops: nths(fp.UsageStored, 2),
	}
}
