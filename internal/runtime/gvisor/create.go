package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/cgroup"
	"hutch.dev/hutch/internal/x/cleanup"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

const (
	// undoLimit bounds the removal of a half-made sandbox.
	undoLimit = 20 * time.Second
	// linkBuffer is the send buffer of both ends of a link: with the kernel's
	// default, 200 KiB, throughput halves.
	linkBuffer = 4 << 20
	// guestBuffer is the send buffer of both ends of a guest stream. Each call into gVisor's
	// kernel costs some 20 µs and moves at most this much; with the default a frame of
	// package guestlink, 256 KiB, does not go in one. The kernel counts its own overhead
	// in, up to half of it.
	guestBuffer = 512 << 10
	// When memory is out, the kernel ends a sandbox's programs, which inherit
	// oomProgram, before its sentry and its guest agent, whose end is the sandbox's,
	// and before anything else of the host. All of a sandbox's memory counts as its
	// sentry's too, which it maps, so the distance must be more than the limit itself;
	// where we may not lower a score (without CAP_SYS_RESOURCE) it is just the limit.
	oomProgram = "1000"
	oomSentry  = "-500"
	oomLowest  = "0"
	// maxComplaint is how much is kept of what runsc says of a failed create.
	maxComplaint = 2048
)

// hostPids caps a sandbox's processes and threads on the host. A process inside is
// two tasks outside; the sentry's own threads grow with the host's CPUs. It is a
// backstop: the guest agent's cap inside ends a fork bomb gently, but root inside can
// lift that one, and running into this one ends the sandbox.
func hostPids(res hutch.Resources) int { return 3*res.Pids + 512 }

// Create prepares a sandbox.
func (r *Runtime) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	release, err := r.reserve(spec.ID)
	if err != nil {
		return nil, err
	}
	undo := cleanup.New(release)
	defer undo.Run()
	begun := time.Now()
	leave, err := r.admit(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	s := newSandbox(r, spec)
	s.stage("queue", begun)
	if err := s.create(ctx, undo); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, context.Cause(ctx))
		}
		var known *hutch.Error
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, hutch.Wrap(hutch.CodeInternal, err, "the machine of sandbox %s could not be made", spec.ID)
	}
	failpoint.At(failpoint.MachinePrepared)
	undo.Release()
	s.r.hold(s)
	s.watch()
	return s, nil
}

// create makes everything of the sandbox, and adds to undo what it has made.
func (s *sandbox) create(ctx context.Context, undo *cleanup.Stack) error {
	lap := time.Now()
	exe, err := s.r.exe()
	if err != nil {
		return err
	}
	if err := s.r.layOut(); err != nil {
		return err
	}
	if err := s.claim(undo); err != nil {
		return err
	}
	if err := s.r.writeBundle(s.spec); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	failpoint.At(failpoint.MachineBundle)
	s.stage("cgroups", lap)

	lap = time.Now()
	guestIn, linkIn, err := s.openStreams(undo)
	if err != nil {
		return err
	}
	defer guestIn.Close()
	defer linkIn.Close()
	out, err := newConsole()
	if err != nil {
		return err
	}
	defer out.Close()
	if err := s.runCreate(ctx, exe, guestIn, out); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineProcesses)
	s.stage("child", lap)

	lap = time.Now()
	if err := s.takeProcs(undo); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineHandles)
	// Now rather than at the start, so that nothing but the handles is needed to
	// start the sandbox, by whichever process comes to do it.
	if err := s.call(ctx, networkCall(linkIn)); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineLink)
	s.stage("link", lap)
	return s.enter(prepared)
}

// claim makes the sandbox's directory and control groups. That either exists means
// that the id is taken: by a sandbox, or by the remains of one.
func (s *sandbox) claim(undo *cleanup.Stack) error {
	tree, err := s.r.tree()
	if err != nil {
		return err
	}
	taken := hutch.Errorf(hutch.CodeConflict, "a sandbox %s, or what is left of one, exists already", s.id)
	if err := os.Mkdir(s.r.boxDir(s.id), 0o711); errors.Is(err, fs.ErrExist) {
		return taken
	} else if err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	failpoint.At(failpoint.MachineDir)
	undo.Add(func() {
		if err := s.r.removeFiles(s.id); err != nil {
			s.log.Error("files of half-made sandbox are left over", "op", "create", "err", err)
		}
	})
	s.group, err = tree.Create(string(s.id), limits(s.spec.Resources))
	if errors.Is(err, fs.ErrExist) {
		return taken
	} else if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	failpoint.At(failpoint.MachineGroup)
	undo.Add(func() {
		ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
		defer cancel()
		if err := s.group.Remove(ctx); err != nil {
			s.log.Error("half-made sandbox is left over", "op", "create", "err", err)
		}
	})
	return nil
}

