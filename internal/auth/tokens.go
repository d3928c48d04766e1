package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// The uses of a sandbox's tokens. A token of one use is not valid for the other.
const (
	UseEnvd    = "envd"    // to call the sandbox's agent through the E2B surface
	UseTraffic = "traffic" // to reach the sandbox's ports through the edge
)

// tokenKeySetting names the server's key in the store.
const tokenKeySetting = "sandbox-token-key"

// tokenBytes of the HMAC are shown: 160 bits, as of an API key.
const tokenBytes = Digits / 2

// SandboxTokens makes and checks the tokens of sandboxes. A token is made from the
// sandbox's id and the server's key: nothing has to be stored for it, it is the same
// whenever it is asked for, it outlives a restart, and it is of no use once its sandbox
// has ended, because ids are not given twice. Its methods are safe for concurrent use.
type SandboxTokens struct{ key []byte }

// OpenSandboxTokens returns the tokens of the server whose settings these are. The first
// call draws the server's key.
func OpenSandboxTokens(ctx context.Context, settings store.Settings) (*SandboxTokens, error) {
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // never returns an error: without randomness it ends the process
	key, err := settings.KeepSetting(ctx, tokenKeySetting, fresh)
	if err != nil {
		return nil, fmt.Errorf("read the key of sandbox tokens: %w", err)
	}
	if len(key) != sha256.Size {
		return nil, fmt.Errorf("the key of sandbox tokens is %d bytes long, not %d: the records are damaged", len(key), sha256.Size)
	}
	return &SandboxTokens{key: key}, nil
}

// Token returns the sandbox's token for a use: 40 hex digits.
func (s *SandboxTokens) Token(id hutch.SandboxID, use string) string {
	return hex.EncodeToString(s.sum(id, use))
}

// Valid reports whether presented is the sandbox's token for that use. How long it takes
// does not depend on where a wrong one differs.
func (s *SandboxTokens) Valid(id hutch.SandboxID, use, presented string) bool {
	return hmac.Equal([]byte(s.Token(id, use)), []byte(presented))
}

func (s *SandboxTokens) sum(id hutch.SandboxID, use string) []byte {
	mac := hmac.New(sha256.New, s.key)
	// The zero bytes keep one pair from being spelled like another.
	_, _ = fmt.Fprintf(mac, "hutch sandbox token\x00%s\x00%s", use, id)
	return mac.Sum(nil)[:tokenBytes]
}
