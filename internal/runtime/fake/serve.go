package fake

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// keepalive is how often a follow answer that has nothing to say says so.
const keepalive = 5 * time.Second

// statusOf is the HTTP status of a refusal. Clients look at the code.
var statusOf = map[hutch.Code]int{
	hutch.CodeBadRequest:       http.StatusBadRequest,
	hutch.CodeForbidden:        http.StatusForbidden,
	hutch.CodeNotFound:         http.StatusNotFound,
	hutch.CodeConflict:         http.StatusConflict,
	hutch.CodeInvalidState:     http.StatusConflict,
	hutch.CodeUnsupported:      http.StatusNotImplemented,
	guestapi.CodeNotIdentified: http.StatusConflict,
}

// mux serves guestapi.
func (g *Guest) mux() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, g.answer(h, sendJSON))
	}
	handle("POST "+guestapi.PathHello, g.serveHello)
	handle("GET "+guestapi.PathHealth, g.serveHealth)
	mux.HandleFunc("POST "+guestapi.PathExec, g.answer(g.serveStart, g.sendStart))
	handle("GET "+guestapi.PathExec, g.serveList)
	handle("GET "+guestapi.PathExec+"/{id}", g.serveExec)
	handle("DELETE "+guestapi.PathExec+"/{id}", g.serveDelete)
	handle("POST "+guestapi.PathExec+"/{id}/stdin", g.serveStdin)
	handle("POST "+guestapi.PathExec+"/{id}/signal", g.serveSignal)
	handle("POST "+guestapi.PathExec+"/{id}/stop", g.serveStop)
	handle("GET "+guestapi.PathProcesses, g.serveProcesses)
	handle("POST "+guestapi.PathRelieve, g.serveRelieve)
	mux.HandleFunc("GET "+guestapi.PathExec+"/{id}/follow", g.serveFollow)
	mux.HandleFunc("/", g.serveOther)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.thaw()
		g.mustLive()
		g.mu.Lock()
		garbled := g.garbled
		g.mu.Unlock()
		if garbled {
			_, _ = w.Write([]byte("\x00\xf5\xff{{{ this is no answer"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// answer carries out a call and sends what it returns.
func (g *Guest) answer(call func(r *http.Request) (any, error), send func(w http.ResponseWriter, r *http.Request, v any)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var v any
		err := g.admit(r)
		if err == nil {
			v, err = call(r)
		}
		g.speak(r)
		g.mustLive()
		if err != nil {
			refuse(w, err)
			return
		}
		send(w, r, v)
	}
}

func sendJSON(w http.ResponseWriter, _ *http.Request, v any) {
	_ = json.NewEncoder(w).Encode(v) // the node may be gone: nobody to tell
}

// sendStart answers a start, with what the command writes if that is asked for.
func (g *Guest) sendStart(w http.ResponseWriter, r *http.Request, v any) {
	st, ok := v.(guestapi.ExecStatus)
	g.mu.Lock()
	e := g.execs[st.ID]
	g.mu.Unlock()
	if !ok || e == nil || st.Result != nil || r.URL.Query().Get("follow") != "1" {
		sendJSON(w, r, v)
		return
	}
	b, _ := json.Marshal(st) // a status can always be encoded
	w.Header().Set(guestapi.HeaderExec, base64.StdEncoding.EncodeToString(b))
	if http.NewResponseController(w).Flush() == nil { // the node is told of the start, whatever comes
		g.follow(w, r, e)
	}
}

// speak waits while the guest is mute.
func (g *Guest) speak(r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.mute && !g.dead && r.Context().Err() == nil {
		g.waitLocked(r, nil)
	}
}

func refuse(w http.ResponseWriter, err error) {
	e := hutch.ErrInternal
	_ = errors.As(err, &e)
	status, ok := statusOf[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(guestapi.Error{Error: e.Message, Code: e.Code, Field: e.Field})
}

// serveOther answers what the script does not know.
func (g *Guest) serveOther(w http.ResponseWriter, r *http.Request) {
	if err := g.admit(r); err != nil {
		refuse(w, err)
		return
	}
	g.m.host.mu.Lock()
	h := g.m.host.services
	g.m.host.mu.Unlock()
	if h == nil {
		refuse(w, hutch.Errorf(hutch.CodeUnsupported, "a fake sandbox has no %s", r.URL.Path))
		return
	}
	h.ServeHTTP(lastWords{w, g}, r)
	g.mustLive()
}

// admit refuses everything but Hello until Hello was said.
func (g *Guest) admit(r *http.Request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.identified && r.URL.Path != guestapi.PathHello {
		return hutch.Errorf(guestapi.CodeNotIdentified, "say hello first")
	}
	return nil
}

func body(r *http.Request, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, guestapi.MaxBody))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return hutch.Errorf(hutch.CodeBadRequest, "malformed body: %v", err)
	}
	return nil
}

