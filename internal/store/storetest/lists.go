package storetest

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var listChecks = map[string]check{
	"a listing of nothing is empty":                emptyLists,
	"sandboxes come last stored first":             listOrder,
	"filters choose, and together":                 listFilters,
	"a filter follows an update":                   filterFollowsUpdate,
	"a page has a default size and a largest":      pageSizes,
	"a listing of any page size is the whole":      pagesMakeTheWhole,
	"paging holds while records come and go":       pagingIsStable,
	"paging holds when the cursor's record goes":   cursorOutlivesItsRecord,
	"a cursor that is not from here is refused":    badCursors,
	"a cursor of one listing is no cursor of all":  crossedCursors,
	"sandboxes come first stored first on request": oldestFirst,
	"a listing begins at a time of creation":       listSince,
}

func emptyLists(t *testing.T, s store.Store) {
	list, next, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{})
	if err != nil || len(list) != 0 || next != "" {
		t.Errorf("Sandboxes: %d records, cursor %q, %v; want nothing", len(list), next, err)
	}
	execs, next, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i-none"}, store.Page{})
	if err != nil || len(execs) != 0 || next != "" {
		t.Errorf("ExecsOf: %d records, cursor %q, %v; want nothing", len(execs), next, err)
	}
}

// ids lists by pages of limit, calling between after each page.
func ids(t *testing.T, s store.Store, f store.SandboxFilter, limit int, between func(page []hutch.SandboxID)) []hutch.SandboxID {
	t.Helper()
	var all []hutch.SandboxID
	p := store.Page{Limit: limit}
	for range 1000 {
		list, next, err := s.Sandboxes(t.Context(), f, p)
		if err != nil {
			t.Fatalf("Sandboxes: %v", err)
		}
		if limit > 0 && len(list) > limit {
			t.Fatalf("a page of at most %d has %d", limit, len(list))
		}
		var page []hutch.SandboxID
		for _, sb := range list {
			page = append(page, sb.ID)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		if between != nil {
			between(page)
		}
		p.Cursor = next
	}
	t.Fatal("the listing does not end")
	return nil
}

func wantIDs(t *testing.T, what string, got []hutch.SandboxID, want ...hutch.SandboxID) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func listOrder(t *testing.T, s store.Store) {
	// Equal and decreasing times of creation: clocks do both.
	for i, at := range []time.Duration{0, 0, -time.Hour, time.Hour} {
		sb := sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i)))
		sb.CreatedAt = day0.Add(at)
		create(t, s, sb)
	}
	wantIDs(t, "all", ids(t, s, store.SandboxFilter{}, 0, nil), "i3", "i2", "i1", "i0")
}

func listFilters(t *testing.T, s store.Store) {
	for i, sb := range []hutch.Sandbox{
		{Project: "p1", State: hutch.StateRunning, Template: "base", Metadata: map[string]string{"team": "red", "job": "7"}},
		{Project: "p1", State: hutch.StatePaused, Template: "base", Metadata: map[string]string{"team": "red"}},
		{Project: "p1", State: hutch.StateDead, Template: "python", Metadata: map[string]string{"job": "7"}},
		{Project: "p2", State: hutch.StateRunning, Template: "python", Metadata: map[string]string{"team": "red", "job": "8"}},
		{Project: "p2", State: hutch.StateNew, Template: "base", Metadata: map[string]string{"7": "job"}},
	} {
		sb.ID = hutch.SandboxID(fmt.Sprintf("i%d", i))
		create(t, s, sb)
	}
	type f = store.SandboxFilter
	for _, c := range []struct {
		filter store.SandboxFilter
		want   string
	}{
		{f{}, "i4 i3 i2 i1 i0"},
		{f{Project: "p1"}, "i2 i1 i0"},
		{f{Project: "none"}, ""},
		{f{States: []hutch.State{hutch.StateRunning}}, "i3 i0"},
		{f{States: []hutch.State{hutch.StateRunning, hutch.StatePaused, hutch.StateNew}}, "i4 i3 i1 i0"},
		{f{States: []hutch.State{}}, "i4 i3 i2 i1 i0"},
		{f{Template: "python"}, "i3 i2"},
		{f{Metadata: map[string]string{"team": "red"}}, "i3 i1 i0"},
		{f{Metadata: map[string]string{"team": "red", "job": "7"}}, "i0"},
		{f{Metadata: map[string]string{"team": ""}}, ""},
		{f{Metadata: map[string]string{"TEAM": "red"}}, ""},
		{f{Metadata: map[string]string{"job": "07"}}, ""},
		{f{Metadata: map[string]string{}}, "i4 i3 i2 i1 i0"},
		{f{Project: "p2", States: []hutch.State{hutch.StateRunning}, Template: "python", Metadata: map[string]string{"job": "8"}}, "i3"},
		{f{Project: "p1", States: []hutch.State{hutch.StateRunning}, Template: "python"}, ""},
	} {
		for _, limit := range []int{0, 1, 2} {
			var got []string
			for _, id := range ids(t, s, c.filter, limit, nil) {
				got = append(got, string(id))
			}
			if g := strings.Join(got, " "); g != c.want {
				t.Errorf("%+v by pages of %d: got %q, want %q", c.filter, limit, g, c.want)
			}
		}
	}
}

