package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store/sqlite"
)

// records is the real store with a look at the reads, a way to fail them, and one to
// do something between the read and its return.
type records struct {
	*sqlite.Store
	reads  atomic.Int64
	broken atomic.Bool
	after  func()
}

var errBroken = hutch.Errorf(hutch.CodeUnavailable, "the records are away")

func (r *records) Key(ctx context.Context, prefix string) (hutch.APIKey, error) {
	r.reads.Add(1)
	if r.broken.Load() {
		return hutch.APIKey{}, errBroken
	}
	k, err := r.Store.Key(ctx, prefix)
	if r.after != nil {
		r.after()
	}
	return k, err
}

// clock is the time of a test.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func setup(t *testing.T) (*Keyring, *records, *clock) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	r := &records{Store: s}
	c := &clock{t: time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)}
	return New(r, c.now), r, c
}

func create(t *testing.T, k *Keyring, scope hutch.Scope, ttl time.Duration) (string, hutch.APIKey) {
	t.Helper()
	plain, rec, err := k.Create(t.Context(), "ci", "p1", scope, ttl)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return plain, rec
}

func wantUnauthenticated(t *testing.T, err error, says string) {
	t.Helper()
	var e *hutch.Error
	if !errors.As(err, &e) || e.Code != hutch.CodeUnauthenticated || !strings.Contains(e.Message, says) {
		t.Errorf("got %v, want unauthenticated that says %q", err, says)
	}
}

func TestCreateAndVerify(t *testing.T) {
	k, _, c := setup(t)
	plain, rec := create(t, k, hutch.ScopeRun, time.Hour)
	digits, ok := strings.CutPrefix(plain, "e2b_")
	if !ok || len(digits) != 40 || !isHex(digits) {
		t.Fatalf("the key %q is not e2b_ and 40 hex digits", plain)
	}
	sum := sha256.Sum256([]byte(digits))
	if rec.Prefix != digits[:8] || !bytes.Equal(rec.Hash, sum[:]) || rec.Project != "p1" || rec.Name != "ci" ||
		rec.Scope != hutch.ScopeRun || !rec.CreatedAt.Equal(c.now()) || !rec.ExpiresAt.Equal(c.now().Add(time.Hour)) {
		t.Errorf("the record is %+v", rec)
	}
	for _, presented := range []string{plain, digits, "pds_" + digits} {
		got, err := k.Verify(t.Context(), presented)
		if err != nil || got.Prefix != rec.Prefix || got.Project != "p1" || got.Scope != hutch.ScopeRun {
			t.Errorf("Verify(%q): got %+v, %v", presented, got, err)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	k, r, _ := setup(t)
	plain, _ := create(t, k, hutch.ScopeAdmin, 0)
	digits := strings.TrimPrefix(plain, "e2b_")
	other := byte('0')
	if digits[39] == other {
		other = '1'
	}
	for name, c := range map[string]struct{ presented, says string }{
		"nothing":              {"", "no API key was sent"},
		"a blank":              {" ", "no API key:"},
		"a blank before":       {" " + plain, "no API key:"},
		"a line end after":     {plain + "\n", "no API key:"},
		"capitals":             {"e2b_" + strings.Repeat("A", 40), "no API key:"},
		"a capital prefix":     {"E2B_" + digits, "no API key:"},
		"an unknown prefix":    {"xyz_" + digits, "no API key:"},
		"two prefixes":         {"e2b_e2b_" + digits, "no API key:"},
		"the scheme too":       {"Bearer " + plain, "no API key:"},
		"a digit too few":      {plain[:len(plain)-1], "no API key:"},
		"a digit too many":     {plain + "0", "no API key:"},
		"the public name only": {digits[:8], "no API key:"},
		"the prefix only":      {"e2b_", "no API key:"},
		"its hash":             {fmt.Sprintf("%x", sha256.Sum256([]byte(digits))), "no API key:"},
		"a last digit changed": {digits[:39] + string(other), "not known here"},
		"another key":          {strings.Repeat("0", 40), "not known here"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				_, err := k.Verify(t.Context(), c.presented)
				wantUnauthenticated(t, err, c.says)
				if len(c.presented) > 8 && strings.Contains(err.Error(), c.presented) {
					t.Error("the message repeats what was presented")
				}
			}
		})
	}
	reads := r.reads.Load()
	if _, err := k.Verify(t.Context(), "no key"); err == nil || r.reads.Load() != reads {
		t.Error("what is no key was looked up")
	}
}

