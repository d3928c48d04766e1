package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// info is what is known of a request besides what it says itself.
type info struct {
	id    string // request id
	route string // pattern, "other" if none fits
	key   hutch.APIKey
	call  *keyedCall // under an Idempotency-Key; nil = none

	sandbox hutch.SandboxID // that it is about; empty = none, or not known
	changes bool            // it is to change something

	unread atomic.Bool // it has a body that was not read to its end; a proxied one is read beside its handler
}

type infoKey struct{}

func infoOf(r *http.Request) *info {
	if i, ok := r.Context().Value(infoKey{}).(*info); ok {
		return i
	}
	return &info{}
}

// project is whose request it is.
func project(r *http.Request) hutch.ProjectID { return infoOf(r).key.Project }

// ServeHTTP answers a request, whatever it is.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	i := &info{id: requestID(r), route: "other"}
	i.unread.Store(r.ContentLength != 0)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), infoKey{}, i))
	defer cancel()
	r = r.WithContext(ctx)
	rec := newRecorder(w, a.cfg.WriteTimeout)
	if i.unread.Load() {
		// Also for who has shown no key: net/http reads bodies that no handler does. Never
		// without a body: net/http then waits already for the caller to leave, and would
		// take the deadline's passing for that.
		_ = rec.rc.SetReadDeadline(time.Now().Add(a.cfg.BodyTimeout))
	}
	rec.Header().Set(api.HeaderRequestID, i.id)
	cors(rec.Header())
	defer func() {
		p := recover()
		broken := p != nil && a.recovered(rec, r, p)
		rec.extend() // for what net/http still holds back; it lifts the deadline after that
		a.observe(rec, r, i, time.Since(start))
		if broken {
			panic(http.ErrAbortHandler)
		}
	}()
	if r.Method == http.MethodOptions && presentedKey(r) == "" { // else it may be for a server inside
		rec.WriteHeader(http.StatusNoContent)
		return
	}
	if proxyPath(r) {
		a.ports.ServeHTTP(rec, r)
		return
	}
	if _, pattern := a.mux.Handler(r); pattern == "" {
		a.writeError(rec, r, a.noRoute(r))
		return
	}
	a.mux.ServeHTTP(rec, r)
}

// recovered deals with a handler's panic: a 500 if the answer has not begun; else it
// reports that the connection must be broken, so that nobody takes half an answer for one.
func (a *API) recovered(rec *recorder, r *http.Request, p any) (broken bool) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return true
	}
	what := fmt.Sprintf("%T", p) // its text may hold what a tenant wrote
	if re, ok := p.(runtime.Error); ok {
		what = re.Error()
	}
	i := infoOf(r)
	a.log.ErrorContext(r.Context(), "handler panicked", "request", i.id, "op", i.route, "panic", what, "stack", string(debug.Stack()))
	if rec.status != 0 {
		return true
	}
	a.writeError(rec, r, hutch.ErrInternal)
	return false
}

func (a *API) observe(rec *recorder, r *http.Request, i *info, d time.Duration) {
	status := rec.status
	if status == 0 {
		status = http.StatusOK
	}
	a.recordAudit(r, i, status)
	if a.svc.Metrics != nil {
		a.svc.Metrics.HTTPRequest(i.route, method(r), status, d)
	}
	level := slog.LevelInfo
	switch i.route {
	case "/healthz", "/readyz", "/metrics":
		level = slog.LevelDebug // asked every few seconds by machines
	}
	// The pattern, not the path and query: those hold names and perhaps a key.
	a.log.Log(r.Context(), level, "request",
		"request", i.id, "method", method(r), "op", i.route, "status", status, "took", d, "bytes", rec.bytes,
		"project", i.key.Project, "key", i.key.Prefix, "sandbox", i.sandbox)
}

// method is the request's method from a closed set.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}

// logID lets only what looks like an id into the log.
func logID(s string) string {
	if len(s) > 64 || strings.ContainsFunc(s, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') }) {
		return ""
	}
	return s
}

// noRoute explains why nothing answers at a path.
func (a *API) noRoute(r *http.Request) error {
	var can []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := r.Clone(r.Context())
		probe.Method = m
		if _, pattern := a.mux.Handler(probe); pattern != "" {
			can = append(can, m)
		}
	}
	if len(can) > 0 {
		return hutch.Errorf(hutch.CodeNotFound, "this path takes %s, not %s", strings.Join(can, " and "), method(r))
	}
	return hutch.Errorf(hutch.CodeNotFound, "there is no such endpoint: the API is described at %s/openapi.yaml", api.Version)
}

// requestID is the caller's id if it is short and plain, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get(api.HeaderRequestID)
	plain := func(c rune) bool { return c <= ' ' || c > '~' }
	if id != "" && len(id) <= 64 && !strings.ContainsFunc(id, plain) {
		return id
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// exposed are the headers that a script in a browser may read.
var exposed = strings.Join([]string{
	api.HeaderRequestID, api.HeaderExecID, api.HeaderNextCursor, api.HeaderReplayed,
	api.HeaderOutputOffset, api.HeaderFileMode, api.HeaderFileOwner, "Accept-Ranges", "Content-Range", "Link", "Retry-After",
}, ", ")

// cors lets any origin in: keys are sent by hand, never by a browser on its own.
func cors(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", strings.Join([]string{
		"Authorization", "Content-Type", "Last-Event-ID", "Range",
		api.HeaderAPIKey, api.HeaderIdempotencyKey, api.HeaderRequestID,
	}, ", "))
	h.Set("Access-Control-Expose-Headers", exposed)
	h.Set("Access-Control-Max-Age", "600")
}

// dropCORS takes back what cors set.
func dropCORS(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			h.Del(name)
		}
	}
}

// pieceSize is how much a caller must read within WriteTimeout.
const pieceSize = 64 << 10

// recorder notes what was answered, for the log, and cuts the connection of a caller who
// does not read for too long.
type recorder struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	status  int
	bytes   int64
}

func newRecorder(w http.ResponseWriter, timeout time.Duration) *recorder {
	return &recorder{ResponseWriter: w, rc: http.NewResponseController(w), timeout: timeout}
}

// extend gives the caller its time anew. A writer without deadlines (a test's) says so;
// nothing is lost.
func (w *recorder) extend() { _ = w.rc.SetWriteDeadline(time.Now().Add(w.timeout)) }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	total := 0
	for {
		piece := p[:min(len(p), pieceSize)]
		w.extend()
		n, err := w.ResponseWriter.Write(piece)
		w.bytes += int64(n)
		total += n
		if p = p[len(piece):]; err != nil || len(p) == 0 {
			return total, err
		}
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
