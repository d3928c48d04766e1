package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/gvisor/gen"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

// labelFile says, in a snapshot's directory, what the snapshot is good for.
const labelFile = "hutch.json"

// label is what must be equal for a snapshot to be restored. gVisor's own check is
// off, since it wants paths to be equal that are each sandbox's own. What is not here
// may differ: id, hostname, memory, share of the CPU.
type label struct {
	Runtime  string         `json:"runtime"`
	Version  string         `json:"version"` // of gVisor
	DiskTier hutch.DiskTier `json:"disk_tier"`
	Disk     string         `json:"disk"`  // cap of the writable layer; part of the saved state
	CPUs     int            `json:"cpus"`  // as seen inside; part of the saved state
	Image    string         `json:"image"` // file name of the root image, whose content stays outside
	Guest    string         `json:"guest"` // file name of the guest agent's image, likewise
	Locked   bool           `json:"locked"`
}

func (s *sandbox) label() label {
	res := s.spec.Resources
	return label{
		Runtime: s.r.Name(), Version: gen.GvisorVersion,
		DiskTier: res.DiskTier, Disk: diskSize(res), CPUs: res.CPUs(),
		Image: filepath.Base(s.spec.Image), Guest: filepath.Base(s.spec.Guest),
		Locked: locked(s.spec),
	}
}

// Checkpoint writes memory and disk of the running sandbox into dir. It does not
// sync what it wrote.
func (s *sandbox) Checkpoint(ctx context.Context, dir string, leaveRunning bool) error {
	end, err := s.begin(ctx, "a checkpoint", running)
	if err != nil {
		return err
	}
	defer end()
	if leaveRunning {
		return s.fail(s.save(ctx, dir), "saved")
	}
	// Paused first: what is saved must be all it ever did, and a save that fails, or
	// whose answer does not come, must not end it.
	if err := s.flip(ctx, boot.ContMgrPause, pausing, leaving); err != nil {
		return s.fail(err, "saved")
	}
	if err := s.save(ctx, dir); err != nil {
		if pidfd.Alive(s.procs[0]) {
			err = errors.Join(err, s.flip(ctx, boot.ContMgrResume, resuming, running))
		}
		return s.fail(err, "saved")
	}
	return s.fail(s.end(ctx), "ended")
}

// save makes the sentry write itself into dir. If it fails, dir is as it was.
func (s *sandbox) save(ctx context.Context, dir string) (err error) {
	there, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into snapshot directory: %w", err)
	}
	if len(there) > 0 {
		return hutch.Wrap(hutch.CodeInternal, fmt.Errorf("%s is not empty", dir), "the place for the snapshot is not empty")
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
			if err != nil {
				os.Remove(f.Name())
			}
		}
	}()
	create := func(name string) (*os.File, error) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("create snapshot: %w", err)
		}
		files = append(files, f)
		return f, nil
	}
	for _, name := range snapshotFiles {
		if _, err := create(name); err != nil {
			return err
		}
	}
	payload := append([]*os.File(nil), files...)
	lf, err := create(labelFile)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(lf).Encode(s.label()); err != nil {
		return fmt.Errorf("label snapshot: %w", err)
	}
	return s.call(ctx, call{
		method: boot.ContMgrCheckpoint,
		arg: &control.SaveOpts{
			Metadata:      statefile.CompressionLevelNone.ToMetadata(),
			HavePagesFile: true,
			Resume:        true, // without it the sentry ends itself, and too early
		},
		files: payload,
		limit: s.saveLimit(),
	})
}

// checkSnapshot refuses a snapshot that this sandbox cannot be started from.
func (s *sandbox) checkSnapshot(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, labelFile))
	if errors.Is(err, fs.ErrNotExist) {
		return hutch.Wrap(hutch.CodeBadRequest, err, "that is no snapshot of this runtime")
	}
	if err != nil {
		return fmt.Errorf("read label of snapshot: %w", err)
	}
	var got label
	if err := json.Unmarshal(b, &got); err != nil {
		return fmt.Errorf("decode label of snapshot: %w", err)
	}
	if why := got.unlike(s.label()); why != "" {
		return hutch.Errorf(hutch.CodeUnsupported, "sandbox %s cannot start from this snapshot: %s", s.id, why)
	}
	return nil
}

// unlike says why a sandbox labelled want cannot start from a snapshot labelled l;
// empty if it can.
func (l label) unlike(want label) string {
	switch {
	case l.Runtime != want.Runtime:
		return fmt.Sprintf("it was made by the runtime %q, this is %q", l.Runtime, want.Runtime)
	case l.Version != want.Version:
		return "it was made by another version of gVisor; start from the template instead"
	case l.DiskTier != want.DiskTier || l.Disk != want.Disk:
		return fmt.Sprintf("it has a disk of %s on tier %q, the sandbox one of %s on tier %q", l.Disk, l.DiskTier, want.Disk, want.DiskTier)
	case l.CPUs != want.CPUs:
		return fmt.Sprintf("it has %d CPUs, the sandbox %d", l.CPUs, want.CPUs)
	case l.Image != want.Image:
		return "it was made from another root image"
	case l.Guest != want.Guest:
		return "it was made with another guest agent"
	case l.Locked != want.Locked:
		return "it was made with another profile"
	}
	return ""
}

// Pause stops every CPU of the sandbox.
func (s *sandbox) Pause(ctx context.Context) error {
	end, err := s.begin(ctx, "pausing", running, paused)
	if err != nil {
		return err
	}
	defer end()
	if s.phase() == paused {
		return nil
	}
	return s.fail(s.flip(ctx, boot.ContMgrPause, pausing, paused), "paused")
}

// Resume lets a paused sandbox go on.
func (s *sandbox) Resume(ctx context.Context) error {
	end, err := s.begin(ctx, "resuming", running, paused)
	if err != nil {
		return err
	}
	defer end()
	if s.phase() == running {
		return nil
	}
	return s.fail(s.flip(ctx, boot.ContMgrResume, resuming, running), "resumed")
}

// flip makes a call that must be made exactly once: the sentry counts pauses, and one
// resume too many ends it. So the record says what is under way before and after, and
// if the answer did not come, this process cannot tell how often the call was made: the
// sandbox stays in the phase between, in which only Kill is of use, or Adopt, which finds out.
func (s *sandbox) flip(ctx context.Context, method string, during, after phase) error {
	before := s.phase()
	if err := s.enter(during); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rec.Phase = before // as the record still has it: no call was made
		return err
	}
	failpoint.At(failpoint.MachineTurning)
	// Not to be given up by a caller who leaves: it takes half a millisecond.
	ctx = context.WithoutCancel(ctx)
	if err := s.call(ctx, call{method: method, limit: pauseLimit}); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineTurned)
	return s.enter(after)
}
