package guestlink

import (
	"errors"
	"net"
	"time"
)

// ErrAbuse is a guest whose HTTP/2 is lawful, perhaps, but of no use other than to
// make the node work.
var ErrAbuse = errors.New("the guest sends HTTP/2 frames that no guest agent sends")

// The HTTP/2 frame types that matter here, by their number on the wire.
const (
	frameData     = 0x0
	framePriority = 0x2
	framePush     = 0x5
	frameWindow   = 0x8 // WINDOW_UPDATE
	frameLast     = 0x9 // the highest number that is in use

	frameHeaderSize = 9 // length (3), type (1), flags (1), stream (4)
)

// chatterLimit is how many frames that carry nothing of a body a guest may send in a
// second. A lawful one sends two or three for a call. Window updates are not counted:
// they follow what the node sends, call for no answer, and come by the thousand.
const chatterLimit = 20_000

// screen is a connection whose reader sees only frames that a guest agent has reason
// to send. The HTTP/2 client itself would survive the others too, but it writes a
// line to the process's log for each frame of an unknown type, and answers settings
// and pings for as long as they come.
type screen struct {
	net.Conn
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
			skip := min(s.payload, len(b))
			s.payload -= skip
			b = b[skip:]
			continue
		}
		m := copy(s.header[s.have:], b)
		s.have += m
		b = b[m:]
		if s.have < frameHeaderSize {
			break
		}
		s.have = 0
		s.payload = int(s.header[0])<<16 | int(s.header[1])<<8 | int(s.header[2])
		if !s.allowed(s.header[3], s.payload) {
			_ = s.Close()
			return 0, ErrAbuse
		}
	}
	return n, err
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
