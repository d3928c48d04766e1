package storetest

import (
	"fmt"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var buildChecks = map[string]check{
	"every field of a build is kept":            buildRoundTrip,
	"builds come last stored first, and filter": buildsListed,
	"a missing build is not found":              missingBuild,
	"a build's log is read from any line":       buildLogLines,
	"a build's log grows under many writers":    buildLogConcurrent,
	"old builds go with their logs":             buildsPurged,
}

func putBuild(t *testing.T, s store.Store, b hutch.Build) {
	t.Helper()
	if err := s.PutBuild(t.Context(), b); err != nil {
		t.Fatalf("PutBuild %s: %v", b.ID, err)
	}
}

func buildRoundTrip(t *testing.T, s store.Store) {
	for _, want := range []hutch.Build{filled[hutch.Build](t), {ID: "zero"}} {
		for range 2 { // stored, and replaced
			putBuild(t, s, want)
			got, err := s.Build(t.Context(), want.ID)
			if err != nil {
				t.Fatalf("Build: %v", err)
			}
			wantEqual(t, "the record", got, want)
			want.Status, want.Error = hutch.BuildFailed, "it did not work"
		}
	}
}

func buildsListed(t *testing.T, s store.Store) {
	for _, b := range []hutch.Build{
		{ID: "b1", Project: "p1", Status: hutch.BuildDone},
		{ID: "b2", Project: "p2", Status: hutch.BuildQueued},
		{ID: "b3", Project: "p1", Status: hutch.BuildRunning},
		{ID: "b4", Project: "p1", Status: hutch.BuildFailed},
	} {
		putBuild(t, s, b)
	}
	putBuild(t, s, hutch.Build{ID: "b1", Project: "p1", Status: hutch.BuildDone, Step: "again"}) // keeps its place
	for _, c := range []struct {
		f    store.BuildFilter
		want []string
	}{
		{store.BuildFilter{}, []string{"b4", "b3", "b2", "b1"}},
		{store.BuildFilter{Project: "p1"}, []string{"b4", "b3", "b1"}},
		{store.BuildFilter{Open: true}, []string{"b3", "b2"}},
		{store.BuildFilter{Project: "p2", Open: true}, []string{"b2"}},
		{store.BuildFilter{Limit: 1}, []string{"b4"}},
		{store.BuildFilter{Project: "none"}, nil},
	} {
		list, err := s.Builds(t.Context(), c.f)
		if err != nil {
			t.Fatalf("Builds: %v", err)
		}
		var got []string
		for _, b := range list {
			got = append(got, b.ID)
		}
		wantEqual(t, fmt.Sprintf("builds of %+v", c.f), got, c.want)
	}
}

func missingBuild(t *testing.T, s store.Store) {
	_, err := s.Build(t.Context(), "none")
	wantErr(t, "Build", err, hutch.ErrNotFound)
	wantErr(t, "AppendBuildLog", s.AppendBuildLog(t.Context(), "none", hutch.LogLine{Text: "x"}), hutch.ErrNotFound)
	if l, err := s.BuildLog(t.Context(), "none", 0, 0); err != nil || len(l) != 0 {
		t.Errorf("BuildLog: %d lines, %v; want none", len(l), err)
	}
}

func logLine(i int) hutch.LogLine {
	return hutch.LogLine{At: day0.UTC().Add(time.Duration(i)), Text: fmt.Sprintf("line %d %s", i, hostileText["unicode"])}
}

func buildLogLines(t *testing.T, s store.Store) {
	putBuild(t, s, hutch.Build{ID: "b1"})
	putBuild(t, s, hutch.Build{ID: "b2"})
	const n = 250
	for i := 0; i < n; i += 50 {
		var lines []hutch.LogLine
		for j := range 50 {
			lines = append(lines, logLine(i+j))
		}
		if err := s.AppendBuildLog(t.Context(), "b1", lines...); err != nil {
			t.Fatalf("AppendBuildLog: %v", err)
		}
		if err := s.AppendBuildLog(t.Context(), "b2", hutch.LogLine{Text: "another's"}); err != nil {
			t.Fatalf("AppendBuildLog: %v", err)
		}
	}
	if err := s.AppendBuildLog(t.Context(), "b1"); err != nil {
		t.Errorf("AppendBuildLog of nothing: %v", err)
	}
	for _, c := range []struct{ from, limit, first, count int }{
		{0, 0, 0, 100}, {0, 5, 0, 5}, {7, 3, 7, 3}, {n - 2, 10, n - 2, 2}, {n, 10, 0, 0}, {0, 5000, 0, n},
	} {
		l, err := s.BuildLog(t.Context(), "b1", c.from, c.limit)
		if err != nil || len(l) != c.count {
			t.Fatalf("BuildLog(%d, %d): %d lines, %v; want %d", c.from, c.limit, len(l), err, c.count)
		}
		for i := range l {
			wantEqual(t, "a line", l[i], logLine(c.first+i))
		}
	}
}

func buildLogConcurrent(t *testing.T, s store.Store) {
	putBuild(t, s, hutch.Build{ID: "b1"})
	for _, err := range together(50, func(i int) error {
		return s.AppendBuildLog(t.Context(), "b1", logLine(2*i), logLine(2*i+1))
	}) {
		if err != nil {
			t.Fatalf("AppendBuildLog: %v", err)
		}
	}
	l, err := s.BuildLog(t.Context(), "b1", 0, 1000)
	if err != nil || len(l) != 100 {
		t.Fatalf("BuildLog: %d lines, %v; want 100", len(l), err)
	}
	for i := 0; i < len(l); i += 2 { // the lines of one call stay together
		if l[i+1].At.Sub(l[i].At) != 1 {
			t.Errorf("lines %d and %d are of two calls: %q, %q", i, i+1, l[i].Text, l[i+1].Text)
		}
	}
}

func buildsPurged(t *testing.T, s store.Store) {
	for i := range 12 {
		b := hutch.Build{ID: fmt.Sprintf("old%d", i), Status: hutch.BuildDone, EndedAt: day0.Add(-time.Hour)}
		putBuild(t, s, b)
		if err := s.AppendBuildLog(t.Context(), b.ID, logLine(i)); err != nil {
			t.Fatal(err)
		}
	}
	putBuild(t, s, hutch.Build{ID: "new", Status: hutch.BuildDone, EndedAt: day0.Add(time.Hour)})
	putBuild(t, s, hutch.Build{ID: "runs", Status: hutch.BuildRunning})
	n, err := s.PurgeBuilds(t.Context(), day0)
	if err != nil || n != 12 {
		t.Fatalf("PurgeBuilds: %d, %v; want 12", n, err)
	}
	if list, err := s.Builds(t.Context(), store.BuildFilter{}); err != nil || len(list) != 2 {
		t.Errorf("%d builds are left, %v; want 2", len(list), err)
	}
	if l, err := s.BuildLog(t.Context(), "old0", 0, 0); err != nil || len(l) != 0 {
		t.Errorf("%d lines of a build that went are left, %v", len(l), err)
	}
}
