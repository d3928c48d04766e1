package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// storeChecks are of what holds for every call.
var storeChecks = map[string]check{
	"calls after close are unavailable":        closedIsUnavailable,
	"closing twice does nothing":               closeTwice,
	"close makes the writes already accepted":  closeDuringWrites,
	"an ended context writes nothing":          endedContextWritesNothing,
	"a cancelled write was made or was not":    cancelledWriteIsClear,
	"what is passed in and out is not shared":  nothingIsShared,
	"a write that fails spoils no other":       failureIsAlone,
	"a write is seen by whoever it returns to": readYourWrites,
}

// calls is one call of each method, which all would do something on an open store.
func calls(s store.Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"CreateSandbox": func(ctx context.Context) error { return s.CreateSandbox(ctx, sandbox("i-new"), event("i-new", "made")) },
		"Sandbox":       func(ctx context.Context) error { _, err := s.Sandbox(ctx, "i1"); return err },
		"Sandboxes": func(ctx context.Context) error {
			_, _, err := s.Sandboxes(ctx, store.SandboxFilter{}, store.Page{})
			return err
		},
		"UpdateSandbox": func(ctx context.Context) error {
			_, err := s.UpdateSandbox(ctx, "i1", 1, func(sb *hutch.Sandbox) error { sb.EndDetail = "changed"; return nil }, event("i1", "updated"))
			return err
		},
		"PurgeSandboxes": func(ctx context.Context) error { _, err := s.PurgeSandboxes(ctx, day0); return err },
		"PutExec":        func(ctx context.Context) error { return s.PutExec(ctx, hutch.Exec{ID: "e-new", Sandbox: "i1"}) },
		"Exec":           func(ctx context.Context) error { _, err := s.Exec(ctx, "e1"); return err },
		"ExecsOf": func(ctx context.Context) error {
			_, _, err := s.ExecsOf(ctx, store.ExecFilter{Sandbox: "i1"}, store.Page{})
			return err
		},
		"TrimOutput":     func(ctx context.Context) error { _, err := s.TrimOutput(ctx, "i1", 0); return err },
		"PutTemplate":    func(ctx context.Context) error { return s.PutTemplate(ctx, hutch.Template{Name: "t-new"}) },
		"Template":       func(ctx context.Context) error { _, err := s.Template(ctx, "t1"); return err },
		"Templates":      func(ctx context.Context) error { _, err := s.Templates(ctx); return err },
		"DeleteTemplate": func(ctx context.Context) error { return s.DeleteTemplate(ctx, "t1") },
		"PutBuild":       func(ctx context.Context) error { return s.PutBuild(ctx, hutch.Build{ID: "b-new"}) },
		"Build":          func(ctx context.Context) error { _, err := s.Build(ctx, "b1"); return err },
		"Builds":         func(ctx context.Context) error { _, err := s.Builds(ctx, store.BuildFilter{}); return err },
		"PurgeBuilds":    func(ctx context.Context) error { _, err := s.PurgeBuilds(ctx, day0); return err },
		"AppendBuildLog": func(ctx context.Context) error { return s.AppendBuildLog(ctx, "b1", hutch.LogLine{Text: "said"}) },
		"BuildLog":       func(ctx context.Context) error { _, err := s.BuildLog(ctx, "b1", 0, 0); return err },
		"AppendAudit":    func(ctx context.Context) error { return s.AppendAudit(ctx, hutch.AuditEntry{}) },
		"AuditEntries":   func(ctx context.Context) error { _, err := s.AuditEntries(ctx, store.AuditFilter{}); return err },
		"PurgeAudit":     func(ctx context.Context) error { _, err := s.PurgeAudit(ctx, day0); return err },
		"KeepSetting":    func(ctx context.Context) error { _, err := s.KeepSetting(ctx, "s1", []byte("v")); return err },
		"CreateKey":      func(ctx context.Context) error { return s.CreateKey(ctx, key("99999999")) },
		"Key":            func(ctx context.Context) error { _, err := s.Key(ctx, "00000001"); return err },
		"Keys":           func(ctx context.Context) error { _, err := s.Keys(ctx); return err },
		"RevokeKey":      func(ctx context.Context) error { return s.RevokeKey(ctx, "00000001", day0) },
		"AppendEvents":   func(ctx context.Context) error { return s.AppendEvents(ctx, event("i1", "said")) },
		"Events":         func(ctx context.Context) error { _, err := s.Events(ctx, store.EventFilter{}); return err },
		"BeginCall":      func(ctx context.Context) error { _, _, err := s.BeginCall(ctx, call("k-new")); return err },
		"FinishCall": func(ctx context.Context) error {
			c := call("k1")
			c.Status = 200
			return s.FinishCall(ctx, c)
		},
		"ForgetCall": func(ctx context.Context) error { return s.ForgetCall(ctx, "p1", "k1") },
		"PurgeCalls": func(ctx context.Context) error { _, err := s.PurgeCalls(ctx, day0.AddDate(1, 0, 0)); return err },
	}
}

