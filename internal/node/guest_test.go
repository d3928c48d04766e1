package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

// inside is a guest that answers as a test wants. Calls that are not set panic.
type inside struct {
	hutch.Guest
	stat  func(ctx context.Context, f hutch.FileRef) (hutch.FileInfo, error)
	open  func(ctx context.Context, r hutch.ReadFile) (*hutch.FileContent, error)
	write func(ctx context.Context, w hutch.WriteFile) (hutch.WriteResult, error)
	watch func(ctx context.Context, ready func() error, sink func(hutch.FileEvent) error) error
	dial  func(ctx context.Context, port int) (hutch.PortConn, error)
}

func (i *inside) StatFile(ctx context.Context, f hutch.FileRef) (hutch.FileInfo, error) {
	return i.stat(ctx, f)
}

func (i *inside) OpenFile(ctx context.Context, r hutch.ReadFile) (*hutch.FileContent, error) {
	return i.open(ctx, r)
}

func (i *inside) WriteFile(ctx context.Context, w hutch.WriteFile) (hutch.WriteResult, error) {
	return i.write(ctx, w)
}

func (i *inside) WatchFiles(ctx context.Context, _ hutch.WatchFiles, ready func() error, sink func(hutch.FileEvent) error) error {
	return i.watch(ctx, ready, sink)
}

func (i *inside) DialPort(ctx context.Context, port int) (hutch.PortConn, error) {
	return i.dial(ctx, port)
}

// pipeConn is a connection to a server that a test plays.
type pipeConn struct{ net.Conn }

func (pipeConn) CloseWrite() error { return nil }

// hung is what a guest client says of a guest that does not answer in time.
func hung(ctx context.Context) error {
	<-ctx.Done()
	return hutch.Wrap(hutch.CodeGuestUnresponsive, context.Cause(ctx), "the sandbox does not answer")
}

// startWith starts a sandbox whose inside is i.
func (b *bench) startWith(i *inside) (hutch.Sandbox, hutch.Guest) {
	b.t.Helper()
	rec := b.start()
	b.find(rec.ID).calls = i
	g, err := b.Guest(b.ctx(), rec.ID, rec.Epoch)
	if err != nil {
		b.t.Fatalf("Guest: %v", err)
	}
	return rec, g
}

// ended waits for the end of a call that runs elsewhere.
func ended(t *testing.T, what string, err <-chan error) error {
	t.Helper()
	select {
	case e := <-err:
		return e
	case <-time.After(20 * time.Second):
		t.Fatalf("%s goes on", what)
		return nil
	}
}

// A call that fails as not identified is made again after a hello; one that carries
// content asks first, so that nothing of it is lost.
func TestGuestSaysHelloAgain(t *testing.T) {
	b := newBench(t)
	calls, greeted := 0, 0
	var rec hutch.Sandbox
	rec, g := b.startWith(&inside{
		stat: func(context.Context, hutch.FileRef) (hutch.FileInfo, error) {
			if calls++; calls == 1 {
				b.host.Guest(rec.ID).Restart()
				return hutch.FileInfo{}, &hutch.Error{Code: "not_identified"}
			}
			return hutch.FileInfo{Name: "f"}, nil
		},
		write: func(_ context.Context, w hutch.WriteFile) (hutch.WriteResult, error) {
			if b.host.Guest(rec.ID).Identified() {
				greeted++
			}
			all, err := io.ReadAll(w.Content)
			return hutch.WriteResult{Offset: int64(len(all))}, err
		},
	})
	if info, err := g.StatFile(b.ctx(), hutch.FileRef{Path: "/f"}); err != nil || info.Name != "f" || calls != 2 {
		t.Errorf("StatFile: %+v, %v after %d calls; want f after 2", info, err, calls)
	}
	b.host.Guest(rec.ID).Restart()
	if r, err := g.WriteFile(b.ctx(), hutch.WriteFile{Content: strings.NewReader("whole")}); err != nil || r.Offset != 5 || greeted != 1 {
		t.Errorf("WriteFile: %+v, %v, to a guest that had been greeted: %d; want 5 bytes, 1", r, err, greeted)
	}
}

