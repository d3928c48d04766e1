// Package auth makes API keys and says whose key a caller presents.
//
// It owns the form of a key, what is stored of it, and the texts a caller gets when a
// key does not do. It does not own where a key is looked for in a request (that is the
// transport's), what a call needs (the transport asks [Require]), nor the records (they
// are package store's).
//
// A key is 40 hex digits: 160 random bits. It is shown once, when it is made, as
// "e2b_" and the digits, because one published client takes no other form; any of
// [Prefixes], or none, may stand before the digits when it is presented. Nothing else
// is forgiven: no blanks, no capitals. Stored is the SHA-256 of the digits; a slow hash
// is for passwords, and would add nothing here. The first 8 digits name the key in
// public; the other 128 bits are the secret.
//
// A key that was found good is trusted for [MaxStale] without asking the store, so a
// revocation by another process takes effect within that time; one through the same
// [Keyring] does at once. Expiry is looked at every time. What was found bad is never
// remembered: a key that has just been made works at once.
//
// Lock order: cache.mu is the only lock, and no call is made under it.
//
// Start with [Keyring.Verify].
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// Limits of what a key is made with.
const (
	MaxName = 100                       // bytes of a key's label
	MaxTTL  = 10 * 365 * 24 * time.Hour // beyond that, say that it never expires
)

// prefixTries is how often Create draws again when a prefix is taken. With a million
// keys one draw in 4,000 meets a taken one, so five in a row never happen by chance.
const prefixTries = 5

// Keyring makes and checks API keys. Its methods are safe for concurrent use.
type Keyring struct {
	keys  store.Keys
	now   func() time.Time
	draw  func() string // digits of a new key
	cache *cache
}

// New returns a Keyring over keys. now is the clock.
func New(keys store.Keys, now func() time.Time) *Keyring {
	return &Keyring{keys: keys, now: now, draw: drawDigits, cache: newCache()}
}

func drawDigits() string {
	var b [Digits / 2]byte
	_, _ = rand.Read(b[:]) // never returns an error: without randomness it ends the process
	return hex.EncodeToString(b[:])
}

// Create makes a key and returns it in clear, the only time it can be read, and its
// record. name is a label for people; ttl 0 means that it never expires. What cannot be
// made so is hutch.ErrBadRequest.
func (k *Keyring) Create(ctx context.Context, name string, project hutch.ProjectID, scope hutch.Scope, ttl time.Duration) (string, hutch.APIKey, error) {
	if err := validate(name, project, scope, ttl); err != nil {
		return "", hutch.APIKey{}, err
	}
	rec := hutch.APIKey{Project: project, Name: name, Scope: scope, CreatedAt: k.now().UTC().Round(0)}
	if ttl > 0 {
		rec.ExpiresAt = rec.CreatedAt.Add(ttl)
	}
	for try := 1; ; try++ {
		digits := k.draw()
		rec.Prefix, rec.Hash = digits[:PrefixDigits], hash(digits)
		err := k.keys.CreateKey(ctx, rec)
		if err == nil {
			return issuedPrefix + digits, rec, nil
		}
		if !errors.Is(err, hutch.ErrConflict) || try == prefixTries {
			return "", hutch.APIKey{}, fmt.Errorf("create API key: %w", err)
		}
	}
}

