package fake

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// step is one command of a script.
type step struct {
	Words  []string
	File   string // redirection; empty = stdout
	Append bool
	And    bool // only if the one before succeeded
}

// parseScript makes steps of a shell line. It knows as much of a shell as doc.go says.
func parseScript(line string) []step {
	var steps []step
	var cur step
	var word strings.Builder
	inWord, and := false, false
	var quote rune
	redirect := ""
	endWord := func() {
		if !inWord {
			return
		}
		switch w := word.String(); {
		case redirect != "":
			cur.File, cur.Append, redirect = w, redirect == ">>", ""
		default:
			cur.Words = append(cur.Words, w)
		}
		word.Reset()
		inWord = false
	}
	endStep := func() {
		endWord()
		if len(cur.Words) > 0 {
			cur.And = and
			steps = append(steps, cur)
			and = false
		}
		cur = step{}
	}
	for _, r := range strings.ReplaceAll(line, "&&", "\x00") {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
				continue
			}
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			endWord()
		case r == ';' || r == '\n':
			endStep()
		case r == 0:
			endStep()
			and = true
		case r == '>':
			endWord()
			redirect += ">"
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	endStep()
	return steps
}

// script returns the steps of a spec.
func script(spec hutch.ExecSpec) []step {
	if len(spec.Argv) > 0 {
		return []step{{Words: spec.Argv}}
	}
	return parseScript(spec.Cmd)
}

// outcome is what a step comes to.
type outcome struct {
	wait bool      // it has not ended: look again at until, or when something changes
	till time.Time // zero: when something changes
	code int
}

func ended(code int) outcome { return outcome{code: code} }

// do lets the present step of e go as far as it goes now. The caller holds g.mu.
func (g *Guest) doLocked(e *execution, now time.Time) outcome {
	st := e.Script[e.PC]
	if st.File != "" && g.readOnly(st.File) {
		return g.refusedLocked(e, st.File, now)
	}
	args := st.Words[1:]
	arg := ""
	if len(args) > 0 {
		arg = args[0]
	}
	switch st.Words[0] {
	case "echo":
		g.printLocked(e, st, strings.Join(args, " ")+"\n", now)
	case "err":
		g.writeLocked(e, &e.Stderr, []byte(strings.Join(args, " ")+"\n"), now)
	case "out":
		n, err := strconv.Atoi(arg)
		if err != nil || n < 0 || n > maxOut {
			return g.usageLocked(e, "out: a number of bytes up to 64 MiB", now)
		}
		g.printLocked(e, st, digits(n), now)
	case "env":
		g.printLocked(e, st, g.variableLocked(e, arg)+"\n", now)
	case "uname":
		g.printLocked(e, st, g.hello.Hostname+"\n", now)
	case "whoami":
		g.printLocked(e, st, string(g.hello.Sandbox)+"\n", now)
	case "id":
		g.printLocked(e, st, g.userLocked(e)+"\n", now)
	case "rm":
		if g.readOnly(arg) {
			return g.refusedLocked(e, arg, now)
		}
		delete(g.files, arg)
	case "spawn":
		e.Children = append(e.Children, hutch.KilledProcess{PID: g.pidLocked(), Command: arg})
	case "true":
	case "false":
		return ended(1)
	case "await":
		if _, ok := g.files[arg]; !ok {
			return outcome{wait: true}
		}
	case "sleep", "tick":
		return g.timedLocked(e, st.Words[0], arg, now)
	case "cat":
		return g.catLocked(e, arg, now)
	case "hang":
		return outcome{wait: true}
	case "exit":
		code, err := strconv.Atoi(arg)
		if err != nil && arg != "" {
			return g.usageLocked(e, "exit: a number", now)
		}
		g.endLocked(e, hutch.ExecExit, code&0xff, "", now)
		return outcome{wait: true}
	case "memory-high":
		g.m.short.Store(true)
		go g.m.emit(runtime.KindMemoryHigh)
	case "oom":
		g.m.kills.Add(1) // the kernel counts first
		go g.m.emit(runtime.KindOOMKill)
		g.endLocked(e, hutch.ExecSignal, 128+9, "KILL", now)
		return outcome{wait: true}
	case "oom-child": // a shell makes its child's end its own
		g.m.kills.Add(1)
		go g.m.emit(runtime.KindOOMKill)
		g.endLocked(e, hutch.ExecExit, 128+9, "", now)
		return outcome{wait: true}
	case "oom-other": // or does not
		g.m.kills.Add(1)
		go g.m.emit(runtime.KindOOMKill)
	case "oom-sandbox":
		go g.m.exit(true)
		return outcome{wait: true}
	case "crash":
		go g.m.exit(false)
		return outcome{wait: true}
	default:
		g.writeLocked(e, &e.Stderr, fmt.Appendf(nil, "sh: %s: not found\n", st.Words[0]), now)
		return ended(hutch.ExitNotFound)
	}
	return ended(0)
}

