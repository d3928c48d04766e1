package storetest

import (
	"fmt"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var eventChecks = map[string]check{
	"every field of an event is kept":        eventRoundTrip,
	"events are numbered in order":           eventOrder,
	"events of many writers have one order":  eventsConcurrent,
	"event filters choose, and together":     eventFilters,
	"events have a default number and a cap": eventLimits,
	"a number is not given twice":            eventNumbersAreNotReused,
	"a follower misses nothing":              eventFollower,
}

func events(t *testing.T, s store.Store, f store.EventFilter) []hutch.Event {
	t.Helper()
	list, err := s.Events(t.Context(), f)
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	return list
}

func eventRoundTrip(t *testing.T, s store.Store) {
	want := filled[hutch.Event](t)
	want.Data = hostileText
	if err := s.AppendEvents(t.Context(), want, hutch.Event{}); err != nil {
		t.Fatal(err)
	}
	got := events(t, s, store.EventFilter{})
	if len(got) != 2 {
		t.Fatalf("%d events, want 2", len(got))
	}
	want.Seq = got[0].Seq // given by the store, whatever the caller says
	wantEqual(t, "the event", got[0], want)
	wantEqual(t, "a zero event", got[1], hutch.Event{Seq: got[1].Seq})
}

func eventOrder(t *testing.T, s store.Store) {
	if err := s.AppendEvents(t.Context()); err != nil {
		t.Errorf("AppendEvents of nothing: %v", err)
	}
	if err := s.AppendEvents(t.Context(), event("i1", "a"), event("i2", "b"), event("i1", "c")); err != nil {
		t.Fatal(err)
	}
	if err := s.AppendEvents(t.Context(), event("i1", "d")); err != nil {
		t.Fatal(err)
	}
	wantTypes(t, s, "", "a", "b", "c", "d")
	last := int64(0)
	for _, e := range events(t, s, store.EventFilter{}) {
		if e.Seq <= last {
			t.Errorf("event %s has number %d after %d", e.Type, e.Seq, last)
		}
		last = e.Seq
	}
}

func eventsConcurrent(t *testing.T, s store.Store) {
	const writers, each = 20, 5
	for _, err := range together(writers, func(i int) error {
		var evs []hutch.Event
		for j := range each {
			evs = append(evs, event(hutch.SandboxID(fmt.Sprintf("i%d", i)), fmt.Sprint(j)))
		}
		return s.AppendEvents(t.Context(), evs...)
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	all := events(t, s, store.EventFilter{Limit: 1000})
	if len(all) != writers*each {
		t.Fatalf("%d events, want %d", len(all), writers*each)
	}
	for i := 0; i < len(all); i += each {
		for j := range each {
			if e := all[i+j]; e.Sandbox != all[i].Sandbox || e.Type != fmt.Sprint(j) {
				t.Fatalf("the events of one call are not together, in order: %+v", all[i:i+each])
			}
		}
	}
}

func eventFilters(t *testing.T, s store.Store) {
	other := event("i1", "c")
	other.Project = "p2"
	if err := s.AppendEvents(t.Context(), event("i1", "a"), event("i2", "b"), other, event("", "d")); err != nil {
		t.Fatal(err)
	}
	all := events(t, s, store.EventFilter{})
	for _, c := range []struct {
		f    store.EventFilter
		want string
	}{
		{store.EventFilter{}, "abcd"},
		{store.EventFilter{Project: "p1"}, "abd"},
		{store.EventFilter{Sandbox: "i1"}, "ac"},
		{store.EventFilter{Project: "p1", Sandbox: "i1"}, "a"},
		{store.EventFilter{After: all[1].Seq}, "cd"},
		{store.EventFilter{After: all[3].Seq}, ""},
		{store.EventFilter{Limit: 2}, "ab"},
		{store.EventFilter{Project: "p1", After: all[0].Seq, Limit: 1}, "b"},
		{store.EventFilter{Project: "none"}, ""},
	} {
		got := ""
		for _, e := range events(t, s, c.f) {
			got += e.Type
		}
		if got != c.want {
			t.Errorf("%+v: got %q, want %q", c.f, got, c.want)
		}
	}
}

func eventLimits(t *testing.T, s store.Store) {
	evs := make([]hutch.Event, 1001)
	for i := range evs {
		evs[i] = event("i1", fmt.Sprint(i))
	}
	if err := s.AppendEvents(t.Context(), evs...); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]int{0: 100, 7: 7, 1000: 1000, 1001: 1000, 1 << 30: 1000} {
		got := events(t, s, store.EventFilter{Limit: limit})
		if len(got) != want || got[0].Type != "0" {
			t.Errorf("Limit %d: %d events from %q; want %d from the oldest", limit, len(got), got[0].Type, want)
		}
	}
}

func eventNumbersAreNotReused(t *testing.T, s store.Store) {
	create(t, s, dead("i1", day0), event("i1", "made"))
	seen := events(t, s, store.EventFilter{})[0].Seq
	if _, err := s.PurgeSandboxes(t.Context(), day0.Add(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.AppendEvents(t.Context(), event("i2", "made")); err != nil {
		t.Fatal(err)
	}
	if got := events(t, s, store.EventFilter{})[0].Seq; got <= seen {
		t.Errorf("after a purge an event has number %d; %d was given already", got, seen)
	}
}

// A reader that asks for what comes after the last it saw, while many write, ends up
// with everything: no number becomes visible after a higher one.
func eventFollower(t *testing.T, s store.Store) {
	const writers, each = 10, 20
	done := make(chan []error, 1)
	go func() {
		done <- together(writers, func(i int) error {
			for range each {
				if err := s.AppendEvents(t.Context(), event("i1", fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	after, got := int64(0), 0
	follow := func() {
		for _, e := range events(t, s, store.EventFilter{After: after, Limit: 7}) {
			after, got = e.Seq, got+1
		}
	}
	for writing := true; writing; {
		select {
		case errs := <-done:
			for _, err := range errs {
				if err != nil {
					t.Error(err)
				}
			}
			writing = false
		default:
			follow()
		}
	}
	for before := -1; before != got; {
		before = got
		follow()
	}
	if got != writers*each {
		t.Errorf("the follower saw %d events of %d", got, writers*each)
	}
}
