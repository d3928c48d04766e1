package hutch

import "time"

// Scope is what an API key may do. Each includes the ones before it.
type Scope string

// The scopes, from least to most.
const (
	ScopeRead  Scope = "read"  // look
	ScopeRun   Scope = "run"   // create, exec, kill
	ScopeAdmin Scope = "admin" // keys and templates
)

var scopeRank = map[Scope]int{ScopeRead: 1, ScopeRun: 2, ScopeAdmin: 3}

// Valid reports whether s is a known scope.
func (s Scope) Valid() bool { return scopeRank[s] > 0 }

// Includes reports whether a holder of s may do what asks for need.
func (s Scope) Includes(need Scope) bool { return scopeRank[s] >= scopeRank[need] && need.Valid() }

// APIKey is the record of an API key. The key itself is shown once and never stored.
type APIKey struct {
	Prefix    string // its first 8 hex digits: unique, its public name
	Hash      []byte // SHA-256 of its 40 hex digits
	Project   ProjectID
	Name      string // a label for people
	Scope     Scope
	CreatedAt time.Time
	ExpiresAt time.Time // zero = never
	RevokedAt time.Time // zero = valid
}
