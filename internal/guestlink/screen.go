package guestlink

import (
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// ErrAbuse is a guest whose HTTP/2 is lawful, perhaps, but of no use other than to
// make the node work.
var ErrAbuse = errors.New("the guest sends HTTP/2 frames that no guest agent sends")

// The HTTP/2 frame types that matter here, by their number on the wire.
const (
	frameData     = 0x0
	framePriority = 0x2
	frameSettings = 0x4
	framePush     = 0x5
	frameWindow   = 0x8 // WINDOW_UPDATE
	frameLast     = 0x9 // the highest number that is in use

	frameHeaderSize = 9 // length (3), type (1), flags (1), stream (4)
)

// chatterLimit is how many frames that carry nothing of a body a guest may send in a
// second. A lawful one sends two or three for a call. Window updates are not counted:
// they follow what the node sends, call for no answer, and come by the thousand.
const chatterLimit = 20_000

// windowSlack is how much more a guest may let the node send than the node has sent, in bytes:
// a lawful one opens windows of [requestWindow], and then gives back what was taken. Go's HTTP/2
// client locks itself up for good, with every call on it, when the window of a stream passes
// 2³¹-1; a guest that has been sent less than that, less two slacks, cannot bring it about.
const windowSlack = 16 << 20

// screen is a connection whose reader sees only frames that a guest agent has reason
// to send. The HTTP/2 client itself would survive the others too, but it writes a
// line to the process's log for each frame of an unknown type, and answers settings
// and pings for as long as they come.
type screen struct {
	net.Conn
	written atomic.Int64 // bytes, of all kinds
	granted int64        // by window updates of streams
	field   [6]byte      // of a window update or of settings, as far as it has come
	got     int          // bytes of field
	header  [frameHeaderSize]byte
	have    int   // bytes of header seen
	payload int   // bytes of the payload still to come
	window  int64 // the second that chatter counts in
	chatter int
	limit   int // of chatter a second
	now     func() time.Time
}

func newScreen(c net.Conn) *screen { return &screen{Conn: c, limit: chatterLimit, now: time.Now} }

// Read implements net.Conn.
func (s *screen) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	for b := p[:n]; len(b) > 0; {
		if s.payload > 0 {
			part := b[:min(s.payload, len(b))]
			s.payload -= len(part)
			b = b[len(part):]
			if !s.fields(part) {
				_ = s.Close()
				return 0, ErrAbuse
			}
			continue
		}
		m := copy(s.header[s.have:], b)
		s.have += m
		b = b[m:]
		if s.have < frameHeaderSize {
			break
		}
		s.have, s.got = 0, 0
		s.payload = int(s.header[0])<<16 | int(s.header[1])<<8 | int(s.header[2])
		if !s.allowed(s.header[3], s.payload) {
			_ = s.Close()
			return 0, ErrAbuse
		}
	}
	return n, err
}

// Write implements net.Conn.
func (s *screen) Write(p []byte) (int, error) {
	s.written.Add(int64(len(p))) // before the guest can have seen it
	return s.Conn.Write(p)
}

// fields judges a piece of the payload of the frame whose header came last.
func (s *screen) fields(part []byte) bool {
	var size int
	switch s.header[3] {
	case frameWindow:
		size = 4
	case frameSettings:
		size = 6
	default:
		return true
	}
	for _, c := range part {
		s.field[s.got] = c
		if s.got++; s.got < size {
			continue
		}
		s.got = 0
		v := int64(binary.BigEndian.Uint32(s.field[size-4:]))
		switch {
		case size == 6:
			const initialWindow = 4
			if binary.BigEndian.Uint16(s.field[:]) == initialWindow && v > windowSlack {
				return false
			}
		case binary.BigEndian.Uint32(s.header[5:])&(1<<31-1) != 0:
			s.granted += v & (1<<31 - 1)
			if s.granted > s.written.Load()+windowSlack {
				return false
			}
		}
	}
	return true
}

// allowed judges a frame by its type and length.
func (s *screen) allowed(kind byte, length int) bool {
	switch {
	case kind == frameData && length > 0, kind == frameWindow:
		return true
	case kind == framePriority || kind == framePush || kind > frameLast:
		return false
	}
	if t := s.now().Unix(); t != s.window {
		s.window, s.chatter = t, 0
	}
	s.chatter++
	return s.chatter <= s.limit
}
