package guestlink

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// TestTakeover: a second Host on a duplicate takes the stream over from one that is
// stuck in the middle of a write, and that never says goodbye.
func TestTakeover(t *testing.T) {
	hf, gf := pair(t)
	l := NewListener(polled(t, gf))
	first := newHost(t, hf)
	for range 20 {
		hc, gc := dial(t, first, l)
		var wg sync.WaitGroup
		for _, c := range []net.Conn{hc, gc} {
			wg.Go(func() { _, _ = c.Write(randomBytes(1 << 20)) })
		}
		died := make(chan struct{})
		go func() {
			_, _ = io.CopyN(io.Discard, gc, rand.Int64N(1<<19))
			<-died
			readOn(gc)
		}()
		_, _ = io.CopyN(io.Discard, hc, rand.Int64N(1<<19))
		// The process dies: its descriptor is closed, whatever was under way stays cut.
		_ = first.f.Close()
		close(died)

		second := newHost(t, hf)
		hc2, gc2 := dial(t, second, l)
		checkEcho(t, hc2, gc2, 10_000)
		wg.Wait()
		first = second
	}
}

// hop is a guest's stream whose other end is replaced under it, as a restore does:
// the bytes of one write may go half to the old stream and half to the new.
type hop struct {
	mu    sync.Mutex
	cond  *sync.Cond
	f     *os.File
	quota int // bytes that still go to f; then they wait for the next stream
}

func newHop(f *os.File) *hop {
	h := &hop{f: f, quota: 1 << 40}
	h.cond = sync.NewCond(&h.mu)
	return h
}

func (h *hop) file() *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.f
}

func (h *hop) move(f *os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.f.Close()
	h.f, h.quota = f, 1<<40
	h.cond.Broadcast()
}

// cut lets n more bytes through to the present stream.
func (h *hop) cut(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quota = n
}

func (h *hop) Read(p []byte) (int, error) {
	for {
		f := h.file()
		n, err := f.Read(p)
		if n > 0 || h.file() == f {
			return n, err
		}
	}
}

func (h *hop) Write(p []byte) (n int, err error) {
	for n < len(p) {
		h.mu.Lock()
		for h.quota <= 0 { // less: it was cut while more was on its way
			h.cond.Wait()
		}
		f, part := h.f, min(len(p)-n, h.quota, 1+rand.IntN(5000))
		h.mu.Unlock()
		m, err := f.Write(p[n : n+part])
		n += m
		h.mu.Lock()
		if h.f == f {
			h.quota -= m
			if err != nil {
				h.mu.Unlock()
				return n, err
			}
		}
		h.mu.Unlock()
	}
	return n, nil
}

// TestRestoreCutsAnywhere: sessions before and after a restore, cut at random bytes
// both ways, deliver exactly their own bytes.
func TestRestoreCutsAnywhere(t *testing.T) {
	hf, gf := pair(t)
	stream := newHop(polled(t, gf))
	l := NewListener(stream)
	for round := range 60 {
		h := newHost(t, hf)
		hc, gc := dial(t, h, l)
		if round%3 == 0 {
			hc, gc = dial(t, h, l) // a session more on the same stream
		}
		checkEcho(t, hc, gc, 1+rand.IntN(20_000))

		// Both are in the middle of something when the machine is saved.
		stream.cut(1 + rand.IntN(30_000))
		go func() { _, _ = gc.Write(randomBytes(40_000)) }()
		readOn(gc)
		half := appendEscaped(nil, randomBytes(1+rand.IntN(2000)))
		if round%2 == 0 {
			wire := hello(newNonce())
			half = append(half, wire[:1+rand.IntN(len(wire)-1)]...)
		}
		if _, err := h.f.Write(half); err != nil {
			t.Fatal(err)
		}
		nhf, ngf := pair(t)
		stream.move(polled(t, ngf))
		_ = h.Close()
		hf = nhf
	}
}

// TestKilledNode: the same with a process of its own, which SIGKILL ends in the middle
// of a write.
func TestKilledNode(t *testing.T) {
	if os.Getenv(victimEnv) != "" {
		victim()
	}
	hf, gf := pair(t)
	l := NewListener(polled(t, gf))
	for range 5 {
		node := exec.Command(os.Args[0], "-test.run=^TestKilledNode$")
		node.Env = append(os.Environ(), victimEnv+"=1")
		node.ExtraFiles = []*os.File{hf}
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		gc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// It is writing without end; read some, then let it run into the full socket.
		if _, err := io.CopyN(io.Discard, gc, 1<<20+rand.Int64N(1<<20)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = gc.Write(randomBytes(1 << 20)) }()
		if err := node.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = node.Wait()
		readOn(gc)
		h := newHost(t, hf)
		hc, gc2 := dial(t, h, l)
		checkEcho(t, hc, gc2, 10_000)
		_ = h.f.Close() // without a goodbye
	}
}

const victimEnv = "GUESTLINK_TEST_VICTIM"

// victim is the process that gets killed: it writes for ever.
func victim() {
	h, err := NewHost(os.NewFile(3, "stream"))
	if err != nil {
		panic(err)
	}
	c, err := h.Dial(context.Background())
	if err != nil {
		panic(err)
	}
	block := randomBytes(100_000)
	for {
		if _, err := c.Write(block); err != nil {
			panic(err)
		}
	}
}
