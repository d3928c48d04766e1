package guesttest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// screen is what one reader of a command's output has seen so far.
type screen struct {
	mu     sync.Mutex
	text   []byte
	at     int64 // offset of text in the stream; -1 before the first byte
	result *hutch.ExecResult
	over   chan struct{} // closed at the end of the answer
}

// watch follows a command's standard output until it ends or the test does.
func (c *Client) watch(t testing.TB, id hutch.ExecID, query string) *screen {
	t.Helper()
	s := &screen{at: -1, over: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		<-s.over
	})
	go func() {
		defer close(s.over)
		f, err := c.TryFollow(ctx, id, query, func(f guestapi.Frame) {
			if f.Type != guestapi.FrameStdout {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.at < 0 {
				s.at = f.Offset
			}
			s.text = append(s.text, f.Payload...)
		})
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.result = f.End.Result
		}
	}()
	return s
}

func (s *screen) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text)
}

// await waits until the text is there.
func (s *screen) await(t testing.TB, text string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("on the screen: %q", s.shown())
		}
	}()
	Eventually(t, 20*time.Second, fmt.Sprintf("%q is on the screen", text), func() bool { return strings.Contains(s.shown(), text) })
}

// end waits for the result.
func (s *screen) end(t testing.TB) hutch.ExecResult {
	t.Helper()
	select {
	case <-s.over:
	case <-time.After(30 * time.Second):
		t.Fatalf("not over; on the screen: %q", s.shown())
	}
	if s.result == nil {
		t.Fatalf("over without a result; on the screen: %q", s.shown())
	}
	return *s.result
}

// appendInput gives a command input after whatever it was given.
func (c *Client) appendInput(ctx context.Context, id hutch.ExecID, text string, last bool) error {
	q := url.Values{"append": {"1"}}
	if last {
		q.Set("close", "1")
	}
	resp, err := c.do(ctx, "POST", path(id, "/stdin?"+q.Encode()), strings.NewReader(text))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return err
}

// typed types at a terminal.
func (c *Client) typed(t testing.TB, id hutch.ExecID, text string) {
	t.Helper()
	if err := c.appendInput(t.Context(), id, text, false); err != nil {
		t.Fatalf("type %q: %v", text, err)
	}
}

// terminal starts cmd with a terminal, and a screen that shows it all.
func (c *Client) terminal(t testing.TB, spec hutch.ExecSpec) (hutch.ExecID, *screen) {
	t.Helper()
	if spec.Terminal == nil {
		spec.Terminal = &hutch.TerminalSize{}
	}
	s := c.Start(t, spec)
	return s.ID, c.watch(t, s.ID, "wait=1")
}

func testTerminal(t *testing.T, c *Client) {
	t.Run("all three are the terminal, which is the controlling one", func(t *testing.T) {
		_, s := c.terminal(t, hutch.ExecSpec{Cmd: "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo tty $TERM; echo to the terminal > /dev/tty; echo err >&2"})
		if r := s.end(t); s.shown() != "tty xterm-256color\r\nto the terminal\r\nerr\r\n" || r.Stderr.Total != 0 || r.ExitCode != 0 {
			t.Errorf("%q, %+v", s.shown(), r)
		}
	})
	t.Run("the request's TERM stays", func(t *testing.T) {
		_, s := c.terminal(t, hutch.ExecSpec{Cmd: "echo $TERM", Env: map[string]string{"TERM": "vt100"}})
		if s.end(t); s.shown() != "vt100\r\n" {
			t.Errorf("%q", s.shown())
		}
	})
	t.Run("E01 size at the start", func(t *testing.T) {
		for size, want := range map[hutch.TerminalSize]string{{}: "24 80\r\n", {Rows: 51, Cols: 203}: "51 203\r\n"} {
			_, s := c.terminal(t, hutch.ExecSpec{Argv: []string{"stty", "size"}, Terminal: &size})
			if s.end(t); s.shown() != want {
				t.Errorf("%+v: %q, want %q", size, s.shown(), want)
			}
		}
	})
	t.Run("E03 a new size is told by WINCH", func(t *testing.T) {
		id, s := c.terminal(t, hutch.ExecSpec{Cmd: "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"})
		s.await(t, "ready")
		c.must(t, "POST", path(id, "/resize"), hutch.TerminalSize{Rows: 33, Cols: 99}, nil)
		s.await(t, "33 99")
	})
	c.terminalJobs(t)
	c.terminalClients(t)
	c.terminalEnds(t)
}

