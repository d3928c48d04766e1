package hutch

import (
	"fmt"
	"time"
)

// Code is the machine-readable class of an error. The full list, with what each
// means, its HTTP status and whether a retry can help, is api/openapi/errors.json;
// a test keeps that file and these constants equal.
type Code string

// The error codes. Their texts for people are in docs/errors.md.
const (
	CodeBadRequest          Code = "bad_request"
	CodeUnknownField        Code = "unknown_field"
	CodeUnauthenticated     Code = "unauthenticated"
	CodeForbidden           Code = "forbidden"
	CodeNotFound            Code = "not_found"
	CodeSandboxGone         Code = "sandbox_gone"
	CodeConflict            Code = "conflict"
	CodeInvalidState        Code = "invalid_state"
	CodeStale               Code = "stale"
	CodeIdempotencyMismatch Code = "idempotency_mismatch"
	CodeTooLarge            Code = "too_large"
	CodeRateLimited         Code = "rate_limited"
	CodeUnavailable         Code = "unavailable"
	CodeNoCapacity          Code = "no_capacity"
	CodeGuestUnresponsive   Code = "guest_unresponsive"
	CodeDiskFull            Code = "disk_full"
	CodeBudgetExhausted     Code = "budget_exhausted"
	CodeUnsupported         Code = "unsupported"
	CodeShellBusy           Code = "shell_busy"
	CodePortClosed          Code = "port_closed"
	CodeCancelled           Code = "cancelled"
	CodeInternal            Code = "internal"
)

// Sentinels. Wrap them (fmt.Errorf("load sandbox %s: %w", id, ErrNotFound)) and
// match them with errors.Is, which compares codes.
var (
	ErrBadRequest          = &Error{Code: CodeBadRequest, Message: "the request is not valid"}
	ErrUnknownField        = &Error{Code: CodeUnknownField, Message: "the request has a field that is not known here"}
	ErrUnauthenticated     = &Error{Code: CodeUnauthenticated, Message: "no valid API key was sent"}
	ErrForbidden           = &Error{Code: CodeForbidden, Message: "this API key may not do that"}
	ErrNotFound            = &Error{Code: CodeNotFound, Message: "not found"}
	ErrSandboxGone         = &Error{Code: CodeSandboxGone, Message: "the sandbox has ended"}
	ErrConflict            = &Error{Code: CodeConflict, Message: "that exists already, or is being changed by another call"}
	ErrInvalidState        = &Error{Code: CodeInvalidState, Message: "not possible in the present state"}
	ErrStale               = &Error{Code: CodeStale, Message: "superseded by a newer run of this sandbox"}
	ErrIdempotencyMismatch = &Error{Code: CodeIdempotencyMismatch, Message: "this Idempotency-Key was used for another request"}
	ErrTooLarge            = &Error{Code: CodeTooLarge, Message: "the request is larger than allowed"}
	ErrRateLimited         = &Error{Code: CodeRateLimited, Message: "too many requests"}
	ErrUnavailable         = &Error{Code: CodeUnavailable, Message: "not available right now"}
	ErrNoCapacity          = &Error{Code: CodeNoCapacity, Message: "no capacity for another sandbox right now"}
	ErrGuestUnresponsive   = &Error{Code: CodeGuestUnresponsive, Message: "the sandbox does not answer"}
	ErrDiskFull            = &Error{Code: CodeDiskFull, Message: "the disk is full"}
	ErrBudgetExhausted     = &Error{Code: CodeBudgetExhausted, Message: "the project's budget is used up"}
	ErrUnsupported         = &Error{Code: CodeUnsupported, Message: "not supported here"}
	ErrShellBusy           = &Error{Code: CodeShellBusy, Message: "another command runs in this shell session"}
	ErrPortClosed          = &Error{Code: CodePortClosed, Message: "nothing in the sandbox listens on that port"}
	ErrCancelled           = &Error{Code: CodeCancelled, Message: "the caller went away or cancelled"}
	ErrInternal            = &Error{Code: CodeInternal, Message: "internal error"}
)

// Error is a failure whose Code and Message may be shown to the tenant.
type Error struct {
	Code    Code
	Message string // for the tenant: says what to do; no host paths, no addresses
	Field   string // the request field it is about; empty when it is about none
	Reason  string // a word that says more than Code: for sandbox_gone the SandboxEnd; may be empty
	// RetryAfter is how long a refused caller should wait; 0 = the transport's default.
	RetryAfter time.Duration
	Err        error // for the operator: never leaves the process; may be nil
}

// Errorf makes an Error of code with a message for the tenant. A %w operand
// becomes the operator's Err: its text is in Message too, so only wrap what the
// tenant may read. To hide a cause, use [Wrap].
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Message: err.Error()}
	if u, ok := err.(interface{ Unwrap() error }); ok {
		e.Err = u.Unwrap()
	}
	return e
}

// Wrap gives cause a code and a message for the tenant; cause itself is kept for
// the operator's log only.
func Wrap(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: cause}
}

// FieldErrorf makes a bad_request about one field of the request.
func FieldErrorf(field, format string, args ...any) *Error {
	return &Error{Code: CodeBadRequest, Field: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

// Error is for logs: code, message and cause.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the operator's cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches by code, so errors.Is(err, ErrNotFound) also holds for an error that
// was rebuilt from the wire.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}
