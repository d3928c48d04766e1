package process

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch/internal/guest/output"
)

// pieces counts what is written to it.
type pieces struct {
	bytes.Buffer
	n int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.n++
	return p.Buffer.Write(b)
}

// TestGulps: a command that writes fast in small pieces is read in large ones, and loses nothing;
// its first pieces, one that writes little, and a terminal are read at once.
func TestGulps(t *testing.T) {
	const size, total = 1000, 400
	for name, c := range map[string]struct {
		apart    time.Duration // time from piece to piece
		terminal bool
		gulps    bool
	}{
		"fast":            {apart: 20 * time.Microsecond, gulps: true},
		"slow":            {apart: 2 * time.Millisecond},
		"fast, to a user": {apart: 20 * time.Microsecond, terminal: true},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs, err := newPipe(false)
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			now := new(atomic.Int64)
			p, err := newPump(ours, output.NewPool(1<<20).NewStream(output.Options{}), new(atomic.Int64), now.Load)
			if err != nil {
				t.Fatal(err)
			}
			if c.terminal {
				p.gulps = nil
			}
			written, first := 0, 0
			write := func() {
				if written == total {
					_ = theirs.Close()
					return
				}
				if _, err := theirs.Write(bytes.Repeat([]byte{byte(written)}, size)); err != nil {
					t.Error(err)
				}
				written++
				now.Add(int64(c.apart))
			}
			got := &pieces{}
			p.pause = func(d time.Duration) { // the writer does not: it does the same again and again
				if first == 0 {
					first = got.n
				}
				for end := now.Load() + int64(d); written < total && now.Load() < end; {
					write()
				}
			}
			// A writer that comes to its next piece when the one before has been read.
			reader := writerFunc(func(b []byte) (int, error) {
				n, err := got.Write(b)
				if written*size == got.Len() {
					write()
				}
				return n, err
			})
			write()
			if err := p.copy(reader); err != nil {
				t.Fatal(err)
			}
			for i, b := range got.Bytes() {
				if b != byte(i/size) {
					t.Fatalf("byte %d is %d", i, b)
				}
			}
			if got.Len() != size*total {
				t.Errorf("%d bytes", got.Len())
			}
			switch {
			case !c.gulps && got.n != total:
				t.Errorf("%d pieces were read by %d reads", total, got.n)
			case c.gulps && (got.n > 3*gulpPieces || first != gulpPieces):
				t.Errorf("%d pieces were read by %d reads, the first pause after %d", total, got.n, first)
			}
		})
	}
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestGulpsEnd: when a command has written little for a while it is read at once again, and one
// whose pieces are large always is.
func TestGulpsEnd(t *testing.T) {
	g, now := &gulps{}, int64(0)
	paused := func(pieces, n int, apart time.Duration) (pauses int) {
		for range pieces {
			now += int64(apart)
			if g.enough(n, now) {
				pauses++
			}
		}
		return pauses
	}
	for _, c := range []struct {
		what       string
		pieces, n  int
		apart      time.Duration
		from, upTo int
	}{
		{"answers in short succession", 200, 200, 500 * time.Microsecond, 0, 0},
		{"a flood of lines", 200, 80, 10 * time.Microsecond, 200 - 2*gulpPieces, 200},
		{"a flood in large pieces", 200, readSize, 100 * time.Microsecond, 0, 0},
		{"a flood again", 200, 4096, 100 * time.Microsecond, 200 - 2*gulpPieces, 200},
		{"a line now and then", 200, 80, time.Second, 0, 2 * gulpPieces},
	} {
		if got := paused(c.pieces, c.n, c.apart); got < c.from || got > c.upTo {
			t.Errorf("%s: %d pauses, want %d to %d", c.what, got, c.from, c.upTo)
		}
	}
}
