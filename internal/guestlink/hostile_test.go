package guestlink

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The HTTP/2 frame types of the attacks.
const (
	tHeaders, tReset, tSettings, tPing, tGoAway, tWindow, tContinuation = 1, 3, 4, 6, 7, 8, 9
)

func h2frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := make([]byte, frameHeaderSize, frameHeaderSize+len(payload))
	b[0], b[1], b[2] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload))
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	return append(b, payload...)
}

// literal is a header field that HPACK does not index, as it goes on the wire.
func literalField(name, value string) []byte {
	b := []byte{0x00, byte(len(name))}
	b = append(append(b, name...), byte(len(value)))
	return append(b, value...)
}

var (
	settingsFrame = h2frame(tSettings, 0, 0, nil)
	okHeaders     = []byte{0x88} // :status 200, from the static table
)

// hostile is a guest that does its worst. It reads the node's hellos to know the
// nonces; what it answers is up to the attack.
type hostile struct {
	f     *os.File
	nonce chan nonce
	wrote atomic.Int64 // bytes
}

// startHostile returns a guest whose reads are taken care of (unless deaf) and whose
// attack runs until the test ends.
func startHostile(t *testing.T, f *os.File, deaf bool, attack func(h *hostile)) *hostile {
	t.Helper()
	h := &hostile{f: f, nonce: make(chan nonce, 64)}
	var wg sync.WaitGroup
	wg.Go(func() {
		var d decoder
		buf := make([]byte, 32<<10)
		for {
			n, err := f.Read(buf)
			if err != nil {
				close(h.nonce)
				return
			}
			for raw := buf[:n]; len(raw) > 0; {
				var ev event
				if _, raw, ev = d.step(raw); ev == evControl && d.msg.kind == kindHello {
					select {
					case h.nonce <- d.msg.nonce:
					default:
					}
					if deaf {
						close(h.nonce)
						return
					}
				}
			}
		}
	})
	wg.Go(func() { attack(h) })
	t.Cleanup(func() {
		_ = f.Close()
		wg.Wait()
	})
	return h
}

// ack answers the next hello; it reports whether there was one.
func (h *hostile) ack() bool {
	n, ok := <-h.nonce
	return ok && h.raw(control{kind: kindAck, version: version, nonce: n}.wire())
}

// raw writes b as it is.
func (h *hostile) raw(b []byte) bool {
	n, err := h.f.Write(b)
	h.wrote.Add(int64(n))
	return err == nil
}

// flood sends b, encoded, again and again in every session.
func (h *hostile) flood(first []byte, b []byte) {
	block := appendEscaped(nil, bytes.Repeat(b, 1+(64<<10)/len(b)))
	for h.ack() && h.raw(appendEscaped(nil, first)) {
		for len(h.nonce) == 0 {
			if !h.raw(block) {
				return
			}
		}
	}
}

// attack is what a hostile guest does; deaf = it reads nothing after the first hello.
type attack struct {
	deaf   bool
	attack func(h *hostile)
}

