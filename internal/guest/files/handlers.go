package files

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// maxRequest bounds a request's JSON: paths, patterns and metadata are a few thousand bytes
// each, of which JSON may make six times as many.
const maxRequest = guestapi.MaxFileJSON

// Handle registers the calls with handle, which is that of a mux.
func (s *Service) Handle(handle func(pattern string, h http.Handler)) {
	for path, h := range map[string]http.Handler{
		guestapi.PathFileStat:    call(s, (*actor).statFile),
		guestapi.PathFileList:    call(s, (*actor).list),
		guestapi.PathFileMkdir:   call(s, (*actor).mkdir),
		guestapi.PathFileRemove:  call(s, (*actor).remove),
		guestapi.PathFileMove:    s.handler(s.serveMove),
		guestapi.PathFileRead:    s.handler(s.serveRead),
		guestapi.PathFileSearch:  s.handler(s.serveSearch),
		guestapi.PathFileArchive: s.handler(s.serveArchive),
		guestapi.PathFileWatch:   s.handler(s.serveWatch),
		guestapi.PathFileWrite:   s.handler(s.serveWrite),
		guestapi.PathFileUnpack:  s.handler(s.serveUnpack),
	} {
		handle("POST "+path, h)
	}
}

// handler answers a call with a function whose error is the answer, unless that has begun.
func (s *Service) handler(serve func(w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := serve(w, r); err != nil {
			s.cfg.Refuse(w, err)
		}
	})
}

// call is a call that has a JSON request, who asks in it, and a JSON answer.
func call[Q interface{ Asker() string }, A any](s *Service, act func(*actor, context.Context, Q) (A, error)) http.Handler {
	return s.handler(func(w http.ResponseWriter, r *http.Request) error {
		var q Q
		if err := decode(r.Body, &q); err != nil {
			return err
		}
		a, err := s.actor(q.Asker())
		if err != nil {
			return err
		}
		reply, err := act(a, r.Context(), q)
		if err != nil {
			return err
		}
		return answer(w, reply)
	})
}

// answer sends the whole answer of a call.
func answer(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller left: nobody to tell
	return nil
}

// decode reads a request.
func decode(r io.Reader, v any) error {
	d := json.NewDecoder(io.LimitReader(r, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return hutch.Errorf(hutch.CodeBadRequest, "the body is not the JSON of this call: %v", err)
	}
	return nil
}

// begin reads the head of a request that content follows, and finds who asks.
func begin[Q interface{ Asker() string }](s *Service, r *http.Request) (q Q, a *actor, err error) {
	if err := guestapi.ReadFileHead(r.Body, &q); err != nil {
		return q, nil, hutch.Errorf(hutch.CodeBadRequest, "the body does not begin with the head of this call: %v", err)
	}
	a, err = s.actor(q.Asker())
	return q, a, err
}

func (s *Service) serveMove(w http.ResponseWriter, r *http.Request) error {
	var m guestapi.MoveFile
	if err := decode(r.Body, &m); err != nil {
		return err
	}
	a, err := s.actor(m.From.User)
	if err != nil {
		return err
	}
	info, err := a.move(r.Context(), m)
	if err != nil {
		return err
	}
	return answer(w, info)
}

func (s *Service) serveWrite(w http.ResponseWriter, r *http.Request) error {
	q, a, err := begin[guestapi.WriteFile](s, r)
	if err != nil {
		return err
	}
	reply, err := a.write(r.Context(), q, r.Body)
	if err != nil {
		return err
	}
	return answer(w, reply)
}

func (s *Service) serveUnpack(w http.ResponseWriter, r *http.Request) error {
	q, a, err := begin[guestapi.WriteArchive](s, r)
	if err != nil {
		return err
	}
	reply, err := a.unpack(r.Context(), q, r.Body)
	if err != nil {
		return err
	}
	return answer(w, reply)
}

// frameSpace is what is left free at the start of a buffer for a frame's header.
const frameSpace = guestapi.FileFrameHeader

// frames writes an answer in frames.
type frames struct {
	w http.ResponseWriter
}

func newFrames(w http.ResponseWriter) frames {
	w.Header().Set("Content-Type", "application/octet-stream")
	return frames{w}
}

// json sends a frame, a head at once.
func (f frames) json(t guestapi.FileFrameType, v any) error {
	b, err := guestapi.FileFrameJSON(t, v)
	if err != nil {
		return err
	}
	if err := f.raw(b); err != nil || t != guestapi.FileHead {
		return err // after an item more may come at once, and the last frame goes with the answer's end
	}
	return f.flush()
}

// raw sends whole frames.
func (f frames) raw(b []byte) error {
	if _, err := f.w.Write(b); err != nil {
		return errLeft
	}
	return nil
}

// data sends content that lies in buf behind frameSpace bytes.
func (f frames) data(buf []byte) error {
	guestapi.PutFileFrame(buf, guestapi.FileData)
	return f.raw(buf)
}

func (f frames) flush() error {
	if http.NewResponseController(f.w).Flush() != nil {
		return errLeft
	}
	return nil
}

// errLeft is a reader who has left: nobody to tell.
var errLeft = errors.New("the reader left")

// end ends an answer: with err as its outcome, or cleanly. Its frame is under way once the
// handler returns.
func (f frames) end(err error, end guestapi.FileEnd) {
	if errors.Is(err, errLeft) {
		return
	}
	if err != nil {
		var he *hutch.Error
		if !errors.As(err, &he) {
			he = hutch.Wrap(hutch.CodeInternal, err, "the guest agent met an internal error")
		}
		end.Error = &guestapi.Error{Error: he.Message, Code: he.Code, Field: he.Field}
	}
	_ = f.json(guestapi.FileFinal, end)
}

// dataWriter makes frames of what is written to it.
type dataWriter struct {
	frames
	buf []byte // of which the first n bytes are in use, header included
	n   int
}

// Write implements io.Writer.
func (w *dataWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		m := copy(w.buf[w.n:], rest)
		w.n += m
		rest = rest[m:]
		if w.n == len(w.buf) {
			if err := w.drain(); err != nil {
				return len(p) - len(rest), err
			}
		}
	}
	return len(p), nil
}

// drain sends what has been gathered.
func (w *dataWriter) drain() error {
	if w.n == frameSpace {
		return nil
	}
	n := w.n
	w.n = frameSpace
	return w.data(w.buf[:n])
}
