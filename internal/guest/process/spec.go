package process

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
)

// Marker is the environment entry that every process of a command is started with; its
// value is the command's id. Requests may not set it.
const Marker = "HUTCH_EXEC_ID"

// DefaultPath is where programs are looked for unless the template or the request says so.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// terminalName is what a terminal is taken for unless the request says otherwise: what
// those that people have in front of them understand.
const terminalName = "xterm-256color"

// builtinEnv is what every command gets below everything else. TERM says whether a
// terminal is attached; apt must not ask questions that nobody can answer; and UTF-8
// without locales installed is C.UTF-8.
func builtinEnv(u account.User, terminal bool) map[string]string {
	term := "dumb"
	if terminal {
		term = terminalName
	}
	return map[string]string{
		"PATH":            DefaultPath,
		"HOME":            u.Home,
		"USER":            u.Name,
		"LOGNAME":         u.Name,
		"SHELL":           u.Shell,
		"LANG":            "C.UTF-8",
		"TERM":            term,
		"DEBIAN_FRONTEND": "noninteractive",
	}
}

// checkSpec refuses what cannot be run and fills in what was left open.
func checkSpec(s hutch.ExecSpec) (hutch.ExecSpec, error) {
	switch {
	case s.Cmd != "" && len(s.Argv) > 0:
		return s, hutch.FieldErrorf("argv", "only one of cmd and argv can be set")
	case s.Cmd == "" && len(s.Argv) == 0:
		return s, hutch.FieldErrorf("cmd", "one of cmd and argv must be set")
	case len(s.Argv) > 0 && s.Argv[0] == "":
		return s, hutch.FieldErrorf("argv", "the first word, the program, is empty")
	case strings.ContainsRune(s.Cmd, 0):
		return s, hutch.FieldErrorf("cmd", "has a zero byte")
	case slices.ContainsFunc(s.Argv, hasZero):
		return s, hutch.FieldErrorf("argv", "has a zero byte")
	case hasZero(s.Cwd):
		return s, hutch.FieldErrorf("cwd", "has a zero byte")
	case s.Timeout < 0 || s.Timeout > hutch.MaxExecTimeout:
		return s, hutch.FieldErrorf("timeout", "must be between 0 and %s", hutch.MaxExecTimeout)
	case s.NoOutputTimeout < 0 || s.NoOutputTimeout > hutch.MaxExecTimeout:
		return s, hutch.FieldErrorf("no_output_timeout", "must be between 0 and %s", hutch.MaxExecTimeout)
	case s.Grace < 0 || s.Grace > hutch.MaxGrace:
		return s, hutch.FieldErrorf("grace", "must be between 0 and %s", hutch.MaxGrace)
	case s.MaxOutputBytes != 0 && (s.MaxOutputBytes < hutch.MinOutputBytes || s.MaxOutputBytes > hutch.MaxOutputBytes):
		return s, hutch.FieldErrorf("max_output_bytes", "must be between %d and %d", hutch.MinOutputBytes, hutch.MaxOutputBytes)
	}
	if err := CheckEnv("env", s.Env); err != nil {
		return s, err
	}
	if err := checkMode(s); err != nil {
		return s, err
	}
	if s.Terminal != nil {
		size, err := checkSize(*s.Terminal)
		if err != nil {
			return s, err
		}
		s.Terminal = &size
	}
	// Whoever sits at a terminal ends it.
	if s.Timeout == 0 && !s.Background && s.Terminal == nil {
		s.Timeout = hutch.DefaultExecTimeout
	}
	if s.Grace == 0 {
		s.Grace = hutch.DefaultGrace
	}
	if s.MaxOutputBytes == 0 {
		s.MaxOutputBytes = hutch.DefaultOutputBytes
	}
	return s, nil
}

// maxTag is the longest tag, in characters.
const maxTag = 64

// checkMode refuses what cannot be had together, and a tag that cannot be shown.
func checkMode(s hutch.ExecSpec) error {
	switch {
	case s.Login && s.Cmd == "":
		return hutch.FieldErrorf("login", "goes with cmd only: argv is run as it is")
	case !validShell(s.Shell):
		return hutch.FieldErrorf("shell", "must be 1 to %d letters, digits, _ and -", maxShellName)
	case s.Shell != "" && s.Cmd == "":
		return hutch.FieldErrorf("shell", "goes with cmd only: a program of argv has no shell")
	case s.Shell != "" && s.Login:
		return hutch.FieldErrorf("login", "cannot be had in a shell session, whose shell runs already")
	case s.Shell != "" && s.Terminal != nil:
		return hutch.FieldErrorf("terminal", "cannot be had in a shell session: start a shell with a terminal instead")
	case s.Shell != "" && len(s.Cmd) >= maxArg:
		return hutch.FieldErrorf("cmd", "longer than %d bytes: put it into a file", maxArg-1)
	case !utf8.ValidString(s.Tag) || utf8.RuneCountInString(s.Tag) > maxTag || strings.ContainsFunc(s.Tag, notPrintable):
		return hutch.FieldErrorf("tag", "must be at most %d printable characters", maxTag)
	}
	return nil
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

func hasZero(s string) bool { return strings.IndexByte(s, 0) >= 0 }

// CheckEnv refuses what cannot be in an environment, as a bad_request about field.
func CheckEnv(field string, env map[string]string) error {
	for name, value := range env {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return hutch.FieldErrorf(field, "%q cannot be the name of a variable", name)
		case name == Marker:
			return hutch.FieldErrorf(field, "%s is set by the sandbox itself", Marker)
		case hasZero(value):
			return hutch.FieldErrorf(field, "the value of %s has a zero byte", name)
		}
	}
	return nil
}

