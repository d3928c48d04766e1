package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/x/atomicfile"
	"hutch.dev/hutch/internal/x/pattern"
)

// What a builder keeps in its directory:
//
//	builds/<key>.json   what a build made: a record
//	builds/<key>.log    what it printed
//	work/<key>-<random> a build under way, or one that was killed
//	locks/<key>         held by the build under way; gone when there is none

// record is what is remembered of a build.
type record struct {
	Key        string        `json:"key"`
	BuildID    string        `json:"build_id"`
	Source     string        `json:"source"` // for people: with the digest, of a container image
	Image      string        `json:"image"`
	SizeBytes  int64         `json:"size_bytes"`
	BuiltAt    time.Time     `json:"built_at"`
	SourceDate time.Time     `json:"source_date"`
	Took       time.Duration `json:"took_ns"`
}

func (b *Builder) buildsDir() string            { return filepath.Join(b.cfg.Dir, "builds") }
func (b *Builder) workDir() string              { return filepath.Join(b.cfg.Dir, "work") }
func (b *Builder) locksDir() string             { return filepath.Join(b.cfg.Dir, "locks") }
func (b *Builder) recordPath(key string) string { return filepath.Join(b.buildsDir(), key+".json") }
func (b *Builder) logPath(key string) string    { return filepath.Join(b.buildsDir(), key+".log") }

func (b *Builder) remember(rec record) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return fmt.Errorf("encode build record: %w", err)
	}
	if err := atomicfile.Write(b.recordPath(rec.Key), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write build record: %w", err)
	}
	return nil
}

// cached returns what was built for p, hutch.ErrNotFound if nothing was, or if the
// image is gone or not of its size any more.
func (b *Builder) cached(p plan) (Result, error) {
	data, err := os.ReadFile(b.recordPath(p.key))
	if errors.Is(err, fs.ErrNotExist) {
		return Result{}, hutch.Errorf(hutch.CodeNotFound, "template %s has not been built from this source and these package sources", p.name)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read build record: %w", err)
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return Result{}, hutch.Wrap(hutch.CodeNotFound, err, "the record of template %s is damaged; build it again", p.name)
	}
	img, err := b.images.Image(rec.Image)
	if err == nil && img.SizeBytes != rec.SizeBytes {
		err = rootfs.ErrCorrupt
	}
	if err != nil {
		return Result{}, hutch.Wrap(hutch.CodeNotFound, err, "the root image of template %s is gone; build it again", p.name)
	}
	return b.result(p, rec, img, true), nil
}

// Forget removes what is remembered of the build that a template's record names
// (hutch.Template.Recipe), its log too. The image is the store's; without it, nothing is
// found by the key any more anyway.
func (b *Builder) Forget(key string) error {
	if !keyRE.MatchString(key) {
		return hutch.Errorf(hutch.CodeBadRequest, "%q names no build", key)
	}
	for _, name := range []string{b.recordPath(key), b.logPath(key)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget a build: %w", err)
		}
	}
	return nil
}

// keyRE is what the key of a build looks like.
var keyRE = pattern.New(`^[0-9a-f]{64}$`)

func (b *Builder) result(p plan, rec record, img rootfs.Image, cached bool) Result {
	return Result{
		Name: p.name, Recipe: p.recipe, Source: p.source, record: p.record, Key: rec.Key, BuildID: rec.BuildID, Image: img, BuiltAt: rec.BuiltAt,
		SourceDate: rec.SourceDate, Took: rec.Took, Cached: cached, LogPath: b.logPath(rec.Key),
	}
}

// lockPoll is how often a waiting build looks whether the other is done; builds take
// a minute.
const lockPoll = 50 * time.Millisecond

