package httpapi

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"hutch.dev/hutch/internal/x/sse"
)

// liveWriter sends what it is given at once. The recorder below it bounds how long that
// may take. Not safe for concurrent use.
type liveWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func newLiveWriter(w http.ResponseWriter) *liveWriter {
	return &liveWriter{w: w, rc: http.NewResponseController(w)}
}

// Write implements io.Writer.
func (l *liveWriter) Write(p []byte) (int, error) { return len(p), l.write(p) }

func (l *liveWriter) write(p []byte) error {
	if _, err := l.w.Write(p); err != nil {
		return err
	}
	return l.rc.Flush()
}

// eventStream is an answer of server-sent events with keep-alive comments.
type eventStream struct {
	live *liveWriter
	stop chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	out   *sse.Writer
	quiet bool  // nothing was sent since the last beat
	err   error // the first failure to write; nothing is sent after it
}

// newEventStream begins the answer. close must be called before the handler returns.
func newEventStream(w http.ResponseWriter, keepalive time.Duration) *eventStream {
	h := w.Header()
	// Without the charset, a client that goes by the letter of HTTP reads Latin-1.
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // tells a common proxy not to hold events back
	w.WriteHeader(http.StatusOK)
	s := &eventStream{live: newLiveWriter(w), stop: make(chan struct{})}
	s.out = sse.NewWriter(s.live)
	// Headers go out now, with a comment, so that a caller knows at once that it was heard.
	s.err = s.out.Comment("hutch")
	s.wg.Go(func() { s.beat(keepalive) })
	return s
}

// beat sends a comment whenever nothing else was sent for a while: two beats at most.
func (s *eventStream) beat(every time.Duration) {
	t := time.NewTicker(every / 2)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			s.mu.Lock()
			if s.quiet && s.err == nil {
				s.err = s.out.Comment("keepalive")
			}
			s.quiet = true
			s.mu.Unlock()
		}
	}
}

// send sends one event; v becomes its data.
func (s *eventStream) send(name, id string, v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.quiet = false
		s.err = s.out.Event(name, id, asciiJSON(v))
	}
	return clientGone(s.err)
}

func (s *eventStream) close() {
	close(s.stop)
	s.wg.Wait()
}

// asciiJSON is v as JSON in one line of ASCII. Some published clients split a stream
// into lines at every Unicode line separator, or guess its charset; ASCII has neither trap.
func asciiJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only types of package api come here, and those encode
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	const hexDigits = "0123456789abcdef"
	escape := func(u uint16) {
		out = append(out, '\\', 'u', hexDigits[u>>12], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
	}
	for len(b) > 0 {
		if n := plainPrefix(b); n > 0 {
			out, b = append(out, b[:n]...), b[n:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		b = b[n:]
		if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
			escape(uint16(hi))
			escape(uint16(lo))
		} else {
			escape(uint16(r))
		}
	}
	return out
}

// plainPrefix returns how many bytes at the start of b are printable ASCII.
func plainPrefix(b []byte) int {
	for i, c := range b {
		if c >= 0x7f {
			return i
		}
	}
	return len(b)
}
