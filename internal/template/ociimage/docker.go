package ociimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
)

// dockerImage is an entry of the manifest.json of a `docker save` archive.
type dockerImage struct {
	Config   string   // name of the configuration's file
	RepoTags []string // what the image is called
	Layers   []string // names of the layers' files, the lowest first
}

// openDocker finds an image in a `docker save` archive. It has no manifest: what names
// the image is its configuration, and that names the content of every layer.
func openDocker(f files, tag string) (*Image, error) {
	raw, err := readFile(f, dockerFile, maxManifest)
	if err != nil {
		return nil, err
	}
	var list []dockerImage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "read manifest.json: %w", err)
	}
	entry, err := chooseDocker(list, tag)
	if err != nil {
		return nil, err
	}
	config, err := readFile(f, entry.Config, maxConfig)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(config)
	id := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	im := &Image{Digest: id.String(), Name: "docker archive " + tagged(tag, id)}
	if im.Config, err = parseConfig(config); err != nil {
		return nil, err
	}
	ids := im.Config.RootFS.DiffIDs
	if len(ids) != len(entry.Layers) || len(ids) > maxLayers {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the image has %d layers and names the content of %d (at most %d are allowed)", len(entry.Layers), len(ids), maxLayers)
	}
	for i, name := range entry.Layers {
		size, ok := f.size(name)
		if !ok {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive lacks layer %d of the image", i+1)
		}
		im.Layers = append(im.Layers, Layer{
			DiffID: ids[i], Size: size,
			open: func(context.Context) (io.ReadCloser, error) {
				r, _, err := f.open(name)
				if errors.Is(err, fs.ErrNotExist) {
					return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive lacks layer %d of the image", i+1)
				}
				return r, err
			},
		})
	}
	return im, nil
}

func chooseDocker(list []dockerImage, tag string) (dockerImage, error) {
	var names []string
	for _, im := range list {
		if tag != "" && slices.Contains(im.RepoTags, tag) {
			return im, nil
		}
		names = append(names, im.RepoTags...)
	}
	switch {
	case tag != "":
		return dockerImage{}, hutch.Errorf(hutch.CodeNotFound, "the archive has no image %q (it has %s)", tag, namesOr(names))
	case len(list) != 1:
		return dockerImage{}, hutch.Errorf(hutch.CodeBadRequest, "the archive has %d images; choose one by its tag (it has %s)", len(list), namesOr(names))
	}
	return list[0], nil
}

// isGzip reports whether a file begins as gzip does.
func isGzip(head []byte) bool { return bytes.HasPrefix(head, []byte{0x1f, 0x8b}) }