func filterFollowsUpdate(t *testing.T, s store.Store) {
	sb := sandbox("i1")
	sb.Metadata = map[string]string{"old": "1", "both": "1"}
	create(t, s, sb)
	if _, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		delete(sb.Metadata, "old")
		sb.Metadata["both"] = "2"
		sb.Metadata["new"] = "1"
		sb.State = hutch.StateRunning
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pair  [2]string
		found bool
	}{
		{[2]string{"old", "1"}, false},
		{[2]string{"both", "1"}, false},
		{[2]string{"both", "2"}, true},
		{[2]string{"new", "1"}, true},
	} {
		got := ids(t, s, store.SandboxFilter{Metadata: map[string]string{c.pair[0]: c.pair[1]}}, 0, nil)
		if (len(got) == 1) != c.found {
			t.Errorf("filter %q after the update: found %q, want found = %v", c.pair, got, c.found)
		}
	}
	wantIDs(t, "the new state", ids(t, s, store.SandboxFilter{States: []hutch.State{hutch.StateRunning}}, 0, nil), "i1")
	wantIDs(t, "the old state", ids(t, s, store.SandboxFilter{States: []hutch.State{hutch.StateNew}}, 0, nil))
}

func pageSizes(t *testing.T, s store.Store) {
	for _, err := range together(1001, func(i int) error {
		return s.CreateSandbox(t.Context(), sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i))))
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int]int{0: 100, 1: 1, 1000: 1000, 1001: 1000, 1 << 30: 1000, -1: 100} {
		list, next, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Limit: limit})
		if err != nil || len(list) != want || next == "" {
			t.Errorf("Limit %d: %d records, cursor %q, %v; want %d and a cursor", limit, len(list), next, err, want)
		}
	}
}

func pagesMakeTheWhole(t *testing.T, s store.Store) {
	var want []hutch.SandboxID
	for i := range 12 {
		id := hutch.SandboxID(fmt.Sprintf("i%02d", i))
		create(t, s, sandbox(id))
		want = append([]hutch.SandboxID{id}, want...)
	}
	for limit := range 14 {
		wantIDs(t, fmt.Sprintf("by pages of %d", limit), ids(t, s, store.SandboxFilter{}, limit, nil), want...)
	}
}

// What is there from the first page to the last is listed once, whatever else happens.
func pagingIsStable(t *testing.T, s store.Store) {
	var constant []hutch.SandboxID
	for i := range 40 {
		if i%2 == 0 {
			create(t, s, dead(hutch.SandboxID(fmt.Sprintf("going%02d", i)), day0.Add(time.Duration(40-i))))
			continue
		}
		id := hutch.SandboxID(fmt.Sprintf("i%02d", i))
		create(t, s, sandbox(id))
		constant = append([]hutch.SandboxID{id}, constant...)
	}
	round := 0
	got := ids(t, s, store.SandboxFilter{}, 3, func([]hutch.SandboxID) {
		round++
		create(t, s, sandbox(hutch.SandboxID(fmt.Sprintf("coming%02d", round))))
		// The newest of the dead go first: those next to the cursor.
		if _, err := s.PurgeSandboxes(t.Context(), day0.Add(time.Duration(3*round))); err != nil {
			t.Fatal(err)
		}
		id := constant[round%len(constant)]
		if _, err := s.UpdateSandbox(t.Context(), id, 1, func(sb *hutch.Sandbox) error {
			sb.ActiveAt = day0.Add(time.Duration(round) * time.Hour)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	var listed []hutch.SandboxID
	for _, id := range got {
		switch {
		case strings.HasPrefix(string(id), "coming"):
			t.Errorf("%s came after the first page and is listed", id)
		case strings.HasPrefix(string(id), "i"):
			listed = append(listed, id)
		}
	}
	wantIDs(t, "what was there all along", listed, constant...)
}

func cursorOutlivesItsRecord(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	create(t, s, dead("i2", day0))
	create(t, s, sandbox("i3"))
	got := ids(t, s, store.SandboxFilter{}, 2, func(page []hutch.SandboxID) {
		wantIDs(t, "the first page", page, "i3", "i2")
		if n, err := s.PurgeSandboxes(t.Context(), day0.Add(1)); err != nil || n != 1 {
			t.Fatalf("PurgeSandboxes: %d, %v", n, err)
		}
	})
	wantIDs(t, "all", got, "i3", "i2", "i1")
}

func badCursors(t *testing.T, s store.Store) {
	for i := range 3 {
		create(t, s, sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i))))
	}
	_, good, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Limit: 1})
	if err != nil || good == "" {
		t.Fatalf("Sandboxes: cursor %q, %v", good, err)
	}
	bad := []string{
		"x", "1", "-1", "null", "\x00", " ", good + " ", " " + good, good + "\n", good + good, good[1:], good[:len(good)-1],
		strings.ToUpper(good), strings.Repeat("A", 1<<16), "' OR 1=1 --", "../..", "é",
		base64.StdEncoding.EncodeToString([]byte("1")), base64.RawURLEncoding.EncodeToString([]byte("created_at,id")),
	}
	for i := range good {
		for _, c := range []byte("A_z9") {
			if b := []byte(good); b[i] != c {
				b[i] = c
				bad = append(bad, string(b))
			}
		}
	}
	for _, c := range bad {
		if c == good {
			continue
		}
		list, next, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Cursor: c})
		wantErr(t, fmt.Sprintf("Sandboxes at cursor %.60q", c), err, hutch.ErrBadRequest)
		if len(list) != 0 || next != "" {
			t.Errorf("a refused cursor gave %d records and cursor %q", len(list), next)
		}
		_, _, err = s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i0"}, store.Page{Cursor: c})
		wantErr(t, fmt.Sprintf("ExecsOf at cursor %.60q", c), err, hutch.ErrBadRequest)
	}
}

