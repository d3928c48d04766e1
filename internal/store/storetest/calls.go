package storetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var callChecks = map[string]check{
	"a new call is stored":                  callBegun,
	"every field of a call is kept":         callRoundTrip,
	"one of many begins a call":             oneBeginsACall,
	"keys of two projects are two":          callsOfProjects,
	"an answer is stored once":              callFinished,
	"a call that is not known has no end":   finishUnknown,
	"a forgotten call can be made again":    callForgotten,
	"a finished call is not forgotten":      finishedStays,
	"a large answer is kept":                largeAnswer,
	"a purge takes calls begun before only": purgeCalls,
}

func call(key string) store.IdempotentCall {
	sum := sha256.Sum256([]byte(key))
	return store.IdempotentCall{Project: "p1", Key: key, Request: sum[:], Ref: "i1", CreatedAt: day0.UTC()}
}

func begin(t *testing.T, s store.Store, c store.IdempotentCall) (store.IdempotentCall, bool) {
	t.Helper()
	got, existed, err := s.BeginCall(t.Context(), c)
	if err != nil {
		t.Fatalf("BeginCall: %v", err)
	}
	return got, existed
}

func callBegun(t *testing.T, s store.Store) {
	got, existed := begin(t, s, call("k1"))
	if existed {
		t.Error("a new call existed")
	}
	wantEqual(t, "what BeginCall returned", got, call("k1"))

	other := call("k1")
	other.Request, other.Ref, other.CreatedAt = []byte("another"), "i2", day0.Add(time.Hour)
	got, existed = begin(t, s, other)
	if !existed {
		t.Error("a second call under the key did not exist")
	}
	wantEqual(t, "the one that is stored", got, call("k1"))
}

func callRoundTrip(t *testing.T, s store.Store) {
	want := filled[store.IdempotentCall](t)
	for range 2 {
		got, _ := begin(t, s, want)
		wantEqual(t, "the record", got, want)
	}
}

func oneBeginsACall(t *testing.T, s store.Store) {
	const n = 50
	refs, first := make([]string, n), make([]bool, n)
	for _, err := range together(n, func(i int) error {
		c := call("k1")
		c.Ref = fmt.Sprintf("i%d", i)
		got, existed, err := s.BeginCall(t.Context(), c)
		refs[i], first[i] = got.Ref, !existed
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	won := 0
	for i := range n {
		if first[i] {
			won++
		}
		if refs[i] != refs[0] {
			t.Errorf("two callers were told of %s and %s", refs[i], refs[0])
		}
	}
	if won != 1 {
		t.Errorf("%d began the call, want one", won)
	}
}

func callsOfProjects(t *testing.T, s store.Store) {
	begin(t, s, call("k1"))
	other := call("k1")
	other.Project = "p2"
	if _, existed := begin(t, s, other); existed {
		t.Error("a key of one project is taken in another")
	}
}

func callFinished(t *testing.T, s store.Store) {
	begin(t, s, call("k1"))
	c := call("k1")
	c.Status, c.Body = 201, []byte("{\"id\":\"i1\"}\x00\xff")
	if err := s.FinishCall(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	got, existed := begin(t, s, call("k1"))
	if !existed {
		t.Error("the finished call did not exist")
	}
	wantEqual(t, "the call", got, c)

	again := c
	again.Status, again.Body = 500, []byte("other")
	wantErr(t, "FinishCall again", s.FinishCall(t.Context(), again), hutch.ErrConflict)
	got, _ = begin(t, s, call("k1"))
	wantEqual(t, "the call after a second answer", got, c)
}

func finishUnknown(t *testing.T, s store.Store) {
	c := call("k1")
	c.Status = 200
	wantErr(t, "FinishCall of a call nobody began", s.FinishCall(t.Context(), c), hutch.ErrNotFound)
	if _, existed := begin(t, s, call("k1")); existed {
		t.Error("the refused answer was stored")
	}
	wantErr(t, "FinishCall without a status", s.FinishCall(t.Context(), call("k1")), hutch.ErrInternal)
}

func callForgotten(t *testing.T, s store.Store) {
	if err := s.ForgetCall(t.Context(), "p1", "k1"); err != nil {
		t.Errorf("ForgetCall of an unknown call: %v", err)
	}
	begin(t, s, call("k1"))
	if err := s.ForgetCall(t.Context(), "p2", "k1"); err != nil {
		t.Errorf("ForgetCall of another project: %v", err)
	}
	if _, existed := begin(t, s, call("k1")); !existed {
		t.Error("forgetting another project's call took ours")
	}
	if err := s.ForgetCall(t.Context(), "p1", "k1"); err != nil {
		t.Fatal(err)
	}
	if _, existed := begin(t, s, call("k1")); existed {
		t.Error("a forgotten call existed")
	}
}

func finishedStays(t *testing.T, s store.Store) {
	begin(t, s, call("k1"))
	c := call("k1")
	c.Status = 201
	if err := s.FinishCall(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := s.ForgetCall(t.Context(), "p1", "k1"); err != nil {
		t.Fatal(err)
	}
	if got, existed := begin(t, s, call("k1")); !existed || got.Status != 201 {
		t.Errorf("after ForgetCall of a finished call: existed = %v, status %d", existed, got.Status)
	}
}

func largeAnswer(t *testing.T, s store.Store) {
	begin(t, s, call("k1"))
	c := call("k1")
	c.Status, c.Body = 200, bytes.Repeat([]byte("large "), 1<<20)
	if err := s.FinishCall(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if got, _ := begin(t, s, call("k1")); !bytes.Equal(got.Body, c.Body) {
		t.Errorf("an answer of %d bytes came back as %d", len(c.Body), len(got.Body))
	}
}

func purgeCalls(t *testing.T, s store.Store) {
	for i, at := range []time.Duration{-time.Hour, -1, 0, 1} {
		c := call(fmt.Sprintf("k%d", i))
		c.CreatedAt = day0.Add(at)
		begin(t, s, c)
	}
	if n, err := s.PurgeCalls(t.Context(), day0); err != nil || n != 2 {
		t.Errorf("PurgeCalls: got %d, %v; want 2", n, err)
	}
	for i, want := range []bool{false, false, true, true} {
		if _, existed := begin(t, s, call(fmt.Sprintf("k%d", i))); existed != want {
			t.Errorf("call %d after the purge: existed = %v, want %v", i, existed, want)
		}
	}
}
