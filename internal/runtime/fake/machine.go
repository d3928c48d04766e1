package fake

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestlink"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/pidfd"
)

// mode is what a machine settled in.
type mode int

const (
	created mode = iota
	starting
	running
	paused
	broken // a start failed: only Kill is of use
	dead
)

// machine is one sandbox on the host. It is alive as long as its process is.
type machine struct {
	host *Host
	spec runtime.Spec

	stdin  *os.File      // keeps the process alive; closed by the kernel if we die
	proc   *os.Process   // the sandbox's first process, as the host sees it
	reaped chan struct{} // closed once the process is gone and nothing of the machine runs

	kills atomic.Int64 // by the kernel, for memory
	short atomic.Bool  // of memory

	mu        sync.Mutex
	mode      mode
	oom, pids bool
	guestEnd  *os.File // guest's end of the stream
	linkEnd   *os.File // inside's end of the link
	guest     *Guest   // nil until started
	stop      context.CancelFunc
	stopped   chan struct{} // closed when the guest's server has returned; nil until started
	sandboxes []*Sandbox    // who is told of its end
	startedAt time.Time
	peak      int64 // most memory that Stats has seen
	yields    bool  // stands back
}

// newMachine makes a machine and the handles of the one who made it.
func newMachine(h *Host, spec runtime.Spec) (m *machine, handles runtime.Handles, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	pair := func(kind int, name string) (a, b *os.File) {
		if err != nil {
			return nil, nil
		}
		var fds [2]int
		if fds, err = syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0); err != nil {
			err = fmt.Errorf("make the %s: %w", name, err)
			return nil, nil
		}
		a, b = os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
		files = append(files, a, b)
		return a, b
	}
	m = &machine{host: h, spec: spec, reaped: make(chan struct{})}
	handles.LinkKind = runtime.LinkPackets
	handles.Guest, m.guestEnd = pair(syscall.SOCK_STREAM, "guest stream")
	handles.Link, m.linkEnd = pair(syscall.SOCK_SEQPACKET, "link")
	if err != nil {
		return nil, handles, err
	}
	proc, err := m.spawn()
	if err != nil {
		return nil, handles, fmt.Errorf("start the sandbox's process: %w", err)
	}
	handles.Procs = []*os.File{proc}
	return m, handles, nil
}

// spawn starts the machine's process, and what buries it. The process is a cat whose
// input ends with us: whatever happens to a test, it leaves none behind.
func (m *machine) spawn() (_ *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.CommandContext(context.Background(), "cat") // its life is the machine's, no caller's
	cmd.Stdin = r
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return nil, err
	}
	// A pidfd of its own, not the one that os.Process waits on: whoever waits on this one
	// makes it non-blocking, and then a wait on any duplicate of it fails.
	f, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		_ = w.Close()
		_ = cmd.Wait()
		return nil, err
	}
	m.stdin, m.proc = w, cmd.Process
	m.host.wait.Go(func() {
		_ = cmd.Wait() // however it ended: killed by us, or by a holder of its pidfd
		_ = w.Close()
		m.bury()
	})
	return f, nil
}

// exit ends the machine's process. What follows from that is bury's.
func (m *machine) exit(oom bool) {
	m.mu.Lock()
	if m.mode != dead {
		m.oom = m.oom || oom
	}
	m.mu.Unlock()
	_ = m.proc.Kill() // it may be gone already
}

// bury ends all there is of a machine whose process is gone.
func (m *machine) bury() {
	m.mu.Lock()
	m.mode = dead
	guest, stop, stopped := m.guest, m.stop, m.stopped
	m.mu.Unlock()
	if guest != nil {
		guest.die()
	}
	if stop != nil {
		stop()
		<-stopped
	}
	_ = m.guestEnd.Close()
	_ = m.linkEnd.Close()

	m.mu.Lock()
	told := m.sandboxes
	m.sandboxes = nil
	m.mu.Unlock()
	for _, s := range told {
		s.tellExit(runtime.Event{OOM: m.oom, Pids: m.pids})
	}
	close(m.reaped)
}

// boot lets the guest go.
func (m *machine) boot(state *snapshot) error {
	ctx, cancel := context.WithCancel(context.Background())
	g := newGuest(m, state)
	g.silent = m.host.deafens()
	m.mu.Lock()
	if err := m.goneLocked(); err != nil {
		m.mu.Unlock()
		cancel()
		return err
	}
	m.mode = running
	m.guest, m.stop, m.stopped = g, cancel, make(chan struct{})
	m.startedAt = time.Now()
	m.mu.Unlock()
	m.host.wait.Go(func() {
		defer close(m.stopped)
		err := guestlink.Serve(ctx, &gated{f: m.guestEnd, g: g}, g.mux())
		if ctx.Err() == nil && err != nil {
			m.exit(false) // every node's end is closed: a first process ends with its stream
		}
	})
	g.resumeExecs()
	return nil
}

// emit tells the node of an event that is not the end.
func (m *machine) emit(k runtime.Kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sandboxes {
		s.tell(runtime.Event{Kind: k})
	}
}

// goneLocked is the error of a call to a dead machine; nil while it lives.
func (m *machine) goneLocked() error {
	if m.mode == dead {
		return hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s has ended", m.spec.ID)
	}
	return nil
}

// gated is the guest's stream: it stands still while the guest does.
type gated struct {
	f *os.File
	g *Guest
}

func (s *gated) Read(p []byte) (int, error) {
	n, err := s.f.Read(p)
	s.g.thaw()
	return n, err
}

func (s *gated) Write(p []byte) (int, error) {
	s.g.thaw()
	return s.f.Write(p)
}

func (s *gated) SetWriteDeadline(t time.Time) error { return s.f.SetWriteDeadline(t) }

func (s *gated) Close() error { return s.f.Close() }

var _ io.ReadWriteCloser = (*gated)(nil)

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
