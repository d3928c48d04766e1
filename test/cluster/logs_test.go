package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"hutch.dev/hutch"
)

// journal collects the lines of a log.
type journal struct {
	mu    sync.Mutex
	lines []hutch.LogLine
}

func (j *journal) sink(l hutch.LogLine) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, l)
	return nil
}

func (j *journal) texts() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for _, l := range j.lines {
		out = append(out, l.Text)
	}
	return out
}

// logs reads what there is.
func (w *world) logs(sb hutch.Sandbox, tune ...func(*hutch.LogQuery)) []string {
	w.t.Helper()
	q := hutch.LogQuery{Project: project, Sandbox: sb.ID}
	for _, f := range tune {
		f(&q)
	}
	var j journal
	if err := w.c.Logs(w.ctx(), q, j.sink); err != nil {
		w.t.Fatalf("Logs: %v", err)
	}
	return j.texts()
}

func TestLogs(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	first := w.wait(w.exec(sb, "echo a; err b; echo c"))
	w.wait(w.exec(sb, "true"))
	w.wait(w.exec(sb, "out 25; echo d"))
	runs := w.exec(sb, "echo e; cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	w.sees(runs, "e\n")
	if _, err := w.c.WriteStdin(w.ctx(), project, sb.ID, runs.ID, hutch.StdinChunk{Data: strings.NewReader("half a li")}); err != nil {
		t.Fatal(err)
	}
	w.sees(runs, "half")
	want := []string{"a", "c", "b", "0123456789012345678901234d", "e"}
	if got := w.logs(sb); !slices.Equal(got, want) {
		t.Errorf("the log: %q, want %q", got, want)
	}
	for n := range 7 {
		tail := want[max(0, len(want)-n):]
		if n == 0 {
			tail = want // 0 = all
		}
		if got := w.logs(sb, func(q *hutch.LogQuery) { q.Tail = n }); !slices.Equal(got, tail) {
			t.Errorf("the last %d: %q, want %q", n, got, tail)
		}
	}
	if got := w.logs(sb, func(q *hutch.LogQuery) { q.Stream = hutch.Stderr }); !slices.Equal(got, []string{"b"}) {
		t.Errorf("stderr alone: %q", got)
	}
	var j journal
	if err := w.c.Logs(w.ctx(), hutch.LogQuery{Project: project, Sandbox: sb.ID}, j.sink); err != nil {
		t.Fatal(err)
	}
	if l := j.lines[2]; l.Exec != first.ID || l.Stream != hutch.Stderr || !l.At.Equal(first.CreatedAt) {
		t.Errorf("a line: %+v", l)
	}
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.logs(sb); len(got) != 5 || !slices.Equal(got[:4], want[:4]) || !strings.Contains(got[4], "paused") {
		t.Errorf("the log of a paused sandbox: %q", got)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.logs(sb); !slices.Equal(got, append(want, "half a li")) {
		t.Errorf("the log of a dead sandbox: %q", got)
	}
	for what, q := range map[string]hutch.LogQuery{
		"a stream that is none": {Project: project, Sandbox: sb.ID, Stream: "stdin"},
		"a negative tail":       {Project: project, Sandbox: sb.ID, Tail: -1},
	} {
		wantError(t, what, w.c.Logs(w.ctx(), q, j.sink), hutch.ErrBadRequest)
	}
	err := w.c.Logs(w.ctx(), hutch.LogQuery{Project: "other", Sandbox: sb.ID}, j.sink)
	wantError(t, "another project's look", err, hutch.ErrNotFound)
	err = w.c.Logs(w.ctx(), hutch.LogQuery{Project: project, Sandbox: sb.ID}, func(hutch.LogLine) error { return errInjected })
	wantError(t, "a sink that fails", err, errInjected)
}

// Last lines are held until their reader has them: slow readers are few.
func TestLogsHaveFewSlowReaders(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.wait(w.exec(sb, "echo a"))
	q := hutch.LogQuery{Project: project, Sandbox: sb.ID, Tail: 1}
	const readers = 8
	reading, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, readers)
	for range readers {
		go func() {
			done <- w.c.Logs(w.ctx(), q, func(hutch.LogLine) error {
				reading <- struct{}{}
				<-goOn
				return nil
			})
		}()
		within(t, "a reader has its first line", reading)
	}
	wantError(t, "one more", w.c.Logs(w.ctx(), q, func(hutch.LogLine) error { return nil }), hutch.ErrRateLimited)
	if got := w.logs(sb); !slices.Equal(got, []string{"a"}) { // which holds no more than a line
		t.Errorf("all lines: %q", got)
	}
	close(goOn)
	for range readers {
		if err := within(t, "a reader is done", done); err != nil {
			t.Error(err)
		}
	}
	if got := w.logs(sb, func(q *hutch.LogQuery) { q.Tail = 1 }); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after them: %q", got)
	}
}

