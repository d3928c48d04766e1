// Package guestimage holds the guest agent's own file system image, which every
// sandbox mounts read-only, as part of this binary.
//
// It owns getting the image onto the host's disk under a name that says its content:
// a sandbox keeps the image it started with while newer binaries bring newer ones. It
// does not build the image (the Makefile does) and never removes one.
//
// Start with [Write].
package guestimage

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"hutch.dev/hutch/internal/x/atomicfile"
)

// bin holds the image if the binary was built by the Makefile, and .gitkeep so that
// a fresh clone compiles.
//
//go:embed all:bin
var bin embed.FS

const name = "bin/guest.erofs"

// ErrNotBuilt means that this binary was built without the image.
var ErrNotBuilt = errors.New("this binary was built without the guest agent's image: run `make build`")

// Write puts the image into dir, which must exist, as guest-<digest>.erofs, and
// returns its path and its digest, "sha256:" and 64 hex digits. A whole image that is
// there already is left alone; a damaged one is replaced. It returns [ErrNotBuilt] if
// there is none to write.
func Write(dir string) (path, digest string, err error) { return write(bin, dir) }

func write(from fs.FS, dir string) (path, digest string, err error) {
	data, err := fs.ReadFile(from, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", ErrNotBuilt
	}
	if err != nil {
		return "", "", fmt.Errorf("read embedded guest image: %w", err)
	}
	sum := sha256.Sum256(data)
	hexSum := hex.EncodeToString(sum[:])
	path, digest = filepath.Join(dir, "guest-"+hexSum+".erofs"), "sha256:"+hexSum
	if ok, err := holds(path, sum[:]); err != nil || ok {
		return path, digest, err
	}
	if err := atomicfile.Write(path, data, 0o644); err != nil {
		return "", "", fmt.Errorf("install guest image: %w", err)
	}
	return path, digest, nil
}

// holds says whether the file at path has the content that sum is the hash of.
func holds(path string, sum []byte) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at installed guest image: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return false, fmt.Errorf("read installed guest image: %w", err)
	}
	return bytes.Equal(h.Sum(nil), sum), nil
}
