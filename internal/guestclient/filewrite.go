package guestclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// maxUploads is how many contents may be under way to one guest at once. The guest reads all
// of them, so they do not fill its connection window for long; the others wait here.
const maxUploads = 16

// WriteFile implements hutch.FileWriter. It is never repeated. If the upload has come less
// far than the part begins, the result says how far it is beside the conflict.
//
// It reads Content for as long as it runs and not after it has returned: a Read that blocks
// keeps it from returning.
func (c *Client) WriteFile(ctx context.Context, w hutch.WriteFile) (hutch.WriteResult, error) {
	for k, v := range w.Metadata {
		if err := checkUTF8("metadata", k, v); err != nil {
			return hutch.WriteResult{}, err
		}
	}
	if err := checkUTF8("owner", w.Owner, w.Group); err != nil {
		return hutch.WriteResult{}, err
	}
	if err := checkUTF8("upload", w.Upload); err != nil {
		return hutch.WriteResult{}, err
	}
	var reply wireWriteReply
	err := c.upload(ctx, request{op: "write file", path: guestapi.PathFileWrite, limit: maxFileInfo, body: guestapi.WriteFile{
		FileRef: guestapi.RefOf(w.FileRef), Mode: w.Mode, Owner: w.Owner, Group: w.Group, Metadata: w.Metadata,
		Excl: w.Excl, Upload: w.Upload, Offset: w.Offset, Last: w.Last,
	}}, w.Content, &reply)
	if err != nil {
		return hutch.WriteResult{}, err
	}
	return reply.result(w)
}

// WriteArchive implements hutch.FileWriter. It is never repeated; of Content holds what
// WriteFile says.
func (c *Client) WriteArchive(ctx context.Context, w hutch.WriteArchive) (hutch.ArchiveResult, error) {
	var reply wireArchive
	err := c.upload(ctx, request{op: "write archive", path: guestapi.PathFileUnpack, limit: maxFileInfo, body: guestapi.WriteArchive{
		FileRef: guestapi.RefOf(w.FileRef), KeepOwner: w.KeepOwner,
	}}, w.Content, &reply)
	if err != nil {
		return hutch.ArchiveResult{}, err
	}
	return reply.result()
}

// upload makes a call whose body is a head and then content.
func (c *Client) upload(ctx context.Context, req request, content io.Reader, reply any) error {
	head, err := guestapi.FileFrameJSON(guestapi.FileHead, req.body)
	if err != nil {
		return hutch.Wrap(hutch.CodeTooLarge, err, "the request is larger than the sandbox takes")
	}
	select {
	case c.uploads <- struct{}{}:
		defer func() { <-c.uploads }()
	case <-ctx.Done():
		return contextError(ctx, req.op)
	}
	req.method = http.MethodPost
	body := &uploadBody{head: bytes.NewReader(head), content: content}
	b, err := c.exchange(ctx, func() ([]byte, error) { return c.roundTrip(ctx, req, body) })
	if cause := body.stop(); cause != nil && ctx.Err() == nil && err != nil {
		return contentError(cause)
	}
	if err != nil {
		return callError(ctx, req.op, err)
	}
	return decode(req.op, b, reply)
}

// contentError is the failure of a caller's reader.
func contentError(cause error) error {
	var he *hutch.Error
	if errors.As(cause, &he) {
		return he
	}
	return hutch.Wrap(hutch.CodeBadRequest, cause, "the content could not be read to its end")
}

// uploadBody is a head and content, of which nothing is read any more after stop.
type uploadBody struct {
	mu      sync.Mutex // held while content is read
	head    *bytes.Reader
	content io.Reader
	err     error // what reading content failed with
	stopped bool
}

// Read implements io.Reader.
func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stopped:
		return 0, io.ErrClosedPipe
	case b.head.Len() > 0:
		return b.head.Read(p)
	case b.content == nil:
		return 0, io.EOF
	}
	n, err := b.content.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// stop keeps content from being read any more, and says what reading it failed with.
func (b *uploadBody) stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	return b.err
}
