package ociimage_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"hutch.dev/hutch"
	it "hutch.dev/hutch/internal/template/imagetest"
	"hutch.dev/hutch/internal/template/ociimage"
)

// two is an image of two layers.
func two(t testing.TB) v1.Image {
	t.Helper()
	return it.Image(t, v1.Config{User: "1000", Env: []string{"A=1"}},
		it.Layer(t, it.File("lower", strings.Repeat("low ", 1000))), it.Layer(t, it.File("upper", "up")))
}

func digest(t *testing.T, im v1.Image) string {
	t.Helper()
	d, err := im.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// contents reads every layer to its end and returns the names in each.
func contents(t *testing.T, im *ociimage.Image) ([]string, error) {
	t.Helper()
	var all []string
	for _, l := range im.Layers {
		s, err := l.Open(t.Context(), nil)
		if err != nil {
			return all, err
		}
		names, err := readNames(s)
		if err != nil {
			err = s.Explain(err)
		}
		all = append(all, names...)
		if err := errors.Join(err, s.Close()); err != nil {
			return all, err
		}
	}
	return all, nil
}

func readNames(r io.Reader) ([]string, error) {
	var names []string
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r)
			return names, err
		}
		if err != nil {
			return names, err
		}
		names = append(names, hdr.Name)
	}
}

// check opens an image and reads all of it.
func check(t *testing.T, src ociimage.Source) (*ociimage.Image, error) {
	t.Helper()
	im, err := ociimage.Open(t.Context(), src)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	})
	got, err := contents(t, im)
	if err == nil && strings.Join(got, " ") != "lower upper" {
		t.Errorf("in the layers: %q", got)
	}
	return im, err
}

// pack makes a tar archive of a directory.
func pack(t *testing.T, dir string) string {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(name, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestArchives(t *testing.T) {
	im := two(t)
	other := it.Image(t, v1.Config{}, it.Layer(t, it.File("lower", "x")), it.Layer(t, it.File("upper", "y")))
	dir := it.Layout(t, map[string]v1.Image{"": im})
	several := it.Layout(t, map[string]v1.Image{"one": im, "two": other})
	config, err := im.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		src    ociimage.Source
		digest string
		name   string
	}{
		"layout":                  {ociimage.Source{Archive: dir}, digest(t, im), "oci layout " + digest(t, im)},
		"layout in a tar archive": {ociimage.Source{Archive: pack(t, dir), Kind: ociimage.KindOCI}, digest(t, im), "oci layout " + digest(t, im)},
		"layout with a tag":       {ociimage.Source{Archive: several, Tag: "two"}, digest(t, other), "oci layout two@" + digest(t, other)},
		"docker archive":          {ociimage.Source{Archive: it.Docker(t, map[string]v1.Image{"registry.example/app:1": im})}, config.String(), "docker archive " + config.String()},
		"docker archive with a tag": {
			ociimage.Source{Archive: it.Docker(t, map[string]v1.Image{"registry.example/app:1": im, "registry.example/app:2": other}), Tag: "registry.example/app:1"},
			config.String(), "docker archive registry.example/app:1@" + config.String(),
		},
		"layout of several platforms": {ociimage.Source{Archive: platforms(t, im, other)}, digest(t, im), "oci layout " + digest(t, im)},
		"layout of zstd":              {ociimage.Source{Archive: it.Layout(t, map[string]v1.Image{"": recompressed(t, zstdOf)})}, "", ""},
		"layout without compression":  {ociimage.Source{Archive: it.Layout(t, map[string]v1.Image{"": recompressed(t, func(b []byte) []byte { return b })})}, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := check(t, tt.src)
			if err != nil {
				t.Fatal(err)
			}
			if tt.digest != "" && (got.Digest != tt.digest || got.Name != tt.name) {
				t.Errorf("digest %s, name %q; want %s, %q", got.Digest, got.Name, tt.digest, tt.name)
			}
		})
	}
}

// platforms is a layout of one image, whose index in its index has manifests for several.
func platforms(t *testing.T, mine, other v1.Image) string {
	t.Helper()
	add := func(im v1.Image, os, arch string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: im, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: arch}}}
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		add(other, "linux", "riscv64"), add(other, "unknown", "unknown"), add(mine, "linux", runtime.GOARCH))
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendIndex(index); err != nil {
		t.Fatal(err)
	}
	return dir
}

func zstdOf(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	return w.EncodeAll(b, nil)
}

// blobLayer is a layer whose compressed form is the test's.
type blobLayer struct {
	v1.Layer
	blob []byte
	hash v1.Hash
}

