// Package erofs copies the tree in a root image back into a directory, for a recipe that
// builds upon another's image.
//
// It reads what package template writes and no more of the format: uncompressed, without
// extended attributes (fs/erofs/erofs_fs.h of the kernel is the definition). Mounting the
// image would do the same on a kernel that knows EROFS; sandboxes do not need one that
// does, and neither do builds. `fsck.erofs --extract` loses setuid bits and hard links.
//
// Every offset is checked, so a damaged image is an error. A tree that an error left
// half-made is of no use.
//
// Start with [Extract].
package erofs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Where things are in an image, in bytes.
const (
	blockSize    = 4096
	superOffset  = 1024
	superSize    = 128
	magic        = 0xE0F5E1E2
	inodeSlot    = 32 // unit of inode numbers
	compactSize  = 32
	extendedSize = 64
	direntSize   = 12

	layoutPlain  = 0 // all data in blocks
	layoutInline = 2 // the last part follows the inode

	// maxDepth and maxLink bound what a damaged image could make us do.
	maxDepth = 512
	maxLink  = 4096
)

// ErrDamaged says that an image is none that package template wrote.
var ErrDamaged = errors.New("the image is damaged")

// image is an open image.
type image struct {
	r         io.ReaderAt
	size      int64
	meta      int64 // offset of inode 0
	root      uint64
	buildTime time.Time
	left      uint64            // inodes that may still be copied
	linked    map[uint64]string // the first name of files that have several
}

// inode is one file.
type inode struct {
	nid    uint64
	mode   uint32
	uid    int
	gid    int
	nlink  uint32
	size   int64
	mtime  time.Time
	layout uint16
	start  uint32 // first block of the data, or the device's number
	tail   int64  // offset of data that follows the inode
}

// Extract copies the tree in the image r, of that size, into dir, which must not exist.
// Owners, modes, times, hard links and devices are as they were. It gives up when ctx ends.
func Extract(ctx context.Context, r io.ReaderAt, size int64, dir string) error {
	im := &image{r: r, size: size, linked: map[uint64]string{}}
	if err := im.readSuper(); err != nil {
		return err
	}
	return im.copy(ctx, im.root, dir, 0)
}

func (im *image) readSuper() error {
	sb, err := im.bytes(superOffset, superSize)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	switch {
	case le.Uint32(sb) != magic:
		return fmt.Errorf("%w: it is no EROFS image", ErrDamaged)
	case sb[12] != 12:
		return fmt.Errorf("%w: its block size is not 4 KiB", ErrDamaged)
	case le.Uint32(sb[80:]) != 0:
		return fmt.Errorf("%w: it uses features %#x", ErrDamaged, le.Uint32(sb[80:]))
	}
	im.root = uint64(le.Uint16(sb[14:]))
	im.left = le.Uint64(sb[16:])
	im.buildTime = time.Unix(int64(le.Uint64(sb[24:])), int64(le.Uint32(sb[32:])))
	im.meta = int64(le.Uint32(sb[40:])) * blockSize
	return nil
}

// bytes reads n bytes at offset.
func (im *image) bytes(offset, n int64) ([]byte, error) {
	if offset < 0 || n < 0 || offset > im.size-n {
		return nil, fmt.Errorf("%w: it leads to %d bytes at %d, and has %d", ErrDamaged, n, offset, im.size)
	}
	b := make([]byte, n)
	if _, err := im.r.ReadAt(b, offset); err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	return b, nil
}

// inode reads the inode of that number.
func (im *image) inode(nid uint64) (inode, error) {
	if nid > uint64(im.size)/inodeSlot {
		return inode{}, fmt.Errorf("%w: it has no inode %d", ErrDamaged, nid)
	}
	at := im.meta + int64(nid)*inodeSlot
	b, err := im.bytes(at, compactSize)
	if err != nil {
		return inode{}, err
	}
	le := binary.LittleEndian
	format := le.Uint16(b)
	n := inode{nid: nid, layout: format >> 1 & 7, mode: uint32(le.Uint16(b[4:])), start: le.Uint32(b[16:])}
	if le.Uint16(b[2:]) != 0 {
		return inode{}, fmt.Errorf("%w: inode %d has extended attributes", ErrDamaged, nid)
	}
	if format&1 == 0 {
		n.nlink, n.size = uint32(le.Uint16(b[6:])), int64(le.Uint32(b[8:]))
		n.uid, n.gid = int(le.Uint16(b[24:])), int(le.Uint16(b[26:]))
		n.mtime, n.tail = im.buildTime, at+compactSize
	} else {
		if b, err = im.bytes(at, extendedSize); err != nil {
			return inode{}, err
		}
		n.size = int64(le.Uint64(b[8:]))
		n.uid, n.gid, n.nlink = int(le.Uint32(b[24:])), int(le.Uint32(b[28:])), le.Uint32(b[44:])
		n.mtime, n.tail = time.Unix(int64(le.Uint64(b[32:])), int64(le.Uint32(b[40:]))), at+extendedSize
	}
	if n.size < 0 || n.layout != layoutPlain && n.layout != layoutInline {
		return inode{}, fmt.Errorf("%w: inode %d has the layout %d", ErrDamaged, nid, n.layout)
	}
	return n, nil
}

