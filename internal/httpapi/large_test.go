package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestLargeAnswersTakeTurns(t *testing.T) {
	a := New(Config{}, Services{}, slog.New(slog.DiscardHandler))
	x := hutch.Exec{Result: &hutch.ExecResult{
		Stdout: hutch.Output{Head: make([]byte, hutch.MaxOutputBytes)},
		Stderr: hutch.Output{Tail: make([]byte, hutch.MaxOutputBytes)},
	}}
	first, end := context.WithCancel(t.Context())
	if err := a.reserve(first, x); err != nil {
		t.Fatal(err)
	}
	if err := a.reserve(t.Context(), hutch.Exec{Result: &hutch.ExecResult{}}); err != nil {
		t.Errorf("a small answer: %v", err)
	}
	why := errors.New("stopping")
	gone, leave := context.WithCancelCause(t.Context())
	waiting := make(chan error)
	go func() { waiting <- a.reserve(gone, x) }()
	leave(why)
	if err := <-waiting; !errors.Is(err, why) {
		t.Errorf("a second one beside the first: %v, want what ended its wait", err)
	}
	go func() { waiting <- a.reserve(t.Context(), x) }()
	end()
	if err := <-waiting; err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// ended implements Execs and ExecControl where they are asked about one command that has ended.
type ended struct {
	Execs
	ExecControl
	x hutch.Exec
}

func (e ended) Exec(context.Context, hutch.ProjectID, hutch.ExecID) (hutch.Exec, error) {
	return e.x, nil
}

func (e ended) WaitExec(context.Context, hutch.ProjectID, hutch.SandboxID, hutch.ExecID) (hutch.Exec, error) {
	return e.x, nil
}

func (e ended) CancelExec(context.Context, hutch.ProjectID, hutch.SandboxID, hutch.ExecID, *time.Duration) (hutch.Exec, error) {
	return e.x, nil
}

func TestLargeAnswersWaitForRoom(t *testing.T) {
	svc := ended{x: hutch.Exec{ID: "x", Result: &hutch.ExecResult{Stdout: hutch.Output{Head: make([]byte, largeOutput+1)}}}}
	a := New(Config{}, Services{Execs: svc, ExecControl: svc}, slog.New(slog.DiscardHandler))
	if err := a.large.Acquire(t.Context(), maxLargeMemory); err != nil {
		t.Fatal(err)
	}
	why := errors.New("stopping")
	ctx, leave := context.WithCancelCause(t.Context())
	leave(why)
	for name, handle := range map[string]func(http.ResponseWriter, *http.Request) error{
		"record": a.getExec, "cancel": a.cancelExec,
		"result": func(w http.ResponseWriter, r *http.Request) error { return a.waitExec(w, r, svc.x, false) },
	} {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		if err := handle(httptest.NewRecorder(), r); !errors.Is(err, why) {
			t.Errorf("%s: %v, want it to have waited", name, err)
		}
	}
}
