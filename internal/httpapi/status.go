package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"hutch.dev/hutch"
)

// statusClientGone is what proxies have come to use for a caller who left; nobody reads it but logs.
const statusClientGone = 499

// statuses is the only place where an error code becomes an HTTP status. A test holds it
// equal to api/openapi/errors.json.
var statuses = map[hutch.Code]int{
	hutch.CodeBadRequest:          http.StatusBadRequest,
	hutch.CodeUnknownField:        http.StatusBadRequest,
	hutch.CodeUnauthenticated:     http.StatusUnauthorized,
	hutch.CodeForbidden:           http.StatusForbidden,
	hutch.CodeNotFound:            http.StatusNotFound,
	hutch.CodeSandboxGone:         http.StatusNotFound,
	hutch.CodeConflict:            http.StatusConflict,
	hutch.CodeInvalidState:        http.StatusConflict,
	hutch.CodeStale:               http.StatusConflict,
	hutch.CodeIdempotencyMismatch: http.StatusUnprocessableEntity,
	hutch.CodeTooLarge:            http.StatusRequestEntityTooLarge,
	hutch.CodeRateLimited:         http.StatusTooManyRequests,
	hutch.CodeUnavailable:         http.StatusServiceUnavailable,
	hutch.CodeNoCapacity:          http.StatusServiceUnavailable,
	hutch.CodeGuestUnresponsive:   http.StatusBadGateway,
	hutch.CodeDiskFull:            http.StatusInsufficientStorage,
	hutch.CodeBudgetExhausted:     http.StatusPaymentRequired,
	hutch.CodeShellBusy:           http.StatusConflict,
	hutch.CodePortClosed:          http.StatusBadGateway,
	hutch.CodeUnsupported:         http.StatusNotImplemented,
	hutch.CodeCancelled:           statusClientGone,
	hutch.CodeInternal:            http.StatusInternalServerError,
}

// Status returns the HTTP status of an error code; 500 for one that is not known.
func Status(c hutch.Code) int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// retryAfters says how long a refused caller is told to wait when the error itself
// does not say. Short: creates end within milliseconds and clients add jitter.
var retryAfters = map[hutch.Code]time.Duration{
	hutch.CodeRateLimited: time.Second,
	hutch.CodeUnavailable: time.Second,
	hutch.CodeNoCapacity:  2 * time.Second,
}

// retryAfter returns what to tell the caller of an error to wait; 0 = nothing.
func retryAfter(e *hutch.Error) time.Duration {
	if e.RetryAfter > 0 {
		return e.RetryAfter
	}
	return retryAfters[e.Code]
}

// classify finds the error to show: the first hutch.Error in the chain, or what a
// context's end stands for, or internal.
func classify(err error) *hutch.Error {
	var he *hutch.Error
	switch {
	case errors.As(err, &he):
		return he
	case errors.Is(err, context.Canceled):
		return hutch.Wrap(hutch.CodeCancelled, err, "%s", hutch.ErrCancelled.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return hutch.Wrap(hutch.CodeUnavailable, err, "this took too long: try again")
	default:
		return hutch.Wrap(hutch.CodeInternal, err, "%s", hutch.ErrInternal.Message)
	}
}
