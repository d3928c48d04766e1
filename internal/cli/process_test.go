package cli_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// process is the command line as a process of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	pipe   io.Closer // stdout's
	stdout *bufio.Reader
	stderr *syncBuffer
}

func (w *world) start(t *testing.T, args ...string) *process {
	t.Helper()
	return w.startWith(t, nil, args...)
}

func (w *world) startWith(t *testing.T, stdin *os.File, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, args...), stderr: &syncBuffer{}}
	// A race-built process otherwise sleeps for a second at its end.
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", asCLI+"=1", cli.EnvURL+"="+w.vars[cli.EnvURL], cli.EnvKey+"="+w.vars[cli.EnvKey])
	p.cmd.Stderr, p.cmd.Stdin = p.stderr, stdin
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.pipe, p.stdout = out, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// line waits for a line of its stdout.
func (p *process) line() string {
	p.t.Helper()
	s, err := p.stdout.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read its output: %v; stderr %s", err, p.stderr)
	}
	return strings.TrimSuffix(s, "\n")
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for its exit and returns the code.
func (p *process) end() int {
	p.t.Helper()
	timer := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, p.stdout)
	err := p.cmd.Wait()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// talking is a program that says a line and then waits to be stopped; stops is told
// when it was.
func talking(stops chan<- struct{}) httpapitest.Program {
	return func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "begun\n")
		<-p.Stopped
		stops <- struct{}{}
		return 143
	}
}

func TestSignalsCancelTheCommand(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		code   int
	}{{os.Interrupt, 130}, {syscall.SIGTERM, 143}} {
		w := newWorld(t)
		stops := make(chan struct{}, 1)
		w.Program("talk", talking(stops))
		p := w.start(t, "exec", w.ok("create"), "talk")
		if got := p.line(); got != "begun" {
			t.Fatalf("it printed %q", got)
		}
		p.signal(c.signal)
		if code := p.end(); code != c.code {
			t.Errorf("code %d after %v, want %d; stderr %s", code, c.signal, c.code, p.stderr)
		}
		select {
		case <-stops:
		default:
			t.Errorf("after %v the command runs on", c.signal)
		}
		if !strings.Contains(p.stderr.String(), "cancelled") {
			t.Errorf("stderr %q", p.stderr)
		}
	}
}

func TestLaterSignalsAreImpatient(t *testing.T) {
	w := newWorld(t)
	cancels, open := make(chan struct{}, 8), make(chan struct{})
	w.OnCall = func(m string) error {
		if m == "CancelExec" {
			cancels <- struct{}{}
			<-open // a command that does not want to end
		}
		return nil
	}
	stops := make(chan struct{}, 1)
	w.Program("talk", talking(stops))
	p := w.start(t, "exec", w.ok("create"), "talk")
	p.line()
	p.signal(os.Interrupt)
	<-cancels
	p.signal(os.Interrupt)
	<-cancels
	p.signal(os.Interrupt)
	if code := p.end(); code != 130 {
		t.Errorf("code %d, want 130; stderr %s", code, p.stderr)
	}
	close(open)
	<-stops
}

func TestFollowLeavesTheCommandAlone(t *testing.T) {
	w := newWorld(t)
	stops := make(chan struct{}, 1)
	w.Program("talk", talking(stops))
	id := w.ok("exec", "-d", w.ok("create"), "talk")
	p := w.start(t, "follow", id)
	if got := p.line(); got != "begun" {
		t.Fatalf("it printed %q", got)
	}
	p.signal(os.Interrupt)
	if code := p.end(); code != 130 {
		t.Errorf("code %d, want 130; stderr %s", code, p.stderr)
	}
	x, err := w.Exec(t.Context(), hutch.DefaultProject, hutch.ExecID(id))
	if err != nil || x.Result != nil {
		t.Errorf("after the follower left: %+v, %v; want it running", x.Result, err)
	}
}

// As in `hutch exec … | head -1`.
func TestACommandWhoseReaderLeavesIsCancelled(t *testing.T) {
	w := newWorld(t)
	w.Program("yes", func(p *httpapitest.Process) int {
		for {
			select {
			case <-p.Stopped:
				return 143
			default:
				_, _ = io.WriteString(p.Stdout, strings.Repeat("y\n", 1000))
			}
		}
	})
	sb := w.ok("create")
	p := w.start(t, "exec", sb, "yes")
	p.line()
	if err := p.pipe.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != 141 {
		t.Errorf("code %d, want 141; stderr %s", code, p.stderr)
	}
	for x, err := range listed(t, w, sb) {
		if err != nil || x.Result == nil || x.Result.End != hutch.ExecCancelled {
			t.Errorf("the command: %+v, %v; want it cancelled", x.Result, err)
		}
	}
}

func listed(t *testing.T, w *world, sb string) func(func(hutch.Exec, error) bool) {
	list, _, err := w.ListExecs(t.Context(), hutch.ExecQuery{Project: hutch.DefaultProject, Sandbox: hutch.SandboxID(sb)})
	return func(yield func(hutch.Exec, error) bool) {
		if err != nil || len(list) == 0 {
			t.Fatalf("no command on record: %v", err)
		}
		for _, x := range list {
			if !yield(x, nil) {
				return
			}
		}
	}
}

// A pipe that nobody closes must not matter to a command that did not ask for stdin.
func TestOpenStdinDoesNotHang(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), wr.Close() }()
	p := w.startWith(t, r, "exec", sb, "cat")
	if code := p.end(); code != 0 {
		t.Errorf("code %d, stderr %s", code, p.stderr)
	}
	// With -i the command gets what is written while it runs.
	p = w.startWith(t, r, "exec", "-i", sb, "cat")
	if _, err := io.WriteString(wr, "one\n"); err != nil {
		t.Fatal(err)
	}
	if got := p.line(); got != "one" {
		t.Errorf("echoed %q", got)
	}
	_ = wr.Close()
	if code := p.end(); code != 0 {
		t.Errorf("code %d, stderr %s", code, p.stderr)
	}
}
