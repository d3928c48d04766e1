package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func TestCollapseCR(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain\n":              "plain\n",
		"a\rb":                 "b",
		"a\rb\r":               "b",
		"a\rb\r\nc":            "b\r\nc",
		"windows\r\nlines\r\n": "windows\r\nlines\r\n",
		"1%\r2%\r3%\ndone\n":   "3%\ndone\n",
		"\r\r\r":               "",
		"x\n\ry":               "x\ny",
	} {
		if got := collapseCR(in); got != want {
			t.Errorf("collapseCR(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestRuneBorders(t *testing.T) {
	for _, c := range []struct {
		in           string
		whole, first int
	}{
		{"", 0, 0},
		{"abc", 3, 0},
		{"é", 2, 0},
		{"a\xc3", 1, 0},             // the begin of é
		{"a\xf0\x9f\x99", 1, 0},     // three quarters of a smile
		{"\xa9b", 2, 1},             // the end of é
		{"\x9f\x99\x82b", 4, 3},     // the end of a smile
		{"\x80\x80\x80\x80b", 5, 3}, // no character is that long: not one
		{"a\xff", 2, 0},             // never part of a character
	} {
		if got := wholeRunes([]byte(c.in)); got != c.whole {
			t.Errorf("wholeRunes(%q) = %d, want %d", c.in, got, c.whole)
		}
		if got := firstRune([]byte(c.in)); got != c.first {
			t.Errorf("firstRune(%q) = %d, want %d", c.in, got, c.first)
		}
	}
}

func TestMarkerSaysWhereTheRestIs(t *testing.T) {
	for _, c := range []struct {
		cut  api.StreamCut
		want string
	}{
		{api.StreamCut{DroppedBytes: 5, Path: "/o"}, "\n[hutch: 5 bytes of stdout dropped here; the whole output is in /o]\n"},
		{api.StreamCut{DroppedBytes: 5, Path: "/o", FileDroppedBytes: 2}, "\n[hutch: 5 bytes of stdout dropped here; all but the first 2 bytes are in /o]\n"},
		{api.StreamCut{DroppedBytes: 5}, "\n[hutch: 5 bytes of stdout dropped here; it was not kept in full anywhere]\n"},
	} {
		if got := marker("stdout", c.cut); got != c.want {
			t.Errorf("marker %q, want %q", got, c.want)
		}
	}
}

func TestOutputPathIsStdoutsFirst(t *testing.T) {
	cut := func(p string) hutch.Output {
		return hutch.Output{Head: []byte("h"), Tail: []byte("t"), Total: 10, Dropped: 8, Path: p}
	}
	x := hutch.Exec{ID: "e1", Result: &hutch.ExecResult{Stdout: cut("/out"), Stderr: cut("/err")}}
	if r := showResult(x, false); r.OutputPath != "/out" || r.DroppedBytes != 16 || r.StderrCut.Path != "/err" {
		t.Errorf("result %+v", r.ExecEnd)
	}
	x.Result.Stdout = hutch.Output{}
	if r := showResult(x, false); r.OutputPath != "/err" || r.StdoutCut != nil {
		t.Errorf("result %+v", r.ExecEnd)
	}
}

func TestStatusWord(t *testing.T) {
	for _, c := range []struct {
		sb   hutch.Sandbox
		want api.Status
	}{
		{hutch.Sandbox{State: hutch.StateNew, Transition: hutch.Starting}, api.StatusCreating},
		{hutch.Sandbox{State: hutch.StateRunning}, api.StatusRunning},
		{hutch.Sandbox{State: hutch.StateRunning, Transition: hutch.Pausing}, api.StatusRunning},
		{hutch.Sandbox{State: hutch.StatePaused, Transition: hutch.Resuming}, api.StatusPaused},
		{hutch.Sandbox{State: hutch.StatePaused, Transition: hutch.Killing}, api.StatusStopping},
		{hutch.Sandbox{State: hutch.StateDead, EndReason: hutch.EndKilled}, api.StatusDeleted},
		{hutch.Sandbox{State: hutch.StateDead, EndReason: hutch.EndStartFailed}, api.StatusFailed},
	} {
		if got := statusOf(c.sb); got != c.want {
			t.Errorf("%s/%s shows as %s, want %s", c.sb.State, c.sb.Transition, got, c.want)
		}
	}
}

func TestASCIIJSON(t *testing.T) {
	in := "a\"\\é\u2028🙂\x7f\u0085"
	b := asciiJSON(in)
	for _, c := range b {
		if c < ' ' || c > '~' {
			t.Fatalf("not ASCII: %q", b)
		}
	}
	var out string
	if err := json.Unmarshal(b, &out); err != nil || out != in {
		t.Errorf("%s reads as %q, %v", b, out, err)
	}
}

// Fuzz targets: whatever a client sends is refused with one of our errors or decoded
// into something within its bounds.

func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var he *hutch.Error
	if !errors.As(err, &he) || Status(he.Code) == 500 || he.Message == "" || !utf8.ValidString(he.Message) || len(he.Message) > 500 {
		t.Fatalf("refused with %#v", err)
	}
}

func within(t *testing.T, d, most time.Duration) {
	t.Helper()
	if d < 0 || d > most {
		t.Fatalf("%v came through a bound of %v", d, most)
	}
}

func FuzzDecodeCreate(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"cpu":1.5,"memory_mb":512,"disk_mb":1,"pids":9,"disk_tier":"memory"}`, `{"ttl_seconds":1e12}`, `{"ttl_seconds":null}`,
		`{"env":{"A":"b"},"metadata":{"k":"v"},"hostname":"h"}`, `{"volumes":[{"name":"x"}]}`, `{"persistent":false}`, `{"tpl":1}`, `[1`, "{\"a\xff\":1}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		req, _, err := decodeCreate(in)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if req.Template == "" || req.Resources.MilliCPU < 0 || req.Resources.MemoryMB < 0 || req.Resources.DiskMB < 0 || req.Resources.Pids < 0 {
			t.Fatalf("accepted %+v", req)
		}
		if req.TTL != nil {
			within(t, *req.TTL, longest)
		}
		within(t, req.IdleTimeout, longest)
	})
}

func FuzzDecodeExec(f *testing.F) {
	for _, s := range []string{
		`{"cmd":"ls"}`, `{"argv":["a"],"env":{"A":"b"},"cwd":"/","user":"u"}`, `{"cmd":"x","timeout_seconds":0.5,"grace_seconds":1,"no_output_timeout_seconds":3}`,
		`{"cmd":"x","stdin":"y"}`, `{"cmd":"x","stdin_base64":"eA=="}`, `{"cmd":"x","background":true,"stdin_open":true}`, `{"cmd":"x","max_output_bytes":64}`,
		`{"cmd":"x","collapse_cr":true}`, `{"cmd":"\u0000"}`,
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, stream bool) {
		req, err := decodeExec(in, stream)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		within(t, req.Spec.Timeout, hutch.MaxExecTimeout)
		within(t, req.Spec.NoOutputTimeout, hutch.MaxExecTimeout)
		within(t, req.Spec.Grace, hutch.MaxGrace)
		if n := req.Spec.MaxOutputBytes; n < hutch.MinOutputBytes || n > hutch.MaxOutputBytes {
			t.Fatalf("budget %d accepted", n)
		}
		if req.Spec.Timeout == 0 && !req.Spec.Background {
			t.Fatal("a command that is waited for has no timeout")
		}
		if req.Stdin != nil && req.Spec.StdinOpen {
			t.Fatal("two sources of stdin accepted")
		}
	})
}

func FuzzDecodeSmall(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"ttl_seconds":5}`, `{"grace_seconds":1}`, `{"signal":"SIGINT","tree":true}`, `{"name":"n","scope":"run","expires_in_seconds":9}`,
		`{"label":"l","expires_in_days":1.5}`, ``, `  `, `{"expires_in_days":1e300}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		check := func(d *time.Duration, most time.Duration, err error) {
			if err != nil {
				checkRefusal(t, err)
			} else if d != nil {
				within(t, *d, most)
			}
		}
		ttl, err := decodeLifecycle(in)
		check(ttl, longest, err)
		grace, err := decodeCancel(in)
		check(grace, hutch.MaxGrace, err)
		key, err := decodeKey(in)
		check(&key.TTL, longest, err)
		if err == nil && !key.Scope.Valid() {
			t.Fatalf("scope %q accepted", key.Scope)
		}
		tok, err := decodeToken(in)
		check(&tok.TTL, longest, err)
		sig, err := decodeSignal(in)
		check(nil, 0, err)
		if err == nil && (sig.Signal == "" || strings.ToUpper(sig.Signal) != sig.Signal) {
			t.Fatalf("signal %q accepted", sig.Signal)
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, s := range []string{"limit=5&cursor=a", "limit=-1", "running=yes", "metadata.a=b&metadata.c=d", "state=all", "offset=9223372036854775808", "a&a", "%zz", "access_token=x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		values, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q := &query{values: values}
		limit, offset := q.limit(0), q.num("offset", 0)
		_, _ = q.flag("running", false), q.pairs("metadata")
		_, stErr := states(q.str("state"))
		if err := q.check(); err != nil {
			checkRefusal(t, err)
			return
		}
		if stErr != nil {
			checkRefusal(t, stErr)
		}
		if limit < 0 || limit > maxPage || offset < 0 {
			t.Fatalf("limit %d, offset %d accepted", limit, offset)
		}
	})
}

func FuzzEventID(f *testing.F) {
	for _, s := range []string{"0-0", "12-9223372036854775807", "-1-2", "1", "1-2-3", "+1-2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, b, err := parseEventID(s)
		if err != nil {
			checkRefusal(t, err)
		} else if a < 0 || b < 0 {
			t.Fatalf("%q is %d-%d", s, a, b)
		}
	})
}

// Whatever a command writes, in whatever pieces: the text shown is UTF-8, the counts add
// up, the budget holds, and the pieces of a stream make up exactly the bytes.
func FuzzOutputAsText(f *testing.F) {
	f.Add([]byte("plain"), 3, uint8(2))
	f.Add([]byte("é🙂é🙂é🙂é🙂"), 8, uint8(1))
	f.Add([]byte("\xff\xf0\x9f\x80\x80\x80\x80"), 5, uint8(3))
	f.Fuzz(func(t *testing.T, all []byte, budget int, step uint8) {
		if budget <= 0 || budget > 1<<20 {
			return
		}
		o := hutch.Output{Head: all, Total: int64(len(all))}
		if len(all) > budget {
			head := budget / 4
			o.Head, o.Tail = all[:head], all[len(all)-(budget-head):]
			o.Dropped = int64(len(all) - budget)
		}
		shown := showStream("stdout", o, false)
		if !utf8.ValidString(shown.shown) {
			t.Fatalf("shown as %q", shown.shown)
		}
		if c := shown.cut; c != nil {
			if c.HeadBytes+c.TailBytes > int64(budget) || c.HeadBytes+c.TailBytes+c.DroppedBytes != int64(len(all)) || c.DroppedBytes < o.Dropped {
				t.Fatalf("cut %+v of %d bytes with budget %d", *c, len(all), budget)
			}
			if shown.exact != nil && int64(len(shown.exact)) != c.HeadBytes+c.TailBytes {
				t.Fatalf("%d exact bytes for %+v", len(shown.exact), *c)
			}
			if utf8.Valid(all) && shown.exact != nil {
				t.Fatal("a cut made text out to be bytes")
			}
		}
		var got []byte
		c := newChunker(hutch.FollowOptions{}, func(p piece) error {
			if p.offset != int64(len(got)) || (utf8.Valid(all) && !utf8.Valid(p.data)) || len(p.data) == 0 || len(p.data) > maxChunk {
				t.Fatalf("piece %q at %d after %d bytes", p.data, p.offset, len(got))
			}
			got = append(got, p.data...)
			return nil
		})
		for at := 0; at < len(all); {
			n := min(int(step)+1, len(all)-at)
			if err := c.event(hutch.OutputEvent{Stream: hutch.Stdout, Offset: int64(at), Data: bytes.Clone(all[at : at+n])}); err != nil {
				t.Fatal(err)
			}
			at += n
		}
		if err := c.flush(); err != nil || !bytes.Equal(got, all) {
			t.Fatalf("pieces make up %q, want %q (%v)", got, all, err)
		}
	})
}

func TestSecondsNeverOverflow(t *testing.T) {
	for _, v := range []float64{math.MaxFloat64, longest.Seconds() + 1, -1e-9} {
		if _, err := seconds("f", &v, 0, longest); err == nil {
			t.Errorf("%v seconds were accepted", v)
		}
	}
}

func TestRawOutputAndGaps(t *testing.T) {
	w := httptest.NewRecorder()
	out := rawOutput{w: w, live: newLiveWriter(w), stream: hutch.Stdout, next: 3}
	for _, ev := range []hutch.OutputEvent{
		{Keepalive: true},
		{Stream: hutch.Stderr, Offset: 0, Data: []byte("no")},
		{Stream: hutch.Stdout, Offset: 3, GapTo: 10}, // before the first byte: begin behind it
		{Stream: hutch.Stdout, Offset: 10, Data: []byte("abc")},
	} {
		if err := out.event(ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.event(hutch.OutputEvent{Stream: hutch.Stdout, Offset: 13, GapTo: 20}); !errors.Is(err, errGapAhead) {
		t.Errorf("a gap after bytes: %v, want the answer's end", err)
	}
	out.end(false)
	if w.Body.String() != "abc" || w.Header().Get(api.HeaderOutputOffset) != "10" || w.Header().Get(api.TrailerNextOffset) != "13" || w.Header().Get(api.TrailerComplete) != "false" {
		t.Errorf("answered %q with %v", w.Body, w.Header())
	}
}

// The quick way to encode output says what the slow one does.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"", "plain", "tab\t\"quote\\\n\r\b\x00\x1f\x7f", "é 😀 \u2028\u0085<&>", "\xff\xfe a \xc3", "\xed\xa0\x80", "a\xf0\x9f\x99", "\ufffd\xff\ufffd"} {
		f.Add([]byte(s), int64(7))
	}
	f.Fuzz(func(t *testing.T, data []byte, offset int64) {
		got := appendChunk(nil, offset, data)
		for _, c := range got {
			if c < ' ' || c > '~' {
				t.Fatalf("%q is not plain ASCII", got)
			}
		}
		want := api.OutputChunk{Chunk: lossy(data), Offset: offset, Bytes: len(data)}
		if !utf8.Valid(data) {
			want.Base64 = data
		}
		var back api.OutputChunk
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatalf("%q: %v", got, err)
		}
		if back.Chunk != want.Chunk || back.Offset != want.Offset || back.Bytes != want.Bytes || !bytes.Equal(back.Base64, want.Base64) {
			t.Errorf("%q became %+v, want %+v", data, back, want)
		}
	})
}

func TestWhatAShellSessionLeavesIsShown(t *testing.T) {
	end := showResult(hutch.Exec{ID: "e1", Result: &hutch.ExecResult{End: hutch.ExecExit, Cwd: "/work", ShellReplaced: "exited"}}, false)
	if end.Cwd != "/work" || end.ShellReplaced != "exited" {
		t.Errorf("shown %+v", end)
	}
}

func FuzzRanges(f *testing.F) {
	for _, s := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=5-2", "bytes=0-1,3-4", "bytes=", "bytes=9999999999999999999-", "lines=1-2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		b, ok := parseRange(header)
		if !ok {
			if b != (byteRange{}) {
				t.Errorf("%q is none, and is %+v", header, b)
			}
			return
		}
		if b.from < 0 || b.to < 0 || b.suffix < 0 || b.to != 0 && b.to <= b.from || !b.partial || b.suffix > 0 && (b.from > 0 || b.to > 0) {
			t.Errorf("%q is %+v", header, b)
		}
	})
}

func FuzzPlainLines(f *testing.F) {
	for _, s := range []string{"end", " end ", "{}", "a\nb", "\u2028", "event: done", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := plainLine(s)
		if strings.ContainsAny(got, "\n\r\v\f\u0085\u2028\u2029") || strings.TrimSpace(got) == endOfLog || strings.HasPrefix(strings.TrimSpace(got), "{") {
			t.Errorf("%q is shown as %q", s, got)
		}
	})
}
