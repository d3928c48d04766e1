package e2bapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

const startShell = `{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"envs":{"A":"1"},"cwd":"/tmp"},"stdin":false}`

// start starts a process that the test plays, and reads its start.
func (b *bench) start(msg string, headers ...string) (*rpcStream, *command, int) {
	b.t.Helper()
	played := b.playing()
	s := b.stream("process.Process/Start", msg, headers...)
	c := <-played
	s.want(fmt.Sprintf(`{"event":{"start":{"pid":%d}}}`, c.x.PID))
	return s, c, c.x.PID
}

func TestStartStreamsFromStartToEnd(t *testing.T) {
	b := newBench(t)
	s, c, _ := b.start(startShell)
	if s.res.StatusCode != 200 || s.res.Header.Get("Content-Type") != "application/connect+json" {
		t.Errorf("got %d %s", s.res.StatusCode, s.res.Header)
	}
	// Each is there before the next is written: nothing is held back.
	c.write(hutch.Stdout, "out\n")
	s.want(`{"event":{"data":{"stdout":"` + b64("out\n") + `"}}}`)
	c.write(hutch.Stderr, "\xff")
	s.want(`{"event":{"data":{"stderr":"` + b64("\xff") + `"}}}`)
	c.exit(0)
	s.want(`{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}`)
	s.end("")
	want := hutch.ExecSpec{
		Argv: []string{"/bin/bash", "-l", "-c", "echo hi"}, Cwd: "/tmp", Env: map[string]string{"A": "1"}, User: "user",
		Grace: deadlineGrace, Background: true, Lossless: true,
	}
	if fmt.Sprintf("%+v", c.x.Spec) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", c.x.Spec, want)
	}
}

