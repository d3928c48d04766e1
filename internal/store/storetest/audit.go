package storetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var auditChecks = map[string]check{
	"every field of an audit entry is kept":            auditRoundTrip,
	"audit entries come last stored first, and filter": auditListed,
	"old audit entries go":                             auditPurged,
	"a setting is chosen once":                         settingKept,
}

func appendAudit(t *testing.T, s store.Store, entries ...hutch.AuditEntry) {
	t.Helper()
	if err := s.AppendAudit(t.Context(), entries...); err != nil {
		t.Fatalf("AppendAudit: %v", err)
	}
}

func audited(t *testing.T, s store.Store, f store.AuditFilter) []hutch.AuditEntry {
	t.Helper()
	l, err := s.AuditEntries(t.Context(), f)
	if err != nil {
		t.Fatalf("AuditEntries: %v", err)
	}
	return l
}

func auditRoundTrip(t *testing.T, s store.Store) {
	want := filled[hutch.AuditEntry](t)
	appendAudit(t, s)
	appendAudit(t, s, want, hutch.AuditEntry{})
	got := audited(t, s, store.AuditFilter{})
	if len(got) != 2 || got[0].ID <= got[1].ID {
		t.Fatalf("got %+v, want two, the last first", got)
	}
	want.ID = got[1].ID // given by the store, whatever the caller says
	wantEqual(t, "the entry", got[1], want)
	wantEqual(t, "a zero entry", got[0], hutch.AuditEntry{ID: got[0].ID})
}

func auditListed(t *testing.T, s store.Store) {
	for i := range 150 {
		p := hutch.ProjectID("p1")
		if i%3 == 0 {
			p = "p2"
		}
		appendAudit(t, s, hutch.AuditEntry{At: day0.Add(time.Duration(i) * time.Second), Project: p, Status: i})
	}
	for _, c := range []struct {
		f            store.AuditFilter
		count, first int
	}{
		{store.AuditFilter{}, 100, 149},
		{store.AuditFilter{Limit: 1000}, 150, 149},
		{store.AuditFilter{Project: "p2", Limit: 1000}, 50, 147},
		{store.AuditFilter{Project: "p1", Since: day0.Add(140 * time.Second)}, 7, 149},
		{store.AuditFilter{Limit: 2}, 2, 149},
		{store.AuditFilter{Project: "p3"}, 0, 0},
	} {
		l := audited(t, s, c.f)
		if len(l) != c.count || (c.count > 0 && l[0].Status != c.first) {
			t.Errorf("%+v: %d entries, %+v first; want %d, the call %d first", c.f, len(l), l[:min(1, len(l))], c.count, c.first)
		}
	}
}

func auditPurged(t *testing.T, s store.Store) {
	appendAudit(t, s, hutch.AuditEntry{At: day0.Add(-1)}, hutch.AuditEntry{At: day0, Status: 1})
	if n, err := s.PurgeAudit(t.Context(), day0); err != nil || n != 1 {
		t.Errorf("PurgeAudit: %d, %v; want 1", n, err)
	}
	if l := audited(t, s, store.AuditFilter{}); len(l) != 1 || l[0].Status != 1 {
		t.Errorf("left: %+v; want the one of that moment", l)
	}
}

func settingKept(t *testing.T, s store.Store) {
	got := make([][]byte, 30)
	for _, err := range together(len(got), func(i int) (err error) {
		got[i], err = s.KeepSetting(t.Context(), "k", fmt.Appendf(nil, "value %d", i))
		return err
	}) {
		if err != nil {
			t.Fatalf("KeepSetting: %v", err)
		}
	}
	for _, v := range got {
		if len(v) == 0 || !bytes.Equal(v, got[0]) {
			t.Errorf("one was told %q, another %q", got[0], v)
		}
	}
	if v, err := s.KeepSetting(t.Context(), "other", []byte{0, 255}); err != nil || !bytes.Equal(v, []byte{0, 255}) {
		t.Errorf("another setting: %q, %v", v, err)
	}
}
