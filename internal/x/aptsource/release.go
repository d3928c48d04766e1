package aptsource

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Release is what a suite's index says of itself.
type Release struct {
	Origin   string // "Debian"
	Suite    string // "stable"
	Codename string // "bookworm"
	Date     time.Time
}

// ParseRelease reads the head of a Release or InRelease file, up to its lists of
// files. It does not look at the signature: what it returns is good for telling
// sources apart, not for trusting them.
func ParseRelease(r io.Reader) (Release, error) {
	var rel Release
	lines := bufio.NewScanner(io.LimitReader(r, 64<<10)) // heads are under 1 kB
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch name {
		case "Origin":
			rel.Origin = value
		case "Suite":
			rel.Suite = value
		case "Codename":
			rel.Codename = value
		case "Date":
			t, err := time.Parse(time.RFC1123, value)
			if err != nil {
				return Release{}, fmt.Errorf("date of the release file: %w", err)
			}
			rel.Date = t.UTC()
		case "MD5Sum", "SHA1", "SHA256", "SHA512":
			return rel, nil
		}
	}
	return rel, lines.Err()
}

// Cached returns a lookup in the indexes that apt on the machine with root directory
// root fetched last. It answers false for what apt has not fetched.
func Cached(root string) func(uri, suite string) (Release, bool) {
	return func(uri, suite string) (Release, bool) {
		base := filepath.Join(root, "var/lib/apt/lists", listName(uri)+"_dists_"+strings.ReplaceAll(suite, "/", "_"))
		for _, name := range []string{base + "_InRelease", base + "_Release"} {
			f, err := os.Open(name)
			if err != nil {
				continue
			}
			rel, err := ParseRelease(f)
			f.Close()
			if err == nil {
				return rel, true
			}
		}
		return Release{}, false
	}
}

// listName is how apt turns a URI into a part of a file's name: no scheme, no user,
// every slash an underscore, and what a name had better not hold percent-encoded.
func listName(uri string) string {
	if _, rest, ok := strings.Cut(uri, "://"); ok {
		uri = rest
	}
	if i := strings.IndexByte(uri, '@'); i >= 0 {
		uri = uri[i+1:]
	}
	uri = strings.TrimRight(uri, "/")
	var b strings.Builder
	for i := range len(uri) {
		c := uri[i]
		switch {
		case c == '/':
			b.WriteByte('_')
		case strings.IndexByte(`\|{}[]<>"^~_=!@#$%^&*`, c) >= 0 || c <= ' ' || c >= 0x7f:
			fmt.Fprintf(&b, "%%%02x", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
