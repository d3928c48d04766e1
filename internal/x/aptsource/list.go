package aptsource

import (
	"errors"
	"fmt"
	"strings"
)

// parseList reads the lines of a .list file: type, options in brackets, URI, suite,
// components.
func parseList(name, text string) ([]Source, error) {
	var sources []Source
	var problems []error
	n := 0
	for line := range strings.Lines(text) {
		n++
		words, err := splitWords(line)
		if err == nil && len(words) == 0 {
			continue
		}
		from := fmt.Sprintf("%s:%d", name, n)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", from, err))
			continue
		}
		if words[0] != "deb" {
			if words[0] != "deb-src" {
				problems = append(problems, fmt.Errorf("%s: %q is no type of source (want deb or deb-src)", from, words[0]))
			}
			continue
		}
		src, err := lineSource(words[1:], from)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		sources = append(sources, src)
	}
	return sources, errors.Join(problems...)
}

// splitWords cuts a line at blanks, up to a comment. Blanks in brackets or double
// quotes do not cut: options stand in brackets, and so do the names of CDs in URIs.
func splitWords(line string) ([]string, error) {
	line = strings.TrimRight(line, "\r\n")
	if hasControl(line) {
		return nil, errControl
	}
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	flush := func() {
		if inWord {
			words = append(words, word.String())
			word.Reset()
			inWord = false
		}
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
			word.WriteByte(c)
			continue
		case c == '#':
			flush()
			return words, nil
		case c == ' ' || c == '\t':
			flush()
			continue
		case c == '[':
			quote = ']'
		case c == '"':
			quote = '"'
		}
		inWord = true
		word.WriteByte(c)
	}
	if quote != 0 {
		return nil, fmt.Errorf("a %q is missing", string(quote))
	}
	flush()
	return words, nil
}

// lineSource makes the entry from the words after the type.
func lineSource(words []string, from string) (Source, error) {
	src := Source{From: from}
	if len(words) > 0 && strings.HasPrefix(words[0], "[") {
		if err := src.lineOptions(strings.Trim(words[0], "[]")); err != nil {
			return Source{}, fmt.Errorf("%s: %w", from, err)
		}
		words = words[1:]
	}
	if len(words) < 2 {
		return Source{}, fmt.Errorf("%s: an entry needs a URI and a suite", from)
	}
	src.URIs, src.Suites, src.Components = words[:1], words[1:2], words[2:]
	return src, src.check()
}

// optionChars are the characters an option's name may have.
const optionChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-+"

// lineOptions reads name=value, name+=value and name-=value.
func (s *Source) lineOptions(text string) error {
	for _, word := range fieldsOf(text) {
		name, value, ok := strings.Cut(word, "=")
		if !ok || strings.Trim(name, optionChars) != "" || name == "" {
			return fmt.Errorf("option %q is not of the form name=value", word)
		}
		value = strings.Trim(value, `"`)
		list := strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		switch strings.ToLower(name) {
		case "arch":
			s.Architectures = list
		case "arch+": // adds to the machine's own, which limits nothing
		case "arch-":
			s.NotArchitectures = append(s.NotArchitectures, list...)
		case "signed-by":
			s.SignedBy = strings.Join(list, " ")
		default:
			s.setOption(fieldName(name), strings.Join(list, " "))
		}
	}
	return nil
}

// lineNames are the one-line options whose deb822 name is not their own in title case.
var lineNames = map[string]string{
	"lang":   "Languages",
	"target": "Targets",
	"pdiffs": "PDiffs",
}

// fieldName turns the name of a one-line option into that of the deb822 field.
func fieldName(option string) string {
	base, sign := option, ""
	if strings.HasSuffix(base, "+") {
		base, sign = base[:len(base)-1], "-Add"
	} else if strings.HasSuffix(base, "-") {
		base, sign = base[:len(base)-1], "-Remove"
	}
	base = strings.ToLower(base)
	if name, ok := lineNames[base]; ok {
		return name + sign
	}
	parts := strings.Split(base, "-")
	for i, p := range parts {
		if p != "" {
			parts[i] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "-") + sign
}
