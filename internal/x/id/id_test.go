package id

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestNewIsValidAndOfItsKindOnly(t *testing.T) {
	for range 1000 {
		if s := NewSandbox(); !ValidSandbox(s) || ValidExec(s) {
			t.Fatalf("NewSandbox() = %q: not a sandbox id, or an exec id too", s)
		}
		if e := NewExec(); !ValidExec(e) || ValidSandbox(e) {
			t.Fatalf("NewExec() = %q: not an exec id, or a sandbox id too", e)
		}
	}
}

func TestNewDoesNotRepeat(t *testing.T) {
	seen := make(map[string]bool)
	for range 20_000 {
		s := NewSandbox()
		if seen[s] {
			t.Fatalf("%q came twice", s)
		}
		seen[s] = true
	}
}

func TestValidRefuses(t *testing.T) {
	good := "i" + strings.Repeat("a0", 10)
	if !ValidSandbox(good) {
		t.Fatalf("ValidSandbox(%q) = false", good)
	}
	for name, s := range map[string]string{
		"empty":        "",
		"letter only":  "i",
		"too short":    good[:20],
		"too long":     good + "a",
		"upper case":   strings.ToUpper(good),
		"other letter": "e" + good[1:],
		"dash":         good[:20] + "-",
		"dot":          good[:10] + "." + good[11:],
		"slash":        good[:10] + "/" + good[11:],
		"new line":     good[:20] + "\n",
		"not ASCII":    good[:19] + "é",
		"NUL":          good[:20] + "\x00",
		"just above 9": good[:20] + ":",
		"just above z": good[:20] + "{",
		"just below a": good[:20] + "`",
		"just below 0": good[:20] + "/",
	} {
		if ValidSandbox(s) {
			t.Errorf("%s: ValidSandbox(%q) = true", name, s)
		}
	}
}

// Folded modulo 36, the first four letters would come 14% too often. The source is
// seeded, so the counts are the same in every run.
func TestFillIsUnbiased(t *testing.T) {
	src := rand.NewChaCha8([32]byte{1})
	read := func(b []byte) { _, _ = src.Read(b) }
	counts := make(map[byte]int)
	const ids = 8000
	for range ids {
		s := fill('i', read)
		for i := 1; i < len(s); i++ {
			counts[s[i]]++
		}
	}
	want := ids * length / len(alphabet)
	for i := range len(alphabet) {
		if got := counts[alphabet[i]]; got < want*94/100 || got > want*106/100 {
			t.Errorf("%q came %d times, want about %d", alphabet[i], got, want)
		}
	}
}

// The four values from 252 up are thrown away, not folded onto the first letters.
func TestFillThrowsBiasedBytesAway(t *testing.T) {
	calls := 0
	read := func(b []byte) {
		calls++
		v := byte(255)
		if calls > 1 {
			v = 251
		}
		for i := range b {
			b[i] = v
		}
	}
	if got, want := fill('e', read), "e"+strings.Repeat("9", length); got != want {
		t.Errorf("fill = %q, want %q", got, want)
	}
	if calls != 2 {
		t.Errorf("read was called %d times, want 2: the first buffer holds nothing usable", calls)
	}
}

func FuzzValid(f *testing.F) {
	f.Add("iaaaaaaaaaaaaaaaaaaaa")
	f.Add("i0000000000000000000é")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		plain := len(s) == 21 && s[0] == 'i' && strings.Trim(s[1:], alphabet) == ""
		if got := ValidSandbox(s); got != plain {
			t.Fatalf("ValidSandbox(%q) = %v", s, got)
		}
	})
}