// A short call that hangs ends in time, and so does a long one: the guest is asked for a
// sign of life meanwhile.
func TestGuestThatDoesNotAnswer(t *testing.T) {
	b := newBench(t, func(c *Config) { c.CallTimeout = aBusyMachines })
	slow := make(chan struct{})
	rec, g := b.startWith(&inside{
		stat: func(ctx context.Context, _ hutch.FileRef) (hutch.FileInfo, error) { return hutch.FileInfo{}, hung(ctx) },
		dial: func(ctx context.Context, _ int) (hutch.PortConn, error) { return nil, hung(ctx) },
		watch: func(ctx context.Context, ready func() error, _ func(hutch.FileEvent) error) error {
			if err := ready(); err != nil {
				return err
			}
			select {
			case <-slow:
				return hutch.ErrNotFound
			case <-ctx.Done():
				return hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "cancelled")
			}
		},
	})
	_, err := g.StatFile(b.ctx(), hutch.FileRef{})
	wantError(t, "StatFile", err, hutch.ErrGuestUnresponsive)
	_, err = g.DialPort(b.ctx(), 80)
	wantError(t, "DialPort", err, hutch.ErrGuestUnresponsive)

	watch := func() (ready chan struct{}, over chan error) {
		ready, over = make(chan struct{}), make(chan error, 1)
		go func() {
			over <- g.WatchFiles(b.ctx(), hutch.WatchFiles{}, func() error { close(ready); return nil }, nil)
		}()
		return ready, over
	}
	// One that answers is let be, however long nothing happens.
	ready, over := watch()
	<-ready
	b.pass(rec, 3*patientAfter)
	select {
	case err := <-over:
		t.Fatalf("a watch on a guest that answers ended: %v", err)
	default:
	}
	close(slow)
	wantError(t, "the watch", ended(t, "the watch", over), hutch.ErrNotFound)
	slow = make(chan struct{})
	ready, over = watch()
	<-ready
	b.deaf = true
	b.host.Guest(rec.ID).Silence(true)
	b.pass(rec, patientAfter+5*time.Second)
	wantError(t, "the watch on a guest that fell silent", ended(t, "the watch", over), hutch.ErrGuestUnresponsive)
	b.host.Guest(rec.ID).Silence(false)
}

// Pausing and ending cut what is under way at once, each with its reason.
func TestGuestIsCut(t *testing.T) {
	for name, c := range map[string]struct {
		cut  func(b *bench, rec hutch.Sandbox) error
		want error
	}{
		"paused": {func(b *bench, rec hutch.Sandbox) error { return b.PauseSandbox(b.ctx(), rec.ID, rec.Epoch+1) }, hutch.ErrInvalidState},
		"killed": {func(b *bench, rec hutch.Sandbox) error { return b.KillSandbox(b.ctx(), rec.ID, rec.Epoch+1) }, hutch.ErrSandboxGone},
		"crashed": {func(b *bench, rec hutch.Sandbox) error {
			b.host.Guest(rec.ID).Crash()
			return nil
		}, hutch.ErrSandboxGone},
		"let go by a node that stops": {func(b *bench, _ hutch.Sandbox) error { b.crash(); return nil }, hutch.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			far, near := net.Pipe()
			defer func() { _ = far.Close() }()
			rec, g := b.startWith(&inside{
				dial: func(context.Context, int) (hutch.PortConn, error) { return pipeConn{near}, nil },
				open: func(ctx context.Context, _ hutch.ReadFile) (*hutch.FileContent, error) {
					r, w := io.Pipe()
					context.AfterFunc(ctx, func() { _ = w.CloseWithError(hutch.ErrCancelled) })
					return &hutch.FileContent{Body: r}, nil
				},
				watch: func(ctx context.Context, ready func() error, _ func(hutch.FileEvent) error) error {
					<-ctx.Done()
					return hutch.ErrCancelled
				},
			})
			conn, err := g.DialPort(b.ctx(), 80)
			if err != nil {
				t.Fatal(err)
			}
			file, err := g.OpenFile(b.ctx(), hutch.ReadFile{})
			if err != nil {
				t.Fatal(err)
			}
			overs := map[string]chan error{"conn": make(chan error, 1), "file": make(chan error, 1), "watch": make(chan error, 1)}
			ctx := b.ctx()
			go func() { _, err := conn.Read(make([]byte, 1)); overs["conn"] <- err }()
			go func() { _, err := file.Body.Read(make([]byte, 1)); overs["file"] <- err }()
			go func() { overs["watch"] <- g.WatchFiles(ctx, hutch.WatchFiles{}, nil, nil) }()
			if err := c.cut(b, rec); err != nil {
				t.Fatal(err)
			}
			for what, over := range overs {
				wantError(t, what, ended(t, what, over), c.want)
			}
			if _, err := conn.Write([]byte("x")); !errors.Is(err, c.want) {
				t.Errorf("a write afterwards: %v", err)
			}
			_, err = g.DialPort(b.ctx(), 80)
			wantError(t, "another connection", err, c.want)
			_ = conn.Close()
			_ = file.Body.Close()
		})
	}
}

// After a pause and a resume a guest of before is of no use, and a new one is.
func TestGuestIsOfOneRun(t *testing.T) {
	b := newBench(t)
	rec, g := b.startWith(&inside{stat: func(context.Context, hutch.FileRef) (hutch.FileInfo, error) { return hutch.FileInfo{}, nil }})
	if err := b.PauseSandbox(b.ctx(), rec.ID, rec.Epoch+1); err != nil {
		t.Fatal(err)
	}
	_, err := b.Guest(b.ctx(), rec.ID, rec.Epoch+1)
	wantError(t, "the guest of a paused sandbox", err, hutch.ErrInvalidState)
	if err := b.ResumeSandbox(b.ctx(), rec.ID, rec.Epoch+2); err != nil {
		t.Fatal(err)
	}
	_, err = g.StatFile(b.ctx(), hutch.FileRef{})
	wantError(t, "the guest of before", err, hutch.ErrStale)
	_, err = b.Guest(b.ctx(), rec.ID, rec.Epoch)
	wantError(t, "asked for with an old epoch", err, hutch.ErrStale)
	g, err = b.Guest(b.ctx(), rec.ID, rec.Epoch+2)
	if err == nil {
		_, err = g.StatFile(b.ctx(), hutch.FileRef{})
	}
	if err != nil {
		t.Errorf("the guest of now: %v", err)
	}
}

