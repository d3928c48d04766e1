package output

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// slowly reads a stream as an attached reader would, a few bytes at a time, until the end.
func slowly(t *testing.T, s *Stream, size int) (got []byte, gaps int) {
	r := s.Attach(0)
	defer r.Leave()
	buf := make([]byte, size)
	for off := int64(0); ; {
		changed := s.Changed()
		n, next := s.ReadAt(buf, off)
		switch {
		case n > 0:
			got = append(got, buf[:n]...)
			off += int64(n)
		case next > off:
			gaps++
			off = next
		default:
			s.mu.Lock()
			over := s.ended && off == s.total
			s.mu.Unlock()
			if over {
				return got, gaps
			}
			<-changed
		}
		r.Took(off)
	}
}

func TestLossless(t *testing.T) {
	broken := func() (*File, error) { return nil, errors.New("no file") }
	for name, o := range map[string]Options{
		"no file":                  {Budget: 100_000},
		"no file, smallest budget": {Budget: 64},
		"a file that cannot be":    {Budget: 10_000, Open: broken},
		"a file of the least size": spillOptions(t, 10_000, minFile),
	} {
		t.Run(name, func(t *testing.T) {
			o.Lossless = true
			want := pattern(3 << 20)
			if o.Budget == 64 {
				want = want[:20_000]
			}
			s := NewPool(1 << 20).NewStream(o)
			began := s.Moved()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if got, gaps := slowly(t, s, 4999); !bytes.Equal(got, want) || gaps != 0 {
					t.Errorf("read %d of %d bytes with %d gaps", len(got), len(want), gaps)
				}
			}()
			<-began // the reader is attached
			for b := want; len(b) > 0; {
				n := min(len(b), 60_000)
				_, _ = s.Write(b[:n])
				b = b[n:]
			}
			s.End()
			<-done
		})
	}
}

func TestLosslessWaitsForNobodyElse(t *testing.T) {
	for name, let := range map[string]func(s *Stream, r *Reader){
		"the reader leaves":    func(_ *Stream, r *Reader) { r.Leave() },
		"nobody is waited for": func(s *Stream, _ *Reader) { s.StopHolding() },
		"it takes everything":  func(s *Stream, r *Reader) { r.Took(1 << 40) },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewPool(1 << 20).NewStream(Options{Budget: 1000, Lossless: true})
			_, _ = s.Write(pattern(2000)) // nobody is attached
			r := s.Attach(s.Total())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = s.Write(pattern(100_000))
			}()
			deadline := time.Now().Add(10 * time.Second)
			for !s.Holding() {
				if time.Now().After(deadline) {
					t.Fatal("the writer does not wait for a reader who takes nothing")
				}
				<-time.After(time.Millisecond)
			}
			let(s, r)
			<-done
			if s.Holding() || s.Total() != 102_000 {
				t.Errorf("holding %v, total %d", s.Holding(), s.Total())
			}
		})
	}
}
