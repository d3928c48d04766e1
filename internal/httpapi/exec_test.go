package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestExecAnswersItsResult(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("both", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "out")
		_, _ = io.WriteString(p.Stderr, "err")
		return 3
	})
	path := "/v1/sandboxes/" + b.sandbox() + "/exec"
	a := b.do("POST", path, `{"cmd": "both"}`).want(200)
	res := into[api.ExecResult](a)
	if res.Stdout != "out" || res.Stderr != "err" || res.ExitCode != 3 || res.EndReason != hutch.ExecExit {
		t.Errorf("result %+v", res)
	}
	if res.DurationMS != 5 || res.CPUMS != 2 || res.StdoutBytes != 3 || res.Truncated || res.Lossy || res.StdoutBase64 != nil {
		t.Errorf("result %+v", res)
	}
	if id := a.header.Get(api.HeaderExecID); id != string(res.ExecID) {
		t.Errorf("%s is %q, the result says %q", api.HeaderExecID, id, res.ExecID)
	}
	// What published clients read.
	var raw map[string]any
	if err := json.Unmarshal(a.body, &raw); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stdout", "stderr", "exit_code", "duration_ms", "exec_id", "end_reason", "truncated", "dropped_bytes"} {
		if _, ok := raw[name]; !ok {
			t.Errorf("the result lacks %s", name)
		}
	}
}

