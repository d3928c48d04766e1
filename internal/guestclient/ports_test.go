package guestclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/duplex"
)

// connected is a handler that is the guest's end of a connection.
func connected(serve func(c *duplex.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w).Flush
		_ = flush()
		c := duplex.New(r.Body, func(b []byte) error {
			if _, err := w.Write(b); err != nil {
				return err
			}
			return flush()
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run()
		}()
		serve(c)
		_ = r.Body.Close()
		<-done
	}
}

func TestDialPort(t *testing.T) {
	t.Run("both ways, each to its end", func(t *testing.T) {
		var path string
		c := start(t, func(w http.ResponseWriter, r *http.Request) {
			path = r.Method + " " + r.URL.Path
			connected(func(c *duplex.Conn) {
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
				_ = c.CloseWrite()
			})(w, r)
		})
		p, err := c.DialPort(within(t), 8080)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		want := strings.Repeat("0123456789", 100_000)
		go func() {
			_, _ = io.WriteString(p, want)
			_ = p.CloseWrite()
		}()
		got, err := io.ReadAll(p)
		if err != nil || string(got) != want || path != "POST /v1/ports/8080/connect" {
			t.Errorf("%d bytes, %v, of %s", len(got), err, path)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		c := start(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, toJSON(t, guestapi.Error{Error: "nothing there", Code: hutch.CodePortClosed}))
		})
		if _, err := c.DialPort(within(t), 1); !errors.Is(err, hutch.ErrPortClosed) {
			t.Errorf("%v, want port_closed", err)
		}
		for _, port := range []int{0, -1, 65536} {
			if _, err := c.DialPort(within(t), port); !errors.Is(err, hutch.ErrBadRequest) {
				t.Errorf("port %d: %v", port, err)
			}
		}
		for range guestapi.MaxPortConns + 10 { // a refused one takes no place
			if _, err := c.DialPort(within(t), 1); !errors.Is(err, hutch.ErrPortClosed) {
				t.Fatal(err)
			}
		}
	})
	t.Run("ctx is for the connecting only", func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/1/") {
				<-release
				return
			}
			connected(func(c *duplex.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })(w, r)
		})
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		p, err := c.DialPort(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := c.DialPort(ctx, 1); !errors.Is(err, hutch.ErrCancelled) {
			t.Errorf("%v, want cancelled", err)
		}
		if _, err := p.Write([]byte("on")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(p, make([]byte, 2)); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if _, err := p.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read of a closed one: %v", err)
		}
	})
	testPortEnds(t)
	testPortBound(t)
}

func testPortEnds(t *testing.T) {
	t.Run("a reset", func(t *testing.T) {
		c := start(t, connected(func(c *duplex.Conn) { _ = c.Reset() }))
		p, err := c.DialPort(within(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(p); !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("%v, want a reset", err)
		}
	})
	t.Run("closing ends a write that nobody takes", func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, connected(func(*duplex.Conn) { <-release }))
		defer close(release)
		p, err := c.DialPort(within(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := p.Write(make([]byte, 10*duplex.Window))
			wrote <- err
		}()
		_ = p.Close()
		select {
		case err := <-wrote:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v", err)
			}
		case <-within(t).Done():
			t.Error("the write goes on")
		}
	})
	t.Run("what was written before the close arrives", func(t *testing.T) {
		heard := make(chan string, 1)
		c := start(t, connected(func(c *duplex.Conn) {
			b, _ := io.ReadAll(c)
			heard <- string(b)
		}))
		p, err := c.DialPort(within(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(p, "last words")
		_ = p.Close()
		if got := <-heard; got != "last words" {
			t.Errorf("%q", got)
		}
	})
}

func testPortBound(t *testing.T) {
	t.Run("no more than so many", func(t *testing.T) {
		c := start(t, connected(func(c *duplex.Conn) { _, _ = io.Copy(io.Discard, struct{ io.Reader }{c}) }))
		var conns []hutch.PortConn
		for range guestapi.MaxPortConns {
			p, err := c.DialPort(within(t), 1)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, p)
		}
		if _, err := c.DialPort(within(t), 1); !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("one more: %v", err)
		}
		_ = conns[0].Close()
		deadline := time.Now().Add(20 * time.Second)
		for {
			_, err := c.DialPort(within(t), 1)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after one was closed: %v", err)
			}
			<-time.After(5 * time.Millisecond)
		}
	})
}

