package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
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

	scratch []byte // of sendChunk
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

// sendLine sends one event whose data is text in one line, as it is.
func (s *eventStream) sendLine(name, line string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.quiet = false
		s.err = s.out.Event(name, "", []byte(line))
	}
	return clientGone(s.err)
}

func (s *eventStream) close() {
	close(s.stop)
	s.wg.Wait()
}

// sendChunk sends a piece of output; it is send for what there is most of, in one pass
// over the bytes.
func (s *eventStream) sendChunk(name, id string, offset int64, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.quiet = false
		s.scratch = appendChunk(s.scratch[:0], offset, data)
		s.err = s.out.Event(name, id, s.scratch)
	}
	return clientGone(s.err)
}

// appendChunk appends an api.OutputChunk of data as JSON in one line of ASCII.
func appendChunk(dst []byte, offset int64, data []byte) []byte {
	dst = append(dst, `{"chunk":"`...)
	dst, exact := appendText(dst, data)
	dst = append(dst, `","offset":`...)
	dst = strconv.AppendInt(dst, offset, 10)
	dst = append(dst, `,"bytes":`...)
	dst = strconv.AppendInt(dst, int64(len(data)), 10)
	if !exact {
		dst = append(dst, `,"base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, data)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

const hexDigits = "0123456789abcdef"

// appendText appends b as the inside of a JSON string, in ASCII, with a replacement
// character for each run of what is no UTF-8. exact says that there was none.
func appendText(dst, b []byte) (_ []byte, exact bool) {
	exact = true
	for len(b) > 0 {
		if n := plainPrefix(b); n > 0 {
			dst, b = append(dst, b[:n]...), b[n:]
			continue
		}
		if c := b[0]; c < utf8.RuneSelf {
			dst, b = appendControl(dst, c), b[1:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		b = b[n:]
		if r == utf8.RuneError && n == 1 {
			exact = false
			for len(b) > 0 && b[0] >= utf8.RuneSelf { // the rest of the run
				if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n != 1 {
					break
				}
				b = b[1:]
			}
		}
		dst = appendRune(dst, r)
	}
	return dst, exact
}

// appendControl appends an ASCII character that stands for itself in no JSON string.
func appendControl(dst []byte, c byte) []byte {
	switch c {
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	case '"', '\\':
		return append(dst, '\\', c)
	}
	return appendUnit(dst, uint16(c))
}

// appendRune appends a character as JSON escapes.
func appendRune(dst []byte, r rune) []byte {
	if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
		return appendUnit(appendUnit(dst, uint16(hi)), uint16(lo))
	}
	return appendUnit(dst, uint16(r))
}

func appendUnit(dst []byte, u uint16) []byte {
	return append(dst, '\\', 'u', hexDigits[u>>12], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}

// plain are the bytes that stand for themselves in a JSON string of ASCII.
var plain = func() (t [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// plainPrefix returns how many bytes at the start of b are plain.
func plainPrefix(b []byte) int {
	for i, c := range b {
		if !plain[c] {
			return i
		}
	}
	return len(b)
}

// asciiJSON is v as JSON in one line of ASCII. Some published clients split a stream
// into lines at every Unicode line separator, or guess its charset; ASCII has neither trap.
func asciiJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only types of package api come here, and those encode
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for len(b) > 0 {
		n := bytes.IndexFunc(b, func(r rune) bool { return r >= 0x7f })
		if n < 0 {
			return append(out, b...)
		}
		out = append(out, b[:n]...)
		r, size := utf8.DecodeRune(b[n:])
		out, b = appendRune(out, r), b[n+size:]
	}
	return out
}