func validate(name string, project hutch.ProjectID, scope hutch.Scope, ttl time.Duration) error {
	switch {
	case strings.TrimSpace(name) == "":
		return hutch.FieldErrorf("name", "give the key a name, so that people can tell what it is for")
	case len(name) > MaxName:
		return hutch.FieldErrorf("name", "it is %d bytes long: at most %d are allowed", len(name), MaxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return hutch.FieldErrorf("name", "it must be printable text on one line")
	case project == "":
		return hutch.FieldErrorf("project", "say which project the key is for")
	case !scope.Valid():
		return hutch.FieldErrorf("scope", "%q is not known: use %q, %q or %q", scope, hutch.ScopeRead, hutch.ScopeRun, hutch.ScopeAdmin)
	case ttl < 0:
		return hutch.FieldErrorf("ttl", "it must not be negative; 0 means that the key never expires")
	case ttl > MaxTTL:
		return hutch.FieldErrorf("ttl", "at most %d hours are allowed; 0 means that the key never expires", int(MaxTTL.Hours()))
	}
	return nil
}

// Verify returns the record of the key that presented is. A key that is missing,
// malformed, unknown, revoked or expired is hutch.ErrUnauthenticated with a message that
// says which of these and what to do. An error of the store comes back as it is: a
// caller must not be told that its good key is bad.
func (k *Keyring) Verify(ctx context.Context, presented string) (hutch.APIKey, error) {
	digits, err := parse(presented)
	if err != nil {
		return hutch.APIKey{}, err
	}
	now := k.now()
	sum := sha256.Sum256([]byte(digits))
	rec, drops, ok := k.cache.get(sum, now)
	if !ok {
		if rec, err = k.lookup(ctx, digits[:PrefixDigits], sum[:]); err != nil {
			return hutch.APIKey{}, err
		}
	}
	switch {
	case !rec.RevokedAt.IsZero():
		return hutch.APIKey{}, hutch.Errorf(hutch.CodeUnauthenticated,
			"the API key %s… was revoked at %s: use another one", rec.Prefix, rec.RevokedAt.UTC().Format(time.RFC3339))
	case !rec.ExpiresAt.IsZero() && !now.Before(rec.ExpiresAt):
		return hutch.APIKey{}, hutch.Errorf(hutch.CodeUnauthenticated,
			"the API key %s… expired at %s: create a new one", rec.Prefix, rec.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if !ok {
		// now is from before the store was asked, so MaxStale counts from there.
		k.cache.put(sum, seen{rec, now}, drops)
	}
	return rec, nil
}

// lookup asks the store. A wrong prefix and wrong other digits look the same outside.
func (k *Keyring) lookup(ctx context.Context, prefix string, sum []byte) (hutch.APIKey, error) {
	rec, err := k.keys.Key(ctx, prefix)
	if err != nil && !errors.Is(err, hutch.ErrNotFound) {
		return hutch.APIKey{}, fmt.Errorf("check API key: %w", err)
	}
	if err != nil || subtle.ConstantTimeCompare(rec.Hash, sum) != 1 {
		return hutch.APIKey{}, hutch.Errorf(hutch.CodeUnauthenticated,
			"the API key is not known here: check that it was made on this server and copied whole, or create a new one")
	}
	return rec, nil
}

// Require returns nil if the holder of key may do what needs need, else
// hutch.ErrForbidden with a message that says which scope it takes.
func Require(key hutch.APIKey, need hutch.Scope) error {
	if key.Scope.Includes(need) {
		return nil
	}
	return hutch.Errorf(hutch.CodeForbidden,
		"the API key %s… has the scope %q, this takes %q: use a key with that scope", key.Prefix, key.Scope, need)
}

// List returns the records of all keys, the last made first, revoked ones too.
func (k *Keyring) List(ctx context.Context) ([]hutch.APIKey, error) {
	list, err := k.keys.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return list, nil
}

// Revoke ends a key, given its public prefix or the key in full. hutch.ErrNotFound if
// there is none; revoking what is revoked does nothing.
func (k *Keyring) Revoke(ctx context.Context, key string) error {
	prefix, full, err := parseName(key)
	if err != nil {
		return err
	}
	if full != "" {
		// Of a key in full all digits must fit: a mistyped one must not end another.
		if _, err := k.lookup(ctx, prefix, hash(full)); errors.Is(err, hutch.ErrUnauthenticated) {
			return hutch.Errorf(hutch.CodeNotFound, "there is no such API key: check that it was copied whole")
		} else if err != nil {
			return fmt.Errorf("revoke API key %s: %w", prefix, err)
		}
	}
	if err := k.keys.RevokeKey(ctx, prefix, k.now()); err != nil {
		return fmt.Errorf("revoke API key %s: %w", prefix, err)
	}
	k.cache.drop(prefix)
	return nil
}

func hash(digits string) []byte {
	sum := sha256.Sum256([]byte(digits))
	return sum[:]
}
