package guest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/process"
	"hutch.dev/hutch/internal/guestapi"
)

// maxRequest bounds a request's JSON body. The largest part of one is an environment and a
// command line, which the kernel bounds by 2 MiB by default.
const maxRequest = 8 << 20

// call answers one request with a value to send as JSON, or an error.
type call func(r *http.Request) (any, error)

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+guestapi.PathHello, reply(a.postHello))
	for pattern, c := range map[string]call{
		"GET " + guestapi.PathHealth:                 a.getHealth,
		"GET " + guestapi.PathExec:                   a.listExecs,
		"GET " + guestapi.PathExec + "/{id}":         a.getExec,
		"DELETE " + guestapi.PathExec + "/{id}":      a.deleteExec,
		"POST " + guestapi.PathExec + "/{id}/stdin":  a.postStdin,
		"POST " + guestapi.PathExec + "/{id}/signal": a.postSignal,
		"POST " + guestapi.PathExec + "/{id}/stop":   a.postStop,
		"POST " + guestapi.PathExec + "/{id}/resize": a.postResize,
		"GET " + guestapi.PathProcesses:              a.getProcesses,
		"POST " + guestapi.PathRelieve:               a.postRelieve,
		"GET " + guestapi.PathPorts:                  a.getPorts,
		"GET " + guestapi.PathDisk:                   a.getDisk,
		"GET " + guestapi.PathShells:                 a.getShells,
		"DELETE " + guestapi.PathShells + "/{name}":  a.deleteShell,
	} {
		mux.Handle(pattern, a.gate(reply(c)))
	}
	mux.Handle("POST "+guestapi.PathExec, a.gate(http.HandlerFunc(a.postExec)))
	mux.Handle("GET "+guestapi.PathExec+"/{id}/follow", a.gate(http.HandlerFunc(a.follow)))
	a.files.Handle(func(pattern string, h http.Handler) { mux.Handle(pattern, a.gate(h)) })
	mux.Handle("POST "+guestapi.PathPorts+"/{port}/connect", a.gate(http.HandlerFunc(a.connectPort)))
	mux.Handle("/", a.gate(reply(func(*http.Request) (any, error) {
		return nil, hutch.Errorf(hutch.CodeNotFound, "there is no such call here")
	})))
	return mux
}

