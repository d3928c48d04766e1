package guestclient

import (
	"context"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// OpenFile implements hutch.FileReader. Up to half a mebibyte of the file is kept for the
// reader. Until Close, the call goes on.
func (c *Client) OpenFile(ctx context.Context, r hutch.ReadFile) (*hutch.FileContent, error) {
	s, err := c.openFiles(ctx, "read file", guestapi.PathFileRead, guestapi.ReadFile{
		FileRef: guestapi.RefOf(r.FileRef), Offset: r.Offset, Length: r.Length,
	})
	if err != nil {
		return nil, err
	}
	left := r.Length
	if left == 0 {
		left = -1
	}
	return s.content(left)
}

// ReadArchive implements hutch.FileReader.
func (c *Client) ReadArchive(ctx context.Context, r hutch.ReadArchive) (*hutch.FileContent, error) {
	if err := checkUTF8("exclude", r.Exclude...); err != nil {
		return nil, err
	}
	s, err := c.openFiles(ctx, "read archive", guestapi.PathFileArchive, guestapi.ReadArchive{
		FileRef: guestapi.RefOf(r.FileRef), Gzip: r.Gzip, Exclude: r.Exclude,
	})
	if err != nil {
		return nil, err
	}
	return s.content(-1)
}

// SearchFiles implements hutch.FileReader.
func (c *Client) SearchFiles(ctx context.Context, q hutch.SearchFiles, sink func(hutch.FileMatch) error) (hutch.SearchResult, error) {
	var none hutch.SearchResult
	if err := checkUTF8("name", q.Name); err != nil {
		return none, err
	}
	if err := checkUTF8("text", q.Text); err != nil {
		return none, err
	}
	s, err := c.openFiles(ctx, "search files", guestapi.PathFileSearch, guestapi.SearchFiles{
		FileRef: guestapi.RefOf(q.FileRef), Name: q.Name, Text: q.Text, Hidden: q.Hidden, Limit: q.Limit, IgnoreCase: q.IgnoreCase,
	})
	if err != nil {
		return none, err
	}
	defer s.cancel()
	limit := q.Limit
	if limit <= 0 {
		limit = hutch.DefaultListLimit
	}
	end, err := s.items(func(b []byte) error {
		m, err := fileMatch(b)
		if err != nil {
			return err
		}
		if limit--; limit < 0 {
			return nonsense("search files: more matches than were asked for")
		}
		return sink(m)
	})
	switch {
	case err != nil:
		return none, err
	case end.Search == nil || end.Search.Skipped < 0:
		return none, nonsense("search files: an end without a result")
	}
	return *end.Search, nil
}

// WatchFiles implements hutch.FileWatcher.
func (c *Client) WatchFiles(ctx context.Context, w hutch.WatchFiles, ready func() error, sink func(hutch.FileEvent) error) error {
	s, err := c.openFiles(ctx, "watch files", guestapi.PathFileWatch, guestapi.WatchFiles{
		FileRef: guestapi.RefOf(w.FileRef), Recursive: w.Recursive, Entry: w.Entry,
	})
	if err != nil {
		return err
	}
	defer s.cancel()
	if err := s.head(&struct{}{}); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	_, err = s.items(func(b []byte) error {
		e, err := fileEvent(b)
		if err != nil {
			return err
		}
		return sink(e)
	})
	if err == nil {
		err = nonsense("watch files: an end without a reason")
	}
	return err
}
