package guestclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestlink"
)

const id hutch.ExecID = "eaaaaaaaaaaaaaaaaaaaa"

// start returns a Client of a guest that answers with handler.
func start(t testing.TB, handler http.HandlerFunc) *Client {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	host, guest := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- guestlink.Serve(ctx, guest, handler) }()
	c := New(host)
	_ = host.Close()
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		<-served
	})
	return c
}

// answer is a handler that gives one answer to everything.
func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func toJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func goodResult() *hutch.ExecResult {
	return &hutch.ExecResult{
		End: hutch.ExecTimeout, ExitCode: 124, Signal: "TERM", Detail: "over 5 s",
		Stdout:    hutch.Output{Head: []byte("he"), Tail: []byte("il"), Total: 10, Dropped: 6, Path: "/tmp/x", FileDropped: 1},
		Stderr:    hutch.Output{Head: []byte("e\xf5\x00"), Total: 3},
		Killed:    []hutch.KilledProcess{{PID: 7, Command: "sleep", Signal: "KILL"}},
		LimitsHit: []string{"disk", "pids"},
		StartedAt: time.Unix(1000, 5).UTC(), EndedAt: time.Unix(2000, 0).UTC(),
		CPU: time.Second, PeakMemory: 1 << 20, Escalated: true,
	}
}

func goodStatus() guestapi.ExecStatus {
	return guestapi.ExecStatus{ID: id, PID: 12, StartedAt: 5, Stdout: 10, Stderr: 3, Result: goodResult()}
}

// TestCalls: every call sends what guestapi says, and returns what the guest answers.
func TestCalls(t *testing.T) {
	var mu sync.Mutex
	var got []string
	replies := map[string]any{
		"POST /v1/hello":         guestapi.HelloReply{Protocol: 1, Version: "v", BootNS: 3, Restored: true},
		"GET /v1/health":         guestapi.Health{Time: 1, Execs: 2},
		"GET /v1/exec":           guestapi.ExecList{Execs: []guestapi.ExecStatus{{ID: id, Running: true, PID: 4}}},
		"GET /v1/processes":      guestapi.ProcessList{Processes: []guestapi.Process{{PID: 5, PPID: 1, Exec: id, State: "S", Command: "sh"}}},
		"POST /v1/exec/x/signal": struct{}{},
		"DELETE /v1/exec/x":      struct{}{},
	}
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got = append(got, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		mu.Unlock()
		reply, ok := replies[r.Method+" "+strings.Replace(r.URL.Path, string(id), "x", 1)]
		if !ok {
			reply = goodStatus()
		}
		_ = json.NewEncoder(w).Encode(reply)
	})
	ctx := within(t)
	spec := guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{Cmd: "true"}}
	calls := []struct {
		call func() (any, error)
		want any
		sent string
	}{
		{func() (any, error) { return c.Hello(ctx, guestapi.Hello{Protocol: 1}) }, replies["POST /v1/hello"], "POST /v1/hello " + toJSON(t, guestapi.Hello{Protocol: 1})},
		{func() (any, error) { return c.Health(ctx) }, replies["GET /v1/health"], "GET /v1/health "},
		{func() (any, error) { return c.StartExec(ctx, spec) }, goodStatus(), "POST /v1/exec " + toJSON(t, spec)},
		{func() (any, error) { return c.Execs(ctx) }, replies["GET /v1/exec"], "GET /v1/exec "},
		{func() (any, error) { return c.Exec(ctx, id) }, goodStatus(), "GET /v1/exec/" + string(id) + " "},
		{func() (any, error) { return c.Stop(ctx, id, guestapi.Stop{Reason: "timeout", Grace: -1}) }, goodStatus(), "POST /v1/exec/" + string(id) + `/stop {"reason":"timeout","detail":"","grace":-1}`},
		{func() (any, error) { return nil, c.Signal(ctx, id, guestapi.Signal{Signal: "INT", Tree: true}) }, nil, "POST /v1/exec/" + string(id) + `/signal {"signal":"INT","tree":true}`},
		{func() (any, error) { return nil, c.Delete(ctx, id) }, nil, "DELETE /v1/exec/" + string(id) + " "},
		{func() (any, error) { return c.Processes(ctx) }, replies["GET /v1/processes"], "GET /v1/processes "},
		{func() (any, error) { return c.Relieve(ctx) }, goodStatus(), "POST /v1/relieve "},
	}
	for _, tt := range calls {
		got = nil
		v, err := tt.call()
		if err != nil {
			t.Errorf("%s: %v", tt.sent, err)
			continue
		}
		if !reflect.DeepEqual(v, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.sent, v, tt.want)
		}
		if len(got) != 1 || got[0] != tt.sent {
			t.Errorf("sent %q, want %q", got, tt.sent)
		}
	}
}

