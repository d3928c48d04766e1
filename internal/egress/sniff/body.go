package sniff

import (
	"bytes"
	"errors"
	"strings"
)

const (
	maxChunkLine = 18 // sixteen digits, CR LF
	maxTrailer   = 8 << 10
)

var (
	errChunk   = errors.New("the chunked body of the request is malformed")
	errTrailer = errors.New("the trailer of the request is malformed")
)

// Body follows the body of a request to its end. The zero Body is none.
type Body struct {
	left    int64 // bytes that are of the body, or of the current chunk, whatever they are
	chunked bool

	state chunkState
	line  []byte // what there is of a line
	size  int    // of the trailer so far
}

type chunkState int

const (
	chunkSize    chunkState = iota // at the line that begins a chunk
	chunkData                      // within a chunk
	chunkEnd                       // at the line end behind one
	chunkTrailer                   // behind the last
	chunkDone
)

// Empty reports whether the body is over.
func (b *Body) Empty() bool {
	if b.chunked {
		return b.state == chunkDone
	}
	return b.left == 0
}

// Take says how many of the bytes in p are the body's, or the beginning of what is. If it is
// not all of them, the body is over. After an error none may be believed any more.
func (b *Body) Take(p []byte) (int, error) {
	if !b.chunked {
		n := min(b.left, int64(len(p)))
		b.left -= n
		return int(n), nil
	}
	at := 0
	for at < len(p) && b.state != chunkDone {
		if b.state == chunkData {
			n := min(b.left, int64(len(p)-at))
			b.left -= n
			at += int(n)
			if b.left == 0 {
				b.state = chunkEnd
			}
			continue
		}
		n, err := b.takeLine(p[at:])
		if err != nil {
			return at, err
		}
		at += n
	}
	return at, nil
}

// takeLine takes bytes up to a line's end, and looks at the line if that is there.
func (b *Body) takeLine(p []byte) (int, error) {
	limit, wrong := maxChunkLine, errChunk
	if b.state == chunkTrailer {
		limit, wrong = maxTrailer-b.size, errTrailer
	}
	n := bytes.IndexByte(p, '\n') + 1
	whole := n > 0
	if !whole {
		n = len(p)
	}
	if len(b.line)+n > limit {
		return 0, wrong
	}
	b.line = append(b.line, p[:n]...)
	if !whole {
		return n, nil
	}
	line, ok := strings.CutSuffix(string(b.line), "\r\n")
	b.size += len(b.line)
	b.line = nil
	if !ok || strings.ContainsAny(line, "\r\x00") {
		return 0, wrong
	}
	return n, b.chunkLine(line)
}

func (b *Body) chunkLine(line string) error {
	switch b.state {
	case chunkSize:
		n, ok := parseHex(line) // without extensions, which nobody uses and parsers differ on
		if !ok {
			return errChunk
		}
		b.left, b.state, b.size = n, chunkData, 0
		if n == 0 {
			b.state = chunkTrailer
		}
	case chunkEnd:
		if line != "" {
			return errChunk
		}
		b.state = chunkSize
	case chunkTrailer:
		if line == "" {
			b.state = chunkDone
			return nil
		}
		p := headParser{length: -1}
		if err := p.field(line); err != nil || p.hosts > 0 || p.length >= 0 || p.chunked || len(p.connection)+len(p.upgrade) > 0 {
			return errTrailer
		}
	case chunkData, chunkDone:
	}
	return nil
}

func parseHex(s string) (int64, bool) {
	if s == "" || len(s) > 15 {
		return 0, false
	}
	n := int64(0)
	for _, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}
