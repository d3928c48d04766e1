package guesttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/duplex"
)

// server is a program with a server for each way that a connection can go. It prints its ports
// once all of them listen.
const server = `
import socket, struct, sys, threading, hashlib
def listen(serve, family=socket.AF_INET, addr='127.0.0.1'):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if serve is deaf: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.bind((addr, 0))
    s.listen(64)
    def loop():
        while True:
            c, _ = s.accept()
            threading.Thread(target=serve, args=(c,), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start()
    return s.getsockname()[1]
def all_of(c):
    b = b''
    while True:
        p = c.recv(65536)
        if not p: return b
        b += p
def echo(c):
    while True:
        p = c.recv(65536)
        if not p: break
        c.sendall(p)
    c.close()
def digest(c):  # answers after the end of what it is sent
    b = all_of(c)
    c.sendall(('%d %s' % (len(b), hashlib.sha256(b).hexdigest())).encode())
    c.close()
def first(c):  # ends before it is told anything, and reads on
    c.sendall(b'bye')
    c.shutdown(socket.SHUT_WR)
    print('heard', all_of(c).decode(), flush=True)
    c.close()
def reset(c):
    c.recv(1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    c.close()
def deaf(c):  # never reads
    threading.Event().wait()
def watch(c):  # says how it ended
    try:
        while c.recv(65536): pass
        print('ended', flush=True)
    except ConnectionResetError:
        print('cut', flush=True)
def flood(c):
    try:
        while True: c.sendall(b'x' * 65536)
    except OSError:
        print('stopped', flush=True)
ports = [listen(f) for f in (echo, digest, first, reset, deaf, watch, flood)]
try:
    ports.append(listen(echo, socket.AF_INET6, '::1'))
except OSError:
    ports.append(0)
ports.append(listen(echo, addr='0.0.0.0'))
print('ports', *ports, flush=True)
threading.Event().wait()
`

// portServer is that program, running.
type portServer struct {
	c                                                                *Client
	id                                                               hutch.ExecID
	pid                                                              int
	screen                                                           *screen
	echo, digest, first, reset, deaf, watch, flood, echo6, echoEvery int
}

func startServer(t *testing.T, c *Client) *portServer {
	t.Helper()
	if r := c.Sh(t, "command -v python3"); r.ExitCode != 0 {
		t.Skip("no python3 in this image")
	}
	s := c.Start(t, hutch.ExecSpec{Argv: []string{"python3", "-c", server}, Background: true})
	p := &portServer{c: c, id: s.ID, pid: s.PID, screen: c.watch(t, s.ID, "wait=1")}
	Eventually(t, 20*time.Second, "the servers listen", func() bool {
		line, _, ok := strings.Cut(p.screen.shown(), "\n")
		_, err := fmt.Sscanf(line, "ports %d %d %d %d %d %d %d %d %d", &p.echo, &p.digest, &p.first, &p.reset, &p.deaf, &p.watch, &p.flood, &p.echo6, &p.echoEvery)
		return ok && err == nil
	})
	return p
}

// portConn is a connection to a port, as a node makes it.
type portConn struct {
	*duplex.Conn
	cancel func()
}

// cut breaks the call off without a word.
func (p *portConn) cut() { p.cancel() }

// dial connects to a port. The connection ends with the test.
func (c *Client) dial(t testing.TB, port int) (*portConn, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	body, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://guest%s/%d/connect", guestapi.PathPorts, port), body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.roundTrip(req) //nolint:bodyclose // the connection is it, and closes it
	if err != nil {
		cancel()
		return nil, err
	}
	cut := func() {
		cancel()
		_ = w.CloseWithError(context.Canceled) // a transport that waits for more of a body does not look at its context
	}
	p := &portConn{cancel: cut, Conn: duplex.New(resp.Body, func(b []byte) error {
		_, err := w.Write(b)
		return err
	})}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = p.Run()
		_ = w.Close()
		_ = resp.Body.Close()
	}()
	t.Cleanup(func() {
		cut()
		<-over
	})
	return p, nil
}

func (c *Client) mustDial(t testing.TB, port int) *portConn {
	t.Helper()
	p, err := c.dial(t, port)
	if err != nil {
		t.Fatalf("connect to port %d: %v", port, err)
	}
	return p
}

