package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// MaxTerminalKeep is the longest time that a terminal may be asked to outlive its last client.
const MaxTerminalKeep = 24 * time.Hour

// loginShell is what a terminal runs when nothing else is asked for.
const loginShell = `if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi`

// terminalKind is the value of TERM in a terminal, which every client of today understands.
const terminalKind = "xterm-256color"

func terminalSize(rows, cols int64) (hutch.TerminalSize, error) {
	if rows < 1 || rows > hutch.MaxRows {
		return hutch.TerminalSize{}, hutch.FieldErrorf("rows", "must be between 1 and %d", hutch.MaxRows)
	}
	if cols < 1 || cols > hutch.MaxCols {
		return hutch.TerminalSize{}, hutch.FieldErrorf("cols", "must be between 1 and %d", hutch.MaxCols)
	}
	return hutch.TerminalSize{Rows: int(rows), Cols: int(cols)}, nil
}

// openTerminal starts a shell in a terminal and connects its caller to it. The shell is
// the connection's: some time after its last client has left, it is ended.
func (a *API) openTerminal(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	rows, cols := q.num("rows", hutch.DefaultRows), q.num("cols", hutch.DefaultCols)
	keep := q.seconds("keep_seconds", a.cfg.TerminalKeep, MaxTerminalKeep)
	spec := hutch.ExecSpec{
		Cmd: q.str("cmd"), Cwd: q.str("cwd"), User: q.str("user"), Tag: q.str("tag"),
		Env: map[string]string{"TERM": terminalKind}, Background: true, Lossless: true,
		Grace: hutch.DefaultGrace, MaxOutputBytes: hutch.DefaultOutputBytes,
	}
	hello := q.flag("hello", false)
	if err := q.check(); err != nil {
		return err
	}
	size, err := terminalSize(rows, cols)
	if err != nil {
		return err
	}
	if err := checkUpgrade(r); err != nil {
		return err
	}
	if spec.Cmd == "" {
		spec.Cmd = loginShell
	}
	spec.Terminal = &size
	x, err := a.svc.Execs.StartExec(r.Context(), project(r), sandboxID(r), hutch.ExecRequest{Spec: spec})
	if err != nil {
		return err
	}
	p, sb, id := project(r), x.Sandbox, x.ID // and no more of it: this may be kept for a day
	leave := a.terms.own(id, keep, func() { a.endTerminal(p, sb, id) })
	defer leave()
	return a.converse(w, r, conversation{exec: x, hello: hello})
}

// endTerminal cancels a terminal whose clients have left. One whose shell has ended is let
// be: what was left running in it was left on purpose.
func (a *API) endTerminal(p hutch.ProjectID, sb hutch.SandboxID, id hutch.ExecID) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*hutch.MaxGrace)
	defer cancel()
	if now, err := a.svc.Execs.Exec(ctx, p, id); err == nil && now.Result != nil {
		return
	}
	if _, err := a.svc.ExecControl.CancelExec(ctx, p, sb, id, nil); err != nil && !errors.Is(err, hutch.ErrSandboxGone) && !errors.Is(err, hutch.ErrNotFound) {
		a.log.WarnContext(ctx, "a terminal without clients could not be ended", "exec", id, "error", err)
	}
}

// attachTerminal connects its caller to the terminal of a command that runs.
func (a *API) attachTerminal(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	replay, rows, cols := q.num("replay", 0), q.num("rows", 0), q.num("cols", 0)
	hello := q.flag("hello", false)
	if err := q.check(); err != nil {
		return err
	}
	if err := checkUpgrade(r); err != nil {
		return err
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	if x.Spec.Terminal == nil {
		return hutch.Errorf(hutch.CodeInvalidState, "command %s has no terminal: follow it, and write to its stdin", x.ID)
	}
	c := conversation{exec: x, hello: hello, joins: true, replay: replay}
	if rows > 0 || cols > 0 {
		size, err := terminalSize(rows, cols)
		if err != nil {
			return err
		}
		c.size = &size
	}
	defer a.terms.join(x.ID)()
	return a.converse(w, r, c)
}

// conversation is one client at one terminal.
type conversation struct {
	exec   hutch.Exec
	hello  bool                // the first frame is to name the command
	joins  bool                // comes to a terminal that has been there; else it gets all of its output
	replay int64               // bytes of what was before, for one who joins
	size   *hutch.TerminalSize // to be set once its client misses nothing; nil = as it is

	// follows is closed once it is settled which output the client gets. Input waits for it: else
	// the answer to what it types might count as what was there before it came.
	follows chan struct{}
}

// converse passes on output and input until the command ends or the client leaves.
func (a *API) converse(w http.ResponseWriter, r *http.Request, c conversation) error {
	w.Header().Set(api.HeaderExecID, string(c.exec.ID))
	s, err := a.openSocket(w, r)
	if err != nil {
		return err
	}
	defer s.close()
	defer s.endWith(r.Context())()
	ctx, left := context.WithCancel(r.Context())
	// Input that the command does not take must not hold on to a client that has gone.
	defer context.AfterFunc(s.ctx, left)()
	c.follows = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		a.terminalOutput(ctx, r, s, c)
		left()
	})
	a.terminalInput(ctx, r, s, c)
	left()
	wg.Wait()
	return nil
}