func TestLargeOutputIsCut(t *testing.T) {
	b := newBench(t)
	s, c, _ := b.start(startShell)
	text := strings.Repeat("0123456789abcdef", 5000)
	c.write(hutch.Stdout, text)
	c.exit(0)
	var got strings.Builder
	for {
		var m processAnswer
		if err := json.Unmarshal([]byte(s.next()), &m); err != nil {
			t.Fatal(err)
		}
		if m.Event.End != nil {
			break
		}
		if len(m.Event.Data.Stdout) > maxChunk {
			t.Errorf("a message of %d bytes", len(m.Event.Data.Stdout))
		}
		got.Write(m.Event.Data.Stdout)
	}
	if got.String() != text {
		t.Errorf("got %d bytes, want %d", got.Len(), len(text))
	}
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		result hutch.ExecResult
		want   string
	}{
		"exit 3":        {hutch.ExecResult{End: hutch.ExecExit, ExitCode: 3}, `{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}`},
		"137 by hand":   {hutch.ExecResult{End: hutch.ExecExit, ExitCode: 137}, `{"exitCode":137,"exited":true,"status":"exit status 137","error":"exit status 137"}`},
		"killed":        {hutch.ExecResult{End: hutch.ExecSignal, ExitCode: 137, Signal: "KILL"}, `{"exitCode":-1,"exited":false,"status":"signal: killed","error":"signal: killed"}`},
		"terminated":    {hutch.ExecResult{End: hutch.ExecSignal, ExitCode: 143, Signal: "TERM"}, `{"exitCode":-1,"exited":false,"status":"signal: terminated","error":"signal: terminated"}`},
		"out of memory": {hutch.ExecResult{End: hutch.ExecOOM, ExitCode: 137}, `{"exitCode":-1,"exited":false,"status":"signal: killed","error":"signal: killed"}`},
		"cancelled":     {hutch.ExecResult{End: hutch.ExecCancelled, ExitCode: 0}, `{"exitCode":0,"exited":true,"status":"exit status 0"}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s, p, _ := b.start(startShell)
			p.finish(c.result)
			s.want(`{"event":{"end":` + c.want + `}}`)
			s.end("")
		})
	}
}

func TestStdinIsOpenUnlessRefused(t *testing.T) {
	for msg, open := range map[string]bool{
		`{"process":{"cmd":"cat"}}`: true, `{"process":{"cmd":"cat"},"stdin":true}`: true, `{"process":{"cmd":"cat"},"stdin":false}`: false,
	} {
		b := newBench(t)
		_, c, _ := b.start(msg)
		if c.x.Spec.StdinOpen != open {
			t.Errorf("%s: got %v", msg, c.x.Spec.StdinOpen)
		}
	}
}

func TestDeadlineIsTheProcesss(t *testing.T) {
	b := newBench(t)
	s, c, _ := b.start(startShell, "Connect-Timeout-Ms", "60000")
	if left := c.x.Spec.Timeout; left <= 55*time.Second || left > 60*time.Second {
		t.Errorf("the process may run %v", left)
	}
	c.finish(hutch.ExecResult{End: hutch.ExecTimeout, ExitCode: 124})
	s.end("deadline_exceeded")

	s, c, _ = b.start(startShell, "Connect-Timeout-Ms", "50")
	s.end("deadline_exceeded") // the call's own, should the process's be late
	c.exit(0)

	_, c, _ = b.start(startShell)
	if c.x.Spec.Timeout != 0 {
		t.Errorf("without a header the process may run %v", c.x.Spec.Timeout)
	}
	_, c, _ = b.start(startShell, "Connect-Timeout-Ms", "9999999999")
	if c.x.Spec.Timeout != 0 {
		t.Errorf("longer than any command: %v", c.x.Spec.Timeout)
	}
}

func TestConnectToEndsWithItsOwnDeadline(t *testing.T) {
	b := newBench(t)
	_, c, pid := b.start(startShell)
	s := b.stream("process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid), "Connect-Timeout-Ms", "50")
	s.want(fmt.Sprintf(`{"event":{"start":{"pid":%d}}}`, pid))
	s.end("deadline_exceeded")
	if b.record(c).Result != nil {
		t.Error("the process ended with it")
	}
}

func TestDisconnectDoesNotKill(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(startShell)
	s.stop()
	b.idle() // the server has noticed
	again := b.stream("process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid))
	again.want(fmt.Sprintf(`{"event":{"start":{"pid":%d}}}`, pid))
	if b.record(c).Result != nil {
		t.Fatal("it was killed")
	}
	c.exit(7)
	again.want(`{"event":{"end":{"exitCode":7,"exited":true,"status":"exit status 7","error":"exit status 7"}}}`)
	again.end("")
}

// TestWhoConnectsMissesNothing: what comes once the client knows that it is connected reaches it,
// and nothing from before does.
func TestWhoConnectsMissesNothing(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(startShell)
	c.write(hutch.Stdout, "before")
	s.next()
	told := make(chan struct{})
	b.mu.Lock()
	b.onFollow = func(hutch.FollowOptions) {
		select { // a guest slow to say what there is gives a client that is told too early its chance
		case <-told:
		case <-time.After(100 * time.Millisecond):
		}
	}
	b.mu.Unlock()
	again := b.stream("process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid))
	again.want(fmt.Sprintf(`{"event":{"start":{"pid":%d}}}`, pid))
	c.write(hutch.Stdout, "after")
	c.write(hutch.Stderr, "and this")
	close(told)
	again.want(`{"event":{"data":{"stdout":"` + b64("after") + `"}}}`)
	again.want(`{"event":{"data":{"stderr":"` + b64("and this") + `"}}}`)
	c.exit(0)
	again.next()
	again.end("")
}

// TestEndIsRetained: who connects soon after the end is told of it, later not.
func TestEndIsRetained(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(`{"process":{"cmd":"x"},"tag":"mine"}`)
	c.exit(0)
	s.next()
	s.end("")
	for _, sel := range []string{fmt.Sprintf(`{"pid":%d}`, pid), `{"tag":"mine"}`} {
		late := b.stream("process.Process/Connect", `{"process":`+sel+`}`)
		late.want(fmt.Sprintf(`{"event":{"start":{"pid":%d}}}`, pid))
		late.want(`{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}`)
		late.end("")
	}
	b.failed(b.call("process.Process/SendSignal", fmt.Sprintf(`{"process":{"pid":%d},"signal":"SIGNAL_SIGKILL"}`, pid)), "not_found", fmt.Sprint(pid))
	end := time.Now().Add(-31 * time.Second)
	b.mu.Lock()
	c.x.Result.EndedAt = end
	b.mu.Unlock()
	b.api.processes.mu.Lock()
	b.api.processes.of[b.sb][pid].end.Result.EndedAt = end
	b.api.processes.mu.Unlock()
	b.stream("process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid)).end("not_found")
}

// TestEndIsKnownBeforeItIsOnRecord: the record may come after the stream's end.
func TestEndIsKnownBeforeItIsOnRecord(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(startShell)
	c.exit(0)
	s.next()
	s.end("")
	b.mu.Lock()
	c.x.Result = nil
	b.mu.Unlock()
	b.failed(b.call("process.Process/SendSignal", fmt.Sprintf(`{"process":{"pid":%d},"signal":"SIGNAL_SIGKILL"}`, pid)), "not_found", fmt.Sprint(pid))
	if r := b.call("process.Process/List", `{}`); strings.TrimSpace(string(r.body)) != `{"processes":[]}` {
		t.Errorf("got %s", r.body)
	}
	late := b.stream("process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid))
	late.next()
	late.want(`{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}`)
}

// TestRememberedIsBounded: what goes is found in the records again.
func TestRememberedIsBounded(t *testing.T) {
	p := newProcesses()
	for i := range maxSandboxes + 10 {
		p.add(hutch.Exec{Sandbox: hutch.SandboxID(fmt.Sprint(i)), PID: 1}, time.Minute)
	}
	for i := range maxRemembered + 10 {
		p.add(hutch.Exec{Sandbox: "one", PID: i}, time.Minute)
	}
	if len(p.of) > maxSandboxes || len(p.of["one"]) > maxRemembered {
		t.Errorf("%d sandboxes, %d processes", len(p.of), len(p.of["one"]))
	}
	x := hutch.Exec{Sandbox: "two", PID: 1, ID: "e1"}
	p.add(x, time.Minute)
	x.Result = &hutch.ExecResult{ExitCode: 3, Stdout: hutch.Output{Head: make([]byte, 1<<20)}}
	p.ended(x)
	if r := p.of["two"][1].end.Result; r.ExitCode != 3 || r.Stdout.Head != nil {
		t.Errorf("with exit code %d, %d bytes of output are remembered", r.ExitCode, len(r.Stdout.Head))
	}
	if x.Result.Stdout.Head == nil {
		t.Error("the caller's own record lost its output")
	}
}

// TestProcessesAreFoundInTheRecords: after a restart of the server nothing is remembered.
func TestProcessesAreFoundInTheRecords(t *testing.T) {
	b := newBench(t)
	_, c, pid := b.start(`{"process":{"cmd":"x"},"tag":"mine","stdin":true}`)
	for _, sel := range []string{fmt.Sprintf(`{"pid":%d}`, pid), `{"tag":"mine"}`} {
		b.api.processes.forget(b.sb)
		if r := b.call("process.Process/SendInput", `{"process":`+sel+`,"input":{"stdin":"YWJj"}}`); r.status != 200 {
			t.Errorf("%s: %d %s", sel, r.status, r.body)
		}
	}
	if c.stdin.String() != "abcabc" {
		t.Errorf("got %q", c.stdin.String())
	}
}

func TestPIDOfAnother(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(startShell)
	c.exit(0)
	s.next()
	s.end("")
	_, second, _ := b.start(startShell) // the sandbox gives the pid out again
	b.mu.Lock()
	second.x.PID = pid
	b.mu.Unlock()
	if r := b.call("process.Process/SendSignal", fmt.Sprintf(`{"process":{"pid":%d},"signal":15}`, pid)); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if fmt.Sprint(second.sent) != "[TERM false]" {
		t.Errorf("got %v", second.sent)
	}
}

func TestInput(t *testing.T) {
	b := newBench(t)
	_, pipe, pid := b.start(`{"process":{"cmd":"cat"},"stdin":true}`)
	_, deaf, deafPID := b.start(`{"process":{"cmd":"cat"},"stdin":false}`)
	_, pty, ptyPID := b.start(`{"process":{"cmd":"sh"},"pty":{"size":{"cols":80,"rows":24}}}`)
	if pty.x.Spec.StdinOpen || *pty.x.Spec.Terminal != (hutch.TerminalSize{Rows: 24, Cols: 80}) || deaf.x.Spec.StdinOpen {
		t.Errorf("got %+v", pty.x.Spec)
	}
	send := func(pid int, in string) reply {
		return b.call("process.Process/SendInput", fmt.Sprintf(`{"process":{"pid":%d},"input":%s}`, pid, in))
	}
	for _, in := range []string{`{"stdin":"YWJj"}`, `{"stdin":""}`} {
		if r := send(pid, in); r.status != 200 || strings.TrimSpace(string(r.body)) != "{}" {
			t.Errorf("%s: %d %s", in, r.status, r.body)
		}
	}
	if r := send(ptyPID, `{"pty":"AQI="}`); r.status != 200 {
		t.Errorf("pty: %d %s", r.status, r.body)
	}
	if pipe.stdin.String() != "abc" || pty.stdin.String() != "\x01\x02" {
		t.Errorf("got %q, %q", pipe.stdin.String(), pty.stdin.String())
	}
	b.failed(send(deafPID, `{"stdin":"YWJj"}`), "internal", "without stdin")
	b.failed(send(pid, `{"pty":"YWJj"}`), "internal", "no terminal")
	b.failed(send(ptyPID, `{"stdin":"YWJj"}`), "internal", "terminal")
	b.failed(send(pid, `{}`), "invalid_argument", "input")
	b.failed(send(99999, `{"stdin":"YWJj"}`), "not_found", "99999")
	b.failed(b.call("process.Process/SendInput", `{"process":{},"input":{"stdin":"YWJj"}}`), "invalid_argument", "pid")

	closeIt := func(pid int) reply {
		return b.call("process.Process/CloseStdin", fmt.Sprintf(`{"process":{"pid":%d}}`, pid))
	}
	for range 2 {
		if r := closeIt(pid); r.status != 200 {
			t.Errorf("close: %d %s", r.status, r.body)
		}
	}
	if !pipe.ended {
		t.Error("it was not closed")
	}
	b.failed(send(pid, `{"stdin":"YWJj"}`), "internal", "closed")
	b.failed(closeIt(ptyPID), "unknown", "terminal")
	pipe.exit(0)
	if r := closeIt(pid); r.status != 200 {
		t.Errorf("close after the end: %d %s", r.status, r.body)
	}
	b.failed(closeIt(4711), "not_found", "4711")
	if r := closeIt(deafPID); r.status != 200 {
		t.Errorf("close what is closed: %d", r.status)
	}
}

func TestStreamInput(t *testing.T) {
	b := newBench(t)
	_, c, pid := b.start(`{"process":{"cmd":"cat"},"stdin":true}`)
	say := func(msgs ...string) (int, string) {
		var body strings.Builder
		for _, m := range msgs {
			body.Write(envelope(0, m))
		}
		r := b.agent("POST", "/process.Process/StreamInput", strings.NewReader(body.String()), "Content-Type", "application/connect+json", "Connect-Protocol-Version", "1")
		return r.status, string(r.body)
	}
	begin := fmt.Sprintf(`{"start":{"process":{"pid":%d}}}`, pid)
	data := `{"data":{"input":{"stdin":"YWJj"}}}`
	if status, body := say(begin, data, `{"keepalive":{}}`, data); status != 200 || strings.Contains(body, "error") || !strings.Contains(body, "{}") {
		t.Errorf("got %d %q", status, body)
	}
	if c.stdin.String() != "abcabc" {
		t.Errorf("got %q", c.stdin.String())
	}
	for want, msgs := range map[string][]string{
		"must begin": {data}, "cannot be changed": {begin, begin}, "not_found": {`{"start":{"process":{"pid":9999}}}`},
	} {
		if _, body := say(msgs...); !strings.Contains(body, want) {
			t.Errorf("%v: got %q, want %q", msgs, body, want)
		}
	}
}

func TestTerminals(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(`{"process":{"cmd":"/bin/bash","args":["-i","-l"]},"pty":{"size":{"cols":80,"rows":24}}}`)
	c.write(hutch.Stdout, "$ ")
	s.want(`{"event":{"data":{"pty":"` + b64("$ ") + `"}}}`)
	if r := b.call("process.Process/Update", fmt.Sprintf(`{"process":{"pid":%d},"pty":{"size":{"cols":100,"rows":30}}}`, pid)); r.status != 200 || c.size != (hutch.TerminalSize{Rows: 30, Cols: 100}) {
		t.Errorf("got %d, %+v", r.status, c.size)
	}
	again := b.stream("process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid))
	again.next()
	c.exit(0)
	_, _, pipe := b.start(startShell)
	b.failed(b.call("process.Process/Update", fmt.Sprintf(`{"process":{"pid":%d},"pty":{"size":{"cols":1,"rows":1}}}`, pipe)), "internal", "no terminal")
	_, c, _ = b.start(`{"process":{"cmd":"sh"},"pty":{}}`)
	if *c.x.Spec.Terminal != (hutch.TerminalSize{Rows: hutch.DefaultRows, Cols: hutch.DefaultCols}) {
		t.Errorf("without a size: %+v", c.x.Spec.Terminal)
	}
}

func TestSignals(t *testing.T) {
	b := newBench(t)
	s, c, pid := b.start(startShell)
	signal := func(pid int, sig string) reply {
		return b.call("process.Process/SendSignal", fmt.Sprintf(`{"process":{"pid":%d},"signal":%s}`, pid, sig))
	}
	if r := signal(pid, `"SIGNAL_SIGTERM"`); r.status != 200 || fmt.Sprint(c.sent) != "[TERM false]" {
		t.Errorf("TERM: %d %s, sent %v", r.status, r.body, c.sent)
	}
	b.failed(signal(pid, `"SIGNAL_UNSPECIFIED"`), "invalid_argument", "SIGNAL_SIGKILL")
	b.failed(signal(pid, `1`), "invalid_argument", "SIGNAL_SIGKILL")
	if r := signal(pid, `9`); r.status != 200 {
		t.Errorf("KILL: %d %s", r.status, r.body)
	}
	if res := b.record(c).Result; res == nil || res.Detail != "0s" {
		t.Errorf("it was to be killed without grace: %+v", res)
	}
	s.want(`{"event":{"end":{"exitCode":-1,"exited":false,"status":"signal: killed","error":"signal: killed"}}}`)
	s.end("")
	b.failed(signal(pid, `"SIGNAL_SIGKILL"`), "not_found", "not found")
	b.failed(signal(4711, `"SIGNAL_SIGKILL"`), "not_found", "4711")
}

func TestListProcesses(t *testing.T) {
	b := newBench(t)
	if r := b.call("process.Process/List", `{}`); strings.TrimSpace(string(r.body)) != `{"processes":[]}` {
		t.Errorf("got %s", r.body)
	}
	_, first, pid1 := b.start(startShell)
	_, _, pid2 := b.start(`{"process":{"cmd":"/bin/cat"},"tag":"t"}`)
	want := fmt.Sprintf(`{"processes":[{"config":{"cmd":"/bin/cat"},"pid":%d,"tag":"t"},{"config":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"cwd":"/tmp"},"pid":%d}]}`, pid2, pid1)
	if r := b.call("process.Process/List", `{}`); !sameJSON(t, string(r.body), want) {
		t.Errorf("got  %s\nwant %s", r.body, want)
	}
	first.exit(0)
	if r := b.call("process.Process/List", `{}`); strings.Contains(string(r.body), "bash") {
		t.Errorf("after its end: %s", r.body)
	}
}

func TestStartsThatFail(t *testing.T) {
	b := newBench(t)
	fails := func(msg, code, says string, headers ...string) {
		t.Helper()
		s := b.stream("process.Process/Start", msg, headers...)
		flags, body, err := s.frame()
		if err != nil || flags != 2 || s.res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"`+code+`"`) || !strings.Contains(string(body), says) {
			t.Errorf("%s: got %d %d %s %v", msg, s.res.StatusCode, flags, body, err)
		}
	}
	fails(`{"process":{"cmd":"x","cwd":"/missing"}}`, "invalid_argument", "cwd '/missing' does not exist")
	fails(`{"process":{"cmd":"/no/such/program"}}`, "invalid_argument", "not found")
	fails(`{"process":{}}`, "invalid_argument", "cmd")
	fails(`{"process":{"cmd":"x"}}`, "unauthenticated", "invalid username: 'nobody-here'", "Authorization", "Basic "+b64("nobody-here:"))
	fails(`{"process":{"cmd":"x","cwd":"~other"}}`, "invalid_argument", "home")
	fails(`{"process":{"cmd":"x","cwd":"~/missing"}}`, "invalid_argument", "does not exist")
	_, c, _ := b.start(`{"process":{"cmd":"x","cwd":"~"}}`, "Authorization", "Basic "+b64("root:"))
	if c.x.Spec.Cwd != "/home/user" || c.x.Spec.User != "root" {
		t.Errorf("got %+v", c.x.Spec)
	}
}

