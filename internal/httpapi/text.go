package httpapi

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// text is a stream of a command as the API shows it.
type text struct {
	shown string
	exact []byte         // the bytes of head and tail, when they are not UTF-8
	cut   *api.StreamCut // when the stream was over its budget
}

// showStream turns what is kept of a stream into text: all of it, or head, marker and
// tail. A cut inside a character moves to its border, so a head or tail can be up to
// three bytes shorter than what was kept, and never longer; the counts say so.
func showStream(name string, o hutch.Output, collapse bool) text {
	head, tail := o.Head, o.Tail
	var t text
	if o.Dropped > 0 {
		head, tail = head[:wholeRunes(head)], tail[firstRune(tail):]
		t.cut = &api.StreamCut{
			Bytes: o.Total, HeadBytes: int64(len(head)), TailBytes: int64(len(tail)),
			DroppedBytes: o.Total - int64(len(head)) - int64(len(tail)),
			Path:         o.Path, FileDroppedBytes: o.FileDropped,
		}
	}
	if !utf8.Valid(head) || !utf8.Valid(tail) {
		t.exact = append(bytes.Clone(head), tail...)
	}
	view := func(b []byte) string {
		s := lossy(b)
		if collapse {
			s = collapseCR(s)
		}
		return s
	}
	t.shown = view(head)
	if t.cut != nil {
		t.shown += marker(name, *t.cut) + view(tail)
	}
	return t
}

// marker stands in the text where bytes were dropped.
func marker(name string, c api.StreamCut) string {
	where := "it was not kept in full anywhere"
	switch {
	case c.Path != "" && c.FileDroppedBytes > 0:
		where = fmt.Sprintf("all but the first %d bytes are in %s", c.FileDroppedBytes, c.Path)
	case c.Path != "":
		where = "the whole output is in " + c.Path
	}
	return fmt.Sprintf("\n[hutch: %d bytes of %s dropped here; %s]\n", c.DroppedBytes, name, where)
}

// lossy is b as text, with a replacement character for each run of other bytes.
func lossy(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// wholeRunes returns how many bytes of b remain if a character that it ends in the
// middle of is left out.
func wholeRunes(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		if c := b[len(b)-back]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-back:]) {
				return len(b) - back
			}
			break
		}
	}
	return len(b)
}

// firstRune returns how many bytes at the start of b are the end of a character.
func firstRune(b []byte) int {
	for i := range min(len(b), utf8.UTFMax-1) {
		if utf8.RuneStart(b[i]) {
			return i
		}
	}
	return min(len(b), utf8.UTFMax-1)
}

// collapseCR keeps of each line what a terminal would show in the end: what follows
// its last carriage return. One at the end of a line is part of the line's end.
func collapseCR(s string) string {
	if !strings.Contains(s, "\r") {
		return s
	}
	var b strings.Builder
	for line := range strings.Lines(s) {
		body, end := line, ""
		if strings.HasSuffix(body, "\n") {
			body, end = body[:len(body)-1], "\n"
		}
		if strings.HasSuffix(body, "\r") && end != "" {
			body, end = body[:len(body)-1], "\r\n"
		}
		body = strings.TrimRight(body, "\r")
		b.WriteString(body[strings.LastIndexByte(body, '\r')+1:])
		b.WriteString(end)
	}
	return b.String()
}

// showResult is an ended command's result, with its text.
func showResult(x hutch.Exec, collapse bool) api.ExecResult {
	if x.Result == nil {
		return api.ExecResult{ExecEnd: api.ExecEnd{ExecID: x.ID}}
	}
	stdout := showStream(hutch.Stdout, x.Result.Stdout, collapse)
	stderr := showStream(hutch.Stderr, x.Result.Stderr, collapse)
	return api.ExecResult{
		Stdout: stdout.shown, Stderr: stderr.shown,
		Lossy:        stdout.exact != nil || stderr.exact != nil,
		StdoutBase64: stdout.exact, StderrBase64: stderr.exact,
		ExecEnd: showEnd(x, stdout.cut, stderr.cut),
	}
}

func showEnd(x hutch.Exec, stdout, stderr *api.StreamCut) api.ExecEnd {
	r := x.Result
	end := api.ExecEnd{
		ExecID: x.ID, ExitCode: r.ExitCode, EndReason: r.End, Signal: r.Signal, Detail: r.Detail,
		DurationMS: max(0, r.EndedAt.Sub(r.StartedAt).Milliseconds()),
		CPUMS:      r.CPU.Milliseconds(), PeakMemoryBytes: r.PeakMemory,
		StartedAt: milli(r.StartedAt), EndedAt: milli(r.EndedAt),
		StdoutBytes: r.Stdout.Total, StderrBytes: r.Stderr.Total,
		StdoutCut: stdout, StderrCut: stderr, Truncated: stdout != nil || stderr != nil,
		Killed: showProcesses(r.Killed), LeftRunning: showProcesses(r.LeftRunning),
		Escalated: r.Escalated, LimitsHit: r.LimitsHit, Cwd: r.Cwd, ShellReplaced: r.ShellReplaced,
	}
	for _, c := range []*api.StreamCut{stderr, stdout} { // stdout's path wins
		if c != nil {
			end.DroppedBytes += c.DroppedBytes
			if c.Path != "" {
				end.OutputPath = c.Path
			}
		}
	}
	return end
}

// showStreamEnd is an ended command's end without its text, as a stream ends with.
func showStreamEnd(x hutch.Exec) api.ExecEnd {
	if x.Result == nil {
		return api.ExecEnd{ExecID: x.ID}
	}
	return showResult(x, false).ExecEnd
}

func showProcesses(ps []hutch.KilledProcess) []api.Process {
	var out []api.Process
	for _, p := range ps {
		out = append(out, api.Process{PID: p.PID, Command: p.Command, Signal: p.Signal})
	}
	return out
}

// showExec is a command's record; without its text unless full.
func showExec(x hutch.Exec, full, collapse bool) api.Exec {
	out := api.Exec{
		ExecID: x.ID, SandboxID: x.Sandbox, Running: x.Result == nil, PID: x.PID,
		Cmd: x.Spec.Cmd, Argv: x.Spec.Argv, Cwd: x.Spec.Cwd, User: x.Spec.User,
		StdinOpen: x.Spec.StdinOpen, Background: x.Spec.Background,
		TimeoutSeconds: x.Spec.Timeout.Seconds(), NoOutputTimeoutSeconds: x.Spec.NoOutputTimeout.Seconds(),
		MaxOutputBytes: x.Spec.MaxOutputBytes, CreatedAt: milli(x.CreatedAt),
		Shell: x.Spec.Shell, Login: x.Spec.Login, Tag: x.Spec.Tag,
	}
	if t := x.Spec.Terminal; t != nil {
		out.Terminal = &api.Terminal{Rows: t.Rows, Cols: t.Cols}
	}
	if len(x.Spec.Env) > 0 {
		out.EnvNames = keys(x.Spec.Env)
	}
	if x.Result != nil {
		res := showResult(x, collapse)
		if !full {
			res.Stdout, res.Stderr, res.StdoutBase64, res.StderrBase64, res.Lossy = "", "", nil, nil, false
		}
		out.Result = &res
	}
	return out
}
