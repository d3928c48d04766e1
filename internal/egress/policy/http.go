package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// httpMatch matches requests. Empty lists match all.
type httpMatch struct {
	methods []string
	paths   []pathPattern
}

// pathPattern is a path, decoded, or the beginning of some.
type pathPattern struct {
	text   string
	prefix bool
}

// compileHTTP reads the conditions of a rule; the error says what is wrong and where.
func compileHTTP(m *hutch.HTTPMatch, field string) (*httpMatch, error) {
	if m == nil {
		return nil, nil
	}
	if len(m.Methods) == 0 && len(m.Paths) == 0 {
		return nil, hutch.FieldErrorf(field, "it matches every request: give methods or paths, or leave it out")
	}
	if len(m.Methods) > maxItems || len(m.Paths) > maxItems {
		return nil, hutch.FieldErrorf(field, "there are more than %d methods or paths", maxItems)
	}
	h := &httpMatch{}
	for i, method := range m.Methods {
		if !isMethod(method) {
			return nil, hutch.FieldErrorf(fmt.Sprintf("%s.methods[%d]", field, i), "%.40q is no method: write it as it is sent, in capitals", method)
		}
		h.methods = append(h.methods, method)
	}
	for i, s := range m.Paths {
		p, err := parsePath(s)
		if err != nil {
			return nil, hutch.FieldErrorf(fmt.Sprintf("%s.paths[%d]", field, i), "%.100q: %v", s, err)
		}
		h.paths = append(h.paths, p)
	}
	return h, nil
}

// isMethod reports whether s can be a method. Servers tell cases apart; a method that is not
// in capitals is a mistake, or an attempt.
func isMethod(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func parsePath(s string) (pathPattern, error) {
	if len(s) > maxText {
		return pathPattern{}, fmt.Errorf("it has more than %d bytes", maxText)
	}
	rest, prefix := strings.CutSuffix(s, "*")
	if strings.ContainsAny(rest, "*?#") {
		return pathPattern{}, errors.New("a star is only good at the end, and what follows a question mark is not looked at")
	}
	text, ok := normalPath(rest)
	if !ok {
		return pathPattern{}, errors.New("it must begin with a slash and have no empty, dotted or doubly readable parts")
	}
	return pathPattern{text, prefix}, nil
}

// normalPath decodes the path of a request. ok is false if servers could differ on what it
// names.
func normalPath(s string) (text string, ok bool) {
	s, _, _ = strings.Cut(s, "?")
	if !strings.HasPrefix(s, "/") {
		return "", false
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			hi, lo := -1, -1
			if i+2 < len(s) {
				hi, lo = unhex(s[i+1]), unhex(s[i+2])
			}
			if hi < 0 || lo < 0 {
				return "", false
			}
			c = byte(hi<<4 | lo)
			if c == '/' || c == '.' || c == '%' || c == ';' || c == '?' || c == '#' {
				return "", false
			}
			i += 2
		}
		if c < ' ' || c == 0x7f || c == '\\' || c == '#' {
			return "", false
		}
		b = append(b, c)
	}
	text = string(b)
	for i, part := range strings.Split(text[1:], "/") {
		bare, _, _ := strings.Cut(part, ";") // some servers drop what follows
		if bare == "." || bare == ".." || bare == "" && (part != "" || i < strings.Count(text, "/")-1) {
			return "", false
		}
	}
	return text, true
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// matches reports whether a request matches. A method or path that can be read in two ways
// is one that a rule which denies is about, and one that allows is not.
func (h *httpMatch) matches(q *HTTPQuery, allow bool) bool {
	if len(h.methods) > 0 && !slices.Contains(h.methods, q.Method) && (allow || isMethod(q.Method)) {
		return false
	}
	if len(h.paths) == 0 {
		return true
	}
	path, ok := normalPath(q.Path)
	if !ok {
		return !allow
	}
	return slices.ContainsFunc(h.paths, func(p pathPattern) bool { return p.matches(path) })
}

func (p pathPattern) matches(path string) bool {
	if p.prefix {
		return strings.HasPrefix(path, p.text)
	}
	return path == p.text
}

func (p pathPattern) contains(q pathPattern) bool {
	return p.matches(q.text) && (p.prefix || !q.prefix)
}
