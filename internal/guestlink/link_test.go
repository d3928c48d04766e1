package guestlink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// pair returns the two ends of a stream: blocking files, as they are made.
func pair(t testing.TB) (host, guest *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	host, guest = os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	t.Cleanup(func() {
		_ = host.Close()
		_ = guest.Close()
	})
	return host, guest
}

// polled returns f in non-blocking mode, so that a Close ends its reads.
func polled(t testing.TB, f *os.File) *os.File {
	t.Helper()
	d, err := duplicate(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func newHost(t testing.TB, f *os.File) *Host {
	t.Helper()
	h, err := NewHost(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// dial dials and accepts.
func dial(t testing.TB, h *Host, l net.Listener) (host, guest net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			c = nil
		}
		accepted <- c
	}()
	host, err := h.Dial(within(t, 10*time.Second))
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	if guest = <-accepted; guest == nil {
		t.Fatal("Accept failed")
	}
	return host, guest
}

// checkEcho sends random bytes both ways and compares.
func checkEcho(t testing.TB, a, b net.Conn, size int) {
	t.Helper()
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		msg := randomBytes(size)
		errc := make(chan error, 1)
		go func() {
			_, err := way[0].Write(msg)
			errc <- err
		}()
		got := make([]byte, size)
		if _, err := io.ReadFull(way[1], got); err != nil {
			t.Fatalf("read: %v", err)
		}
		if err := <-errc; err != nil {
			t.Fatalf("write: %v", err)
		}
		if !bytes.Equal(got, msg) {
			t.Fatal("got other bytes than were sent")
		}
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(rand.Uint32()); rand.IntN(3) == 0 {
			b[i] = esc
		}
	}
	return b
}

// readOn reads a session to its end, as those who have one do: one that nobody reads keeps
// the next one waiting.
func readOn(c net.Conn) { go func() { _, _ = io.Copy(io.Discard, c) }() }

// settled waits until the number of goroutines is back at n.
func settled(t testing.TB, n int) {
	t.Helper()
	ctx := within(t, 10*time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, want %d:\n%s", runtime.NumGoroutine(), n, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestSessions(t *testing.T) {
	for _, mode := range []string{"blocking guest", "polled guest"} {
		t.Run(mode, func(t *testing.T) {
			hf, gf := pair(t)
			if mode == "polled guest" {
				gf = polled(t, gf)
			}
			h, l := newHost(t, hf), NewListener(gf)
			h1, g1 := dial(t, h, l)
			checkEcho(t, h1, g1, 300_000)

			h2, g2 := dial(t, h, l)
			if _, err := h1.Read(make([]byte, 1)); !errors.Is(err, ErrReplaced) {
				t.Errorf("read of the old session at the node: got %v, want ErrReplaced", err)
			}
			if _, err := h1.Write([]byte("x")); !errors.Is(err, ErrReplaced) {
				t.Errorf("write to the old session at the node: got %v, want ErrReplaced", err)
			}
			if _, err := g1.Read(make([]byte, 1)); !errors.Is(err, ErrReplaced) {
				t.Errorf("read of the old session at the guest: got %v, want ErrReplaced", err)
			}
			if _, err := g1.Write([]byte("x")); !errors.Is(err, ErrReplaced) {
				t.Errorf("write to the old session at the guest: got %v, want ErrReplaced", err)
			}
			checkEcho(t, h2, g2, 300_000)
		})
	}
}

func TestCloseIsSeenByTheOtherEnd(t *testing.T) {
	hf, gf := pair(t)
	h, l := newHost(t, hf), NewListener(polled(t, gf))
	h1, g1 := dial(t, h, l)
	if _, err := g1.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	_ = g1.Close()
	if got, err := io.ReadAll(h1); err != nil || string(got) != "last words" {
		t.Fatalf("at the node: got %q, %v", got, err)
	}
	h2, g2 := dial(t, h, l)
	if _, err := h2.Write([]byte("bye")); err != nil {
		t.Fatal(err)
	}
	_ = h2.Close()
	if got, err := io.ReadAll(g2); err != nil || string(got) != "bye" {
		t.Fatalf("at the guest: got %q, %v", got, err)
	}
	if _, err := g2.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatalf("write after the end: got %v, want io.ErrClosedPipe", err)
	}
}

func TestDeadlines(t *testing.T) {
	hf, gf := pair(t)
	h, l := newHost(t, hf), NewListener(polled(t, gf))
	hc, gc := dial(t, h, l)
	big := make([]byte, 8<<20)
	for name, c := range map[string]net.Conn{"node": hc, "guest": gc} {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: read past the deadline: got %v", name, err)
		}
		_ = c.SetReadDeadline(time.Time{})
	}
	checkEcho(t, hc, gc, 1000)
	// A write that is cut half-way cannot be taken back: the session ends.
	half := func(from, to net.Conn) error {
		wrote := make(chan error, 1)
		go func() {
			_, err := from.Write(big)
			wrote <- err
		}()
		if _, err := to.Read(make([]byte, 1)); err != nil { // it is under way, and more than there is room for
			t.Fatal(err)
		}
		_ = from.SetWriteDeadline(past)
		return <-wrote
	}
	if err := half(hc, gc); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("node: write past the deadline: got %v", err)
	}
	if !hc.(*hostConn).over() {
		t.Error("the session outlived half a write")
	}
	readOn(gc)
	hc, gc = dial(t, h, l)
	if err := half(gc, hc); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("guest: write past the deadline: got %v", err)
	}
	hc, gc = dial(t, h, l)
	checkEcho(t, hc, gc, 1000)
}

