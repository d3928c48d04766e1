package control

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// split hands text to a splitter in pieces of n bytes.
func split(t *testing.T, text string, n, most int) []string {
	t.Helper()
	var lines []string
	s := &lineSplitter{most: most, emit: func(l string) error { lines = append(lines, l); return nil }}
	for rest := []byte(text); len(rest) > 0; {
		k := min(n, len(rest))
		if err := s.write(rest[:k]); err != nil {
			t.Fatal(err)
		}
		rest = rest[k:]
	}
	if err := s.flush(false); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestLineSplitter(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"a", []string{"a"}},
		{"a\nb\n", []string{"a", "b"}},
		{"a\n\n\nb", []string{"a", "", "", "b"}},
		{"a\r\nb\rc\n", []string{"a", "b\rc"}},
		{"0123456789abc\nx", []string{"01234567", "89abc", "x"}},
		{"01234567\nx", []string{"01234567", "x"}},
		{"größe größe", []string{"größe ", "größe"}},
		{"日本語日本語\n", []string{"日本", "語日", "本語"}},
		{"bad \xff byte\n", []string{"bad \uFFFD by", "te"}},
	} {
		for n := 1; n <= len(c.text)+1; n++ {
			if got := split(t, c.text, n, 8); !slices.Equal(got, c.want) {
				t.Errorf("%q by %d bytes: %q, want %q", c.text, n, got, c.want)
			}
		}
	}
}

func TestLineSplitterStopsWithItsSink(t *testing.T) {
	enough := errors.New("enough")
	n := 0
	s := &lineSplitter{most: 8, emit: func(string) error { n++; return enough }}
	if err := s.write([]byte("a\nb\nc\n")); !errors.Is(err, enough) || n != 1 {
		t.Errorf("got %v after %d lines", err, n)
	}
}

// Whatever comes, in whatever pieces: no line is too long or not UTF-8, and but for line
// ends and broken bytes nothing is lost.
func FuzzLineSplitter(f *testing.F) {
	f.Add("a\nb", 1, 8)
	f.Add("größe\r\n日本語日本語", 3, 8)
	f.Add("\xff\xfe\x80\x80\x80\x80\x80\x80\x80\x80\n", 2, 9)
	f.Fuzz(func(t *testing.T, text string, n, most int) {
		n, most = max(1, n%16), 8+max(0, most%8)
		lines := split(t, text, n, most)
		for _, l := range lines {
			if !utf8.ValidString(l) || strings.Contains(l, "\n") {
				t.Fatalf("%q has the line %q", text, l)
			}
		}
		if !utf8.ValidString(text) {
			return
		}
		for _, l := range lines {
			if len(l) > most {
				t.Fatalf("%q has a line of %d bytes, the most is %d", text, len(l), most)
			}
		}
		plain := func(s string) string { return strings.NewReplacer("\n", "", "\r", "").Replace(s) }
		if got := strings.Join(lines, ""); plain(got) != plain(text) {
			t.Fatalf("%q became %q", text, lines)
		}
	})
}