// TestDefaultUser: the image's, else "user"; a sandbox of another API keeps that API's.
func TestDefaultUser(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		surface hutch.Surface
		image   string
		want    string
	}{{hutch.SurfaceE2B, "", "user"}, {hutch.SurfaceE2B, "app", "app"}, {hutch.SurfaceNative, "", ""}, {hutch.SurfaceNative, "app", "app"}} {
		b.mu.Lock()
		b.sandboxes[b.sb].Access.Surface, b.sandboxes[b.sb].Defaults.User = c.surface, c.image
		b.mu.Unlock()
		_, p, _ := b.start(startShell)
		if p.x.Spec.User != c.want {
			t.Errorf("%+v: got %q", c, p.x.Spec.User)
		}
	}
}

func TestKeepalive(t *testing.T) {
	b := newBench(t)
	b.api.cfg.Keepalive = 20 * time.Millisecond
	s, c, _ := b.start(startShell)
	s.want(`{"event":{"keepalive":{}}}`)
	s.want(`{"event":{"keepalive":{}}}`)
	c.exit(0)
	for {
		if m := s.next(); strings.Contains(m, `"end"`) {
			break
		}
	}
	s.end("")
	for header, want := range map[string]time.Duration{"": 20 * time.Millisecond, "50": 50 * time.Second, "0": 20 * time.Millisecond, "x": 20 * time.Millisecond} {
		if got := b.api.keepalive(http.Header{HeaderKeepalive: {header}}); got != want {
			t.Errorf("%q: got %v", header, got)
		}
	}
}

