package storetest

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var sandboxChecks = map[string]check{
	"every field of a sandbox is kept":         sandboxRoundTrip,
	"a zero sandbox stays zero":                zeroSandbox,
	"a missing sandbox is not found":           missingSandbox,
	"a taken sandbox id is a conflict":         takenSandbox,
	"times are kept to the nanosecond in UTC":  sandboxTimes,
	"any text is kept as it is":                sandboxText,
	"a large sandbox is kept":                  largeSandbox,
	"an update returns what is stored":         updateReturnsStored,
	"every field of a sandbox can be updated":  updateEveryField,
	"a stale epoch writes nothing":             staleEpoch,
	"a failing fn writes nothing":              failingFn,
	"an update may not change what names it":   identityIsFixed,
	"a panic in fn leaves the store working":   panickingFn,
	"fn may use the store":                     reentrantFn,
	"one of 100 wins an epoch":                 oneWinsTheEpoch,
	"updates at one epoch all count":           noLostUpdate,
	"events are stored with their update":      updateEvents,
	"a purge takes the dead of before":         purgeSandboxes,
	"a purge takes commands and events along":  purgeTakesAll,
	"a purge takes old events of no sandbox":   purgeOrphans,
	"a large purge takes all":                  largePurge,
	"the id of a purged sandbox is free again": purgedIDIsFree,
	"what changes sandboxes is counted":        changesAreCounted,
}

func sandboxRoundTrip(t *testing.T, s store.Store) {
	want := filled[hutch.Sandbox](t)
	create(t, s, want)
	wantEqual(t, "the record", load(t, s, want.ID), want)
	list, _, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{})
	if err != nil || len(list) != 1 {
		t.Fatalf("Sandboxes: %d records, %v", len(list), err)
	}
	wantEqual(t, "the record in a listing", list[0], want)
}

func zeroSandbox(t *testing.T, s store.Store) {
	want := hutch.Sandbox{ID: "i1"}
	create(t, s, want)
	wantEqual(t, "the record", load(t, s, "i1"), want)
}

func missingSandbox(t *testing.T, s store.Store) {
	_, err := s.Sandbox(t.Context(), "i-none")
	wantErr(t, "Sandbox", err, hutch.ErrNotFound)
	_, err = s.UpdateSandbox(t.Context(), "i-none", 1, func(*hutch.Sandbox) error {
		t.Error("fn was called for a sandbox that is not there")
		return nil
	}, event("i-none", "updated"))
	wantErr(t, "UpdateSandbox", err, hutch.ErrNotFound)
	wantTypes(t, s, "")
}

func takenSandbox(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"), event("i1", "made"))
	other := sandbox("i1")
	other.Project = "p2"
	wantErr(t, "CreateSandbox with a taken id", s.CreateSandbox(t.Context(), other, event("i1", "made again")), hutch.ErrConflict)
	if sb := load(t, s, "i1"); sb.Project != "p1" {
		t.Errorf("the refused record replaced the first: project %q", sb.Project)
	}
	wantTypes(t, s, "i1", "made")
}

func sandboxTimes(t *testing.T, s store.Store) {
	for i, want := range []time.Time{
		day0,
		time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 999999999, time.UTC),
		time.Date(2200, 1, 1, 0, 0, 0, 1, time.UTC),
		time.Now(),
	} {
		sb := sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i)))
		sb.ExpiresAt = want
		create(t, s, sb)
		got := load(t, s, sb.ID).ExpiresAt
		if !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("ExpiresAt: got %s, want %s", got.Format(time.RFC3339Nano), want.UTC().Format(time.RFC3339Nano))
		}
	}
	// What cannot be kept is refused, not bent.
	sb := sandbox("far")
	sb.ExpiresAt = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := s.CreateSandbox(t.Context(), sb); err == nil {
		if got := load(t, s, "far").ExpiresAt; !got.Equal(sb.ExpiresAt) {
			t.Errorf("ExpiresAt: %s was accepted and came back as %s", sb.ExpiresAt, got)
		}
	}
}

