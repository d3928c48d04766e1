// Package sse writes and reads server-sent events.
//
// It owns the framing: one frame a write, LF only, every frame closed by an empty
// line, because clients in the field split on exactly that. It owns neither what the
// events mean nor flushing, deadlines and locking: neither type is safe for
// concurrent use.
//
// Start with [Writer.Event] and [Reader.Next].
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Event is one event.
type Event struct {
	Name string // "message" when the sender gave none
	ID   string // the last id the sender gave, in this event or before it
	Data string
}

// Writer writes events to an HTTP answer or the like.
type Writer struct {
	w   io.Writer
	buf bytes.Buffer
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Event writes one event in one call of Write. An empty name or id is left out.
// Name and id must not hold line ends or NUL.
func (w *Writer) Event(name, id string, data []byte) error {
	if strings.ContainsAny(name+id, "\r\n\x00") {
		return fmt.Errorf("event name %q, id %q: line ends are not possible here", name, id)
	}
	w.buf.Reset()
	if id != "" {
		w.buf.WriteString("id: " + id + "\n")
	}
	if name != "" {
		w.buf.WriteString("event: " + name + "\n")
	}
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		w.buf.WriteString("data: ")
		w.buf.Write(line)
		w.buf.WriteByte('\n')
	}
	w.buf.WriteByte('\n')
	_, err := w.w.Write(w.buf.Bytes())
	return err
}

// Comment writes a frame that readers ignore, to keep the connection alive.
func (w *Writer) Comment(text string) error {
	w.buf.Reset()
	for line := range strings.Lines(text) {
		w.buf.WriteString(": " + strings.TrimRight(line, "\r\n") + "\n")
	}
	if w.buf.Len() == 0 {
		w.buf.WriteString(":\n")
	}
	w.buf.WriteByte('\n')
	_, err := w.w.Write(w.buf.Bytes())
	return err
}

// ErrTooLong is a frame over the reader's limit.
var ErrTooLong = errors.New("server-sent event over the size limit")

// Reader reads events as the WHATWG standard says, with a bound on their size.
type Reader struct {
	r      *bufio.Reader
	max    int
	skipLF bool // the last line ended with CR: an LF right after it belongs to it
	first  bool // nothing read yet: a byte order mark may come
	id     string
}

// NewReader returns a Reader on r that refuses frames of more than limit bytes.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 32<<10), max: limit, first: true}
}

// Next returns the next event that has data. At a clean end it returns io.EOF, and
// io.ErrUnexpectedEOF if the stream was cut inside a frame.
func (r *Reader) Next() (Event, error) {
	var (
		name    string
		data    []byte
		hasData bool
		size    int
	)
	for {
		line, err := r.line(r.max - size)
		if errors.Is(err, io.EOF) && (size > 0 || len(line) > 0) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return Event{}, err
		}
		size += len(line) + 1
		if len(line) == 0 {
			if !hasData { // a comment, or a lone id: starts over as the standard says
				name, size = "", 0
				continue
			}
			if name == "" {
				name = "message"
			}
			return Event{Name: name, ID: r.id, Data: string(data)}, nil
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "event":
			name = string(value)
		case "id":
			if !bytes.ContainsRune(value, 0) {
				r.id = string(value)
			}
		case "data":
			if hasData {
				data = append(data, '\n')
			}
			data, hasData = append(data, value...), true
		}
	}
}

// line returns the next line without its end, which is LF, CR or CRLF. It waits for no
// byte beyond that, so an LF after a CR is skipped when the next line is asked for.
func (r *Reader) line(limit int) ([]byte, error) {
	var line []byte
	for {
		if _, err := r.r.Peek(1); err != nil {
			return line, err
		}
		here, _ := r.r.Peek(r.r.Buffered()) // cannot fail: it is there
		if r.skipLF {
			r.skipLF = false
			if here[0] == '\n' {
				_, _ = r.r.Discard(1)
				continue
			}
		}
		end := bytes.IndexByte(here, '\n')
		if cr := bytes.IndexByte(here[:max(end, 0)], '\r'); cr >= 0 {
			end = cr
		} else if end < 0 {
			end = bytes.IndexByte(here, '\r')
		}
		part := here
		if end >= 0 {
			part = here[:end]
		}
		if len(line)+len(part) > limit {
			return nil, ErrTooLong
		}
		line = append(line, part...)
		if end < 0 {
			_, _ = r.r.Discard(len(here))
			continue
		}
		r.skipLF = here[end] == '\r'
		_, _ = r.r.Discard(end + 1)
		if r.first {
			r.first = false
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		return line, nil
	}
}
