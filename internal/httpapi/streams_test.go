package httpapi_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
	"hutch.dev/hutch/internal/x/sse"
)

// joined puts the chunks of one stream together, as text and as bytes.
func joined(t testing.TB, evs []sse.Event, stream string) (text string, exact []byte) {
	t.Helper()
	for _, ev := range evs {
		if ev.Name != stream {
			continue
		}
		c := eventData[api.OutputChunk](t, ev)
		text += c.Chunk
		switch {
		case c.Gap != nil:
		case c.Base64 != nil:
			exact = append(exact, c.Base64...)
		default:
			exact = append(exact, c.Chunk...)
		}
	}
	return text, exact
}

func TestExecStream(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("both", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "out\n")
		_, _ = io.WriteString(p.Stderr, "err")
		return 3
	})
	res := b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec/stream", `{"cmd": "both"}`))
	if ct := res.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
		t.Errorf("Content-Type %q", ct)
	}
	evs := b.events(res)
	if out, _ := joined(t, evs, "stdout"); out != "out\n" {
		t.Errorf("stdout %q", out)
	}
	if out, _ := joined(t, evs, "stderr"); out != "err" {
		t.Errorf("stderr %q", out)
	}
	last := evs[len(evs)-1]
	if end := eventData[api.ExecEnd](t, last); last.Name != "exit" || end.ExitCode != 3 || string(end.ExecID) != res.Header.Get(api.HeaderExecID) {
		t.Errorf("last event %+v", last)
	}
}

// Published clients split the raw bytes at "\n\n", take lines apart at every Unicode line
// end, and may read Latin-1.
func TestStreamsAreLFAndASCII(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	text := "é\u2028\u0085\r\n🙂\x7f\x00"
	b.Program("odd", printing([]byte(text)))
	res := b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec/stream", `{"cmd": "odd"}`))
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range raw {
		if c != '\n' && (c < ' ' || c > '~') {
			t.Fatalf("byte %d is %#x: %q", i, c, raw)
		}
	}
	if !bytes.HasSuffix(raw, []byte("}\n\n")) {
		t.Errorf("the last frame is not closed: %q", raw)
	}
	evs := b.events(&live{Body: bytes.NewReader(raw)})
	if got, _ := joined(t, evs, "stdout"); got != text {
		t.Errorf("read %q, want %q", got, text)
	}
}

