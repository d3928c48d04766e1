package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/atomicfile"
)

// maxOwner bounds the name of a pin's owner; it is a file name, and with a sandbox id
// or a template's name in it stays far below.
const maxOwner = 128

// Pin keeps the image from being removed until owner unpins it. Pinning twice is the
// same as once. A missing image is hutch.ErrNotFound. The pin survives a power loss.
func (s *Store) Pin(digest, owner string) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.Image(digest); err != nil {
		return err
	}
	dir := s.pinsDir(digest)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make pins of image %s: %w", digest, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, owner), nil, 0o600); err != nil {
		return fmt.Errorf("pin image %s for %s: %w", digest, owner, err)
	}
	for d := dir; d != filepath.Clean(s.cfg.Dir); d = filepath.Dir(d) {
		if err := atomicfile.SyncDir(filepath.Dir(d)); err != nil {
			return fmt.Errorf("pin image %s for %s: %w", digest, owner, err)
		}
	}
	return nil
}

// Unpin ends owner's pin. Unpinning what is not pinned does nothing.
func (s *Store) Unpin(digest, owner string) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	if err := checkOwner(owner); err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	err = os.Remove(filepath.Join(s.pinsDir(digest), owner))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin image %s for %s: %w", digest, owner, err)
	}
	return nil
}

// Pins returns the owners of an image's pins, by name.
func (s *Store) Pins(digest string) ([]string, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.pinsDir(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pins of image %s: %w", digest, err)
	}
	var owners []string
	for _, e := range entries {
		if checkOwner(e.Name()) == nil {
			owners = append(owners, e.Name())
		}
	}
	return owners, nil
}

// Remove removes an image. One that is pinned or in use is hutch.ErrConflict, one
// that is not here hutch.ErrNotFound.
func (s *Store) Remove(digest string) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return s.removeLocked(digest)
}

// removeLocked is Remove for who holds the lock.
func (s *Store) removeLocked(digest string) error {
	img, err := s.Image(digest)
	if err != nil {
		return err
	}
	owners, err := s.Pins(digest)
	if err != nil {
		return err
	}
	if len(owners) > 0 {
		return hutch.Errorf(hutch.CodeConflict, "root image %s is kept by %s", digest, strings.Join(owners, ", "))
	}
	if s.cfg.InUse != nil && s.cfg.InUse(digest) {
		return hutch.Errorf(hutch.CodeConflict, "root image %s is in use", digest)
	}
	if err := os.Remove(img.Path); err != nil {
		return fmt.Errorf("remove image %s: %w", digest, err)
	}
	// The directory of pins is empty: an owner would have stopped us above.
	if err := os.RemoveAll(s.pinsDir(digest)); err != nil {
		return fmt.Errorf("remove pins of image %s: %w", digest, err)
	}
	return atomicfile.SyncDir(s.imagesDir())
}

// GC removes every image that keep does not want, that is not pinned and not in use,
// and returns what it removed. keep is asked while the store is locked, so it must not
// call the store. It goes on after an image that cannot be removed.
func (s *Store) GC(ctx context.Context, keep func(digest string) bool) ([]Image, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	images, err := s.List()
	if err != nil {
		return nil, err
	}
	var removed []Image
	var problems []error
	for _, img := range images {
		if err := context.Cause(ctx); err != nil {
			return removed, err
		}
		if keep(img.Digest) {
			continue
		}
		switch err := s.removeLocked(img.Digest); {
		case err == nil:
			removed = append(removed, img)
		case !errors.Is(err, hutch.ErrConflict):
			problems = append(problems, err)
		}
	}
	return removed, errors.Join(problems...)
}

func (s *Store) pinsDir(digest string) string {
	return filepath.Join(s.cfg.Dir, "pins", strings.TrimPrefix(digest, digestPrefix))
}

// checkOwner refuses names that are no plain file name.
func checkOwner(owner string) error {
	ok := owner != "" && len(owner) <= maxOwner && !strings.HasPrefix(owner, ".")
	for _, r := range owner {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	}
	if !ok {
		return hutch.Errorf(hutch.CodeBadRequest, "%q cannot own a pin (want up to %d of A-Z a-z 0-9 - _ . and no dot first)", owner, maxOwner)
	}
	return nil
}
