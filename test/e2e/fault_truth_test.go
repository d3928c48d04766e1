package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
)

// deadlineSlack is how late a sandbox may end: a keeper leaves that much to a server, and a busy
// machine takes its time. The API shows whole seconds, so it may seem to be one early.
const deadlineSlack = keeper.Grace + 5*time.Second

// truth is what holds whatever the server died in: records and host agree, every record is
// one that can come of what happened, every deadline is held by those who hold it, and who had
// nothing to do with it has not noticed.
func (w *walk) truth() {
	w.t.Helper()
	if l := w.leaks(w.t); l.code != 0 {
		w.t.Errorf("hutch leaks: %d, %+v %s", l.code, l.Leaks.Leaks, l.stderr)
	}
	living := w.checkLiving()
	w.checkKept(living)
	w.checkLinks(living)
	for sb, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{All: true}) {
		w.must(err)
		w.checkRecord(sb)
	}
	if w.runner == "" {
		return
	}
	for _, id := range []hutch.SandboxID{w.runner, w.paused} {
		if !slices.ContainsFunc(living, func(sb api.Sandbox) bool { return sb.ID == id }) {
			w.t.Errorf("%s, which stood by, is gone", id)
		}
	}
	x, err := w.client.ExecRecord(w.t.Context(), w.counts)
	if err != nil || !x.Running {
		w.t.Errorf("the command of the one that stood by: %+v, %v", x, err)
	}
}

// checkLiving looks at every sandbox that is on record as living, and returns them.
func (w *walk) checkLiving() []api.Sandbox {
	w.t.Helper()
	var living []api.Sandbox
	for sb, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{}) {
		w.must(err)
		living = append(living, sb)
	}
	for _, sb := range living {
		switch {
		case time.Now().After(sb.ExpiresAt.Add(deadlineSlack)):
			w.t.Errorf("%s lives, and its time was over at %s", sb.ID, sb.ExpiresAt)
		case sb.Transition != "" || sb.State == hutch.StateNew:
			w.t.Errorf("%s is on record as %s %s, and nobody makes it anything", sb.ID, sb.State, sb.Transition)
		case sb.State == hutch.StateRunning:
			if got := w.run(w.t, sb.ID, "echo here"); got.Stdout != "here\n" {
				w.t.Errorf("%s, on record as running, answers %+v", sb.ID, got)
			}
		case sb.ID != w.paused:
			w.t.Errorf("%s is paused", sb.ID)
		}
	}
	if n := w.sentries(); n != len(living) {
		w.t.Errorf("%d sandboxes are on the host, %d on record", n, len(living))
	}
	return living
}

// checkKept compares what the keeper holds with the records: it is who holds the deadlines
// when the server dies again.
func (w *walk) checkKept(living []api.Sandbox) {
	w.t.Helper()
	k, err := keeper.Dial(w.t.Context(), w.dir)
	w.must(err)
	defer k.Close()
	// The node drops a note after the end is on record, and the keeper hears of an epoch after
	// the sandbox is in service.
	eventually(w.t, "the keeper holds what is on record", func() bool {
		var all []keeper.Info
		all, err = k.List(w.t.Context())
		w.must(err)
		err = agree(living, all)
		return err == nil
	})
}

// checkLinks compares the links that the gateway serves with the records: without one there is
// no network inside.
func (w *walk) checkLinks(living []api.Sandbox) {
	w.t.Helper()
	e, err := egress.Dial(w.t.Context(), w.dir)
	w.must(err)
	defer e.Close()
	eventually(w.t, "the gateway serves the links of those that live, and no other", func() bool {
		all, err := e.List(w.t.Context())
		w.must(err)
		served := map[hutch.SandboxID]bool{}
		for _, l := range all {
			if l.Ended.IsZero() {
				served[l.Name] = true
			}
		}
		return len(served) == len(living) && !slices.ContainsFunc(living, func(sb api.Sandbox) bool { return !served[sb.ID] })
	})
}

func agree(living []api.Sandbox, kept []keeper.Info) error {
	for _, sb := range living {
		i := slices.IndexFunc(kept, func(i keeper.Info) bool { return i.Name == sb.ID })
		switch {
		case i < 0:
			return fmt.Errorf("the keeper holds nothing of %s", sb.ID)
		case !kept[i].ExitedAt.IsZero() || !kept[i].KilledAt.IsZero():
			return fmt.Errorf("%s lives, and the keeper has a note on its end", sb.ID)
		case kept[i].Deadline.Sub(sb.ExpiresAt).Abs() >= time.Second: // the API shows whole seconds
			return fmt.Errorf("%s ends at %s on record, at %s with the keeper", sb.ID, sb.ExpiresAt, kept[i].Deadline)
		}
	}
	if len(kept) != len(living) {
		return fmt.Errorf("the keeper holds %d sandboxes of %d", len(kept), len(living))
	}
	return nil
}

