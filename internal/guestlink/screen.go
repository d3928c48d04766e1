package guestlink

import (
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"sync"
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

// windowSlack is how much more of a stream's body a guest may let the node send than the node
// has sent, in bytes: a lawful one opens windows of [requestWindow], and then gives back what
// was taken, never more. Go's HTTP/2 client locks itself up for good, with every call on
// it, when the window of a stream passes 2³¹-1.
const windowSlack = 16 << 20

// maxBalances is how many streams are accounted for at once: some times what runs at once.
const maxBalances = 4096

// screen is a connection whose reader sees only frames that a guest agent has reason
// to send. The HTTP/2 client itself would survive the others too, but it writes a
// line to the process's log for each frame of an unknown type, and answers settings
// and pings for as long as they come.
type screen struct {
	net.Conn
	sent    sent
	field   [6]byte // of a window update or of settings, as far as it has come
	got     int     // bytes of field
	header  [frameHeaderSize]byte
	have    int   // bytes of header seen
	payload int   // bytes of the payload still to come
	window  int64 // the second that chatter counts in
	chatter int
	limit   int // of chatter a second
	now     func() time.Time
}

func newScreen(c net.Conn) *screen {
	return &screen{Conn: c, limit: chatterLimit, now: time.Now, sent: sent{preface: len(http2Preface), balance: map[uint32]int64{}}}
}

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
	s.sent.note(p) // before the guest can have seen it
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
		case !s.sent.grant(binary.BigEndian.Uint32(s.header[5:])&(1<<31-1), v&(1<<31-1)):
			return false
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

// http2Preface is what a client sends before its first frame (RFC 9113, 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// sent knows what the node has sent of each stream's body, and what the guest has given back.
// Writes and reads come from different goroutines.
type sent struct {
	preface int // bytes of it still to come
	header  [frameHeaderSize]byte
	have    int // bytes of header seen
	payload int // bytes of the payload still to come

	mu sync.Mutex
	// balance is what was given back less what was sent, by stream. Of a lawful guest it is
	// never above zero, or where what was sent has been forgotten, than one window.
	balance map[uint32]int64
}

// note sees what is about to be written, which are whole frames, in any pieces.
func (w *sent) note(p []byte) {
	for len(p) > 0 {
		if skip := min(w.preface+w.payload, len(p)); skip > 0 {
			w.payload -= max(0, skip-w.preface)
			w.preface = max(0, w.preface-skip)
			p = p[skip:]
			continue
		}
		n := copy(w.header[w.have:], p)
		w.have += n
		p = p[n:]
		if w.have < frameHeaderSize {
			return
		}
		w.have = 0
		w.payload = int(w.header[0])<<16 | int(w.header[1])<<8 | int(w.header[2])
		if w.header[3] == frameData {
			w.mu.Lock()
			w.balance[binary.BigEndian.Uint32(w.header[5:])&(1<<31-1)] -= int64(w.payload)
			w.forgetLocked()
			w.mu.Unlock()
		}
	}
}

// grant books that a guest lets n more bytes come on a stream (0 = on all of them, which the
// client itself survives), and reports whether a lawful one might.
func (w *sent) grant(stream uint32, n int64) bool {
	if stream == 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.balance[stream] += n
	if w.balance[stream] > windowSlack {
		return false
	}
	w.forgetLocked()
	return len(w.balance) <= maxBalances
}

// forgetLocked bounds what is remembered. A stream that has got back what it sent, or less, can
// be forgotten at the cost of what is on its way there.
func (w *sent) forgetLocked() {
	if len(w.balance) > maxBalances {
		maps.DeleteFunc(w.balance, func(_ uint32, b int64) bool { return b <= 0 })
	}
}
