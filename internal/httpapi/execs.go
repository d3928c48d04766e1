package httpapi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// wantedExec is what a request asks to be run, and how it wants to see it.
type wantedExec struct {
	hutch.ExecRequest
	collapse bool
}

// decodeExec reads the body of an exec. stream says that the answer is a stream.
func decodeExec(body []byte, stream bool) (wantedExec, error) {
	var (
		in  api.ExecRequest
		out wantedExec
	)
	if err := decode(body, &in); err != nil {
		return out, err
	}
	switch {
	case stream && in.Background:
		return out, hutch.FieldErrorf("background", "a stream waits for the command: start it by /exec and follow it")
	case in.CollapseCR && (stream || in.Background):
		return out, hutch.FieldErrorf("collapse_cr", "needs an answer that comes whole: ask for it with /exec, or GET the command's record")
	}
	out.collapse = in.CollapseCR
	out.Spec = hutch.ExecSpec{
		Cmd: in.Cmd, Argv: in.Argv, Cwd: in.Cwd, Env: in.Env, User: in.User,
		StdinOpen: in.StdinOpen, Background: in.Background,
		Shell: in.Shell, Login: in.Login, Tag: in.Tag,
	}
	if err := formOf(in, &out.Spec); err != nil {
		return out, err
	}
	if err := stdinOf(in, stream, &out); err != nil {
		return out, err
	}
	return out, limitsOf(in, &out.Spec)
}

// formOf reads in what a command is to run: a terminal, a shell session.
func formOf(in api.ExecRequest, spec *hutch.ExecSpec) error {
	if t := in.Terminal; t != nil {
		size, err := terminalSize(int64(cmp.Or(t.Rows, hutch.DefaultRows)), int64(cmp.Or(t.Cols, hutch.DefaultCols)))
		if err != nil {
			return err
		}
		spec.Terminal = &size
		if _, given := spec.Env["TERM"]; !given {
			spec.Env = maps.Clone(spec.Env)
			if spec.Env == nil {
				spec.Env = make(map[string]string)
			}
			spec.Env["TERM"] = terminalKind
		}
	}
	if in.Shell != "" && len(in.Argv) > 0 {
		return hutch.FieldErrorf("shell", "runs cmd, not argv")
	}
	if in.Login && in.Cmd == "" {
		return hutch.FieldErrorf("login", "is about how cmd is run: give cmd")
	}
	return nil
}

// stdinOf finds where the command's stdin comes from.
func stdinOf(in api.ExecRequest, stream bool, out *wantedExec) error {
	given := 0
	if in.Stdin != nil {
		given++
		out.Stdin = strings.NewReader(*in.Stdin)
	}
	if in.StdinBase64 != nil {
		given++
		out.Stdin = bytes.NewReader(in.StdinBase64)
	}
	if in.StdinOpen {
		given++
		if !stream && !in.Background {
			return hutch.FieldErrorf("stdin_open", "this call answers when the command has ended: use background or /exec/stream, whose %s header names the command to write to", api.HeaderExecID)
		}
	}
	if given > 1 {
		return hutch.FieldErrorf("stdin", "give one of stdin, stdin_base64 and stdin_open")
	}
	return nil
}

// limitsOf reads a command's limits. A command that is waited for always has a timeout.
func limitsOf(in api.ExecRequest, spec *hutch.ExecSpec) error {
	least := time.Millisecond
	if in.Background {
		least = 0
	}
	var err error
	if spec.Timeout, err = seconds("timeout_seconds", in.TimeoutSeconds, least, hutch.MaxExecTimeout); err != nil {
		return err
	}
	if in.TimeoutSeconds == nil && !in.Background {
		spec.Timeout = hutch.DefaultExecTimeout
	}
	if spec.NoOutputTimeout, err = seconds("no_output_timeout_seconds", in.NoOutputTimeoutSeconds, 0, hutch.MaxExecTimeout); err != nil {
		return err
	}
	if spec.Grace, err = seconds("grace_seconds", in.GraceSeconds, time.Millisecond, hutch.MaxGrace); err != nil {
		return err
	}
	if in.GraceSeconds == nil {
		spec.Grace = hutch.DefaultGrace
	}
	spec.MaxOutputBytes = hutch.DefaultOutputBytes
	if n := in.MaxOutputBytes; n != nil {
		if *n < hutch.MinOutputBytes || *n > hutch.MaxOutputBytes {
			return hutch.FieldErrorf("max_output_bytes", "must be between %d and %d", hutch.MinOutputBytes, hutch.MaxOutputBytes)
		}
		spec.MaxOutputBytes = *n
	}
	return nil
}

