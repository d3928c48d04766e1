package aptsource

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// field is one field of a stanza: the first line's value and any further lines, each
// without its leading blank, joined by line breaks.
type field struct {
	name  string // as written
	value string
	line  int
}

// stanza is a paragraph of fields.
type stanza struct {
	line   int
	fields map[string]field // by lower-case name; the last one of a name counts
}

// get returns the words of a field.
func (s *stanza) words(name string) []string { return fieldsOf(s.fields[name].value) }

// parseDeb822 reads the stanzas of a .sources file.
func parseDeb822(name, text string) ([]Source, error) {
	stanzas, problems := splitStanzas(name, text)
	var sources []Source
	for _, st := range stanzas {
		src, ok, err := st.source(name)
		if err != nil {
			problems = append(problems, err)
		}
		if ok && err == nil {
			sources = append(sources, src)
		}
	}
	return sources, errors.Join(problems...)
}

// splitStanzas cuts text at blank lines and reads the fields. A line starting with #
// is a comment wherever it stands, also amid a field's further lines.
func splitStanzas(name, text string) ([]stanza, []error) {
	var stanzas []stanza
	var problems []error
	var cur *stanza
	last := "" // the field that further lines belong to
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		switch {
		case hasControl(line):
			problems = append(problems, fmt.Errorf("%s:%d: %w", name, n, errControl))
			cur, last = nil, ""
		case strings.HasPrefix(line, "#"):
		case strings.Trim(line, blanks) == "":
			cur, last = nil, ""
		case line[0] == ' ' || line[0] == '\t':
			if last == "" {
				problems = append(problems, fmt.Errorf("%s:%d: an indented line that continues nothing", name, n))
				continue
			}
			f := cur.fields[last]
			f.value += "\n" + strings.TrimRight(line[1:], blanks)
			cur.fields[last] = f
		default:
			key, value, ok := strings.Cut(line, ":")
			key = strings.Trim(key, blanks)
			if !ok || key == "" {
				problems = append(problems, fmt.Errorf("%s:%d: not of the form \"Field: value\"", name, n))
				last = ""
				continue
			}
			if cur == nil {
				stanzas = append(stanzas, stanza{line: n, fields: map[string]field{}})
				cur = &stanzas[len(stanzas)-1]
			}
			last = strings.ToLower(key)
			cur.fields[last] = field{name: key, value: strings.Trim(value, blanks), line: n}
		}
	}
	return stanzas, problems
}

// source makes the entry of a stanza; false if it is none for us: disabled, or only
// for source packages.
func (s *stanza) source(name string) (Source, bool, error) {
	from := fmt.Sprintf("%s:%d", name, s.line)
	if on, ok := s.fields["enabled"]; ok && isNo(on.value) {
		return Source{}, false, nil
	}
	if !slices.Contains(s.words("types"), "deb") {
		if len(s.words("types")) == 0 {
			return Source{}, false, fmt.Errorf("%s: a stanza without Types", from)
		}
		return Source{}, false, nil
	}
	src := Source{
		URIs:             s.words("uris"),
		Suites:           s.words("suites"),
		Components:       s.words("components"),
		Architectures:    s.words("architectures"),
		NotArchitectures: s.words("architectures-remove"),
		SignedBy:         strings.TrimRight(s.fields["signed-by"].value, blanks),
		From:             from,
	}
	for key, f := range s.fields {
		if !known[key] {
			src.setOption(f.name, strings.Join(fieldsOf(f.value), " "))
		}
	}
	return src, true, src.check()
}

// known are the deb822 fields that are no options of a Source.
var known = map[string]bool{
	"types": true, "uris": true, "suites": true, "components": true, "enabled": true,
	"architectures": true, "architectures-add": true, "architectures-remove": true,
	"signed-by": true, "repolib-name": true, "x-repolib-name": true, "description": true,
}

// check says what an entry lacks.
func (s *Source) check() error {
	switch {
	case len(s.URIs) == 0:
		return fmt.Errorf("%s: an entry without a URI", s.From)
	case len(s.Suites) == 0:
		return fmt.Errorf("%s: an entry without a suite", s.From)
	}
	for _, suite := range s.Suites {
		if len(s.Components) == 0 && !strings.HasSuffix(suite, "/") {
			return fmt.Errorf("%s: suite %q without components", s.From, suite)
		}
	}
	return nil
}

func (s *Source) setOption(name, value string) {
	if s.Options == nil {
		s.Options = map[string]string{}
	}
	s.Options[name] = value
}

// isNo reports whether apt reads v as a no.
func isNo(v string) bool {
	switch strings.ToLower(strings.Trim(v, blanks)) {
	case "no", "false", "without", "off", "disable", "0":
		return true
	}
	return false
}

// deb822 renders the entry as a stanza. The same entry gives the same text.
func (s *Source) deb822(b *strings.Builder) {
	b.WriteString("Types: deb\n")
	words := func(name string, values []string) {
		if len(values) > 0 {
			fmt.Fprintf(b, "%s: %s\n", name, strings.Join(values, " "))
		}
	}
	words("URIs", s.URIs)
	words("Suites", s.Suites)
	words("Components", s.Components)
	words("Architectures", s.Architectures)
	words("Architectures-Remove", s.NotArchitectures)
	for _, name := range slices.Sorted(maps.Keys(s.Options)) {
		fmt.Fprintf(b, "%s: %s\n", name, s.Options[name])
	}
	if s.SignedBy != "" {
		first, rest, _ := strings.Cut(s.SignedBy, "\n")
		fmt.Fprintf(b, "Signed-By:%s\n", strings.TrimRight(" "+first, " "))
		if rest != "" {
			for line := range strings.SplitSeq(rest, "\n") {
				if line == "" {
					line = "." // an empty line would end the stanza
				}
				fmt.Fprintf(b, " %s\n", strings.TrimLeft(line, blanks))
			}
		}
	}
}