func sandboxText(t *testing.T, s store.Store) {
	sb := sandbox("i1")
	sb.Metadata, sb.Env = maps.Clone(hostileText), maps.Clone(hostileText)
	sb.Template = hostileText["sql"]
	create(t, s, sb)
	got := load(t, s, "i1")
	wantEqual(t, "metadata", got.Metadata, hostileText)
	wantEqual(t, "environment", got.Env, hostileText)
	wantEqual(t, "template", got.Template, sb.Template)
	for k, v := range hostileText {
		list, _, err := s.Sandboxes(t.Context(), store.SandboxFilter{Metadata: map[string]string{k: v}}, store.Page{})
		if err != nil || len(list) != 1 {
			t.Errorf("the filter %q = %q finds %d, %v; want the record", k, v, len(list), err)
		}
	}
}

func largeSandbox(t *testing.T, s store.Store) {
	sb := sandbox("i1")
	sb.Metadata, sb.Env = map[string]string{}, map[string]string{}
	for i := range 256 {
		k := fmt.Sprintf("key-%d", i)
		sb.Metadata[k] = strings.Repeat("v", 4<<10)
		sb.Env[k] = strings.Repeat("é", 2<<10)
	}
	create(t, s, sb)
	got := load(t, s, "i1")
	if !maps.Equal(got.Metadata, sb.Metadata) || !maps.Equal(got.Env, sb.Env) {
		t.Error("a megabyte of metadata and environment came back different")
	}
}

func updateReturnsStored(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	got, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		sb.StartedAt = time.Now() // with a monotonic reading, in local time
		sb.Metadata = map[string]string{"k": "v"}
		sb.Env = map[string]string{}
		return sb.Begin(hutch.Starting)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Epoch != 2 || got.Transition != hutch.Starting {
		t.Errorf("UpdateSandbox returned epoch %d, %s; want 2, starting", got.Epoch, got.Transition)
	}
	wantEqual(t, "what UpdateSandbox returned, against a read", got, load(t, s, "i1"))
}

func updateEveryField(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	want := filled[hutch.Sandbox](t)
	want.ID, want.Project, want.CreatedAt = "i1", "p1", day0.UTC()
	got, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		*sb = want
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "what UpdateSandbox returned", got, want)
	wantEqual(t, "the record", load(t, s, "i1"), want)
}

func staleEpoch(t *testing.T, s store.Store) {
	sb := sandbox("i1")
	sb.Epoch = 5
	create(t, s, sb)
	for _, epoch := range []hutch.Epoch{0, 4, 6, 1 << 40} {
		_, err := s.UpdateSandbox(t.Context(), "i1", epoch, func(sb *hutch.Sandbox) error {
			sb.Hostname = "h9"
			return nil
		}, event("i1", "updated"))
		wantErr(t, fmt.Sprintf("UpdateSandbox at epoch %d of 5", epoch), err, hutch.ErrStale)
	}
	if got := load(t, s, "i1"); got.Hostname != "" || got.Epoch != 5 {
		t.Errorf("after refused writes: %+v", got)
	}
	wantTypes(t, s, "")
}

func failingFn(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	boom := errors.New("boom")
	_, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		sb.Hostname = "h9"
		sb.Epoch++
		return boom
	}, event("i1", "updated"))
	if !errors.Is(err, boom) {
		t.Errorf("UpdateSandbox: got %v, want fn's error", err)
	}
	if got := load(t, s, "i1"); got.Hostname != "" || got.Epoch != 1 {
		t.Errorf("after a failing fn: %+v", got)
	}
	wantTypes(t, s, "")
}

func identityIsFixed(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	for what, change := range map[string]func(*hutch.Sandbox){
		"id":               func(sb *hutch.Sandbox) { sb.ID = "i2" },
		"project":          func(sb *hutch.Sandbox) { sb.Project = "p2" },
		"time of creation": func(sb *hutch.Sandbox) { sb.CreatedAt = sb.CreatedAt.Add(1) },
	} {
		_, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error { change(sb); return nil })
		wantErr(t, "an update that changes the "+what, err, hutch.ErrInternal)
	}
	if got := load(t, s, "i1"); got.Project != "p1" || !got.CreatedAt.Equal(day0) {
		t.Errorf("after refused updates: %+v", got)
	}
}

