package guestclient

import (
	"context"
	"net/http"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

var (
	_ hutch.FileReader  = (*Client)(nil)
	_ hutch.FileWriter  = (*Client)(nil)
	_ hutch.FileWatcher = (*Client)(nil)
)

// StatFile implements hutch.FileReader.
func (c *Client) StatFile(ctx context.Context, f hutch.FileRef) (hutch.FileInfo, error) {
	return c.fileInfo(ctx, request{op: "stat file", path: guestapi.PathFileStat, body: guestapi.RefOf(f), repeat: true})
}

// ListFiles implements hutch.FileReader.
func (c *Client) ListFiles(ctx context.Context, q hutch.ListFiles) (hutch.FileList, error) {
	limit := q.Limit
	if limit <= 0 {
		limit = hutch.DefaultListLimit
	}
	if err := checkUTF8("cursor", q.Cursor); err != nil {
		return hutch.FileList{}, err
	}
	var w wireFileList
	err := c.call(ctx, request{
		op: "list files", method: http.MethodPost, path: guestapi.PathFileList, limit: maxFileList, repeat: true,
		body: guestapi.ListFiles{FileRef: guestapi.RefOf(q.FileRef), Depth: q.Depth, Cursor: q.Cursor, Limit: q.Limit},
	}, &w)
	if err != nil {
		return hutch.FileList{}, err
	}
	return w.list(limit)
}

// MakeDir implements hutch.FileWriter. It is never repeated: a second try would find what
// the first one made.
func (c *Client) MakeDir(ctx context.Context, m hutch.MakeDir) (hutch.FileInfo, error) {
	if err := checkUTF8("owner", m.Owner, m.Group); err != nil {
		return hutch.FileInfo{}, err
	}
	return c.fileInfo(ctx, request{op: "make directory", path: guestapi.PathFileMkdir, repeat: m.Exists, body: guestapi.MakeDir{
		FileRef: guestapi.RefOf(m.FileRef), Mode: m.Mode, Owner: m.Owner, Group: m.Group, Exists: m.Exists,
	}})
}

// MoveFile implements hutch.FileWriter. It is never repeated.
func (c *Client) MoveFile(ctx context.Context, m hutch.MoveFile) (hutch.FileInfo, error) {
	return c.fileInfo(ctx, request{op: "move file", path: guestapi.PathFileMove, body: guestapi.MoveFile{
		From: guestapi.RefOf(hutch.FileRef{Path: m.From, User: m.User}),
		To:   guestapi.RefOf(hutch.FileRef{Path: m.To}),
		Excl: m.Excl,
	}})
}

// RemoveFile implements hutch.FileWriter. It is repeated only if Missing is set.
func (c *Client) RemoveFile(ctx context.Context, r hutch.RemoveFile) error {
	return c.call(ctx, request{
		op: "remove file", method: http.MethodPost, path: guestapi.PathFileRemove, limit: smallBody, repeat: r.Missing,
		body: guestapi.RemoveFile{FileRef: guestapi.RefOf(r.FileRef), Recursive: r.Recursive, Missing: r.Missing},
	}, nil)
}

// fileInfo makes a call that is answered with a FileInfo.
func (c *Client) fileInfo(ctx context.Context, req request) (hutch.FileInfo, error) {
	req.method, req.limit = http.MethodPost, maxFileInfo
	var w wireFileInfo
	if err := c.call(ctx, req, &w); err != nil {
		return hutch.FileInfo{}, err
	}
	return w.info()
}

// checkUTF8 refuses texts that JSON would change on their way. Paths have a way of their own.
func checkUTF8(field string, texts ...string) error {
	for _, s := range texts {
		if !utf8.ValidString(s) {
			return hutch.FieldErrorf(field, "is not UTF-8")
		}
	}
	return nil
}