// startExec starts the command a request asks for, or joins the one that an earlier
// attempt under the same Idempotency-Key started.
func (a *API) startExec(r *http.Request, want wantedExec) (hutch.Exec, error) {
	k := infoOf(r).call
	if k != nil {
		want.ID = hutch.ExecID(k.ref)
	}
	x, err := a.svc.Execs.StartExec(r.Context(), project(r), sandboxID(r), want.ExecRequest)
	if err == nil && k != nil {
		k.begun() // concurrent repetitions join it from here on; after a failure they wait until that is recorded
	}
	return x, err
}

// exec runs a command and answers with its result, or at once when it is to run in the background.
func (a *API) exec(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxExecBody)
	if err != nil {
		return err
	}
	want, err := decodeExec(body, false)
	if err != nil {
		return err
	}
	x, err := a.startExec(r, want)
	if err != nil {
		return err
	}
	w.Header().Set(api.HeaderExecID, string(x.ID))
	if want.Spec.Background {
		w.Header().Set("Location", api.Version+"/execs/"+string(x.ID))
		return writeJSON(w, http.StatusAccepted, showExec(x, true, false))
	}
	return a.waitExec(w, r, x, want.collapse)
}

// waitExec answers with a command's result. An end within SyncHold gets an ordinary
// answer. After that the answer is begun, so that clients with a timer on silence stay, and
// blanks, which JSON allows before a value, keep it alive; what fails then is told in the result.
func (a *API) waitExec(w http.ResponseWriter, r *http.Request, x hutch.Exec, collapse bool) error {
	type outcome struct {
		x   hutch.Exec
		err error
	}
	done := make(chan outcome, 1)
	go func() { // ends when the wait does, at the latest with the request's context
		ended, err := a.svc.Execs.WaitExec(r.Context(), project(r), x.Sandbox, x.ID)
		if err == nil {
			err = a.reserve(r.Context(), ended)
		}
		done <- outcome{ended, err}
	}()
	hold := time.NewTimer(a.cfg.SyncHold)
	defer hold.Stop()
	select {
	case o := <-done:
		if o.err != nil {
			return o.err
		}
		return writeJSON(w, http.StatusOK, showResult(o.x, collapse))
	case <-hold.C:
	}

	out := newLiveWriter(w)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(a.cfg.Keepalive)
	defer beat.Stop()
	if err := out.write([]byte(" ")); err != nil {
		return clientGone(err)
	}
	for {
		select {
		case o := <-done:
			res := showResult(o.x, collapse)
			if o.err != nil {
				res = a.unknownResult(r, x, o.err)
			}
			return encode(out, res)
		case <-beat.C:
			if err := out.write([]byte(" ")); err != nil {
				return clientGone(err)
			}
		}
	}
}

// unknownResult is the result of a command whose outcome could not be had.
func (a *API) unknownResult(r *http.Request, x hutch.Exec, err error) api.ExecResult {
	body := errorBody(r, err)
	res := api.ExecResult{Stderr: fmt.Sprintf("hutch: %s\n", body.Error)}
	res.ExecID, res.ExitCode, res.Error, res.Code = x.ID, api.ExitNoResult, body.Error, body.Code
	if body.Code == hutch.CodeSandboxGone {
		res.EndReason = hutch.ExecSandboxGone
	}
	return res
}

