package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Every field of a command, and every parameter of what is done to one, has its effect in a
// real sandbox.
func TestCommandsRunAsTheyAreAskedTo(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Env: map[string]string{"LAYER": "sandbox"}}).ID
	c := commandCalls{s, sb, "/v1/sandboxes/" + string(sb)}
	s.out(t, sb, `echo 'export FROM_PROFILE=yes' >/home/user/.bash_profile`)
	for name, test := range map[string]func(*testing.T){
		"fields": c.fields, "grace": c.grace, "tree": c.tree, "stdin": c.stdin,
		"terminal": c.terminal, "joined": c.joined, "socket": c.socket, "records": c.records,
	} {
		t.Run(name, test)
	}
}

type commandCalls struct {
	s  *server
	sb hutch.SandboxID
	at string
}

func (c commandCalls) exec(t *testing.T, body string) api.ExecResult {
	t.Helper()
	return answered[api.ExecResult](c.s.ask(t, "POST", c.at+"/exec", body).want(200))
}

func (c commandCalls) background(t *testing.T, body string) string {
	t.Helper()
	return "/v1/execs/" + string(answered[api.Exec](c.s.ask(t, "POST", c.at+"/exec", body).want(202)).ExecID)
}

// wrote waits until a command has written text to its stdout.
func (c commandCalls) wrote(t *testing.T, exec, text string) {
	t.Helper()
	eventually(t, "the command writes "+text, func() bool {
		return strings.Contains(c.s.ask(t, "GET", exec+"/output", "").want(200).body, text)
	})
}

func (c commandCalls) fields(t *testing.T) {
	for body, want := range map[string]string{
		`{"cmd": "echo $((6*7)) $LAYER"}`:                                                                 "42 sandbox\n",
		`{"argv": ["printf", "%s|", "$LAYER", "a b", ""]}`:                                                "$LAYER|a b||",
		`{"cmd": "pwd; id -un; echo $LAYER", "cwd": "/usr", "user": "user", "env": {"LAYER": "command"}}`: "/usr\nuser\ncommand\n",
		`{"cmd": "id -u; id -g; pwd", "user": "1000:1"}`:                                                  "1000\n1\n/home/user\n",
		`{"cmd": "cat", "stdin": "téxt\n"}`:                                                               "téxt\n",
		`{"cmd": "od -An -tx1", "stdin_base64": "AP8K"}`:                                                  " 00 ff 0a\n",
		`{"cmd": "echo ${FROM_PROFILE-none}", "user": "user"}`:                                            "none\n",
		`{"cmd": "echo ${FROM_PROFILE-none}", "user": "user", "login": true}`:                             "yes\n",
		`{"cmd": "stty size; tty -s && echo tty", "terminal": {"rows": 7, "cols": 9}}`:                    "7 9\r\ntty\r\n",
		`{"cmd": "stty size", "terminal": {}}`:                                                            "24 80\r\n",
		`{"cmd": "cd /etc; V=1", "shell": "s"}`:                                                           "",
		`{"cmd": "printf 'a\\rb\\rc\\n'", "collapse_cr": true}`:                                           "c\n",
	} {
		if r := c.exec(t, body); r.Stdout != want || r.ExitCode != 0 {
			t.Errorf("%s: %d %q %q, want %q", body, r.ExitCode, r.Stdout, r.Stderr, want)
		}
	}
	if r := c.exec(t, `{"cmd": "pwd; echo $V", "shell": "s"}`); r.Stdout != "/etc\n1\n" || r.Cwd != "/etc" {
		t.Errorf("a session's second command: %q in %s", r.Stdout, r.Cwd)
	}
	if r := c.exec(t, `{"cmd": "head -c 1000 /dev/zero | tr '\\0' x", "max_output_bytes": 100}`); !r.Truncated || r.DroppedBytes != 900 {
		t.Errorf("over its budget: %+v", r.ExecEnd)
	}
	if r := c.exec(t, `{"cmd": "exec sleep 1000", "timeout_seconds": 0.5}`); r.EndReason != hutch.ExecTimeout || r.ExitCode != hutch.ExitTimeout {
		t.Errorf("over its time: %+v", r)
	}
	if r := c.exec(t, `{"cmd": "exec sleep 1000", "no_output_timeout_seconds": 0.5}`); r.EndReason != hutch.ExecNoOutput {
		t.Errorf("silent: %+v", r)
	}
}

// tidy and deaf are commands that take the hint of TERM, and that do not.
const (
	tidy = `"cmd": "trap 'sleep 0.5; echo tidied; exit' TERM; echo armed; while :; do sleep 0.05; done", "background": true`
	deaf = `"cmd": "trap '' TERM; echo armed; while :; do sleep 0.05; done", "background": true`
)

// cancelled starts a command and cancels it once it is prepared for that.
func (c commandCalls) cancelled(t *testing.T, body, how string) *api.ExecResult {
	t.Helper()
	x := c.background(t, body)
	c.wrote(t, x, "armed")
	r := answered[api.Exec](c.s.ask(t, "POST", x+"/cancel", how).want(200)).Result
	if r.EndReason != hutch.ExecCancelled {
		t.Errorf("%s cancelled by %s: %+v", body, how, r)
	}
	return r
}