// data returns the content of an inode.
func (im *image) data(n inode) (io.Reader, error) {
	inBlocks := n.size
	if n.layout == layoutInline {
		inBlocks = n.size / blockSize * blockSize
	}
	start := int64(n.start) * blockSize
	if inBlocks > 0 && start > im.size-inBlocks || n.tail > im.size-(n.size-inBlocks) {
		return nil, fmt.Errorf("%w: the content of inode %d is past its end", ErrDamaged, n.nid)
	}
	return io.MultiReader(io.NewSectionReader(im.r, start, inBlocks), io.NewSectionReader(im.r, n.tail, n.size-inBlocks)), nil
}

// whole reads the content of an inode into memory, up to limit bytes.
func (im *image) whole(n inode, limit int64) ([]byte, error) {
	if n.size > limit {
		return nil, fmt.Errorf("%w: inode %d has %d bytes", ErrDamaged, n.nid, n.size)
	}
	r, err := im.data(n)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// dirent is a name in a directory.
type dirent struct {
	name string
	nid  uint64
}

// dirents reads a block of a directory.
func dirents(block []byte) ([]dirent, error) {
	if len(block) < direntSize {
		return nil, fmt.Errorf("%w: a directory's block has %d bytes", ErrDamaged, len(block))
	}
	le := binary.LittleEndian
	count := int(le.Uint16(block[8:])) / direntSize
	if count == 0 || count*direntSize > len(block) {
		return nil, fmt.Errorf("%w: a directory's block has %d names", ErrDamaged, count)
	}
	list := make([]dirent, count)
	for i := range list {
		entry := block[i*direntSize:]
		from, to := int(le.Uint16(entry[8:])), len(block)
		if i+1 < count {
			to = int(le.Uint16(entry[direntSize+8:]))
		}
		if from < count*direntSize || from > to || to > len(block) {
			return nil, fmt.Errorf("%w: a name of a directory is out of its block", ErrDamaged)
		}
		name, _, _ := strings.Cut(string(block[from:to]), "\x00")
		if name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%w: a directory has the name %q", ErrDamaged, name)
		}
		list[i] = dirent{name: name, nid: le.Uint64(entry)}
	}
	return list, nil
}

// copy copies what is at nid to path.
func (im *image) copy(ctx context.Context, nid uint64, path string, depth int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	n, err := im.inode(nid)
	if err != nil {
		return err
	}
	if n.mode&unix.S_IFMT != unix.S_IFDIR && n.nlink > 1 {
		if first, ok := im.linked[nid]; ok {
			return os.Link(first, path)
		}
		im.linked[nid] = path
	}
	if im.left == 0 || depth > maxDepth {
		return fmt.Errorf("%w: it has more inodes than it says, or they go in a circle", ErrDamaged)
	}
	im.left--
	if err := im.make(ctx, n, path, depth); err != nil {
		return err
	}
	return dress(n, path)
}

// make makes a file with its content, still without owner, mode and time.
func (im *image) make(ctx context.Context, n inode, path string, depth int) error {
	switch n.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return im.makeDir(ctx, n, path, depth)
	case unix.S_IFREG:
		r, err := im.data(n)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case unix.S_IFLNK:
		target, err := im.whole(n, maxLink)
		if err != nil {
			return err
		}
		return os.Symlink(string(target), path)
	case unix.S_IFCHR, unix.S_IFBLK:
		return unix.Mknod(path, n.mode, int(n.start)) // both have the kernel's 32-bit form
	case unix.S_IFIFO, unix.S_IFSOCK:
		return unix.Mknod(path, n.mode, 0)
	}
	return fmt.Errorf("%w: inode %d has the mode %o", ErrDamaged, n.nid, n.mode)
}

func (im *image) makeDir(ctx context.Context, n inode, path string, depth int) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	r, err := im.data(n)
	if err != nil {
		return err
	}
	for rest := n.size; rest > 0; {
		block := make([]byte, min(rest, blockSize))
		if _, err := io.ReadFull(r, block); err != nil {
			return fmt.Errorf("read directory: %w", err)
		}
		rest -= int64(len(block))
		list, err := dirents(block)
		if err != nil {
			return err
		}
		for _, d := range list {
			if d.name == "." || d.name == ".." {
				continue
			}
			if err := im.copy(ctx, d.nid, filepath.Join(path, d.name), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// dress gives a file its owner, mode and time, in this order: a change of owner clears
// setuid.
func dress(n inode, path string) error {
	if err := os.Lchown(path, n.uid, n.gid); err != nil {
		return err
	}
	if n.mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(path, n.mode&0o7777); err != nil {
			return fmt.Errorf("set the mode of %s: %w", path, err)
		}
	}
	ts, err := unix.TimeToTimespec(n.mtime)
	if err != nil {
		return fmt.Errorf("%w: inode %d has no time", ErrDamaged, n.nid)
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the time of %s: %w", path, err)
	}
	return nil
}