// maxOut bounds one "out".
const maxOut = 64 << 20

// digits is n bytes of 0123456789012…
func digits(n int) string {
	return strings.Repeat("0123456789", n/10+1)[:n]
}

func (g *Guest) usageLocked(e *execution, text string, now time.Time) outcome {
	g.writeLocked(e, &e.Stderr, []byte(text+"\n"), now)
	return ended(2)
}

// timedLocked is "sleep" and "tick". Its beginning is when the step before it ended.
func (g *Guest) timedLocked(e *execution, name, arg string, now time.Time) outcome {
	d, err := time.ParseDuration(arg)
	if f, ferr := strconv.ParseFloat(arg, 64); ferr == nil {
		unit := time.Second
		if name == "tick" {
			unit = time.Millisecond
		}
		d, err = time.Duration(f*float64(unit)), nil
	}
	if err != nil || d < 0 || (name == "tick" && d < time.Millisecond) {
		return g.usageLocked(e, name+": a length of time", now)
	}
	if e.Wake.IsZero() {
		e.Wake = now.Add(d)
	}
	if now.Before(e.Wake) {
		return outcome{wait: true, till: e.Wake}
	}
	if name == "sleep" {
		return ended(0)
	}
	// However long the machine stood still, it ticks once.
	e.Ticks++
	g.writeLocked(e, &e.Stdout, fmt.Appendf(nil, "tick %d\n", e.Ticks), now)
	e.Wake = now.Add(d)
	return outcome{wait: true, till: e.Wake}
}

func (g *Guest) catLocked(e *execution, file string, now time.Time) outcome {
	if file != "" {
		b, ok := g.files[file]
		if !ok {
			g.writeLocked(e, &e.Stderr, fmt.Appendf(nil, "cat: can't open '%s': No such file or directory\n", file), now)
			return ended(1)
		}
		g.writeLocked(e, &e.Stdout, b, now)
		return ended(0)
	}
	if !e.Spec.StdinOpen {
		return ended(0)
	}
	if n := len(e.Stdin); n > e.Copied {
		g.writeLocked(e, &e.Stdout, e.Stdin[e.Copied:], now)
		e.Copied = n
	}
	if e.StdinClosed {
		return ended(0)
	}
	return outcome{wait: true}
}

// printLocked is output that can be redirected.
func (g *Guest) printLocked(e *execution, st step, text string, now time.Time) {
	switch {
	case st.File == "":
		g.writeLocked(e, &e.Stdout, []byte(text), now)
	case st.Append:
		g.files[st.File] = append(g.files[st.File], text...)
	default:
		g.files[st.File] = []byte(text)
	}
}

func (g *Guest) writeLocked(e *execution, stream *[]byte, b []byte, now time.Time) {
	*stream = append(*stream, b...)
	e.LastOutput = now
	g.changeLocked()
}

// variableLocked is a command's environment: the template's, the sandbox's, its own.
func (g *Guest) variableLocked(e *execution, name string) string {
	for _, env := range []map[string]string{e.Spec.Env, g.hello.Env, g.hello.Defaults.Env} {
		if v, ok := env[name]; ok {
			return v
		}
	}
	return ""
}
