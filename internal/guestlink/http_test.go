package guestlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// serve runs handler at the guest's end until the test ends.
func serve(t testing.TB, guest io.ReadWriter, handler http.Handler) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, guest, handler) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
}

// newClient returns a transport to the guest behind f.
func newClient(t testing.TB, f *os.File) *Transport {
	t.Helper()
	h, err := NewHost(f)
	if err != nil {
		t.Fatal(err)
	}
	tr := NewTransport(h)
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// call makes one call and returns the answer's body.
func call(ctx context.Context, tr *Transport, method, path string, body []byte) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// open begins a call whose answer nobody reads, until the test ends.
func open(ctx context.Context, t *testing.T, tr *Transport, path string) {
	t.Helper()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://guest"+path, nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
}

// testMux echoes, streams and hangs.
func testMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pong") })
	mux.HandleFunc("GET /hang", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /endless", func(w http.ResponseWriter, _ *http.Request) {
		b := bytes.Repeat([]byte{esc, 'x'}, 16<<10)
		for {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	return mux
}

func TestHTTP(t *testing.T) {
	hf, gf := pair(t)
	serve(t, polled(t, gf), testMux())
	tr := newClient(t, hf)
	ctx := within(t, 30*time.Second)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			msg := string(randomBytes(100_000))
			got, err := call(ctx, tr, "POST", "/echo", []byte(msg))
			if err != nil || got != msg {
				t.Errorf("echo of %d bytes: got %d bytes, %v", len(msg), len(got), err)
			}
		})
	}
	wg.Wait()
}

// TestUnreadAnswersHoldUpNothing: answers that nobody reads do not keep other calls
// from being answered, and take no more than their window.
func TestUnreadAnswersHoldUpNothing(t *testing.T) {
	hf, gf := pair(t)
	serve(t, polled(t, gf), testMux())
	tr := newClient(t, hf)
	ctx := within(t, 30*time.Second)
	for range 30 {
		open(ctx, t, tr, "/endless")
	}
	for range 30 {
		if got, err := call(ctx, tr, "GET", "/ping", nil); err != nil || got != "pong" {
			t.Fatalf("ping: got %q, %v", got, err)
		}
	}
}

// TestUnreadRequestsHoldUpNothing: the same for request bodies, for as many, and as
// long ones, as the node sends to handlers that may not read them.
func TestUnreadRequestsHoldUpNothing(t *testing.T) {
	hf, gf := pair(t)
	mux := testMux()
	mux.HandleFunc("POST /ignore", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	serve(t, polled(t, gf), mux)
	tr := newClient(t, hf)
	ctx := within(t, 30*time.Second)
	stuck, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 48 {
		wg.Go(func() { _, _ = call(stuck, tr, "POST", "/ignore", make([]byte, 64<<10)) })
	}
	for range 20 {
		if got, err := call(ctx, tr, "POST", "/echo", make([]byte, 20_000)); err != nil || len(got) != 20_000 {
			t.Fatalf("echo: got %d bytes, %v", len(got), err)
		}
	}
	cancel()
	wg.Wait()
}

// TestCallsEndByContext: a call of which nothing comes ends with its context, and
// the connection lives on.
func TestCallsEndByContext(t *testing.T) {
	hf, gf := pair(t)
	serve(t, polled(t, gf), testMux())
	tr := newClient(t, hf)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if _, err := call(ctx, tr, "GET", "/hang", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("hang: got %v", err)
		}
		cancel()
	}
	if got, err := call(within(t, 10*time.Second), tr, "GET", "/ping", nil); err != nil || got != "pong" {
		t.Fatalf("ping afterwards: got %q, %v", got, err)
	}
}

// TestRestoreUnderCalls: the guest's stream is replaced while calls are under way;
// a transport on the new stream works at once, and the guest's handlers are told.
func TestRestoreUnderCalls(t *testing.T) {
	hf, gf := pair(t)
	stream := newHop(polled(t, gf))
	cancelled := make(chan struct{}, 100)
	mux := testMux()
	mux.HandleFunc("GET /watch", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		cancelled <- struct{}{}
	})
	serve(t, stream, mux)
	for range 15 {
		tr := newClient(t, hf)
		ctx := within(t, 20*time.Second)
		for _, path := range []string{"/watch", "/endless"} {
			open(ctx, t, tr, path)
		}
		if got, err := call(ctx, tr, "GET", "/ping", nil); err != nil || got != "pong" {
			t.Fatalf("ping: got %q, %v", got, err)
		}
		nhf, ngf := pair(t)
		stream.cut(1000)
		stream.move(polled(t, ngf))
		hf = nhf
		next := newClient(t, hf)
		if got, err := call(ctx, next, "GET", "/ping", nil); err != nil || got != "pong" {
			t.Fatalf("ping after the restore: got %q, %v", got, err)
		}
		<-cancelled
		_ = tr.Close()
		_ = next.Close()
	}
}