// TestDeadlineMoves: moving a deadline wakes nobody too early and loses no wake-up.
func TestDeadlineMoves(t *testing.T) {
	var d deadline
	d.set(time.Now().Add(-time.Second))
	if !d.passed() {
		t.Fatal("a deadline in the past has not passed")
	}
	d.set(time.Now().Add(time.Hour))
	if d.passed() {
		t.Fatal("a moved deadline has passed")
	}
	w := d.wait()
	d.set(time.Now().Add(time.Millisecond))
	<-w
	d.set(time.Time{})
	if d.passed() {
		t.Fatal("a cleared deadline has passed")
	}
}

// TestDialWaitsForAGuest: the hello is sent again until somebody listens.
func TestDialWaitsForAGuest(t *testing.T) {
	hf, gf := pair(t)
	h := newHost(t, hf)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := h.Dial(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Dial without a guest: got %v", err)
	}
	// Whatever that attempt left in the stream is no hindrance, nor is garbage.
	if _, err := gf.Write(randomBytes(10_000)); err != nil {
		t.Fatal(err)
	}
	hc, gc := dial(t, h, NewListener(polled(t, gf)))
	_, _ = hc, gc
}

func TestDuplicateHelloIsIgnored(t *testing.T) {
	hf, gf := pair(t)
	l := NewListener(polled(t, gf))
	n := newNonce()
	for range 3 {
		if _, err := hf.Write(hello(n)); err != nil {
			t.Fatal(err)
		}
	}
	g1, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hf.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(g1, make([]byte, 1)); err != nil {
		t.Fatalf("read behind two duplicates: %v", err)
	}
	want := control{kind: kindAck, version: version, nonce: n}.wire()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(hf, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("ack: got %x, %v; want %x", got, err, want)
	}
}

func TestGuestEndsWithItsStream(t *testing.T) {
	hf, gf := pair(t)
	h := newHost(t, hf)
	l := NewListener(polled(t, gf))
	_, gc := dial(t, h, l)
	_ = h.Close()
	_ = hf.Close()
	if _, err := l.Accept(); !errors.Is(err, io.EOF) {
		t.Fatalf("Accept after the node's end is closed: got %v, want io.EOF", err)
	}
	if _, err := gc.Read(make([]byte, 1)); err == nil {
		t.Fatal("the session outlived its stream")
	}
}

// TestStalledSessionGivesWay: a session that nobody reads does not keep the next
// hello from being answered.
func TestStalledSessionGivesWay(t *testing.T) {
	hf, gf := pair(t)
	h, l := newHost(t, hf), NewListener(polled(t, gf))
	l.stall = 10 * time.Millisecond
	hc, gc := dial(t, h, l)
	_, _ = hc.Write(make([]byte, 4<<20)) // until the guest gives the session up, and drops the rest
	if _, err := gc.Read(make([]byte, 1)); !errors.Is(err, ErrBroken) {
		t.Fatalf("read of a stalled session: got %v, want ErrBroken", err)
	}
	dial(t, h, l)
}