// What is over a command's budget is there while its sandbox lives, and marked afterwards.
// No line is longer than its bound.
func TestLogsOfMuchOutput(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	loud := w.exec(sb, "out 200000; echo; echo end", func(r *hutch.ExecRequest) { r.Spec.MaxOutputBytes = 1000 })
	w.sees(loud, "end\n")
	w.wait(loud)
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	got := w.logs(sb)
	if len(got) != 4 || len(got[0]) != 250 || !strings.Contains(got[1], "bytes are not kept") || got[3] != "end" {
		t.Errorf("the log: %d lines, %.80q", len(got), got)
	}
	sb = w.create()
	w.wait(w.exec(sb, "out 200000; echo; echo end"))
	got = w.logs(sb)
	if len(got) != 5 || len(got[0]) != 64<<10 || len(strings.Join(got, "")) != 200_003 || got[4] != "end" {
		t.Errorf("the log of a long line: %d lines, the first of %d bytes", len(got), len(got[0]))
	}
}

func TestLogsFollow(t *testing.T) {
	for _, tail := range []int{0, 1} {
		t.Run(fmt.Sprintf("tail %d", tail), func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			w.wait(w.exec(sb, "echo past; echo before"))
			runs := w.exec(sb, "cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
			var at int64
			say := func(text string) {
				t.Helper()
				n, err := w.c.WriteStdin(w.ctx(), project, sb.ID, runs.ID, hutch.StdinChunk{Offset: at, Data: strings.NewReader(text)})
				if err != nil {
					t.Fatalf("WriteStdin: %v", err)
				}
				at = n
			}
			var j journal
			over := make(chan error, 1)
			ctx, q := w.ctx(), hutch.LogQuery{Project: project, Sandbox: sb.ID, Follow: true, Tail: tail}
			go func() { over <- w.c.Logs(ctx, q, j.sink) }()
			sees := func(want string) {
				t.Helper()
				eventually(t, "the log has "+want, func() error {
					if got := j.texts(); !slices.Contains(got, want) {
						return fmt.Errorf("it is %q", got)
					}
					return nil
				})
			}
			sees("before")
			say("one\ntw")
			sees("one")
			w.wait(w.exec(sb, "echo other"))
			sees("other")
			say("o\n")
			sees("two")
			// A pause keeps nobody from following.
			if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
				t.Fatal(err)
			}
			say("three\nrest")
			sees("three")
			w.sees(runs, "rest")
			if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
				t.Fatal(err)
			}
			if err := within(t, "the log ends with its sandbox", over); err != nil {
				t.Errorf("Logs: %v", err)
			}
			want := []string{"past", "before", "one", "other", "two", "three", "rest"}[min(tail, 1):]
			if got := j.texts(); !slices.Equal(got, want) {
				t.Errorf("the log: %q, want %q", got, want)
			}
		})
	}
}

func TestLogsFollowEndsWithItsCaller(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.exec(sb, "tick 1")
	ctx, leave := context.WithCancel(w.ctx())
	over := make(chan error, 1)
	seen := make(chan struct{}, 100_000)
	q := hutch.LogQuery{Project: project, Sandbox: sb.ID, Follow: true}
	go func() { over <- w.c.Logs(ctx, q, func(hutch.LogLine) error { seen <- struct{}{}; return nil }) }()
	within(t, "a line", seen)
	leave()
	wantError(t, "a caller who left", within(t, "the log ends", over), context.Canceled)
	go func() {
		over <- w.c.Logs(w.ctx(), q, func(l hutch.LogLine) error {
			if l.Text == "tick 3" {
				return errInjected
			}
			return nil
		})
	}()
	wantError(t, "a sink that fails", within(t, "the log ends", over), errInjected)
	// One of a dead sandbox ends by itself.
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	go func() { over <- w.c.Logs(w.ctx(), q, func(hutch.LogLine) error { return nil }) }()
	if err := within(t, "the log of a dead sandbox ends", over); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("of a dead sandbox: %v", err)
	}
}
