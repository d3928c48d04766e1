// Package unpack applies the layers of a container image to a directory, one on the
// other, and so makes the tree that a container of it would see.
//
// It owns names, links, whiteouts, owners, modes and times in that tree, and the bounds
// of all of it. It does not fetch, decompress or verify layers (package ociimage does),
// and it does not look at what is in a file.
//
// A layer is hostile until proven otherwise, so:
//   - Every name is resolved by the kernel with the tree as its root (openat2,
//     RESOLVE_IN_ROOT): a link to /etc, absolute or relative, leads to the tree's own
//     etc, and no name leads out of the tree. The last part of a name is never followed.
//   - A name with ".." in it is refused, and so is one that is too long or too deep.
//   - What a layer takes is counted before it is written: bytes, entries, and the bytes
//     of the stream itself, which a compressed layer can make out of nothing.
//   - No device, FIFO or socket is made. They are skipped and reported, and so are
//     extended attributes, file capabilities among them: the images that sandboxes run
//     from cannot hold any (see internal/rootfs/DESIGN.md).
//
// A tree that an error left half-made is of no use; the caller removes it.
//
// Start with [Tree.Apply]; names.go resolves, entries.go makes, whiteouts.go removes.
package unpack

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// Limits bound what all layers of a tree may take together.
type Limits struct {
	Bytes   int64 // of files, each rounded up to whole blocks of 4 KiB
	Entries int   // files, directories and links, also those that a later layer replaces
}

// Bounds that nobody asks to change.
const (
	// DefaultBytes and DefaultEntries are the limits unless the operator sets others:
	// more than the largest images in common use. An entry costs mkfs.erofs some 4 KiB of
	// memory.
	DefaultBytes   = 16 << 30
	DefaultEntries = 1_000_000

	maxNames = 256 << 20 // bytes of all names; a directory's are in memory while it is removed
	maxName  = 4095      // bytes of an entry's name, as Linux has it
	maxDepth = 3072      // bytes of a directory's path in the tree, links resolved: room for the path of the tree itself
	maxHops  = 40        // links that the way to a missing directory may lead over, as Linux has it

	blockSize = 4096
	// entryBytes is what an entry may take in the stream besides its content, headers
	// and padding: most take 1 KiB.
	entryBytes = 4096
	// maxReported is how many skipped things a report names; it counts all.
	maxReported = 200
)

// Report says what became of the layers.
type Report struct {
	Bytes   int64 // as Limits counts them
	Entries int
	// Newest is the latest time of any file, zero if there is none.
	Newest time.Time
	// Skipped names what was left out, with the reason: "/dev/sda: a device". It has the
	// first few hundred; SkippedCount has all.
	Skipped      []string
	SkippedCount int
}

// Tree is a directory under construction. It is for one goroutine.
type Tree struct {
	limits Limits
	root   int // descriptor of the directory
	path   string

	// parent is the directory that the last entry was in; most entries share theirs with
	// the one before.
	parent parent
	// stale says that a link or a directory went or came since: names may lead elsewhere.
	stale bool

	// touched are the names that the layer under way has made: a whiteout in the same
	// layer, wherever it comes, spares them. Hashes, so that long names cost no memory.
	touched map[[16]byte]struct{}
	// times are those of directories by inode; they are set at the end, since whatever
	// is made in a directory changes its time.
	times map[uint64]time.Time

	stream int64 // bytes of the layers' streams that were read
	names  int64 // bytes of the names in them
	report Report
}

// Open takes an empty directory for a tree. The caller closes it.
func Open(dir string, limits Limits) (*Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("find the tree's path: %w", err)
	}
	t := &Tree{limits: limits, root: fd, path: path, times: map[uint64]time.Time{}}
	t.parent.fd = -1
	return t, nil
}

// Close frees the tree's descriptors. The directory stays.
func (t *Tree) Close() error {
	t.forgetParent()
	if err := unix.Close(t.root); err != nil {
		return fmt.Errorf("close tree: %w", err)
	}
	return nil
}

// Apply unpacks one layer, an uncompressed tar stream, over those before. It reads r to
// its end, so that whoever verifies it sees all of it. Errors about the layer itself
// are hutch.ErrBadRequest, hutch.ErrTooLarge over a limit.
func (t *Tree) Apply(ctx context.Context, r io.Reader) error {
	t.touched = map[[16]byte]struct{}{}
	bounded := &boundedReader{ctx: ctx, r: r, tree: t}
	tr := tar.NewReader(bounded)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return malformed(err)
		}
		if err := t.entry(hdr, tr); err != nil {
			return err
		}
	}
	// What comes after the end of an archive is padding, but part of its digest.
	if _, err := io.Copy(io.Discard, bounded); err != nil {
		return malformed(err)
	}
	return nil
}

// malformed tells an error of the format from one of the reader below, which is passed
// on as it is.
func malformed(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return hutch.Errorf(hutch.CodeBadRequest, "the layer is no whole tar archive: %w", err)
	}
	return err
}

// boundedReader reads a layer's stream for a tree: within its limits, and until ctx ends.
type boundedReader struct {
	ctx  context.Context
	r    io.Reader
	tree *Tree
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	b.tree.stream += int64(n)
	if most := b.tree.limits.Bytes + int64(b.tree.limits.Entries)*entryBytes; b.tree.stream > most {
		return 0, hutch.Errorf(hutch.CodeTooLarge, "the layers unpack to more than %d MiB of archives; the limit goes with that of the image's size", most>>20)
	}
	return n, err
}

// reserve counts a file of that size before it is written.
func (t *Tree) reserve(size int64) error {
	if size < 0 || size > t.limits.Bytes-t.report.Bytes {
		return hutch.Errorf(hutch.CodeTooLarge, "the files of all layers together are larger than %d MiB; raise the limit of the image's size if that is meant", t.limits.Bytes>>20)
	}
	t.report.Bytes += (size + blockSize - 1) / blockSize * blockSize
	return nil
}

// skip notes what is left out.
func (t *Tree) skip(name, why string) {
	t.report.SkippedCount++
	if len(t.report.Skipped) < maxReported {
		t.report.Skipped = append(t.report.Skipped, fmt.Sprintf("/%s: %s", name, why))
	}
}

// touch notes that the layer under way made name in the directory of that inode.
func (t *Tree) touch(dir uint64, name string) { t.touched[touchKey(dir, name)] = struct{}{} }

func (t *Tree) isTouched(dir uint64, name string) bool {
	_, ok := t.touched[touchKey(dir, name)]
	return ok
}

func touchKey(dir uint64, name string) [16]byte {
	sum := sha256.Sum256(append(binary.NativeEndian.AppendUint64(nil, dir), name...))
	return [16]byte(sum[:16])
}

// Finish gives directories their times and returns the report. Nothing may be made in
// the tree afterwards.
func (t *Tree) Finish() (Report, error) {
	if err := t.setTimes(t.root); err != nil {
		return Report{}, fmt.Errorf("set times of directories: %w", err)
	}
	return t.report, nil
}
