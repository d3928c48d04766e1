// Package output keeps what a command writes.
//
// It owns the bytes of a stream in memory ([Stream]), the bound on the memory of
// all streams ([Pool]), and the file a stream spills to when it is over its budget
// ([Dir], in spill.go). It knows nothing of processes or of HTTP.
//
// A stream has one writer and any number of readers. Nothing a reader does, or leaves
// undone, ever blocks the writer, unless the stream was made lossless (hold.go): a reader
// asks for an offset and gets bytes, or is told how far the gap goes.
//
// While a stream fits its budget all of it is in memory. When it no longer does, the
// whole of it goes to a file, from its first byte on, and memory keeps the first quarter
// of the budget and a moving tail of three quarters. The file holds one contiguous run
// of the stream that ends where the stream ends; when it reaches its own cap, or the
// disk is full, its older half is dropped.
//
// Invariants: the memory head is [0,head), the memory tail ends at total; the file
// holds [base,end) and a byte is dropped from memory only after the file had its
// chance at it. Lock order: Stream.fileMu before Stream.mu. Start with [Stream.Write].
package output

import (
	"sync"

	"hutch.dev/hutch"
)

// Options are what a stream is made with.
type Options struct {
	Budget  int   // bytes kept in memory; the result shows no more than these
	FileCap int64 // most bytes of the file
	// Open makes the file when it is needed. Nil = there is none.
	Open func() (*File, error)
	// Lossless makes the writer wait rather than drop what an attached [Reader] has not
	// taken.
	Lossless bool
}

// Stream is one output stream of a command.
type Stream struct {
	pool *Pool
	opt  Options

	spilling bool // by the writer only: the file was tried

	fileMu sync.RWMutex // held for writing while the file's bytes or bounds change
	file   file

	mu      sync.Mutex
	budget  int64         // Options.Budget, or less when the pool had no more
	head    int64         // bytes of head once cut; 0 before
	cut     bool          // over budget: only head and tail are in memory
	total   int64         // bytes written
	first   [][]byte      // chunks from offset 0 on; once cut, those that hold the head
	rest    [][]byte      // once cut: chunks of the tail
	restAt  int64         // offset of rest[0]
	free    []byte        // a dropped chunk, for the next one
	held    int64         // bytes reserved in the pool
	changed chan struct{} // closed at the next change; nil while nobody waits
	ended   bool

	hold hold // its lock is held together with no other
}

// NewStream makes a stream whose memory comes out of p.
func (p *Pool) NewStream(opt Options) *Stream {
	return &Stream{pool: p, opt: opt, budget: int64(opt.Budget)}
}

// Write appends b. It blocks on a reader only if the stream is lossless, and always takes
// all of b; after [Stream.End] it drops it. Only one goroutine may write.
func (s *Stream) Write(b []byte) (int, error) {
	n := len(b)
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return n, nil
	}
	if !s.cut {
		b = s.appendLocked(b)
	}
	s.mu.Unlock()
	if len(b) == 0 {
		return n, nil
	}
	// Over the budget. The file comes first, so that memory drops nothing it lacks.
	if !s.spilling {
		s.startSpill()
	}
	s.mu.Lock()
	s.cutLocked()
	s.mu.Unlock()
	s.spill(b)
	for len(b) > 0 {
		piece := s.piece(b)
		if len(piece) < len(b) || s.file.f == nil {
			s.awaitReaders(s.dropsBelow(len(piece)))
		}
		s.mu.Lock()
		s.appendLocked(piece)
		s.mu.Unlock()
		b = b[len(piece):]
	}
	return n, nil
}

// piece is how much of b memory takes at once: all of it, unless it alone must keep it for
// readers, who must have seen what is dropped.
func (s *Stream) piece(b []byte) []byte {
	if !s.opt.Lossless || s.file.f != nil {
		return b
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return b[:min(int64(len(b)), max(1, s.budget-s.head))]
}

// dropsBelow is the offset below which memory need not have anything after n more bytes.
func (s *Stream) dropsBelow(n int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.total, max(s.head, s.total+int64(n)-(s.budget-s.head)))
}

