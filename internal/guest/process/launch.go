package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/machine"
)

// launched is what came of trying to start a program: a process, or the reason there is
// none, in a shell's terms.
type launched struct {
	pid  int
	exit <-chan exit

	end      hutch.ExecEnd // set when there is no process
	exitCode int
	sentence string // for stderr
}

// launch starts the program of p with the files as its 0, 1 and 2. An error is about
// the request; that the program cannot be run is not one.
func (e *Exec) launch(p plan, files [3]*os.File) (launched, error) {
	t := e.table
	if err := p.checkCwd(); err != nil {
		return launched{}, err
	}
	p.env["PWD"] = p.cwd // the path as it was asked for, which a link would hide
	env := p.environ(e.id)
	if err := p.checkSize(e.spec.Cmd != "", env); err != nil {
		return launched{}, err
	}
	attr := &syscall.ProcAttr{
		Dir:   p.cwd,
		Env:   env,
		Files: descriptors(files),
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: p.user.UID, Gid: p.user.GID, Groups: p.user.Groups},
		},
	}
	if e.spec.Terminal != nil {
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	var failed error = unix.ENOENT
	for _, path := range p.candidates() {
		if !runnable(path) && len(p.candidates()) > 1 {
			if _, err := os.Stat(path); err == nil {
				failed = unix.EACCES // there, but not a program: say that if there is no other
			}
			continue
		}
		pid, exited, err := t.fork(path, p.argv, attr, e)
		if err == nil {
			return launched{pid: pid, exit: exited}, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			failed = err
		}
		if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			break // as execvp does: only these let the search go on
		}
	}
	return explain(failed, p)
}

// descriptors are those of the files; one that is missing is the first one again.
func descriptors(files [3]*os.File) []uintptr {
	var fds []uintptr
	for _, f := range files {
		if f == nil {
			f = files[0]
		}
		fds = append(fds, f.Fd())
	}
	return fds
}

// runnable reports whether path is a file that somebody may execute. It is a look ahead as
// root that spares a fork for each directory of PATH; the kernel decides.
func runnable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// fork starts path in the group of e, and without what the kernel does not have: a control
// group that is gone again, or control group namespaces.
func (t *Table) fork(path string, argv []string, attr *syscall.ProcAttr, e *Exec) (int, <-chan exit, error) {
	group := e.group
	for {
		t.mu.Lock()
		jail := group != nil && !t.noJail
		t.mu.Unlock()
		attr.Sys.UseCgroupFD, attr.Sys.Unshareflags = false, 0
		if group != nil {
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, group.FD()
		}
		if jail {
			// A control group namespace of its own keeps the tree from moving itself out.
			attr.Sys.Unshareflags = unix.CLONE_NEWCGROUP
		}
		pid, exited, err := t.reaper.start(func() (int, error) { return forkExec(path, argv, attr, e.settings.Locked) })
		switch {
		case err == nil:
			return pid, exited, nil
		case jail && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)):
			t.mu.Lock()
			t.noJail = true
			t.mu.Unlock()
		case group != nil && (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EBADF) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOSYS)):
			t.cfg.Log.Warn("starting a command without a control group", "err", err)
			group = nil
		default:
			return 0, nil, err
		}
	}
}

// forkExec starts a program, which inherits from the thread that forks what it must not gain.
func forkExec(path string, argv []string, attr *syscall.ProcAttr, locked bool) (int, error) {
	if locked {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := machine.Drop(); err != nil {
			return 0, err
		}
	}
	return syscall.ForkExec(path, argv, attr)
}

// checkCwd makes sure of the directory before anything is started, and falls back to the
// root for one that nobody asked for.
func (p *plan) checkCwd() error {
	st, err := os.Stat(p.cwd)
	switch {
	case err == nil && st.IsDir():
		return nil
	case p.cwdField == "":
		p.cwd = "/"
		return nil
	case err == nil:
		return hutch.FieldErrorf(p.cwdField, "%q is not a directory", p.cwd)
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return hutch.FieldErrorf(p.cwdField, "there is no directory %q in this sandbox", p.cwd)
	}
	return hutch.FieldErrorf(p.cwdField, "%q cannot be used: %v", p.cwd, errnoText(err))
}

// explain says why there is no process: as an error about the request, or as the end that
// a shell would give such a command.
func explain(err error, p plan) (launched, error) {
	name := fmt.Sprintf("%.200s", p.argv[0])
	l := launched{end: hutch.ExecExit, exitCode: hutch.ExitNotExecutable}
	switch {
	case errors.Is(err, unix.EACCES) && !p.mayEnterCwd():
		return launched{}, hutch.FieldErrorf("cwd", "user %s may not enter %q", p.user.Name, p.cwd)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		l.exitCode = hutch.ExitNotFound
		l.sentence = name + ": not found"
		if strings.Contains(p.argv[0], "/") {
			if _, err := os.Stat(p.candidates()[0]); err == nil {
				l.sentence = name + ": its interpreter was not found"
			}
		} else {
			l.sentence += " in PATH"
		}
	case errors.Is(err, unix.EACCES):
		l.sentence = name + ": permission denied"
	case errors.Is(err, unix.ENOEXEC):
		l.sentence = name + ": not a program of this machine, and no \"#!\" line says what runs it"
	case errors.Is(err, unix.E2BIG): // a kernel that takes less than maxArgs
		return launched{}, hutch.FieldErrorf("argv", "arguments and environment together are longer than the kernel takes")
	case errors.Is(err, unix.EAGAIN):
		l.end = hutch.ExecPidsLimit
		l.sentence = name + ": not started: the sandbox's limit of processes is reached"
	case errors.Is(err, unix.ENOMEM):
		return launched{}, hutch.Wrap(hutch.CodeUnavailable, err, "the sandbox has no memory left to start a process")
	default:
		l.sentence = name + ": " + errnoText(err)
	}
	return l, nil
}

// errnoText is the system's text of an error, without the path it was about.
func errnoText(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "it cannot be used"
}

// mayEnterCwd tries, as the user, what the kernel may have refused at the start.
func (p plan) mayEnterCwd() bool {
	return p.user.Do(func() error { return unix.Faccessat(unix.AT_FDCWD, p.cwd, unix.X_OK, unix.AT_EACCESS) }) == nil
}
