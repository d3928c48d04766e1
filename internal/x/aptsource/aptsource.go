// Package aptsource reads where a machine's apt gets its packages from, and picks the
// sources that carry one suite of the machine's distribution.
//
// It owns the two formats of source entries (the one-line .list and the deb822
// .sources) and the choice; it fetches nothing, verifies no signature and runs no apt.
// No mirror is known to it: whatever it returns was in the configuration it read.
//
// A broken entry never hides the good ones: [Read] and [Parse] return what they could
// read together with what was wrong.
//
// Start with [Read], then [Select].
package aptsource

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one entry for binary packages. Entries for source packages and disabled
// ones are not kept.
type Source struct {
	URIs       []string
	Suites     []string
	Components []string
	// Architectures is what the entry is limited to; empty means every one that the
	// machine uses. NotArchitectures are taken away from that.
	Architectures    []string
	NotArchitectures []string
	// SignedBy is what may sign it, as written: key files, fingerprints, or an
	// armoured key with its line breaks. Empty means whatever apt trusts.
	SignedBy string
	// Options are the other settings under their deb822 names, e.g. "Trusted".
	Options map[string]string
	// From is the file and line of the entry, for messages.
	From string
}

// maxFile bounds a file of sources, in bytes. The largest seen in the wild have an
// armoured key in every stanza and stay under 100 kB.
const maxFile = 4 << 20

// Read reads the sources of the machine whose root directory is root ("/" for this
// one), in apt's order. The error, if any, is about entries and files that could not
// be read; the sources returned with it are good.
func Read(root string) ([]Source, error) {
	var sources []Source
	var problems []error
	for _, name := range files(root) {
		data, err := readFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("read %s: %w", name, err))
			continue
		}
		found, err := Parse(name, data)
		if err != nil {
			problems = append(problems, err)
		}
		sources = append(sources, found...)
	}
	for i := range sources {
		if err := expandMirrorLists(root, &sources[i]); err != nil {
			problems = append(problems, err)
		}
	}
	return sources, errors.Join(problems...)
}

// Parse reads the entries of one file; its name's ending says which format it has.
// The error, if any, joins one error per broken entry.
func Parse(name string, data []byte) ([]Source, error) {
	if strings.HasSuffix(name, ".sources") {
		return parseDeb822(name, string(data))
	}
	return parseList(name, string(data))
}

// files lists the files apt would read below root, relative to it.
func files(root string) []string {
	names := []string{"etc/apt/sources.list"}
	dir := "etc/apt/sources.list.d"
	entries, err := os.ReadDir(filepath.Join(root, dir)) // sorted by name, as apt reads them
	if err != nil {
		return names
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".list" && ext != ".sources" {
			continue
		}
		if strings.Trim(e.Name(), nameChars) == "" {
			names = append(names, dir+"/"+e.Name())
		}
	}
	return names
}

// nameChars are the characters apt allows in the name of a file of sources; it
// ignores files with any other.
const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

// blanks are what separates words; no other kind of white space does.
const blanks = " \t\n"

var errControl = errors.New("a control character")

// fieldsOf cuts s at blanks.
func fieldsOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(blanks, r) })
}

// hasControl reports whether a line holds what no entry can mean. Refusing it keeps
// the words of an entry words wherever they are written to.
func hasControl(line string) bool {
	return strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	return os.ReadFile(path)
}

// expandMirrorLists replaces a mirror+file: URI by the mirrors the file lists: one a
// line, first word, comments with #. Cloud images of Debian are set up that way, and
// the file does not exist in what is built from the sources.
func expandMirrorLists(root string, s *Source) error {
	var uris []string
	for _, uri := range s.URIs {
		path, ok := strings.CutPrefix(uri, "mirror+file:")
		if !ok {
			uris = append(uris, uri)
			continue
		}
		path = "/" + strings.TrimLeft(path, "/")
		data, err := readFile(filepath.Join(root, path))
		if err != nil {
			return fmt.Errorf("%s: read the list of mirrors %s: %w", s.From, path, err)
		}
		for line := range strings.Lines(string(data)) {
			if f := fieldsOf(line); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
				uris = append(uris, f[0])
			}
		}
	}
	s.URIs = slices.Compact(uris)
	return nil
}

// takes reports whether the entry is used for packages of architecture arch.
func (s *Source) takes(arch string) bool {
	if slices.Contains(s.NotArchitectures, arch) {
		return false
	}
	return len(s.Architectures) == 0 || slices.Contains(s.Architectures, arch)
}

// KeyFiles returns the key files that SignedBy names; none if it holds a key itself.
func (s *Source) KeyFiles() []string {
	if strings.Contains(s.SignedBy, "-----BEGIN") {
		return nil
	}
	var paths []string
	for _, word := range fieldsOf(strings.ReplaceAll(s.SignedBy, ",", " ")) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	return paths
}

// portable reports whether uri can be fetched from another machine.
func portable(uri string) bool {
	for _, scheme := range []string{"http://", "https://", "mirror+http://", "mirror+https://", "mirror://", "tor+http://", "tor+https://"} {
		if strings.HasPrefix(uri, scheme) {
			return true
		}
	}
	return false
}

// withoutSecret returns uri without the user and password some mirrors want in it. A
// URI that cannot be understood is dropped whole: it may hold a secret too.
func withoutSecret(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}