func testPorts(t *testing.T, c *Client) {
	s := startServer(t, c)
	t.Run("both ways at once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i, port := range []int{s.echo, s.echoEvery, s.echo, s.echo} {
			wg.Go(func() {
				want := bytes.Repeat([]byte{byte('a' + i)}, 2<<20)
				p := c.mustDial(t, port)
				wg.Go(func() {
					if _, err := p.Write(want); err != nil {
						t.Errorf("write: %v", err)
					}
					if err := p.CloseWrite(); err != nil {
						t.Errorf("end: %v", err)
					}
				})
				if got, err := io.ReadAll(p); err != nil || !bytes.Equal(got, want) {
					t.Errorf("read %d bytes, %v", len(got), err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("the end of what is sent", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		p := c.mustDial(t, s.digest)
		if _, err := p.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := p.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(p)
		if want := fmt.Sprintf("%d %x", len(data), sha256.Sum256(data)); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	})
	t.Run("the end of what is answered", func(t *testing.T) {
		p := c.mustDial(t, s.first)
		if got, err := io.ReadAll(p); string(got) != "bye" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		for _, word := range []string{"still", "here"} {
			if _, err := p.Write([]byte(word)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		s.screen.await(t, "heard stillhere\n")
	})
	t.Run("a reset inside is one outside", func(t *testing.T) {
		p := c.mustDial(t, s.reset)
		_, _ = p.Write([]byte("x"))
		if _, err := io.ReadAll(p); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want a reset", err)
		}
	})
	s.ends(t)
	s.bounds(t)
	s.listed(t)
}

// ends checks what a connection that ends outside does inside.
func (s *portServer) ends(t *testing.T) {
	c := s.c
	t.Run("one that is cut outside is cut inside", func(t *testing.T) {
		p := c.mustDial(t, s.watch)
		_, _ = p.Write([]byte("x"))
		p.cut()
		s.screen.await(t, "cut\n")
	})
	t.Run("one that is closed outside ends inside", func(t *testing.T) {
		p := c.mustDial(t, s.digest)
		_, _ = p.Write([]byte("x"))
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		p = c.mustDial(t, s.watch)
		_, _ = p.Write([]byte("x"))
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		s.screen.await(t, "ended\n")
		p = c.mustDial(t, s.flood)
		if _, err := io.ReadFull(p, make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		s.screen.await(t, "stopped\n")
	})
}

// bounds checks that no server keeps others from being reached.
func (s *portServer) bounds(t *testing.T) {
	c := s.c
	t.Run("servers that read nothing hold up nobody", func(t *testing.T) {
		for range 100 {
			p := c.mustDial(t, s.deaf)
			go func() { _, _ = p.Write(make([]byte, 16<<20)) }() // until the test ends
		}
		p := c.mustDial(t, s.echo)
		for range 10 {
			if _, err := p.Write([]byte("ping")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(p, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
			if r := c.Sh(t, "echo ok"); string(r.Stdout.Head) != "ok\n" {
				t.Fatalf("%+v", r)
			}
		}
	})
	t.Run("IPv6", func(t *testing.T) {
		if s.echo6 == 0 {
			t.Skip("no IPv6 inside")
		}
		p := c.mustDial(t, s.echo6)
		_, _ = p.Write([]byte("six"))
		_ = p.CloseWrite()
		if got, err := io.ReadAll(p); string(got) != "six" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("nothing listens", func(t *testing.T) {
		if _, err := c.dial(t, 1); code(err) != hutch.CodePortClosed {
			t.Errorf("%v, want port_closed", err)
		}
		for _, port := range []int{0, -1, 65536} {
			if _, err := c.dial(t, port); code(err) != hutch.CodeBadRequest {
				t.Errorf("port %d: %v, want a bad_request", port, err)
			}
		}
	})
}

func (s *portServer) listed(t *testing.T) {
	c := s.c
	t.Run("list", func(t *testing.T) {
		var l guestapi.Listeners
		c.must(t, "GET", guestapi.PathPorts, nil, &l)
		want := map[int]string{s.echo: "127.0.0.1", s.echoEvery: "0.0.0.0", s.deaf: "127.0.0.1"}
		if s.echo6 != 0 {
			want[s.echo6] = "::1"
		}
		last := 0
		for _, p := range l.Listeners {
			if p.Port < last {
				t.Errorf("port %d after %d", p.Port, last)
			}
			last = p.Port
			if addr, ok := want[p.Port]; ok {
				if p.Address != addr || p.PID != s.pid || !strings.HasPrefix(p.Command, "python3") {
					t.Errorf("%+v, want %s of %d", p, addr, s.pid)
				}
				delete(want, p.Port)
			}
		}
		if len(want) > 0 {
			t.Errorf("not listed: %v in %+v", want, l)
		}
	})
}

func testDisk(t *testing.T, c *Client) {
	usage := func() (u hutch.DiskUsage) {
		c.must(t, "GET", guestapi.PathDisk, nil, &u)
		return u
	}
	before := usage()
	if before.Total <= 0 || before.Used < 0 || before.Used > before.Total {
		t.Fatalf("%+v", before)
	}
	c.Sh(t, "head -c 20000000 /dev/urandom > /hutch-disk-test; sync")
	after := usage()
	c.Sh(t, "rm -f /hutch-disk-test")
	if after.Used-before.Used < 19_000_000 || after.Total != before.Total {
		t.Errorf("before %+v, with 20 MB more %+v", before, after)
	}
}