// What the caller's own functions say goes back as it is.
func TestGuestSinkFails(t *testing.T) {
	b := newBench(t)
	mine := errors.New("mine")
	_, g := b.startWith(&inside{watch: func(_ context.Context, ready func() error, sink func(hutch.FileEvent) error) error {
		if err := ready(); err != nil {
			return err
		}
		return sink(hutch.FileEvent{})
	}})
	ok := func() error { return nil }
	for what, f := range map[string]func() error{
		"ready": func() error { return g.WatchFiles(b.ctx(), hutch.WatchFiles{}, func() error { return mine }, nil) },
		"sink": func() error {
			return g.WatchFiles(b.ctx(), hutch.WatchFiles{}, ok, func(hutch.FileEvent) error { return mine })
		},
	} {
		if err := f(); err != mine { //nolint:errorlint // the very same
			t.Errorf("%s: got %v", what, err)
		}
	}
	if err := g.WatchFiles(b.ctx(), hutch.WatchFiles{}, ok, func(hutch.FileEvent) error { return nil }); err != nil {
		t.Errorf("none fails: %v", err)
	}
}

// A caller's own end is the caller's, and the end of content is its end.
func TestGuestOpenFile(t *testing.T) {
	b := newBench(t)
	closed := false
	_, g := b.startWith(&inside{open: func(ctx context.Context, r hutch.ReadFile) (*hutch.FileContent, error) {
		if r.Path == "" {
			return nil, hutch.ErrNotFound
		}
		return &hutch.FileContent{Info: hutch.FileInfo{Size: 3}, Body: &noteClose{bytes.NewReader([]byte("abc")), &closed}}, nil
	}})
	_, err := g.OpenFile(b.ctx(), hutch.ReadFile{})
	wantError(t, "a file that is not there", err, hutch.ErrNotFound)
	f, err := g.OpenFile(b.ctx(), hutch.ReadFile{FileRef: hutch.FileRef{Path: "/f"}})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(f.Body); err != nil || string(all) != "abc" || f.Info.Size != 3 {
		t.Errorf("read %q of %d, %v", all, f.Info.Size, err)
	}
	if err := f.Body.Close(); err != nil || !closed {
		t.Errorf("Close: %v, passed on: %v", err, closed)
	}
}

type noteClose struct {
	io.Reader
	closed *bool
}

func (n *noteClose) Close() error { *n.closed = true; return nil }

// All figures are read anew only if something has run since.
func TestUsageOfAStillSandbox(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	g := b.host.Guest(rec.ID)
	usage := func() time.Duration {
		t.Helper()
		_, cpu, err := b.Usage(b.ctx(), rec.ID, rec.Epoch)
		if err != nil {
			t.Fatal(err)
		}
		return cpu
	}
	usage()
	before := b.host.Calls(fake.OpStats)
	want := usage()
	for range 3 {
		g.Burn(still / 4)
		want += still / 4
		if got := usage(); got != want {
			t.Errorf("CPU time %v, want %v: it is always of now", got, want)
		}
	}
	if n := b.host.Calls(fake.OpStats) - before; n != 0 {
		t.Errorf("the host was asked for everything %d times, and nothing had run", n)
	}
	g.Burn(still)
	usage()
	if n := b.host.Calls(fake.OpStats) - before; n != 1 {
		t.Errorf("the host was asked for everything %d times once something had run, want once", n)
	}
	m := &b.find(rec.ID).measured
	m.mu.Lock()
	m.at = m.at.Add(-stillFor)
	m.mu.Unlock()
	usage()
	if n := b.host.Calls(fake.OpStats) - before; n != 2 {
		t.Errorf("the host was asked for everything %d times once what was known was old, want twice", n)
	}
}

func TestUsage(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	s, _, err := b.Usage(b.ctx(), rec.ID, rec.Epoch)
	if err != nil || s.CPUs != 1 || s.MemoryMax != 64<<20 || s.Memory <= 0 || s.DiskMax != 64<<20 || s.At.IsZero() {
		t.Errorf("Usage: %+v, %v", s, err)
	}
	_, _, err = b.Usage(b.ctx(), rec.ID, rec.Epoch-1)
	wantError(t, "with an old epoch", err, hutch.ErrStale)
	if err := b.KillSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	_, _, err = b.Usage(b.ctx(), rec.ID, rec.Epoch)
	wantError(t, "of one that is gone", err, hutch.ErrSandboxGone)
}
