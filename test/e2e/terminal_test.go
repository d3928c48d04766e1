package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// visitor is somebody at a terminal.
type visitor struct {
	*client.Terminal
	t   *testing.T
	out chan []byte
	end chan error
	buf []byte // what was read and not yet asked for
}

func visit(t *testing.T, term *client.Terminal, err error) *visitor {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{Terminal: term, t: t, out: make(chan []byte, 1024), end: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); _ = term.Close() })
	go func() {
		for {
			b, err := term.Read(ctx)
			if err != nil {
				close(v.out)
				v.end <- err
				return
			}
			v.out <- b
		}
	}()
	return v
}

func (s *server) terminal(t *testing.T, sb hutch.SandboxID, o client.TerminalOptions) *visitor {
	t.Helper()
	term, err := s.client.OpenTerminal(t.Context(), sb, o)
	return visit(t, term, err)
}

func (v *visitor) types(keys string) {
	v.t.Helper()
	if err := v.Write(v.t.Context(), []byte(keys)); err != nil {
		v.t.Fatal(err)
	}
}

// sees waits until the terminal has written text, and forgets all up to its end.
func (v *visitor) sees(text string) {
	v.t.Helper()
	late := time.After(time.Minute)
	for {
		if i := bytes.Index(v.buf, []byte(text)); i >= 0 {
			v.buf = v.buf[i+len(text):]
			return
		}
		select {
		case b, ok := <-v.out:
			if !ok {
				v.t.Fatalf("the terminal ended (%v) before %q; it wrote %.2000q", <-v.end, text, v.buf)
			}
			v.buf = append(v.buf, b...)
		case <-late:
			v.t.Fatalf("the terminal did not write %q but %.2000q", text, v.buf)
		}
	}
}

// ends waits for the end of the terminal's command, and returns what it wrote until then.
func (v *visitor) ends(code int) string {
	v.t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case b, ok := <-v.out:
			if !ok {
				var end *client.TerminalEnd
				if err := <-v.end; !errors.As(err, &end) || end.ExitCode != code {
					v.t.Fatalf("ended with %v, want exit code %d", err, code)
				}
				return string(v.buf)
			}
			v.buf = append(v.buf, b...)
		case <-late:
			v.t.Fatalf("the terminal did not end; it wrote %.2000q", v.buf)
		}
	}
}

// quiet is a shell without prompt, echo or line editing, so that what is read is what was
// printed.
const quiet = `exec env PS1= bash --noprofile --norc --noediting`