// TestDeathBreaksStreams: a stream of a sandbox that ends is broken, not ended, and by then
// health is a 502.
func TestDeathBreaksStreams(t *testing.T) {
	b := newBench(t)
	s, _, _ := b.start(startShell)
	w := b.stream("filesystem.Filesystem/WatchDir", `{"path":"/home/user"}`)
	w.want(`{"start":{}}`)
	fw := <-b.watches
	b.kill()
	fw.end <- hutch.ErrSandboxGone
	for name, s := range map[string]*rpcStream{"process": s, "watch": w} {
		_, _, err := s.frame()
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream ended as if all were well: %v", name, err)
		}
		if r := b.agent("GET", "/health", nil); r.status != 502 {
			t.Errorf("%s: health %d", name, r.status)
		}
	}
	for _, procedure := range []string{"process.Process/List", "filesystem.Filesystem/Stat"} {
		r := b.call(procedure, `{}`)
		var g goneView
		r.json(t, &g)
		if r.status != 502 || g.Code != 502 || g.Message != "The sandbox was not found" || g.SandboxID != b.sb {
			t.Errorf("%s: %d %s", procedure, r.status, r.body)
		}
	}
}

func TestKilledWhileEnding(t *testing.T) {
	b := newBench(t)
	b.mu.Lock()
	b.sandboxes[b.sb].Transition = hutch.Killing
	b.mu.Unlock()
	if r := b.agent("GET", "/health", nil); r.status != 502 {
		t.Errorf("health: %d", r.status)
	}
	if r := b.control("GET", "/sandboxes/"+string(b.sb), ""); r.status != 404 {
		t.Errorf("info: %d", r.status)
	}
	if r := b.control("GET", "/v2/sandboxes", ""); strings.TrimSpace(string(r.body)) != "[]" {
		t.Errorf("list: %s", r.body)
	}
}

