package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/failpoint"
)

// onceMode says what an Idempotency-Key does on a route.
type onceMode int

const (
	onceNone onceMode = iota
	// onceReplay: the answer is kept, and given again.
	onceReplay
	// onceAttach: the call's outcome is a record of its own (a command), so nothing is
	// kept but its id, and a repetition joins the command, under way or ended.
	onceAttach
	// onceByItself: the call is harmless to repeat as it is.
	onceByItself
)

const (
	maxIdempotencyKey = 255 // characters, as in the field

	// maxKeptAnswer bounds what is stored. An answer over it (a cancelled command's
	// with megabytes of output) is not kept; a repetition makes it again, which the calls
	// that have such answers allow.
	maxKeptAnswer = 1 << 20

	// recordTimeout bounds storing an outcome for a caller who may have left.
	recordTimeout = 10 * time.Second
)

// keyedCall is a request under an Idempotency-Key.
type keyedCall struct {
	ref     string // id of what it makes, the same however often it is repeated
	existed bool   // an earlier attempt was begun, and may have done something
	begun   func() // releases those waiting for this call; may be called twice
	keep    []byte // what to store instead of the answer; nil = the answer
}

// repeated reports whether an earlier attempt under the same Idempotency-Key was begun
// whose outcome is not known.
func repeated(r *http.Request) bool {
	k := infoOf(r).call
	return k != nil && k.existed
}

// once carries out a mutating request at most once per Idempotency-Key: the first is
// done and its outcome recorded, concurrent ones wait for it, later ones get the same.
// One whose process died half-way is taken over under the same id, so that what it made is
// found rather than made again.
//
// What is recorded: a success. Forgotten, so that it can be corrected and repeated: a
// refusal (4xx), by which nothing was done. Left open, to be taken over: anything else.
func (a *API) once(rt route, w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r, rt.bodyLimit())
	if errors.Is(err, hutch.ErrTooLarge) && rt.oversize != nil {
		return rt.oversize
	}
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	key := r.Header.Get(api.HeaderIdempotencyKey)
	if key == "" {
		return rt.handle(a, w, r)
	}
	if len(key) > maxIdempotencyKey || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
		return hutch.FieldErrorf(api.HeaderIdempotencyKey, "must be at most %d printable ASCII characters", maxIdempotencyKey)
	}

	release, err := a.calls.acquire(r.Context(), string(project(r))+"\x00"+key)
	if err != nil {
		return err
	}
	defer release()

	call := store.IdempotentCall{
		Project: project(r), Key: key, Request: requestHash(r, body),
		CreatedAt: time.Now().UTC(),
	}
	if rt.ref != nil {
		call.Ref = rt.ref()
	}
	if rt.claim != nil {
		id, release := rt.claim(a, r, body)
		defer release()
		call.Ref = cmp.Or(id, call.Ref) // not used if the key has an id already
	}
	stored, existed, err := a.svc.Idempotency.BeginCall(r.Context(), call)
	if err != nil && rt.stops {
		// With a full disk, say, which it may be the end of.
		a.log.WarnContext(r.Context(), "keyed call is made without a record", "request", infoOf(r).id, "op", rt.pattern, "error", err)
		return rt.handle(a, w, r)
	}
	if err != nil {
		return fmt.Errorf("begin keyed call: %w", err)
	}
	if existed && !bytes.Equal(stored.Request, call.Request) {
		return hutch.Errorf(hutch.CodeIdempotencyMismatch, "this %s was used for another method, path or body: use a new one for a new call", api.HeaderIdempotencyKey)
	}
	failpoint.At(failpoint.CallBegun)
	if existed {
		w.Header().Set(api.HeaderReplayed, "true")
	}
	if existed && stored.Status != 0 && rt.once == onceReplay {
		return replay(w, stored)
	}
	i := infoOf(r)
	i.call = &keyedCall{ref: stored.Ref, existed: existed, begun: release}
	return a.record(rt, w, r, stored)
}

// record carries out a keyed call and records its outcome.
func (a *API) record(rt route, w http.ResponseWriter, r *http.Request, call store.IdempotentCall) error {
	k := infoOf(r).call
	kept := &keeper{ResponseWriter: w, keep: rt.once == onceReplay}
	err := rt.handle(a, kept, r)

	status := kept.status
	if err != nil && status == 0 {
		status = Status(classify(err).Code)
	}
	// The outcome is the call's, not the caller's: record it also if they have left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), recordTimeout)
	defer cancel()
	var recErr error
	switch {
	case status >= 200 && status < 300 && !kept.overflow:
		call.Status, call.Body = status, kept.body.Bytes()
		if k.keep != nil {
			call.Body = k.keep
		}
		recErr = a.svc.Idempotency.FinishCall(ctx, call)
		if recErr == nil {
			failpoint.At(failpoint.CallFinished)
		}
	case status >= 400 && status < 500 && status != statusClientGone:
		recErr = a.svc.Idempotency.ForgetCall(ctx, call.Project, call.Key)
	}
	// A conflict: another call that joined the same command has recorded it.
	if recErr != nil && !errors.Is(recErr, hutch.ErrConflict) {
		// The caller has its outcome; a repetition will take the call over.
		a.log.ErrorContext(ctx, "keyed call not recorded", "request", infoOf(r).id, "op", rt.pattern, "error", recErr)
	}
	return err
}

func replay(w http.ResponseWriter, c store.IdempotentCall) error {
	if len(c.Body) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(c.Status)
	_, err := w.Write(c.Body)
	return clientGone(err)
}

// requestHash tells requests apart that must not share a key.
func requestHash(r *http.Request, body []byte) []byte {
	q := r.URL.Query()
	q.Del(tokenParam)
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n", r.Method, r.URL.Path, q.Encode())
	h.Write(body)
	return h.Sum(nil)
}

// keeper passes an answer on and keeps it. Its status is what the caller was told.
type keeper struct {
	http.ResponseWriter
	status   int
	keep     bool
	body     bytes.Buffer
	overflow bool
}

func (w *keeper) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *keeper) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.keep && !w.overflow {
		if w.overflow = w.body.Len()+len(p) > maxKeptAnswer; !w.overflow {
			w.body.Write(p)
		}
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *keeper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// calls lets one keyed call under way per key.
type calls struct {
	mu    sync.Mutex
	under map[string]chan struct{} // closed when the call is done
}

func newCalls() *calls { return &calls{under: make(map[string]chan struct{})} }

// acquire waits until no other call is under way for key. The release it returns may be
// called more than once.
func (c *calls) acquire(ctx context.Context, key string) (release func(), err error) {
	for {
		c.mu.Lock()
		busy, ok := c.under[key]
		if !ok {
			done := make(chan struct{})
			c.under[key] = done
			c.mu.Unlock()
			return sync.OnceFunc(func() {
				c.mu.Lock()
				delete(c.under, key)
				c.mu.Unlock()
				close(done)
			}), nil
		}
		c.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
