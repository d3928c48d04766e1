package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	apiclient "hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/runtime/gvisor"
)

const (
	// ownServerTimeout bounds the start of a server, and its end: each takes a second or
	// so on an idle machine.
	ownServerTimeout = time.Minute
	// pollEvery is how often a server that starts or ends is looked at.
	pollEvery = 25 * time.Millisecond
	// logName is the file of a server's log, in its data directory.
	logName = "serve.log"
)

// ownServer is a `hutch serve` of this binary, with a data directory of its own, that is
// gone when it is closed, its companions and its sandboxes with it.
type ownServer struct {
	dir      string // data directory
	url, key string
	pid      int
	stop     func() error // asks it to end
	kill     func() error // ends it without asking; nil = nothing can
	exited   chan struct{}
	err      error // how it ended, once exited is closed
}

// serveArgs are the arguments of a server that is measured: it takes as many sandboxes as
// it is asked for, since those that idle have little of the memory they may have.
func serveArgs(dir, cacheDir string) []string {
	return []string{
		"--data-dir", dir, "--cache-dir", cacheDir, "--listen", "127.0.0.1:0",
		"--max-sandboxes", strconv.Itoa(2 * maxCrowd), "--overcommit", "1000",
		"--prepare", "0", // a start is cold where nothing else is said
	}
}

// startOwnServer starts a server on a free port of the loopback interface and returns
// once it is ready. More are arguments that it is given as well. If it fails, nothing of it is left but dir.
func startOwnServer(ctx context.Context, dir, cacheDir string, more ...string) (*ownServer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, logName))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s := &ownServer{dir: dir, exited: make(chan struct{})}
	// It is not killed with ctx: it is asked to end, after its sandboxes.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, slices.Concat([]string{"serve"}, serveArgs(dir, cacheDir), more)...)
	cmd.Stderr = log
	// A Ctrl-C is for us alone: the server is ended when its sandboxes are.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	s.pid, s.kill = cmd.Process.Pid, cmd.Process.Kill
	s.stop = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	go func() {
		s.err = cmd.Wait()
		close(s.exited)
	}()
	return s, s.await(ctx)
}

// startServerInside is the same with the server in this process, where its heap can be
// looked at. Its companions are processes of their own, as always.
func startServerInside(ctx context.Context, dir, cacheDir string) (*ownServer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, logName))
	if err != nil {
		return nil, err
	}
	// The command itself, so that it is the same server, with the same defaults.
	serve := newServe()
	serve.SetArgs(serveArgs(dir, cacheDir))
	serve.SetErr(log)
	serve.SilenceErrors, serve.SilenceUsage = true, true
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &ownServer{dir: dir, pid: os.Getpid(), exited: make(chan struct{})}
	s.stop = func() error { stop(); return nil }
	go func() {
		defer close(s.exited)
		s.err = errors.Join(serve.ExecuteContext(sctx), log.Close())
	}()
	return s, s.await(ctx)
}

// await returns once the server is ready. If that does not come true nothing of it is left.
func (s *ownServer) await(ctx context.Context) error {
	sctx, cancel := context.WithTimeoutCause(ctx, ownServerTimeout, errors.New("it did not get ready in time"))
	defer cancel()
	if err := poll(sctx, s.ready); err != nil {
		err = fmt.Errorf("start a server: %w%s", err, s.lastWords())
		return errors.Join(err, s.close(ctx))
	}
	http.DefaultClient.CloseIdleConnections() // which is none of the server's
	return nil
}

// ready asks the server whether it is, and learns its address and key.
func (s *ownServer) ready(ctx context.Context) (bool, error) {
	select {
	case <-s.exited:
		return false, fmt.Errorf("it ended: %w", s.err)
	default:
	}
	addr, err := os.ReadFile(filepath.Join(s.dir, cli.ListenFile))
	if err != nil {
		return false, nil //nolint:nilerr // not yet
	}
	key, err := os.ReadFile(filepath.Join(s.dir, cli.KeyFile))
	if err != nil {
		return false, nil //nolint:nilerr // not yet
	}
	s.url, s.key = "http://"+strings.TrimSpace(string(addr)), strings.TrimSpace(string(key))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
	if err != nil {
		return false, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, nil //nolint:nilerr // not yet
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK, nil
}

// lastWords is the end of the server's log, for whoever must know why it did not work.
func (s *ownServer) lastWords() string {
	b, err := os.ReadFile(filepath.Join(s.dir, logName))
	if err != nil || len(b) == 0 {
		return ""
	}
	return "\n" + strings.TrimSpace(string(b[max(0, len(b)-2048):]))
}

// close ends the sandboxes, the server and its companions, in that order, and returns
// once nothing of them is left on this host but the data directory.
func (s *ownServer) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), ownServerTimeout, errors.New("it did not end in time"))
	defer cancel()
	errs := []error{s.killSandboxes(ctx)}
	if err := s.stop(); err == nil {
		select {
		case <-s.exited:
			if s.err != nil {
				errs = append(errs, fmt.Errorf("the server ended: %w%s", s.err, s.lastWords()))
			}
		case <-ctx.Done():
			errs = append(errs, context.Cause(ctx))
			if s.kill != nil {
				errs = append(errs, s.kill())
				<-s.exited
			}
		}
	}
	if k, err := keeper.Dial(ctx, s.dir); err == nil {
		errs = append(errs, k.Stop(ctx, true)) // and with it what the server left running
		await(ctx, k.Done())
	}
	if e, err := egress.Dial(ctx, s.dir); err == nil {
		errs = append(errs, e.Stop(ctx))
		await(ctx, e.Done())
	}
	errs = append(errs, sweepDataDir(ctx, s.dir))
	return errors.Join(errs...)
}

func await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// killSandboxes ends what the server runs, through the server if it still answers.
func (s *ownServer) killSandboxes(ctx context.Context) error {
	select {
	case <-s.exited:
		return nil
	default:
	}
	c, err := apiclient.New(s.url, apiclient.WithKey(s.key), apiclient.WithRetries(0))
	if err != nil {
		return nil // it never was ready, and runs nothing
	}
	for sb, err := range c.Sandboxes(ctx, apiclient.SandboxFilter{}) {
		if err != nil {
			return fmt.Errorf("list what the server runs: %w", err)
		}
		if err := c.Kill(ctx, sb.ID); err != nil {
			return fmt.Errorf("kill %s: %w", sb.ID, err)
		}
	}
	return nil
}

// sweepDataDir removes what is on the host of the sandboxes of a data directory that no
// server works in.
func sweepDataDir(ctx context.Context, dir string) error {
	rt := gvisor.New(gvisor.Config{
		StateDir: filepath.Join(dir, "run"), CgroupParent: cgroupParent(dir), Log: slog.New(slog.DiscardHandler),
	})
	return sweepRuntime(ctx, rt)
}

func sweepRuntime(ctx context.Context, rt *gvisor.Runtime) error {
	ids, err := rt.List(ctx)
	for _, id := range ids {
		err = errors.Join(err, rt.Sweep(ctx, id))
	}
	return errors.Join(err, rt.Close())
}

// poll asks until the answer is yes, an error, or ctx ends.
func poll(ctx context.Context, ask func(context.Context) (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := ask(ctx)
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
