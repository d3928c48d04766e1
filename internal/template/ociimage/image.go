// Package ociimage reads container images from where they lie: a registry, an OCI
// layout in a directory or a tar archive, an archive of `docker save`.
//
// It owns finding the one image that is meant, for this machine's architecture, and the
// proof that every byte of it is the one that its digests name. It does not unpack
// layers (package unpack does), and it keeps nothing on disk.
//
// Invariants:
//   - A blob that was read to its end without an error is the one its descriptor names:
//     size and SHA-256 were compared; a layer's content also with its diff id. Until
//     then its bytes are somebody's claim.
//   - Manifests and configurations are small and read whole; layers are streams, and
//     nothing of them is held.
//   - A password goes to the registry it was given for, over TLS unless the caller
//     waived that, and into no error.
//
// Start with [Open]; registry.go, layout.go and docker.go are the sources, blob.go
// verifies.
package ociimage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
)

// Source says where an image is. Exactly one of Ref and Archive is set.
type Source struct {
	Ref string // in a registry: "host/path:tag" or "host/path@sha256:…"
	// Username and Password log in to the registry. Without them, and with MachineLogin,
	// what `docker login` left on this machine is used, if anything.
	Username, Password string
	MachineLogin       bool
	CAFile             string // certificates to trust besides the machine's
	Insecure           bool   // plain HTTP and any certificate are accepted

	Archive string // path of an OCI layout, a directory or a tar archive, or of a `docker save` archive
	Kind    Kind   // of Archive
	// Tag chooses among several images of an archive; empty = there must be only one.
	Tag string
}

// Kind is the form of an archive.
type Kind string

// The kinds of archives.
const (
	KindAny    Kind = "" // whichever it is; one that is both is read as an OCI layout
	KindOCI    Kind = "oci layout"
	KindDocker Kind = "docker archive"
)

// Image is an image that was found. Its configuration is verified; its layers are as
// they are read.
type Image struct {
	// Name is for people: what was asked for, with the digest that was found.
	Name string
	// Digest names the whole: that of the manifest for this machine's architecture, or
	// of the configuration in an archive that has no manifest.
	Digest string
	Config v1.ConfigFile
	Layers []Layer // the lowest first

	close func() error
}

// Layer is one layer of an image.
type Layer struct {
	DiffID v1.Hash // of its tar stream
	Size   int64   // bytes to read, compressed as it lies there; -1 = unknown
	open   func(ctx context.Context) (io.ReadCloser, error)
}

// Bounds of what is read whole.
const (
	maxManifest = 4 << 20 // bytes; registries take no larger ones
	maxConfig   = 8 << 20
	maxLayers   = 1000
	maxIndexes  = 4 // indexes within indexes
)

// Open finds the image that src names. The caller closes it. What is wrong with the
// image or the name is hutch.ErrBadRequest, what is not there hutch.ErrNotFound.
func Open(ctx context.Context, src Source) (*Image, error) {
	if (src.Ref == "") == (src.Archive == "") {
		return nil, errors.New("name an image in a registry or an archive, one of them")
	}
	if src.Ref != "" {
		return openRegistry(ctx, src)
	}
	return openArchive(ctx, src)
}

// Close frees what the image is read through.
func (im *Image) Close() error {
	if im.close == nil {
		return nil
	}
	return im.close()
}

// blobs is where the parts of an image are by digest. What it returns is not verified.
type blobs interface {
	manifest(ctx context.Context, d v1.Descriptor) ([]byte, error)
	blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)
}

// resolve follows an index, and those in it, to the one manifest for this machine.
func resolve(ctx context.Context, from blobs, d v1.Descriptor, raw []byte, depth int) (v1.Descriptor, []byte, error) {
	if err := verifyBytes(d, raw); err != nil {
		return d, nil, err
	}
	if !isIndex(d, raw) {
		return d, raw, nil
	}
	if depth == maxIndexes {
		return d, nil, hutch.Errorf(hutch.CodeBadRequest, "the image's index leads to another one, %d times over", maxIndexes)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return d, nil, hutch.Errorf(hutch.CodeBadRequest, "read the image's index: %w", err)
	}
	next, err := choose(index.Manifests)
	if err != nil {
		return d, nil, err
	}
	if raw, err = from.manifest(ctx, next); err != nil {
		return d, nil, err
	}
	return resolve(ctx, from, next, raw, depth+1)
}