// attacksOnHTTP are attacks by what HTTP/2 allows, or nearly so. stream1 begins an answer on
// the first stream.
func attacksOnHTTP(stream1 []byte) map[string]attack {
	return map[string]attack{
		"trailers without end": {false, func(h *hostile) {
			h.flood(concat(stream1, h2frame(tHeaders, 1, 1, literalField("t", "x"))), h2frame(tContinuation, 0, 1, bytes.Repeat(literalField("abc", "defgh"), 1000)))
		}},
		"one byte at a time": {false, func(h *hostile) {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			wire := concat(settingsFrame, h2frame(tHeaders, 4, 1, append(bytes.Clone(okHeaders), literalField("x", string(make([]byte, 100)))...)))
			for h.ack() {
				for i := 0; len(h.nonce) == 0; i++ {
					<-tick.C
					if !h.raw(appendEscaped(nil, wire[i%len(wire):][:1])) {
						return
					}
				}
			}
		}},
		"headers on every stream": {false, func(h *hostile) {
			var all []byte
			for n := uint32(1); n < 3000; n++ {
				all = append(all, h2frame(tHeaders, 4, n, okHeaders)...)
			}
			h.flood(settingsFrame, all)
		}},
		"bodies on every stream": {false, func(h *hostile) {
			var all []byte
			for n := uint32(1); n < 3000; n++ {
				all = append(all, h2frame(frameData, 0, n, []byte("x"))...)
			}
			h.flood(stream1, all)
		}},
		"a table bomb": {false, func(h *hostile) {
			// One large field goes into the table, and each byte after it is that field again.
			field := append([]byte{0x40, 1, 'x', 0x7f, 0xa1, 0x1e}, make([]byte, 4000)...)
			h.flood(settingsFrame, h2frame(tHeaders, 5, 1, concat(okHeaders, field, bytes.Repeat([]byte{0xbe}, 10_000))))
		}},
		"a table of any size": {false, func(h *hostile) {
			h.flood(h2frame(tSettings, 0, 0, []byte{0, 1, 0xff, 0xff, 0xff, 0xff}), h2frame(tSettings, 0, 0, []byte{0, 1, 0x7f, 0xff, 0xff, 0xff}))
		}},
		"padding": {false, func(h *hostile) {
			h.flood(stream1, h2frame(frameData, 8, 1, append([]byte{255}, make([]byte, 255)...)))
		}},
		"a length that is no length": {false, func(h *hostile) {
			h.flood(concat(settingsFrame, h2frame(tHeaders, 4, 1, append(bytes.Clone(okHeaders), literalField("content-length", "9223372036854775807")...))), h2frame(frameData, 1, 1, []byte("x")))
		}},
		"more than its length": {false, func(h *hostile) {
			h.flood(concat(settingsFrame, h2frame(tHeaders, 4, 1, append(bytes.Clone(okHeaders), literalField("content-length", "1")...))), h2frame(frameData, 0, 1, make([]byte, 16<<10)))
		}},
		"windows that overflow": {false, func(h *hostile) {
			h.flood(settingsFrame, h2frame(tWindow, 0, 1, []byte{0x7f, 0xff, 0xff, 0xff}))
		}},
		"windows that overflow bit by bit": {false, func(h *hostile) {
			h.flood(settingsFrame, h2frame(tWindow, 0, 1, []byte{0, 0xff, 0xff, 0xff}))
		}},
		"a window that overflows from the start": {false, func(h *hostile) {
			h.flood(h2frame(tSettings, 0, 0, []byte{0, 4, 0x7f, 0xff, 0xff, 0xff}), h2frame(tWindow, 0, 1, []byte{0, 0, 0, 1}))
		}},
	}
}

