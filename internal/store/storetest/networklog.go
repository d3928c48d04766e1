package storetest

import (
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var networkChecks = map[string]check{
	"every field of a network entry is kept":            networkRoundTrip,
	"network entries are one sandbox's, first first":    networkListed,
	"a network entry is stored once":                    networkOnce,
	"of a sandbox only the latest network entries stay": networkBounded,
	"network entries go with their sandbox":             networkPurged,
	"network entries are stored with their events":      networkEvents,
}

const plenty = 1000 // entries of a sandbox, more than these checks store

func appendNetwork(t *testing.T, s store.Store, keep int, entries ...hutch.NetworkEntry) {
	t.Helper()
	if err := s.AppendNetwork(t.Context(), keep, entries); err != nil {
		t.Fatalf("AppendNetwork: %v", err)
	}
}

func networkOf(t *testing.T, s store.Store, f store.NetworkFilter) []hutch.NetworkEntry {
	t.Helper()
	l, err := s.NetworkEntries(t.Context(), f)
	if err != nil {
		t.Fatalf("NetworkEntries: %v", err)
	}
	return l
}

// denials are entries of a sandbox, numbered by the gateway from a number on.
func denials(id hutch.SandboxID, from, n int) (all []hutch.NetworkEntry) {
	for i := range n {
		all = append(all, hutch.NetworkEntry{Sandbox: id, At: day0, Count: 1, Port: uint16(from + i), Origin: hutch.NetworkOrigin{Gateway: "g", Seq: int64(from + i)}})
	}
	return all
}

func ports(l []hutch.NetworkEntry) (all []uint16) {
	for _, e := range l {
		all = append(all, e.Port)
	}
	return all
}

func networkRoundTrip(t *testing.T, s store.Store) {
	want := filled[hutch.NetworkEntry](t)
	create(t, s, sandbox(want.Sandbox))
	appendNetwork(t, s, plenty)
	appendNetwork(t, s, plenty, want, hutch.NetworkEntry{Sandbox: want.Sandbox})
	got := networkOf(t, s, store.NetworkFilter{Sandbox: want.Sandbox})
	if len(got) != 2 || got[0].Seq >= got[1].Seq {
		t.Fatalf("got %+v, want two, the first first", got)
	}
	want.Seq = got[0].Seq // given by the store, whatever the caller says
	wantEqual(t, "the entry", got[0], want)
	wantEqual(t, "a zero entry", got[1], hutch.NetworkEntry{Seq: got[1].Seq, Sandbox: want.Sandbox})
}

func networkListed(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	create(t, s, sandbox("i2"))
	all := append(denials("i1", 1, 150), denials("i2", 200, 1)...)
	all[1].Allowed = true
	appendNetwork(t, s, plenty, append(all, denials("i-none", 300, 1)...)...)
	first := networkOf(t, s, store.NetworkFilter{Sandbox: "i1"})
	if len(first) != 100 || first[0].Port != 1 || first[99].Port != 100 {
		t.Errorf("the first page: %v, want 1 to 100", ports(first))
	}
	rest := networkOf(t, s, store.NetworkFilter{Sandbox: "i1", After: first[99].Seq, Limit: 2000})
	if len(rest) != 50 || rest[49].Port != 150 {
		t.Errorf("the rest: %v, want 101 to 150", ports(rest))
	}
	wantEqual(t, "what was denied", ports(networkOf(t, s, store.NetworkFilter{Sandbox: "i1", Denied: true, Limit: 2})), []uint16{1, 3})
	wantEqual(t, "those of the other", ports(networkOf(t, s, store.NetworkFilter{Sandbox: "i2"})), []uint16{200})
	wantEqual(t, "those of none", len(networkOf(t, s, store.NetworkFilter{Sandbox: "i-none"})), 0)
}

func networkOnce(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	appendNetwork(t, s, plenty, denials("i1", 1, 3)...)
	appendNetwork(t, s, plenty, denials("i1", 2, 3)...)
	other := denials("i1", 1, 1)
	other[0].Origin.Gateway = "another"
	appendNetwork(t, s, plenty, other...)
	wantEqual(t, "the entries", ports(networkOf(t, s, store.NetworkFilter{Sandbox: "i1"})), []uint16{1, 2, 3, 4, 1})
}

func networkBounded(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	create(t, s, sandbox("i2"))
	appendNetwork(t, s, 3, denials("i2", 100, 2)...)
	appendNetwork(t, s, 3, denials("i1", 1, 3)...)
	wantEqual(t, "as many as are kept", ports(networkOf(t, s, store.NetworkFilter{Sandbox: "i1"})), []uint16{1, 2, 3})
	appendNetwork(t, s, 3, denials("i1", 4, 2)...)
	wantEqual(t, "more", ports(networkOf(t, s, store.NetworkFilter{Sandbox: "i1"})), []uint16{3, 4, 5})
	wantEqual(t, "those of the other", ports(networkOf(t, s, store.NetworkFilter{Sandbox: "i2"})), []uint16{100, 101})
}

func networkPurged(t *testing.T, s store.Store) {
	sb := sandbox("i1")
	sb.State, sb.EndedAt = hutch.StateDead, day0
	create(t, s, sb)
	appendNetwork(t, s, plenty, denials("i1", 1, 3)...)
	if n, err := s.PurgeSandboxes(t.Context(), day0.Add(time.Second)); n != 1 || err != nil {
		t.Fatalf("PurgeSandboxes: %d, %v", n, err)
	}
	create(t, s, sandbox("i1"))
	wantEqual(t, "entries of a sandbox of the same name", len(networkOf(t, s, store.NetworkFilter{Sandbox: "i1"})), 0)
}

func networkEvents(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	if err := s.AppendNetwork(t.Context(), plenty, denials("i1", 1, 1), event("i1", "denied")); err != nil {
		t.Fatalf("AppendNetwork: %v", err)
	}
	wantTypes(t, s, "i1", "denied")
}
