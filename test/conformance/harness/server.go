package harness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/x/cgroup"
)

// startTimeout bounds the start of a server, which has companions to start, and its end.
const startTimeout = time.Minute

// Server is a running `hutch serve` with a data directory of its own.
type Server struct {
	Base   string // URL, without a slash at its end
	Key    string // of scope admin
	Client *client.Client

	dir    string
	args   []string
	cmd    *exec.Cmd
	log    *syncBuffer
	exited chan error
}

// Start runs the binary that HUTCH_EXE names, or bin/hutch of the repository, on a free
// port of the loopback, and returns once it is ready. args are added to its command line.
func Start(args ...string) (*Server, error) {
	// Short, since sockets live below it.
	dir, err := os.MkdirTemp("", "hutch-conf")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, args: args, log: &syncBuffer{}}
	if err := s.launch("127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.awaitReady(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Restart ends the server as a crash would and starts it again where it was. Sandboxes run
// on meanwhile.
func (s *Server) Restart() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := <-s.exited; err == nil {
		return errors.New("the server had ended before it was killed")
	}
	if err := os.Remove(filepath.Join(s.dir, listenFile)); err != nil {
		return err
	}
	if err := s.launch(strings.TrimPrefix(s.Base, "http://")); err != nil {
		return err
	}
	return s.awaitReady()
}

// Files of the data directory.
const (
	listenFile = "listen"
	keyFile    = "admin.key"
)

func (s *Server) launch(listen string) error {
	exe, err := binary()
	if err != nil {
		return err
	}
	args := append([]string{"serve", "--data-dir", s.dir, "--cache-dir", rootfs.CacheDir(), "--listen", listen}, s.args...)
	s.cmd, s.exited = exec.CommandContext(context.Background(), exe, args...), make(chan error, 1)
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func(c *exec.Cmd, exited chan<- error) { exited <- c.Wait() }(s.cmd, s.exited)
	return nil
}

func (s *Server) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return poll(ctx, "the server is ready", func() (bool, error) { return s.ready(ctx) })
}

// binary is the path of the binary under test.
func binary() (string, error) {
	exe := os.Getenv("HUTCH_EXE")
	if exe == "" {
		exe = filepath.Join("..", "..", "..", "bin", "hutch") // as seen from a suite
	}
	exe, err := filepath.Abs(exe)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(exe); err != nil {
		return "", fmt.Errorf("the binary under test is missing; run `make build base`: %w", err)
	}
	return exe, nil
}

// ready looks whether the server is. What is not there yet is no error.
func (s *Server) ready(ctx context.Context) (bool, error) {
	select {
	case err := <-s.exited:
		s.exited <- err
		return false, fmt.Errorf("the server ended: %w\n%s", err, s.Log())
	default:
	}
	addr, key := s.file(listenFile), s.file(keyFile)
	if addr == "" || key == "" {
		return false, nil
	}
	s.Base, s.Key = "http://"+addr, key
	if !answers(ctx, s.Base+"/readyz") {
		return false, nil
	}
	var err error
	s.Client, err = client.New(s.Base, client.WithKey(s.Key))
	return err == nil, err
}

// file returns what a file of the data directory says; empty if it is not there.
func (s *Server) file(name string) string {
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// answers reports whether a GET is answered with 200.
func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return res.Body.Close() == nil && res.StatusCode == http.StatusOK
}

// Log returns what the server has logged so far.
func (s *Server) Log() string { return s.log.String() }

// Close ends every sandbox, the server and its companions, and removes the data directory.
// It is an error if a process of the server is left.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var errs []error
	if s.Client != nil {
		for sb, err := range s.Client.Sandboxes(ctx, client.SandboxFilter{}) {
			if err != nil {
				errs = append(errs, fmt.Errorf("list what is left: %w", err))
				break
			}
			errs = append(errs, s.Client.Kill(ctx, sb.ID))
		}
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err == nil {
		if err := <-s.exited; err != nil {
			errs = append(errs, fmt.Errorf("the server ended: %w\n%s", err, s.Log()))
		}
	}
	if k, err := keeper.Dial(ctx, s.dir); err == nil {
		errs = append(errs, k.Stop(ctx, true))
		<-k.Done()
	}
	if e, err := egress.Dial(ctx, s.dir); err == nil {
		errs = append(errs, e.Stop(ctx))
		<-e.Done()
	}
	errs = append(errs, poll(ctx, "nothing of the server is left", func() (bool, error) { return len(s.processes()) == 0, nil }))
	// The isolator keeps a mount for a data directory, an empty network namespace, which first
	// creates side by side may make twice.
	for unix.Unmount(filepath.Join(s.dir, "run", "runsc", "null-netns"), unix.MNT_DETACH) == nil {
	}
	sum := sha256.Sum256([]byte(s.dir))
	if tree, err := cgroup.Detect("hutch-" + hex.EncodeToString(sum[:])[:12]); err == nil {
		errs = append(errs, tree.Remove())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// processes returns the command lines of host processes that belong to this server.
func (s *Server) processes() []string {
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && (bytes.Contains(b, []byte(s.dir+"/")) || bytes.Contains(b, []byte(s.dir+"\x00"))) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// poll asks cond until it holds, fails, or ctx ends.
func poll(ctx context.Context, what string, cond func() (bool, error)) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := cond(); err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