func TestPortNonsense(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":          "",
		"no frames":        "hello, I am no frame",
		"a long frame":     "\x01\xff\xff\xff\xff",
		"unasked for data": strings.Repeat("\x01\x00\x00\x80\x00"+strings.Repeat("x", 1<<15), 5),
		"unsent data":      "\x02\x00\x00\x00\x04\x00\x00\x00\x01",
		"a cut frame":      "\x01\x00\x00\x00\x05abc",
	} {
		c := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
		p, err := c.DialPort(within(t), 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n, err := io.Copy(io.Discard, p)
		// What is read makes room for more, so that how much comes before the end is
		// found depends on who is faster; that it is no clean end does not.
		if !errors.Is(err, hutch.ErrGuestUnresponsive) || n > int64(len(answer)) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}

func TestListsOfPortsAndShells(t *testing.T) {
	const good = `{"listeners":[{"port":80,"address":"::","pid":7,"command":"ng\u001b[2Jinx"}],"shells":[{"name":"a-b_C1","pid":3,"user":"root","cwd":"/tmp","exec_id":"nonsense","commands":2,"started_at":"2026-01-02T03:04:05Z"}],"used":5,"total":9}`
	c := start(t, answer(200, good))
	l, err := c.Listeners(within(t))
	if want := (hutch.Listener{Port: 80, Address: "::", PID: 7, Command: "ng[2Jinx"}); err != nil || len(l) != 1 || l[0] != want {
		t.Errorf("%+v, %v", l, err)
	}
	s, err := c.ListShells(within(t))
	if err != nil || len(s) != 1 || s[0].Name != "a-b_C1" || s[0].Cwd != "/tmp" || s[0].Exec != "" || s[0].StartedAt.Year() != 2026 {
		t.Errorf("%+v, %v", s, err)
	}
	if u, err := c.DiskUsage(within(t)); err != nil || u != (hutch.DiskUsage{Used: 5, Total: 9}) {
		t.Errorf("%+v, %v", u, err)
	}
	many := func(s string) string { return "[" + strings.Repeat(s+",", 2000) + s + "]" }
	for _, body := range []string{
		`{"listeners":[{"port":0,"address":"::"}],"shells":[{"name":"a b"}],"used":-1}`,
		`{"listeners":[{"port":80,"address":"here"}],"shells":[{"name":"a","pid":-1}],"total":-1}`,
		`{"listeners":` + many(`{"port":80,"address":"::"}`) + `,"shells":` + many(`{"name":"a"}`) + `,"used":"x"}`,
		`{"listeners":3,"shells":4,"used":1.5}`, `[`,
	} {
		c := start(t, answer(200, body))
		_, err1 := c.Listeners(within(t))
		_, err2 := c.ListShells(within(t))
		_, err3 := c.DiskUsage(within(t))
		for i, err := range []error{err1, err2, err3} {
			if !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Errorf("call %d of %.60s: %v", i, body, err)
			}
		}
	}
}

func TestCloseShell(t *testing.T) {
	var got string
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.EscapedPath()
		_, _ = io.WriteString(w, "{}")
	})
	if err := c.CloseShell(within(t), "a/b"); err != nil || got != "DELETE /v1/shells/a%2Fb" {
		t.Errorf("%s, %v", got, err)
	}
	c = start(t, answer(409, toJSON(t, guestapi.Error{Error: "busy", Code: hutch.CodeShellBusy})))
	if err := c.CloseShell(within(t), "a"); !errors.Is(err, hutch.ErrShellBusy) {
		t.Errorf("%v", err)
	}
}

func TestAppendStdin(t *testing.T) {
	var taken int64
	var queries []string
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		taken += int64(len(b))
		queries = append(queries, fmt.Sprintf("%s %d", r.URL.RawQuery, len(b)))
		_, _ = io.WriteString(w, toJSON(t, guestapi.StdinReply{Offset: taken}))
	})
	r, err := c.AppendStdin(within(t), id, strings.NewReader(strings.Repeat("x", guestapi.MaxInput+10)), true)
	want := fmt.Sprint([]string{fmt.Sprintf("append=1&close=0 %d", guestapi.MaxInput), "append=1&close=1 10"})
	if err != nil || r.Offset != guestapi.MaxInput+10 || fmt.Sprint(queries) != want {
		t.Errorf("%+v, %v, %v, want %s", r, err, queries, want)
	}
	var calls atomic.Int64
	c = start(t, func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	})
	if _, err := c.AppendStdin(within(t), id, strings.NewReader("x"), false); !errors.Is(err, hutch.ErrGuestUnresponsive) || calls.Load() != 1 {
		t.Errorf("%v after %d calls, want one", err, calls.Load())
	}
}

func TestResizeExec(t *testing.T) {
	var got string
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.URL.Path + " " + string(b)
		_, _ = io.WriteString(w, "{}")
	})
	err := c.ResizeExec(within(t), id, hutch.TerminalSize{Rows: 5, Cols: 7})
	if want := "/v1/exec/" + string(id) + `/resize {"rows":5,"cols":7}`; err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

func TestFollowLive(t *testing.T) {
	wire := frames(t, gap(t, "stdout", 0, 50), out(50, "live"), gap(t, "stdout", 54, 60), errOut(0, "e"), gap(t, "stderr", 1, 2), endFrame(t))
	var query string
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		_, _ = w.Write(wire)
	})
	f, err := c.Follow(within(t), id, FollowOptions{Live: true, Last: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var kinds []guestapi.FrameType
	for {
		fr, err := f.Next(within(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, fr.Type)
	}
	want := []guestapi.FrameType{guestapi.FrameStdout, guestapi.FrameGap, guestapi.FrameStderr, guestapi.FrameGap, guestapi.FrameEnd}
	if !slices.Equal(kinds, want) || query != "budget=0&last=7&live=1&stderr=0&stdout=0&wait=1" {
		t.Errorf("frames %v of %s, want %v", kinds, query, want)
	}
}