// TestServerEndsConnection: after the guest ends the HTTP connection (GOAWAY), the
// next call makes a new one.
func TestServerEndsConnection(t *testing.T) {
	hf, gf := pair(t)
	mux := testMux()
	mux.HandleFunc("GET /leave", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // HTTP/2 servers answer with GOAWAY
		_, _ = io.WriteString(w, "bye")
	})
	serve(t, polled(t, gf), mux)
	tr := newClient(t, hf)
	ctx := within(t, 20*time.Second)
	for range 30 {
		open(ctx, t, tr, "/hang") // keeps the connection from ending by itself
		if got, err := call(ctx, tr, "GET", "/leave", nil); err != nil || got != "bye" {
			t.Fatalf("leave: got %q, %v", got, err)
		}
		if got, err := call(ctx, tr, "GET", "/ping", nil); err != nil || got != "pong" {
			t.Fatalf("ping after GOAWAY: got %q, %v", got, err)
		}
	}
}

func TestTransportCloseLeavesNothing(t *testing.T) {
	base := runtime.NumGoroutine()
	hf, gf := pair(t)
	gp := polled(t, gf)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, gp, testMux()) }()
	tr := newClient(t, hf)
	hung := make(chan error, 1)
	go func() {
		_, err := call(context.Background(), tr, "GET", "/hang", nil)
		hung <- err
	}()
	if _, err := call(within(t, 10*time.Second), tr, "GET", "/ping", nil); err != nil {
		t.Fatal(err)
	}
	_ = tr.Close()
	if err := <-hung; err == nil {
		t.Error("a call outlived Close")
	}
	if _, err := call(t.Context(), tr, "GET", "/ping", nil); err == nil {
		t.Error("a call after Close worked")
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	settled(t, base)
}

func BenchmarkRoundTrip(b *testing.B) {
	hf, gf := pair(b)
	serve(b, polled(b, gf), testMux())
	tr := newClient(b, hf)
	for b.Loop() {
		if _, err := call(b.Context(), tr, "GET", "/ping", nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSessionRoundTrip(b *testing.B) {
	hf, gf := pair(b)
	h, l := newHost(b, hf), NewListener(polled(b, gf))
	hc, gc := dial(b, h, l)
	go func() { _, _ = io.Copy(gc, gc) }()
	msg := []byte("0123456789abcdef")
	for b.Loop() {
		if _, err := hc.Write(msg); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(hc, msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDial(b *testing.B) {
	hf, gf := pair(b)
	h, l := newHost(b, hf), NewListener(polled(b, gf))
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	for b.Loop() {
		if _, err := h.Dial(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkThroughput(b *testing.B) {
	payloads := map[string][]byte{
		"text":   bytes.Repeat([]byte("all work and no play makes a dull benchmark\n"), 1<<15),
		"random": uniform(1 << 20),
	}
	for name, p := range payloads {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /out", func(w http.ResponseWriter, _ *http.Request) {
			for range 16 {
				_, _ = w.Write(p)
			}
		})
		mux.HandleFunc("POST /in", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		hf, gf := pair(b)
		serve(b, polled(b, gf), mux)
		tr := newClient(b, hf)
		b.Run("out/"+name, func(b *testing.B) {
			b.SetBytes(int64(16 * len(p)))
			for b.Loop() {
				req, _ := http.NewRequestWithContext(b.Context(), "GET", "http://guest/out", nil)
				resp, err := tr.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(16*len(p)) {
					b.Fatalf("%d bytes, %v", n, err)
				}
				_ = resp.Body.Close()
			}
		})
		b.Run("in/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				if _, err := call(b.Context(), tr, "POST", "/in", p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func uniform(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestScreen(t *testing.T) {
	frame := func(kind byte, n int) []byte {
		return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, 0, 0, 0, 0, 1}, make([]byte, n)...)
	}
	const limit = 500
	tests := map[string]struct {
		wire []byte
		ok   bool
	}{
		"lawful":       {concat(frame(4, 6), frame(1, 30), frame(0, 5000), frame(8, 4), frame(6, 8)), true},
		"priority":     {concat(frame(4, 6), frame(framePriority, 5)), false},
		"push":         {concat(frame(4, 6), frame(framePush, 5)), false},
		"unknown type": {concat(frame(0, 100), frame(0x20, 0)), false},
		"chatter":      {bytes.Repeat(frame(6, 8), limit+1), false},
		"empty data":   {bytes.Repeat(frame(0, 0), limit+1), false},
		"much chatter": {bytes.Repeat(frame(6, 8), limit), true},
	}
	for name, tt := range tests {
		for _, piece := range []int{1, 7, 4096} {
			t.Run(fmt.Sprintf("%s in pieces of %d", name, piece), func(t *testing.T) {
				hf, gf := pair(t)
				h, l := newHost(t, hf), NewListener(polled(t, gf))
				hc, gc := dial(t, h, l)
				s := newScreen(hc)
				s.limit = limit
				s.now = func() time.Time { return time.Unix(1, 0) }
				go func() {
					_, _ = gc.Write(tt.wire)
					_ = gc.Close()
				}()
				n, err := io.Copy(io.Discard, struct{ io.Reader }{onlyPieces{s, piece}})
				if (err == nil) != tt.ok || (!tt.ok && !errors.Is(err, ErrAbuse)) {
					t.Errorf("got %v, want ok %v", err, tt.ok)
				}
				if tt.ok && n != int64(len(tt.wire)) {
					t.Errorf("%d of %d bytes passed", n, len(tt.wire))
				}
			})
		}
	}
}

// onlyPieces reads at most n bytes at a time.
type onlyPieces struct {
	r io.Reader
	n int
}

func (o onlyPieces) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), o.n)]) }
