package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// ws is a client of a WebSocket.
type ws struct {
	t    testing.TB
	conn *websocket.Conn
	id   hutch.ExecID
	ctx  context.Context
}

func (b *bench) ws(path string) *ws {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	b.t.Cleanup(cancel)
	conn, res, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(b.url, "http")+path, &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		HTTPHeader: http.Header{"Authorization": {"Bearer " + b.key}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.CloseNow() })
	return &ws{b.t, conn, hutch.ExecID(res.Header.Get(api.HeaderExecID)), ctx}
}

func (w *ws) send(typ websocket.MessageType, s string) {
	w.t.Helper()
	if err := w.conn.Write(w.ctx, typ, []byte(s)); err != nil {
		w.t.Fatal(err)
	}
}

// next is the next message.
func (w *ws) next() (websocket.MessageType, string) {
	w.t.Helper()
	typ, b, err := w.conn.Read(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return typ, string(b)
}

// output reads binary messages until they add up to want.
func (w *ws) output(want string) {
	w.t.Helper()
	got := ""
	for len(got) < len(want) {
		typ, b := w.next()
		if typ != websocket.MessageBinary {
			w.t.Fatalf("text %s after %q, want output %q", b, got, want)
		}
		got += b
	}
	if got != want {
		w.t.Fatalf("output %q, want %q", got, want)
	}
}

// notice reads a text message into v.
func (w *ws) notice(v any) {
	w.t.Helper()
	typ, b := w.next()
	if typ != websocket.MessageText || json.Unmarshal([]byte(b), v) != nil {
		w.t.Fatalf("got %v %q, want a text", typ, b)
	}
}

// ends fails the test unless the server closes, with that status.
func (w *ws) ends(want websocket.StatusCode) {
	w.t.Helper()
	_, _, err := w.conn.Read(w.ctx)
	if got := websocket.CloseStatus(err); got != want {
		w.t.Fatalf("closed with %v (%v), want %v", got, err, want)
	}
}

// shellProgram is a shell that says what happens to it: it repeats lines, and ends at "exit".
func shellProgram(p *httpapitest.Process) int {
	lines := make(chan string)
	go func() {
		defer close(lines)
		buf := make([]byte, 1024)
		text := ""
		for {
			n, err := p.Stdin.Read(buf)
			for _, c := range string(buf[:n]) {
				if c == '\n' {
					lines <- text
					text = ""
				} else {
					text += string(c)
				}
			}
			if err != nil {
				return
			}
		}
	}()
	fmt.Fprintf(p.Stdout, "%dx%d %s$ ", p.Spec.Terminal.Rows, p.Spec.Terminal.Cols, p.Env["TERM"])
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				lines = nil
				continue
			}
			if line == "exit" {
				return 3
			}
			fmt.Fprintf(p.Stdout, "[%s]", line)
		case s := <-p.Resized:
			fmt.Fprintf(p.Stdout, "<%dx%d>", s.Rows, s.Cols)
		case <-p.Stopped:
			return 129
		}
	}
}

func newTerminalBench(t *testing.T, cfg httpapi.Config) *bench {
	b := newBench(t, cfg)
	b.Program("if", shellProgram) // the first word of what a terminal runs by itself
	b.Program("shell", shellProgram)
	return b
}

func TestATerminal(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{})
	sb := b.sandbox()
	for _, path := range []string{"/ssh", "/exec/pty"} {
		w := b.ws("/v1/sandboxes/" + sb + path + "?rows=40&cols=120")
		if w.id == "" {
			t.Fatal("no header names the command")
		}
		w.output("40x120 xterm-256color$ ")
		w.send(websocket.MessageBinary, "hé\n")
		w.output("[hé]")
		w.send(websocket.MessageText, `{"resize":{"rows":10,"cols":20}}`)
		w.output("<10x20>")
		w.send(websocket.MessageText, `{"stdin":"typed\n"}`)
		w.output("[typed]")
		w.send(websocket.MessageBinary, "exit\n")
		var n api.TerminalNotice
		if w.notice(&n); n.Exit == nil || *n.Exit != 3 || n.Error != "" {
			t.Errorf("the last frame is %+v", n)
		}
		w.ends(websocket.StatusNormalClosure)
	}
	w := b.ws("/v1/sandboxes/" + sb + "/ssh?hello=1&cmd=shell&access_token=ignored")
	var n api.TerminalNotice
	if w.notice(&n); n.ExecID != w.id {
		t.Errorf("the first frame is %+v, the header said %s", n, w.id)
	}
	w.output("24x80 xterm-256color$ ")
	w.send(websocket.MessageText, `{"type":"resize"}`)
	w.ends(websocket.StatusPolicyViolation)
}

