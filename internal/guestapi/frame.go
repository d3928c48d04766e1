package guestapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"hutch.dev/hutch"
)

// FrameType says what a frame of a follow answer holds.
type FrameType uint8

// The frame types.
const (
	FrameStdout    FrameType = 1 // payload: bytes of stdout at Offset
	FrameStderr    FrameType = 2 // payload: bytes of stderr at Offset
	FrameGap       FrameType = 3 // payload: JSON Gap
	FrameEnd       FrameType = 4 // payload: JSON ExecStatus; the last frame
	FrameKeepalive FrameType = 5 // no payload; nothing to say for a while
)

// Gap stands for bytes of a stream that are not sent: [From, To).
type Gap struct {
	Stream string `json:"stream"` // "stdout" or "stderr"
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

// Frame is one message of a follow answer. On the wire: type (1 byte), length of the
// payload (4 bytes, big endian), offset (8 bytes, big endian), payload.
type Frame struct {
	Type    FrameType
	Offset  int64 // of a data frame's first byte in its stream; else 0
	Payload []byte
}

const frameHeader = 1 + 4 + 8

// ErrFrame is a frame that cannot be one.
var ErrFrame = errors.New("malformed frame")

// WriteFrame writes f in one call of w.Write.
func WriteFrame(w io.Writer, f Frame) error {
	b := make([]byte, frameHeader, frameHeader+len(f.Payload))
	b[0] = byte(f.Type)
	binary.BigEndian.PutUint32(b[1:], uint32(len(f.Payload)))
	binary.BigEndian.PutUint64(b[5:], uint64(f.Offset))
	_, err := w.Write(append(b, f.Payload...))
	return err
}

// ReadFrame reads one frame. The payload is bounded by MaxFrame, or MaxBody for the
// end frame, and memory is only taken as bytes arrive, so a lying length costs nothing.
// A clean end before a frame is io.EOF; a malformed frame is ErrFrame.
func ReadFrame(r io.Reader) (Frame, error) { return ReadFrameBudget(r, hutch.MaxOutputBytes) }

// EndFrameMax is the longest end frame of a command whose result holds at most budget bytes
// of each stream: both in base64, and the rest of it.
func EndFrameMax(budget int) int64 { return min(MaxBody, 2*(int64(budget)*4/3+4)+1<<20) }

// ReadFrameBudget is ReadFrame for a command whose budget is known: a longer end frame than
// that allows is ErrFrame before a byte of it is read.
func ReadFrameBudget(r io.Reader, budget int) (Frame, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Type: FrameType(h[0]), Offset: int64(binary.BigEndian.Uint64(h[5:]))}
	n := int64(binary.BigEndian.Uint32(h[1:]))
	limit := int64(MaxFrame)
	if f.Type == FrameEnd {
		limit = EndFrameMax(budget)
	}
	if f.Type < FrameStdout || f.Type > FrameKeepalive || n > limit || f.Offset < 0 {
		return Frame{}, fmt.Errorf("%w: type %d, %d bytes at offset %d", ErrFrame, f.Type, n, f.Offset)
	}
	p, err := io.ReadAll(io.LimitReader(r, n))
	if err != nil {
		return Frame{}, err
	}
	if int64(len(p)) != n {
		return Frame{}, io.ErrUnexpectedEOF
	}
	f.Payload = p
	return f, nil
}