// appendLocked puts b into memory and returns what of it has no room unless the stream
// is cut first, which is nothing once it is.
func (s *Stream) appendLocked(b []byte) []byte {
	defer s.wakeLocked()
	for len(b) > 0 {
		k := len(b)
		if !s.cut {
			k = int(min(int64(k), s.budget-s.total))
		}
		if k <= 0 {
			return b
		}
		c := s.lastLocked()
		if c == nil || len(*c) == chunkSize {
			if !s.growLocked() {
				return b
			}
			c = s.lastLocked()
		}
		k = min(k, chunkSize-len(*c))
		if need := len(*c) + k; need > cap(*c) {
			grown := make([]byte, len(*c), min(chunkSize, max(need, 2*cap(*c))))
			copy(grown, *c)
			s.reserveLocked(int64(cap(grown) - cap(*c)))
			*c = grown
		}
		*c = append(*c, b[:k]...)
		b = b[k:]
		s.total += int64(k)
		s.trimLocked()
	}
	return nil
}

// reserveLocked changes what the stream holds by n bytes, over the pool's limit if need be.
func (s *Stream) reserveLocked(n int64) {
	s.held += n
	s.pool.used.Add(n)
}

func (s *Stream) wakeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// lastLocked is the chunk that ends at total, nil if there is none.
func (s *Stream) lastLocked() *[]byte {
	switch {
	case len(s.rest) > 0:
		return &s.rest[len(s.rest)-1]
	case len(s.first) > 0 && (!s.cut || s.restAt <= s.firstLenLocked()):
		return &s.first[len(s.first)-1]
	}
	return nil
}

func (s *Stream) firstLenLocked() int64 {
	if len(s.first) == 0 {
		return 0
	}
	return int64(len(s.first)-1)*chunkSize + int64(len(s.first[len(s.first)-1]))
}

// growLocked adds an empty chunk at the end. False: the pool has no more, and the
// stream must be cut.
func (s *Stream) growLocked() bool {
	c := s.free
	s.free = nil
	if c == nil && s.total < chunkSize && !s.cut {
		c = []byte{} // the first chunk grows as it fills: most outputs are short
	}
	if c == nil {
		// Once cut, what a stream holds cannot grow by more than the chunk in hand.
		if !s.pool.take(chunkSize, s.cut || s.held < floor) {
			return false
		}
		s.held += chunkSize
		if p, ok := s.pool.bufs.Get().(*[]byte); ok {
			c = (*p)[:0]
		} else {
			c = make([]byte, 0, chunkSize)
		}
	}
	if s.cut {
		if len(s.rest) == 0 {
			s.restAt = s.total
		}
		s.rest = append(s.rest, c[:0])
	} else {
		s.first = append(s.first, c[:0])
	}
	return true
}

// cutLocked fixes the budget at what is held, if that is less, and splits the chunks
// into head and tail.
func (s *Stream) cutLocked() {
	if s.cut {
		return
	}
	s.cut = true
	s.budget = min(s.budget, s.total)
	s.head = s.budget / 4
	keep := int((s.head + chunkSize - 1) / chunkSize)
	s.rest = append([][]byte(nil), s.first[keep:]...)
	s.restAt = int64(keep) * chunkSize
	s.first = s.first[:keep:keep]
	if len(s.rest) == 0 {
		s.restAt = s.firstLenLocked()
	}
}

// trimLocked drops the chunks of the tail that are no longer part of it.
func (s *Stream) trimLocked() {
	if !s.cut {
		return
	}
	from := s.tailStartLocked()
	for len(s.rest) > 1 && s.restAt+int64(len(s.rest[0])) <= from {
		c := s.rest[0]
		s.rest[0] = nil
		s.rest = s.rest[1:]
		s.restAt += int64(len(c))
		s.dropLocked(c)
	}
}

// dropLocked keeps one full chunk for reuse and gives the others back.
func (s *Stream) dropLocked(c []byte) {
	if s.free == nil && cap(c) == chunkSize {
		s.free = c[:0]
		return
	}
	s.reserveLocked(-int64(cap(c)))
	if cap(c) == chunkSize {
		s.pool.bufs.Put(&c)
	}
}

// tailStartLocked is where the tail of a cut stream begins.
func (s *Stream) tailStartLocked() int64 {
	return max(s.head, s.total-(s.budget-s.head))
}

// End says that nothing more will be written. Memory shrinks to what is kept; waiting
// readers wake.
func (s *Stream) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	if s.free != nil {
		c := s.free
		s.free = nil
		s.reserveLocked(-int64(cap(c)))
	}
	if c := s.lastLocked(); c != nil && cap(*c) > len(*c)+len(*c)/8 {
		fit := append(make([]byte, 0, len(*c)), *c...)
		s.reserveLocked(int64(cap(fit) - cap(*c)))
		*c = fit
	}
	s.wakeLocked()
}

