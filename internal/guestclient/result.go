package guestclient

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// checkHello checks an answer to Hello.
func checkHello(r *guestapi.HelloReply) error {
	if r.Protocol < guestapi.ProtocolVersion-1 || r.Protocol > guestapi.ProtocolVersion || r.Protocol <= 0 {
		return nonsense("hello: protocol %d, we speak %d", r.Protocol, guestapi.ProtocolVersion)
	}
	r.Version = cleanText(r.Version, maxCommand)
	r.BootNS = max(0, r.BootNS)
	return nil
}

// status checks a status with at most budget bytes of output a stream.
func (w *wireStatus) status(budget int) (guestapi.ExecStatus, error) {
	st, err := w.bare()
	if err != nil || w.Result == nil {
		return st, err
	}
	st.Result, err = w.Result.result(budget)
	return st, err
}

// listed checks a status of a list. Output that came with it is dropped.
func (w *wireStatus) listed() (guestapi.ExecStatus, error) {
	st, err := w.bare()
	if err != nil || w.Result == nil {
		return st, err
	}
	for _, o := range []*hutch.Output{&w.Result.Stdout, &w.Result.Stderr} {
		o.Head, o.Tail, o.Dropped = nil, nil, o.Total
	}
	st.Result, err = w.Result.result(0)
	return st, err
}

// bare checks all of a status but its result.
func (w *wireStatus) bare() (guestapi.ExecStatus, error) {
	st := w.ExecStatus
	switch {
	case !execID.MatchString(string(st.ID)):
		return st, nonsense("exec status: a malformed id")
	case st.PID < 0 || st.Stdout < 0 || st.Stderr < 0 || st.AllCPU < 0:
		return st, nonsense("exec status: a negative number")
	case st.Running != (w.Result == nil):
		return st, nonsense("exec status: running %v with a result %v", st.Running, w.Result != nil)
	}
	if t := time.Unix(0, st.StartedAt); t.Before(earliest) || t.After(latest) {
		st.StartedAt = 0
	}
	st.Tag = cleanText(st.Tag, maxTag)
	st.Result = nil
	return st, nil
}

// result checks a result with at most budget bytes of output a stream.
func (w *wireResult) result(budget int) (*hutch.ExecResult, error) {
	r := w.ExecResult
	switch {
	case !ends[r.End]:
		return nil, nonsense("exec result: an end that no guest may give")
	case r.ExitCode < 0 || r.ExitCode > 255:
		return nil, nonsense("exec result: exit code %d", r.ExitCode)
	case r.Signal != "" && !signalName.MatchString(r.Signal):
		return nil, nonsense("exec result: a malformed signal name")
	case r.CPU < 0 || r.PeakMemory < 0:
		return nil, nonsense("exec result: a negative number")
	}
	for _, o := range []*hutch.Output{&r.Stdout, &r.Stderr} {
		if err := checkOutput(o, budget); err != nil {
			return nil, err
		}
	}
	r.Detail = cleanText(r.Detail, maxText)
	r.Cwd = cleanPath(r.Cwd)
	if !replaced[r.ShellReplaced] {
		r.ShellReplaced = ""
	}
	r.StartedAt, r.EndedAt = cleanTime(r.StartedAt), cleanTime(r.EndedAt)
	r.Killed = cleanKilled(w.Killed.capped)
	r.LeftRunning = cleanKilled(w.LeftRunning.capped)
	r.LimitsHit = nil
	for _, l := range w.LimitsHit.capped {
		if l == "disk" || l == "pids" {
			r.LimitsHit = append(r.LimitsHit, l)
		}
	}
	return &r, nil
}

func checkOutput(o *hutch.Output, budget int) error {
	kept := int64(len(o.Head)) + int64(len(o.Tail))
	switch {
	case kept > int64(budget):
		return nonsense("exec result: %d bytes of output over a budget of %d", kept, budget)
	case o.Total < 0 || o.Dropped < 0 || o.FileDropped < 0 || o.FileDropped > o.Total:
		return nonsense("exec result: impossible byte counts")
	case o.Dropped > o.Total || o.Total-o.Dropped != kept:
		return nonsense("exec result: %d bytes kept of %d with %d dropped", kept, o.Total, o.Dropped)
	case o.Dropped == 0 && len(o.Tail) > 0:
		return nonsense("exec result: a tail of a stream that was not cut")
	}
	o.Path = cleanPath(o.Path)
	return nil
}

// cleanPath is s if it can be the path of something inside: a hint for people, not worth an
// error.
func cleanPath(s string) string {
	if len(s) > maxPath || s == "" || s[0] != '/' || cleanText(s, maxPath) != s {
		return ""
	}
	return s
}

func cleanKilled(in []hutch.KilledProcess) []hutch.KilledProcess {
	var out []hutch.KilledProcess
	for _, p := range in {
		if p.PID <= 0 {
			continue
		}
		if p.Signal != "HUP" && p.Signal != "TERM" && p.Signal != "KILL" {
			p.Signal = ""
		}
		p.Command = cleanText(p.Command, maxCommand)
		out = append(out, p)
	}
	return out
}

func cleanProcesses(in procList) []guestapi.Process {
	var out []guestapi.Process
	for _, p := range in.capped {
		if p.PID <= 0 || p.PPID < 0 {
			continue
		}
		if !execID.MatchString(string(p.Exec)) {
			p.Exec = ""
		}
		p.State = cleanText(p.State, 16)
		p.Command = cleanText(p.Command, maxCommand)
		out = append(out, p)
	}
	return out
}

// cleanTime is t in UTC, or no time at all if it cannot be right: some years cannot
// even be written to a record.
func cleanTime(t time.Time) time.Time {
	if t.Before(earliest) || t.After(latest) {
		return time.Time{}
	}
	return t.UTC()
}

// cleanName is s if it can be a field's name.
func cleanName(s string) string {
	if fieldName.MatchString(s) {
		return s
	}
	return ""
}

// cleanText is at most n bytes of s, valid UTF-8 on one line: nothing in it moves a
// terminal's cursor or turns its reading direction. It is a copy, so that a short
// text does not keep a long answer in memory.
func cleanText(s string, n int) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == utf8.RuneError:
			r = '?'
		case unicode.IsSpace(r):
			r = ' '
		case !unicode.IsGraphic(r): // controls, formats, unassigned
			continue
		}
		if b.Len()+utf8.RuneLen(r) > n {
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
