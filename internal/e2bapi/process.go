package e2bapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// The messages of process.Process that start and follow processes.
type (
	processConfig struct {
		Cmd  string            `json:"cmd"`
		Args []string          `json:"args,omitempty"`
		Envs map[string]string `json:"envs,omitempty"`
		Cwd  string            `json:"cwd,omitempty"`
	}
	processInfo struct {
		Config processConfig `json:"config"`
		PID    uint32        `json:"pid"`
		Tag    string        `json:"tag,omitempty"`
	}
	processList struct {
		Processes []processInfo `json:"processes"`
	}
	terminal struct {
		Size *struct {
			Cols uint32 `json:"cols"`
			Rows uint32 `json:"rows"`
		} `json:"size"`
	}
	startProcess struct {
		Process processConfig `json:"process"`
		PTY     *terminal     `json:"pty"`
		Tag     string        `json:"tag"`
		Stdin   *bool         `json:"stdin"` // nil = true, as it was before there was a choice
	}
	processAnswer struct {
		Event processEvent `json:"event"`
	}
	processEvent struct {
		Start     *startEvent `json:"start,omitempty"`
		Data      *dataEvent  `json:"data,omitempty"`
		End       *endEvent   `json:"end,omitempty"`
		Keepalive *empty      `json:"keepalive,omitempty"`
	}
	startEvent struct {
		PID uint32 `json:"pid"`
	}
	dataEvent struct {
		Stdout []byte `json:"stdout,omitempty"`
		Stderr []byte `json:"stderr,omitempty"`
		PTY    []byte `json:"pty,omitempty"`
	}
	endEvent struct {
		ExitCode int32  `json:"exitCode"`
		Exited   bool   `json:"exited"`
		Status   string `json:"status"`
		Error    string `json:"error,omitempty"`
	}
)

// deadlineGrace is between TERM and KILL for a process whose time is over: its client sees
// neither, so it is there for the process to hang up, not to go on.
const deadlineGrace = 10 * time.Millisecond

func (a *API) startProcess(ctx context.Context, m *startProcess, out *frames[processAnswer]) error {
	spec, err := a.execSpec(ctx, m)
	if err != nil {
		return err
	}
	sb := accountOf(ctx).sb
	x, err := a.svc.Execs.StartExec(ctx, sb.Project, sb.ID, hutch.ExecRequest{Spec: spec})
	if err != nil {
		return explainStart(err, m)
	}
	if x.PID == 0 { // it never ran, and its record says why
		return a.notStarted(ctx, x)
	}
	a.processes.add(x, a.cfg.Retained)
	return a.follow(ctx, x, hutch.FollowOptions{}, out)
}

// execSpec turns a request into a command. The time that the call may take is the time that
// the process may run.
func (a *API) execSpec(ctx context.Context, m *startProcess) (hutch.ExecSpec, error) {
	acc := accountOf(ctx)
	if m.Process.Cmd == "" {
		return hutch.ExecSpec{}, rpcError(connect.CodeInvalidArgument, "process.cmd is missing: name the program to start")
	}
	cwd, err := a.directory(ctx, m.Process.Cwd)
	if err != nil {
		return hutch.ExecSpec{}, err
	}
	spec := hutch.ExecSpec{
		Argv: append([]string{m.Process.Cmd}, m.Process.Args...), Cwd: cwd, Env: m.Process.Envs, User: acc.user,
		StdinOpen: m.Stdin == nil || *m.Stdin, Tag: m.Tag, Background: true, Lossless: true, Grace: deadlineGrace,
	}
	if m.PTY != nil {
		spec.Terminal, spec.StdinOpen = m.PTY.size(), false
	}
	if end, limited := ctx.Deadline(); limited {
		// Longer than any command may run, the end of the sandbox comes first.
		if left := time.Until(end); left <= hutch.MaxExecTimeout {
			spec.Timeout = max(left, time.Millisecond)
		}
	}
	return spec, nil
}