func (c *Client) terminalJobs(t *testing.T) {
	t.Run("E05 a typed Ctrl-C interrupts the foreground job only", func(t *testing.T) {
		c.needBash(t)
		id, s := c.terminal(t, hutch.ExecSpec{Argv: []string{"bash", "--noprofile", "--norc", "-i"}, Env: map[string]string{"PS1": "ready> "}})
		s.await(t, "ready> ")
		c.typed(t, id, "sleep 301 &\nsleep 302\n")
		jobs := func(n int) {
			t.Helper()
			Eventually(t, 10*time.Second, fmt.Sprintf("%d jobs run", n), func() bool {
				sleeps := 0
				for _, p := range c.Processes(t, id) {
					if p.Command == "sleep" {
						sleeps++
					}
				}
				return sleeps == n
			})
		}
		jobs(2)
		c.typed(t, id, "\x03")
		c.typed(t, id, "echo a$((40 + 2))b; jobs\n")
		s.await(t, "a42b")
		s.await(t, "Running")
		jobs(1)
		c.typed(t, id, "sleep 303\n")
		jobs(2)
		c.typed(t, id, "\x1a") // Ctrl-Z
		s.await(t, "Stopped")
		c.typed(t, id, "exit\nexit\n") // the first one warns of the stopped job
		s.end(t)
	})
	t.Run("D15 the last burst and the exit code", func(t *testing.T) {
		var want bytes.Buffer
		for i := range 5000 {
			fmt.Fprintf(&want, "%d\r\n", i+1)
		}
		for range 10 {
			_, s := c.terminal(t, hutch.ExecSpec{Cmd: "seq 1 5000; exit 7"})
			r := s.end(t)
			if s.shown() != want.String() || r.ExitCode != 7 || r.Stdout.Total != int64(want.Len()) {
				t.Fatalf("%d of %d bytes, exit %d, total %d", len(s.shown()), want.Len(), r.ExitCode, r.Stdout.Total)
			}
		}
	})
}

func (c *Client) terminalClients(t *testing.T) {
	t.Run("D16 left and found again", func(t *testing.T) {
		id, s := c.terminal(t, hutch.ExecSpec{Cmd: "stty -echo; echo one; while read -r x; do echo got $x; done"})
		s.await(t, "one\r\n")
		late := c.watch(t, id, "wait=1&live=1")
		last := c.watch(t, id, "wait=1&live=1&last=5")
		last.await(t, "one\r\n")
		Eventually(t, 10*time.Second, "the second is attached too", func() bool {
			c.typed(t, id, "again\n")
			return strings.Contains(late.shown(), "got again\r\n")
		})
		c.typed(t, id, "\x04")
		for _, s := range []*screen{s, late, last} {
			s.end(t)
		}
		all := s.shown()
		if !strings.HasPrefix(all, "one\r\n") || strings.Contains(strings.ReplaceAll(all, "got again", ""), "again") {
			t.Errorf("the first saw %q, want it without an echo", all)
		}
		for name, x := range map[string]*screen{"live": late, "last": last} {
			if x.at <= 0 && name == "live" || !strings.HasSuffix(all, x.shown()) || x.at+int64(len(x.shown())) != int64(len(all)) {
				t.Errorf("%s saw %q from %d on of %q", name, x.shown(), x.at, all)
			}
		}
	})
	t.Run("the end of its input", func(t *testing.T) {
		for _, in := range []string{"", "line\n", "no new line"} {
			id, s := c.terminal(t, hutch.ExecSpec{Cmd: "stty -echo; echo ready; cat; echo over"})
			s.await(t, "ready\r\n")
			if err := c.appendInput(t.Context(), id, in, true); err != nil {
				t.Fatal(err)
			}
			s.end(t)
			if want := "ready\r\n" + strings.ReplaceAll(in, "\n", "\r\n") + "over\r\n"; s.shown() != want {
				t.Errorf("%q: %q, want %q", in, s.shown(), want)
			}
		}
	})
}