// gate refuses everything from a session that has not said hello in this life.
func (a *Agent) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.identified(r.Context()) {
			writeError(w, hutch.Errorf(guestapi.CodeNotIdentified, "say hello first"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func reply(c call) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := c(r)
		if err != nil {
			writeError(w, err)
			return
		}
		answer(w, v)
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller left: nobody to tell
}

// statusOf is the HTTP status of each code the agent gives.
var statusOf = map[hutch.Code]int{
	hutch.CodeBadRequest:        http.StatusBadRequest,
	hutch.CodeUnknownField:      http.StatusBadRequest,
	hutch.CodeNotFound:          http.StatusNotFound,
	hutch.CodeUnsupported:       http.StatusNotImplemented,
	hutch.CodeDiskFull:          http.StatusInsufficientStorage,
	hutch.CodeForbidden:         http.StatusForbidden,
	hutch.CodeConflict:          http.StatusConflict,
	hutch.CodeInvalidState:      http.StatusConflict,
	hutch.CodeShellBusy:         http.StatusConflict,
	hutch.CodePortClosed:        http.StatusBadGateway,
	hutch.CodeStale:             http.StatusConflict,
	hutch.CodeTooLarge:          http.StatusRequestEntityTooLarge,
	hutch.CodeUnavailable:       http.StatusServiceUnavailable,
	guestapi.CodeNotIdentified:  http.StatusServiceUnavailable,
	hutch.CodeCancelled:         499, // as proxies say of a caller who left
	hutch.CodeGuestUnresponsive: http.StatusGatewayTimeout,
	hutch.CodeInternal:          http.StatusInternalServerError,
}

func writeError(w http.ResponseWriter, err error) {
	var e *hutch.Error
	if !errors.As(err, &e) {
		e = hutch.Wrap(hutch.CodeInternal, err, "the guest agent met an internal error")
	}
	status, ok := statusOf[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(guestapi.Error{Error: e.Message, Code: e.Code, Field: e.Field}) // the caller left: nobody to tell
}

// decode reads a request's body. An empty one is all defaults.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxRequest))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooLarge):
		return hutch.Errorf(hutch.CodeTooLarge, "the request is larger than %d bytes", maxRequest)
	}
	return hutch.Errorf(hutch.CodeBadRequest, "the body is not the JSON of this call: %v", err)
}

func (a *Agent) postHello(r *http.Request) (any, error) {
	var h guestapi.Hello
	if err := decode(r, &h); err != nil {
		return nil, err
	}
	return a.hello(r.Context(), h)
}

func (a *Agent) getHealth(*http.Request) (any, error) {
	return guestapi.Health{Time: time.Now().UnixNano(), Execs: a.table.Running(), Zombies: a.table.Zombies()}, nil
}

// postExec starts a command. Who follows it need not ask a second time.
func (a *Agent) postExec(w http.ResponseWriter, r *http.Request) {
	var s guestapi.StartExec
	var o followOptions
	follow, err := flag(r, "follow")
	if err == nil && follow {
		o, err = readFollow(r)
	}
	if err == nil {
		err = decode(r, &s)
	}
	var e *process.Exec
	if err == nil {
		e, err = a.table.Start(s.ID, s.Spec)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	st := e.Status(true)
	if follow && st.Result == nil {
		if f, err := newFollower(w, e, o); err == nil {
			b, _ := json.Marshal(st) // a status can always be encoded
			w.Header().Set(guestapi.HeaderExec, base64.StdEncoding.EncodeToString(b))
			f.serve(r)
			return
		}
	}
	answer(w, st)
}

func (a *Agent) listExecs(*http.Request) (any, error) {
	list := guestapi.ExecList{Execs: []guestapi.ExecStatus{}}
	for _, e := range a.table.List() {
		list.Execs = append(list.Execs, e.Status(false))
	}
	return list, nil
}

// exec finds the command that the request is about.
func (a *Agent) exec(r *http.Request) (*process.Exec, error) {
	return a.table.Get(hutch.ExecID(r.PathValue("id")))
}

// found is exec for calls that a deleted command can still be asked.
func (a *Agent) found(r *http.Request) (*process.Exec, error) {
	return a.table.Find(hutch.ExecID(r.PathValue("id")))
}

func (a *Agent) getExec(r *http.Request) (any, error) {
	e, err := a.exec(r)
	if err != nil {
		return nil, err
	}
	return e.Status(true), nil
}

func (a *Agent) deleteExec(r *http.Request) (any, error) {
	return struct{}{}, a.table.Delete(hutch.ExecID(r.PathValue("id")))
}

func (a *Agent) postStdin(r *http.Request) (any, error) {
	e, err := a.exec(r)
	if err != nil {
		return nil, err
	}
	var in process.Input
	if in.Offset, err = number(r, "offset"); err != nil {
		return nil, err
	}
	if in.Append, err = flag(r, "append"); err != nil {
		return nil, err
	}
	if in.Append && in.Offset != 0 {
		return nil, hutch.FieldErrorf("offset", "has no meaning for what is appended")
	}
	if in.Last, err = flag(r, "close"); err != nil {
		return nil, err
	}
	return e.WriteStdin(r.Context(), in, r.Body)
}

func (a *Agent) postResize(r *http.Request) (any, error) {
	e, err := a.exec(r)
	if err != nil {
		return nil, err
	}
	var size hutch.TerminalSize
	if err := decode(r, &size); err != nil {
		return nil, err
	}
	return struct{}{}, e.Resize(size)
}

func (a *Agent) postSignal(r *http.Request) (any, error) {
	e, err := a.found(r)
	if err != nil {
		return nil, err
	}
	var s guestapi.Signal
	if err := decode(r, &s); err != nil {
		return nil, err
	}
	return struct{}{}, e.Signal(s.Signal, s.Tree)
}

// stopReasons are the ends a caller may give as the reason of a stop.
var stopReasons = map[hutch.ExecEnd]bool{
	hutch.ExecCancelled: true, hutch.ExecTimeout: true, hutch.ExecNoOutput: true,
	hutch.ExecOOM: true, hutch.ExecSandboxGone: true,
}

func (a *Agent) postStop(r *http.Request) (any, error) {
	e, err := a.found(r)
	if err != nil {
		return nil, err
	}
	var s guestapi.Stop
	if err := decode(r, &s); err != nil {
		return nil, err
	}
	if s.Reason == "" {
		s.Reason = hutch.ExecCancelled
	}
	if !stopReasons[s.Reason] {
		return nil, hutch.FieldErrorf("reason", "%.40q cannot be the reason of a stop", s.Reason)
	}
	if time.Duration(s.Grace) > hutch.MaxGrace {
		return nil, hutch.FieldErrorf("grace", "must be at most %s", hutch.MaxGrace)
	}
	// That the caller leaves does not end the stop: it has begun, and others may wait for it.
	err = e.Stop(r.Context(), process.StopOptions{Reason: s.Reason, Detail: s.Detail, Grace: time.Duration(s.Grace)})
	if err != nil {
		return nil, err
	}
	return e.Status(true), nil
}

func (a *Agent) getProcesses(*http.Request) (any, error) {
	ps, err := a.table.Processes()
	return guestapi.ProcessList{Processes: ps}, err
}

func (a *Agent) postRelieve(r *http.Request) (any, error) {
	e, err := a.table.Relieve(r.Context())
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, hutch.Errorf(hutch.CodeNotFound, "no command holds so much memory that its end would help")
	}
	return e.Status(true), nil
}

// number reads a whole number of the query that is not negative; missing is 0.
func number(r *http.Request, name string) (int64, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, hutch.FieldErrorf(name, "%.40q is not a whole number from 0 on", s)
	}
	return n, nil
}

// pathNumber reads a whole number of the path.
func pathNumber(r *http.Request, name string) (int, error) {
	s := r.PathValue(name)
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, hutch.FieldErrorf(name, "%.40q is not a whole number", s)
	}
	return n, nil
}

// flag reads a 0 or 1 of the query; missing is 0.
func flag(r *http.Request, name string) (bool, error) {
	switch s := r.URL.Query().Get(name); s {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, hutch.FieldErrorf(name, "%.40q is neither 0 nor 1", s)
	}
}
