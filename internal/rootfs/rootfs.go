// Package rootfs keeps root images: the read-only EROFS files that sandboxes are
// made from and share.
//
// It owns a directory of images named by their SHA-256, and what keeps one there: a
// pin. It does not make images (package template does), nor writable layers (the
// isolator does), and it knows no names but digests.
//
// Invariants:
//   - images/<sha256>.erofs is whole, never changes, and has mode 0444. It appears by
//     rename, after its bytes are on the disk.
//   - An image that is pinned or in use is never removed.
//   - Whatever removes or pins holds the store's lock file, so that several processes
//     may share a store. Reading takes no lock: who wants an image to stay pins it
//     first and opens it then; an open file survives removal.
//
// Start with [Store.Install] and [Store.Path].
package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/atomicfile"
)

// DefaultDir is where images are kept unless configured otherwise, and DirEnv the
// environment variable that says otherwise to tests and the command line.
const (
	DefaultDir = "/var/cache/hutch"
	DirEnv     = "HUTCH_CACHE_DIR"
)

// CacheDir is the directory DirEnv names, else DefaultDir.
func CacheDir() string {
	if dir := os.Getenv(DirEnv); dir != "" {
		return dir
	}
	return DefaultDir
}

// digestPrefix starts every digest; what follows is 64 lower-case hex digits.
const digestPrefix = "sha256:"

// ErrCorrupt says that an image's bytes are not what its name promises.
var ErrCorrupt = errors.New("image is damaged")

// Config is what a store is made from.
type Config struct {
	Dir string // holds images/ and pins/; made when first needed
	// InUse reports whether something runs from an image; nil if nobody knows. It is
	// asked while the store is locked, so it must not call the store.
	InUse func(digest string) bool
}

// Store keeps root images. Its methods are safe for concurrent use, by several
// processes too.
type Store struct{ cfg Config }

// New returns the store in cfg.Dir. It does no I/O.
func New(cfg Config) *Store { return &Store{cfg: cfg} }

// Image is one root image.
type Image struct {
	Digest      string // "sha256:" and 64 hex digits
	Path        string // on this host
	SizeBytes   int64
	InstalledAt time.Time // when its content was last installed
}

// CheckDigest refuses what is not the form of a digest, with [hutch.ErrBadRequest].
func CheckDigest(digest string) error {
	hexPart, ok := strings.CutPrefix(digest, digestPrefix)
	if !ok || len(hexPart) != 2*sha256.Size || strings.Trim(hexPart, "0123456789abcdef") != "" {
		return hutch.Errorf(hutch.CodeBadRequest, "%q is no image digest (want sha256: and 64 hex digits)", digest)
	}
	return nil
}

func (s *Store) imagesDir() string { return filepath.Join(s.cfg.Dir, "images") }

func (s *Store) path(digest string) string {
	return filepath.Join(s.imagesDir(), strings.TrimPrefix(digest, digestPrefix)+".erofs")
}

// Install moves the image file src, which must be on the store's file system, into
// the store under the digest of its content. If that is there already, src is removed
// and the one that is there kept, as new as if it had just come. A file that no isolator could mount is refused and
// left alone. Once Install returns, the image survives a power loss.
func (s *Store) Install(ctx context.Context, src string) (Image, error) {
	f, err := os.Open(src)
	if err != nil {
		return Image{}, fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	if err := checkEROFS(f); err != nil {
		return Image{}, fmt.Errorf("check image: %w", err)
	}
	digest, size, err := hash(ctx, f)
	if err != nil {
		return Image{}, fmt.Errorf("hash image: %w", err)
	}
	if err := os.MkdirAll(s.imagesDir(), 0o755); err != nil {
		return Image{}, fmt.Errorf("make directory of images: %w", err)
	}
	unlock, err := s.lock()
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if have, err := s.Image(digest); err == nil && have.SizeBytes == size {
		if err := os.Chtimes(have.Path, time.Time{}, time.Now()); err != nil {
			return Image{}, fmt.Errorf("renew image %s: %w", digest, err)
		}
		if err := os.Remove(src); err != nil {
			return Image{}, fmt.Errorf("remove the copy of an image that is there: %w", err)
		}
		return s.Image(digest)
	}
	if err := atomicfile.Install(src, s.path(digest), 0o444); err != nil {
		return Image{}, fmt.Errorf("install image %s: %w", digest, err)
	}
	return s.Image(digest)
}

// Image describes an image, hutch.ErrNotFound if it is not here. It does not read it.
func (s *Store) Image(digest string) (Image, error) {
	if err := CheckDigest(digest); err != nil {
		return Image{}, err
	}
	st, err := os.Stat(s.path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, hutch.Errorf(hutch.CodeNotFound, "root image %s is not on this node", digest)
	}
	if err != nil {
		return Image{}, fmt.Errorf("look at image %s: %w", digest, err)
	}
	return Image{Digest: digest, Path: s.path(digest), SizeBytes: st.Size(), InstalledAt: st.ModTime()}, nil
}

// Path returns where the image is on this host, hutch.ErrNotFound if it is not here.
func (s *Store) Path(digest string) (string, error) {
	img, err := s.Image(digest)
	return img.Path, err
}

// Open opens an image for reading; the caller closes it.
func (s *Store) Open(digest string) (*os.File, error) {
	img, err := s.Image(digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(img.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hutch.Errorf(hutch.CodeNotFound, "root image %s is not on this node", digest)
	}
	if err != nil {
		return nil, fmt.Errorf("open image %s: %w", digest, err)
	}
	return f, nil
}

// Verify reads the whole image and compares it with its digest: [ErrCorrupt] if they
// differ. It takes some seconds a GiB.
func (s *Store) Verify(ctx context.Context, digest string) error {
	f, err := s.Open(digest)
	if err != nil {
		return err
	}
	defer f.Close()
	got, _, err := hash(ctx, f)
	if err != nil {
		return fmt.Errorf("verify image %s: %w", digest, err)
	}
	if got != digest {
		return fmt.Errorf("verify image %s: its content is %s: %w", digest, got, ErrCorrupt)
	}
	return nil
}

// List returns all images, by digest.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.imagesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var images []Image
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".erofs")
		if !ok || CheckDigest(digestPrefix+name) != nil {
			continue
		}
		img, err := s.Image(digestPrefix + name)
		if errors.Is(err, hutch.ErrNotFound) {
			continue // removed since ReadDir
		}
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	slices.SortFunc(images, func(a, b Image) int { return strings.Compare(a.Digest, b.Digest) })
	return images, nil
}

// hash reads f from its start and returns the digest and the size. It gives up when
// ctx ends.
func hash(ctx context.Context, f *os.File) (string, int64, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	var size int64
	buf := make([]byte, 1<<20)
	for {
		if err := context.Cause(ctx); err != nil {
			return "", 0, err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return digestPrefix + hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}

// lock takes the store's lock, which serialises what removes and what pins, in all
// processes. It is held for file operations only, never while an image is read.
func (s *Store) lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make image store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, "images.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of image store: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	return func() { f.Close() }, nil // closing the file frees the lock
}
