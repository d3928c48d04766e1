package fake_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/fake"
)

const id hutch.SandboxID = "iaaaaaaaaaaaaaaaaaaaa"

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// start returns a running sandbox whose guest has been told who it is.
func start(t *testing.T) (*fake.Host, *fake.Runtime, runtime.Sandbox, *guestclient.Client) {
	t.Helper()
	h := fake.NewHost()
	t.Cleanup(h.Close)
	r := fake.New(h)
	sb := startOn(t, r)
	return h, r, sb, attach(t, sb)
}

// startOn returns a running sandbox.
func startOn(t *testing.T, r *fake.Runtime) runtime.Sandbox {
	t.Helper()
	sb, err := r.Create(within(t), spec(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Start(within(t), runtime.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return sb
}

func attach(t *testing.T, sb runtime.Sandbox) *guestclient.Client {
	t.Helper()
	c := guestclient.New(sb.Handles().Guest)
	t.Cleanup(func() { _ = c.Close() })
	hello := guestapi.Hello{
		Protocol: guestapi.ProtocolVersion, Sandbox: id, Seed: make([]byte, 64),
		Env:      map[string]string{"A": "sandbox", "B": "sandbox"},
		Defaults: hutch.ProcessDefaults{Env: map[string]string{"A": "template", "C": "template"}},
	}
	if _, err := c.Hello(within(t), hello); err != nil {
		t.Fatal(err)
	}
	return c
}

var execs int

func execID() hutch.ExecID {
	execs++
	return hutch.ExecID(fmt.Sprintf("e%020d", execs))
}

// run runs a command to its end.
func run(t *testing.T, c *guestclient.Client, s hutch.ExecSpec) *hutch.ExecResult {
	t.Helper()
	x := execID()
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: s}); err != nil {
		t.Fatalf("start %q: %v", s.Cmd, err)
	}
	return end(t, c, x)
}

func end(t *testing.T, c *guestclient.Client, x hutch.ExecID) *hutch.ExecResult {
	t.Helper()
	f, err := c.Follow(within(t), x, guestclient.FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for {
		fr, err := f.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if fr.Type == guestapi.FrameEnd {
			return f.Status().Result
		}
	}
}

func TestCommands(t *testing.T) {
	_, _, _, c := start(t)
	tests := []struct {
		cmd            string
		stdout, stderr string
		code           int
	}{
		{"echo a  'b  c' \"d;e\"", "a b  c d;e\n", "", 0},
		{"echo a; echo b\necho c", "a\nb\nc\n", "", 0},
		{"err oops; exit 3; echo never", "", "oops\n", 3},
		{"exit", "", "", 0},
		{"false && echo never", "", "", 1},
		{"true && echo then", "then\n", "", 0},
		{"out 12", "012345678901", "", 0},
		{"out x", "", "out: a number of bytes up to 64 MiB\n", 2},
		{"sleep 0.001; echo up", "up\n", "", 0},
		{"sleep 1ms", "", "", 0},
		{"sleep soon", "", "sleep: a length of time\n", 2},
		{"echo x > /f; echo y >> /f; cat /f; rm /f; cat /f", "x\ny\n", "cat: can't open '/f': No such file or directory\n", 1},
		{"cat", "", "", 0},
		{"env A; env B; env C; env D", "own\nsandbox\ntemplate\n\n", "", 0},
		{"whoami", string(id) + "\n", "", 0},
		{"frobnicate", "", "sh: frobnicate: not found\n", 127},
	}
	for _, tt := range tests {
		r := run(t, c, hutch.ExecSpec{Cmd: tt.cmd, Env: map[string]string{"A": "own"}})
		if r.End != hutch.ExecExit || r.ExitCode != tt.code || string(r.Stdout.Head) != tt.stdout || string(r.Stderr.Head) != tt.stderr {
			t.Errorf("%q: got %s %d, %q, %q", tt.cmd, r.End, r.ExitCode, r.Stdout.Head, r.Stderr.Head)
		}
	}
	if r := run(t, c, hutch.ExecSpec{Argv: []string{"echo", "a;b"}}); string(r.Stdout.Head) != "a;b\n" {
		t.Errorf("argv: got %q", r.Stdout.Head)
	}
}

func TestStops(t *testing.T) {
	_, _, _, c := start(t)
	tests := []struct {
		name      string
		spec      hutch.ExecSpec
		stop      *guestapi.Stop
		signal    string
		end       hutch.ExecEnd
		code      int
		with      string
		escalated bool
	}{
		{"cancelled", hutch.ExecSpec{Cmd: "sleep 1000"}, &guestapi.Stop{Reason: hutch.ExecCancelled, Grace: -1}, "", hutch.ExecCancelled, 143, "TERM", false},
		{"cancelled at once", hutch.ExecSpec{Cmd: "sleep 1000"}, &guestapi.Stop{Reason: hutch.ExecCancelled}, "", hutch.ExecCancelled, 137, "KILL", false},
		{"deaf to TERM", hutch.ExecSpec{Cmd: "hang"}, &guestapi.Stop{Reason: hutch.ExecCancelled, Grace: int64(time.Millisecond)}, "", hutch.ExecCancelled, 137, "KILL", true},
		{"timeout", hutch.ExecSpec{Cmd: "sleep 1000", Timeout: 5 * time.Millisecond}, nil, "", hutch.ExecTimeout, 124, "TERM", false},
		{"timeout, deaf", hutch.ExecSpec{Cmd: "hang", Timeout: 5 * time.Millisecond, Grace: time.Millisecond}, nil, "", hutch.ExecTimeout, 124, "KILL", true},
		{"no output", hutch.ExecSpec{Cmd: "echo x; sleep 1000", NoOutputTimeout: 5 * time.Millisecond}, nil, "", hutch.ExecNoOutput, 124, "TERM", false},
		{"signal", hutch.ExecSpec{Cmd: "sleep 1000"}, nil, "INT", hutch.ExecSignal, 130, "INT", false},
		{"oom", hutch.ExecSpec{Cmd: "oom"}, nil, "", hutch.ExecSignal, 137, "KILL", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := execID()
			if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: tt.spec}); err != nil {
				t.Fatal(err)
			}
			if tt.stop != nil {
				if st, err := c.Stop(within(t), x, *tt.stop); err != nil || st.Running {
					t.Fatalf("Stop: got %+v, %v", st, err)
				}
			}
			if tt.signal != "" {
				if err := c.Signal(within(t), x, guestapi.Signal{Signal: tt.signal}); err != nil {
					t.Fatalf("Signal: %v", err)
				}
			}
			r := end(t, c, x)
			if r.End != tt.end || r.ExitCode != tt.code || r.Escalated != tt.escalated {
				t.Errorf("got %s, code %d, escalated %v", r.End, r.ExitCode, r.Escalated)
			}
			if tt.end == hutch.ExecSignal {
				if r.Signal != tt.with {
					t.Errorf("signal %q, want %q", r.Signal, tt.with)
				}
			} else if len(r.Killed) != 1 || r.Killed[0].Signal != tt.with {
				t.Errorf("killed %+v, want one by %s", r.Killed, tt.with)
			}
		})
	}
}

