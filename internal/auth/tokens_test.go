package auth

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

// settings keeps the first value of each name.
type settings map[string][]byte

func (s settings) KeepSetting(_ context.Context, name string, value []byte) ([]byte, error) {
	if _, ok := s[name]; !ok {
		s[name] = value
	}
	return s[name], nil
}

type brokenSettings struct{}

func (brokenSettings) KeepSetting(context.Context, string, []byte) ([]byte, error) {
	return nil, hutch.ErrUnavailable
}

func openTokens(t *testing.T, s settings) *SandboxTokens {
	t.Helper()
	tokens, err := OpenSandboxTokens(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestSandboxTokens(t *testing.T) {
	server := settings{}
	tokens := openTokens(t, server)
	const id = hutch.SandboxID("i0123456789abcdefghij")
	token := tokens.Token(id, UseEnvd)
	if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(token) {
		t.Errorf("the token is %q, want 40 hex digits", token)
	}
	if !tokens.Valid(id, UseEnvd, token) {
		t.Error("a token is not valid where it was made")
	}
	if again := openTokens(t, server); again.Token(id, UseEnvd) != token || !again.Valid(id, UseEnvd, token) {
		t.Error("a restart of the server changes its tokens")
	}
	for what, valid := range map[string]bool{
		"for another use":      tokens.Valid(id, UseTraffic, token),
		"for another sandbox":  tokens.Valid("i0123456789abcdefghik", UseEnvd, token),
		"of another server":    openTokens(t, settings{}).Valid(id, UseEnvd, token),
		"in capitals":          tokens.Valid(id, UseEnvd, strings.ToUpper(token)),
		"cut short":            tokens.Valid(id, UseEnvd, token[:39]),
		"made longer":          tokens.Valid(id, UseEnvd, token+"0"),
		"that is empty":        tokens.Valid(id, UseEnvd, ""),
		"of a pair spelled so": tokens.Valid("", UseEnvd+"\x00"+string(id), token),
	} {
		if valid {
			t.Errorf("a token %s is valid", what)
		}
	}
}

func TestSandboxTokensNeedTheirKey(t *testing.T) {
	if _, err := OpenSandboxTokens(t.Context(), brokenSettings{}); !errors.Is(err, hutch.ErrUnavailable) {
		t.Errorf("with a store that fails: got %v", err)
	}
	if _, err := OpenSandboxTokens(t.Context(), settings{tokenKeySetting: []byte("short")}); err == nil {
		t.Error("a damaged key was taken")
	}
}
