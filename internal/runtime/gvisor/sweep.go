package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

// sweepEvery is how often Sweep looks for processes that are still there.
const sweepEvery = 5 * time.Millisecond

// Sweep ends and removes whatever is left of id.
func (r *Runtime) Sweep(ctx context.Context, id hutch.SandboxID) error {
	// An id is a name in paths below; one that is none must not lead elsewhere.
	if id == "" || strings.ContainsAny(string(id), "/\x00") || filepath.Clean(string(id)) != string(id) || id == ".." || id == "." {
		return hutch.FieldErrorf("id", "%q is no sandbox id", id)
	}
	r.mu.Lock()
	s := r.boxes[id]
	r.mu.Unlock()
	if s != nil {
		if err := s.Kill(ctx); err != nil {
			return err
		}
	}
	if err := r.sweep(ctx, id); err != nil {
		return hutch.Wrap(hutch.CodeInternal, err, "what is left of sandbox %s could not be removed", id)
	}
	return nil
}

func (r *Runtime) sweep(ctx context.Context, id hutch.SandboxID) error {
	if err := r.sweepProcs(ctx, id); err != nil {
		return err
	}
	failpoint.At(failpoint.SweepKilled)
	tree, err := r.tree()
	if err != nil {
		return err
	}
	group, err := tree.Open(string(id))
	if err == nil {
		err = group.Remove(ctx)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.At(failpoint.SweepNoGroup)
	// Once more: a create under way when the first look was taken may have gone on
	// until its group was killed.
	if err := r.sweepProcs(ctx, id); err != nil {
		return err
	}
	if err := r.removeFiles(id); err != nil {
		return err
	}
	failpoint.At(failpoint.SweepNoFiles)
	return nil
}

// sweepProcs kills the processes of id until a look at all processes finds none.
func (r *Runtime) sweepProcs(ctx context.Context, id hutch.SandboxID) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		procs, err := r.scan()
		if err != nil {
			return fmt.Errorf("look for processes: %w", err)
		}
		left := false
		for _, p := range procs {
			if p.id != id {
				continue
			}
			if err := r.endProc(p); err != nil {
				return fmt.Errorf("kill process %d: %w", p.pid, err)
			}
			left = true
		}
		if !left {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *Runtime) endProc(p hostProc) error {
	f, _, err := r.openProc(p.pid, p.id)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := pidfd.Signal(f, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	reap(p.pid)
	return nil
}
