package guestclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// fileFrame is a frame of an answer, and its payload until it is given back.
type fileFrame struct {
	kind    guestapi.FileFrameType
	payload []byte
}

// fileStream is an answer in frames under way. A goroutine of its own reads it, so that
// nobody waits for the transport: the context ends every wait.
type fileStream struct {
	ctx    context.Context //nolint:containedctx // of the call, which goes on after the method that made it
	cancel context.CancelFunc
	op     string
	frames chan fileFrame
	free   chan []byte // buffers, for as many frames as may be under way
	err    error       // what ended it; read it once frames is closed
}

// framesAhead is how many frames are read before they are asked for: the next one arrives
// while one is being used.
const framesAhead = 2

// openFiles begins a call that is answered in frames. It begins again, once, if the
// connection breaks before the answer has begun: none of these calls changes anything.
func (c *Client) openFiles(ctx context.Context, op, path string, body any) (*fileStream, error) {
	req := request{op: op, method: http.MethodPost, path: path, body: body}
	b, err := req.bytes()
	if err != nil {
		return nil, err
	}
	s := &fileStream{op: op, frames: make(chan fileFrame), free: make(chan []byte, framesAhead)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	for range framesAhead {
		s.free <- nil
	}
	opened := make(chan error, 1)
	go func() {
		resp, err := c.send(s.ctx, req, b)
		if err != nil && isBroken(err) && s.ctx.Err() == nil {
			resp, err = c.send(s.ctx, req, b)
		}
		opened <- err
		if err != nil {
			return
		}
		s.err = s.pump(resp.Body)
		close(s.frames)
		_ = resp.Body.Close()
	}()
	select {
	case err = <-opened:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		s.cancel()
		return nil, callError(ctx, op, err)
	}
	return s, nil
}

// pump reads frames up to the last one.
func (s *fileStream) pump(body io.Reader) error {
	for {
		var buf []byte
		select {
		case buf = <-s.free:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		kind, n, err := guestapi.ReadFileFrameHeader(body)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the last frame comes first
		}
		if err != nil {
			return fmt.Errorf("read frame: %w", err)
		}
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		if _, err := io.ReadFull(body, buf[:n]); err != nil {
			return fmt.Errorf("read frame: %w", err)
		}
		select {
		case s.frames <- fileFrame{kind, buf[:n]}:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		if kind == guestapi.FileFinal {
			return nil
		}
	}
}

// next returns the next frame, which must be of the kind, or the last one. The payload is
// the caller's until it is released.
func (s *fileStream) next(kind guestapi.FileFrameType) (fileFrame, error) {
	if s.ctx.Err() != nil {
		return fileFrame{}, contextError(s.ctx, s.op)
	}
	select {
	case f, ok := <-s.frames:
		switch {
		case !ok && s.err == nil:
			return fileFrame{}, nonsense("%s: read on after the end", s.op)
		case !ok:
			return fileFrame{}, callError(s.ctx, s.op, s.err)
		case f.kind != kind && f.kind != guestapi.FileFinal:
			s.cancel()
			return fileFrame{}, nonsense("%s: a frame of type %d where %d comes", s.op, f.kind, kind)
		}
		return f, nil
	case <-s.ctx.Done():
		return fileFrame{}, contextError(s.ctx, s.op)
	}
}

// release gives a frame's payload back.
func (s *fileStream) release(f fileFrame) { s.free <- f.payload[:0] }

// head reads the first frame into v.
func (s *fileStream) head(v any) error {
	f, err := s.next(guestapi.FileHead)
	if err != nil {
		return err
	}
	defer s.release(f)
	if f.kind == guestapi.FileFinal {
		if _, err = s.end(f); err == nil {
			err = nonsense("%s: an answer without a beginning", s.op)
		}
		return err
	}
	return decode(s.op, f.payload, v)
}

// end is the outcome in the last frame.
func (s *fileStream) end(f fileFrame) (guestapi.FileEnd, error) {
	var end guestapi.FileEnd
	if err := json.Unmarshal(f.payload, &end); err != nil {
		return end, nonsense("%s: a malformed end: %w", s.op, err)
	}
	if end.Error != nil {
		return end, refused(*end.Error)
	}
	return end, nil
}

// items hands the payload of each item to take, and returns the end.
func (s *fileStream) items(take func([]byte) error) (guestapi.FileEnd, error) {
	for {
		f, err := s.next(guestapi.FileItem)
		if err != nil {
			return guestapi.FileEnd{}, err
		}
		if f.kind == guestapi.FileFinal {
			return s.end(f)
		}
		err = take(f.payload)
		s.release(f)
		if err != nil {
			return guestapi.FileEnd{}, err
		}
	}
}

// fileBody is the content of a file. It is for one reader at a time; Close may come any time.
type fileBody struct {
	s    *fileStream
	have fileFrame
	rest []byte // of have, not read yet
	left int64  // most bytes that may still come; negative = any number
	err  error  // what every further Read returns
}

// Read implements io.Reader.
func (b *fileBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil && len(p) > 0 {
		b.err = b.advance()
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// advance goes on to the next frame. io.EOF is the end that the guest has confirmed.
func (b *fileBody) advance() error {
	if b.have.kind != 0 {
		b.s.release(b.have)
		b.have = fileFrame{}
	}
	f, err := b.s.next(guestapi.FileData)
	if err != nil {
		return err
	}
	if f.kind == guestapi.FileFinal {
		if _, err := b.s.end(f); err != nil {
			return err
		}
		return io.EOF
	}
	if n := int64(len(f.payload)); b.left >= 0 {
		if n > b.left {
			return nonsense("%s: more bytes than were asked for", b.s.op)
		}
		b.left -= n
	}
	b.have, b.rest = f, f.payload
	return nil
}

// Close implements io.Closer. It does not wait for the guest.
func (b *fileBody) Close() error {
	b.s.cancel()
	return nil
}

// content reads the head of an answer that has content.
func (s *fileStream) content(left int64) (*hutch.FileContent, error) {
	var w wireFileInfo
	err := s.head(&w)
	var info hutch.FileInfo
	if err == nil {
		info, err = w.info()
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	return &hutch.FileContent{Info: info, Body: &fileBody{s: s, left: left}}, nil
}
