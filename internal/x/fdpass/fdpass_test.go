package fdpass

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleDial makes the test binary a client that only tries to connect.
const roleDial = "fdpass-dial"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == roleDial {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := Dial(ctx, os.Args[2], "test"); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pair returns two connected Conns.
func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		conns[i] = NewConn(c.(*net.UnixConn))
		t.Cleanup(func() { _ = conns[i].Close() })
	}
	return conns[0], conns[1]
}

func soon() time.Time { return time.Now().Add(10 * time.Second) }

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

func TestFilesArriveWithTheirMessage(t *testing.T) {
	a, b := pair(t)
	r, w := pipe(t)
	fd, err := Dup(w)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(soon(), []byte("with"), fd); err != nil {
		t.Fatal(err)
	}
	CloseAll([]int{fd})
	if err := a.Send(soon(), []byte("without")); err != nil {
		t.Fatal(err)
	}
	m, err := b.Recv()
	if err != nil || string(m.Data) != "with" || len(m.FDs) != 1 {
		t.Fatalf("first message: %q, %d files, %v", m.Data, len(m.FDs), err)
	}
	flags, err := unix.FcntlInt(uintptr(m.FDs[0]), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("received file is inherited by children: flags %x, %v", flags, err)
	}
	if _, err := unix.Write(m.FDs[0], []byte("x")); err != nil {
		t.Fatal(err)
	}
	m.Close()
	var got [1]byte
	if _, err := r.Read(got[:]); err != nil || got[0] != 'x' {
		t.Errorf("read through the original: %q, %v", got, err)
	}
	if m, err = b.Recv(); err != nil || string(m.Data) != "without" || len(m.FDs) != 0 {
		t.Errorf("second message: %q, %d files, %v", m.Data, len(m.FDs), err)
	}
}

func TestDupLeavesTheModeAlone(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, g := os.NewFile(uintptr(fds[0]), "f"), os.NewFile(uintptr(fds[1]), "g")
	defer f.Close()
	defer g.Close()
	dup, err := Dup(f)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll([]int{dup})
	flags, err := unix.FcntlInt(uintptr(dup), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("a duplicated socket became blocking: flags %x, %v", flags, err)
	}
}

func TestSendRefusesWhatIsTooLarge(t *testing.T) {
	a, _ := pair(t)
	r, _ := pipe(t)
	fd, err := Dup(r)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll([]int{fd})
	fds := make([]int, MaxFiles+1)
	for i := range fds {
		fds[i] = fd
	}
	for name, err := range map[string]error{
		"long":       a.Send(soon(), make([]byte, MaxMessage+1)),
		"empty":      a.Send(soon(), nil),
		"many files": a.Send(soon(), []byte("x"), fds...),
	} {
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: got %v, want ErrTooLarge", name, err)
		}
	}
	if err := a.Send(soon(), make([]byte, MaxMessage)); err != nil {
		t.Errorf("the longest message: %v", err)
	}
}

// A peer that does not keep to the bounds costs no descriptors and no connection.
func TestRecvBoundsThePeer(t *testing.T) {
	a, b := pair(t)
	r, _ := pipe(t)
	fd, err := Dup(r)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll([]int{fd})
	many := make([]int, MaxFiles+20)
	for i := range many {
		many[i] = fd
	}
	before := openFiles(t)
	if _, _, err := a.c.WriteMsgUnix([]byte("x"), unix.UnixRights(many...), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(); !errors.Is(err, ErrFilesLost) {
		t.Errorf("too many files: got %v, want ErrFilesLost", err)
	}
	if _, _, err := a.c.WriteMsgUnix(make([]byte, MaxMessage+1), unix.UnixRights(fd), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too long: got %v, want ErrTooLarge", err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors leaked", after-before)
	}
	if err := a.Send(soon(), []byte("fine")); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Recv(); err != nil || string(m.Data) != "fine" {
		t.Errorf("message after bad ones: %q, %v", m.Data, err)
	}
}