func (c *Client) terminalEnds(t *testing.T) {
	t.Run("stopping hangs up first", func(t *testing.T) {
		id, s := c.terminal(t, hutch.ExecSpec{Cmd: "trap 'echo hung up; exit 5' HUP; trap '' TERM; echo ready; while :; do sleep 0.05; done"})
		s.await(t, "ready")
		begin := time.Now()
		st := c.Stop(t, id, guestapi.Stop{Grace: int64(20 * time.Second)})
		if within(t, begin, 5*time.Second); st.Result.End != hutch.ExecCancelled || st.Result.Escalated {
			t.Errorf("%+v", st.Result)
		}
		s.await(t, "hung up")
		gone(t, c, id)
	})
	t.Run("one that ignores both is killed", func(t *testing.T) {
		id, s := c.terminal(t, hutch.ExecSpec{Cmd: "trap '' HUP TERM; setsid sleep 304 & echo ready; sleep 305"})
		s.await(t, "ready")
		st := c.Stop(t, id, guestapi.Stop{Grace: int64(time.Second)})
		if st.Result.End != hutch.ExecCancelled || !st.Result.Escalated || len(st.Result.Killed) < 2 {
			t.Errorf("%+v", st.Result)
		}
		gone(t, c, id)
	})
	t.Run("no timeout unless one is asked for", func(t *testing.T) {
		unasked, still := c.terminal(t, hutch.ExecSpec{Cmd: "echo ready; sleep 306"})
		still.await(t, "ready")
		_, s := c.terminal(t, hutch.ExecSpec{Cmd: "sleep 306", Timeout: 300 * time.Millisecond})
		if r := s.end(t); r.End != hutch.ExecTimeout {
			t.Errorf("%+v", r)
		}
		if st := c.Status(t, unasked); !st.Running {
			t.Errorf("without a timeout, older than one that had one: %+v", st.Result)
		}
	})
	t.Run("a program that is not there", func(t *testing.T) {
		_, s := c.terminal(t, hutch.ExecSpec{Argv: []string{"no-such-program"}})
		if r := s.end(t); r.ExitCode != 127 || s.shown() != "hutch: no-such-program: not found in PATH\r\n" {
			t.Errorf("%+v, %q", r, s.shown())
		}
	})
	t.Run("belongs to its user", func(t *testing.T) {
		_, s := c.terminal(t, hutch.ExecSpec{Cmd: "echo hi > $(tty) && echo $(id -u)", User: "12345:12345"})
		if s.end(t); s.shown() != "hi\r\n12345\r\n" {
			t.Errorf("%q", s.shown())
		}
	})
	t.Run("refusals", func(t *testing.T) {
		for _, size := range []hutch.TerminalSize{{Rows: -1}, {Rows: 4097}, {Cols: -5}, {Cols: 70000}} {
			if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", Terminal: &size}); e.Code != hutch.CodeBadRequest || !strings.HasPrefix(e.Field, "terminal.") {
				t.Errorf("%+v: %v", size, e)
			}
		}
		id, s := c.terminal(t, hutch.ExecSpec{Cmd: "echo x"})
		s.end(t)
		resize := func(id hutch.ExecID, size hutch.TerminalSize) error {
			return c.Call(t.Context(), "POST", path(id, "/resize"), size, nil)
		}
		if err := resize(id, hutch.TerminalSize{Rows: 5, Cols: 5}); code(err) != hutch.CodeInvalidState {
			t.Errorf("resize of one that has ended: %v", err)
		}
		none := c.Start(t, hutch.ExecSpec{Cmd: "sleep 307"})
		if err := resize(none.ID, hutch.TerminalSize{Rows: 5, Cols: 5}); code(err) != hutch.CodeInvalidState {
			t.Errorf("resize of one without a terminal: %v", err)
		}
		live, s := c.terminal(t, hutch.ExecSpec{Cmd: "echo ready; sleep 308"})
		s.await(t, "ready")
		if err := resize(live, hutch.TerminalSize{Rows: 5000, Cols: 5}); code(err) != hutch.CodeBadRequest {
			t.Errorf("resize to 5000 rows: %v", err)
		}
	})
}

// needBash skips a test of an image without bash.
func (c *Client) needBash(t *testing.T) {
	t.Helper()
	if r := c.Sh(t, "command -v bash"); r.ExitCode != 0 {
		t.Skip("no bash in this image")
	}
}
