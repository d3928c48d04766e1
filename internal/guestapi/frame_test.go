package guestapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"hutch.dev/hutch"
)

func TestFramesRoundTrip(t *testing.T) {
	var b bytes.Buffer
	frames := []Frame{
		{Type: FrameStdout, Offset: 0, Payload: []byte("hello")},
		{Type: FrameStderr, Offset: 1 << 40, Payload: []byte{0, 0xf5, 1}},
		{Type: FrameGap, Payload: []byte(`{}`)},
		{Type: FrameKeepalive},
		{Type: FrameEnd, Payload: bytes.Repeat([]byte("x"), MaxFrame+1)},
	}
	for _, f := range frames {
		if err := WriteFrame(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range frames {
		got, err := ReadFrame(&b)
		if err != nil || got.Type != want.Type || got.Offset != want.Offset || !bytes.Equal(got.Payload, want.Payload) {
			t.Errorf("type %d: got type %d, offset %d, %d bytes, %v", want.Type, got.Type, got.Offset, len(got.Payload), err)
		}
	}
	if _, err := ReadFrame(&b); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v, want EOF", err)
	}
}

// header is a frame's header with a length that nothing has to follow.
func header(kind FrameType, length uint32, offset int64) []byte {
	b := make([]byte, frameHeader)
	b[0] = byte(kind)
	binary.BigEndian.PutUint32(b[1:], length)
	binary.BigEndian.PutUint64(b[5:], uint64(offset))
	return b
}

func TestFramesOutOfBounds(t *testing.T) {
	for name, b := range map[string][]byte{
		"no such type":            header(0, 0, 0),
		"another":                 header(99, 0, 0),
		"data too long":           header(FrameStdout, MaxFrame+1, 0),
		"end too long":            header(FrameEnd, MaxBody+1, 0),
		"end past a small budget": header(FrameEnd, uint32(EndFrameMax(1000))+1, 0),
		"negative offset":         header(FrameStdout, 0, -1),
	} {
		if _, err := ReadFrameBudget(bytes.NewReader(b), 1000); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: got %v, want ErrFrame", name, err)
		}
	}
	if _, err := ReadFrame(bytes.NewReader(header(FrameStdout, 10, 0))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: got %v", err)
	}
}

func TestEndFrameHoldsAnyResult(t *testing.T) {
	for _, budget := range []int{hutch.MinOutputBytes, hutch.DefaultOutputBytes, hutch.MaxOutputBytes} {
		if encoded := int64(budget+2) / 3 * 4 * 2; EndFrameMax(budget) < encoded || EndFrameMax(budget) > MaxBody {
			t.Errorf("budget %d: the longest end frame is %d, both streams take %d", budget, EndFrameMax(budget), encoded)
		}
	}
}

// Whatever comes, a frame that is read is within its bounds.
func FuzzReadFrame(f *testing.F) {
	f.Add(header(FrameStdout, 0, 0), 1000)
	f.Add(append(header(FrameEnd, 2, 0), "{}"...), 64)
	f.Add(header(FrameGap, 1<<31, 5), 1<<20)
	f.Fuzz(func(t *testing.T, b []byte, budget int) {
		budget = max(0, min(budget, hutch.MaxOutputBytes))
		r := bytes.NewReader(b)
		for {
			fr, err := ReadFrameBudget(r, budget)
			if err != nil {
				return
			}
			if fr.Offset < 0 || int64(len(fr.Payload)) > max(MaxFrame, EndFrameMax(budget)) {
				t.Fatalf("type %d at %d with %d bytes", fr.Type, fr.Offset, len(fr.Payload))
			}
		}
	})
}
