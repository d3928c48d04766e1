package node

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"hutch.dev/hutch"
)

func (g *guest) StatFile(ctx context.Context, f hutch.FileRef) (info hutch.FileInfo, err error) {
	err = g.short(ctx, func(ctx context.Context, c hutch.Guest) error {
		info, err = c.StatFile(ctx, f)
		return err
	})
	return info, err
}

func (g *guest) ListFiles(ctx context.Context, q hutch.ListFiles) (l hutch.FileList, err error) {
	err = g.call(ctx, func(ctx context.Context, c hutch.Guest) error {
		l, err = c.ListFiles(ctx, q)
		return err
	})
	return l, err
}

func (g *guest) OpenFile(ctx context.Context, r hutch.ReadFile) (*hutch.FileContent, error) {
	return g.open(ctx, func(ctx context.Context, c hutch.Guest) (*hutch.FileContent, error) { return c.OpenFile(ctx, r) })
}

func (g *guest) ReadArchive(ctx context.Context, r hutch.ReadArchive) (*hutch.FileContent, error) {
	return g.open(ctx, func(ctx context.Context, c hutch.Guest) (*hutch.FileContent, error) { return c.ReadArchive(ctx, r) })
}

// open opens content whose call goes on until the content is closed.
func (g *guest) open(ctx context.Context, f func(context.Context, hutch.Guest) (*hutch.FileContent, error)) (*hutch.FileContent, error) {
	ctx, done, err := g.begin(ctx, eagerAfter)
	if err != nil {
		return nil, err
	}
	var content *hutch.FileContent
	err = g.b.ask(ctx, func(ctx context.Context) error {
		content, err = f(ctx, g.b.calls)
		return err
	})
	if err != nil {
		err = g.why(ctx, err)
		done()
		return nil, err
	}
	content.Body = &body{ReadCloser: content.Body, g: g, ctx: ctx, done: sync.OnceFunc(done)}
	return content, nil
}

// body is the content of a file, of which reading fails for the reason it fails for.
type body struct {
	io.ReadCloser
	g    *guest
	ctx  context.Context //nolint:containedctx // of the call that the body is the rest of
	done func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.g.b.hear()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.g.why(b.ctx, err)
	}
	return n, err
}

func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

func (g *guest) SearchFiles(ctx context.Context, q hutch.SearchFiles, sink func(hutch.FileMatch) error) (r hutch.SearchResult, err error) {
	var own error // of the caller's own: it goes back as it is
	err = g.call(ctx, func(ctx context.Context, c hutch.Guest) error {
		r, err = c.SearchFiles(ctx, q, func(m hutch.FileMatch) error {
			own = sink(m)
			return own
		})
		return err
	})
	return r, cmp.Or(own, err)
}

func (g *guest) WatchFiles(ctx context.Context, w hutch.WatchFiles, ready func() error, sink func(hutch.FileEvent) error) error {
	var own error
	err := g.callQuiet(ctx, patientAfter, func(ctx context.Context, c hutch.Guest) error {
		return c.WatchFiles(ctx, w, func() error {
			own = ready()
			return own
		}, func(ev hutch.FileEvent) error {
			own = sink(ev)
			return own
		})
	})
	return cmp.Or(own, err)
}

func (g *guest) WriteFile(ctx context.Context, w hutch.WriteFile) (r hutch.WriteResult, err error) {
	err = g.once(ctx, func(ctx context.Context, c hutch.Guest) error {
		r, err = c.WriteFile(ctx, w)
		return err
	})
	return r, err
}

func (g *guest) WriteArchive(ctx context.Context, w hutch.WriteArchive) (r hutch.ArchiveResult, err error) {
	err = g.once(ctx, func(ctx context.Context, c hutch.Guest) error {
		r, err = c.WriteArchive(ctx, w)
		return err
	})
	return r, err
}

func (g *guest) MakeDir(ctx context.Context, m hutch.MakeDir) (info hutch.FileInfo, err error) {
	err = g.short(ctx, func(ctx context.Context, c hutch.Guest) error {
		info, err = c.MakeDir(ctx, m)
		return err
	})
	return info, err
}

func (g *guest) MoveFile(ctx context.Context, m hutch.MoveFile) (info hutch.FileInfo, err error) {
	err = g.call(ctx, func(ctx context.Context, c hutch.Guest) error { // across file systems it copies
		info, err = c.MoveFile(ctx, m)
		return err
	})
	return info, err
}

func (g *guest) RemoveFile(ctx context.Context, r hutch.RemoveFile) error {
	return g.call(ctx, func(ctx context.Context, c hutch.Guest) error { return c.RemoveFile(ctx, r) })
}
