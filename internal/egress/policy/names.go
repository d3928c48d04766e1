package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// Bounds of host names, RFC 1035.
const (
	maxName  = 253
	maxLabel = 63
)

var (
	errNoName = errors.New("it is empty")
	errIsAddr = errors.New("it is an address, not a name")
)

// NormalName is a host name in the one form that names are compared in: lower case, without
// the final dot. It must be as on the wire; a name with other letters than ASCII's is not,
// and neither is one that some software would take for an address ("0x7f.1").
func NormalName(s string) (string, error) {
	s = strings.TrimSuffix(s, ".")
	if s == "" {
		return "", errNoName
	}
	if len(s) > maxName {
		return "", fmt.Errorf("it has %d bytes, at most %d", len(s), maxName)
	}
	b := make([]byte, 0, len(s))
	label := 0
	for i := range len(s) {
		c := s[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_':
		case c == '-':
			if label == 0 || i+1 == len(s) || s[i+1] == '.' {
				return "", errors.New("a part of it begins or ends with a hyphen")
			}
		case c == '.':
			if label == 0 {
				return "", errors.New("a part of it is empty")
			}
			label = -1
		default:
			return "", fmt.Errorf("it has the character %q", c)
		}
		if label++; label > maxLabel {
			return "", fmt.Errorf("a part of it has more than %d characters", maxLabel)
		}
		b = append(b, c)
	}
	name := string(b)
	if numeric(name[strings.LastIndexByte(name, '.')+1:]) {
		return "", errIsAddr
	}
	return name, nil
}

// numeric reports whether a name that ends in this label would be read as an IPv4 address:
// decimal, octal or hexadecimal, in one to four parts.
func numeric(label string) bool {
	digits, hex := strings.CutPrefix(label, "0x")
	for i := range len(digits) {
		c := digits[i]
		if ('0' > c || c > '9') && (!hex || 'a' > c || c > 'f') {
			return false
		}
	}
	return true
}

// pattern is what a rule says of names: one, all below one, or all. The zero pattern
// matches none.
type pattern struct {
	name     string // of an exact or wildcard pattern
	wildcard bool   // what is below name; all if that is empty
}

func (p pattern) isZero() bool { return p == pattern{} }

// parsePattern reads a domain of a rule, which may be written with any letters.
func parsePattern(s string) (pattern, error) {
	if s == "*" {
		return pattern{wildcard: true}, nil
	}
	rest, wildcard := strings.CutPrefix(s, "*.")
	if strings.Contains(rest, "*") {
		return pattern{}, errors.New("a star is only good as the whole first part: *.example.com")
	}
	if strings.ContainsAny(rest, ":/") {
		return pattern{}, errors.New("it is a host name only: no scheme, port or path")
	}
	if _, err := netip.ParseAddr(rest); err == nil {
		return pattern{}, errors.New("it is an address: use cidr")
	}
	for i := range len(rest) {
		if rest[i] >= 0x80 {
			var err error
			if rest, err = idna.Lookup.ToASCII(strings.TrimSuffix(rest, ".")); err != nil {
				return pattern{}, errors.New("it is no valid internationalised name")
			}
			break
		}
	}
	name, err := NormalName(rest)
	if errors.Is(err, errIsAddr) {
		err = errors.New("it is an address: use cidr")
	}
	return pattern{name: name, wildcard: wildcard}, err
}

// matches takes a normal name; the empty name, which is none, matches no pattern.
func (p pattern) matches(name string) bool {
	switch {
	case name == "" || p.isZero():
		return false
	case !p.wildcard:
		return name == p.name
	case p.name == "":
		return true
	}
	rest, ok := strings.CutSuffix(name, p.name)
	return ok && strings.HasSuffix(rest, ".")
}

// contains reports whether p matches every name that q does.
func (p pattern) contains(q pattern) bool {
	switch {
	case p.isZero() || q.isZero():
		return false
	case p == q:
		return true
	case !q.wildcard:
		return p.matches(q.name)
	case !p.wildcard:
		return false
	case p.name == "":
		return true
	}
	return q.name != "" && p.matches(q.name)
}

// overlaps reports whether some name matches both. Two patterns do only if one contains the
// other.
func (p pattern) overlaps(q pattern) bool {
	return !p.isZero() && !q.isZero() && (p.contains(q) || q.contains(p))
}

func (p pattern) String() string {
	switch {
	case !p.wildcard:
		return p.name
	case p.name == "":
		return "*"
	}
	return "*." + p.name
}
