package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Error is a call that the server refused or failed.
type Error struct {
	Code       hutch.Code
	Message    string           // a sentence that says what to do
	Field      string           // of the request; may be empty
	EndReason  hutch.SandboxEnd // why the sandbox ended, when Code says that it has
	RetryAfter time.Duration    // what the server asked to wait; 0 = nothing
	Status     int              // HTTP; 0 when the failure came inside an answer
	RequestID  string           // what to quote to the operator; may be empty
}

// Error is the server's sentence.
func (e *Error) Error() string { return e.Message }

// Is matches the sentinels of package hutch by code.
func (e *Error) Is(target error) bool {
	var t *hutch.Error
	return errors.As(target, &t) && t.Code == e.Code
}

// lostError is a call whose answer did not come, or not whole.
type lostError struct{ err error }

func (e *lostError) Error() string { return "no answer from the server: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// retryable reports whether the same call may succeed later.
func retryable(err error) bool {
	var (
		e    *Error
		lost *lostError
	)
	switch {
	case errors.As(err, &e):
		return api.Retryable(e.Code)
	case errors.As(err, &lost):
		return true
	}
	return false
}

// maxErrorBody bounds what is read of an error's body.
const maxErrorBody = 1 << 20

// readError turns a failed answer into an Error. One that is not the API's own, as a proxy
// gives it, gets the code that its status stands for.
func readError(res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil {
		return &lostError{err}
	}
	var body api.Error
	if json.Unmarshal(b, &body) != nil || body.Code == "" {
		body = api.Error{Code: codeOf(res.StatusCode), Error: fmt.Sprintf("the server answered %s", res.Status)}
	}
	e := errorOf(body)
	e.Status = res.StatusCode
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	if e.RequestID == "" {
		e.RequestID = res.Header.Get(api.HeaderRequestID)
	}
	return e
}

func errorOf(b api.Error) *Error {
	return &Error{Code: b.Code, Message: b.Error, Field: b.Field, EndReason: b.EndReason, RequestID: b.RequestID}
}

func codeOf(status int) hutch.Code {
	switch status {
	case http.StatusUnauthorized:
		return hutch.CodeUnauthenticated
	case http.StatusForbidden:
		return hutch.CodeForbidden
	case http.StatusNotFound:
		return hutch.CodeNotFound
	case http.StatusRequestEntityTooLarge:
		return hutch.CodeTooLarge
	case http.StatusTooManyRequests:
		return hutch.CodeRateLimited
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return hutch.CodeUnavailable
	}
	if status >= 500 {
		return hutch.CodeInternal
	}
	return hutch.CodeBadRequest
}

var errSilent = errors.New("the server has been silent for too long")

// watched is a body that ends with an error when nothing comes for a while.
type watched struct {
	io.ReadCloser
	limit  time.Duration
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	timer  *time.Timer
	silent bool
}

func newWatched(body io.ReadCloser, limit time.Duration, cancel context.CancelCauseFunc) *watched {
	w := &watched{ReadCloser: body, limit: limit, cancel: cancel}
	w.timer = time.AfterFunc(limit, func() {
		w.mu.Lock()
		w.silent = true
		w.mu.Unlock()
		cancel(errSilent)
	})
	return w
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	n, err := w.ReadCloser.Read(p)
	// Stopped meanwhile: what the reader does with the bytes is not the server's silence.
	w.timer.Stop()
	if err != nil && err != io.EOF {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.silent {
			err = errSilent
		}
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	err := w.ReadCloser.Close()
	w.cancel(nil)
	return err
}
