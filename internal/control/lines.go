package control

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// cleanLine is text as valid UTF-8 of at most n bytes.
func cleanLine(text string, n int) string {
	if len(text) > n {
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text = text[:n]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// lineSplitter makes lines of a stream that comes in pieces. A line longer than most is
// handed out in parts of that length.
type lineSplitter struct {
	most int
	rest []byte
	emit func(line string) error
}

// write takes the next piece.
func (s *lineSplitter) write(p []byte) error {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			return s.hold(p)
		}
		if err := s.hold(p[:i]); err != nil {
			return err
		}
		if err := s.flush(true); err != nil {
			return err
		}
		p = p[i+1:]
	}
	return nil
}

// hold keeps what is not a whole line yet, and hands out what is too long to be kept.
func (s *lineSplitter) hold(p []byte) error {
	for len(s.rest)+len(p) > s.most {
		n := s.most - len(s.rest)
		part := append(s.rest, p[:n]...)
		cut := len(part)
		for cut > len(part)-utf8.UTFMax && cut > 1 && !utf8.RuneStart(part[cut-1]) {
			cut--
		}
		if cut > 1 && !utf8.FullRune(part[cut-1:]) {
			cut-- // not through the middle of a character
		} else {
			cut = len(part)
		}
		if err := s.emit(strings.ToValidUTF8(string(part[:cut]), "\uFFFD")); err != nil {
			return err
		}
		s.rest = append(s.rest[:0:0], part[cut:]...)
		p = p[n:]
	}
	s.rest = append(s.rest, p...)
	return nil
}

// flush hands out what is held: the rest of the line that has ended, or, at the end of the
// stream, what no line end followed.
func (s *lineSplitter) flush(ended bool) error {
	if len(s.rest) == 0 && !ended {
		return nil
	}
	line := strings.ToValidUTF8(string(bytes.TrimSuffix(s.rest, []byte("\r"))), "\uFFFD")
	s.rest = s.rest[:0]
	return s.emit(line)
}
