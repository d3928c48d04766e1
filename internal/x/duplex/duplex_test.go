package duplex

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
)

// pair is both ends of a connection, which run until the test ends.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	writer := func(w io.Writer) func([]byte) error {
		return func(p []byte) error {
			_, err := w.Write(p)
			return err
		}
	}
	a, b = New(ar, writer(aw)), New(br, writer(bw))
	var wg sync.WaitGroup
	for _, c := range []*Conn{a, b} {
		wg.Go(func() { _ = c.Run() })
	}
	t.Cleanup(func() {
		_ = aw.Close()
		_ = bw.Close()
		wg.Wait()
	})
	return a, b
}

func TestBothWaysAtOnce(t *testing.T) {
	a, b := pair(t)
	want := make([]byte, 3<<20)
	_, _ = rand.Read(want)
	var wg sync.WaitGroup
	for _, c := range []*Conn{a, b} {
		wg.Go(func() {
			if n, err := c.Write(want); n != len(want) || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after the end: %v", err)
	}
}

func TestHalfClose(t *testing.T) {
	a, b := pair(t)
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Read(make([]byte, 5)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %d, %v", n, err)
	}
	for range 3 {
		if _, err := b.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(a, got); err != nil || string(got) != "more" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// A writer whose bytes nobody reads holds up neither the other direction nor the streams.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t)
		wrote := make(chan int, 1)
		go func() {
			n, _ := a.Write(make([]byte, 10*Window))
			wrote <- n
		}()
		synctest.Wait()
		if a.credit != 0 || b.buf.len() != Window {
			t.Errorf("may send %d more, %d are kept", a.credit, b.buf.len())
		}
		if _, err := b.Write([]byte("other way")); err != nil {
			t.Error(err)
		}
		got := make([]byte, 9)
		if _, err := io.ReadFull(a, got); err != nil || string(got) != "other way" {
			t.Errorf("%q, %v", got, err)
		}
		if n, err := io.CopyN(io.Discard, b, 10*Window); n != 10*Window || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		if n := <-wrote; n != 10*Window {
			t.Errorf("wrote %d", n)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t)
		_, _ = a.Write([]byte("last words"))
		read := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Error(err)
		}
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Errorf("a read under way: %v", err)
		}
		if got, err := io.ReadAll(b); string(got) != "last words" || err != nil || !b.Deaf() {
			t.Errorf("%q, %v, deaf %v", got, err, b.Deaf())
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to one that is closed: %v", err)
		}
	})
}

func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t)
		_, _ = a.Write([]byte("before"))
		if err := a.Reset(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got, err := io.ReadAll(b); string(got) != "before" || !errors.Is(err, ErrReset) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, ErrReset) {
			t.Errorf("write after a reset: %v", err)
		}
	})
}

func frame(kind byte, n uint32, p ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, n), p...)
}

func TestStreamsThatBreak(t *testing.T) {
	for name, s := range map[string]struct {
		stream []byte
		want   error
	}{
		"cut":                         {nil, io.ErrUnexpectedEOF},
		"cut in a header":             {frame(frameData, 5)[:3], io.ErrUnexpectedEOF},
		"cut in a payload":            {frame(frameData, 5, 'a'), io.ErrUnexpectedEOF},
		"too long":                    {frame(frameData, MaxFrame+1), ErrFrame},
		"unknown":                     {frame(9, 0), ErrFrame},
		"more taken than sent":        {frame(frameTaken, 4, 0, 0, 0, 1), ErrFrame},
		"a count that is none":        {frame(frameTaken, 2, 0, 1), ErrFrame},
		"data after the end":          {append(frame(frameEnd, 0), frame(frameData, 1, 'a')...), ErrFrame},
		"more than the window":        {bytes.Repeat(frame(frameData, MaxFrame, make([]byte, MaxFrame)...), Window/MaxFrame+1), ErrFrame},
		"the end of one way only":     {frame(frameEnd, 0), io.ErrUnexpectedEOF},
		"a reset":                     {frame(frameReset, 0), ErrReset},
		"a close, and nothing before": {frame(frameClose, 0), io.ErrUnexpectedEOF},
	} {
		c := New(bytes.NewReader(s.stream), func([]byte) error { return nil })
		if err := c.Run(); !errors.Is(err, s.want) {
			t.Errorf("%s: %v, want %v", name, err, s.want)
		}
	}
	sent := errors.New("broken")
	c := New(bytes.NewReader(nil), func([]byte) error { return sent })
	if _, err := c.Write([]byte("x")); !errors.Is(err, sent) {
		t.Errorf("a write that cannot be sent: %v", err)
	}
}

// Whatever comes, no more than the window is kept and nothing hangs or panics.
func FuzzFrames(f *testing.F) {
	f.Add(frame(frameData, 3, 'a', 'b', 'c'))
	f.Add(append(frame(frameEnd, 0), frame(frameTaken, 4, 0, 0, 0, 9)...))
	f.Add(append(frame(frameClose, 0), frame(frameReset, 0)...))
	f.Add([]byte{1, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := New(bytes.NewReader(stream), func([]byte) error { return nil })
		_ = c.Run()
		if c.buf.len() > Window || c.credit > Window {
			t.Errorf("%d bytes kept, %d may be sent", c.buf.len(), c.credit)
		}
		if n, err := io.Copy(io.Discard, c); n > int64(len(stream)) {
			t.Errorf("%d bytes read of %d, %v", n, len(stream), err)
		}
	})
}

func FuzzRing(f *testing.F) {
	f.Add([]byte{10, 3, 200, 255, 0, 7})
	f.Add([]byte{255, 255, 255, 254, 253, 1, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var r ring
		var want []byte
		for i, s := range steps {
			if i%2 == 0 {
				p := bytes.Repeat([]byte{s}, int(s)*23)
				r.write(p)
				want = append(want, p...)
				continue
			}
			p := make([]byte, int(s)*19)
			n := r.read(p)
			if n != min(len(p), len(want)) || !bytes.Equal(p[:n], want[:n]) {
				t.Fatalf("step %d: read %d of %d", i, n, len(want))
			}
			want = want[n:]
		}
		if r.len() != len(want) {
			t.Errorf("%d left, want %d", r.len(), len(want))
		}
	})
}