func (g *Guest) serveHello(r *http.Request) (any, error) {
	var h guestapi.Hello
	if err := body(r, &h); err != nil {
		return nil, err
	}
	if h.Protocol != guestapi.ProtocolVersion || len(h.Seed) != 64 || h.Sandbox == "" {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "hello needs a protocol, a sandbox and a seed of 64 bytes")
	}
	if h.Profile != "" && !h.Profile.Valid() {
		return nil, hutch.FieldErrorf("profile", "%q is not known", h.Profile)
	}
	if lockedBy(h.Profile) != lockedBy(g.m.spec.Profile) {
		return nil, hutch.Errorf(hutch.CodeConflict, "the machine is of another profile")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	reply := guestapi.HelloReply{Protocol: guestapi.ProtocolVersion, Version: "fake", BootNS: int64(time.Millisecond), Restored: g.restored}
	g.identified = h.Epoch > 0 || !lockedBy(h.Profile) // as the real one: it is nobody's yet
	g.restored, g.hello = false, h
	return reply, nil
}

func (g *Guest) serveHealth(*http.Request) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := guestapi.Health{Time: time.Now().UnixNano()}
	for _, e := range g.execs {
		if e.Result == nil {
			h.Execs++
		}
	}
	return h, nil
}

func (g *Guest) serveStart(r *http.Request) (any, error) {
	var s guestapi.StartExec
	if err := body(r, &s); err != nil {
		return nil, err
	}
	if s.ID == "" || (s.Spec.Cmd == "") == (len(s.Spec.Argv) == 0) {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "a command needs an id, and one of cmd and argv")
	}
	if lockedBy(g.m.spec.Profile) && isRoot(s.Spec.User) {
		return nil, &hutch.Error{Code: hutch.CodeForbidden, Field: "user", Message: "nothing runs as root in this sandbox, whose profile is locked"}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.execs[s.ID]
	if e == nil && !g.dead {
		e = g.startLocked(s)
	}
	if e == nil {
		panic(http.ErrAbortHandler) // as mustLive
	}
	return e.status(), nil
}

func (g *Guest) serveList(*http.Request) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var l guestapi.ExecList
	for _, e := range g.allLocked() {
		st := e.status()
		if st.Result != nil {
			r := *st.Result
			r.Stdout.Head, r.Stdout.Tail, r.Stderr.Head, r.Stderr.Tail = nil, nil, nil, nil
			st.Result = &r
		}
		l.Execs = append(l.Execs, st)
	}
	return l, nil
}

// findLocked returns the command that a call is about.
func (g *Guest) findLocked(r *http.Request) (*execution, error) {
	e := g.execs[hutch.ExecID(r.PathValue("id"))]
	if e == nil {
		return nil, hutch.Errorf(hutch.CodeNotFound, "no such command")
	}
	return e, nil
}

func (g *Guest) serveExec(r *http.Request) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.findLocked(r)
	if err != nil {
		return nil, err
	}
	return e.status(), nil
}

func (g *Guest) serveDelete(r *http.Request) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.findLocked(r)
	if err != nil {
		return nil, err
	}
	if e.Result == nil {
		return nil, hutch.Errorf(hutch.CodeInvalidState, "the command still runs: stop it first")
	}
	delete(g.execs, e.ID)
	return struct{}{}, nil
}