// sizedReads notes how much each Read asks for.
type sizedReads struct {
	*os.File
	asked chan int
}

func (s *sizedReads) Read(p []byte) (int, error) {
	select {
	case s.asked <- len(p):
	default:
	}
	return s.File.Read(p)
}

// TestGuestReadsMuchAtATime: once much comes, the guest asks for much, and an idle one
// keeps a small buffer.
func TestGuestReadsMuchAtATime(t *testing.T) {
	hf, gf := pair(t)
	r := &sizedReads{File: polled(t, gf), asked: make(chan int, 1000)}
	hc, gc := dial(t, newHost(t, hf), NewListener(r))
	checkEcho(t, hc, gc, 1000)
	if n := <-r.asked; n != readBuffer {
		t.Errorf("the first read asked for %d bytes, want %d", n, readBuffer)
	}
	for range 20 {
		checkEcho(t, hc, gc, 1<<20)
		for len(r.asked) > 0 {
			if <-r.asked == bulkBuffer {
				return
			}
		}
	}
	t.Errorf("20 MiB came, and no read asked for %d bytes", bulkBuffer)
}

// TestManySessionsAtOnce: racing dials leave one session that works.
func TestManySessionsAtOnce(t *testing.T) {
	hf, gf := pair(t)
	h, l := newHost(t, hf), NewListener(polled(t, gf))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	ctx := within(t, 20*time.Second)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				c, err := h.Dial(ctx)
				if err != nil {
					t.Errorf("Dial: %v", err)
					return
				}
				msg := randomBytes(100)
				if _, err := c.Write(msg); err != nil {
					continue // replaced
				}
				got := make([]byte, len(msg))
				if _, err := io.ReadFull(c, got); err == nil && !bytes.Equal(got, msg) {
					t.Error("a session delivered bytes that are not its own")
				}
			}
		})
	}
	wg.Wait()
	c, err := h.Dial(ctx)
	if err != nil {
		t.Fatalf("Dial after the race: %v", err)
	}
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	msg, got := randomBytes(1000), make([]byte, 1000)
	if _, err := c.Write(msg); err != nil {
		t.Fatalf("write in the session that is left: %v", err)
	}
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, msg) {
		t.Errorf("the session that is left: %v, the same bytes: %v", err, bytes.Equal(got, msg))
	}
}

func TestHostCloseEndsEverything(t *testing.T) {
	base := runtime.NumGoroutine()
	hf, gf := pair(t)
	gp := polled(t, gf)
	h, l := newHost(t, hf), NewListener(gp)
	hc, _ := dial(t, h, l)
	readErr := make(chan error, 1)
	go func() {
		_, err := hc.Read(make([]byte, 1))
		readErr <- err
	}()
	_ = h.Close()
	if err := <-readErr; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read under Close: got %v, want net.ErrClosed", err)
	}
	if _, err := h.Dial(t.Context()); err == nil {
		t.Error("Dial after Close worked")
	}
	_ = l.Close()
	settled(t, base)
}

func TestLongStream(t *testing.T) {
	hf, gf := pair(t)
	h, l := newHost(t, hf), NewListener(polled(t, gf))
	hc, gc := dial(t, h, l)
	block := randomBytes(1 << 20)
	sent := sha256.New()
	go func() {
		for range 8 {
			sent.Write(block)
			if _, err := hc.Write(block); err != nil {
				return
			}
		}
	}()
	got := sha256.New()
	if _, err := io.CopyN(got, gc, 8<<20); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprintf("%x", got.Sum(nil)) != fmt.Sprintf("%x", sent.Sum(nil)) {
		t.Fatal("the stream was damaged")
	}
}

// What the guest has sent and nobody has read is seen, and does not go for it.
func TestUnread(t *testing.T) {
	hf, gf := pair(t)
	h := newHost(t, hf)
	if h.Unread() {
		t.Error("of a new stream something is unread")
	}
	if _, err := gf.WriteString("left"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !h.Unread() {
			t.Error("what was sent is not seen")
		}
	}
	l := NewListener(gf)
	defer l.Close()
	dial(t, h, l)
	if h.Unread() {
		t.Error("what a new session has dropped is still unread")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if h.Unread() {
		t.Error("of a closed stream something is unread")
	}
}