func panickingFn(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of fn did not reach the caller")
			}
		}()
		_, _ = s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
			sb.Hostname = "h9"
			panic("fn")
		}, event("i1", "updated"))
	}()
	if got := load(t, s, "i1"); got.Hostname != "" {
		t.Errorf("a panicking fn wrote %+v", got)
	}
	create(t, s, sandbox("i2"))
	wantTypes(t, s, "")
}

// It has no reason to, but it must not hang either.
func reentrantFn(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	calls := 0
	_, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		if calls++; calls == 1 {
			if err := s.AppendEvents(t.Context(), event("i1", "from fn")); err != nil {
				return err
			}
		}
		_, err := s.Sandbox(t.Context(), "i1")
		return err
	})
	if err != nil {
		t.Errorf("UpdateSandbox: %v", err)
	}
}

func oneWinsTheEpoch(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	const n = 100
	errs := together(n, func(i int) error {
		_, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
			sb.Hostname = fmt.Sprintf("h%d", i)
			return sb.Begin(hutch.Starting)
		}, event("i1", fmt.Sprintf("begun by h%d", i)))
		return err
	})
	winner := ""
	for i, err := range errs {
		switch {
		case err == nil && winner != "":
			t.Errorf("h%d won as well as %s", i, winner)
		case err == nil:
			winner = fmt.Sprintf("h%d", i)
		default:
			wantErr(t, "UpdateSandbox of a loser", err, hutch.ErrStale)
		}
	}
	if winner == "" {
		t.Fatal("nobody won")
	}
	if got := load(t, s, "i1"); got.Hostname != winner || got.Epoch != 2 {
		t.Errorf("stored: %s at epoch %d; want %s at 2", got.Hostname, got.Epoch, winner)
	}
	wantTypes(t, s, "i1", "begun by "+winner)
}

func noLostUpdate(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	const n = 30
	for _, err := range together(n, func(i int) error {
		_, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
			sb.Resources.Pids++
			return nil
		}, event("i1", "counted"))
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	if got := load(t, s, "i1").Resources.Pids; got != n {
		t.Errorf("%d updates counted %d", n, got)
	}
	if got := len(types(t, s, "i1")); got != n {
		t.Errorf("%d updates left %d events", n, got)
	}
}

func updateEvents(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"), event("i1", "a"), event("i1", "b"))
	if _, err := s.UpdateSandbox(t.Context(), "i1", 1, func(*hutch.Sandbox) error { return nil }, event("i1", "c"), event("i1", "d")); err != nil {
		t.Fatal(err)
	}
	putExec(t, s, hutch.Exec{ID: "e1", Sandbox: "i1"}, event("i1", "e"))
	wantTypes(t, s, "i1", "a", "b", "c", "d", "e")
}

// dead is a sandbox that ended at t.
func dead(id hutch.SandboxID, ended time.Time) hutch.Sandbox {
	sb := sandbox(id)
	sb.State, sb.EndReason, sb.EndedAt = hutch.StateDead, hutch.EndKilled, ended
	return sb
}

func purgeSandboxes(t *testing.T, s store.Store) {
	create(t, s, sandbox("alive"))
	running := sandbox("running")
	running.State, running.EndedAt = hutch.StateRunning, day0.Add(-time.Hour) // EndedAt alone does not make it dead
	create(t, s, running)
	create(t, s, dead("before", day0.Add(-1)))
	create(t, s, dead("at", day0))
	create(t, s, dead("after", day0.Add(1)))

	n, err := s.PurgeSandboxes(t.Context(), day0)
	if err != nil || n != 1 {
		t.Errorf("PurgeSandboxes: got %d, %v; want 1", n, err)
	}
	_, err = s.Sandbox(t.Context(), "before")
	wantErr(t, "a sandbox that ended before", err, hutch.ErrNotFound)
	for _, id := range []hutch.SandboxID{"alive", "running", "at", "after"} {
		load(t, s, id)
	}
	if n, err := s.PurgeSandboxes(t.Context(), day0); err != nil || n != 0 {
		t.Errorf("PurgeSandboxes again: got %d, %v; want 0", n, err)
	}
}