func (g *Guest) serveStdin(r *http.Request) (any, error) {
	offset, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	if err != nil || offset < 0 {
		return nil, hutch.FieldErrorf("offset", "a number of bytes")
	}
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, guestapi.MaxBody))
	if err != nil {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the input could not be read to its end")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.findLocked(r)
	if err != nil {
		return nil, err
	}
	have := int64(len(e.Stdin))
	switch {
	case !e.Spec.StdinOpen:
		return nil, hutch.Errorf(hutch.CodeInvalidState, "the command was started without stdin")
	case e.Result != nil, e.StdinClosed:
		return guestapi.StdinReply{Offset: have, Closed: true}, nil
	case offset > have:
		return nil, hutch.Errorf(hutch.CodeConflict, "the command has been given %d bytes so far", have)
	}
	if skip := have - offset; skip < int64(len(b)) {
		e.Stdin = append(e.Stdin, b[skip:]...)
	}
	e.StdinClosed = r.URL.Query().Get("close") == "1"
	g.changeLocked()
	return guestapi.StdinReply{Offset: int64(len(e.Stdin)), Closed: e.StdinClosed}, nil
}

func (g *Guest) serveSignal(r *http.Request) (any, error) {
	var s guestapi.Signal
	if err := body(r, &s); err != nil {
		return nil, err
	}
	n, ok := signals[s.Signal]
	if !ok {
		return nil, hutch.FieldErrorf("signal", "no signal has this name")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.findLocked(r)
	if err != nil {
		return nil, err
	}
	if e.Result != nil {
		return nil, hutch.Errorf(hutch.CodeInvalidState, "the command has ended")
	}
	if s.Signal == "TERM" && e.ignoresTerm() {
		return struct{}{}, nil
	}
	if s.Tree {
		e.Children = nil
	}
	g.endLocked(e, hutch.ExecSignal, 128+n, s.Signal, time.Now())
	return struct{}{}, nil
}

func (g *Guest) serveStop(r *http.Request) (any, error) {
	var s guestapi.Stop
	if err := body(r, &s); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.findLocked(r)
	if err != nil {
		return nil, err
	}
	if e.Result == nil {
		g.stopLocked(e, s, time.Now())
	} else if len(e.Children) > 0 {
		left := *e.Result // others may be reading the present one
		for _, c := range e.Children {
			c.Signal = "TERM"
			left.Killed = append(slices.Clone(left.Killed), c)
		}
		left.LeftRunning, e.Children = nil, nil
		e.Result = &left
	}
	for e.Result == nil && !g.dead {
		g.waitLocked(r, nil)
		if r.Context().Err() != nil {
			return nil, hutch.ErrInternal // the node is gone: nobody to tell
		}
	}
	return e.status(), nil
}

// waitLocked waits until something changes, tick fires, of which it reports true, or
// the call's context ends. It lets go of the lock meanwhile.
func (g *Guest) waitLocked(r *http.Request, tick <-chan time.Time) (ticked bool) {
	changed := g.changed
	g.mu.Unlock()
	defer g.mu.Lock()
	select {
	case <-changed:
	case <-tick:
		return true
	case <-r.Context().Done():
	}
	return false
}

func (g *Guest) serveProcesses(*http.Request) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var l guestapi.ProcessList
	for _, e := range g.allLocked() {
		if e.Result == nil {
			l.Processes = append(l.Processes, guestapi.Process{PID: e.PID, PPID: 1, Exec: e.ID, State: "S", Command: e.command()})
		}
		for _, c := range e.Children {
			l.Processes = append(l.Processes, guestapi.Process{PID: c.PID, PPID: 1, Exec: e.ID, State: "S", Command: c.Command})
		}
	}
	return l, nil
}

// serveRelieve ends the command that holds most, as if it were the largest.
func (g *Guest) serveRelieve(*http.Request) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var largest *execution
	for _, e := range g.allLocked() {
		if e.Result == nil && (largest == nil || len(e.Stdout) > len(largest.Stdout)) {
			largest = e
		}
	}
	if largest == nil {
		return nil, hutch.Errorf(hutch.CodeNotFound, "no command runs")
	}
	g.m.short.Store(false)
	g.stopLocked(largest, guestapi.Stop{Reason: hutch.ExecOOM, Detail: "ended to free memory"}, time.Now())
	return largest.status(), nil
}