func (t *terminal) size() *hutch.TerminalSize {
	size := hutch.TerminalSize{Rows: hutch.DefaultRows, Cols: hutch.DefaultCols}
	if t.Size != nil && t.Size.Rows > 0 && t.Size.Cols > 0 {
		size = hutch.TerminalSize{Rows: int(min(t.Size.Rows, hutch.MaxRows)), Cols: int(min(t.Size.Cols, hutch.MaxCols))}
	}
	return &size
}

// directory resolves a working directory that begins at the user's home, which only the
// sandbox knows.
func (a *API) directory(ctx context.Context, cwd string) (string, error) {
	if !strings.HasPrefix(cwd, "~") {
		return cwd, nil
	}
	ref, err := fileRef(ctx, cwd)
	if err != nil {
		return "", err
	}
	err = a.guest(ctx, func(g hutch.Guest, _ account) error {
		info, err := g.StatFile(ctx, ref)
		cwd = info.Path
		return err
	})
	if errors.Is(err, hutch.ErrNotFound) {
		return "", noDirectory(cwd)
	}
	return cwd, err
}

func noDirectory(cwd string) error {
	return rpcError(connect.CodeInvalidArgument, fmt.Sprintf("cwd '%s' does not exist", cwd))
}

// explainStart puts it into the words that clients are used to when a process could not be
// started.
func explainStart(err error, m *startProcess) error {
	if he := classify(err); he.Code == hutch.CodeBadRequest && he.Field == "cwd" && strings.HasPrefix(he.Message, "cwd: there is no") {
		return noDirectory(m.Process.Cwd)
	}
	return err
}

// notStarted says why a command has no process: what it was to write on its stderr.
func (a *API) notStarted(ctx context.Context, x hutch.Exec) error {
	var why strings.Builder
	_, err := a.svc.Execs.FollowExec(ctx, x.Project, x.Sandbox, x.ID, hutch.FollowOptions{}, func(ev hutch.OutputEvent) error {
		if why.Len() < 1000 {
			why.Write(ev.Data)
		}
		return nil
	})
	if err != nil {
		return err
	}
	text := strings.TrimSpace(why.String())
	if text == "" {
		text = fs.ErrNotExist.Error()
	}
	return rpcError(connect.CodeInvalidArgument, text)
}

func (a *API) connectProcess(ctx context.Context, m *selected, out *frames[processAnswer]) error {
	x, err := a.find(ctx, m.Process, true)
	if err != nil {
		return err
	}
	if x.Result != nil { // of what has ended only the end is told
		if err := out.send(startOf(x)); err != nil {
			return hutch.ErrCancelled
		}
		return a.end(x, out)
	}
	from, err := a.now(ctx, x)
	if err != nil {
		return err
	}
	return a.follow(ctx, x, from, out)
}

// now is where output goes on from. It is settled before the client hears of its connection: what
// it then types must not be answered before the place it is told from.
func (a *API) now(ctx context.Context, x hutch.Exec) (from hutch.FollowOptions, err error) {
	opt := hutch.FollowOptions{Live: true, Last: 1, NoWait: true} // one byte, for its offset
	_, err = a.svc.Execs.FollowExec(ctx, x.Project, x.Sandbox, x.ID, opt, func(ev hutch.OutputEvent) error {
		next := &from.Stdout
		if ev.Stream == hutch.Stderr {
			next = &from.Stderr
		}
		*next = max(*next, ev.GapTo, ev.Offset+int64(len(ev.Data)))
		return nil
	})
	return from, err
}

func startOf(x hutch.Exec) *processAnswer {
	return &processAnswer{processEvent{Start: &startEvent{uint32(x.PID)}}} //nolint:gosec // a pid
}

