package cluster

import (
	"fmt"
	"slices"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
	"hutch.dev/hutch/internal/store"
)

// record is a sandbox as the database has it.
func (w *world) record(id hutch.SandboxID) hutch.Sandbox {
	w.t.Helper()
	sb, err := w.db.Sandbox(w.ctx(), id)
	if err != nil {
		w.t.Fatalf("record of %s: %v", id, err)
	}
	return sb
}

// wantDead waits until the record says that a sandbox has ended, and checks why.
func (w *world) wantDead(id hutch.SandboxID, why hutch.SandboxEnd) hutch.Sandbox {
	w.t.Helper()
	var sb hutch.Sandbox
	eventually(w.t, fmt.Sprintf("%s is dead", id), func() error {
		if sb = w.record(id); sb.State != hutch.StateDead {
			return fmt.Errorf("it is %s %s", sb.State, sb.Transition)
		}
		return nil
	})
	if sb.EndReason != why {
		w.t.Errorf("%s ended as %s (%s), want %s", id, sb.EndReason, sb.EndDetail, why)
	}
	return sb
}

// wantAgreement waits until records, host, keeper and gateway hold the same sandboxes, and
// checks what must hold of every record.
func (w *world) wantAgreement() {
	w.t.Helper()
	eventually(w.t, "records, host, keeper and gateway agree", func() error {
		var alive []hutch.SandboxID
		for _, sb := range w.records() {
			if sb.State != hutch.StateDead {
				alive = append(alive, sb.ID)
			}
		}
		slices.Sort(alive)
		host, err := fake.New(w.host).List(w.ctx())
		if err != nil {
			return err
		}
		infos, err := w.watch.List(w.ctx())
		if err != nil {
			return err
		}
		var kept []hutch.SandboxID
		for _, i := range infos {
			kept = append(kept, i.Name)
		}
		if links := w.egress.attached(); !slices.Equal(alive, host) || !slices.Equal(alive, kept) || !slices.Equal(alive, links) {
			return fmt.Errorf("records %v, host %v, keeper %v, gateway %v", alive, host, kept, links)
		}
		return nil
	})
	for _, sb := range w.records() {
		w.checkRecord(sb)
	}
}

// records lists every sandbox on record.
func (w *world) records() []hutch.Sandbox {
	w.t.Helper()
	var all []hutch.Sandbox
	for cursor := ""; ; {
		l, next, err := w.db.Sandboxes(w.ctx(), store.SandboxFilter{}, store.Page{Cursor: cursor})
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, l...)
		if next == "" {
			return all
		}
		cursor = next
	}
}

// checkRecord checks what must hold of a record whatever happened: its events are in a
// legal order, and the dead have no secrets and no commands without an end.
func (w *world) checkRecord(sb hutch.Sandbox) {
	w.t.Helper()
	evs := w.events(sb.ID)
	if err := legal(evs); err != nil {
		w.t.Errorf("events of %s: %v\n%s", sb.ID, err, show(evs))
	}
	if sb.State != hutch.StateDead {
		return
	}
	if sb.EndReason == "" || sb.EndedAt.IsZero() || sb.Transition != "" || len(sb.Env) > 0 {
		w.t.Errorf("the record of a dead sandbox: %+v", sb)
	}
	l, _, err := w.db.ExecsOf(w.ctx(), store.ExecFilter{Sandbox: sb.ID, Running: true}, store.Page{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, x := range l {
		w.t.Errorf("command %s (%q) has no end, and its sandbox %s has one (%s)", x.ID, x.Spec.Cmd, sb.ID, sb.EndReason)
	}
}

// events are all events of a sandbox on record.
func (w *world) events(id hutch.SandboxID) []hutch.Event {
	w.t.Helper()
	var all []hutch.Event
	for {
		f := store.EventFilter{Sandbox: id}
		if len(all) > 0 {
			f.After = all[len(all)-1].Seq
		}
		l, err := w.db.Events(w.ctx(), f)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(l) == 0 {
			return all
		}
		all = append(all, l...)
	}
}

// legal checks a sandbox's events against the table of transitions.
func legal(evs []hutch.Event) error {
	next := map[string][]string{
		"":        {"sandbox.creating"},
		"new":     {"sandbox.started", "sandbox.ended"},
		"running": {"sandbox.paused", "sandbox.pausing_failed", "sandbox.extended", "sandbox.ended", "sandbox.unresponsive", "sandbox.responsive"},
		"paused":  {"sandbox.running", "sandbox.resuming_failed", "sandbox.extended", "sandbox.ended", "sandbox.unresponsive", "sandbox.responsive"},
		"dead":    nil,
	}
	to := map[string]string{
		"sandbox.creating": "new", "sandbox.started": "running", "sandbox.paused": "paused",
		"sandbox.running": "running", "sandbox.ended": "dead",
	}
	state := ""
	execs := map[hutch.ExecID]string{}
	for _, ev := range evs {
		if ev.Exec != "" {
			was := execs[ev.Exec]
			if state == "" || state == "dead" || state == "new" {
				return fmt.Errorf("%s of %s while the sandbox was %q", ev.Type, ev.Exec, state)
			}
			if want := map[string]string{"": "exec.started", "exec.started": "exec.ended"}[was]; ev.Type != want {
				return fmt.Errorf("%s of %s after %q", ev.Type, ev.Exec, was)
			}
			execs[ev.Exec] = ev.Type
			continue
		}
		if !slices.Contains(next[state], ev.Type) {
			return fmt.Errorf("%s while it was %q", ev.Type, state)
		}
		if s, ok := to[ev.Type]; ok {
			state = s
		}
	}
	return nil
}

func show(evs []hutch.Event) string {
	var b strings.Builder
	for _, ev := range evs {
		fmt.Fprintf(&b, "  %d %s %s %v\n", ev.Seq, ev.Type, ev.Exec, ev.Data)
	}
	return b.String()
}