// terminalOutput sends what the command writes, as it comes, then how it ended.
func (a *API) terminalOutput(ctx context.Context, r *http.Request, s *socket, c conversation) {
	if c.hello {
		if s.writeText(api.TerminalNotice{ExecID: c.exec.ID}) != nil {
			return // with it goes the context that input waits by
		}
	}
	send := func(ev hutch.OutputEvent) error {
		if len(ev.Data) == 0 {
			return nil
		}
		return s.write(websocket.MessageBinary, ev.Data)
	}
	var (
		opt   hutch.FollowOptions
		ended hutch.Exec
		err   error
	)
	if c.joins {
		opt.Stdout, err = a.replayTerminal(ctx, r, c, send)
		if err == nil && c.size != nil { // only now, so that what programs draw anew is seen
			_ = a.svc.ExecControl.ResizeExec(ctx, project(r), c.exec.Sandbox, c.exec.ID, *c.size) // fails only for what has ended
		}
	}
	close(c.follows)
	if err == nil {
		ended, err = a.svc.Execs.FollowExec(ctx, project(r), c.exec.Sandbox, c.exec.ID, opt, send)
	}
	switch {
	case errors.Is(err, errClientGone) || ctx.Err() != nil:
		return
	case err == nil && ended.Result == nil:
		err = hutch.ErrUnavailable
	}
	if err != nil {
		b := errorBody(r, err)
		_ = s.writeText(api.TerminalNotice{Error: b.Error, Code: b.Code})
	} else {
		a.terms.forget(c.exec.ID)
		_ = s.writeText(api.TerminalNotice{Exit: &ended.Result.ExitCode})
	}
	s.closeNormally() // ends the input
}

// replayTerminal sends the last of what was written before now. It returns the offset that
// output goes on from.
func (a *API) replayTerminal(ctx context.Context, r *http.Request, c conversation, send func(hutch.OutputEvent) error) (int64, error) {
	var next int64
	opt := hutch.FollowOptions{Live: true, Last: max(c.replay, 1), NoWait: true} // one byte at least, for its offset
	_, err := a.svc.Execs.FollowExec(ctx, project(r), c.exec.Sandbox, c.exec.ID, opt, func(ev hutch.OutputEvent) error {
		next = max(next, ev.GapTo, ev.Offset+int64(len(ev.Data)))
		if c.replay == 0 {
			return nil
		}
		return send(ev)
	})
	return next, err
}

// terminalInput gives the command what the client sends, until it leaves.
func (a *API) terminalInput(ctx context.Context, r *http.Request, s *socket, c conversation) {
	x := c.exec
	for {
		typ, in, err := s.conn.Reader(context.WithoutCancel(ctx))
		if err != nil {
			return
		}
		select {
		case <-c.follows:
		case <-ctx.Done():
			return
		}
		if typ == websocket.MessageBinary {
			a.typeIn(ctx, r, x, in)
			_, _ = io.Copy(io.Discard, in) // what it did not take
			continue
		}
		b, err := io.ReadAll(io.LimitReader(in, maxText+1))
		if err != nil {
			return
		}
		if len(b) > maxText {
			s.refuse(errLongText.Message)
			return
		}
		if err := a.terminalText(ctx, r, x, b); err != nil {
			s.refuse(err.Message)
			return
		}
	}
}