// Release gives the memory back and closes the file, which stays where it is. The
// stream then reads as one gap.
func (s *Stream) Release() {
	s.End()
	s.fileMu.Lock()
	s.file.close()
	s.fileMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserveLocked(-s.held)
	s.first, s.rest, s.free = nil, nil, nil
	s.restAt = s.total
	s.cut, s.head, s.budget = true, 0, 0
}

// Forget gives the memory back if a file has the stream too, from which it is read then.
func (s *Stream) Forget() {
	s.End()
	if !s.HasFile() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserveLocked(-s.held)
	s.first, s.rest, s.free = nil, nil, nil
	s.restAt = s.total
}

// HasFile reports whether there is a file to read the stream from.
func (s *Stream) HasFile() bool {
	s.fileMu.RLock()
	defer s.fileMu.RUnlock()
	return s.file.f != nil
}

// Total is how many bytes were written.
func (s *Stream) Total() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Changed returns a channel that is closed at the next write or at the end. Take it
// before looking, so that nothing is missed in between.
func (s *Stream) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
		if s.ended {
			close(s.changed)
		}
	}
	return s.changed
}

// DiskFull reports whether the file met a full disk.
func (s *Stream) DiskFull() bool {
	s.fileMu.RLock()
	defer s.fileMu.RUnlock()
	return s.file.full
}

// ReadAt copies bytes from offset off on, as many as there are in a row and fit b. If
// nobody has the byte at off any more, n is 0 and next is the offset where there
// are bytes again (at most the total). At the end of what there is both are 0.
func (s *Stream) ReadAt(b []byte, off int64) (n int, next int64) {
	total := s.Total()
	if off >= total || len(b) == 0 {
		return 0, 0
	}
	b = b[:min(int64(len(b)), total-off)]
	if n, ok := s.readMemory(b, off); ok {
		return n, 0
	}
	s.fileMu.RLock()
	n, next = s.file.readAt(b, off)
	s.fileMu.RUnlock()
	if n > 0 {
		return n, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if next <= off || next > s.restAt {
		next = s.restAt
	}
	return 0, next
}

// readMemory copies from memory; ok is false when the byte at off is not in it, true
// with n 0 at the end.
func (s *Stream) readMemory(b []byte, off int64) (n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off >= s.total || len(b) == 0 {
		return 0, true
	}
	chunks, at := s.first, int64(0)
	if s.cut && off >= s.firstLenLocked() {
		if off < s.restAt {
			return 0, false
		}
		chunks, at = s.rest, s.restAt
	}
	for at, i := at, 0; i < len(chunks) && n < len(b); i++ {
		c := chunks[i]
		if end := at + int64(len(c)); off < end {
			k := copy(b[n:], c[off-at:])
			n += k
			off += int64(k)
		}
		at += int64(len(c))
	}
	return n, true
}

// Bounds says what the result of a cut stream shows: [0,head) and [tail,total). For a
// stream that is whole, head and tail are both its total.
func (s *Stream) Bounds() (head, tail, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cut {
		return s.total, s.total, s.total
	}
	return s.head, s.tailStartLocked(), s.total
}

// LiveLimit is the offset up to which a reader that wants only the budget is served
// before the end: a quarter of the budget.
func (s *Stream) LiveLimit() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return s.head
	}
	return s.budget / 4
}

// Output is what is kept of the stream. Of one that was forgotten that is what its file has,
// which can lack the beginning, or be cut short by somebody inside.
func (s *Stream) Output() hutch.Output {
	head, tail, total := s.Bounds()
	o := hutch.Output{Total: total}
	o.Head = s.copyRange(0, head)
	if tail < total {
		o.Tail = s.copyRange(tail, total)
	}
	if int64(len(o.Tail)) < total-tail {
		o.Tail = nil // not the end of the stream
	}
	o.Dropped = total - int64(len(o.Head)+len(o.Tail))
	if o.Dropped == 0 {
		// Cut at the budget's edge with nothing lost: it is one piece again.
		o.Head, o.Tail = append(o.Head, o.Tail...), nil
		return o
	}
	s.fileMu.RLock()
	defer s.fileMu.RUnlock()
	o.Path, o.FileDropped = s.file.summary(total)
	return o
}

func (s *Stream) copyRange(from, to int64) []byte {
	b := make([]byte, 0, to-from)
	for from < to {
		n, _ := s.ReadAt(b[len(b):cap(b)], from)
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
		from += int64(n)
	}
	return b
}