func TestTerminalsThatCannotBe(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{})
	sb := b.sandbox()
	ssh := "/v1/sandboxes/" + sb + "/ssh"
	b.do("GET", ssh, "").wantError(400, "bad_request", "")
	b.do("GET", ssh+"?rows=0", "").wantError(400, "bad_request", "rows")
	b.do("GET", ssh+"?cols=5000", "").wantError(400, "bad_request", "cols")
	for _, bad := range []string{"86401", "-1", "nan", "1s"} {
		b.do("GET", ssh+"?keep_seconds="+bad, "").wantError(400, "bad_request", "keep_seconds")
	}
	b.as(httpapitest.ReadKey).do("GET", ssh, "").wantError(403, "forbidden", "")
	b.as("").do("GET", ssh, "").wantError(401, "unauthenticated", "")
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	b.do("HEAD", ssh, "", upgrade...).want(400)
	b.do("GET", "/v1/sandboxes/nope/ssh", "", upgrade...).wantError(404, "not_found", "")
	b.do("GET", "/v1/sandboxes/nope/exec/ws", "", upgrade...).wantError(404, "not_found", "")
	b.do("GET", "/v1/execs/nope/terminal", "", upgrade...).wantError(404, "not_found", "")
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "sleep", "background": true}`).want(202))
	b.do("GET", "/v1/execs/"+string(x.ExecID)+"/terminal", "", upgrade...).wantError(409, "invalid_state", "")
	b.do("POST", "/v1/execs/"+string(x.ExecID)+"/resize", `{"rows": 1, "cols": 1}`).wantError(409, "invalid_state", "")
	b.do("POST", "/v1/sandboxes/"+sb+"/pause", "").want(204)
	b.do("GET", ssh, "", upgrade...).wantError(409, "invalid_state", "")
	if list := into[[]api.Exec](b.do("GET", "/v1/sandboxes/"+sb+"/execs", "").want(200)); len(list) != 1 {
		t.Errorf("%d commands were started", len(list))
	}
}

// running reports whether a command runs.
func (b *bench) running(id hutch.ExecID) bool {
	b.t.Helper()
	return into[api.Exec](b.do("GET", "/v1/execs/"+string(id), "").want(200)).Running
}

func TestATerminalWithoutClientsEnds(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{TerminalKeep: 10 * time.Millisecond})
	sb := b.sandbox()
	w := b.ws("/v1/sandboxes/" + sb + "/ssh")
	w.output("24x80 xterm-256color$ ")
	_ = w.conn.CloseNow()
	b.eventually("the shell has ended", func() bool { return !b.running(w.id) })
	x := into[api.Exec](b.do("GET", "/v1/execs/"+string(w.id), "").want(200))
	if x.Result.EndReason != hutch.ExecCancelled {
		t.Errorf("it ended by %s", x.Result.EndReason)
	}
}

// What a shell left running when it ended was left on purpose.
func TestATerminalThatHasEndedIsLetBe(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{TerminalKeep: time.Millisecond})
	var cancels atomic.Int32
	b.OnCall = func(method string) error {
		if method == "CancelExec" {
			cancels.Add(1)
		}
		return nil
	}
	sb := b.sandbox()
	ended := b.ws("/v1/sandboxes/" + sb + "/ssh")
	ended.output("24x80 xterm-256color$ ")
	ended.send(websocket.MessageBinary, "exit\n")
	var n api.TerminalNotice
	ended.notice(&n)
	ended.ends(websocket.StatusNormalClosure)
	left := b.ws("/v1/sandboxes/" + sb + "/ssh") // by whose end the other's time is over too
	left.output("24x80 xterm-256color$ ")
	_ = left.conn.CloseNow()
	b.eventually("the second shell has ended", func() bool { return !b.running(left.id) })
	if n := cancels.Load(); n != 1 {
		t.Errorf("%d commands were cancelled, want the one that was left", n)
	}
}

func TestATerminalCanBeJoined(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{})
	sb := b.sandbox()
	first := b.ws("/v1/sandboxes/" + sb + "/ssh?keep_seconds=3600.5")
	first.output("24x80 xterm-256color$ ")
	second := b.ws("/v1/execs/" + string(first.id) + "/terminal?replay=2")
	second.output("$ ")
	second.send(websocket.MessageBinary, "hi\n")
	second.output("[hi]")
	first.output("[hi]")
	_ = first.conn.Close(websocket.StatusNormalClosure, "")
	_ = second.conn.Close(websocket.StatusNormalClosure, "")
	third := b.ws("/v1/execs/" + string(first.id) + "/terminal?replay=4&rows=5&cols=6")
	third.output("[hi]")
	third.output("<5x6>")
	b.do("POST", "/v1/execs/"+string(first.id)+"/resize", `{"rows": 7, "cols": 8}`).want(204)
	third.output("<7x8>")
	b.do("DELETE", "/v1/sandboxes/"+sb, "").want(204)
	var n api.TerminalNotice
	if third.notice(&n); n.Exit == nil {
		t.Errorf("at the sandbox's end: %+v", n)
	}
	third.ends(websocket.StatusNormalClosure)
}

func TestATerminalStartedByExec(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{TerminalKeep: time.Millisecond})
	sb := b.sandbox()
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "shell", "background": true, "tag": "t1", "terminal": {"rows": 30}}`).want(202))
	if x.Terminal == nil || *x.Terminal != (api.Terminal{Rows: 30, Cols: 80}) || x.Tag != "t1" {
		t.Errorf("started %+v", x)
	}
	w := b.ws("/v1/execs/" + string(x.ExecID) + "/terminal?replay=100")
	w.output("30x80 xterm-256color$ ")
	_ = w.conn.Close(websocket.StatusNormalClosure, "")
	again := b.ws("/v1/execs/" + string(x.ExecID) + "/terminal")
	again.send(websocket.MessageBinary, "still here\n")
	again.output("[still here]")
}