func TestLeftRunning(t *testing.T) {
	_, _, _, c := start(t)
	x := execID()
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: hutch.ExecSpec{Cmd: "spawn server"}}); err != nil {
		t.Fatal(err)
	}
	if r := end(t, c, x); len(r.LeftRunning) != 1 || r.LeftRunning[0].Command != "server" {
		t.Fatalf("left running: %+v", r.LeftRunning)
	}
	if l, err := c.Processes(within(t)); err != nil || len(l.Processes) != 1 || l.Processes[0].Exec != x {
		t.Fatalf("processes: %+v, %v", l, err)
	}
	st, err := c.Stop(within(t), x, guestapi.Stop{Reason: hutch.ExecCancelled})
	if err != nil || len(st.Result.Killed) != 1 || len(st.Result.LeftRunning) != 0 || st.Result.End != hutch.ExecExit {
		t.Fatalf("stop of what was left: %+v, %v", st.Result, err)
	}
	if err := c.Delete(within(t), x); err != nil {
		t.Fatal(err)
	}
	if l, err := c.Processes(within(t)); err != nil || len(l.Processes) != 0 {
		t.Fatalf("processes: %+v, %v", l, err)
	}
	if _, err := c.Exec(within(t), x); !errors.Is(err, hutch.ErrNotFound) {
		t.Fatalf("after Delete: got %v, want not_found", err)
	}
}