// typeIn is input. That the command has ended, or the sandbox, is told by the output.
func (a *API) typeIn(ctx context.Context, r *http.Request, x hutch.Exec, in io.Reader) {
	_, _ = a.svc.ExecControl.WriteStdin(ctx, project(r), x.Sandbox, x.ID, hutch.StdinChunk{Append: true, Data: in})
}

// terminalText takes a text frame. The reason of a closing has room for a short sentence.
func (a *API) terminalText(ctx context.Context, r *http.Request, x hutch.Exec, b []byte) *hutch.Error {
	var in api.TerminalInput
	if err := decode(b, &in); err != nil {
		return hutch.Errorf(hutch.CodeBadRequest, `text frames are {"resize":{"rows":24,"cols":80}} or {"stdin":"text"}; input goes in binary frames`)
	}
	if in.Resize != nil {
		size, err := terminalSize(int64(in.Resize.Rows), int64(in.Resize.Cols))
		if err != nil {
			return classify(err)
		}
		_ = a.svc.ExecControl.ResizeExec(ctx, project(r), x.Sandbox, x.ID, size) // fails only for what has ended
	}
	if in.Stdin != nil {
		a.typeIn(ctx, r, x, strings.NewReader(*in.Stdin))
	}
	return nil
}

// terminals are the commands that connections opened, and end some time after the last
// of them. They are this process's: after a restart nobody waits, and a terminal lives
// until its shell, or its sandbox, ends.
type terminals struct {
	mu     sync.Mutex
	all    map[hutch.ExecID]*ownedTerminal
	closed bool
	wg     sync.WaitGroup // ends under way
}

type ownedTerminal struct {
	clients int
	keep    time.Duration
	timer   *time.Timer // runs while there are no clients
	end     func()
}

func newTerminals() *terminals { return &terminals{all: make(map[hutch.ExecID]*ownedTerminal)} }

// own takes in a terminal with one client; leave is to be called when that has left.
func (t *terminals) own(id hutch.ExecID, keep time.Duration, end func()) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[id] = &ownedTerminal{clients: 1, keep: keep, end: end}
	return func() { t.leave(id) }
}

// join adds a client to a terminal, if it is one that a connection opened.
func (t *terminals) join(id hutch.ExecID) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.all[id]
	if !ok {
		return func() {}
	}
	o.clients++
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	return func() { t.leave(id) }
}

// forget drops a terminal whose command has ended: there is nothing left to end.
func (t *terminals) forget(id hutch.ExecID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, id)
}

func (t *terminals) leave(id hutch.ExecID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.all[id]
	if !ok {
		return
	}
	if o.clients--; o.clients > 0 || t.closed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(o.keep, func() {
		t.mu.Lock()
		if o.timer != timer || t.closed { // somebody has come back
			t.mu.Unlock()
			return
		}
		delete(t.all, id)
		t.wg.Add(1)
		t.mu.Unlock()
		defer t.wg.Done()
		o.end()
	})
	o.timer = timer
}

func (t *terminals) close() {
	t.mu.Lock()
	t.closed = true
	for _, o := range t.all {
		if o.timer != nil {
			o.timer.Stop()
		}
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// resizeExec changes the size of a command's terminal.
func (a *API) resizeExec(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	var in api.Terminal
	if err := decode(body, &in); err != nil {
		return err
	}
	size, err := terminalSize(int64(in.Rows), int64(in.Cols))
	if err != nil {
		return err
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	if err := a.svc.ExecControl.ResizeExec(r.Context(), project(r), x.Sandbox, x.ID, size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) listShells(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	list, err := g.ListShells(r.Context())
	if err != nil {
		return err
	}
	out := make([]api.Shell, 0, len(list))
	for _, s := range list {
		out = append(out, api.Shell{
			Name: s.Name, PID: s.PID, User: s.User, Cwd: s.Cwd, ExecID: s.Exec, Commands: s.Commands, StartedAt: milli(s.StartedAt),
		})
	}
	return writeJSON(w, http.StatusOK, out)
}

func (a *API) closeShell(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	err = g.CloseShell(r.Context(), r.PathValue("name"))
	if errors.Is(err, hutch.ErrNotFound) && repeated(r) {
		err = nil // an earlier attempt, whose answer was lost, closed it
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