func (a *API) listExecs(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.ExecQuery{
		Project: project(r), Sandbox: sandboxID(r),
		Running: q.flag("running", false), Cursor: q.str("cursor"), Limit: q.limit(maxPage),
	}
	if err := q.check(); err != nil {
		return err
	}
	list, next, err := a.svc.Execs.ListExecs(r.Context(), want)
	if err != nil {
		return err
	}
	out := make([]api.Exec, 0, len(list))
	for _, x := range list {
		out = append(out, showExec(x, false, false))
	}
	nextPage(w, r, next)
	return writeJSON(w, http.StatusOK, out)
}

// execOf loads the command a path names.
func (a *API) execOf(r *http.Request) (hutch.Exec, error) {
	x, err := a.svc.Execs.Exec(r.Context(), project(r), hutch.ExecID(r.PathValue("exec")))
	infoOf(r).sandbox = x.Sandbox
	return x, err
}

func (a *API) getExec(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	collapse := q.flag("collapse_cr", false)
	if err := q.check(); err != nil {
		return err
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	if err := a.reserve(r.Context(), x); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showExec(x, true, collapse))
}

func (a *API) cancelExec(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return err
	}
	grace, err := decodeCancel(body)
	if err != nil {
		return err
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	if x, err = a.svc.ExecControl.CancelExec(r.Context(), project(r), x.Sandbox, x.ID, grace); err != nil {
		return err
	}
	if err := a.reserve(r.Context(), x); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showExec(x, true, false))
}

// decodeCancel reads the body of a cancel; nil means the command's own grace.
func decodeCancel(body []byte) (*time.Duration, error) {
	var in api.CancelExec
	if len(bytes.TrimSpace(body)) > 0 {
		if err := decode(body, &in); err != nil {
			return nil, err
		}
	}
	grace, err := seconds("grace_seconds", in.GraceSeconds, 0, hutch.MaxGrace)
	if err != nil || in.GraceSeconds == nil {
		return nil, err
	}
	return &grace, nil
}

func (a *API) signalExec(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return err
	}
	in, err := decodeSignal(body)
	if err != nil {
		return err
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	if err := a.svc.ExecControl.SignalExec(r.Context(), project(r), x.Sandbox, x.ID, in.Signal, in.Tree); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// decodeSignal reads the body of a signal: a name, with or without SIG before it.
func decodeSignal(body []byte) (api.SignalExec, error) {
	var in api.SignalExec
	if err := decode(body, &in); err != nil {
		return in, err
	}
	in.Signal = strings.TrimPrefix(strings.ToUpper(in.Signal), "SIG")
	plain := func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') }
	if in.Signal == "" || len(in.Signal) > 8 || strings.ContainsFunc(in.Signal, plain) {
		return in, hutch.FieldErrorf("signal", "must be a signal's name, like INT or HUP")
	}
	return in, nil
}

// writeStdin gives the body to a command as it arrives, however long that takes.
func (a *API) writeStdin(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	offset, last := q.num("offset", -1), q.flag("close", false)
	if err := q.check(); err != nil {
		return err
	}
	if offset < 0 { // taking it for 0 would drop a second write as a repetition of the first
		return hutch.FieldErrorf("offset", "is needed: how many bytes of stdin have been written before these")
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	rc, data := http.NewResponseController(w), &body{r: r.Body}
	_ = rc.SetReadDeadline(time.Time{})
	n, err := a.svc.ExecControl.WriteStdin(r.Context(), project(r), x.Sandbox, x.ID, hutch.StdinChunk{Offset: offset, Data: data, End: last})
	if data.ended.Load() {
		infoOf(r).unread.Store(false)
	} else { // net/http reads on before it answers
		_ = rc.SetReadDeadline(time.Now().Add(a.cfg.BodyTimeout))
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.StdinReply{Offset: n, Closed: last})
}

// body marks a failure to read a request as its caller's.
type body struct {
	r     io.Reader
	ended atomic.Bool // read to its end
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = hutch.Wrap(hutch.CodeCancelled, err, "the body ended early")
	}
	return n, err
}