func TestCaseE01TheSizeIsRealAndFollows(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	v := s.terminal(t, sb.ID, client.TerminalOptions{Cmd: quiet, Size: api.Terminal{Rows: 31, Cols: 117}})
	v.types("stty -echo; stty size\n")
	v.sees("31 117")
	if err := v.Resize(t.Context(), api.Terminal{Rows: 50, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	v.types("stty size; tput cols\n")
	v.sees("50 99")
	v.sees("99")
	v.types("exit 7\n")
	v.ends(7)
}

func TestCaseE03ResizingIsSignalled(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	v := s.terminal(t, sb.ID, client.TerminalOptions{
		Cmd: `exec python3 -u -c 'import os, signal
signal.signal(signal.SIGWINCH, lambda *a: print("winch", *os.get_terminal_size(0)))
print("armed")
while True: signal.pause()'`,
	})
	v.sees("armed")
	if err := v.Resize(t.Context(), api.Terminal{Rows: 10, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	v.sees("winch 40 10")
}

func TestCaseE05JobControl(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	v := s.terminal(t, sb.ID, client.TerminalOptions{Cmd: quiet})
	v.types("stty -echo; set -m; trap 'echo interrupted' INT; echo $((6*7))\n")
	v.sees("42")
	v.types("sleep 1000; echo after=$?\n")
	eventually(t, "the job runs", func() bool { return s.alive(t, sb.ID, "sleep 1000") == 1 })
	v.types("\x03") // Ctrl-C
	eventually(t, "the job has ended", func() bool { return s.alive(t, sb.ID, "sleep 1000") == 0 })
	v.types("echo the shell is $((1+1))\n")
	v.sees("the shell is 2")
	v.types("sleep 2000\n")
	eventually(t, "the job runs", func() bool { return s.alive(t, sb.ID, "sleep 2000") == 1 })
	v.types("\x1a") // Ctrl-Z
	v.sees("Stopped")
	v.types("kill %1; wait; echo done=$?\n")
	v.sees("done=")
	v.types("exit 0\n")
	v.ends(0)
}

func TestCaseD15TheLastBurstIsThere(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	for range 5 {
		v := s.terminal(t, sb.ID, client.TerminalOptions{Cmd: "seq 1 5000; exit 7"})
		out := v.ends(7)
		for i, line := range strings.Fields(out) {
			if line != fmt.Sprint(i+1) {
				t.Fatalf("line %d is %q", i+1, line)
			}
		}
		if !strings.HasSuffix(strings.TrimSpace(out), "\n5000") {
			t.Errorf("it ends with %q", out[max(0, len(out)-20):])
		}
	}
}

func TestCaseD16NoEchoForPrograms(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	// A command in a terminal, driven by a program: nothing is typed, so nothing is echoed.
	res := s.run(t, sb.ID, "[ -t 0 ] && [ -t 1 ] && echo a terminal", func(r *api.ExecRequest) { r.Terminal = &api.Terminal{Rows: 24, Cols: 80} })
	if res.ExitCode != 0 || res.Stdout != "a terminal\r\n" {
		t.Errorf("got %d %q %q", res.ExitCode, res.Stdout, res.Stderr)
	}
	// And one is attached to again, from where it was.
	x := s.background(t, sb.ID, "stty -echo; echo ready; while read -r line; do echo got=$line; done", func(r *api.ExecRequest) { r.Terminal = &api.Terminal{Rows: 24, Cols: 80} })
	term, err := s.client.AttachTerminal(t.Context(), x, 1000, api.Terminal{})
	first := visit(t, term, err)
	first.sees("ready")
	first.types("one\n")
	first.sees("got=one")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	term, err = s.client.AttachTerminal(t.Context(), x, 1000, api.Terminal{})
	second := visit(t, term, err)
	second.sees("got=one") // replayed
	term, err = s.client.AttachTerminal(t.Context(), x, 0, api.Terminal{})
	third := visit(t, term, err)
	third.types("two\n")
	second.sees("got=two")
	third.sees("got=two")
	if strings.Contains(string(third.buf), "one") {
		t.Errorf("the third was told what it had not asked for: %q", third.buf)
	}
}

func TestCaseB16AnIdleTerminalLives(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	x := s.background(t, sb.ID, quiet, func(r *api.ExecRequest) { r.Terminal = &api.Terminal{Rows: 24, Cols: 80} })
	pings := make(chan struct{}, 16)
	conn, _, err := websocket.Dial(t.Context(), s.base+"/v1/execs/"+string(x)+"/terminal?access_token="+s.key, &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		OnPingReceived: func(context.Context, []byte) bool { pings <- struct{}{}; return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	answers := make(chan string, 16)
	go func() {
		for {
			_, b, err := conn.Read(t.Context())
			if err != nil {
				return
			}
			answers <- string(b)
		}
	}()
	// Two heartbeats, no more than 15 s apart: what keeps balancers from cutting it.
	for range 2 {
		within(t, 15*time.Second, "a heartbeat", func() {
			select {
			case <-pings:
			case <-time.After(time.Minute):
				t.Fatal("no heartbeat")
			}
		})
	}
	if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("echo h$((1))i\n")); err != nil {
		t.Fatal(err)
	}
	var got string
	for !strings.Contains(got, "h1i") {
		select {
		case b := <-answers:
			got += b
		case <-time.After(time.Minute):
			t.Fatalf("no answer but %q", got)
		}
	}
}

func TestCaseC05TerminalsLeaveNothing(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	left := func() (n int) {
		t.Helper()
		var zombies int
		if _, err := fmt.Sscan(s.out(t, sb.ID, "ls /dev/pts | wc -l; "+countZombies), &n, &zombies); err != nil {
			t.Fatal(err)
		}
		return n + zombies
	}
	open := func(n int) {
		parallel(t, n, 4, func(i int) {
			v := s.terminal(t, sb.ID, client.TerminalOptions{Cmd: "echo open; read -r x; exit 3"})
			v.sees("open")
			v.types("x\n")
			v.ends(3)
		})
	}
	open(4)
	before, files := left(), s.openFiles(t)
	open(200)
	eventually(t, "inside there is no more than before", func() bool { return left() <= before })
	var grown string
	defer func() {
		if grown != "" {
			t.Errorf("the server holds more than before: %s", grown)
		}
	}()
	eventually(t, "the server's descriptors are as before", func() bool {
		grown = s.openFiles(t).beyond(files)
		return grown == ""
	})
}

func TestFiftyTerminalsAtOnce(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(1024)})
	visitors := make([]*visitor, 50)
	for i := range visitors {
		visitors[i] = s.terminal(t, sb.ID, client.TerminalOptions{Cmd: quiet})
	}
	for i, v := range visitors {
		v.types(fmt.Sprintf("stty -echo; echo me=$((%d+1000))\n", i))
	}
	for i, v := range visitors {
		v.sees(fmt.Sprintf("me=%d", i+1000))
	}
	for _, v := range visitors {
		v.types("exit 0\n")
	}
	for _, v := range visitors {
		v.ends(0)
	}
}

// A terminal whose visitors have left for good is ended, with what runs in it.
func TestTerminalsEndWithTheirLastVisitor(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	v := s.terminal(t, sb.ID, client.TerminalOptions{Cmd: "echo on; exec sleep 4000", Keep: new(time.Duration)})
	v.sees("on")
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return s.alive(t, sb.ID, "sleep 4000") == 0 })
	if x := s.ended(t, v.ID); x.Result.EndReason != hutch.ExecCancelled {
		t.Errorf("ended by %s", x.Result.EndReason)
	}
}

func inSession(name string) func(*api.ExecRequest) {
	return func(r *api.ExecRequest) { r.Shell = name }
}

func TestCaseB20WhatASessionIsToldSticks(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, "cd /tmp; export A=1; b=2; f() { echo f=$1; }", inSession("main"))
	res := s.run(t, sb.ID, "pwd; echo $A $b; f x; printenv A", inSession("main"))
	if res.ExitCode != 0 || res.Stdout != "/tmp\n1 2\nf=x\n1\n" || res.Cwd != "/tmp" {
		t.Errorf("got %d %q in %q", res.ExitCode, res.Stdout, res.Cwd)
	}
	if got := s.out(t, sb.ID, "pwd; echo ${A-none}", inSession("other")); got != "/root\nnone" {
		t.Errorf("another session: %q", got)
	}
	if list, err := s.client.Shells(t.Context(), sb.ID); err != nil || len(list) != 2 {
		t.Errorf("sessions: %+v, %v", list, err)
	}
	if err := s.client.CloseShell(t.Context(), sb.ID, "other"); err != nil {
		t.Error(err)
	}
	if err := s.client.CloseShell(t.Context(), sb.ID, "other"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("closing it again: %v", err)
	}
}