// lockKey waits until no other build of key is under way and keeps others out until
// unlock is called. It gives up when ctx ends.
func (b *Builder) lockKey(ctx context.Context, key string) (unlock func(), err error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		unlock, ok, err := b.tryLock(key)
		if err != nil || ok {
			return unlock, err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// tryLock takes the lock of key unless somebody has it. The lock's file exists only
// while it is held: whoever locked a file that has no name any more tries again.
func (b *Builder) tryLock(key string) (unlock func(), ok bool, err error) {
	if err := os.MkdirAll(b.locksDir(), 0o755); err != nil {
		return nil, false, fmt.Errorf("make directory of locks: %w", err)
	}
	path := filepath.Join(b.locksDir(), key)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("open lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("take lock: %w", err)
	}
	held, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, false, fmt.Errorf("take lock: %w", err)
	}
	// Gone, or another file by now: who removed it has the lock's meaning changed.
	if named, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(held, named) {
		f.Close()
		return nil, false, nil
	} else if err != nil {
		f.Close()
		return nil, false, fmt.Errorf("take lock: %w", err)
	}
	return func() {
		os.Remove(path) // while we hold it, it is ours
		f.Close()
	}, true, nil
}

// makeDir makes the directory of a build. Its name says which lock it belongs to.
func (b *Builder) makeDir(key string) (string, error) {
	if err := os.MkdirAll(b.workDir(), 0o700); err != nil {
		return "", fmt.Errorf("make build directory: %w", err)
	}
	// Whole and without links, as the tools and the table of mounts have it.
	work, err := filepath.Abs(b.workDir())
	if err == nil {
		work, err = filepath.EvalSymlinks(work)
	}
	if err != nil {
		return "", fmt.Errorf("make build directory: %w", err)
	}
	dir, err := os.MkdirTemp(work, key+"-")
	if err != nil {
		return "", fmt.Errorf("make build directory: %w", err)
	}
	return dir, nil
}

// Sweep removes what builds left that were killed; those under way are not touched. What
// cannot be removed is logged, and found by [Builder.Leftovers].
func (b *Builder) Sweep() { b.sweep("") }

// sweep removes what killed builds left: those of key, whose lock the caller holds,
// and those of any other key that nobody builds. What cannot be removed now is logged
// and left to the next one.
func (b *Builder) sweep(key string) {
	b.sweepRecords(key)
	entries, err := os.ReadDir(b.workDir())
	if err != nil {
		return // nothing was ever built
	}
	for _, e := range entries {
		owner, _, ok := strings.Cut(e.Name(), "-")
		if !ok {
			continue
		}
		if owner != key {
			unlock, free, err := b.tryLock(owner)
			if err != nil || !free {
				continue
			}
			defer unlock()
		}
		b.removeDir(filepath.Join(b.workDir(), e.Name()))
	}
}

// sweepRecords removes the records that killed builds were writing: of key, whose lock is
// held, and of every other that nobody builds.
func (b *Builder) sweepRecords(key string) {
	halves, err := HalfWritten(b.buildsDir())
	if err != nil {
		return // nothing was ever built
	}
	for _, h := range halves {
		owner, _, ok := strings.Cut(strings.TrimPrefix(filepath.Base(h.Name), "."), ".json.")
		if !ok || !keyRE.MatchString(owner) {
			continue
		}
		if owner != key {
			unlock, free, err := b.tryLock(owner)
			if err != nil || !free {
				continue
			}
			defer unlock()
		}
		os.Remove(h.Name) // one that cannot be removed is found by `hutch leaks`
	}
}

// removeTime bounds how long removeDir tries: processes of a build that was just
// killed may go on making files until the kernel has ended the last of them.
const removeTime = 15 * time.Second

// removeDir removes the directory of a build, with what is mounted in it.
func (b *Builder) removeDir(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// Never remove through a mount: it may show anything.
		err := unmountBelow(dir)
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			b.log.Error("remains of a template build are left; the next build tries again", "op", "sweep", "err", err)
			return
		case <-tick.C:
		}
	}
}

// unmountBelow unmounts whatever is mounted in dir, so that removing it removes
// nothing else. Builds mount in namespaces of their own; this is for what people do.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolve build directory: %w", err)
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	mounts := mountsBelow(string(data), dir)
	slices.Reverse(mounts) // the last mounted first
	var problems []error
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			problems = append(problems, fmt.Errorf("unmount: %w", err))
		}
	}
	return errors.Join(problems...)
}

// mountsBelow returns the mount points below dir, in the order of mountinfo (see
// proc_pid_mountinfo(5)): the fifth field, with blanks written as octal escapes.
func mountsBelow(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var mounts []string
	for line := range strings.Lines(mountinfo) {
		if f := strings.Fields(line); len(f) > 4 {
			if p := unescape.Replace(f[4]); strings.HasPrefix(p, dir+"/") {
				mounts = append(mounts, p)
			}
		}
	}
	return mounts
}