func TestExecFieldsArrive(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	specs := make(chan hutch.ExecSpec, 1)
	b.Program("spec", func(p *httpapitest.Process) int {
		specs <- p.Spec
		return 0
	})
	sb := b.sandbox()
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"argv": ["spec", "a b"], "cwd": "/w", "env": {"K": "secret"}, "user": "u",
		"timeout_seconds": 1.5, "no_output_timeout_seconds": 2, "grace_seconds": 0.25, "max_output_bytes": 4096, "background": true, "stdin_open": true}`).want(202))
	got := <-specs
	if got.Argv[1] != "a b" || got.Cwd != "/w" || got.Env["K"] != "secret" || got.User != "u" || got.Timeout != 1500*time.Millisecond ||
		got.NoOutputTimeout != 2*time.Second || got.Grace != 250*time.Millisecond || got.MaxOutputBytes != 4096 || !got.Background || !got.StdinOpen {
		t.Errorf("spec %+v", got)
	}
	if len(x.EnvNames) != 1 || x.EnvNames[0] != "K" || x.TimeoutSeconds != 1.5 || x.SandboxID != hutch.SandboxID(sb) {
		t.Errorf("record %+v", x)
	}
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "spec"}`).want(200)
	if got := <-specs; got.Timeout != hutch.DefaultExecTimeout || got.MaxOutputBytes != hutch.DefaultOutputBytes || got.Grace != hutch.DefaultGrace {
		t.Errorf("defaults %+v", got)
	}
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "spec", "background": true}`).want(202)
	if got := <-specs; got.Timeout != 0 {
		t.Errorf("a background command has timeout %v, want none", got.Timeout)
	}
}

func TestExecRefuses(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := "/v1/sandboxes/" + b.sandbox()
	for _, c := range []struct{ path, body, field string }{
		{"/exec", `{}`, "cmd"},
		{"/exec", `{"cmd": ""}`, "cmd"},
		{"/exec", `{"cmd": ["ls"]}`, "cmd"},
		{"/exec", `{"argv": "ls"}`, "argv"},
		{"/exec", `{"cmd": "true", "timeout_seconds": 0}`, "timeout_seconds"},
		{"/exec", `{"cmd": "true", "timeout_seconds": 86401}`, "timeout_seconds"},
		{"/exec", `{"cmd": "true", "timeout_seconds": 1e-12}`, "timeout_seconds"},
		{"/exec", `{"cmd": "true", "grace_seconds": 61}`, "grace_seconds"},
		{"/exec", `{"cmd": "true", "no_output_timeout_seconds": -1}`, "no_output_timeout_seconds"},
		{"/exec", `{"cmd": "true", "max_output_bytes": 63}`, "max_output_bytes"},
		{"/exec", `{"cmd": "true", "max_output_bytes": 16777217}`, "max_output_bytes"},
		{"/exec", `{"cmd": "true", "stdin": "x", "stdin_base64": "eA=="}`, "stdin"},
		{"/exec", `{"cmd": "true", "stdin_base64": "%"}`, "stdin_base64"},
		{"/exec", `{"cmd": "true", "stdin_open": true}`, "stdin_open"},
		{"/exec", `{"cmd": "true", "background": true, "collapse_cr": true}`, "collapse_cr"},
		{"/exec/stream", `{"cmd": "true", "collapse_cr": true}`, "collapse_cr"},
		{"/exec/stream", `{"cmd": "true", "background": true}`, "background"},
	} {
		b.do("POST", sb+c.path, c.body).wantError(400, "bad_request", c.field)
	}
	b.do("POST", sb+"/exec", `{"cmd": "true", "timeout": 5}`).wantError(400, "unknown_field", "timeout")
	b.do("POST", "/v1/sandboxes/inope/exec", `{"cmd": "true"}`).wantError(404, "not_found", "")
	if n := len(into[[]api.Exec](b.do("GET", sb+"/execs", "").want(200))); n != 0 {
		t.Errorf("refused calls started %d commands", n)
	}
}

func TestExecStdinInTheBody(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	path := "/v1/sandboxes/" + b.sandbox() + "/exec"
	for body, want := range map[string]string{
		`{"cmd": "cat", "stdin": "héllo"}`:           "héllo",
		`{"cmd": "cat", "stdin": ""}`:                "",
		`{"cmd": "cat", "stdin_base64": "aGVsbG8="}`: "hello",
		`{"cmd": "cat"}`:                             "",
	} {
		if res := into[api.ExecResult](b.do("POST", path, body).want(200)); res.Stdout != want {
			t.Errorf("%s gave %q, want %q", body, res.Stdout, want)
		}
	}
	long := strings.Repeat("x", 3<<20)
	if res := into[api.ExecResult](b.do("POST", path, `{"cmd": "cat", "max_output_bytes": 16777216, "stdin": "`+long+`"}`).want(200)); res.Stdout != long {
		t.Errorf("3 MiB of stdin came back as %d bytes", len(res.Stdout))
	}
	b.do("POST", path, `{"cmd": "cat", "stdin": "`+strings.Repeat("x", 8<<20)+`"}`).wantError(413, "too_large", "")
}

// printing makes a program that writes b to its stdout.
func printing(b []byte) httpapitest.Program {
	return func(p *httpapitest.Process) int {
		_, _ = p.Stdout.Write(b)
		return 0
	}
}

func TestExecOverItsBudget(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("e", printing([]byte(strings.Repeat("é", 1000))))
	b.Program("smile", printing([]byte("x"+strings.Repeat("🙂", 500))))
	path := "/v1/sandboxes/" + b.sandbox() + "/exec"
	for _, c := range []struct {
		prog             string
		budget           int
		total, dropped   int64
		headLen, tailLen int64
	}{
		{"e", 1000, 2000, 1000, 250, 750},
		{"e", 1004, 2000, 998, 250, 752}, // a quarter of the budget, 251, is inside a character; so is the tail's begin
		{"smile", 1000, 2001, 1004, 249, 748},
	} {
		res := into[api.ExecResult](b.do("POST", path, fmt.Sprintf(`{"cmd": %q, "max_output_bytes": %d}`, c.prog, c.budget)).want(200))
		if !res.Truncated || res.DroppedBytes != c.dropped || res.StdoutBytes != c.total || res.OutputPath == "" || res.Lossy {
			t.Errorf("%s: %+v", c.prog, res.ExecEnd)
			continue
		}
		if !utf8.ValidString(res.Stdout) || strings.ContainsRune(res.Stdout, utf8.RuneError) {
			t.Errorf("%s: the text was cut inside a character", c.prog)
		}
		head, rest, _ := strings.Cut(res.Stdout, "\n[hutch: ")
		mark, tail, _ := strings.Cut(rest, "]\n")
		if int64(len(head)) != c.headLen || int64(len(tail)) != c.tailLen || int64(len(head)+len(tail))+c.dropped != c.total {
			t.Errorf("%s: head %d and tail %d bytes of %d with %d dropped", c.prog, len(head), len(tail), c.total, c.dropped)
		}
		if len(head)+len(tail) > c.budget {
			t.Errorf("%s: %d bytes are over the budget of %d", c.prog, len(head)+len(tail), c.budget)
		}
		if !strings.Contains(mark, fmt.Sprint(c.dropped)) || !strings.Contains(mark, res.OutputPath) {
			t.Errorf("%s: the marker %q does not say how much and where", c.prog, mark)
		}
	}
}

func TestExecThatIsNotUTF8(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("bytes", printing([]byte("\xff\xfe\x00")))
	res := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "bytes"}`).want(200))
	if !res.Lossy || !bytes.Equal(res.StdoutBase64, []byte("\xff\xfe\x00")) || res.Stdout != "\uFFFD\x00" || res.StderrBase64 != nil {
		t.Errorf("result %+v", res)
	}
}