// TestFollowBudget: with a budget a reader gets a head, a gap and a tail that together
// are the result; without one it gets every byte.
func TestFollowBudget(t *testing.T) {
	_, _, _, c := start(t)
	for _, n := range []int{0, 10, 999, 1000, 1001, 1249, 1250, 1251, 5000} {
		for _, from := range []int64{0, 100, 250, 900} {
			if from > int64(n) {
				continue
			}
			x := execID()
			s := hutch.ExecSpec{Cmd: fmt.Sprintf("out %d", n), MaxOutputBytes: 1000}
			if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: s}); err != nil {
				t.Fatal(err)
			}
			r := end(t, c, x)
			whole := []byte(strings.Repeat("0123456789", n/10+1)[:n])
			if r.Stdout.Total != int64(n) || !bytes.Equal(append(bytes.Clone(r.Stdout.Head), r.Stdout.Tail...), cut(whole, 1000)) {
				t.Errorf("out %d: result %+v", n, r.Stdout)
			}
			for _, budgeted := range []bool{true, false} {
				got, gaps := read(t, c, x, from, budgeted)
				want := whole[from:]
				if tail := n - 750; budgeted && n > 1000 && from < int64(tail) {
					want = append(bytes.Clone(whole[min(from, 250):250]), whole[tail:]...)
					if gaps != 1 {
						t.Errorf("out %d from %d: %d gaps", n, from, gaps)
					}
				}
				if !bytes.Equal(got, want) {
					t.Errorf("out %d from %d, budgeted %v: got %d bytes, want %d", n, from, budgeted, len(got), len(want))
				}
			}
		}
	}
}

// cut is what a budget leaves of a stream.
func cut(b []byte, budget int) []byte {
	if len(b) <= budget {
		return b
	}
	return append(bytes.Clone(b[:budget/4]), b[len(b)-(budget-budget/4):]...)
}

func read(t *testing.T, c *guestclient.Client, x hutch.ExecID, from int64, budgeted bool) (data []byte, gaps int) {
	t.Helper()
	f, err := c.Follow(within(t), x, guestclient.FollowOptions{Stdout: from, Budgeted: budgeted, Budget: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for {
		fr, err := f.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		switch fr.Type {
		case guestapi.FrameStdout:
			data = append(data, fr.Payload...)
		case guestapi.FrameGap:
			gaps++
		case guestapi.FrameEnd:
			return data, gaps
		default:
		}
	}
}

func TestFollowWithoutWaiting(t *testing.T) {
	_, _, _, c := start(t)
	x := execID()
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: hutch.ExecSpec{Cmd: "echo x; sleep 1000"}}); err != nil {
		t.Fatal(err)
	}
	f, err := c.Follow(within(t), x, guestclient.FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if fr, err := f.Next(within(t)); err != nil || string(fr.Payload) != "x\n" {
		t.Fatalf("got %+v, %v", fr, err)
	}
	now, err := c.Follow(within(t), x, guestclient.FollowOptions{NoWait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = now.Close() }()
	if fr, err := now.Next(within(t)); err != nil || string(fr.Payload) != "x\n" {
		t.Fatalf("got %+v, %v", fr, err)
	}
	if fr, err := now.Next(within(t)); err != nil || fr.Type != guestapi.FrameEnd || !now.Status().Running {
		t.Fatalf("got %+v, %v", fr, err)
	}
}

func TestStdin(t *testing.T) {
	_, _, _, c := start(t)
	x := execID()
	if _, err := c.StartExec(within(t), guestapi.StartExec{ID: x, Spec: hutch.ExecSpec{Cmd: "cat", StdinOpen: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stdin(within(t), x, 0, strings.NewReader("hello "), false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stdin(within(t), x, 100, strings.NewReader("far"), false); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("input with a hole: got %v, want conflict", err)
	}
	if r, err := c.Stdin(within(t), x, 0, strings.NewReader("hello world"), true); err != nil || r.Offset != 11 || !r.Closed {
		t.Fatalf("rest: got %+v, %v", r, err)
	}
	if r := end(t, c, x); string(r.Stdout.Head) != "hello world" {
		t.Errorf("got %q", r.Stdout.Head)
	}
}

// FuzzScript: no line makes the guest fall over, and none is understood without words.
func FuzzScript(f *testing.F) {
	f.Add("echo a > b; cat 'b' && exit 3")
	f.Add("'\"> >> ;&&&\n")
	f.Fuzz(func(t *testing.T, line string) {
		for _, words := range fake.ParseScript(line) {
			if len(words) == 0 {
				t.Fatalf("a step without words in %q", line)
			}
		}
	})
}