func TestStdin(t *testing.T) {
	var mu sync.Mutex
	var input bytes.Buffer
	closed := false
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var off int64
		_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &off)
		b, _ := io.ReadAll(r.Body)
		if skip := int64(input.Len()) - off; skip >= 0 && skip < int64(len(b)) {
			input.Write(b[skip:])
		}
		closed = closed || r.URL.Query().Get("close") == "1"
		_ = json.NewEncoder(w).Encode(guestapi.StdinReply{Offset: int64(input.Len()), Closed: closed})
	})
	ctx := within(t)
	data := bytes.Repeat([]byte("0123456789\xf5"), 100_000)
	if r, err := c.Stdin(ctx, id, 0, bytes.NewReader(data[:700_000]), false); err != nil || r.Offset != 700_000 || r.Closed {
		t.Fatalf("first part: got %+v, %v", r, err)
	}
	if r, err := c.Stdin(ctx, id, 0, bytes.NewReader(nil), false); err != nil || r.Offset != 700_000 {
		t.Fatalf("asking by giving nothing: got %+v, %v", r, err)
	}
	// Begin again 100,000 bytes earlier: nothing is repeated.
	if r, err := c.Stdin(ctx, id, 600_000, bytes.NewReader(data[600_000:]), true); err != nil || r.Offset != int64(len(data)) || !r.Closed {
		t.Fatalf("rest: got %+v, %v", r, err)
	}
	if !bytes.Equal(input.Bytes(), data) {
		t.Fatal("the command got other bytes than were sent")
	}
	broken := errors.New("broken")
	if _, err := c.Stdin(ctx, id, 0, io.MultiReader(strings.NewReader("x"), errReader{broken}), true); !errors.Is(err, broken) {
		t.Fatalf("a reader that fails: got %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestInputThatNobodyTakes: however many commands take none of their input, and however
// much each is given, other calls with bodies are answered.
func TestInputThatNobodyTakes(t *testing.T) {
	hanging := make(chan struct{}, 1000)
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stdin") {
			hanging <- struct{}{}
			<-r.Context().Done()
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer(http.StatusOK, toJSON(t, goodStatus()))(w, r)
	})
	ctx, leave := context.WithCancel(within(t))
	var wg sync.WaitGroup
	for range maxStdinCalls + 20 {
		wg.Go(func() { _, _ = c.Stdin(ctx, id, 0, bytes.NewReader(make([]byte, 1<<20)), true) })
	}
	for range maxStdinCalls {
		<-hanging
	}
	for range 5 {
		spec := hutch.ExecSpec{Cmd: strings.Repeat("x", 200_000)}
		if _, err := c.StartExec(ctx, guestapi.StartExec{ID: id, Spec: spec}); err != nil {
			t.Fatalf("another call: %v", err)
		}
	}
	leave()
	wg.Wait()
}

func TestRefusals(t *testing.T) {
	long := strings.Repeat("é", 1000)
	tests := []struct {
		name   string
		status int
		body   string
		code   hutch.Code
		text   string
		field  string
	}{
		{"known code", 404, `{"error":"no such exec","code":"not_found"}`, hutch.CodeNotFound, "no such exec", ""},
		{"field", 400, `{"error":"cwd: no such directory","code":"bad_request","field":"cwd"}`, hutch.CodeBadRequest, "cwd: no such directory", "cwd"},
		{"not identified", 409, `{"error":"say hello","code":"not_identified"}`, guestapi.CodeNotIdentified, "say hello", ""},
		{"claims the sandbox is gone", 404, `{"error":"gone","code":"sandbox_gone"}`, hutch.CodeGuestUnresponsive, "", ""},
		{"claims the key is bad", 401, `{"error":"who","code":"unauthenticated"}`, hutch.CodeGuestUnresponsive, "", ""},
		{"unknown code", 400, `{"error":"x","code":"` + long + `"}`, hutch.CodeGuestUnresponsive, "", ""},
		{"no JSON", 500, `<html>`, hutch.CodeGuestUnresponsive, "", ""},
		{"long text", 400, `{"error":"` + long + `","code":"conflict"}`, hutch.CodeConflict, strings.Repeat("é", maxText/2), ""},
		{"terminal escapes", 400, `{"error":"a\u001b[2Jb\r\nc\u202ed\u0000","code":"conflict","field":"\u001b"}`, hutch.CodeConflict, "a[2Jb  cd", ""},
		{"endless", 400, `{"error":"` + strings.Repeat("x", 1<<20), hutch.CodeGuestUnresponsive, "", ""},
		{"redirect", 302, ``, hutch.CodeGuestUnresponsive, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := start(t, answer(tt.status, tt.body))
			err := c.Delete(within(t), id)
			var he *hutch.Error
			if !errors.As(err, &he) || he.Code != tt.code {
				t.Fatalf("got %v, want code %s", err, tt.code)
			}
			if tt.text != "" && he.Message != tt.text {
				t.Errorf("got text %q, want %q", he.Message, tt.text)
			}
			if he.Field != tt.field {
				t.Errorf("got field %q, want %q", he.Field, tt.field)
			}
		})
	}
}