func TestExecCollapsesProgressWhenAsked(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	var progress strings.Builder
	progress.WriteString("start\n")
	for i := range 1000 {
		fmt.Fprintf(&progress, "\r%d%%", i)
	}
	b.Program("progress", printing([]byte(progress.String())))
	path := "/v1/sandboxes/" + b.sandbox() + "/exec"
	res := into[api.ExecResult](b.do("POST", path, `{"cmd": "progress", "collapse_cr": true}`).want(200))
	if res.Stdout != "start\n999%" || res.StdoutBytes != int64(progress.Len()) {
		t.Errorf("collapsed to %q of %d bytes", res.Stdout, res.StdoutBytes)
	}
	rec := into[api.Exec](b.do("GET", "/v1/execs/"+string(res.ExecID), "").want(200))
	if rec.Result.Stdout != progress.String() {
		t.Error("the record lost what the view left out")
	}
	rec = into[api.Exec](b.do("GET", "/v1/execs/"+string(res.ExecID)+"?collapse_cr=1", "").want(200))
	if rec.Result.Stdout != res.Stdout {
		t.Errorf("the record's view is %q", rec.Result.Stdout)
	}
}

// gate is a program that waits to be let go.
func gate(open <-chan struct{}) httpapitest.Program {
	return func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "begun")
		select {
		case <-open:
			return 0
		case <-p.Stopped:
			return 143
		}
	}
}

func TestLongExecIsKeptAlive(t *testing.T) {
	b := newBench(t, quick)
	open := make(chan struct{})
	b.Program("gate", gate(open))
	res := b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "gate"}`))
	if res.StatusCode != 200 {
		t.Fatalf("status %d", res.StatusCode)
	}
	blanks := make([]byte, 3) // arrive while the command still runs
	if _, err := io.ReadFull(res.Body, blanks); err != nil || string(blanks) != "   " {
		t.Fatalf("read %q, %v; want blanks", blanks, err)
	}
	close(open)
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := into[api.ExecResult](answer{t: t, body: rest}); got.Stdout != "begun" || got.ExitCode != 0 {
		t.Errorf("result %+v", got)
	}
}

func TestFailureAfterTheAnswerHasBegunIsInTheResult(t *testing.T) {
	b := newBench(t, quick)
	fail := make(chan struct{})
	b.OnCall = func(m string) error {
		if m == "WaitExec" {
			<-fail
			return hutch.Errorf(hutch.CodeGuestUnresponsive, "the sandbox does not answer")
		}
		return nil
	}
	res := b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "true"}`))
	one := make([]byte, 1)
	if _, err := io.ReadFull(res.Body, one); err != nil {
		t.Fatal(err)
	}
	close(fail)
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := into[api.ExecResult](answer{t: t, body: rest})
	if got.ExitCode != api.ExitNoResult || got.Code != hutch.CodeGuestUnresponsive || !strings.Contains(got.Stderr, "does not answer") || got.ExecID == "" {
		t.Errorf("result %+v", got)
	}
}

func TestLeavingDoesNotEndACommand(t *testing.T) {
	f, done := httpapitest.New(), make(answered, 20)
	b := serveOn(t.Context(), t, f, quick, done)
	open := make(chan struct{})
	b.Program("gate", gate(open))
	sb := b.sandbox()
	for _, path := range []string{"/exec", "/exec/stream"} {
		ctx, leave := context.WithCancel(t.Context())
		res := b.send(b.request("POST", "/v1/sandboxes/"+sb+path, `{"cmd": "gate"}`).WithContext(ctx))
		if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		leave()
		if _, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
			t.Fatalf("after leaving: %v", err)
		}
		done.await(t, "/v1/sandboxes/{id}"+path) // the server has noticed
	}
	running := into[[]api.Exec](b.do("GET", "/v1/sandboxes/"+sb+"/execs?running=1", "").want(200))
	if len(running) != 2 {
		t.Fatalf("%d commands run after their callers left, want 2", len(running))
	}
	close(open)
	for _, x := range running {
		res := b.send(b.request("GET", "/v1/execs/"+string(x.ExecID)+"/output?follow=1", ""))
		if out, err := io.ReadAll(res.Body); string(out) != "begun" || err != nil {
			t.Errorf("output %q, %v", out, err)
		}
		if r := into[api.Exec](b.do("GET", "/v1/execs/"+string(x.ExecID), "").want(200)).Result; r == nil || r.EndReason != hutch.ExecExit || r.ExitCode != 0 {
			t.Errorf("after its caller left it ended with %+v", r)
		}
	}
}

