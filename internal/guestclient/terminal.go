package guestclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// ResizeExec changes the size of a command's terminal.
func (c *Client) ResizeExec(ctx context.Context, id hutch.ExecID, size hutch.TerminalSize) error {
	return c.call(ctx, request{op: "resize exec", method: http.MethodPost, path: execPath(id, "/resize"), body: size, limit: smallBody, repeat: true}, nil)
}

// AppendStdin gives a command everything r holds after whatever it was given so far, in
// pieces of guestapi.MaxInput bytes that nobody else's come between, and then closes
// its input if end is set. It returns how many bytes the command has been given in all.
// It is never repeated: after an error nobody knows whether the piece under way
// arrived.
func (c *Client) AppendStdin(ctx context.Context, id hutch.ExecID, r io.Reader, end bool) (guestapi.StdinReply, error) {
	var reply guestapi.StdinReply
	chunk := chunks.Get().(*[]byte)
	defer chunks.Put(chunk)
	buf := *chunk
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return reply, hutch.Wrap(hutch.CodeBadRequest, err, "the input could not be read to its end")
		}
		if n == 0 && !end && !first {
			return reply, nil
		}
		q := url.Values{"append": {"1"}, "close": {bit(last && end)}}
		reply, err = c.sendStdin(ctx, request{path: execPath(id, "/stdin") + "?" + q.Encode(), raw: bytes.Clone(buf[:n])})
		if err != nil || last || reply.Closed {
			return reply, err
		}
	}
}