func (l blobLayer) Digest() (v1.Hash, error)            { return l.hash, nil }
func (l blobLayer) Size() (int64, error)                { return int64(len(l.blob)), nil }
func (l blobLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l blobLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.blob)), nil
}

// recompressed is the image with another compression, under a media type that lies.
func recompressed(t *testing.T, compress func([]byte) []byte) v1.Image {
	t.Helper()
	var layers []v1.Layer
	for _, e := range []it.Entry{it.File("lower", "low"), it.File("upper", "up")} {
		stream := it.Tar(t, e)
		blob := compress(stream)
		hash, _, err := v1.SHA256(bytes.NewReader(blob))
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, blobLayer{it.FromTar(t, stream), blob, hash})
	}
	return it.Image(t, v1.Config{}, layers...)
}

// change rewrites a file of a layout; the name may be a pattern.
func change(t *testing.T, dir, pattern string, do func([]byte) []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v, %v", pattern, files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], do(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestArchivesThatAreRefused(t *testing.T) {
	im := two(t)
	layers, err := im.Layers()
	if err != nil {
		t.Fatal(err)
	}
	blob := func(i int) string {
		h, err := layers[i].Digest()
		if err != nil {
			t.Fatal(err)
		}
		return "blobs/sha256/" + h.Hex
	}
	config, err := im.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	manifest := "blobs/sha256/" + strings.TrimPrefix(digest(t, im), "sha256:")
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	tests := map[string]struct {
		change func(t *testing.T, dir string)
		src    func(dir string) ociimage.Source // nil = the layout
		code   hutch.Code
		want   string
	}{
		"a layer was changed": {change: func(t *testing.T, dir string) { change(t, dir, blob(1), flip) }, code: hutch.CodeBadRequest, want: "damaged"},
		"a layer is cut short": {change: func(t *testing.T, dir string) {
			change(t, dir, blob(0), func(b []byte) []byte { return b[:len(b)-20] })
		}, code: hutch.CodeBadRequest, want: "damaged"},
		"a layer goes on": {change: func(t *testing.T, dir string) {
			change(t, dir, blob(0), func(b []byte) []byte { return append(b, b...) })
		}, code: hutch.CodeBadRequest, want: "longer"},
		"a layer is missing":        {change: func(t *testing.T, dir string) { remove(t, dir, blob(0)) }, code: hutch.CodeBadRequest, want: "lacks the part"},
		"the configuration changed": {change: func(t *testing.T, dir string) { change(t, dir, "blobs/sha256/"+config.Hex, flip) }, code: hutch.CodeBadRequest, want: "damaged"},
		"the manifest was changed": {change: func(t *testing.T, dir string) {
			change(t, dir, manifest, func(b []byte) []byte { return bytes.Replace(b, []byte("layers"), []byte("Layers"), 1) })
		}, code: hutch.CodeBadRequest, want: "damaged"},
		"the index is no JSON": {change: func(t *testing.T, dir string) {
			change(t, dir, "index.json", func([]byte) []byte { return []byte("{") })
		}, code: hutch.CodeBadRequest, want: "index.json"},
		"the index is empty": {change: func(t *testing.T, dir string) {
			change(t, dir, "index.json", func([]byte) []byte { return []byte("{}") })
		}, code: hutch.CodeBadRequest, want: "no image"},
		"the index is huge": {change: func(t *testing.T, dir string) {
			change(t, dir, "index.json", func([]byte) []byte { return make([]byte, 5<<20) })
		}, code: hutch.CodeTooLarge, want: "more than"},
		"a digest that is a path": {change: func(t *testing.T, dir string) {
			change(t, dir, "index.json", func(b []byte) []byte {
				return bytes.Replace(b, []byte(digest(t, im)), []byte("sha256:../../../../etc/passwd"), 1)
			})
		}, code: hutch.CodeBadRequest, want: "index.json"},
		"no archive at all":          {change: func(t *testing.T, dir string) { remove(t, dir, "index.json") }, code: hutch.CodeBadRequest, want: "neither"},
		"not the kind that was said": {src: func(dir string) ociimage.Source { return ociimage.Source{Archive: dir, Kind: ociimage.KindDocker} }, code: hutch.CodeBadRequest, want: "no docker archive"},
		"no such tag":                {src: func(dir string) ociimage.Source { return ociimage.Source{Archive: dir, Tag: "x"} }, code: hutch.CodeNotFound, want: `no image "x"`},
		"no such file":               {src: func(dir string) ociimage.Source { return ociimage.Source{Archive: dir + "/nosuch"} }, code: hutch.CodeNotFound, want: "no archive"},
		"a device":                   {src: func(string) ociimage.Source { return ociimage.Source{Archive: "/dev/zero"} }, code: hutch.CodeBadRequest, want: "neither a file"},
		"no tar archive":             {src: func(dir string) ociimage.Source { return ociimage.Source{Archive: dir + "/" + blob(0)} }, code: hutch.CodeBadRequest, want: "compressed"},
		"another architecture": {src: func(string) ociimage.Source {
			return ociimage.Source{Archive: it.Layout(t, map[string]v1.Image{"": foreign(t, "linux", "riscv64")})}
		}, code: hutch.CodeBadRequest, want: "linux/riscv64"},
		"another system": {src: func(string) ociimage.Source {
			return ociimage.Source{Archive: it.Layout(t, map[string]v1.Image{"": foreign(t, "windows", runtime.GOARCH)})}
		}, code: hutch.CodeBadRequest, want: "windows/"},
		"several images": {src: func(string) ociimage.Source {
			return ociimage.Source{Archive: it.Layout(t, map[string]v1.Image{"one": im, "two": foreign(t, "linux", "x")})}
		}, code: hutch.CodeBadRequest, want: "[one two]"},
		"several images of docker": {src: func(string) ociimage.Source {
			return ociimage.Source{Archive: it.Docker(t, map[string]v1.Image{"a.example/x:1": im, "a.example/x:2": foreign(t, "linux", runtime.GOARCH)})}
		}, code: hutch.CodeBadRequest, want: "a.example/x:1"},
		"a layer of docker's changed": {src: func(string) ociimage.Source {
			path := it.Docker(t, map[string]v1.Image{"a.example/x:1": im})
			change(t, filepath.Dir(path), filepath.Base(path), func(b []byte) []byte { b[bytes.LastIndex(b, []byte{0x1f, 0x8b})+40] ^= 1; return b })
			return ociimage.Source{Archive: path}
		}, want: ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := it.Layout(t, map[string]v1.Image{"": im})
			if tt.change != nil {
				tt.change(t, dir)
			}
			src := ociimage.Source{Archive: dir}
			if tt.src != nil {
				src = tt.src(dir)
			}
			_, err := check(t, src)
			var e *hutch.Error
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.code != "" && (!errors.As(err, &e) || e.Code != tt.code) {
				t.Errorf("got %v, want %s with %q", err, tt.code, tt.want)
			}
			if errors.As(err, &e) && strings.Contains(e.Message, dir) {
				t.Errorf("a path of this machine is in %q", e.Message)
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// foreign is an image for another machine.
func foreign(t *testing.T, system, arch string) v1.Image {
	t.Helper()
	im := it.Image(t, v1.Config{}, it.Layer(t, it.File("lower", "z")), it.Layer(t, it.File("upper", "z")))
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = system, arch
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

// TestDockerLinks reads the older form of docker's archives, in which layers that two
// images share are links.
func TestDockerLinks(t *testing.T) {
	im := two(t)
	raw, err := im.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	low, up := it.Tar(t, it.File("lower", strings.Repeat("low ", 1000))), it.Tar(t, it.File("upper", "up"))
	manifest, err := json.Marshal([]map[string]any{{"Config": "c.json", "RepoTags": nil, "Layers": []string{"a/layer.tar", "b/layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name, link string
		data       []byte
	}{{"manifest.json", "", manifest}, {"c.json", "", raw}, {"a/layer.tar", "../x/layer.tar", nil}, {"x/layer.tar", "", low}, {"b/layer.tar", "", up}} {
		hdr := &tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if f.link != "" {
			hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "docker.tar")
	if err := os.WriteFile(name, buf.Bytes(), fs.FileMode(0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := check(t, ociimage.Source{Archive: name, Kind: ociimage.KindDocker}); err != nil {
		t.Error(err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := ociimage.Open(ctx, ociimage.Source{Archive: pack(t, it.Layout(t, map[string]v1.Image{"": two(t)}))}); !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause", err)
	}
}

// FuzzOpen reads archives of any content: they are refused or read, never worse.
func FuzzOpen(f *testing.F) {
	data, err := os.ReadFile(it.Docker(f, map[string]v1.Image{"a.example/x:1": two(f)}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		im, err := ociimage.Open(t.Context(), ociimage.Source{Archive: name})
		if err != nil {
			return
		}
		_, _ = contents(t, im)
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	})
}