// Between TERM and KILL there is the grace: the command's own, or that of the cancel.
func (c commandCalls) grace(t *testing.T) {
	for _, x := range []struct{ body, how string }{{tidy + `, "grace_seconds": 60`, ""}, {tidy + `, "grace_seconds": 0.001`, `{"grace_seconds": 60}`}} {
		if r := c.cancelled(t, "{"+x.body+"}", x.how); r.Escalated || r.Stdout != "armed\ntidied\n" {
			t.Errorf("with time to tidy up: %+v", r)
		}
	}
	for _, x := range []struct{ body, how string }{{deaf + `, "grace_seconds": 0.1`, ""}, {deaf + `, "grace_seconds": 60`, `{"grace_seconds": 0}`}} {
		within(t, 30*time.Second, "a cancel with little grace", func() {
			if r := c.cancelled(t, "{"+x.body+"}", x.how); r.ExitCode != 137 {
				t.Errorf("with little: %+v", r)
			}
		})
	}
}

func (c commandCalls) tree(t *testing.T) {
	x := c.background(t, `{"cmd": "trap 'echo parent' USR1; sh -c 'trap \"echo child\" USR1; echo armed; while :; do sleep 0.05; done' & while :; do wait; done", "background": true}`)
	c.wrote(t, x, "armed")
	c.s.ask(t, "POST", x+"/signal", `{"signal": "USR1"}`).want(204)
	c.wrote(t, x, "parent")
	c.s.ask(t, "POST", x+"/signal", `{"signal": "sigusr1", "tree": true}`).want(204)
	c.wrote(t, x, "child")
	c.s.ask(t, "POST", x+"/signal", `{"signal": "KILL", "tree": true}`).want(204)
}

func (c commandCalls) stdin(t *testing.T) {
	x := c.background(t, `{"cmd": "cat; echo end", "background": true, "stdin_open": true}`)
	if r := answered[api.StdinReply](c.s.ask(t, "POST", x+"/stdin?offset=0", "abc").want(200)); r.Offset != 3 || r.Closed {
		t.Errorf("written: %+v", r)
	}
	c.s.ask(t, "POST", x+"/stdin?offset=1", "bcd").want(200)
	c.wrote(t, x, "abcd")
	c.s.ask(t, "POST", x+"/stdin?offset=4&close=1", "!").want(200)
	if a := c.s.ask(t, "GET", x+"/output?follow=1", "").want(200); a.body != "abcd!end\n" {
		t.Errorf("the command wrote %q", a.body)
	}
	// Without stdin_open there is none to write to.
	y := c.background(t, `{"cmd": "cat; echo end; exec sleep 1000", "background": true}`)
	c.wrote(t, y, "end")
	c.s.ask(t, "POST", y+"/stdin?offset=0", "x").want(409)
	c.s.ask(t, "POST", y+"/cancel", "").want(200)
}

// connection is a WebSocket as it goes over the wire.
type connection struct {
	t    *testing.T
	ctx  context.Context
	conn *websocket.Conn
	exec hutch.ExecID
}