func TestExpiry(t *testing.T) {
	k, _, c := setup(t)
	plain, rec := create(t, k, hutch.ScopeRun, time.Hour)
	c.move(time.Hour - 1)
	if _, err := k.Verify(t.Context(), plain); err != nil {
		t.Fatalf("a nanosecond before its expiry: %v", err)
	}
	c.move(1) // the cache has it
	_, err := k.Verify(t.Context(), plain)
	wantUnauthenticated(t, err, rec.Prefix+"… expired at 2026-03-04T06:06:07Z")

	forever, _ := create(t, k, hutch.ScopeRun, 0)
	c.move(50 * 365 * 24 * time.Hour)
	if _, err := k.Verify(t.Context(), forever); err != nil {
		t.Errorf("a key that never expires: %v", err)
	}
}

func TestRevokeWorksAtOnce(t *testing.T) {
	for _, full := range []bool{false, true} {
		k, _, c := setup(t)
		plain, rec := create(t, k, hutch.ScopeRun, 0)
		other, _ := create(t, k, hutch.ScopeRun, 0)
		for _, p := range []string{plain, other} {
			if _, err := k.Verify(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		name := rec.Prefix
		if full {
			name = plain
		}
		for range 2 { // the second time does nothing
			if err := k.Revoke(t.Context(), name); err != nil {
				t.Fatalf("Revoke(%q): %v", name, err)
			}
			c.move(time.Second)
		}
		_, err := k.Verify(t.Context(), plain)
		wantUnauthenticated(t, err, rec.Prefix+"… was revoked at 2026-03-04T05:06:07Z")
		if _, err := k.Verify(t.Context(), other); err != nil {
			t.Errorf("another key: %v", err)
		}
	}
}

// A check that read the record just before it was revoked does not bring it back.
func TestRevokeBeatsACheckUnderWay(t *testing.T) {
	k, r, _ := setup(t)
	plain, rec := create(t, k, hutch.ScopeRun, 0)
	r.after = func() {
		r.after = nil
		if err := k.Revoke(t.Context(), rec.Prefix); err != nil {
			t.Error(err)
		}
	}
	if _, err := k.Verify(t.Context(), plain); err != nil {
		t.Errorf("the check that came before: %v", err)
	}
	_, err := k.Verify(t.Context(), plain)
	wantUnauthenticated(t, err, "was revoked")
}

// Another process revokes: it works within MaxStale.
func TestRevokeByAnotherProcess(t *testing.T) {
	k, r, c := setup(t)
	plain, rec := create(t, k, hutch.ScopeRun, 0)
	if _, err := k.Verify(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	if err := r.RevokeKey(t.Context(), rec.Prefix, c.now()); err != nil {
		t.Fatal(err)
	}
	c.move(MaxStale)
	_, err := k.Verify(t.Context(), plain)
	wantUnauthenticated(t, err, "was revoked")
}

func TestRevokeRefuses(t *testing.T) {
	k, _, _ := setup(t)
	plain, _ := create(t, k, hutch.ScopeRun, 0)
	other := plain[:len(plain)-4] + "0000"
	if other == plain {
		other = plain[:len(plain)-4] + "1111"
	}
	for name, want := range map[string]error{
		"00000000":              hutch.ErrNotFound,
		other:                   hutch.ErrNotFound, // its prefix exists
		strings.Repeat("0", 40): hutch.ErrNotFound,
		"":                      hutch.ErrBadRequest,
		"ci":                    hutch.ErrBadRequest,
		"0000000":               hutch.ErrBadRequest,
		"000000000":             hutch.ErrBadRequest,
		"ABCDEF00":              hutch.ErrBadRequest,
		"%":                     hutch.ErrBadRequest,
	} {
		if err := k.Revoke(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("Revoke(%q): got %v, want %v", name, err, want)
		}
	}
	if _, err := k.Verify(t.Context(), plain); err != nil {
		t.Errorf("after refused revocations: %v", err)
	}
}

func TestCache(t *testing.T) {
	k, r, c := setup(t)
	plain, _ := create(t, k, hutch.ScopeRun, 0)
	verify := func() {
		t.Helper()
		if _, err := k.Verify(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
	}
	wantReads := func(want int64, when string) {
		t.Helper()
		if got := r.reads.Load(); got != want {
			t.Errorf("%s: the store was asked %d times, want %d", when, got, want)
		}
	}
	verify()
	c.move(MaxStale - 1)
	verify()
	wantReads(1, "within MaxStale")
	c.move(1)
	verify()
	wantReads(2, "at MaxStale")
	c.move(-time.Hour)
	verify()
	wantReads(3, "after the clock went back")

	// What was bad is asked for every time, so a key works as soon as it exists.
	unknown := strings.Repeat("7", 40)
	for range 3 {
		_, err := k.Verify(t.Context(), unknown)
		wantUnauthenticated(t, err, "not known here")
	}
	wantReads(6, "unknown keys")
	k.draw = func() string { return unknown }
	create(t, k, hutch.ScopeRun, 0)
	if _, err := k.Verify(t.Context(), unknown); err != nil {
		t.Errorf("a key that was unknown a moment ago: %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache()
	at := time.Unix(0, 0)
	sum := func(i int) [32]byte { return sha256.Sum256(fmt.Append(nil, i)) }
	for i := range 3 * maxCached {
		c.put(sum(i), seen{hutch.APIKey{Prefix: fmt.Sprint(i)}, at}, 0)
		if len(c.good) > maxCached {
			t.Fatalf("the cache holds %d, more than %d", len(c.good), maxCached)
		}
		if key, _, ok := c.get(sum(i), at); !ok || key.Prefix != fmt.Sprint(i) {
			t.Fatalf("what was just put is not there: %+v, %v", key, ok)
		}
	}
	// What is stale goes first, all of it.
	c.put(sum(-1), seen{hutch.APIKey{}, at.Add(MaxStale)}, 0)
	if len(c.good) != 1 {
		t.Errorf("beside one fresh key the cache holds %d stale ones", len(c.good)-1)
	}
}

func TestAStoreThatFailsIsNotABadKey(t *testing.T) {
	k, r, c := setup(t)
	plain, rec := create(t, k, hutch.ScopeRun, 0)
	r.broken.Store(true)
	if _, err := k.Verify(t.Context(), plain); !errors.Is(err, errBroken) || errors.Is(err, hutch.ErrUnauthenticated) {
		t.Errorf("Verify without a store: got %v, want its error", err)
	}
	if err := k.Revoke(t.Context(), plain); !errors.Is(err, errBroken) {
		t.Errorf("Revoke without a store: got %v, want its error", err)
	}
	r.broken.Store(false)
	if got, err := k.Verify(t.Context(), plain); err != nil || got.Prefix != rec.Prefix {
		t.Errorf("Verify afterwards: got %+v, %v", got, err)
	}
	r.broken.Store(true)
	c.move(MaxStale / 2)
	if _, err := k.Verify(t.Context(), plain); err != nil {
		t.Errorf("a key found good a second ago, without a store: %v", err)
	}
}

func TestCreateDrawsAgain(t *testing.T) {
	k, _, _ := setup(t)
	first, _ := create(t, k, hutch.ScopeRun, 0)
	digits := strings.TrimPrefix(first, "e2b_")
	draws := 0
	k.draw = func() string {
		draws++
		if draws < prefixTries {
			return digits[:8] + fmt.Sprintf("%032x", draws)
		}
		return "ffffffff" + fmt.Sprintf("%032x", draws)
	}
	if _, rec, err := k.Create(t.Context(), "ci", "p1", hutch.ScopeRun, 0); err != nil || rec.Prefix != "ffffffff" || draws != prefixTries {
		t.Errorf("Create: got prefix %q, %v after %d draws", rec.Prefix, err, draws)
	}
	draws = 0
	k.draw = func() string {
		draws++
		return digits[:8] + fmt.Sprintf("%032x", draws)
	}
	if plain, _, err := k.Create(t.Context(), "ci", "p1", hutch.ScopeRun, 0); !errors.Is(err, hutch.ErrConflict) || plain != "" || draws != prefixTries {
		t.Errorf("Create when every prefix is taken: got %q, %v after %d draws; want ErrConflict after %d", plain, err, draws, prefixTries)
	}
	if _, err := k.Verify(t.Context(), first); err != nil {
		t.Errorf("the key whose prefix was drawn again: %v", err)
	}
}

func TestDrawDigitsAreValidAndNew(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		d := drawDigits()
		if len(d) != Digits || !isHex(d) || seen[d] {
			t.Fatalf("drew %q: malformed, or for the second time", d)
		}
		seen[d] = true
	}
}

func TestCreateRefuses(t *testing.T) {
	k, r, _ := setup(t)
	for name, c := range map[string]struct {
		name    string
		project hutch.ProjectID
		scope   hutch.Scope
		ttl     time.Duration
		field   string
	}{
		"no name":           {"", "p1", hutch.ScopeRun, 0, "name"},
		"a blank name":      {"  ", "p1", hutch.ScopeRun, 0, "name"},
		"a long name":       {strings.Repeat("n", 101), "p1", hutch.ScopeRun, 0, "name"},
		"a name of lines":   {"a\nb", "p1", hutch.ScopeRun, 0, "name"},
		"escapes in a name": {"a\x1b[31m", "p1", hutch.ScopeRun, 0, "name"},
		"a name not UTF-8":  {"a\xff", "p1", hutch.ScopeRun, 0, "name"},
		"no project":        {"ci", "", hutch.ScopeRun, 0, "project"},
		"no scope":          {"ci", "p1", "", 0, "scope"},
		"an unknown scope":  {"ci", "p1", "root", 0, "scope"},
		"a negative ttl":    {"ci", "p1", hutch.ScopeRun, -1, "ttl"},
		"an endless ttl":    {"ci", "p1", hutch.ScopeRun, 1<<63 - 1, "ttl"},
	} {
		plain, _, err := k.Create(t.Context(), c.name, c.project, c.scope, c.ttl)
		var e *hutch.Error
		if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != c.field || plain != "" {
			t.Errorf("%s: got %q, %v; want bad_request about %s", name, plain, err, c.field)
		}
	}
	if list, err := r.Keys(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("refused keys were stored: %+v, %v", list, err)
	}
	if _, _, err := k.Create(t.Context(), strings.Repeat("é", 50), "p1", hutch.ScopeRead, MaxTTL); err != nil {
		t.Errorf("the longest name and ttl: %v", err)
	}
}

func TestRequire(t *testing.T) {
	for _, c := range []struct {
		has, need hutch.Scope
		ok        bool
	}{
		{hutch.ScopeRead, hutch.ScopeRead, true},
		{hutch.ScopeRead, hutch.ScopeRun, false},
		{hutch.ScopeRead, hutch.ScopeAdmin, false},
		{hutch.ScopeRun, hutch.ScopeRead, true},
		{hutch.ScopeRun, hutch.ScopeAdmin, false},
		{hutch.ScopeAdmin, hutch.ScopeRead, true},
		{hutch.ScopeAdmin, hutch.ScopeAdmin, true},
		{"", hutch.ScopeRead, false},
		{hutch.ScopeAdmin, "", false},
		{"root", hutch.ScopeRead, false},
	} {
		err := Require(hutch.APIKey{Prefix: "00000001", Scope: c.has}, c.need)
		if (err == nil) != c.ok {
			t.Errorf("Require(%q, %q) = %v", c.has, c.need, err)
		}
		if err != nil && (!errors.Is(err, hutch.ErrForbidden) || errors.Is(err, hutch.ErrUnauthenticated) ||
			!strings.Contains(err.Error(), fmt.Sprintf("%q", c.need))) {
			t.Errorf("Require(%q, %q) = %v; want forbidden that names the scope it takes", c.has, c.need, err)
		}
	}
}

func TestList(t *testing.T) {
	k, _, _ := setup(t)
	plain, first := create(t, k, hutch.ScopeRead, 0)
	_, second := create(t, k, hutch.ScopeAdmin, 0)
	if err := k.Revoke(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	list, err := k.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Prefix != second.Prefix || list[1].Prefix != first.Prefix || list[1].RevokedAt.IsZero() {
		t.Errorf("List: got %+v, %v", list, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	k, _, _ := setup(t)
	plain, rec := create(t, k, hutch.ScopeRun, 0)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if i == 25 {
				if err := k.Revoke(t.Context(), rec.Prefix); err != nil {
					t.Error(err)
				}
			}
			_, err := k.Verify(t.Context(), plain)
			if err != nil && !errors.Is(err, hutch.ErrUnauthenticated) {
				t.Error(err)
			}
			if i == 25 && err == nil {
				t.Error("the key works for the one who revoked it")
			}
		})
	}
	wg.Wait()
	_, err := k.Verify(t.Context(), plain)
	wantUnauthenticated(t, err, "was revoked")
}

func FuzzParse(f *testing.F) {
	digits := strings.Repeat("0123456789abcdef", 3)[:40]
	for _, s := range []string{"", digits, "e2b_" + digits, "pds_" + digits, "e2b_", "e2b_e2b_" + digits, strings.ToUpper(digits), digits + "\x00", "e2b_" + digits[:39] + "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parse(s)
		if err != nil {
			if !errors.Is(err, hutch.ErrUnauthenticated) || got != "" {
				t.Fatalf("parse(%q) = %q, %v", s, got, err)
			}
			if len(s) > 20 && strings.Contains(err.Error(), s) {
				t.Fatalf("the message repeats %q", s)
			}
			return
		}
		if len(got) != Digits || strings.Trim(got, "0123456789abcdef") != "" {
			t.Fatalf("parse(%q) took the digits %q", s, got)
		}
		if s != got && s != "e2b_"+got && s != "pds_"+got {
			t.Fatalf("parse(%q) took what is no known form of %q", s, got)
		}
		if prefix, full, err := parseName(s); err != nil || full != got || prefix != got[:PrefixDigits] {
			t.Fatalf("parseName(%q) = %q, %q, %v", s, prefix, full, err)
		}
	})
}