// oneOfEach stores what the calls above are about.
func oneOfEach(t *testing.T, s store.Store) {
	t.Helper()
	create(t, s, sandbox("i1"))
	putExec(t, s, hutch.Exec{ID: "e1", Sandbox: "i1"})
	if err := s.PutTemplate(t.Context(), hutch.Template{Name: "t1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateKey(t.Context(), key("00000001")); err != nil {
		t.Fatal(err)
	}
	putBuild(t, s, hutch.Build{ID: "b1"})
	if _, _, err := s.BeginCall(t.Context(), call("k1")); err != nil {
		t.Fatal(err)
	}
}

func closedIsUnavailable(t *testing.T, s store.Store) {
	oneOfEach(t, s)
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	for name, f := range calls(s) {
		wantErr(t, name+" after Close", f(t.Context()), hutch.ErrUnavailable)
	}
}

func closeTwice(t *testing.T, s store.Store) {
	for _, err := range together(4, func(int) error { return s.Close() }) {
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// The contract of Close is tested further by RunDurable, which can look afterwards.
func closeDuringWrites(t *testing.T, s store.Store) {
	errs := together(40, func(i int) error {
		if i == 20 {
			return s.Close()
		}
		return s.CreateSandbox(context.Background(), sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i))))
	})
	for _, err := range errs {
		if err != nil && !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("a write beside Close: got %v, want nil or ErrUnavailable", err)
		}
	}
}

func endedContextWritesNothing(t *testing.T, s store.Store) {
	oneOfEach(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range calls(s) {
		if err := f(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s under a cancelled context: got %v, want context.Canceled", name, err)
		}
	}
	if _, err := s.Sandbox(t.Context(), "i-new"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("CreateSandbox under a cancelled context: Sandbox gives %v, want ErrNotFound", err)
	}
	if sb := load(t, s, "i1"); sb.EndDetail != "" {
		t.Errorf("UpdateSandbox under a cancelled context wrote %q", sb.EndDetail)
	}
	if k, err := s.Key(t.Context(), "00000001"); err != nil || !k.RevokedAt.IsZero() {
		t.Errorf("RevokeKey under a cancelled context: got %+v, %v", k, err)
	}
	wantTypes(t, s, "")
}

// Callers that leave at a random moment: whoever got nil finds the record, whoever got
// an error does not.
func cancelledWriteIsClear(t *testing.T, s store.Store) {
	const n = 200
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	id := func(i int) hutch.SandboxID { return hutch.SandboxID(fmt.Sprintf("i%03d", i)) }
	errs := together(n, func(i int) error {
		if i == n/2 {
			cancel()
		}
		return s.CreateSandbox(ctx, sandbox(id(i)), event(id(i), "made"))
	})
	for i, err := range errs {
		_, found := s.Sandbox(t.Context(), id(i))
		switch {
		case err == nil && found != nil:
			t.Errorf("%s: the write returned nil, the read %v", id(i), found)
		case err != nil && !errors.Is(err, context.Canceled):
			t.Errorf("%s: got %v, want nil or context.Canceled", id(i), err)
		case err != nil && !errors.Is(found, hutch.ErrNotFound):
			t.Errorf("%s: the write returned %v, but was made", id(i), err)
		}
	}
}

func nothingIsShared(t *testing.T, s store.Store) {
	in := sandbox("i1")
	in.Metadata = map[string]string{"k": "v"}
	in.Env = map[string]string{"E": "v"}
	create(t, s, in)
	in.Metadata["k"], in.Env["E"] = "changed after", "changed after"

	out := load(t, s, "i1")
	out.Metadata["k"] = "changed in a copy"

	var kept map[string]string
	up, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		kept = sb.Metadata
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	kept["k"] = "changed after the update"
	if up.Metadata["k"] != "v" {
		t.Errorf("the record that UpdateSandbox returned shares a map with fn's: %q", up.Metadata)
	}
	if got := load(t, s, "i1"); got.Metadata["k"] != "v" || got.Env["E"] != "v" {
		t.Errorf("the stored record changed with a caller's map: %q, %q", got.Metadata, got.Env)
	}
}

// Half of many writes at once must fail; each other one is made, with its event.
func failureIsAlone(t *testing.T, s store.Store) {
	create(t, s, sandbox("taken"))
	const n = 100
	errs := together(n, func(i int) error {
		if i%2 == 0 {
			return s.CreateSandbox(t.Context(), sandbox("taken"), event("taken", "made again"))
		}
		id := hutch.SandboxID(fmt.Sprintf("i%d", i))
		return s.CreateSandbox(t.Context(), sandbox(id), event(id, "made"))
	})
	for i, err := range errs {
		if i%2 == 0 {
			wantErr(t, "CreateSandbox with a taken id", err, hutch.ErrConflict)
			continue
		}
		if err != nil {
			t.Errorf("a write beside failing ones: %v", err)
		}
		id := hutch.SandboxID(fmt.Sprintf("i%d", i))
		load(t, s, id)
		wantTypes(t, s, id, "made")
	}
	wantTypes(t, s, "taken")
}

func readYourWrites(t *testing.T, s store.Store) {
	for _, err := range together(50, func(i int) error {
		id := hutch.SandboxID(fmt.Sprintf("i%d", i))
		if err := s.CreateSandbox(t.Context(), sandbox(id)); err != nil {
			return err
		}
		_, err := s.Sandbox(t.Context(), id)
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}
