package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// maxMux is the most commands under way on one connection.
const maxMux = 64

// mux runs commands for one client over one WebSocket. A client that leaves ends none of them.
type mux struct {
	a *API
	r *http.Request
	s *socket

	wg  sync.WaitGroup
	mu  sync.Mutex
	run map[string]*muxed // under way, by the client's name
}

// muxed is a command of a connection.
type muxed struct {
	exec   hutch.ExecID // empty until started
	cancel bool         // asked for; further frames ask for nothing more
}

// execSocket serves a multiplexed connection.
func (a *API) execSocket(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	if err := checkUpgrade(r); err != nil {
		return err
	}
	if _, err := a.alive(r); err != nil {
		return err
	}
	s, err := a.openSocket(w, r)
	if err != nil {
		return err
	}
	defer s.close()
	defer s.endWith(r.Context())()
	ctx, left := context.WithCancel(r.Context())
	m := &mux{a: a, r: r, s: s, run: make(map[string]*muxed)}
	m.read(ctx)
	left()
	m.wg.Wait()
	return nil
}

func (m *mux) read(ctx context.Context) {
	for {
		typ, msg, err := m.s.conn.Reader(context.WithoutCancel(ctx))
		if err != nil {
			return
		}
		b, err := io.ReadAll(io.LimitReader(msg, maxText+1))
		if err != nil {
			return
		}
		if len(b) > maxText {
			m.s.refuse(errLongText.Message)
			return
		}
		var in api.MuxRequest
		if typ != websocket.MessageText || decode(b, &in) != nil || in.ID == "" || in.Cancel == (in.Cmd != "") || in.Cancel && in.TimeoutSeconds != nil {
			m.s.refuse(`frames are {"id":"1","cmd":"ls","timeout_seconds":60} or {"id":"1","cancel":true}, as text`)
			return
		}
		if in.Cancel {
			m.cancel(ctx, in.ID)
		} else {
			m.start(ctx, in)
		}
	}
}

// start begins a command, unless the client has one of that name, or too many.
func (m *mux) start(ctx context.Context, in api.MuxRequest) {
	m.mu.Lock()
	_, twice := m.run[in.ID]
	many := len(m.run) >= maxMux
	if !twice && !many {
		m.run[in.ID] = &muxed{}
	}
	m.mu.Unlock()
	switch {
	case twice:
		m.fail(in.ID, hutch.Errorf(hutch.CodeConflict, "a command of this id is under way on this connection"))
	case many:
		m.fail(in.ID, hutch.Errorf(hutch.CodeRateLimited, "%d commands are under way on this connection, which is the most", maxMux))
	default:
		m.wg.Go(func() {
			last := m.exec(ctx, in)
			m.mu.Lock()
			delete(m.run, in.ID) // before its client can know that the name is free
			m.mu.Unlock()
			_ = m.s.writeText(last)
		})
	}
}

// exec runs a command, sends its output and returns the last frame.
func (m *mux) exec(ctx context.Context, in api.MuxRequest) api.MuxReply {
	req := api.ExecRequest{Cmd: in.Cmd, TimeoutSeconds: in.TimeoutSeconds}
	spec := hutch.ExecSpec{Cmd: in.Cmd}
	if err := limitsOf(req, &spec); err != nil {
		return m.failure(in.ID, "", err)
	}
	x, err := m.a.svc.Execs.StartExec(ctx, project(m.r), sandboxID(m.r), hutch.ExecRequest{Spec: spec})
	if err != nil {
		return m.failure(in.ID, "", err)
	}
	m.mu.Lock()
	me := m.run[in.ID]
	me.exec = x.ID
	cancel := me.cancel
	m.mu.Unlock()
	if cancel {
		m.stop(ctx, in.ID, me)
	}
	opt := hutch.FollowOptions{Budgeted: true}
	c := newChunker(opt, func(p piece) error {
		data := lossy(p.data)
		if p.gapTo > 0 {
			data = fmt.Sprintf("\n[hutch: %d bytes of %s dropped here]\n", p.gapTo-p.offset, p.stream)
		}
		return m.s.writeText(api.MuxReply{ID: in.ID, Stream: p.stream, Data: data})
	})
	ended, err := m.a.svc.Execs.FollowExec(ctx, project(m.r), x.Sandbox, x.ID, opt, c.event)
	if err == nil {
		err = c.flush()
	}
	if err == nil && ended.Result == nil {
		err = hutch.ErrUnavailable
	}
	if err != nil {
		return m.failure(in.ID, x.ID, err)
	}
	return api.MuxReply{ID: in.ID, ExecID: x.ID, Exit: &ended.Result.ExitCode}
}

// cancel ends a command of this connection. How it ended is told in its last frame.
func (m *mux) cancel(ctx context.Context, id string) {
	m.mu.Lock()
	c, ok := m.run[id]
	var x hutch.ExecID
	if ok && !c.cancel {
		c.cancel, x = true, c.exec
	}
	m.mu.Unlock()
	switch {
	case !ok:
		m.fail(id, hutch.Errorf(hutch.CodeNotFound, "no command of this id is under way on this connection"))
	case x != "":
		m.stop(ctx, id, c)
	}
}

// stop cancels a command that has been started. After a failure it can be asked for again.
func (m *mux) stop(ctx context.Context, id string, c *muxed) {
	m.wg.Go(func() {
		_, err := m.a.svc.ExecControl.CancelExec(ctx, project(m.r), sandboxID(m.r), c.exec, nil)
		if err != nil && !errors.Is(err, hutch.ErrSandboxGone) && ctx.Err() == nil {
			m.mu.Lock()
			c.cancel = false
			m.mu.Unlock()
			m.fail(id, err)
		}
	})
}

func (m *mux) failure(id string, x hutch.ExecID, err error) api.MuxReply {
	b := errorBody(m.r, err)
	return api.MuxReply{ID: id, ExecID: x, Error: b.Error, Code: b.Code}
}

func (m *mux) fail(id string, err error) { _ = m.s.writeText(m.failure(id, "", err)) }