// TestNonsense: what no lawful guest answers is refused.
func TestNonsense(t *testing.T) {
	bad := map[string]func(s *guestapi.ExecStatus){
		"another id":           func(s *guestapi.ExecStatus) { s.ID = "ebbbbbbbbbbbbbbbbbbbb" },
		"malformed id":         func(s *guestapi.ExecStatus) { s.ID = "../../etc" },
		"negative pid":         func(s *guestapi.ExecStatus) { s.PID = -1 },
		"negative count":       func(s *guestapi.ExecStatus) { s.Stdout = -1 },
		"negative sum of CPU":  func(s *guestapi.ExecStatus) { s.AllCPU = -1 },
		"running and ended":    func(s *guestapi.ExecStatus) { s.Running = true },
		"neither":              func(s *guestapi.ExecStatus) { s.Result = nil },
		"unknown end":          func(s *guestapi.ExecStatus) { s.Result.End = "won" },
		"claims sandbox gone":  func(s *guestapi.ExecStatus) { s.Result.End = hutch.ExecSandboxGone },
		"exit code":            func(s *guestapi.ExecStatus) { s.Result.ExitCode = 256 },
		"signal name":          func(s *guestapi.ExecStatus) { s.Result.Signal = "kill me" },
		"negative CPU":         func(s *guestapi.ExecStatus) { s.Result.CPU = -1 },
		"negative memory":      func(s *guestapi.ExecStatus) { s.Result.PeakMemory = -1 },
		"negative total":       func(s *guestapi.ExecStatus) { s.Result.Stdout = hutch.Output{Total: -1, Dropped: -1} },
		"dropped over total":   func(s *guestapi.ExecStatus) { s.Result.Stdout = hutch.Output{Total: 1, Dropped: 2} },
		"kept over total":      func(s *guestapi.ExecStatus) { s.Result.Stdout = hutch.Output{Head: []byte("abc"), Total: 2} },
		"tail of the uncut":    func(s *guestapi.ExecStatus) { s.Result.Stdout = hutch.Output{Tail: []byte("a"), Total: 1} },
		"file lacks too much":  func(s *guestapi.ExecStatus) { s.Result.Stdout = hutch.Output{FileDropped: 1} },
		"more than the budget": func(s *guestapi.ExecStatus) { s.Result.Stdout = hutch.Output{Head: make([]byte, 5000), Total: 5000} },
		"too many killed":      func(s *guestapi.ExecStatus) { s.Result.Killed = make([]hutch.KilledProcess, maxKilled+1) },
		"too many limits":      func(s *guestapi.ExecStatus) { s.Result.LimitsHit = make([]string, maxLimits+1) },
	}
	for name, spoil := range bad {
		t.Run(name, func(t *testing.T) {
			s := goodStatus()
			spoil(&s)
			c := start(t, answer(200, toJSON(t, s)))
			_, err := c.StartExec(within(t), guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{MaxOutputBytes: 4096}})
			if !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Fatalf("got %v, want guest_unresponsive", err)
			}
		})
	}
	for _, signal := range []string{"TERM", "40", ""} { // one without a name is told by its number
		s := goodStatus()
		s.Result.Signal = signal
		c := start(t, answer(200, toJSON(t, s)))
		if _, err := c.StartExec(within(t), guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{MaxOutputBytes: 4096}}); err != nil {
			t.Fatalf("a lawful answer: %v", err)
		}
	}
}

