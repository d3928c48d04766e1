package e2bapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"hutch.dev/hutch"
)

// statusClientGone is what proxies have come to use for a caller who left; nobody reads it
// but logs.
const statusClientGone = 499

// rendering is how a code of ours is shown to E2B's clients.
type rendering struct {
	status int          // of the control API and of files
	rpc    connect.Code // of the agent's calls
	slug   string       // "error_code", where their API has one
}

// codeNotAcceptable is used between this package's own functions only: no code of ours has
// its status.
const codeNotAcceptable hutch.Code = "not_acceptable"

// renderings is the only place where an error code becomes one of E2B's.
var renderings = map[hutch.Code]rendering{
	hutch.CodeBadRequest:          {http.StatusBadRequest, connect.CodeInvalidArgument, ""},
	hutch.CodeUnknownField:        {http.StatusBadRequest, connect.CodeInvalidArgument, ""},
	hutch.CodeUnauthenticated:     {http.StatusUnauthorized, connect.CodeUnauthenticated, ""},
	hutch.CodeForbidden:           {http.StatusForbidden, connect.CodePermissionDenied, ""},
	hutch.CodeNotFound:            {http.StatusNotFound, connect.CodeNotFound, ""},
	hutch.CodeSandboxGone:         {http.StatusNotFound, connect.CodeUnavailable, ""},
	hutch.CodeConflict:            {http.StatusConflict, connect.CodeAlreadyExists, ""},
	hutch.CodeInvalidState:        {http.StatusConflict, connect.CodeFailedPrecondition, ""},
	hutch.CodeStale:               {http.StatusConflict, connect.CodeAborted, ""},
	hutch.CodeIdempotencyMismatch: {http.StatusUnprocessableEntity, connect.CodeInvalidArgument, ""},
	hutch.CodeTooLarge:            {http.StatusRequestEntityTooLarge, connect.CodeResourceExhausted, ""},
	hutch.CodeRateLimited:         {http.StatusTooManyRequests, connect.CodeResourceExhausted, ""},
	hutch.CodeUnavailable:         {http.StatusServiceUnavailable, connect.CodeUnavailable, ""},
	hutch.CodeNoCapacity:          {http.StatusServiceUnavailable, connect.CodeUnavailable, "sandbox_capacity_unavailable"},
	hutch.CodeGuestUnresponsive:   {http.StatusServiceUnavailable, connect.CodeUnavailable, ""},
	hutch.CodeDiskFull:            {http.StatusInsufficientStorage, connect.CodeResourceExhausted, ""},
	hutch.CodeBudgetExhausted:     {http.StatusPaymentRequired, connect.CodeResourceExhausted, ""},
	hutch.CodeUnsupported:         {http.StatusNotImplemented, connect.CodeUnimplemented, ""},
	hutch.CodeShellBusy:           {http.StatusConflict, connect.CodeFailedPrecondition, ""},
	hutch.CodePortClosed:          {http.StatusBadGateway, connect.CodeUnavailable, ""},
	hutch.CodeCancelled:           {statusClientGone, connect.CodeCanceled, ""},
	hutch.CodeInternal:            {http.StatusInternalServerError, connect.CodeInternal, "internal_server_error"},
	codeNotAcceptable:             {http.StatusNotAcceptable, connect.CodeInvalidArgument, ""},
}

// renderingOf returns how a code is shown; one that is not known is internal.
func renderingOf(c hutch.Code) rendering {
	if r, ok := renderings[c]; ok {
		return r
	}
	return renderings[hutch.CodeInternal]
}

// classify finds the error to show: the first hutch.Error in the chain, or what a context's
// end stands for, or internal.
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

// failure is the body of an error of the control API and of the agent's files.
type failure struct {
	Code      int    `json:"code"` // the status once more: one client looks only here
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}

// retryAfter is how long a refused caller is told to wait when the error does not say.
const retryAfter = time.Second

// writeFailure answers with an error and returns its status.
func writeFailure(w http.ResponseWriter, err error) int {
	he := classify(err)
	shown := renderingOf(he.Code)
	wait := he.RetryAfter
	if wait <= 0 && (shown.status == http.StatusTooManyRequests || shown.status == http.StatusServiceUnavailable) {
		wait = retryAfter
	}
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	}
	writeJSON(w, shown.status, failure{Code: shown.status, Message: he.Message, ErrorCode: shown.slug})
	return shown.status
}

// writeJSON answers with v. That the caller has left is not worth knowing.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// unauthenticated makes an error that clients show as a failed login.
func unauthenticated(format string, args ...any) *hutch.Error {
	return hutch.Errorf(hutch.CodeUnauthenticated, format, args...)
}