// TestWhoComesToATerminalMissesNothing: what a client types at once is answered after the place
// from which it is told.
func TestWhoComesToATerminalMissesNothing(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{})
	typed := make(chan struct{})
	b.Program("echo once", func(p *httpapitest.Process) int {
		var c [1]byte
		if _, err := io.ReadFull(p.Stdin, c[:]); err != nil {
			return 1
		}
		_, _ = p.Stdout.Write(c[:])
		close(typed)
		<-p.Stopped
		return 0
	})
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"argv": ["echo once"], "background": true, "terminal": {}}`).want(202))
	b.OnCall = func(method string) error {
		if method == "FollowExec" {
			select { // a guest slow to say what there is gives input that comes too early its chance
			case <-typed:
			case <-time.After(100 * time.Millisecond):
			}
		}
		return nil
	}
	w := b.ws("/v1/execs/" + string(x.ExecID) + "/terminal")
	w.send(websocket.MessageBinary, "x")
	w.output("x")
}

func TestClientsThatAreGoneAreNoticed(t *testing.T) {
	f := httpapitest.New()
	f.Program("if", shellProgram)
	done := make(answered, 10)
	b := serveOn(t.Context(), t, f, httpapi.Config{PingInterval: 20 * time.Millisecond}, done)
	conn := b.upgrade("/v1/sandboxes/" + b.sandbox() + "/ssh")
	for route := range done { // it never answers a ping
		if strings.HasSuffix(route, "/ssh") {
			break
		}
	}
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(answer), "\x89") {
		t.Errorf("no ping in %q, %v", answer, err)
	}
}

func TestAStopOfTheServerClosesTerminals(t *testing.T) {
	f := httpapitest.New()
	f.Program("if", shellProgram)
	ctx, stop := context.WithCancel(t.Context())
	b := serveOn(ctx, t, f, httpapi.Config{}, nil)
	w := b.ws("/v1/sandboxes/" + b.sandbox() + "/ssh")
	w.output("24x80 xterm-256color$ ")
	stop()
	w.ends(websocket.StatusGoingAway)
}

func TestCommandsOverOneSocket(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("both", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "out é")
		_, _ = io.WriteString(p.Stderr, "err")
		return 4
	})
	open := make(chan struct{})
	b.Program("gate", func(p *httpapitest.Process) int { // and says nothing
		select {
		case <-open:
			return 0
		case <-p.Stopped:
			return 143
		}
	})
	sb := b.sandbox()
	w := b.ws("/v1/sandboxes/" + sb + "/exec/ws")
	w.send(websocket.MessageText, `{"id":"slow","cmd":"sleep"}`)
	w.send(websocket.MessageText, `{"id":"a","cmd":"both","timeout_seconds":5}`)
	got := map[string]string{}
	var last api.MuxReply
	for last.Exit == nil {
		last = api.MuxReply{}
		w.notice(&last)
		if last.ID != "a" {
			t.Fatalf("frame %+v", last)
		}
		got[last.Stream] += last.Data
	}
	if got["stdout"] != "out é" || got["stderr"] != "err" || *last.Exit != 4 || last.ExecID == "" {
		t.Errorf("got %v, then %+v", got, last)
	}
	w.send(websocket.MessageText, `{"id":"slow","cancel":true}`)
	last = api.MuxReply{}
	if w.notice(&last); last.ID != "slow" || last.Exit == nil || *last.Exit != 143 {
		t.Errorf("a cancelled one ends with %+v", last)
	}
	for name, frame := range map[string]string{
		"unknown":  `{"id":"x","cancel":true}`,
		"timeout":  `{"id":"y","cmd":"true","timeout_seconds":-1}`,
		"no limit": `{"id":"z","cmd":"true","timeout_seconds":1e9}`,
	} {
		w.send(websocket.MessageText, frame)
		last = api.MuxReply{}
		if w.notice(&last); last.Error == "" || last.Code == "" {
			t.Errorf("%s: %+v", name, last)
		}
	}
	w.send(websocket.MessageText, `{"id":"left","cmd":"gate"}`)
	var running []api.Exec
	b.eventually("the command runs", func() bool {
		running = into[[]api.Exec](b.do("GET", "/v1/sandboxes/"+sb+"/execs?running=1", "").want(200))
		return len(running) == 1
	})
	w.send(websocket.MessageText, `{"id":"left","cmd":"true"}`)
	last = api.MuxReply{}
	if w.notice(&last); last.Code != hutch.CodeConflict {
		t.Errorf("a name twice: %+v", last)
	}
	w.send(websocket.MessageText, `{"id":"bad","cmd":"true","cwd":"/"}`)
	w.ends(websocket.StatusPolicyViolation)
	if !b.running(running[0].ExecID) {
		t.Error("a command ended because its client left")
	}
	close(open)
	b.eventually("the command has ended", func() bool { return !b.running(running[0].ExecID) })
	if r := into[api.Exec](b.do("GET", "/v1/execs/"+string(running[0].ExecID), "").want(200)).Result; r.EndReason != hutch.ExecExit || r.ExitCode != 0 {
		t.Errorf("after its client left it ended with %+v", r)
	}
}

func TestShellSessions(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	shells := "/v1/sandboxes/" + b.sandbox() + "/shells"
	if got := string(b.do("GET", shells, "").want(200).body); got != "[]\n" {
		t.Errorf("no sessions are %s", got)
	}
	b.Inside.SetShell(hutch.Shell{Name: "main", PID: 9, User: "root", Cwd: "/work", Commands: 2, StartedAt: httpapitest.Epoch})
	want := api.Shell{Name: "main", PID: 9, User: "root", Cwd: "/work", Commands: 2, StartedAt: httpapitest.Epoch}
	if got := into[[]api.Shell](b.do("GET", shells, "").want(200)); len(got) != 1 || got[0] != want {
		t.Errorf("sessions %+v", got)
	}
	b.do("DELETE", shells+"/main", "", "Idempotency-Key", "k").want(204)
	b.do("DELETE", shells+"/main", "", "Idempotency-Key", "k").want(204)
	b.do("DELETE", shells+"/main", "").wantError(404, "not_found", "")
}

func TestFieldsOfACommandsForm(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	exec := "/v1/sandboxes/" + b.sandbox() + "/exec"
	var spec hutch.ExecSpec
	b.Program("look", func(p *httpapitest.Process) int { spec = p.Spec; return 0 })
	b.do("POST", exec, `{"cmd": "look", "shell": "main", "login": true, "tag": "x"}`).want(200)
	if spec.Shell != "main" || !spec.Login || spec.Tag != "x" || spec.Terminal != nil {
		t.Errorf("ran %+v", spec)
	}
	b.do("POST", exec, `{"cmd": "look", "terminal": {"rows": 5, "cols": 6}, "env": {"TERM": "dumb"}}`).want(200)
	if *spec.Terminal != (hutch.TerminalSize{Rows: 5, Cols: 6}) || spec.Env["TERM"] != "dumb" {
		t.Errorf("ran %+v", spec)
	}
	b.do("POST", exec, `{"argv": ["look"], "shell": "main"}`).wantError(400, "bad_request", "shell")
	b.do("POST", exec, `{"argv": ["look"], "login": true}`).wantError(400, "bad_request", "login")
	b.do("POST", exec, `{"cmd": "look", "terminal": {"rows": -1}}`).wantError(400, "bad_request", "rows")
	b.do("POST", exec, `{"cmd": "look", "terminal": {"height": 1}}`).wantError(400, "unknown_field", "terminal.height")
}

// upgrade asks for a WebSocket by hand, and leaves the answer to its caller.
func (b *bench) upgrade(path string) net.Conn {
	b.t.Helper()
	conn := b.dial()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path, b.key); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// blocked is commands that take no input.
type blocked struct {
	httpapi.ExecControl
	writes chan struct{}
}

func (b blocked) WriteStdin(ctx context.Context, _ hutch.ProjectID, _ hutch.SandboxID, _ hutch.ExecID, _ hutch.StdinChunk) (int64, error) {
	close(b.writes)
	<-ctx.Done()
	return 0, ctx.Err()
}

// Input that nobody takes holds on to no client that has gone.
func TestAClientThatIsGoneWhileItsInputWaits(t *testing.T) {
	f, done := httpapitest.New(), make(answered, 10)
	f.Program("if", shellProgram)
	svc, writes := f.Services(), make(chan struct{})
	svc.ExecControl, svc.Metrics = blocked{svc.ExecControl, writes}, done
	s := httptest.NewServer(httpapi.New(httpapi.Config{PingInterval: 20 * time.Millisecond}, svc, slog.New(slog.DiscardHandler)))
	t.Cleanup(s.CloseClientConnections)
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}
	conn := b.upgrade("/v1/sandboxes/" + b.sandbox() + "/ssh")
	if _, err := conn.Write([]byte{0x82, 0x81, 0, 0, 0, 0, 'x'}); err != nil { // one masked byte
		t.Fatal(err)
	}
	<-writes
	late := time.After(30 * time.Second)
	for {
		select {
		case route := <-done: // it never answers a ping
			if strings.HasSuffix(route, "/ssh") {
				return
			}
		case <-late:
			t.Fatal("a client that is gone is still served")
		}
	}
}

// However long a terminal may be kept, one that has ended is not.
func TestATerminalThatHasEndedIsNotKept(t *testing.T) {
	f := httpapitest.New()
	f.Program("if", shellProgram)
	a := httpapi.New(httpapi.Config{}, f.Services(), slog.New(slog.DiscardHandler))
	s := httptest.NewServer(a)
	t.Cleanup(s.CloseClientConnections)
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}
	w := b.ws("/v1/sandboxes/" + b.sandbox() + "/ssh?keep_seconds=86400")
	w.output("24x80 xterm-256color$ ")
	if n := a.Terminals(); n != 1 {
		t.Errorf("%d terminals, want one", n)
	}
	w.send(websocket.MessageBinary, "exit\n")
	var n api.TerminalNotice
	w.notice(&n)
	w.ends(websocket.StatusNormalClosure)
	if n := a.Terminals(); n != 0 {
		t.Errorf("%d terminals are kept that have ended", n)
	}
}

// A client that asks for the same again and again takes no more for it.
func TestACommandIsCancelledOnce(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	var cancels atomic.Int32
	begun, end := make(chan struct{}), make(chan struct{})
	b.OnCall = func(method string) error {
		if method != "CancelExec" {
			return nil
		}
		if cancels.Add(1) == 1 {
			close(begun)
		}
		<-end
		return nil
	}
	w := b.ws("/v1/sandboxes/" + b.sandbox() + "/exec/ws")
	w.send(websocket.MessageText, `{"id":"a","cmd":"sleep"}`)
	w.send(websocket.MessageText, `{"id":"a","cancel":true}`)
	<-begun
	for range 100 {
		w.send(websocket.MessageText, `{"id":"a","cancel":true}`)
	}
	w.send(websocket.MessageText, `{"id":"b","cancel":true}`) // is answered once those before are read
	var last api.MuxReply
	if w.notice(&last); last.ID != "b" || last.Code != hutch.CodeNotFound {
		t.Errorf("got %+v", last)
	}
	close(end)
	last = api.MuxReply{}
	if w.notice(&last); last.ID != "a" || last.Exit == nil {
		t.Errorf("got %+v", last)
	}
	if n := cancels.Load(); n != 1 {
		t.Errorf("it was cancelled %d times", n)
	}
}

func TestACancelThatFailedCanBeAskedForAgain(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	var cancels atomic.Int32
	b.OnCall = func(method string) error {
		if method == "CancelExec" && cancels.Add(1) == 1 {
			return hutch.ErrUnavailable
		}
		return nil
	}
	w := b.ws("/v1/sandboxes/" + b.sandbox() + "/exec/ws")
	w.send(websocket.MessageText, `{"id":"a","cmd":"sleep"}`)
	w.send(websocket.MessageText, `{"id":"a","cancel":true}`)
	var last api.MuxReply
	if w.notice(&last); last.ID != "a" || last.Code != hutch.CodeUnavailable {
		t.Errorf("got %+v", last)
	}
	w.send(websocket.MessageText, `{"id":"a","cancel":true}`)
	last = api.MuxReply{}
	if w.notice(&last); last.ID != "a" || last.Exit == nil {
		t.Errorf("got %+v", last)
	}
}
