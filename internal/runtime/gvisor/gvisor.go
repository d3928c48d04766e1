// Package gvisor runs sandboxes under gVisor, whose user-space kernel is part of our
// own binary: the binary executes itself as gVisor's runsc.
//
// It owns a sandbox's processes (sentry and, on the disk tier, gofer), control
// groups, state directory, and the descriptors the sandbox lives by. It does not own
// what travels on the guest stream or on the link, nor any record of a sandbox that
// outlives the sandbox. No gVisor type leaves it.
//
// How a sandbox is made: a child of the binary enters the sandbox's control groups
// and becomes `runsc create`, so that nothing of a sandbox ever runs outside them.
// From then on the sentry is driven over its control socket only. See docs/gvisor.md
// for what was measured and why the flags are what they are.
//
// Invariants:
//   - whatever exists of a sandbox can be found by its state directory, by its
//     control groups, or by the arguments of its processes, each alone; Sweep uses all.
//   - nothing that a sandbox can do keeps Kill from ending it: Kill talks to the
//     kernel, never to the sandbox.
//   - every call to a sentry has a deadline, and its answer a size limit.
//
// Lock order: sandbox.op, then sandbox.mu, then Runtime.mu. Neither mu is held
// across I/O. Kill takes sandbox.killing instead of op, so it never waits for a call.
//
// Start with [New] and Runtime.Create.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	stdruntime "runtime"
	"sync"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/cgroup"
)

// headroom is added to a sandbox's memory for what is not its programs': an idle
// sentry is charged 10 to 16 MiB, each process inside some 4 MiB on top of its own.
const headroom = 64 << 20

// Config of a [Runtime].
type Config struct {
	// StateDir is where sandboxes leave what must be found after a restart, and the
	// disk tier's writable layers. An absolute path of at most 70 bytes, since
	// control sockets live below it.
	StateDir string
	// Exe is the binary to execute as runsc, a build of cmd/hutch without cgo. Empty
	// means the running executable. It must be executable by everyone: a sentry is
	// not root when it executes itself.
	Exe string
	// CgroupParent names the directory, at the root of each cgroup hierarchy, that
	// the sandboxes' groups are made in; two runtimes must not share one. Empty
	// means "hutch".
	CgroupParent string
	// MaxCreating is how many creates run at once; more wait. 0 means two for each
	// CPU: measured, more only make all of them slower.
	MaxCreating int
	// Log takes what the operator should know. Required.
	Log *slog.Logger
}

// Runtime is the gVisor isolator of this host. It implements runtime.Runtime.
type Runtime struct {
	cfg      Config
	log      *slog.Logger
	creating chan struct{} // one element for each create under way
	tree     func() (*cgroup.Tree, error)
	known    knownProcs // of the last look that was not deep

	mu    sync.Mutex
	boxes map[hutch.SandboxID]*sandbox // nil value: being made or adopted
}

var _ runtime.Runtime = (*Runtime)(nil)

// New returns a Runtime. It does no I/O.
func New(cfg Config) *Runtime {
	if cfg.CgroupParent == "" {
		cfg.CgroupParent = "hutch"
	}
	if cfg.MaxCreating == 0 {
		cfg.MaxCreating = 2 * stdruntime.NumCPU()
	}
	return &Runtime{
		cfg:      cfg,
		log:      cfg.Log.With("component", "gvisor"),
		creating: make(chan struct{}, cfg.MaxCreating),
		tree: sync.OnceValues(func() (*cgroup.Tree, error) {
			return cgroup.Detect(cfg.CgroupParent)
		}),
		boxes: map[hutch.SandboxID]*sandbox{},
	}
}

// Name returns "gvisor".
func (r *Runtime) Name() string { return "gvisor" }

// reserve takes id for a create or an adoption, and returns what gives it back.
func (r *Runtime) reserve(id hutch.SandboxID) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.boxes[id]; taken {
		return nil, hutch.Errorf(hutch.CodeConflict, "a sandbox %s exists already", id)
	}
	r.boxes[id] = nil
	return func() { r.forget(id) }, nil
}

func (r *Runtime) hold(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boxes[s.id] = s
}

func (r *Runtime) forget(id hutch.SandboxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.boxes, id)
}

// admit waits for a free place among the creates.
func (r *Runtime) admit(ctx context.Context) (leave func(), err error) {
	select {
	case r.creating <- struct{}{}:
		return func() { <-r.creating }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a free place to create a sandbox: %w", context.Cause(ctx))
	}
}

// exe returns the binary to execute as runsc.
func (r *Runtime) exe() (string, error) {
	exe := r.cfg.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find own executable: %w", err)
		}
	}
	fi, err := os.Stat(exe)
	if err != nil {
		return "", fmt.Errorf("find binary to run as runsc (run `make build`): %w", err)
	}
	if fi.Mode()&0o001 == 0 {
		return "", fmt.Errorf("binary %s must be executable by everyone (chmod 755): a sentry that is not root executes it", exe)
	}
	return exe, nil
}

// The files below StateDir.

// rootDir is runsc's own state directory.
func (r *Runtime) rootDir() string { return filepath.Join(r.cfg.StateDir, "runsc") }

// emptyDir stands for a root directory where the root is an image, and for the one
// bind mount that makes runsc start a gofer.
func (r *Runtime) emptyDir() string { return filepath.Join(r.cfg.StateDir, "empty") }

func (r *Runtime) boxesDir() string { return filepath.Join(r.cfg.StateDir, "sandboxes") }

func (r *Runtime) boxDir(id hutch.SandboxID) string {
	return filepath.Join(r.boxesDir(), string(id))
}

// socket is where a sentry listens; the name is runsc's choice.
func (r *Runtime) socket(id hutch.SandboxID) string {
	return filepath.Join(r.rootDir(), "runsc-"+string(id)+".sock")
}

// runscFiles are the files that runsc makes for id.
func (r *Runtime) runscFiles(id hutch.SandboxID) []string {
	base := filepath.Join(r.rootDir(), string(id)+"_sandbox:"+string(id))
	return []string{base + ".state", base + ".lock", r.socket(id)}
}

// layOut makes the directories that all sandboxes share.
func (r *Runtime) layOut() error {
	if !filepath.IsAbs(r.cfg.StateDir) {
		return fmt.Errorf("state directory %q must be an absolute path", r.cfg.StateDir)
	}
	if n, most := len(r.socket("i12345678901234567890")), len(unix.RawSockaddrUnix{}.Path)-1; n > most {
		return fmt.Errorf("state directory %s is %d bytes too long for the control sockets in it", r.cfg.StateDir, n-most)
	}
	return errors.Join(
		os.MkdirAll(r.boxesDir(), 0o711),
		os.MkdirAll(r.rootDir(), 0o711),
		os.MkdirAll(r.emptyDir(), 0o755),
	)
}
