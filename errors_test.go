package hutch

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"strings"
	"testing"
)

// sentinels is every sentinel by its code.
var sentinels = map[Code]*Error{
	CodeBadRequest: ErrBadRequest, CodeUnknownField: ErrUnknownField, CodeUnauthenticated: ErrUnauthenticated,
	CodeForbidden: ErrForbidden, CodeNotFound: ErrNotFound, CodeSandboxGone: ErrSandboxGone, CodeConflict: ErrConflict,
	CodeInvalidState: ErrInvalidState, CodeStale: ErrStale, CodeIdempotencyMismatch: ErrIdempotencyMismatch,
	CodeTooLarge: ErrTooLarge, CodeRateLimited: ErrRateLimited, CodeUnavailable: ErrUnavailable,
	CodeNoCapacity: ErrNoCapacity, CodeGuestUnresponsive: ErrGuestUnresponsive, CodeDiskFull: ErrDiskFull,
	CodeUnsupported: ErrUnsupported, CodeShellBusy: ErrShellBusy, CodePortClosed: ErrPortClosed,
	CodeCancelled: ErrCancelled, CodeInternal: ErrInternal, CodeBudgetExhausted: ErrBudgetExhausted,
}

// Each Code constant in the source has a sentinel of that code, and no two are alike.
func TestEveryCodeHasItsSentinel(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := 0
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok && strings.HasPrefix(v.Names[0].Name, "Code") {
				constants++
				if _, ok := sentinels[Code(strings.Trim(lit.Value, `"`))]; !ok {
					t.Errorf("%s has no sentinel in this test: add one in errors.go and name it here", v.Names[0].Name)
				}
			}
		}
		return true
	})
	if constants != len(sentinels) {
		t.Errorf("errors.go has %d codes, this test %d sentinels", constants, len(sentinels))
	}
	for code, err := range sentinels {
		if err.Code != code || err.Message == "" || err.Field != "" || err.Err != nil {
			t.Errorf("the sentinel of %s is %+v", code, *err)
		}
		for other, o := range sentinels {
			if errors.Is(err, o) != (other == code) {
				t.Errorf("errors.Is(%s, %s) = %v", code, other, errors.Is(err, o))
			}
		}
	}
}

func TestErrorsMatchByCode(t *testing.T) {
	fromWire := &Error{Code: "not_found", Message: "whatever the other side said"}
	for name, err := range map[string]error{
		"the sentinel":         ErrNotFound,
		"one wrapped":          fmt.Errorf("load sandbox %s: %w", "i1", ErrNotFound),
		"one wrapped twice":    fmt.Errorf("a: %w", fmt.Errorf("b: %w", ErrNotFound)),
		"one among two":        errors.Join(io.EOF, ErrNotFound),
		"one with own text":    Errorf(CodeNotFound, "there is no sandbox %s", "i1"),
		"one with a cause":     Wrap(CodeNotFound, io.EOF, "there is no sandbox %s", "i1"),
		"one below another":    Wrap(CodeUnavailable, ErrNotFound, "try again"),
		"one from the wire":    fromWire,
		"a wrapped wire error": fmt.Errorf("call node: %w", fromWire),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: errors.Is(%v, ErrNotFound) = false", name, err)
		}
		if errors.Is(err, ErrForbidden) {
			t.Errorf("%s: errors.Is(%v, ErrForbidden) = true", name, err)
		}
	}
	for name, err := range map[string]error{
		"nil": nil, "another error": io.EOF, "its text": errors.New("not_found: not found"),
	} {
		if errors.Is(err, ErrNotFound) {
			t.Errorf("%s matches ErrNotFound", name)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	cause := errors.New("open /var/lib/x: permission denied")
	for _, c := range []struct {
		err                 *Error
		message, log, field string
		cause               error
	}{
		{
			Errorf(CodeConflict, "name %q is taken", "a"),
			`name "a" is taken`, `conflict: name "a" is taken`, "", nil,
		},
		{
			Errorf(CodeStale, "start: %w", ErrStale),
			"start: stale: superseded by a newer run of this sandbox",
			"stale: start: stale: superseded by a newer run of this sandbox: stale: superseded by a newer run of this sandbox", "", ErrStale,
		},
		{
			Wrap(CodeInternal, cause, "image %s cannot be read", "base"),
			"image base cannot be read", "internal: image base cannot be read: open /var/lib/x: permission denied", "", cause,
		},
		{
			Wrap(CodeInternal, nil, "internal error"),
			"internal error", "internal: internal error", "", nil,
		},
		{
			FieldErrorf("timeout_seconds", "at most %d", 5),
			"timeout_seconds: at most 5", "bad_request: timeout_seconds: at most 5", "timeout_seconds", nil,
		},
	} {
		if c.err.Message != c.message || c.err.Error() != c.log || c.err.Field != c.field {
			t.Errorf("got message %q, log %q, field %q;\nwant %q, %q, %q", c.err.Message, c.err.Error(), c.err.Field, c.message, c.log, c.field)
		}
		if !errors.Is(c.err.Unwrap(), c.cause) || (c.cause == nil) != (c.err.Unwrap() == nil) {
			t.Errorf("the cause of %v is %v, want %v", c.err, c.err.Unwrap(), c.cause)
		}
	}
}

// A cause given to Wrap is for the operator: the tenant's message does not hold it.
func TestWrapHidesTheCause(t *testing.T) {
	err := Wrap(CodeUnavailable, errors.New("dial unix /run/secret.sock"), "try again")
	if strings.Contains(err.Message, "secret") {
		t.Errorf("the message for the tenant is %q", err.Message)
	}
	if !strings.Contains(err.Error(), "secret") {
		t.Errorf("the text for the log is %q: it lacks the cause", err.Error())
	}
}