func TestRecvSeesTheEnd(t *testing.T) {
	a, b := pair(t)
	_ = a.Close()
	if _, err := b.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// echo answers "echo" with its body and files, "fail" with an error of each kind, "slow"
// when it is told to, and counts closed sessions.
type echo struct {
	release chan struct{}
	closed  chan Session
}

func (e *echo) Handle(ctx context.Context, c *Call) (any, []int, error) {
	switch c.Op {
	case "echo":
		return c.Body, c.TakeFDs(), nil
	case "fail":
		return nil, nil, errors.New("a detail for the log only")
	case "refuse":
		return nil, nil, &RemoteError{Code: "teapot", Message: "short and stout"}
	case "slow":
		r, _, err := e.pipe()
		if err != nil {
			return nil, nil, err
		}
		<-e.release
		return "done", []int{r}, nil
	}
	return nil, nil, Unsupported(c.Op)
}

func (e *echo) pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	_ = unix.Close(p[1])
	return p[0], p[1], nil
}

func (e *echo) Closed(s Session) {
	if e.closed != nil {
		e.closed <- s
	}
}

// serve runs a server of h and returns the path of its socket.
func serve(t testing.TB, h Handler) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	serveAt(t, path, h)
	return path
}

func serveAt(t testing.TB, path string, h Handler) {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{Hello: Hello{Service: "test", Version: 7}, Handler: h, Log: slog.New(slog.DiscardHandler)}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func dialTest(t testing.TB, path string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestCallCarriesFilesBothWays(t *testing.T) {
	c := dialTest(t, serve(t, &echo{}))
	if c.Hello().Version != 7 {
		t.Errorf("hello: %+v", c.Hello())
	}
	r, w := pipe(t)
	before := openFiles(t)
	var out map[string]int
	fds, err := c.Call(t.Context(), "echo", map[string]int{"n": 3}, &out, r, w)
	if err != nil || out["n"] != 3 || len(fds) != 2 {
		t.Fatalf("echo: %v, %d files, %v", out, len(fds), err)
	}
	files := Files(fds, "back")
	if _, err := files[1].Write([]byte("x")); err != nil {
		t.Error(err)
	}
	var got [1]byte
	if _, err := r.Read(got[:]); err != nil || got[0] != 'x' {
		t.Errorf("read what was written to the copy: %q, %v", got, err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	closed(t, before)
}

// closed waits until no more files are open than before: the server, which is in this
// process too, closes its own after it has answered.
func closed(t testing.TB, before int) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for openFiles(t) > before {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d descriptors leaked", openFiles(t)-before)
		}
	}
}

func TestCallErrors(t *testing.T) {
	c := dialTest(t, serve(t, &echo{}))
	for op, want := range map[string]RemoteError{
		"refuse":                    {Code: "teapot", Message: "short and stout"},
		"fail":                      {Code: CodeInternal, Message: "fail did not work; the log of the process that serves it says why"},
		strings.Repeat("long", 100): {Code: CodeUnsupported, Message: `operation "longlonglonglonglonglonglonglong" is not known here`},
		"nonsense":                  {Code: CodeUnsupported, Message: `operation "nonsense" is not known here`},
	} {
		_, err := c.Call(t.Context(), op, nil, nil)
		if re, ok := errors.AsType[*RemoteError](err); !ok || *re != want {
			t.Errorf("%s: got %v, want %v", op, err, &want)
		}
	}
}

// A caller that leaves early costs neither the connection nor the files of the answer
// that comes too late.
func TestCallOutlivesItsContext(t *testing.T) {
	h := &echo{release: make(chan struct{})}
	c := dialTest(t, serve(t, h))
	before := openFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Call(ctx, "slow", nil, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want Canceled", err)
	}
	close(h.release)
	var out string
	if _, err := c.Call(t.Context(), "echo", "again", &out); err != nil || out != "again" {
		t.Fatalf("next call: %q, %v", out, err)
	}
	closed(t, before)
}

func TestDialTellsWhoIsThere(t *testing.T) {
	path := serve(t, &echo{})
	if _, err := Dial(t.Context(), path, "other"); err == nil || !strings.Contains(err.Error(), `"test"`) {
		t.Errorf("another service: %v", err)
	}
	if _, err := Dial(t.Context(), path+"x", "test"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no socket: got %v, want ErrNotExist", err)
	}
	stale := filepath.Join(t.TempDir(), "stale")
	l, err := Listen(stale)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := Dial(t.Context(), stale, "test"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket without a listener: got %v, want ErrNotExist", err)
	}
}

func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info, err)
	}
	c, err := dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestSessionsEnd(t *testing.T) {
	h := &echo{closed: make(chan Session, 1)}
	path := serve(t, h)
	c, err := Dial(t.Context(), path, "test")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-h.closed
	if _, err := c.Call(t.Context(), "echo", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("call on a closed connection: got %v, want ErrClosed", err)
	}
}