// plan is everything a command is started with, before anything was tried.
type plan struct {
	argv []string
	env  map[string]string
	user account.User
	cwd  string
	// cwdField is the request's field that cwd came from; empty when nobody asked for it,
	// so that a home which does not exist is no error.
	cwdField string
}

// newPlan resolves user, directory and environment, each by its precedence.
func (t *Table) newPlan(s hutch.ExecSpec, set Settings) (plan, error) {
	name := s.User
	if name == "" {
		name = set.Defaults.User
	}
	u, err := t.cfg.Accounts.Lookup(name)
	if err != nil {
		return plan{}, err
	}
	p := plan{argv: s.Argv, user: u, env: builtinEnv(u, s.Terminal != nil)}
	switch {
	case s.Login:
		p.argv = []string{"/bin/bash", "-l", "-c", s.Cmd}
	case s.Cmd != "":
		p.argv = []string{"/bin/sh", "-c", s.Cmd}
	}
	maps.Copy(p.env, set.Defaults.Env)
	maps.Copy(p.env, set.Env)
	maps.Copy(p.env, s.Env)

	p.cwd = u.Home
	if set.Defaults.Cwd != "" {
		p.cwd, p.cwdField = set.Defaults.Cwd, "cwd"
	}
	if s.Cwd != "" {
		p.cwdField = "cwd"
		if filepath.IsAbs(s.Cwd) {
			p.cwd = s.Cwd
		} else {
			p.cwd = filepath.Join(p.cwd, s.Cwd) // relative to where it would start otherwise
		}
	}
	if !filepath.IsAbs(p.cwd) {
		return plan{}, hutch.FieldErrorf("cwd", "the template's directory %q is not absolute", p.cwd)
	}
	return p, nil
}

// maxArg and maxArgs are what Linux takes: bytes of one argument or variable, and of all
// together with the stack it gives by default. Every kernel is held to them, so that a
// command does not depend on the runtime.
const (
	maxArg  = 128 << 10
	maxArgs = 2 << 20
)

// checkSize refuses what is longer than a kernel takes, as a bad_request about the field it
// came from.
func (p plan) checkSize(isCmd bool, env []string) error {
	field, all := "argv", 0
	if isCmd {
		field = "cmd"
	}
	for _, a := range p.argv {
		if len(a) >= maxArg {
			return hutch.FieldErrorf(field, "longer than %d bytes: put it into a file", maxArg-1)
		}
		all += len(a) + 9 // its zero byte and its pointer
	}
	for _, v := range env {
		if len(v) >= maxArg {
			name, _, _ := strings.Cut(v, "=")
			return hutch.FieldErrorf("env", "%.80s is longer than %d bytes", name, maxArg-1)
		}
		all += len(v) + 9
	}
	if all > maxArgs {
		return hutch.FieldErrorf(field, "arguments and environment together are longer than %d bytes", maxArgs)
	}
	return nil
}

// environ is the environment as a program gets it, in the order of the names. It ends
// with the marker.
func (p plan) environ(id hutch.ExecID) []string {
	env := make([]string, 0, len(p.env)+1)
	for _, name := range slices.Sorted(maps.Keys(p.env)) {
		env = append(env, name+"="+p.env[name])
	}
	return append(env, marker(id))
}

func marker(id hutch.ExecID) string { return Marker + "=" + string(id) }

// candidates are the paths the program may be at: itself when it names a path, else one in
// each directory of the command's PATH.
func (p plan) candidates() []string {
	program := p.argv[0]
	if strings.Contains(program, "/") {
		if !filepath.IsAbs(program) {
			program = filepath.Join(p.cwd, program)
		}
		return []string{program}
	}
	var list []string
	for dir := range strings.SplitSeq(p.env["PATH"], ":") {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(p.cwd, dir) // empty means here, as in a shell
		}
		list = append(list, filepath.Join(dir, program))
	}
	return list
}

// validID reports whether id can be the name of a command, and so of a directory.
func validID(id hutch.ExecID) bool {
	if len(id) != 21 || id[0] != 'e' {
		return false
	}
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// clean makes an id that is not known to be one fit for a message.
func clean(id hutch.ExecID) string {
	if validID(id) {
		return string(id)
	}
	return fmt.Sprintf("%.40q", string(id))
}

func compareID(a, b hutch.ExecID) int { return strings.Compare(string(a), string(b)) }