// limits are those of the sandbox's control groups from the beginning. That of the
// CPU comes when the sandbox has started: making a machine takes 50 ms of CPU time or
// so, which with a tenth of a CPU would take half a second.
func limits(res hutch.Resources) cgroup.Limits {
	memory := int64(res.MemoryMB)<<20 + headroom
	return cgroup.Limits{Memory: memory, MemoryHigh: memoryHigh(memory), Pids: hostPids(res)}
}

// limitCPU gives the sandbox its share of the CPU.
func (s *sandbox) limitCPU() error {
	return s.group.Limit(cgroup.Limits{MilliCPU: s.spec.Resources.MilliCPU})
}

// openStreams makes the guest stream and the link. It keeps the host's ends and
// returns the sandbox's.
func (s *sandbox) openStreams(undo *cleanup.Stack) (guestIn, linkIn *os.File, err error) {
	s.guest, guestIn, err = socketpair(unix.SOCK_STREAM, "guest stream")
	if err != nil {
		return nil, nil, err
	}
	undo.Add(func() { s.guest.Close() })
	s.link, linkIn, err = socketpair(unix.SOCK_SEQPACKET, "link")
	if err != nil {
		guestIn.Close()
		return nil, nil, err
	}
	undo.Add(func() { s.link.Close() })
	err = withFDs([]*os.File{s.guest, guestIn, s.link, linkIn}, nil, func(fds []int) error {
		for i, size := range []int{guestBuffer, guestBuffer, linkBuffer, linkBuffer} {
			if err := unix.SetsockoptInt(fds[i], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
				return fmt.Errorf("size buffers of streams: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		guestIn.Close()
		linkIn.Close()
		return nil, nil, err
	}
	return guestIn, linkIn, nil
}

func socketpair(kind int, name string) (host, sandbox *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make %s: %w", name, err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// runCreate executes ourselves as `runsc create`, which leaves a sentry, and on the
// disk tier a gofer, in which nothing runs yet. What it is given as standard input
// becomes that of the first process inside.
func (s *sandbox) runCreate(ctx context.Context, exe string, guestIn, out *os.File) error {
	args := append([]string{RunscCommand}, s.r.flags(s.spec)...)
	args = append(args, "create", "--bundle="+s.r.boxDir(s.id), string(s.id))
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = guestIn, out, out
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if dir := s.group.Dir(); dir != "" {
		d, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("open cgroup: %w", err)
		}
		defer d.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.Fd())
	} else {
		cmd.Env = append(cmd.Env, enterEnv+"="+strings.Join(s.group.ProcsFiles(), ":"))
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run runsc create: %w%s", err, complaint(out))
	}
	return nil
}

// complaint is what a failed runsc wrote, for the operator.
func complaint(out *os.File) string {
	b := make([]byte, maxComplaint)
	n, _ := out.ReadAt(b, 0)
	said := strings.TrimSpace(string(bytes.Trim(b[:n], "\x00")))
	if said == "" {
		return ""
	}
	return ": " + said
}

// takeProcs opens the sandbox's processes, which runsc named in its state file.
func (s *sandbox) takeProcs(undo *cleanup.Stack) error {
	b, err := os.ReadFile(s.r.runscFiles(s.id)[0])
	if err != nil {
		return fmt.Errorf("read what runsc made: %w", err)
	}
	var state struct {
		GoferPID int `json:"goferPid"`
		Sandbox  struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(b, &state); err != nil {
		return fmt.Errorf("decode what runsc made: %w", err)
	}
	for _, p := range []struct {
		pid int
		rec *proc
	}{{state.Sandbox.PID, &s.rec.Sentry}, {state.GoferPID, &s.rec.Gofer}} {
		if p.pid == 0 && p.rec == &s.rec.Gofer {
			continue
		}
		f, start, err := s.r.openProc(p.pid, s.id)
		if err != nil {
			return err
		}
		undo.Add(func() { f.Close() })
		s.procs = append(s.procs, f)
		*p.rec = proc{PID: p.pid, Start: start}
		if err := spare(p.pid); err != nil {
			return err
		}
		if !pidfd.Alive(f) {
			return errors.New("a process of the sandbox ended as soon as it was made")
		}
	}
	if s.spec.Resources.DiskTier == hutch.TierDisk {
		if s.upper, err = openUpper(state.Sandbox.PID, s.r.upperDir(s.id)); err != nil {
			return err
		}
		undo.Add(func() { s.upper.Close() })
	}
	return nil
}

// spare makes the kernel end the process pid after the sandbox's programs. That it is
// gone is fs.ErrNotExist or ESRCH.
func spare(pid int) error {
	file := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	err := put(file, oomSentry)
	if errors.Is(err, fs.ErrPermission) {
		err = put(file, oomLowest)
	}
	if err != nil {
		return fmt.Errorf("set order of out-of-memory kills: %w", err)
	}
	return nil
}
