package sqlite

import (
	"errors"
	"math"
	"testing"

	"hutch.dev/hutch"
)

func TestCursorRoundTrip(t *testing.T) {
	for _, seq := range []int64{1, 2, 255, 1 << 32, math.MaxInt64} {
		for _, kind := range []byte{cursorSandboxes, cursorExecs} {
			c := encodeCursor(kind, seq)
			if got, err := decodeCursor(kind, c); err != nil || got != seq {
				t.Errorf("decodeCursor(%q): got %d, %v; want %d", c, got, err, seq)
			}
		}
	}
	// The last letter has two bits to spare: a second spelling is refused too.
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	good, taken := encodeCursor(cursorExecs, 1), 0
	for i := range len(letters) {
		if _, err := decodeCursor(cursorExecs, good[:len(good)-1]+letters[i:i+1]); err == nil {
			taken++
		}
	}
	if taken != 1 {
		t.Errorf("%d spellings of one cursor are taken, want one", taken)
	}
	for _, seq := range []int64{0, -1, math.MinInt64} { // no record has such a number
		if _, err := decodeCursor(cursorExecs, encodeCursor(cursorExecs, seq)); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("a cursor at %d: got %v, want ErrBadRequest", seq, err)
		}
	}
}

// What is accepted is what encodeCursor gives, letter by letter.
func FuzzCursor(f *testing.F) {
	f.Add("")
	f.Add(encodeCursor(cursorSandboxes, 1))
	f.Add(encodeCursor(cursorExecs, math.MaxInt64))
	f.Add(encodeCursor(cursorSandboxes, 1) + "\n")
	f.Add("AXMAAAAAAAAAAQAAAAA")
	f.Fuzz(func(t *testing.T, s string) {
		for _, kind := range []byte{cursorSandboxes, cursorExecs} {
			seq, err := decodeCursor(kind, s)
			switch {
			case err != nil:
				if !errors.Is(err, hutch.ErrBadRequest) || seq != 0 {
					t.Errorf("decodeCursor(%q): got %d, %v; want 0 and ErrBadRequest", s, seq, err)
				}
			case s == "":
				if seq != math.MaxInt64 {
					t.Errorf("the empty cursor is at %d", seq)
				}
			case encodeCursor(kind, seq) != s:
				t.Errorf("decodeCursor(%q) took what encodeCursor spells %q", s, encodeCursor(kind, seq))
			}
		}
	})
}