// TestHostileGuest: whatever the guest does, calls end by their context, memory stays
// bounded, and Close leaves no goroutine behind.
func TestHostileGuest(t *testing.T) {
	stream1 := concat(settingsFrame, h2frame(tHeaders, 4, 1, okHeaders))
	attacks := map[string]attack{
		"silence": {false, func(*hostile) {}},
		"random bytes": {false, func(h *hostile) {
			for h.raw(randomBytes(64 << 10)) {
			}
		}},
		"random bytes in a session": {false, func(h *hostile) {
			for h.ack() && h.raw(randomBytes(1<<20)) {
			}
		}},
		"ack flood": {false, func(h *hostile) {
			block := bytes.Repeat(control{kind: kindAck, version: 1}.wire(), 1000)
			for h.raw(block) {
			}
		}},
		"ack flood in a session": {false, func(h *hostile) {
			n := <-h.nonce
			block := bytes.Repeat(control{kind: kindAck, version: 1, nonce: n}.wire(), 1000)
			for h.raw(block) {
			}
		}},
		"hello echo": {false, func(h *hostile) {
			for n := range h.nonce {
				h.raw(bytes.Repeat(hello(n), 100))
			}
		}},
		"control without end": {false, func(h *hostile) {
			for h.raw(bytes.Repeat([]byte{esc, escControl}, 32<<10)) {
			}
		}},
		"escapes without end": {false, func(h *hostile) {
			for h.ack() {
				for len(h.nonce) == 0 && h.raw(bytes.Repeat([]byte{esc}, 64<<10)) {
				}
			}
		}},
		"acks and reads no more": {true, func(h *hostile) { h.ack() }},
		"settings flood":         {false, func(h *hostile) { h.flood(nil, settingsFrame) }},
		"ping flood":             {false, func(h *hostile) { h.flood(settingsFrame, h2frame(tPing, 0, 0, make([]byte, 8))) }},
		"ping flood, deaf":       {true, func(h *hostile) { h.flood(settingsFrame, h2frame(tPing, 0, 0, make([]byte, 8))) }},
		"reset flood":            {false, func(h *hostile) { h.flood(settingsFrame, h2frame(tReset, 0, 1, make([]byte, 4))) }},
		"unknown frames":         {false, func(h *hostile) { h.flood(settingsFrame, h2frame(0x42, 0, 0, nil)) }},
		"push":                   {false, func(h *hostile) { h.flood(settingsFrame, h2frame(framePush, 4, 1, make([]byte, 4))) }},
		"window flood":           {false, func(h *hostile) { h.flood(settingsFrame, h2frame(tWindow, 0, 0, []byte{0, 0, 0, 1})) }},
		"headers flood": {false, func(h *hostile) {
			h.flood(settingsFrame, h2frame(tHeaders, 4, 1, append(bytes.Clone(okHeaders), literalField("x", string(make([]byte, 100)))...)))
		}},
		"continuation flood": {false, func(h *hostile) {
			h.flood(concat(settingsFrame, h2frame(tHeaders, 0, 1, okHeaders)), h2frame(tContinuation, 0, 1, bytes.Repeat(literalField("abc", "defgh"), 1000)))
		}},
		"early hints flood": {false, func(h *hostile) { h.flood(settingsFrame, h2frame(tHeaders, 4, 1, literalField(":status", "103"))) }},
		"endless body":      {false, func(h *hostile) { h.flood(stream1, h2frame(frameData, 0, 1, make([]byte, 16<<10))) }},
		"tiny body frames":  {false, func(h *hostile) { h.flood(stream1, h2frame(frameData, 0, 1, []byte{1})) }},
		"huge frame": {false, func(h *hostile) {
			h.flood(settingsFrame, append([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, make([]byte, 64<<10)...))
		}},
		"goaway flood": {false, func(h *hostile) { h.flood(settingsFrame, h2frame(tGoAway, 0, 0, make([]byte, 8+1000))) }},
		"no concurrency": {false, func(h *hostile) {
			h.flood(h2frame(tSettings, 0, 0, []byte{0, 3, 0, 0, 0, 0}), h2frame(tWindow, 0, 0, []byte{0, 0, 0, 1}))
		}},
	}
	maps.Copy(attacks, attacksOnHTTP(stream1))
	for name, tt := range attacks {
		t.Run(name, func(t *testing.T) {
			base := runtime.NumGoroutine()
			before := heap()
			hf, gf := pair(t)
			h, err := NewHost(hf)
			if err != nil {
				t.Fatal(err)
			}
			tr := NewTransport(h)
			func() {
				g := polled(t, gf)
				guest := startHostile(t, g, tt.deaf, tt.attack)
				attackedCalls(t, tr)
				if n := guest.wrote.Load(); n == 0 && name != "silence" {
					t.Error("the attack wrote nothing")
				}
				if grown := heap() - before; grown > 24<<20 {
					t.Errorf("the heap grew by %d MiB", grown>>20)
				}
				_ = tr.Close()
				_ = g.Close()
			}()
			settled(t, base)
		})
	}
}

// attackedCalls makes calls until their contexts end. What they return is of no
// matter, but that they do.
func attackedCalls(t *testing.T, tr *Transport) {
	t.Helper()
	const calls, patience = 12, 300 * time.Millisecond
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			start := time.Now()
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://guest/", nil)
			if i%2 == 1 {
				req, _ = http.NewRequestWithContext(ctx, "POST", "http://guest/", bytes.NewReader(make([]byte, 1<<20)))
			}
			resp, err := tr.RoundTrip(req)
			if took := time.Since(start); took > patience+5*time.Second {
				t.Errorf("a call outlived its context by %v", took-patience)
			}
			if err == nil {
				// Nobody reads it, until Close.
				t.Cleanup(func() { _ = resp.Body.Close() })
			}
		})
	}
	wg.Wait()
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// FuzzHostileSession: no bytes behind an ack hurt the node.
func FuzzHostileSession(f *testing.F) {
	f.Add(concat(settingsFrame, h2frame(tHeaders, 5, 1, okHeaders)))
	f.Add(concat(settingsFrame, h2frame(tHeaders, 4, 1, okHeaders), h2frame(frameData, 1, 1, []byte("hi"))))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(h2frame(tGoAway, 0, 0, make([]byte, 8)))
	f.Fuzz(func(t *testing.T, wire []byte) {
		hf, gf := pair(t)
		g := polled(t, gf)
		var wg sync.WaitGroup
		wg.Go(func() {
			var d decoder
			buf := make([]byte, 4096)
			for {
				n, err := g.Read(buf)
				if err != nil {
					return
				}
				for raw := buf[:n]; len(raw) > 0; {
					var ev event
					if _, raw, ev = d.step(raw); ev == evControl && d.msg.kind == kindHello {
						_, _ = g.Write(concat(control{kind: kindAck, version: version, nonce: d.msg.nonce}.wire(), appendEscaped(nil, wire)))
						_, _ = g.Write(control{kind: kindEnd, version: version, nonce: d.msg.nonce}.wire())
					}
				}
			}
		})
		h, err := NewHost(hf)
		if err != nil {
			t.Fatal(err)
		}
		tr := NewTransport(h)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://guest/", nil)
		if resp, err := tr.RoundTrip(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if ctx.Err() != nil {
			t.Fatal("the call did not end with its session")
		}
		_ = tr.Close()
		_ = g.Close()
		wg.Wait()
	})
}