// follow sends what a process writes, from its start to its end. The caller may leave; the
// process goes on.
func (a *API) follow(ctx context.Context, x hutch.Exec, opt hutch.FollowOptions, out *frames[processAnswer]) error {
	if err := out.send(startOf(x)); err != nil {
		return hutch.ErrCancelled
	}
	out.breakSilence(&processAnswer{processEvent{Keepalive: &empty{}}})
	ended, err := a.svc.Execs.FollowExec(ctx, x.Project, x.Sandbox, x.ID, opt, func(ev hutch.OutputEvent) error {
		for data := ev.Data; len(data) > 0; {
			n := min(len(data), maxChunk)
			if err := out.send(&processAnswer{processEvent{Data: dataOf(x, ev.Stream, data[:n])}}); err != nil {
				return hutch.ErrCancelled
			}
			data = data[n:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	if ended.Result != nil {
		a.processes.ended(ended) // before its client is told, who may ask at once
	}
	return a.end(ended, out)
}

// maxChunk bounds the bytes of one message.
const maxChunk = 32 << 10

func dataOf(x hutch.Exec, stream string, data []byte) *dataEvent {
	switch {
	case x.Spec.Terminal != nil:
		return &dataEvent{PTY: data}
	case stream == hutch.Stderr:
		return &dataEvent{Stderr: data}
	default:
		return &dataEvent{Stdout: data}
	}
}

// end sends a process's end, the last message of its stream.
func (a *API) end(x hutch.Exec, out *frames[processAnswer]) error {
	switch {
	case x.Result == nil:
		return hutch.ErrUnavailable
	case x.Result.End == hutch.ExecSandboxGone:
		return hutch.ErrSandboxGone
	case x.Result.End == hutch.ExecTimeout:
		return rpcError(connect.CodeDeadlineExceeded, "the time that the process may run is over")
	}
	if err := out.send(&processAnswer{processEvent{End: endOf(*x.Result)}}); err != nil {
		return hutch.ErrCancelled
	}
	return nil
}

// endOf says how a process ended as os.ProcessState does.
func endOf(r hutch.ExecResult) *endEvent {
	e := &endEvent{ExitCode: int32(r.ExitCode), Exited: true, Status: fmt.Sprintf("exit status %d", r.ExitCode)} //nolint:gosec // at most 255
	signal := r.Signal
	if signal == "" && r.End != hutch.ExecExit && r.ExitCode > 128 {
		signal = strings.TrimPrefix(unix.SignalName(unix.Signal(r.ExitCode-128)), "SIG")
	}
	if signal != "" {
		n := unix.SignalNum("SIG" + strings.TrimPrefix(signal, "SIG"))
		e.ExitCode, e.Exited, e.Status = -1, false, "signal: "+n.String()
	}
	if e.ExitCode != 0 {
		e.Error = e.Status
	}
	return e
}

func (a *API) listProcesses(ctx context.Context, _ *empty) (*processList, error) {
	out := &processList{Processes: []processInfo{}}
	err := a.running(ctx, func(x hutch.Exec) bool {
		// The values of variables are not kept, so their names are not told either.
		c := processConfig{Cwd: x.Spec.Cwd}
		switch {
		case len(x.Spec.Argv) > 0:
			c.Cmd, c.Args = x.Spec.Argv[0], x.Spec.Argv[1:]
		case x.Spec.Login:
			c.Cmd, c.Args = "/bin/bash", []string{"-l", "-c", x.Spec.Cmd}
		default:
			c.Cmd, c.Args = "/bin/sh", []string{"-c", x.Spec.Cmd}
		}
		out.Processes = append(out.Processes, processInfo{Config: c, PID: uint32(x.PID), Tag: x.Spec.Tag}) //nolint:gosec // a pid
		return true
	})
	return out, err
}

// running hands the processes that run to fn, newest first, until it returns false.
func (a *API) running(ctx context.Context, fn func(hutch.Exec) bool) error {
	sb := accountOf(ctx).sb
	q := hutch.ExecQuery{Project: sb.Project, Sandbox: sb.ID, Running: true}
	for {
		page, next, err := a.svc.Execs.ListExecs(ctx, q)
		if err != nil {
			return err
		}
		for _, x := range page {
			if x.Result == nil && x.PID != 0 && !a.processes.knownEnd(x) && !fn(x) {
				return nil
			}
		}
		if q.Cursor = next; next == "" {
			return nil
		}
	}
}