func (c commandCalls) open(t *testing.T, path string) connection {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, res, err := websocket.Dial(ctx, c.s.base+path, &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		HTTPHeader: http.Header{"X-Api-Key": {c.s.key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return connection{t, ctx, conn, hutch.ExecID(res.Header.Get(api.HeaderExecID))}
}

func (c connection) write(typ websocket.MessageType, text string) {
	c.t.Helper()
	if err := c.conn.Write(c.ctx, typ, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// text reads messages up to the next text, which goes into v; it returns the bytes before it.
func (c connection) text(v any) string {
	c.t.Helper()
	var before strings.Builder
	for {
		typ, b, err := c.conn.Read(c.ctx)
		if err != nil {
			c.t.Fatalf("after %q: %v", before.String(), err)
		}
		if typ == websocket.MessageText {
			if err := json.Unmarshal(b, v); err != nil {
				c.t.Fatalf("%v in %s", err, b)
			}
			return before.String()
		}
		before.Write(b)
	}
}

func (c commandCalls) terminal(t *testing.T) {
	for _, name := range []string{"/ssh", "/exec/pty"} {
		w := c.open(t, c.at+name+"?rows=11&cols=33&cwd=/usr&user=user&tag=mine&keep_seconds=0&hello=1&cmd=stty+size%3B+pwd%3B+id+-un%3B+echo+$TERM%3B+exit+4")
		var n api.TerminalNotice
		if before := w.text(&n); before != "" || n.ExecID == "" || n.ExecID != w.exec {
			t.Errorf("%s begins with %q, %+v; the header says %s", name, before, n, w.exec)
		}
		n = api.TerminalNotice{}
		if out := w.text(&n); out != "11 33\r\n/usr\r\nuser\r\nxterm-256color\r\n" || n.Exit == nil || *n.Exit != 4 {
			t.Errorf("%s: %q, %+v", name, out, n)
		}
		if x := c.s.ended(t, w.exec); x.Tag != "mine" {
			t.Errorf("%s: the tag is %q", name, x.Tag)
		}
	}
}

func (c commandCalls) joined(t *testing.T) {
	x := c.background(t, `{"cmd": "stty -echo; echo ready; while read -r l; do [ $l = end ] && exit 5; stty size; done", "background": true, "terminal": {"rows": 20, "cols": 60}}`)
	c.wrote(t, x, "ready")
	w := c.open(t, x+"/terminal?hello=1&replay=7&rows=5&cols=6")
	var n api.TerminalNotice
	if w.text(&n); "/v1/execs/"+string(n.ExecID) != x {
		t.Errorf("it begins with %+v", n)
	}
	eventually(t, "the terminal has the size that its client joined with", func() bool { // it gets that once all is replayed
		w.write(websocket.MessageText, `{"stdin": "size\n"}`)
		return strings.Contains(c.s.ask(t, "GET", x+"/output", "").want(200).body, "5 6\r\n")
	})
	c.s.ask(t, "POST", x+"/resize", `{"rows": 8, "cols": 9}`).want(204)
	w.write(websocket.MessageBinary, "size\n")
	c.wrote(t, x, "8 9\r\n")
	w.write(websocket.MessageText, `{"resize": {"rows": 3, "cols": 4}, "stdin": "size\nend\n"}`)
	n = api.TerminalNotice{}
	if out := w.text(&n); !strings.HasPrefix(out, "ready\r\n") || !strings.Contains(out, "8 9\r\n3 4\r\n") || n.Exit == nil || *n.Exit != 5 {
		t.Errorf("%q, %+v", out, n)
	}
}

func (c commandCalls) socket(t *testing.T) {
	w := c.open(t, c.at+"/exec/ws")
	w.write(websocket.MessageText, `{"id": "slow", "cmd": "sleep 1000", "timeout_seconds": 0.5}`)
	w.write(websocket.MessageText, `{"id": "long", "cmd": "echo begun; sleep 1000"}`)
	exits, said := map[string]int{}, false
	for len(exits) < 2 {
		var r api.MuxReply
		w.text(&r)
		if r.ID == "long" && r.Data == "begun\n" {
			said = true
			w.write(websocket.MessageText, `{"id": "long", "cancel": true}`)
		}
		if r.Exit != nil {
			exits[r.ID] = *r.Exit
		}
	}
	if !said || exits["slow"] != hutch.ExitTimeout || exits["long"] != 143 {
		t.Errorf("ended with %v, said so: %v", exits, said)
	}
}

func (c commandCalls) records(t *testing.T) {
	r := c.exec(t, `{"cmd": "printf 'one\\rtwo\\n'; printf err >&2", "tag": "found"}`)
	x := "/v1/execs/" + string(r.ExecID)
	if got := answered[api.Exec](c.s.ask(t, "GET", x, "").want(200)); got.Tag != "found" || got.Result.Stdout != "one\rtwo\n" {
		t.Errorf("the record: %+v", got)
	}
	if got := answered[api.Exec](c.s.ask(t, "GET", x+"?collapse_cr=1", "").want(200)); got.Result.Stdout != "two\n" {
		t.Errorf("collapsed: %q", got.Result.Stdout)
	}
	for query, want := range map[string]string{"": "one\rtwo\n", "?offset=4": "two\n", "?stream=stderr": "err", "?stream=stderr&offset=1": "rr"} {
		if a := c.s.ask(t, "GET", x+"/output"+query, "").want(200); a.body != want {
			t.Errorf("output%s: %q", query, a.body)
		}
	}
	if a := c.s.ask(t, "GET", x+"/follow?stdout=4&stderr=3", "").want(200); !strings.Contains(a.body, `"chunk":"two\n"`) || strings.Contains(a.body, "err") && strings.Contains(a.body, "event: stderr") {
		t.Errorf("followed: %s", a.body)
	}
	on := c.background(t, `{"cmd": "sleep 1000", "background": true}`)
	if a := c.s.ask(t, "GET", on+"/follow?wait=0", "").want(200); !strings.Contains(a.body, "event: exit") {
		t.Errorf("not waited for: %s", a.body)
	}
	running := answered[[]api.Exec](c.s.ask(t, "GET", c.at+"/execs?running=1", "").want(200))
	for _, x := range running {
		if !x.Running {
			t.Errorf("%s does not run", x.ExecID)
		}
	}
	if len(running) == 0 || "/v1/execs/"+string(running[0].ExecID) != on {
		t.Errorf("running: %+v", running)
	}
	first := c.s.ask(t, "GET", c.at+"/execs?limit=1", "").want(200)
	second := answered[[]api.Exec](c.s.ask(t, "GET", c.at+"/execs?limit=1&cursor="+first.header.Get(api.HeaderNextCursor), "").want(200))
	if len(second) != 1 || second[0].ExecID != r.ExecID {
		t.Errorf("the second page: %+v", second)
	}
	if a := c.s.ask(t, "GET", c.at+"/logs?stream=stderr&tail=1", "").want(200); a.body != "err\n" {
		t.Errorf("the last line of stderr: %q", a.body)
	}
	c.s.ask(t, "POST", on+"/cancel", "").want(200)
}