func purgeTakesAll(t *testing.T, s store.Store) {
	old, kept := dead("old", day0), sandbox("kept")
	old.Metadata, kept.Metadata = map[string]string{"k": "v"}, map[string]string{"k": "v"}
	late := event("old", "after the time of the purge")
	late.At = day0.AddDate(1, 0, 0)
	create(t, s, old, event("old", "made"), late)
	create(t, s, kept, event("kept", "made"))
	for _, id := range []hutch.SandboxID{"old", "kept"} {
		putExec(t, s, hutch.Exec{ID: hutch.ExecID("e-" + id), Sandbox: id}, event(id, "exec"))
	}
	if n, err := s.PurgeSandboxes(t.Context(), day0.Add(1)); err != nil || n != 1 {
		t.Fatalf("PurgeSandboxes: got %d, %v; want 1", n, err)
	}
	_, err := s.Exec(t.Context(), "e-old")
	wantErr(t, "a command of a purged sandbox", err, hutch.ErrNotFound)
	wantTypes(t, s, "old")
	if _, err := s.Exec(t.Context(), "e-kept"); err != nil {
		t.Errorf("a command of a sandbox that is kept: %v", err)
	}
	wantTypes(t, s, "kept", "made", "exec")
	list, _, err := s.Sandboxes(t.Context(), store.SandboxFilter{Metadata: map[string]string{"k": "v"}}, store.Page{})
	if err != nil || len(list) != 1 || list[0].ID != "kept" {
		t.Errorf("by metadata after a purge: %+v, %v; want the kept one", list, err)
	}
}

func purgeOrphans(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	late := event("gone", "late")
	late.At = day0.Add(time.Hour)
	none := event("", "key.created")
	if err := s.AppendEvents(t.Context(), event("gone", "early"), late, none, event("i1", "made")); err != nil {
		t.Fatal(err)
	}
	if n, err := s.PurgeSandboxes(t.Context(), day0.Add(time.Minute)); err != nil || n != 0 {
		t.Errorf("PurgeSandboxes: got %d, %v; want 0 sandboxes", n, err)
	}
	wantTypes(t, s, "", "late", "key.created", "made")
}

func largePurge(t *testing.T, s store.Store) {
	const n = 230
	for _, err := range together(n, func(i int) error {
		id := hutch.SandboxID(fmt.Sprintf("i%d", i))
		return s.CreateSandbox(t.Context(), dead(id, day0.Add(time.Duration(i%7))), event(id, "made"))
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	create(t, s, sandbox("alive"), event("alive", "made"))
	if got, err := s.PurgeSandboxes(t.Context(), day0.Add(time.Hour)); err != nil || got != n {
		t.Errorf("PurgeSandboxes: got %d, %v; want %d", got, err, n)
	}
	wantTypes(t, s, "", "made")
}

func purgedIDIsFree(t *testing.T, s store.Store) {
	create(t, s, dead("i1", day0))
	if _, err := s.PurgeSandboxes(t.Context(), day0.Add(1)); err != nil {
		t.Fatal(err)
	}
	create(t, s, sandbox("i1"))
}

func changesAreCounted(t *testing.T, s store.Store) {
	last := s.SandboxChanges()
	grows := func(what string, want bool) {
		t.Helper()
		now := s.SandboxChanges()
		if now < last || (now > last) != want {
			t.Errorf("%s: %d changes, before %d; want more: %t", what, now, last, want)
		}
		last = now
	}
	create(t, s, hutch.Sandbox{ID: "i1"})
	grows("a create", true)
	load(t, s, "i1")
	if _, _, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{}); err != nil {
		t.Fatal(err)
	}
	grows("reads", false)
	var during uint64
	if _, err := s.UpdateSandbox(t.Context(), "i1", 0, func(sb *hutch.Sandbox) error {
		during, sb.State, sb.EndedAt = s.SandboxChanges(), hutch.StateDead, time.Unix(1, 0)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if s.SandboxChanges() < during+2 {
		t.Errorf("an update is counted %d times, not before it is seen and after", s.SandboxChanges()-during)
	}
	grows("an update", true)
	for _, n := range []int{1, 0} {
		if got, err := s.PurgeSandboxes(t.Context(), time.Unix(2, 0)); err != nil || got != n {
			t.Fatalf("PurgeSandboxes: %d, %v; want %d", got, err, n)
		}
		grows("a purge", n > 0)
	}
}
