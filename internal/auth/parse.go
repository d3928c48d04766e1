package auth

import (
	"strings"

	"hutch.dev/hutch"
)

// The form of a key.
const (
	Digits       = 40 // hex digits of a key
	PrefixDigits = 8  // the first of them: its public name

	issuedPrefix = "e2b_"
)

// Prefixes are what may stand before the digits of a key: the forms that published
// clients insist on or that people have in their environment. They mean nothing: the
// same digits are the same key.
var Prefixes = []string{
	issuedPrefix, // E2B's clients; the Python one checks for it
	"pds_",       // PandaStack's clients
}

// parse returns the digits of a presented key. It is exact: what is nearly a key is
// refused with a text that says what a key looks like, and never repeats what came.
func parse(presented string) (string, error) {
	if presented == "" {
		return "", hutch.Errorf(hutch.CodeUnauthenticated,
			"no API key was sent: send it in the header \"Authorization: Bearer <key>\" or \"X-API-Key: <key>\"")
	}
	digits := trimPrefix(presented)
	if len(digits) != Digits || !isHex(digits) {
		return "", hutch.Errorf(hutch.CodeUnauthenticated,
			"what was sent is no API key: a key is %d digits of 0-9 and a-f, with %s or nothing before them", Digits, strings.Join(Prefixes, " or "))
	}
	return digits, nil
}

// parseName takes a key's public prefix or the key in full; full is empty for the former.
func parseName(s string) (prefix, full string, err error) {
	digits := trimPrefix(s)
	switch {
	case !isHex(digits):
	case len(digits) == PrefixDigits:
		return digits, "", nil
	case len(digits) == Digits:
		return digits[:PrefixDigits], digits, nil
	}
	return "", "", hutch.FieldErrorf("key", "name the key by its first %d hex digits, or give it in full", PrefixDigits)
}

func trimPrefix(s string) string {
	for _, p := range Prefixes {
		if rest, ok := strings.CutPrefix(s, p); ok {
			return rest
		}
	}
	return s
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