// Whoever saw a server end and dials again finds none, not the one that ends.
func TestListenerEndsBeforeTheSessions(t *testing.T) {
	for i := range 50 {
		path := filepath.Join(t.TempDir(), "s.sock")
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s := &Server{Hello: Hello{Service: "test", Version: 7}, Handler: &echo{}, Log: slog.New(slog.DiscardHandler)}
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		var sessions [8]*Client
		for i := range sessions {
			sessions[i] = dialTest(t, path)
		}
		var wg sync.WaitGroup
		for _, c := range sessions {
			wg.Go(func() {
				<-c.Done()
				again, err := Dial(t.Context(), path, "test")
				if err == nil {
					again.Close()
				}
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("server %d is still there after it ended a session: %v", i, err)
				}
			})
		}
		cancel()
		wg.Wait()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	path := serve(t, &echo{})
	for range maxSessions {
		dialTest(t, path)
	}
	if _, err := Dial(t.Context(), path, "test"); !errors.Is(err, ErrClosed) {
		t.Errorf("one client too many: got %v, want ErrClosed", err)
	}
}

// The check of who calls holds also where the socket's mode does not.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	// A directory of its own that all may enter, wherever t.TempDir would be: nothing else's
	// mode is changed.
	dir, err := os.MkdirTemp("/tmp", "fdpass") //nolint:usetesting // for the reason above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "s.sock")
	serveAt(t, path, &echo{})
	for _, p := range []string{dir, path} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(dir, "client")
	copyFile(t, "/proc/self/exe", exe)
	run := func(uid uint32) (string, error) {
		cmd := exec.Command(exe, roleDial, path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(0); err != nil {
		t.Errorf("root is refused: %s, %v", out, err)
	}
	if out, err := run(65534); err == nil || !strings.Contains(out, ErrClosed.Error()) {
		t.Errorf("another user: got %q, %v; want to be cut off", out, err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, s := range []string{`{"id":1,"op":"get","body":{"name":"i0"}}`, `{}`, `null`, `[`, `{"op":"` + strings.Repeat("x", 40) + `"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRequest(data)
		if err != nil {
			return
		}
		if len(r.Body) > 0 && !json.Valid(r.Body) {
			t.Fatalf("accepted a body that is no JSON: %q", r.Body)
		}
	})
}

// Any first message ends in an answer or in the end of the session, never of the server.
func FuzzServer(f *testing.F) {
	f.Add([]byte(`{"id":1,"op":"echo","body":[1]}`))
	f.Add([]byte(`{"id":1,"op":"hello"}`))
	f.Add([]byte("\x00\xff"))
	path := serve(f, &echo{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > MaxMessage || bytes.Contains(data, []byte("slow")) {
			return
		}
		c, err := dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Send(soon(), data); err != nil {
			t.Fatal(err)
		}
		m, err := c.Recv()
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		m.Close()
	})
}
