// Package id makes the ids of sandboxes and commands: a letter that says what is
// named, and 20 random characters of [a-z0-9].
//
// It owns their form and their randomness; that one is used once only is for the
// store to say. 20 characters of 36 are 103 bits, so two never meet by chance, and
// whoever holds one id cannot guess another. They are DNS labels, because a sandbox's
// id is part of its host name, and they need no quoting anywhere.
//
// The functions are safe for concurrent use and cannot fail. Start with [NewSandbox].
package id

import "crypto/rand"

const (
	alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	length   = 20 // random characters after the letter

	// unbiased is the largest multiple of len(alphabet) a byte can hold. A byte from
	// here up is thrown away: taken modulo 36, it would favour the first letters.
	unbiased = 256 - 256%len(alphabet)
)

// NewSandbox returns a new sandbox id: "i" and 20 characters.
func NewSandbox() string { return make20('i') }

// NewExec returns a new command id: "e" and 20 characters.
func NewExec() string { return make20('e') }

// ValidSandbox reports whether s has the form of a sandbox id.
func ValidSandbox(s string) bool { return valid('i', s) }

// ValidExec reports whether s has the form of a command id.
func ValidExec(s string) bool { return valid('e', s) }

func make20(kind byte) string {
	// rand.Read never returns an error: without a source of randomness it ends the process.
	return fill(kind, func(b []byte) { _, _ = rand.Read(b) })
}

// fill makes an id out of what read puts into its buffer.
func fill(kind byte, read func([]byte)) string {
	out := make([]byte, 1, 1+length)
	out[0] = kind
	var buf [length + 4]byte // one in 64 bytes is thrown away
	for len(out) < cap(out) {
		read(buf[:])
		for _, b := range buf {
			if int(b) < unbiased && len(out) < cap(out) {
				out = append(out, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(out)
}

func valid(kind byte, s string) bool {
	if len(s) != 1+length || s[0] != kind {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