// isIndex reports whether raw lists manifests; some old ones do not say so in their type.
func isIndex(d v1.Descriptor, raw []byte) bool {
	if d.MediaType.IsIndex() {
		return true
	}
	if d.MediaType.IsImage() {
		return false
	}
	var probe struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	return json.Unmarshal(raw, &probe) == nil && probe.Manifests != nil
}

// choose takes the manifest for this machine out of an index.
func choose(list []v1.Descriptor) (v1.Descriptor, error) {
	var fit []v1.Descriptor
	var others []string
	for _, d := range list {
		switch p := d.Platform; {
		case p == nil && len(list) == 1, p != nil && p.OS == "linux" && p.Architecture == runtime.GOARCH:
			fit = append(fit, d)
		case p != nil && p.OS != "unknown": // what is "unknown" are notes about images
			others = append(others, p.String())
		}
	}
	if len(fit) == 0 {
		return v1.Descriptor{}, hutch.Errorf(hutch.CodeBadRequest, "the image is not for linux/%s (it is for %s)", runtime.GOARCH, listed(others))
	}
	// Of several variants the first one, as the index's author ordered them.
	return fit[0], nil
}

func listed(names []string) string {
	if len(names) == 0 {
		return "no platform that is named"
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names[:min(len(names), 20)]), ", ")
}

// fromManifest makes the image of a manifest that resolve returned.
func fromManifest(ctx context.Context, from blobs, d v1.Descriptor, raw []byte) (*Image, error) {
	if d.MediaType.IsSchema1() {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the image has a manifest of Docker's first form, which is not supported; push it again with a newer tool")
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "read the image's manifest: %w", err)
	}
	if m.SchemaVersion != 2 || m.Config.Digest.Hex == "" {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the manifest is none of a container image")
	}
	if m.Config.Size > maxConfig {
		return nil, hutch.Errorf(hutch.CodeTooLarge, "the image's configuration has %d bytes; %d are allowed", m.Config.Size, maxConfig)
	}
	config, err := readBlob(ctx, from, m.Config, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	im := &Image{Digest: d.Digest.String()}
	if im.Config, err = parseConfig(config); err != nil {
		return nil, err
	}
	ids := im.Config.RootFS.DiffIDs
	if len(ids) != len(m.Layers) || len(ids) > maxLayers {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the image has %d layers and names the content of %d (at most %d are allowed)", len(m.Layers), len(ids), maxLayers)
	}
	for i, l := range m.Layers {
		if !l.MediaType.IsDistributable() {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "layer %d of the image is not to be had from a registry (%s)", i+1, l.MediaType)
		}
		im.Layers = append(im.Layers, Layer{
			DiffID: ids[i], Size: l.Size,
			open: func(ctx context.Context) (io.ReadCloser, error) {
				r, err := from.blob(ctx, l)
				if err != nil {
					return nil, err
				}
				return verified(r, l), nil
			},
		})
	}
	return im, nil
}

// parseConfig reads a configuration and refuses one that is for another machine.
func parseConfig(raw []byte) (v1.ConfigFile, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return v1.ConfigFile{}, hutch.Errorf(hutch.CodeBadRequest, "read the image's configuration: %w", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return v1.ConfigFile{}, hutch.Errorf(hutch.CodeBadRequest, "the image is not for linux/%s (it is for %s/%s)", runtime.GOARCH, c.OS, c.Architecture)
	}
	return *c, nil
}

// readBlob reads a small blob whole and verifies it.
func readBlob(ctx context.Context, from blobs, d v1.Descriptor, most int64) ([]byte, error) {
	r, err := from.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readWhole(verified(r, d), most)
}

func readWhole(r io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, hutch.Errorf(hutch.CodeTooLarge, "it has more than %d bytes", most)
	}
	return data, nil
}