func TestRecordsAndCancel(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	a := b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "sleep 100", "background": true}`).want(202)
	x := into[api.Exec](a)
	if !x.Running || x.Result != nil || x.PID == 0 || a.header.Get("Location") != "/v1/execs/"+string(x.ExecID) {
		t.Errorf("a background command answered %+v", x)
	}
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "echo hi"}`).want(200)
	list := into[[]api.Exec](b.do("GET", "/v1/sandboxes/"+sb+"/execs", "").want(200))
	if len(list) != 2 || list[0].Cmd != "echo hi" || !list[1].Running {
		t.Fatalf("list %+v", list)
	}
	if list[0].Result == nil || list[0].Result.Stdout != "" || list[0].Result.StdoutBytes != 3 {
		t.Errorf("a listing holds %+v, want the result without its text", list[0].Result)
	}
	if page := b.do("GET", "/v1/sandboxes/"+sb+"/execs?limit=1", "").want(200); page.header.Get(api.HeaderNextCursor) == "" || len(into[[]api.Exec](page)) != 1 {
		t.Error("a page of one leads nowhere")
	}

	b.do("POST", "/v1/execs/"+string(x.ExecID)+"/cancel", `{"grace_seconds": 61}`).wantError(400, "bad_request", "grace_seconds")
	c := into[api.Exec](b.do("POST", "/v1/execs/"+string(x.ExecID)+"/cancel", `{"grace_seconds": 0}`).want(200))
	if c.Running || c.Result.EndReason != hutch.ExecCancelled || len(c.Result.Killed) != 1 || c.Result.Killed[0].Signal != "TERM" {
		t.Errorf("cancelled to %+v", c.Result)
	}
	b.do("POST", "/v1/execs/"+string(x.ExecID)+"/cancel", "").want(200) // twice is fine

	b.do("DELETE", "/v1/sandboxes/"+sb, "").want(204)
	if rec := into[api.Exec](b.do("GET", "/v1/execs/"+string(list[0].ExecID), "").want(200)); rec.Result.Stdout != "hi\n" {
		t.Errorf("after its sandbox ended the record holds %+v", rec.Result)
	}
	b.do("GET", "/v1/sandboxes/"+sb+"/execs", "").want(200)
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "true"}`).wantError(404, "sandbox_gone", "")
	b.do("GET", "/v1/execs/enope", "").wantError(404, "not_found", "")
}

func TestSignal(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("trap", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, <-p.Signals)
		return 0
	})
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "trap", "background": true}`).want(202))
	path := "/v1/execs/" + string(x.ExecID)
	for _, bad := range []string{`{}`, `{"signal": "9; rm"}`, `{"signal": "TOOLONGNAME"}`} {
		b.do("POST", path+"/signal", bad).wantError(400, "bad_request", "signal")
	}
	b.do("POST", path+"/signal", `{"signal": "sigusr1", "tree": true}`).want(204)
	if out := b.do("GET", path+"/output?follow=1", "").want(200); string(out.body) != "USR1" {
		t.Errorf("the command got %q", out.body)
	}
}

func TestStdinIsStreamed(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "cat", "background": true, "stdin_open": true, "max_output_bytes": 16777216}`).want(202))
	path := "/v1/execs/" + string(x.ExecID)
	b.do("POST", path+"/stdin", "x").wantError(400, "bad_request", "offset")
	if r := into[api.StdinReply](b.do("POST", path+"/stdin?offset=0", "abc").want(200)); r.Offset != 3 || r.Closed {
		t.Errorf("reply %+v", r)
	}
	b.do("POST", path+"/stdin?offset=9", "x").wantError(400, "bad_request", "offset")
	// A repetition, and what follows it, adds only what is new.
	if r := into[api.StdinReply](b.do("POST", path+"/stdin?offset=0", "abcdef").want(200)); r.Offset != 6 {
		t.Errorf("reply %+v", r)
	}
	// Bytes of a body that goes on arrive before it ends.
	pr, pw := io.Pipe()
	req := b.request("POST", path+"/stdin?offset=6&close=1", "")
	req.Body, req.ContentLength = pr, -1
	done := make(chan *live, 1)
	go func() { defer close(done); done <- b.send(req) }()
	if _, err := io.WriteString(pw, "ghi"); err != nil {
		t.Fatal(err)
	}
	out := b.send(b.request("GET", path+"/output?follow=1&stream=stdout", ""))
	got := make([]byte, 9)
	if _, err := io.ReadFull(out.Body, got); err != nil || string(got) != "abcdefghi" {
		t.Fatalf("read %q, %v", got, err)
	}
	long := strings.Repeat("0123456789", 1<<18)
	if _, err := io.WriteString(pw, long); err != nil {
		t.Fatal(err)
	}
	_ = pw.Close()
	if rest, err := io.ReadAll(out.Body); string(rest) != long || err != nil {
		t.Errorf("the rest is %d bytes, %v", len(rest), err)
	}
	if res := <-done; res == nil || res.StatusCode != 200 {
		t.Errorf("stdin ended with %d", res.StatusCode)
	}
	b.do("POST", path+"/stdin?offset=0", "x").wantError(409, "invalid_state", "")
}