func crossedCursors(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	create(t, s, sandbox("i2"))
	putExec(t, s, hutch.Exec{ID: "e1", Sandbox: "i1"})
	putExec(t, s, hutch.Exec{ID: "e2", Sandbox: "i1"})
	_, ofSandboxes, err := s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, ofExecs, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1"}, store.Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1"}, store.Page{Cursor: ofSandboxes})
	wantErr(t, "ExecsOf at a cursor of Sandboxes", err, hutch.ErrBadRequest)
	_, _, err = s.Sandboxes(t.Context(), store.SandboxFilter{}, store.Page{Cursor: ofExecs})
	wantErr(t, "Sandboxes at a cursor of ExecsOf", err, hutch.ErrBadRequest)
	if reflect.DeepEqual(ofSandboxes, ofExecs) {
		t.Error("two listings gave the same cursor")
	}
}

func oldestFirst(t *testing.T, s store.Store) {
	for i := range 7 {
		create(t, s, sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i))))
	}
	want := []hutch.SandboxID{"i0", "i1", "i2", "i3", "i4", "i5", "i6"}
	for _, limit := range []int{0, 1, 2, 3, 7, 8} {
		wantIDs(t, fmt.Sprintf("by pages of %d", limit), ids(t, s, store.SandboxFilter{Oldest: true}, limit, nil), want...)
	}
	// What is stored meanwhile comes last.
	added := false
	got := ids(t, s, store.SandboxFilter{Oldest: true}, 3, func([]hutch.SandboxID) {
		if !added {
			added = true
			create(t, s, sandbox("i7"))
		}
	})
	wantIDs(t, "with one stored meanwhile", got, append(want, "i7")...)
	// A cursor of one order is refused in the other.
	for _, oldest := range []bool{false, true} {
		_, next, err := s.Sandboxes(t.Context(), store.SandboxFilter{Oldest: oldest}, store.Page{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = s.Sandboxes(t.Context(), store.SandboxFilter{Oldest: !oldest}, store.Page{Cursor: next})
		wantErr(t, "a cursor of the other order", err, hutch.ErrBadRequest)
	}
}

func listSince(t *testing.T, s store.Store) {
	for i := range 4 {
		sb := sandbox(hutch.SandboxID(fmt.Sprintf("i%d", i)))
		sb.CreatedAt = day0.Add(time.Duration(i) * time.Minute)
		create(t, s, sb)
	}
	wantIDs(t, "since the third", ids(t, s, store.SandboxFilter{Since: day0.Add(2 * time.Minute)}, 0, nil), "i3", "i2")
	wantIDs(t, "since a moment later", ids(t, s, store.SandboxFilter{Since: day0.Add(2*time.Minute + 1), Oldest: true}, 0, nil), "i3")
	wantIDs(t, "since the end", ids(t, s, store.SandboxFilter{Since: day0.Add(time.Hour)}, 0, nil))
}
