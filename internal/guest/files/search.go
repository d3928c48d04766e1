package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"regexp"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

const (
	// maxPattern bounds an expression: the memory of its program grows with it.
	maxPattern = 4096
	// maxLine is how much of a line is looked at in one piece. A longer one is looked at
	// piece by piece, each as a line of its own with the same number.
	maxLine = 1 << 20
	// searchBuffer is how much of a file is read at once, unless it has longer lines.
	searchBuffer = 64 << 10
	// sniff is how much of a file is looked at to tell text from what is none.
	sniff = 8 << 10
)

// errEnough ends a search that has found what it may.
var errEnough = errors.New("enough was found")

// search is one search.
type search struct {
	*actor
	ctx    context.Context
	take   func(hutch.FileMatch) error // delivers a match
	q      guestapi.SearchFiles
	abs    string
	line   *regexp.Regexp // nil = names are looked for
	prefix []byte         // what every match begins with
	found  int
	result hutch.SearchResult
	buf    []byte
}

func (s *Service) serveSearch(w http.ResponseWriter, r *http.Request) error {
	var q guestapi.SearchFiles
	if err := decode(r.Body, &q); err != nil {
		return err
	}
	a, err := s.actor(q.User)
	if err != nil {
		return err
	}
	sc, err := a.newSearch(r.Context(), q)
	if err != nil {
		return err
	}
	out := newFrames(w)
	sc.take = func(m hutch.FileMatch) error { return out.json(guestapi.FileItem, m) }
	begun := false
	err = a.doTree(r.Context(), func() error {
		dir, st, err := a.openTree(sc.abs)
		if err != nil {
			return err
		}
		defer dir.Close()
		begun = true
		if err := out.flush(); err != nil {
			return err
		}
		return sc.run(dir, st.Dev)
	})
	if err = a.explain(err, sc.abs); !begun {
		return err
	}
	out.end(err, guestapi.FileEnd{Search: &sc.result})
	return nil
}

// newSearch checks what is asked for.
func (a *actor) newSearch(ctx context.Context, q guestapi.SearchFiles) (*search, error) {
	abs, err := a.absolute(q.FileRef.Name())
	if err != nil {
		return nil, err
	}
	if q.Limit == 0 {
		q.Limit = hutch.DefaultListLimit
	}
	sc := &search{actor: a, ctx: ctx, q: q, abs: abs}
	switch {
	case q.Limit < 0:
		return nil, hutch.FieldErrorf("limit", "must not be negative")
	case len(q.Name) > maxPattern:
		return nil, hutch.FieldErrorf("name", "is longer than %d bytes", maxPattern)
	case q.Text == "" && q.IgnoreCase:
		return nil, hutch.FieldErrorf("ignore_case", "is about text, and no text is looked for")
	}
	if _, err := path.Match(q.Name, ""); err != nil {
		return nil, hutch.FieldErrorf("name", "%.80q is not a pattern: %v", q.Name, err)
	}
	sc.line, err = compile(q.Text, q.IgnoreCase)
	if sc.line != nil {
		prefix, _ := sc.line.LiteralPrefix()
		sc.prefix = []byte(prefix)
	}
	return sc, err
}

// compile makes an expression out of the text of a request; nil if there is none.
func compile(text string, ignoreCase bool) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxPattern {
		return nil, hutch.FieldErrorf("text", "is longer than %d bytes", maxPattern)
	}
	if ignoreCase {
		text = "(?i)" + text
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, hutch.FieldErrorf("text", "is not a regular expression (RE2): %v", err)
	}
	return re, nil
}

// run searches below an open directory.
func (s *search) run(dir *os.File, dev uint64) error {
	if s.line != nil {
		s.buf = make([]byte, searchBuffer)
	}
	w := walker{actor: s.actor, ctx: s.ctx, visit: s.visit, skip: func(string, error) error {
		s.result.Skipped++
		return nil
	}}
	err := w.below(dir, "", dev, 0)
	if errors.Is(err, errEnough) {
		s.result.Truncated = true
		return nil
	}
	return err
}

// visit looks at one file.
func (s *search) visit(p place, rel string, st unix.Stat_t) (bool, error) {
	if hidden(p.name) && !s.q.Hidden {
		return false, nil
	}
	if s.q.Name != "" {
		if ok, _ := path.Match(s.q.Name, p.name); !ok { // the pattern has been checked
			return true, nil
		}
	}
	m := hutch.FileMatch{Type: typeOf(st.Mode)}
	m.Path, m.RawPath = lossless(join(s.abs, rel))
	if s.line == nil {
		return true, s.deliver(m)
	}
	if m.Type != hutch.TypeFile {
		return true, nil
	}
	f, err := s.open(p.fd(), p.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		s.result.Skipped++
		return false, nil // counted
	}
	defer f.Close()
	err = s.lines(f, m)
	if err != nil && !errors.Is(err, errEnough) && !errors.Is(err, errLeft) && s.ctx.Err() == nil {
		s.result.Skipped++
		return false, nil // counted
	}
	return false, err
}

// deliver sends a match, unless there have been enough.
func (s *search) deliver(m hutch.FileMatch) error {
	if s.found >= s.q.Limit {
		return errEnough
	}
	s.found++
	return s.take(m)
}

// lines looks at a file's lines. A file with a zero byte near its beginning is none of text.
func (s *search) lines(f io.Reader, m hutch.FileMatch) error {
	var line int      // lines before the one at have[0]
	have := s.buf[:0] // read and not looked at yet
	for first := true; ; first = false {
		n, err := f.Read(s.buf[len(have):])
		have = s.buf[:len(have)+n]
		if first && bytes.IndexByte(have[:min(n, sniff)], 0) >= 0 {
			return nil
		}
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return err
		}
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		end := bytes.LastIndexByte(have, '\n') + 1
		switch {
		case last:
			end = len(have)
		case end == 0 && len(have) >= maxLine:
			end = wholeRunes(have)
		}
		if line, err = s.whole(have[:end], line, m); err != nil || last {
			return err
		}
		have = s.buf[:copy(s.buf, have[end:])]
		if len(have) == len(s.buf) {
			s.buf = append(s.buf, make([]byte, len(s.buf))...)
			have = s.buf[:len(have)]
		}
	}
}

// whole looks at whole lines, and returns the number of the last one's end.
func (s *search) whole(text []byte, line int, m hutch.FileMatch) (int, error) {
	for len(text) > 0 {
		if len(s.prefix) > 0 { // to the next line that can match, which is found faster
			i := bytes.Index(text, s.prefix)
			if i < 0 {
				return line + bytes.Count(text, newline), nil
			}
			begin := bytes.LastIndexByte(text[:i], '\n') + 1
			line += bytes.Count(text[:begin], newline)
			text = text[begin:]
		}
		this, rest, ended := bytes.Cut(text, newline)
		if at := s.line.FindIndex(bytes.TrimSuffix(this, []byte("\r"))); at != nil {
			m.Line, m.Column, m.Text = line+1, at[0]+1, cutLine(this)
			if err := s.deliver(m); err != nil {
				return line, err
			}
		}
		if ended {
			line++
		}
		text = rest
	}
	return line, nil
}

var newline = []byte("\n")

// cutLine is a line as it is delivered.
func cutLine(line []byte) string {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) > hutch.MaxMatchBytes {
		line = line[:wholeRunes(line[:hutch.MaxMatchBytes])]
	}
	text, _ := lossless(string(line))
	return text
}

// wholeRunes is the length of b without a character at its end that lacks bytes.
func wholeRunes(b []byte) int {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}
