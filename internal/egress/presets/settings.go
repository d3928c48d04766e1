package presets

import (
	"regexp"
	"strings"
)

// keyed is a line that begins with a key, which an address does not.
var keyed = regexp.MustCompile(`^["'@A-Za-z][^:/]*=`)

// setting is one line of a client's settings.
type setting struct{ section, key, value string }

// settings reads "key = value" lines below "[section]" headers, which is what the files of
// pip (INI), npm, and Cargo (TOML) have in common where they say what to fetch from. An
// indented line goes on with the value before, a value in quotes loses them, and what else
// there is in a line is skipped.
func settings(text string) []setting {
	var out []setting
	section := ""
	for line := range strings.Lines(text) {
		bare := strings.TrimSpace(line)
		switch {
		case bare == "" || bare[0] == '#' || bare[0] == ';':
			continue
		case bare[0] == '[' && !strings.HasPrefix(bare, "[["):
			name, _, _ := strings.Cut(bare[1:], "]")
			section = strings.NewReplacer(`"`, "", "'", "", " ", "").Replace(name)
			continue
		case (line[0] == ' ' || line[0] == '\t') && len(out) > 0 && !keyed.MatchString(bare):
			last := &out[len(out)-1]
			last.value = strings.TrimSpace(last.value + " " + bare)
			continue
		}
		key, value, ok := strings.Cut(bare, "=")
		if !ok {
			continue
		}
		out = append(out, setting{section, strings.Trim(strings.TrimSpace(key), `"'`), unquote(strings.TrimSpace(value))})
	}
	return out
}

// unquote takes the quotes off a value, and what follows them.
func unquote(s string) string {
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return s
	}
	inner, _, _ := strings.Cut(s[1:], s[:1])
	return inner
}
