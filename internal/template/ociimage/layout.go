package ociimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
)

// refName is the annotation by which an OCI layout names its images; tools that write
// whole references put them into fullName.
const (
	refName  = "org.opencontainers.image.ref.name"
	fullName = "io.containerd.image.name"
)

// Names of the files that say what an archive is.
const (
	indexFile  = "index.json"
	dockerFile = "manifest.json"
)

// openArchive opens a layout or a `docker save` archive, whichever it is.
func openArchive(ctx context.Context, src Source) (*Image, error) {
	f, err := openFiles(ctx, src.Archive)
	if err != nil {
		return nil, err
	}
	im, err := func() (*Image, error) {
		isOCI, isDocker := f.has(indexFile), f.has(dockerFile)
		switch {
		case isOCI && src.Kind != KindDocker:
			return openLayout(ctx, f, src.Tag)
		case isDocker && src.Kind != KindOCI:
			return openDocker(f, src.Tag)
		}
		want := "an OCI layout (index.json) nor a docker archive (manifest.json)"
		if src.Kind != KindAny {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive is no %s", src.Kind)
		}
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive is neither %s", want)
	}()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	im.close = f.Close
	return im, nil
}

// openLayout finds an image in a layout.
func openLayout(ctx context.Context, f files, tag string) (*Image, error) {
	raw, err := readFile(f, indexFile, maxManifest)
	if err != nil {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "read index.json: %w", err)
	}
	d, err := chooseTag(index.Manifests, tag)
	if err != nil {
		return nil, err
	}
	from := layout{f}
	if raw, err = from.manifest(ctx, d); err != nil {
		return nil, err
	}
	if d, raw, err = resolve(ctx, from, d, raw, 0); err != nil {
		return nil, err
	}
	im, err := fromManifest(ctx, from, d, raw)
	if err != nil {
		return nil, err
	}
	im.Name = "oci layout " + tagged(tag, d.Digest)
	return im, nil
}

// chooseTag takes the image of that name out of a layout's index; without a name, the
// only one, or the only one for this machine.
func chooseTag(list []v1.Descriptor, tag string) (v1.Descriptor, error) {
	var names []string
	for _, d := range list {
		for _, key := range []string{refName, fullName} {
			name := d.Annotations[key]
			if tag != "" && name == tag {
				return d, nil
			}
			if name != "" {
				names = append(names, name)
			}
		}
	}
	switch {
	case tag != "":
		return v1.Descriptor{}, hutch.Errorf(hutch.CodeNotFound, "the archive has no image %q (it has %s)", tag, namesOr(names))
	case len(list) == 0:
		return v1.Descriptor{}, hutch.Errorf(hutch.CodeBadRequest, "the archive has no image")
	case len(list) == 1:
		return list[0], nil
	case !slices.ContainsFunc(list, func(d v1.Descriptor) bool { return d.Platform == nil }):
		return choose(list) // one image, for several platforms
	}
	return v1.Descriptor{}, hutch.Errorf(hutch.CodeBadRequest, "the archive has %d images; choose one by its tag (it has %s)", len(list), namesOr(names))
}

func namesOr(names []string) string {
	if len(names) == 0 {
		return "none with a name"
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return fmt.Sprint(names[:min(len(names), 20)])
}

func tagged(tag string, digest v1.Hash) string {
	if tag == "" {
		return digest.String()
	}
	return tag + "@" + digest.String()
}

// layout is the blobs of an OCI layout.
type layout struct{ files }

func (l layout) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	r, err := l.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := readWhole(r, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", d.Digest, err)
	}
	return raw, nil
}

func (l layout) blob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	// The parts of a digest become parts of a path, so they are checked: v1.Hash's own
	// parser lets no other digits in.
	if _, err := v1.NewHash(d.Digest.String()); err != nil {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "%q is no digest", d.Digest)
	}
	r, _, err := l.open("blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive lacks the part %s", d.Digest)
	}
	return r, err
}

// readFile reads a small file of an archive whole.
func readFile(f files, name string, most int64) ([]byte, error) {
	r, _, err := f.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive lacks %s", name)
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := readWhole(r, most)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