// checkRecord looks at what is on record of one sandbox: its events can follow one another, its
// commands have ended if it has, and what it is charged has neither a hole nor a fold.
func (w *walk) checkRecord(sb api.Sandbox) {
	w.t.Helper()
	var events []api.Event
	// It ends with the events there are: the stream of a sandbox that has ended ends by itself.
	all, err := w.client.LastEvents(w.t.Context(), sb.ID, 1000)
	w.must(err)
	for _, ev := range all {
		if ev.SandboxID == sb.ID {
			events = append(events, ev)
		}
	}
	slices.SortFunc(events, func(a, b api.Event) int { return int(a.Seq - b.Seq) })
	if err := legal(events); err != nil {
		w.t.Errorf("events of %s: %v", sb.ID, err)
	}
	if sb.State != hutch.StateDead {
		return
	}
	if sb.EndReason == "" || sb.EndedAt.IsZero() || sb.Transition != "" {
		w.t.Errorf("the record of one that is dead: %+v", sb)
	}
	if late := sb.EndedAt.Sub(sb.ExpiresAt); sb.EndReason == hutch.EndExpired && (late < -time.Second || late > deadlineSlack) {
		w.t.Errorf("%s ended as %s %s after its time was over", sb.ID, sb.EndReason, late)
	}
	for x, err := range w.client.Execs(w.t.Context(), sb.ID, true) {
		w.must(err)
		w.t.Errorf("command %s (%q) has no end, and its sandbox %s has (%s)", x.ExecID, x.Cmd, sb.ID, sb.EndReason)
	}
	if !sb.StartedAt.IsZero() {
		w.checkUsage(sb)
	}
}

// checkUsage looks at the intervals that a sandbox which has ended is charged.
func (w *walk) checkUsage(sb api.Sandbox) {
	w.t.Helper()
	rep, _, err := w.client.UsageReport(w.t.Context(), client.UsageFilter{Sandbox: sb.ID, Limit: 1000})
	w.must(err)
	if len(rep.Usage) == 0 {
		w.t.Errorf("%s ran, and is charged nothing", sb.ID)
		return
	}
	rows := rep.Usage
	slices.SortFunc(rows, func(a, b api.UsageEntry) int { return a.From.Compare(b.From) })
	for i := range len(rows) - 1 {
		if d := rows[i+1].From.Sub(rows[i].To); d.Abs() > time.Millisecond {
			w.t.Errorf("%s is charged up to %s, and then from %s on", sb.ID, rows[i].To, rows[i+1].From)
		}
	}
	if lived := sb.EndedAt.Sub(sb.StartedAt).Seconds(); rep.Total.WallSeconds > lived+2 || rep.Total.WallSeconds < lived-2 {
		w.t.Errorf("%s lived %.1f s, and is charged %.1f", sb.ID, lived, rep.Total.WallSeconds)
	}
}

// legal says whether the events of a sandbox can follow one another.
func legal(events []api.Event) error {
	from := map[string]string{
		"sandbox.creating": "", "sandbox.started": "new", "sandbox.paused": "running", "sandbox.running": "paused",
		"sandbox.pausing_failed": "running", "sandbox.resuming_failed": "paused",
	}
	to := map[string]string{
		"sandbox.creating": "new", "sandbox.started": "running", "sandbox.paused": "paused",
		"sandbox.running": "running", "sandbox.ended": "dead",
	}
	state := ""
	execs := map[hutch.ExecID]string{}
	for _, ev := range events {
		if ev.ExecID != "" {
			if want := map[string]string{"": "exec.started", "exec.started": "exec.ended"}[execs[ev.ExecID]]; ev.Type != want || state == "dead" {
				return fmt.Errorf("%s of %s after %q, while the sandbox was %q", ev.Type, ev.ExecID, execs[ev.ExecID], state)
			}
			execs[ev.ExecID] = ev.Type
			continue
		}
		if want, ok := from[ev.Type]; ok && want != state || state == "dead" {
			return fmt.Errorf("%s while it was %q", ev.Type, state)
		}
		if s, ok := to[ev.Type]; ok {
			state = s
		}
	}
	for x, last := range execs {
		if state == "dead" && last != "exec.ended" {
			return fmt.Errorf("%s has no end", x)
		}
	}
	return nil
}

// checkCount ends the command that has counted all the while: every number must be there.
func (w *walk) checkCount() {
	w.t.Helper()
	if w.client == nil {
		return
	}
	w.out(w.t, w.runner, "touch /tmp/stop")
	var all strings.Builder
	end, err := w.client.Follow(w.t.Context(), w.counts, client.StreamOptions{}, func(o client.Output) error {
		if o.Offset != int64(all.Len()) {
			return fmt.Errorf("output at %d, want %d", o.Offset, all.Len())
		}
		all.Write(o.Data)
		return nil
	})
	if err != nil || end.ExitCode != 0 {
		w.t.Errorf("the command that counts ended with %+v, %v", end, err)
	}
	for i, line := range strings.Fields(all.String()) {
		if line != strconv.Itoa(i+1) {
			w.t.Errorf("the command that counts missed %d: %s", i+1, line)
			return
		}
	}
}

// wantEnd says of a sandbox that it has ended, and for one of these reasons.
func (w *walk) wantEnd(id hutch.SandboxID, why ...hutch.SandboxEnd) {
	w.t.Helper()
	var err error
	eventually(w.t, "it is on record as ended", func() bool {
		_, err = w.client.Sandbox(w.t.Context(), id)
		return err != nil
	})
	if !errors.Is(err, hutch.ErrSandboxGone) {
		w.t.Errorf("%s: %v", id, err)
		return
	}
	for sb, err := range w.client.Sandboxes(w.t.Context(), client.SandboxFilter{States: []hutch.State{hutch.StateDead}}) {
		w.must(err)
		if sb.ID != id {
			continue
		}
		if !slices.Contains(why, sb.EndReason) {
			w.t.Errorf("%s ended as %s (%s), want %v", id, sb.EndReason, sb.EndDetail, why)
		}
		return
	}
	w.t.Errorf("%s has ended, and is not among the dead", id)
}
