package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Bounds of the memory that large answers take.
const (
	largeOutput = 4 << 20 // bytes of kept output from which on an answer counts

	// answerFactor is how many bytes an answer takes for each byte of output: JSON writes
	// a control character as six, and the text is held beside it.
	answerFactor = 8

	maxLargeMemory = 256 << 20 // one answer with the most output a command may keep, of both streams
)

// reserve waits until there is room in memory for an answer with the output of x, and
// holds it until the request ends.
func (a *API) reserve(ctx context.Context, x hutch.Exec) error {
	n := keptOutput(x)
	if n <= largeOutput {
		return nil
	}
	n = min(n*answerFactor, maxLargeMemory)
	if err := a.large.Acquire(ctx, n); err != nil {
		return context.Cause(ctx)
	}
	context.AfterFunc(ctx, func() { a.large.Release(n) })
	return nil
}

func keptOutput(x hutch.Exec) int64 {
	if x.Result == nil {
		return 0
	}
	out, errs := x.Result.Stdout, x.Result.Stderr
	return int64(len(out.Head) + len(out.Tail) + len(errs.Head) + len(errs.Tail))
}

// encode writes v as JSON as this API has it: <, > and & stay readable. It is one Write,
// of the encoder's own buffer: a large answer is in memory once.
func encode(w io.Writer, v any) error {
	out := written{w: w}
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	if err != nil && !out.begun {
		panic(err) // only types of package api come here, and those encode
	}
	return clientGone(err)
}

// written tells a failure to write from one to encode.
type written struct {
	w     io.Writer
	begun bool
}

func (o *written) Write(p []byte) (int, error) {
	o.begun = true
	return o.w.Write(p)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return encode(w, v)
}

// errClientGone marks a failure to write: there is nobody to tell about it.
var errClientGone = errors.New("the caller has left")

func clientGone(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(errClientGone, err)
}

func gone(sb hutch.Sandbox) error {
	e := hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s has ended (%s)", sb.ID, sb.EndReason)
	e.Reason = string(sb.EndReason)
	if sb.EndDetail != "" {
		e.Message += ": " + sb.EndDetail
	}
	return e
}

// explain is err as its caller should hear of it: when it is the server that ended a
// wait, for its own stop, not that the caller had left.
func explain(r *http.Request, err error) *hutch.Error {
	he := classify(err)
	if he.Code != hutch.CodeCancelled {
		return he
	}
	var why *hutch.Error
	if errors.As(context.Cause(r.Context()), &why) {
		return why
	}
	return he
}

// errorBody is what the caller is shown of err.
func errorBody(r *http.Request, err error) api.Error {
	he := explain(r, err)
	body := api.Error{Error: he.Message, Code: he.Code, Field: he.Field, RequestID: infoOf(r).id}
	if he.Code == hutch.CodeInternal {
		// Whatever text it has was not written for tenants.
		body.Error = "internal error: the server's log says more under request " + body.RequestID
	}
	if he.Code == hutch.CodeSandboxGone {
		body.EndReason = hutch.SandboxEnd(he.Reason)
	}
	return body
}

// levelOf is how loudly an answer's failure is logged. Only what nobody but the server can
// have caused is an error there; the rest a tenant may bring about as often as it likes.
func levelOf(c hutch.Code) slog.Level {
	switch c {
	case hutch.CodeInternal:
		return slog.LevelError
	case hutch.CodeUnavailable, hutch.CodeNoCapacity, hutch.CodeGuestUnresponsive:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

// writeError answers with err, and logs what is no mistake of the request.
func (a *API) writeError(w http.ResponseWriter, r *http.Request, err error) {
	info := infoOf(r)
	body := errorBody(r, err)
	status := Status(body.Code)
	if no := (*rangeError)(nil); errors.As(err, &no) {
		status = http.StatusRequestedRangeNotSatisfiable
	}
	if status >= http.StatusInternalServerError && body.Code != hutch.CodeUnsupported {
		a.log.Log(r.Context(), levelOf(body.Code), "request failed", "request", info.id, "op", info.route, "error", err)
	}
	if d := retryAfter(explain(r, err)); d > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
	}
	if body.Code == hutch.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="hutch"`)
	}
	if info.unread.Load() || body.Code == hutch.CodeUnauthenticated {
		// Nobody waits for the rest of a body that is not wanted, nor keeps a connection
		// for a caller who has shown no key.
		w.Header().Set("Connection", "close")
	}
	_ = writeJSON(w, status, body) // a caller who has left needs no answer
}

// seconds turns a number of a request into a duration between least and most.
func seconds(field string, v *float64, least, most time.Duration) (time.Duration, error) {
	if v == nil {
		return 0, nil
	}
	if *v < least.Seconds() || *v > most.Seconds() {
		return 0, hutch.FieldErrorf(field, "must be between %s and %s seconds", number(least.Seconds()), number(most.Seconds()))
	}
	d := time.Duration(*v * float64(time.Second))
	if d == 0 && *v > 0 {
		return 0, hutch.FieldErrorf(field, "is too small: a nanosecond is the least above 0")
	}
	return d, nil
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
