package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guest/files"
	"hutch.dev/hutch/internal/guest/ports"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/duplex"
)

// services are the real services of a guest agent, which reach this machine's own files and
// ports: a test keeps to its own directory and its own listeners.
func services() http.Handler {
	refuse := func(w http.ResponseWriter, err error) {
		e := hutch.ErrInternal
		_ = errors.As(err, &e)
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(guestapi.Error{Error: e.Message, Code: e.Code, Field: e.Field})
	}
	mux := http.NewServeMux()
	files.New(files.Config{Accounts: account.Database{}, Refuse: refuse}).Handle(mux.Handle)
	mux.HandleFunc("POST "+guestapi.PathPorts+"/{port}/connect", func(w http.ResponseWriter, r *http.Request) {
		port, _ := strconv.Atoi(r.PathValue("port"))
		server, err := ports.Dial(r.Context(), port)
		if err != nil {
			refuse(w, err)
			return
		}
		flush := http.NewResponseController(w).Flush
		_ = flush()
		peer := duplex.New(r.Body, func(frame []byte) error {
			_, err := w.Write(frame)
			return errors.Join(err, flush())
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = peer.Run()
		}()
		ports.Splice(peer, server)
		_ = r.Body.Close()
		<-done
	})
	mux.HandleFunc("GET "+guestapi.PathDisk, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(hutch.DiskUsage{Used: 1000, Total: 4000})
	})
	return mux
}

// withServices is a world whose sandboxes have files and ports.
func withServices(t *testing.T, tune ...func(*world)) *world {
	t.Helper()
	return newWorld(t, append([]func(*world){func(w *world) { w.host.Serve(services()) }}, tune...)...)
}

// open is a sandbox's inside for as long as the test.
func (w *world) open(sb hutch.Sandbox) hutch.Guest {
	w.t.Helper()
	g, done, err := w.c.Guest(w.ctx(), project, sb.ID)
	if err != nil {
		w.t.Fatalf("Guest: %v", err)
	}
	w.t.Cleanup(done)
	return g
}

// echo is a server that gives back what it gets, in the order of its connections.
func echo(t *testing.T) (port int) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().(*net.TCPAddr).Port
}