func TestOnlyJSON(t *testing.T) {
	b := newBench(t)
	for _, typ := range []string{"application/proto", "application/grpc", "application/grpc-web+proto", "application/connect+proto", ""} {
		r := b.agent("POST", "/process.Process/List", strings.NewReader(""), "Content-Type", typ)
		if r.status != http.StatusUnsupportedMediaType {
			t.Errorf("%q: %d", typ, r.status)
		}
	}
	if r := b.call("process.Process/Nothing", `{}`); r.status != 404 {
		t.Errorf("an unknown call: %d", r.status)
	}
	b.failed(b.call("process.Process/SendInput", `{"process":"x"}`), "invalid_argument", "")
	if r := b.call("process.Process/List", `{"unknownMember":1}`); r.status != 200 {
		t.Errorf("an unknown member: %d %s", r.status, r.body)
	}
}

// With an agent's token commands can be run, so who may only look is not told it.
func TestReadersAreToldNoToken(t *testing.T) {
	b := newBench(t)
	for key, told := range map[string]bool{adminKey: true, runKey: true, readKey: false} {
		var v detailView
		b.do("GET", "/sandboxes/"+string(b.sb), nil, "X-API-KEY", key).json(t, &v)
		if (v.AgentToken != "") != told || v.SandboxID != b.sb {
			t.Errorf("%s: %+v", key, v)
		}
	}
}

