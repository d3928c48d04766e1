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

var keyChecks = map[string]check{
	"every field of a key is kept":       keyRoundTrip,
	"a taken prefix is a conflict":       takenPrefix,
	"one of many takes a prefix":         onePrefix,
	"a missing key is not found":         missingKey,
	"keys come last stored first":        keyOrder,
	"revoking keeps the first time":      revokeTwice,
	"a revoked key still holds its name": revokedPrefix,
}

func key(prefix string) hutch.APIKey {
	sum := sha256.Sum256([]byte(prefix))
	return hutch.APIKey{Prefix: prefix, Hash: sum[:], Project: "p1", Name: "ci", Scope: hutch.ScopeRun, CreatedAt: day0.UTC()}
}

func createKey(t *testing.T, s store.Store, k hutch.APIKey) {
	t.Helper()
	if err := s.CreateKey(t.Context(), k); err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
}

func loadKey(t *testing.T, s store.Store, prefix string) hutch.APIKey {
	t.Helper()
	k, err := s.Key(t.Context(), prefix)
	if err != nil {
		t.Fatalf("Key: %v", err)
	}
	return k
}

func keyRoundTrip(t *testing.T, s store.Store) {
	for _, want := range []hutch.APIKey{filled[hutch.APIKey](t), key("00000001")} {
		createKey(t, s, want)
		wantEqual(t, "the record", loadKey(t, s, want.Prefix), want)
	}
}

func takenPrefix(t *testing.T, s store.Store) {
	createKey(t, s, key("00000001"))
	other := key("00000001")
	other.Hash, other.Scope = bytes.Repeat([]byte{1}, 32), hutch.ScopeAdmin
	wantErr(t, "CreateKey with a taken prefix", s.CreateKey(t.Context(), other), hutch.ErrConflict)
	wantEqual(t, "the record", loadKey(t, s, "00000001"), key("00000001"))
}

func onePrefix(t *testing.T, s store.Store) {
	won := 0
	for _, err := range together(30, func(i int) error { return s.CreateKey(t.Context(), key("00000001")) }) {
		if err == nil {
			won++
			continue
		}
		wantErr(t, "CreateKey of a loser", err, hutch.ErrConflict)
	}
	if won != 1 {
		t.Errorf("%d took the prefix, want one", won)
	}
}

func missingKey(t *testing.T, s store.Store) {
	createKey(t, s, key("00000001"))
	for _, p := range []string{"", "0000000", "00000002", "%", "_______1"} {
		_, err := s.Key(t.Context(), p)
		wantErr(t, fmt.Sprintf("Key %q", p), err, hutch.ErrNotFound)
		wantErr(t, fmt.Sprintf("RevokeKey %q", p), s.RevokeKey(t.Context(), p, day0), hutch.ErrNotFound)
	}
	if k := loadKey(t, s, "00000001"); !k.RevokedAt.IsZero() {
		t.Error("another key was revoked")
	}
}

func keyOrder(t *testing.T, s store.Store) {
	for _, p := range []string{"00000002", "00000001", "00000003"} {
		createKey(t, s, key(p))
	}
	if err := s.RevokeKey(t.Context(), "00000001", day0); err != nil {
		t.Fatal(err)
	}
	list, err := s.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range list {
		got = append(got, k.Prefix)
	}
	wantEqual(t, "prefixes", got, []string{"00000003", "00000001", "00000002"})
}

func revokeTwice(t *testing.T, s store.Store) {
	createKey(t, s, key("00000001"))
	for _, at := range []time.Time{day0, day0.Add(time.Hour), day0.Add(-time.Hour)} {
		if err := s.RevokeKey(t.Context(), "00000001", at); err != nil {
			t.Fatal(err)
		}
	}
	want := key("00000001")
	want.RevokedAt = day0.UTC()
	wantEqual(t, "the record", loadKey(t, s, "00000001"), want)
}

func revokedPrefix(t *testing.T, s store.Store) {
	createKey(t, s, key("00000001"))
	if err := s.RevokeKey(t.Context(), "00000001", day0); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "CreateKey with a revoked prefix", s.CreateKey(t.Context(), key("00000001")), hutch.ErrConflict)
}