func TestASessionIsNeverTypedInto(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	// It still waits for a line when the second command comes.
	x := s.background(t, sb.ID, "read -r line; echo read=$line; sleep 1000", inSession("main"), func(r *api.ExecRequest) { r.StdinOpen = true })
	_, err := s.client.StartExec(t.Context(), sb.ID, api.ExecRequest{Cmd: "echo typed", Shell: "main"})
	if !errors.Is(err, hutch.ErrShellBusy) {
		t.Fatalf("a second command: %v", err)
	}
	if _, err := s.client.WriteStdin(t.Context(), x, 0, strings.NewReader("its own\n"), false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has read a line", func() bool { return s.alive(t, sb.ID, "sleep 1000") == 1 })
	if _, err := s.client.Cancel(t.Context(), x, nil); err != nil {
		t.Fatal(err)
	}
	r := s.ended(t, x).Result
	if r.EndReason != hutch.ExecCancelled || r.Stdout != "read=its own\n" {
		t.Errorf("%s %q", r.EndReason, r.Stdout)
	}
	if got := s.out(t, sb.ID, "echo next", inSession("main")); got != "next" {
		t.Errorf("got %q", got)
	}
}

func TestASessionsCommandsReadStdin(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	stdin := func(text string) func(*api.ExecRequest) {
		return func(r *api.ExecRequest) { r.Stdin = &text }
	}
	big := strings.Repeat("0123456789abcdef", 16<<10) // more than a pipe takes at once
	for range 3 {                                     // the first command of a session and later ones
		for _, x := range []struct{ cmd, stdin, want string }{
			{"cat", "data\nmore\n", "data\nmore\n"},
			{"echo ok; read -r x; echo got=$x", "in put\nrest\n", "ok\ngot=in put\n"},
			{"cat", "", ""},
			{"wc -c", big, "262144\n"},
		} {
			res := s.run(t, sb.ID, x.cmd, inSession("main"), stdin(x.stdin), timeout(20))
			if res.ExitCode != 0 || res.Stdout != x.want || res.ShellReplaced != "" {
				t.Errorf("%q: %d %q, ended by %s, replaced %q", x.cmd, res.ExitCode, res.Stdout, res.EndReason, res.ShellReplaced)
			}
		}
	}
}

func TestCaseB05AHangingSessionIsReplaced(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, "cd /tmp", inSession("main"))
	s.run(t, sb.ID, "cat <<EOF\nno end", inSession("main"), timeout(2))
	if got := s.out(t, sb.ID, "echo ok", inSession("main")); got != "ok" {
		t.Errorf("after a heredoc without an end: %q", got)
	}
	// What the shell itself can be interrupted in costs nothing.
	if res := s.run(t, sb.ID, "while :; do :; done", inSession("main"), timeout(1)); res.EndReason != hutch.ExecTimeout {
		t.Errorf("a loop: %s", res.EndReason)
	}
	if res := s.run(t, sb.ID, "pwd", inSession("main")); res.Stdout != "/tmp\n" || res.ShellReplaced != "" {
		t.Errorf("after it: %q, replaced %q", res.Stdout, res.ShellReplaced)
	}
	// What it cannot costs the session, and that is said.
	res := s.run(t, sb.ID, "for n in $(seq 64); do trap '' $n; done 2>/dev/null; while :; do :; done", inSession("main"), timeout(1))
	if res.EndReason != hutch.ExecTimeout || res.ExitCode != hutch.ExitTimeout {
		t.Errorf("a loop: %s, %d", res.EndReason, res.ExitCode)
	}
	res = s.run(t, sb.ID, "pwd", inSession("main"))
	if res.Stdout != "/root\n" || res.ShellReplaced == "" {
		t.Errorf("after it: %q, replaced %q", res.Stdout, res.ShellReplaced)
	}
	s.run(t, sb.ID, "kill -KILL $$", inSession("main"))
	if res = s.run(t, sb.ID, "true", inSession("main")); res.ShellReplaced != "killed" {
		t.Errorf("after a kill: replaced %q", res.ShellReplaced)
	}
	if res = s.run(t, sb.ID, "exit 3", inSession("main")); res.ExitCode != 3 {
		t.Errorf("exit: %d", res.ExitCode)
	}
	if res = s.run(t, sb.ID, "true", inSession("main")); res.ShellReplaced != "exited" {
		t.Errorf("after an exit: replaced %q", res.ShellReplaced)
	}
}