func TestStreamNeverSplitsACharacter(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	text := strings.Repeat("aé🙂", 3)
	step := make(chan struct{})
	b.Program("slow", func(p *httpapitest.Process) int {
		for i := range len(text) {
			_, _ = p.Stdout.Write([]byte{text[i]})
			<-step // the follower has had a chance to see each byte alone
		}
		return 0
	})
	go func() {
		for range len(text) {
			step <- struct{}{}
		}
	}()
	evs := b.events(b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec/stream", `{"cmd": "slow"}`)))
	got, _ := joined(t, evs, "stdout")
	if got != text {
		t.Errorf("read %q, want %q", got, text)
	}
	at := int64(0)
	for _, ev := range evs[:len(evs)-1] {
		c := eventData[api.OutputChunk](t, ev)
		if c.Offset != at || c.Base64 != nil || c.Bytes != len(c.Chunk) {
			t.Errorf("chunk %+v at offset %d", c, at)
		}
		at += int64(c.Bytes)
	}
}

func TestStreamOfBytes(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	all := make([]byte, 0, 70_000)
	for i := range 70_000 {
		all = append(all, byte(i))
	}
	b.Program("bytes", printing(all))
	evs := b.events(b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec/stream", `{"cmd": "bytes"}`)))
	if _, exact := joined(t, evs, "stdout"); !bytes.Equal(exact, all) {
		t.Errorf("%d bytes came through, want the %d written", len(exact), len(all))
	}
}

func TestStreamOverItsBudget(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("long", printing([]byte(strings.Repeat("h", 100)+strings.Repeat("m", 600)+strings.Repeat("t", 300))))
	path := "/v1/sandboxes/" + b.sandbox() + "/exec/stream"
	evs := b.events(b.send(b.request("POST", path, `{"cmd": "long", "max_output_bytes": 400}`)))
	text, exact := joined(t, evs, "stdout")
	if want := strings.Repeat("h", 100) + strings.Repeat("t", 300); string(exact) != want {
		t.Errorf("head and tail are %q", exact)
	}
	if !strings.Contains(text, "h\n[hutch: 600 bytes of stdout dropped here") {
		t.Errorf("the text has no mark where bytes are missing: %q", text)
	}
	end := eventData[api.ExecEnd](t, evs[len(evs)-1])
	if !end.Truncated || end.DroppedBytes != 600 || end.OutputPath == "" || end.StdoutCut.HeadBytes != 100 {
		t.Errorf("end %+v", end)
	}
	evs = b.events(b.send(b.request("POST", path+"?budget=0", `{"cmd": "long", "max_output_bytes": 400}`)))
	if _, exact := joined(t, evs, "stdout"); len(exact) != 1000 {
		t.Errorf("without the budget %d bytes came, want 1000", len(exact))
	}
}

func TestFollowFromOffsets(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("long", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "0123456789")
		_, _ = io.WriteString(p.Stderr, "abcdef")
		return 0
	})
	res := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "long", "max_output_bytes": 64}`).want(200))
	path := "/v1/execs/" + string(res.ExecID)
	evs := b.events(b.send(b.request("GET", path+"/follow?stdout=4&stderr=2", "")))
	out, _ := joined(t, evs, "stdout")
	errs, _ := joined(t, evs, "stderr")
	if out != "456789" || errs != "cdef" {
		t.Errorf("followed to %q and %q", out, errs)
	}
	evs = b.events(b.send(b.request("GET", path+"/follow", "", "Last-Event-ID", evs[0].ID)))
	out, _ = joined(t, evs, "stdout")
	errs, _ = joined(t, evs, "stderr")
	if out != "" || errs != "cdef" {
		t.Errorf("after the first event: %q and %q", out, errs)
	}
	b.do("GET", path+"/follow", "", "Last-Event-ID", "x").wantError(400, "bad_request", "Last-Event-ID")
	b.do("GET", path+"/follow?stdout=-1", "").wantError(400, "bad_request", "stdout")
}

func TestFollowShowsGapsAsEvents(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("long", printing([]byte(strings.Repeat("x", 1000))))
	res := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "long", "max_output_bytes": 400}`).want(200))
	evs := b.events(b.send(b.request("GET", "/v1/execs/"+string(res.ExecID)+"/follow?budget=1", "")))
	var gaps []api.OutputGap
	for _, ev := range evs {
		if ev.Name == "gap" {
			gaps = append(gaps, eventData[api.OutputGap](t, ev))
			if ev.ID != "700-0" {
				t.Errorf("after the gap one goes on at %s, want 700-0", ev.ID)
			}
		}
	}
	if len(gaps) != 1 || gaps[0] != (api.OutputGap{Stream: "stdout", From: 100, To: 700}) {
		t.Errorf("gaps %+v", gaps)
	}
}

func TestFollowWithoutWaiting(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	open := make(chan struct{})
	defer close(open)
	b.Program("gate", gate(open))
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "gate", "background": true}`).want(202))
	// What it wrote is seen once it is there.
	first := b.send(b.request("GET", "/v1/execs/"+string(x.ExecID)+"/output?follow=1", ""))
	if _, err := io.ReadFull(first.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	evs := b.events(b.send(b.request("GET", "/v1/execs/"+string(x.ExecID)+"/follow?wait=0", "")))
	if end := eventData[api.ExecEnd](t, evs[len(evs)-1]); len(evs) != 2 || end.EndReason != "" || end.StdoutBytes != 5 {
		t.Errorf("events %+v", evs)
	}
	a := b.do("GET", "/v1/execs/"+string(x.ExecID)+"/output", "").want(200)
	if string(a.body) != "begun" {
		t.Errorf("output so far %q", a.body)
	}
}

func TestStreamsAreKeptAlive(t *testing.T) {
	b := newBench(t, quick)
	open := make(chan struct{})
	b.Program("gate", gate(open))
	sb := b.sandbox()
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "gate", "background": true}`).want(202))
	for _, path := range []string{"/v1/execs/" + string(x.ExecID) + "/follow", "/v1/sandboxes/" + sb + "/events?follow=1"} {
		lines := bufio.NewScanner(b.send(b.request("GET", path, "")).Body)
		beats := 0
		for beats < 3 && lines.Scan() {
			if lines.Text() == ": keepalive" {
				beats++
			}
		}
		if beats < 3 {
			t.Errorf("%s: the stream ended after %d keep-alives: %v", path, beats, lines.Err())
		}
	}
	close(open)
}

