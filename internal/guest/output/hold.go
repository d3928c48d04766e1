package output

import (
	"math"
	"sync"
)

// hold makes the writer of a lossless stream wait for its readers: where memory and file
// would drop bytes that one of them has not taken, the writer waits until it has.
type hold struct {
	mu      sync.Mutex
	readers map[*Reader]int64 // offset each has come to
	moved   chan struct{}     // closed at the next change; nil while nobody waits
	off     bool              // nobody is waited for any more
	waiting bool
}

// Reader is somebody who takes a stream from an offset on and for whom, if the stream is
// lossless, the writer waits.
type Reader struct{ s *Stream }

// Attach adds a reader at offset off. It must Leave.
func (s *Stream) Attach(off int64) *Reader {
	r := &Reader{s}
	s.hold.change(func(h *hold) {
		if h.readers == nil {
			h.readers = map[*Reader]int64{}
		}
		h.readers[r] = off
	})
	return r
}

// Took says that the reader has everything below off.
func (r *Reader) Took(off int64) {
	r.s.hold.change(func(h *hold) {
		if _, ok := h.readers[r]; ok {
			h.readers[r] = off
		}
	})
}

// Leave says that the reader is gone. Twice is harmless.
func (r *Reader) Leave() { r.s.hold.change(func(h *hold) { delete(h.readers, r) }) }

// StopHolding lets the writer go on as if nobody read, from now on.
func (s *Stream) StopHolding() { s.hold.change(func(h *hold) { h.off = true }) }

// Holding reports whether the writer waits for a reader.
func (s *Stream) Holding() bool {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.waiting
}

// Moved returns a channel that is closed at the next change of what the writer waits for.
func (s *Stream) Moved() <-chan struct{} {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.movedLocked()
}

func (h *hold) movedLocked() <-chan struct{} {
	if h.moved == nil {
		h.moved = make(chan struct{})
	}
	return h.moved
}

func (h *hold) change(f func(*hold)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
	if h.moved != nil {
		close(h.moved)
		h.moved = nil
	}
}

// slowestLocked is how far the slowest reader has come.
func (h *hold) slowestLocked() int64 {
	least := int64(math.MaxInt64)
	for _, off := range h.readers {
		least = min(least, off)
	}
	return least
}

// awaitReaders waits, in a lossless stream, until every reader has what is below off,
// which is going to be dropped. It holds no lock of the stream. off must be no more than
// what readers can see, the total.
func (s *Stream) awaitReaders(off int64) {
	if !s.opt.Lossless {
		return
	}
	h := &s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.off && h.slowestLocked() < off {
		h.waiting = true
		moved := h.movedLocked()
		h.mu.Unlock()
		<-moved
		h.mu.Lock()
	}
	h.waiting = false
}
