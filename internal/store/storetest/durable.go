package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// RunDurable checks that what a store was given outlives it. open opens the store whose
// records are kept in dir, making it if there is none.
func RunDurable(t *testing.T, open func(t *testing.T, dir string) store.Store) {
	for name, check := range map[string]func(*testing.T, func() store.Store){
		"all that was stored is there after a reopening": reopenSeesAll,
		"numbers and cursors go on after a reopening":    reopenGoesOn,
		"writes that beat a close are there":             closeKeepsWrites,
		"random operations match a model":                matchesModel,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			check(t, func() store.Store { return open(t, dir) })
		})
	}
}

func closeStore(t *testing.T, s store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func reopenSeesAll(t *testing.T, open func() store.Store) {
	s := open()
	sb := filled[hutch.Sandbox](t)
	create(t, s, sb, event(sb.ID, "made"))
	e := ended("e1", 3)
	e.Sandbox = sb.ID
	putExec(t, s, e)
	tpl, k, c := filled[hutch.Template](t), key("00000001"), filled[store.IdempotentCall](t)
	putTemplate(t, s, tpl)
	createKey(t, s, k)
	begin(t, s, c)
	b := filled[hutch.Build](t)
	putBuild(t, s, b)
	if err := s.AppendBuildLog(t.Context(), b.ID, logLine(1)); err != nil {
		t.Fatal(err)
	}
	appendAudit(t, s, hutch.AuditEntry{Method: "POST"})
	if _, err := s.KeepSetting(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	u := filled[hutch.Usage](t)
	appendUsage(t, s, u)
	closeStore(t, s)

	s = open()
	defer closeStore(t, s)
	wantEqual(t, "the sandbox", load(t, s, sb.ID), sb)
	wantEqual(t, "the command", loadExec(t, s, "e1"), e)
	wantEqual(t, "the key", loadKey(t, s, "00000001"), k)
	wantTypes(t, s, sb.ID, "made")
	if got, err := s.Build(t.Context(), b.ID); err != nil {
		t.Error(err)
	} else {
		wantEqual(t, "the build", got, b)
	}
	if l, err := s.BuildLog(t.Context(), b.ID, 0, 0); err != nil || len(l) != 1 || l[0] != logLine(1) {
		t.Errorf("the build's log: %+v, %v", l, err)
	}
	if l := audited(t, s, store.AuditFilter{}); len(l) != 1 || l[0].Method != "POST" {
		t.Errorf("the audited calls: %+v", l)
	}
	if v, err := s.KeepSetting(t.Context(), "k", []byte("other")); err != nil || string(v) != "v" {
		t.Errorf("the setting: %q, %v", v, err)
	}
	wantEqual(t, "the usage", used(t, s, store.UsageFilter{}, 0), []hutch.Usage{u})
	if got, err := s.Template(t.Context(), tpl.Name); err != nil {
		t.Error(err)
	} else {
		wantEqual(t, "the template", got, tpl)
	}
	if got, existed := begin(t, s, c); !existed {
		t.Error("the call is gone")
	} else {
		wantEqual(t, "the call", got, c)
	}
}

func reopenGoesOn(t *testing.T, open func() store.Store) {
	s := open()
	create(t, s, sandbox("i1"), event("i1", "made"))
	create(t, s, sandbox("i2"))
	_, cursor, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	seen := events(t, s, store.EventFilter{})[0].Seq
	closeStore(t, s)

	s = open()
	defer closeStore(t, s)
	create(t, s, sandbox("i3"), event("i3", "made"))
	list, _, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Cursor: cursor})
	if err != nil || len(list) != 1 || list[0].ID != "i1" {
		t.Errorf("a cursor from before: %+v, %v; want i1", list, err)
	}
	wantIDs(t, "all", ids(t, s, store.SandboxFilter{}, 0, nil), "i3", "i2", "i1")
	if got := events(t, s, store.EventFilter{After: seen}); len(got) != 1 || got[0].Type != "made" || got[0].Sandbox != "i3" {
		t.Errorf("events after %d: %+v; want the new one", seen, got)
	}
}

func closeKeepsWrites(t *testing.T, open func() store.Store) {
	s := open()
	const n = 100
	id := func(i int) hutch.SandboxID { return hutch.SandboxID(fmt.Sprintf("i%d", i)) }
	errs := together(n, func(i int) error {
		if i == n/2 {
			return s.Close()
		}
		return s.CreateSandbox(context.Background(), sandbox(id(i)))
	})
	s = open()
	defer closeStore(t, s)
	for i, err := range errs {
		if i == n/2 {
			continue
		}
		_, found := s.Sandbox(t.Context(), id(i))
		if (err == nil) != (found == nil) {
			t.Errorf("%s: the write returned %v, and after reopening the read %v", id(i), err, found)
		}
		if err != nil && !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("%s: got %v, want nil or ErrUnavailable", id(i), err)
		}
	}
}