func TestFailingStreamSaysSo(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.OnCall = func(m string) error {
		if m == "FollowExec" {
			return hutch.Errorf(hutch.CodeGuestUnresponsive, "the sandbox does not answer")
		}
		return nil
	}
	evs := b.events(b.send(b.request("POST", "/v1/sandboxes/"+b.sandbox()+"/exec/stream", `{"cmd": "true"}`)))
	if e := eventData[api.Error](t, evs[0]); len(evs) != 1 || evs[0].Name != "error" || e.Code != hutch.CodeGuestUnresponsive || e.RequestID == "" {
		t.Errorf("events %+v", evs)
	}
}

func TestOutputRaw(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	all := []byte("\xff\x00é0123456789")
	b.Program("bytes", func(p *httpapitest.Process) int {
		_, _ = p.Stdout.Write(all)
		_, _ = io.WriteString(p.Stderr, "err")
		return 0
	})
	res := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "bytes"}`).want(200))
	path := "/v1/execs/" + string(res.ExecID) + "/output"
	for _, c := range []struct {
		query string
		want  string
	}{
		{"", string(all)}, {"?offset=4", string(all[4:])}, {"?stream=stderr", "err"}, {"?stream=stderr&offset=3", ""}, {"?offset=1000", ""},
	} {
		r := b.send(b.request("GET", path+c.query, ""))
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != c.want || r.Header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("output%s: %q, %v; want %q", c.query, got, err, c.want)
		}
		if r.trailer(api.TrailerComplete) != "true" {
			t.Errorf("output%s: complete is %q", c.query, r.trailer(api.TrailerComplete))
		}
	}
	b.do("GET", path+"?stream=both", "").wantError(400, "bad_request", "stream")
	b.do("GET", path+"?offset=x", "").wantError(400, "bad_request", "offset")
}

func TestEventsArePagedAndStreamed(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	path := "/v1/sandboxes/" + sb
	b.do("POST", path+"/pause", "").want(204)
	first := into[api.Events](b.do("GET", path+"/events?limit=1", "").want(200))
	if len(first.Events) != 1 || first.Events[0].Type != "sandbox.started" || first.Next != first.Events[0].Seq {
		t.Errorf("first page %+v", first)
	}
	rest := into[api.Events](b.do("GET", fmt.Sprintf("/v1/events?after=%d", first.Next), "").want(200))
	if len(rest.Events) != 1 || rest.Events[0].Type != "sandbox.paused" {
		t.Errorf("second page %+v", rest)
	}
	res := b.send(b.request("GET", path+"/events?follow=1", "", "Last-Event-ID", fmt.Sprint(first.Next)))
	in := sse.NewReader(res.Body, 1<<16)
	if ev, err := in.Next(); err != nil || eventData[api.Event](t, ev).Type != "sandbox.paused" {
		t.Fatalf("first event %+v, %v", ev, err)
	}
	b.do("DELETE", path, "").want(204)
	ev, err := in.Next()
	if err != nil || ev.Name != "event" || eventData[api.Event](t, ev).Type != "sandbox.ended" {
		t.Fatalf("last event %+v, %v", ev, err)
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream goes on after the sandbox's end: %v", err)
	}
	b.do("GET", path+"/events?follow=1&limit=3", "").wantError(400, "bad_request", "limit")
}
