package guestclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// request is one call.
type request struct {
	op     string // for errors
	method string
	path   string // with query
	body   any    // sent as JSON; nil for none
	raw    []byte // sent as it is, in place of body; the call may keep it past its end
	limit  int64  // most bytes of the answer
	repeat bool   // may be made twice
}

// call makes a call and decodes its answer into reply (nil: nobody wants it).
func (c *Client) call(ctx context.Context, req request, reply any) error {
	body, err := req.bytes()
	if err != nil {
		return err
	}
	try := func() ([]byte, error) { return c.roundTrip(ctx, req, bytes.NewReader(body)) }
	answer, err := c.exchange(ctx, try)
	if err != nil && req.repeat && ctx.Err() == nil && isBroken(err) {
		answer, err = c.exchange(ctx, try)
	}
	if err != nil {
		return callError(ctx, req.op, err)
	}
	return decode(req.op, answer, reply)
}

// bytes is the request's body.
func (r request) bytes() ([]byte, error) {
	if r.body == nil {
		return r.raw, nil
	}
	b, err := json.Marshal(r.body)
	if err != nil {
		return nil, hutch.Wrap(hutch.CodeInternal, fmt.Errorf("%s: %w", r.op, err), "the request could not be encoded")
	}
	if len(b) > guestapi.MaxBody {
		return nil, hutch.Errorf(hutch.CodeTooLarge, "the request is larger than the sandbox takes")
	}
	return b, nil
}

// exchange returns what roundTrip does. It returns when ctx ends, even if the
// transport is stuck in a write that the guest does not read: what is stuck goes on by
// itself until the transport gives the connection up.
func (c *Client) exchange(ctx context.Context, roundTrip func() ([]byte, error)) ([]byte, error) {
	type answer struct {
		body []byte
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		b, err := roundTrip()
		done <- answer{b, err}
	}()
	select {
	case a := <-done:
		return a.body, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// roundTrip sends a request and reads its answer.
func (c *Client) roundTrip(ctx context.Context, req request, body io.Reader) ([]byte, error) {
	resp, err := c.sendReader(ctx, req, body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return readAnswer(resp, req.limit)
}

// readAnswer reads an answer of at most limit bytes.
func readAnswer(resp *http.Response, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, &brokenError{err}
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("an answer of more than %d bytes", limit)
	}
	return b, nil
}

// send sends a request and returns the answer, its body unread, if it is a good one.
func (c *Client) send(ctx context.Context, req request, body []byte) (*http.Response, error) {
	return c.sendReader(ctx, req, bytes.NewReader(body))
}

// sendReader is send with a body that is read as it goes out.
func (c *Client) sendReader(ctx context.Context, req request, body io.Reader) (*http.Response, error) {
	hr, err := http.NewRequestWithContext(ctx, req.method, "http://guest"+req.path, body)
	if err != nil {
		return nil, err
	}
	if c.err != nil {
		return nil, c.err
	}
	resp, err := c.http.RoundTrip(hr)
	if err != nil {
		return nil, &brokenError{err}
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, smallBody))
	if err != nil {
		return nil, &brokenError{err}
	}
	return nil, refusal(resp.StatusCode, b)
}

// brokenError is a call that the connection failed under: another one may work.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

func isBroken(err error) bool {
	var b *brokenError
	return errors.As(err, &b)
}

// callError makes err, the failure of a call under ctx, an error for the caller.
func callError(ctx context.Context, op string, err error) error {
	var he *hutch.Error
	if errors.As(err, &he) {
		return he
	}
	if ctx.Err() != nil {
		return contextError(ctx, op)
	}
	return hutch.Wrap(hutch.CodeGuestUnresponsive, fmt.Errorf("%s: %w", op, err), "%s", hutch.ErrGuestUnresponsive.Message)
}

// contextError is the error of a call whose context ended.
func contextError(ctx context.Context, op string) error {
	cause := fmt.Errorf("%s: %w", op, context.Cause(ctx))
	if errors.Is(ctx.Err(), context.Canceled) {
		return hutch.Wrap(hutch.CodeCancelled, cause, "%s", hutch.ErrCancelled.Message)
	}
	return hutch.Wrap(hutch.CodeGuestUnresponsive, cause, "%s", hutch.ErrGuestUnresponsive.Message)
}

// nonsense is an answer that no guest agent gives.
func nonsense(format string, args ...any) error {
	return hutch.Wrap(hutch.CodeGuestUnresponsive, fmt.Errorf(format, args...), "the sandbox gave an answer that makes no sense")
}

// refusalCodes are the codes a guest may refuse a call with. The others are the
// node's and the control plane's to say: a guest must not be able to claim that its
// sandbox is gone, or that a key is not valid.
var refusalCodes = map[hutch.Code]bool{
	hutch.CodeBadRequest:       true,
	hutch.CodeForbidden:        true, // the acting user, inside
	hutch.CodeNotFound:         true,
	hutch.CodeConflict:         true,
	hutch.CodeInvalidState:     true,
	hutch.CodeShellBusy:        true,
	hutch.CodePortClosed:       true,
	hutch.CodeTooLarge:         true,
	hutch.CodeUnavailable:      true,
	hutch.CodeDiskFull:         true,
	hutch.CodeUnsupported:      true,
	hutch.CodeInternal:         true,
	guestapi.CodeNotIdentified: true,
}

// refusal is the error in the body of a failed call.
func refusal(status int, body []byte) error {
	var e guestapi.Error
	if err := json.Unmarshal(body, &e); err != nil {
		return nonsense("HTTP status %d without an error", status)
	}
	return refused(e)
}

// refused is an error that a guest gave, as far as it may.
func refused(e guestapi.Error) error {
	if !refusalCodes[e.Code] {
		return nonsense("a refusal with a code that no guest may use")
	}
	msg := cleanText(e.Error, maxText)
	if msg == "" {
		msg = "the sandbox refused the call"
	}
	return &hutch.Error{Code: e.Code, Message: msg, Field: cleanName(e.Field)}
}
