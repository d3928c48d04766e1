package keeper

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/fdpass"
	"hutch.dev/hutch/internal/x/pidfd"
)

// held is one stored descriptor. Those that are no processes are bare numbers, so that
// Go's poller does not watch them: it would wake the keeper at every packet.
type held struct {
	label string
	fd    int      // -1 if proc is set
	proc  *os.File // a pidfd
}

// hold makes entries of received descriptors and takes them over, also on failure.
func hold(infos []FileInfo, fds []int) ([]held, error) {
	files := make([]held, len(fds))
	for i, fd := range fds {
		files[i] = held{label: infos[i].Label, fd: fd}
		if infos[i].Process {
			files[i].fd, files[i].proc = -1, os.NewFile(uintptr(fd), "pidfd")
		}
	}
	for _, f := range files {
		if f.proc == nil {
			continue
		}
		if err := pidfd.Signal(f.proc, 0); err != nil && !errors.Is(err, os.ErrProcessDone) {
			closeHeld(files)
			return nil, hutch.Errorf(hutch.CodeBadRequest, "file %q is not a process that the keeper may end", f.label)
		}
	}
	return files, nil
}

// firstProc is the process whose exit is the sandbox's end.
func firstProc(files []held) *os.File {
	for _, f := range files {
		if f.proc != nil {
			return f.proc
		}
	}
	return nil
}

func closeHeld(files []held) {
	for _, f := range files {
		if f.proc != nil {
			_ = f.proc.Close()
		} else {
			_ = unix.Close(f.fd)
		}
	}
}

func dupHeld(files []held) ([]int, error) {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		var fd int
		var err error
		if f.proc != nil {
			fd, err = fdpass.Dup(f.proc)
		} else {
			fd, err = fdpass.DupFD(f.fd)
		}
		if err != nil {
			fdpass.CloseAll(fds)
			return nil, fmt.Errorf("duplicate %s: %w", f.label, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
