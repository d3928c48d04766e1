package e2bapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// bench is the API over a world, served, with one secure sandbox in it.
type bench struct {
	*world
	t   *testing.T
	api *API
	srv *httptest.Server
	sb  hutch.SandboxID

	served atomic.Int32 // calls under way
}

func newBench(t *testing.T) *bench {
	t.Helper()
	root := t.TempDir()
	w := newWorld(root)
	api := New(Config{Keepalive: time.Minute}, Services{
		Sandboxes: w, Lifetimes: w, Execs: w, ExecControl: w, Guests: w, Templates: w, Usage: w, Logs: w,
		Tokens: w, Auth: w, Audit: w, Metrics: w, Recovered: func() bool { return w.recovered },
	}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	next := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusTeapot)
		fmt.Fprint(rw, "next "+r.URL.Path)
	})
	b := &bench{world: w, t: t, api: api}
	router := api.Router(next)
	b.srv = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b.served.Add(1)
		defer b.served.Add(-1)
		router.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() { b.srv.Close(); api.Close() })
	b.sb = b.create(`{"templateID":"base"}`).SandboxID
	w.mkdir(t, "/home/user")
	return b
}

// idle waits until no call is being served.
func (b *bench) idle() {
	b.t.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for b.served.Load() > 0 {
		select {
		case <-tick.C:
		case <-late:
			b.t.Fatalf("%d calls are still served after ten seconds", b.served.Load())
		}
	}
}

func (w *world) mkdir(t *testing.T, p string) {
	t.Helper()
	g := &fakeGuest{w: w}
	if _, err := g.MakeDir(t.Context(), hutch.MakeDir{FileRef: hutch.FileRef{Path: p}}); err != nil {
		t.Fatal(err)
	}
}

// reply is an answer, read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
	sized  bool // it had a length
}

func (r reply) json(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("status %d, %q: %v", r.status, r.body, err)
	}
}

// do makes a call; headers are pairs.
func (b *bench) do(method, path string, body io.Reader, headers ...string) reply {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.srv.URL+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	tr := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, out, res.ContentLength >= 0}
}

// control makes a call of the control API as its clients do: the body without a length.
func (b *bench) control(method, path, body string, headers ...string) reply {
	b.t.Helper()
	var r io.Reader
	if body != "" {
		r = struct{ io.Reader }{strings.NewReader(body)}
	}
	out := b.do(method, path, r, append([]string{"X-API-KEY", adminKey, "Content-Type", "application/json"}, headers...)...)
	if out.status >= 400 { // whatever is tested: one of the clients looks only at the body
		var f failure
		if err := json.Unmarshal(out.body, &f); err != nil || f.Code != out.status || f.Message == "" {
			b.t.Errorf("%s %s: status %d with the body %q", method, path, out.status, out.body)
		}
	}
	return out
}

func (b *bench) create(body string) sandboxView {
	b.t.Helper()
	r := b.control("POST", "/v2/sandboxes", body)
	if r.status != http.StatusCreated {
		b.t.Fatalf("create: status %d: %s", r.status, r.body)
	}
	var v sandboxView
	r.json(b.t, &v)
	return v
}

// address returns the headers by which the bench's sandbox's agent is called.
func (b *bench) address(more ...string) []string {
	return append([]string{HeaderSandbox, string(b.sb), HeaderPort, "49983", HeaderToken, b.Token(b.sb, TokenAgent)}, more...)
}

func (b *bench) agent(method, path string, body io.Reader, headers ...string) reply {
	b.t.Helper()
	return b.do(method, path, body, b.address(headers...)...)
}

// call makes a unary call of the agent.
func (b *bench) call(procedure, msg string, headers ...string) reply {
	b.t.Helper()
	return b.agent("POST", "/"+procedure, strings.NewReader(msg), append([]string{"Content-Type", "application/json", "Connect-Protocol-Version", "1"}, headers...)...)
}

// failed checks that a unary call failed with a code of the Connect protocol.
func (b *bench) failed(r reply, code, contains string) {
	b.t.Helper()
	var e struct{ Code, Message string }
	r.json(b.t, &e)
	if r.status < 400 || e.Code != code || !strings.Contains(e.Message, contains) {
		b.t.Errorf("got status %d, %s, want the code %s and %q", r.status, r.body, code, contains)
	}
}

// rpcStream is a streaming answer.
type rpcStream struct {
	t    *testing.T
	res  *http.Response
	stop context.CancelFunc
}

func envelope(flags byte, msg string) []byte {
	out := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(msg)))
	return append(out, msg...)
}

func (b *bench) stream(procedure, msg string, headers ...string) *rpcStream {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	b.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "POST", b.srv.URL+"/"+procedure, bytes.NewReader(envelope(0, msg)))
	if err != nil {
		b.t.Fatal(err)
	}
	all := b.address(append([]string{"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1"}, headers...)...)
	for i := 0; i+1 < len(all); i += 2 {
		req.Header.Set(all[i], all[i+1])
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableCompression: true}}).Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = res.Body.Close() })
	return &rpcStream{b.t, res, cancel}
}

// frame reads one frame.
func (s *rpcStream) frame() (flags byte, msg []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(s.res.Body, head[:]); err != nil {
		return 0, nil, err
	}
	msg = make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err = io.ReadFull(s.res.Body, msg)
	return head[0], msg, err
}

// next reads a message that must come.
func (s *rpcStream) next() string {
	s.t.Helper()
	flags, msg, err := s.frame()
	if err != nil || flags != 0 {
		s.t.Fatalf("got flags %d, %q, %v, want a message", flags, msg, err)
	}
	return string(msg)
}

// want reads a message that must be this.
func (s *rpcStream) want(msg string) {
	s.t.Helper()
	if got := s.next(); !sameJSON(s.t, got, msg) {
		s.t.Fatalf("got %s, want %s", got, msg)
	}
}

// end reads the end frame; code is that of its error, empty for none.
func (s *rpcStream) end(code string) {
	s.t.Helper()
	flags, msg, err := s.frame()
	if err != nil || flags != 2 {
		s.t.Fatalf("got flags %d, %q, %v, want the end", flags, msg, err)
	}
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(msg, &e); err != nil || e.Error.Code != code {
		s.t.Fatalf("got the end %s, want the code %q", msg, code)
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	norm := func(s string) string {
		var v any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatalf("%q is not JSON: %v", s, err)
		}
		out, _ := json.Marshal(v)
		return string(out)
	}
	return norm(a) == norm(b)
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// real is where a sandbox's file is on this machine.
func (b *bench) real(p string) string { return filepath.Join(b.root, p) }

// kill ends the bench's sandbox.
func (b *bench) kill() {
	b.t.Helper()
	if r := b.control("DELETE", "/sandboxes/"+string(b.sb), ""); r.status != http.StatusNoContent {
		b.t.Fatalf("kill: %d %s", r.status, r.body)
	}
}

// playing makes every command from now on one that the test plays.
func (b *bench) playing() <-chan *command {
	ch := make(chan *command, 8)
	b.mu.Lock()
	b.played = func(c *command) { ch <- c }
	b.mu.Unlock()
	return ch
}

func newRequest(sb, port, host string) *http.Request {
	r := &http.Request{Header: http.Header{}, Host: host}
	if sb != "" {
		r.Header.Set(HeaderSandbox, sb)
	}
	if port != "" {
		r.Header.Set(HeaderPort, port)
	}
	return r
}

func decode(b []byte, v any) error { return json.Unmarshal(b, v) }
