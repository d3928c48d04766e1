package aptsource

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Query says what to pick.
type Query struct {
	Suite  string // codename, e.g. "bookworm"
	Arch   string // as dpkg names it: "amd64"
	Distro string // the machine's ID from os-release ("debian"); sources of other origins are left out
	// Release looks an index up in what apt fetched; nil if nothing was.
	Release func(uri, suite string) (Release, bool)
}

// Selection is the sources that carry a suite, its updates and its security fixes.
type Selection struct {
	Suite   string
	Sources []Source
}

// NotFoundError says that no source carries the suite, and what to add.
type NotFoundError struct {
	Suite string
	Arch  string
	Seen  []string // suites that are configured
}

// Error says it in a sentence, with the stanza to add.
func (e *NotFoundError) Error() string {
	seen := "none"
	if len(e.Seen) > 0 {
		seen = strings.Join(e.Seen, ", ")
	}
	return fmt.Sprintf("no apt source on this machine carries suite %q, component main, for %s (configured suites: %s); "+
		"add one, for example a file /etc/apt/sources.list.d/%s.sources with the lines "+
		"\"Types: deb\", \"URIs: <your mirror>\", \"Suites: %s %s-updates\", \"Components: main\", \"Signed-By: <its key file>\" "+
		"(and one for %s-security), then run: apt-get update",
		e.Suite, e.Arch, seen, e.Suite, e.Suite, e.Suite, e.Suite)
}

// Select picks the sources for q. An entry counts if it has component main, is for
// q.Arch, and has the suite or its -updates or -security, by that name or, where apt
// has fetched the index, by that codename ("stable" may be it). Of those, entries that
// are known to come from another distribution are left out: third parties name their
// suites after Debian's. The error is a [*NotFoundError].
func Select(sources []Source, q Query) (Selection, error) {
	sel := Selection{Suite: q.Suite}
	var foreign []Source
	for _, s := range sources {
		s.Suites = wantedSuites(s, q)
		s.URIs = slices.DeleteFunc(slices.Clone(s.URIs), func(u string) bool { return strings.HasPrefix(u, "cdrom:") })
		if len(s.Suites) == 0 || len(s.URIs) == 0 || !slices.Contains(s.Components, "main") || !s.takes(q.Arch) {
			continue
		}
		if q.isForeign(s) {
			foreign = append(foreign, s)
			continue
		}
		sel.Sources = append(sel.Sources, s)
	}
	if !sel.hasSuite(q) {
		// A mirror that signs with a name of its own is better than none.
		sel.Sources = append(sel.Sources, foreign...)
	}
	if !sel.hasSuite(q) {
		return Selection{}, &NotFoundError{Suite: q.Suite, Arch: q.Arch, Seen: suitesSeen(sources)}
	}
	return sel, nil
}

// wantedSuites returns those suites of s that q is about.
func wantedSuites(s Source, q Query) []string {
	var out []string
	for _, suite := range s.Suites {
		name := suite
		if rel, ok := q.release(s, suite); ok && rel.Codename != "" {
			name = rel.Codename
		}
		for _, want := range []string{q.Suite, q.Suite + "-updates", q.Suite + "-security"} {
			if suite == want || name == want {
				out = append(out, suite)
				break
			}
		}
	}
	return out
}

// release looks up the index of a suite at the first URI that has one.
func (q *Query) release(s Source, suite string) (Release, bool) {
	if q.Release == nil {
		return Release{}, false
	}
	for _, uri := range s.URIs {
		if rel, ok := q.Release(uri, suite); ok {
			return rel, true
		}
	}
	return Release{}, false
}

// isForeign reports whether s is known to be of another distribution than q.Distro.
func (q *Query) isForeign(s Source) bool {
	for _, suite := range s.Suites {
		if rel, ok := q.release(s, suite); ok && rel.Origin != "" && q.Distro != "" {
			return !strings.EqualFold(rel.Origin, q.Distro)
		}
	}
	return false
}

// hasSuite reports whether the plain suite is among the sources.
func (s *Selection) hasSuite(q Query) bool {
	for _, src := range s.Sources {
		for _, suite := range src.Suites {
			rel, _ := q.release(src, suite)
			if suite == q.Suite || rel.Codename == q.Suite {
				return true
			}
		}
	}
	return false
}

func suitesSeen(sources []Source) []string {
	seen := map[string]bool{}
	for _, s := range sources {
		for _, suite := range s.Suites {
			seen[suite] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Deb822 renders the sources as the content of a .sources file.
func (s Selection) Deb822() string {
	var b strings.Builder
	for i := range s.Sources {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.Sources[i].deb822(&b)
	}
	return b.String()
}

// Identity names the sources by a hash: equal for equal configurations, saying nothing
// of the mirrors themselves. Passwords in URIs are of no account.
func (s Selection) Identity() string {
	open := Selection{Suite: s.Suite, Sources: slices.Clone(s.Sources)}
	for i, src := range open.Sources {
		open.Sources[i].URIs = mapURIs(src.URIs)
	}
	slices.SortStableFunc(open.Sources, func(a, b Source) int {
		return cmp.Compare(strings.Join(a.Suites, " "), strings.Join(b.Suites, " "))
	})
	sum := sha256.Sum256([]byte(s.Suite + "\n" + open.Deb822()))
	return hex.EncodeToString(sum[:])
}

// ForImage returns the selection as it may stand inside an image: without passwords,
// and without sources that only this machine can reach.
func (s Selection) ForImage() Selection {
	out := Selection{Suite: s.Suite}
	for _, src := range s.Sources {
		src.URIs = slices.DeleteFunc(mapURIs(src.URIs), func(u string) bool { return !portable(u) })
		if len(src.URIs) > 0 {
			out.Sources = append(out.Sources, src)
		}
	}
	return out
}

func mapURIs(uris []string) []string {
	out := make([]string, 0, len(uris))
	for _, u := range uris {
		if u = withoutSecret(u); u != "" {
			out = append(out, u)
		}
	}
	return out
}