func TestFilesThroughEverything(t *testing.T) {
	w := withServices(t)
	sb := w.create()
	g := w.open(sb)
	dir := t.TempDir()
	at := func(name string) hutch.FileRef { return hutch.FileRef{Path: filepath.Join(dir, name)} }
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	res, err := g.WriteFile(w.ctx(), hutch.WriteFile{FileRef: at("sub/f"), Content: bytes.NewReader(content), Last: true})
	if err != nil || res.Info == nil || res.Info.Size != int64(len(content)) {
		t.Fatalf("WriteFile: %+v, %v", res, err)
	}
	f, err := g.OpenFile(w.ctx(), hutch.ReadFile{FileRef: at("sub/f"), Offset: 5, Length: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(f.Body)
	if err != nil || !bytes.Equal(got, content[5:100_005]) || f.Info.Size != int64(len(content)) {
		t.Errorf("OpenFile: %d bytes of %d, %v", len(got), f.Info.Size, err)
	}
	if err := f.Body.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	_, err = g.StatFile(w.ctx(), at("none"))
	wantError(t, "a file that is not there", err, hutch.ErrNotFound)
	if _, err := g.MoveFile(w.ctx(), hutch.MoveFile{From: at("sub/f").Path, To: at("sub/g").Path}); err != nil {
		t.Errorf("MoveFile: %v", err)
	}
	l, err := g.ListFiles(w.ctx(), hutch.ListFiles{FileRef: at(""), Depth: 2})
	if err != nil || len(l.Entries) != 2 || l.Entries[1].Name != "g" {
		t.Errorf("ListFiles: %+v, %v", l, err)
	}
	var found []string
	_, err = g.SearchFiles(w.ctx(), hutch.SearchFiles{FileRef: at(""), Name: "g*"}, func(m hutch.FileMatch) error {
		found = append(found, filepath.Base(m.Path))
		return nil
	})
	if err != nil || !slices.Equal(found, []string{"g"}) {
		t.Errorf("SearchFiles: %q, %v", found, err)
	}
	if err := g.RemoveFile(w.ctx(), hutch.RemoveFile{FileRef: at("sub"), Recursive: true}); err != nil {
		t.Errorf("RemoveFile: %v", err)
	}
}

// A caller who leaves in the middle of an upload leaves no half file, and a sandbox that is
// not used any more.
func TestUploadThatItsCallerLeaves(t *testing.T) {
	for name, cut := range map[string]struct {
		act  func(w *world, sb hutch.Sandbox, leave *io.PipeWriter)
		want error
	}{
		"the caller leaves": {func(_ *world, _ hutch.Sandbox, leave *io.PipeWriter) {
			_ = leave.CloseWithError(errInjected)
		}, nil},
		"the sandbox is killed": {func(w *world, sb hutch.Sandbox, _ *io.PipeWriter) {
			if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
				w.t.Errorf("kill: %v", err)
			}
		}, hutch.ErrSandboxGone},
		"the sandbox is paused": {func(w *world, sb hutch.Sandbox, _ *io.PipeWriter) {
			if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
				w.t.Errorf("pause: %v", err)
			}
		}, hutch.ErrInvalidState},
	} {
		t.Run(name, func(t *testing.T) {
			w := withServices(t)
			sb := w.create()
			dir := t.TempDir()
			g, done, err := w.c.Guest(w.ctx(), project, sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			r, pw := io.Pipe()
			over := make(chan error, 1)
			ctx := w.ctx()
			go func() {
				_, err := g.WriteFile(ctx, hutch.WriteFile{FileRef: hutch.FileRef{Path: filepath.Join(dir, "f")}, Content: r, Last: true})
				_ = r.CloseWithError(errInjected)
				over <- err
			}()
			if _, err := pw.Write(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
				t.Fatal(err)
			}
			cut.act(w, sb, pw)
			go func() { // it is noticed at the next byte; one who sends none is the transport's to cut
				for err := error(nil); err == nil; {
					_, err = pw.Write([]byte("y"))
				}
			}()
			err = within(t, "the upload ends", over)
			if err == nil || (cut.want != nil && !errors.Is(err, cut.want)) {
				t.Errorf("the upload: %v, want %v", err, cut.want)
			}
			done()
			done() // twice is once
			if cut.want != nil {
				return
			}
			eventually(t, "nothing of it is left", func() error {
				l, err := os.ReadDir(dir)
				if err == nil && len(l) > 0 {
					err = fmt.Errorf("%s", l[0].Name())
				}
				return err
			})
			w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
		})
	}
}

func TestPortsThroughEverything(t *testing.T) {
	w := withServices(t)
	sb := w.create()
	port := echo(t)
	say := func(c hutch.PortConn, text string) error {
		if _, err := c.Write([]byte(text)); err != nil {
			return err
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if string(got) != text {
			return fmt.Errorf("%q came back as %q", text, got)
		}
		return nil
	}
	dial := func() hutch.PortConn {
		t.Helper()
		c, err := w.open(sb).DialPort(w.ctx(), port)
		if err != nil {
			t.Fatalf("DialPort: %v", err)
		}
		return c
	}
	c := dial()
	if err := say(c, "hello"); err != nil {
		t.Errorf("a connection: %v", err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Errorf("CloseWrite: %v", err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	_ = c.Close()
	_, err := w.open(sb).DialPort(w.ctx(), 1)
	wantError(t, "a port that nobody listens on", err, hutch.ErrPortClosed)

	// A pause cuts; after a resume there are new connections.
	for range 2 {
		c = dial()
		read := make(chan error, 1)
		go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
		if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
			t.Fatal(err)
		}
		wantError(t, "a connection over a pause", within(t, "it is cut", read), hutch.ErrInvalidState)
		_ = c.Close()
		_, done, err := w.c.Guest(w.ctx(), project, sb.ID)
		done()
		wantError(t, "the inside of a paused sandbox", err, hutch.ErrInvalidState)
		if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
			t.Fatal(err)
		}
		if c = dial(); say(c, "again") != nil {
			t.Error("a connection after a resume is of no use")
		}
		_ = c.Close()
	}
	// A restart of the server cuts too, and costs nothing else.
	w.restart()
	if c = dial(); say(c, "after a restart") != nil {
		t.Error("a connection after a restart is of no use")
	}
	read := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a connection over a kill", within(t, "it is cut", read), hutch.ErrSandboxGone)
	_ = c.Close()
	_, _, err = w.c.Guest(w.ctx(), project, sb.ID)
	wantError(t, "the inside of a dead sandbox", err, hutch.ErrSandboxGone)
}

// A sandbox that does not answer is reported in time.
func TestPortOfASilentSandbox(t *testing.T) {
	t.Parallel()
	w := withServices(t, func(w *world) { w.node.CallTimeout = impatient })
	sb := w.create()
	g := w.open(sb)
	w.guest(sb.ID).Silence(true)
	port, dialled := echo(t), make(chan error, 1)
	go func() {
		_, err := g.DialPort(context.WithoutCancel(t.Context()), port) // no limit but the node's
		dialled <- err
	}()
	wantError(t, "DialPort", within(t, "it is reported", dialled), hutch.ErrGuestUnresponsive)
	w.guest(sb.ID).Silence(false)
}

// Who works inside keeps the sandbox from idling, until done.
func TestGuestCountsAsUse(t *testing.T) {
	t.Parallel()
	w := withServices(t)
	sb := w.create(func(r *hutch.CreateSandbox) { r.IdleTimeout = time.Second })
	_, done, err := w.c.Guest(w.ctx(), project, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	held := time.After(1500 * time.Millisecond)
	<-held
	if _, err := w.c.Sandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("it ended while somebody worked in it: %v", err)
	}
	done()
	eventually(t, "it ends once nobody does", func() error {
		_, err := w.c.Sandbox(w.ctx(), project, sb.ID)
		if errors.Is(err, hutch.ErrSandboxGone) && strings.Contains(err.Error(), string(hutch.EndIdle)) {
			return nil
		}
		return fmt.Errorf("got %w", err)
	})
}

func TestDiskIsMeasuredInside(t *testing.T) {
	w := withServices(t, func(w *world) { w.control.SampleEvery = 5 * time.Millisecond })
	sb := w.create()
	eventually(t, "the samples have it", func() error {
		u, err := w.c.Usage(w.ctx(), project, sb.ID)
		if err == nil && (u.Disk != 1000 || u.DiskMax != 4000) {
			err = fmt.Errorf("%d of %d", u.Disk, u.DiskMax)
		}
		return err
	})
}