func TestAgentTokens(t *testing.T) {
	b := newBench(t)
	open := b.control("POST", "/sandboxes", `{"templateID":"base"}`)
	var v sandboxView
	open.json(t, &v)
	at := []string{HeaderPort, "49983", "Content-Type", "application/json"}
	for name, c := range map[string]struct {
		sb     hutch.SandboxID
		path   string
		token  string
		status int
	}{
		"none":             {b.sb, "/process.Process/List", "", 401},
		"wrong":            {b.sb, "/process.Process/List", "x", 401},
		"another's":        {b.sb, "/process.Process/List", b.Token(v.SandboxID, TokenAgent), 401},
		"of another use":   {b.sb, "/process.Process/List", b.Token(b.sb, TokenTraffic), 401},
		"right":            {b.sb, "/process.Process/List", b.Token(b.sb, TokenAgent), 200},
		"health":           {b.sb, "/health", "", 204},
		"metrics":          {b.sb, "/metrics", "", 401},
		"envs":             {b.sb, "/envs", "", 401},
		"wrong with files": {b.sb, "/files?path=x", "x", 401},
		"open":             {v.SandboxID, "/process.Process/List", "", 200},
	} {
		method := "POST"
		if !strings.Contains(c.path, ".") {
			method = "GET"
		}
		r := b.do(method, c.path, strings.NewReader("{}"), append([]string{HeaderSandbox, string(c.sb), HeaderToken, c.token}, at...)...)
		if r.status != c.status {
			t.Errorf("%s: got %d %s, want %d", name, r.status, r.body, c.status)
		}
		if c.status == 401 {
			var f failure
			if r.json(t, &f); f.Code != 401 {
				t.Errorf("%s: got %s", name, r.body)
			}
		}
	}
	// A sandbox of another API has an agent too, and its maker never said that it is open.
	b.mu.Lock()
	b.sandboxes[v.SandboxID].Access = hutch.Access{}
	b.mu.Unlock()
	if r := b.do("POST", "/process.Process/List", strings.NewReader("{}"), append([]string{HeaderSandbox, string(v.SandboxID)}, at...)...); r.status != 401 {
		t.Errorf("of another API: %d", r.status)
	}
}

func TestAgentsFigures(t *testing.T) {
	b := newBench(t)
	v := b.create(`{"templateID":"base","envVars":{"A":"1"}}`)
	b.sb = v.SandboxID
	var m map[string]any
	b.agent("GET", "/metrics", nil).json(t, &m)
	if m["cpu_count"] != 2.0 || m["cpu_used_pct"] != 50.0 || m["mem_total_mib"] != 512.0 || m["disk_used"] != 3.0 || m["ts"] != 1.7e9 {
		t.Errorf("got %v", m)
	}
	if r := b.agent("GET", "/envs", nil); strings.TrimSpace(string(r.body)) != `{"A":"1"}` {
		t.Errorf("got %s", r.body)
	}
}