// TestCleaned: what is only for people is cleaned, not refused.
func TestCleaned(t *testing.T) {
	s := goodStatus()
	s.StartedAt = -5
	s.Result.Detail = "a\x1b[31mb\nc"
	s.Result.Stdout.Path = "relative"
	s.Result.Killed = []hutch.KilledProcess{{PID: -4}, {PID: 9, Command: strings.Repeat("x", 500) + "\x00", Signal: "FUN"}}
	s.Result.LimitsHit = []string{"disk", "sanity"}
	s.Result.EndedAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -12*3600))
	c := start(t, answer(200, toJSON(t, s)))
	got, err := c.Exec(within(t), id)
	if err != nil {
		t.Fatal(err)
	}
	r := got.Result
	if got.StartedAt != 0 || r.Detail != "a[31mb c" || r.Stdout.Path != "" || !r.EndedAt.IsZero() {
		t.Errorf("got %+v", r)
	}
	if want := []hutch.KilledProcess{{PID: 9, Command: strings.Repeat("x", maxCommand)}}; !reflect.DeepEqual(r.Killed, want) {
		t.Errorf("killed: got %+v, want %+v", r.Killed, want)
	}
	if !reflect.DeepEqual(r.LimitsHit, []string{"disk"}) {
		t.Errorf("limits hit: got %v", r.LimitsHit)
	}
}

// TestAmplification: a short answer that would decode to a huge one is refused early.
func TestAmplification(t *testing.T) {
	many := strings.Repeat("{},", 1<<20)
	answers := map[string]struct {
		body string
		call func(ctx context.Context, c *Client) error
	}{
		"execs":        {`{"execs":[` + many + `{}]}`, func(ctx context.Context, c *Client) error { _, err := c.Execs(ctx); return err }},
		"processes":    {`{"processes":[` + many + `{}]}`, func(ctx context.Context, c *Client) error { _, err := c.Processes(ctx); return err }},
		"killed":       {`{"id":"` + string(id) + `","result":{"killed":[` + many + `{}]}}`, func(ctx context.Context, c *Client) error { _, err := c.Exec(ctx, id); return err }},
		"health":       {`{"execs":` + strings.Repeat(" ", 1<<20) + `1}`, func(ctx context.Context, c *Client) error { _, err := c.Health(ctx); return err }},
		"depth":        {strings.Repeat("[", 1<<20), func(ctx context.Context, c *Client) error { _, err := c.Execs(ctx); return err }},
		"not a number": {`{"time":NaN}`, func(ctx context.Context, c *Client) error { _, err := c.Health(ctx); return err }},
		"huge number":  {`{"time":1e999}`, func(ctx context.Context, c *Client) error { _, err := c.Health(ctx); return err }},
	}
	for name, tt := range answers {
		t.Run(name, func(t *testing.T) {
			c := start(t, answer(200, tt.body))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			if err := tt.call(within(t), c); !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Fatalf("got %v, want guest_unresponsive", err)
			}
			runtime.ReadMemStats(&after)
			// What was allocated in all, garbage too: the body itself is 3 MiB and is read
			// into a buffer that doubles. Decoded, it would be 150 MiB.
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 40<<20 {
				t.Errorf("decoding took %d MiB", grown>>20)
			}
		})
	}
}

func TestContexts(t *testing.T) {
	c := start(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error, 1)
	go func() {
		_, err := c.Health(ctx)
		cancelled <- err
	}()
	cancel()
	if err := <-cancelled; !errors.Is(err, hutch.ErrCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := c.Health(ctx); !errors.Is(err, hutch.ErrGuestUnresponsive) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: got %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := c.Follow(ctx, id, FollowOptions{}); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("follow past the deadline: got %v", err)
	}
	_ = c.Close()
	if _, err := c.Health(t.Context()); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("after Close: got %v", err)
	}
	if _, err := New(nil).Health(t.Context()); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("without a stream: got %v", err)
	}
}

// TestRepeats: a call that may be made twice survives its connection; a signal does
// not go out twice.
func TestRepeats(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]int{}
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		calls[r.Method+" "+r.URL.Path]++
		first := calls[r.Method+" "+r.URL.Path] == 1
		mu.Unlock()
		if first {
			panic(http.ErrAbortHandler) // the stream of this call is reset
		}
		_, _ = io.WriteString(w, "{}")
	})
	if err := c.Delete(within(t), id); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := c.Signal(within(t), id, guestapi.Signal{Signal: "INT"}); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("signal: got %v, want guest_unresponsive", err)
	}
	if n := calls["POST "+execPath(id, "/signal")]; n != 1 {
		t.Errorf("the signal was sent %d times", n)
	}
}
