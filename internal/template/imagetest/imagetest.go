// Package imagetest makes container images for tests, byte by byte: layers from lists of
// entries, images from layers, and the forms they are handed over in.
//
// Start with [Layer] and [Image].
package imagetest

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// When is the time of every entry that has none.
var When = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Entry is one entry of a layer.
type Entry struct {
	Name    string
	Type    byte // of package tar; 0 = a directory if Name ends in a slash, else a file
	Mode    int64
	Content string
	Link    string // of links
	UID     int
	GID     int
	Time    time.Time
	PAX     map[string]string
	Size    int64 // announced; 0 = that of Content
}

// Dir is a directory of that mode.
func Dir(name string, mode int64) Entry { return Entry{Name: name + "/", Mode: mode} }

// File is a file that all may read.
func File(name, content string) Entry { return Entry{Name: name, Content: content, Mode: 0o644} }

// Program is a file that all may run.
func Program(name, content string) Entry { return Entry{Name: name, Content: content, Mode: 0o755} }

// Link is a symbolic link.
func Link(name, target string) Entry {
	return Entry{Name: name, Type: tar.TypeSymlink, Link: target, Mode: 0o777}
}

// Hard is a hard link.
func Hard(name, target string) Entry { return Entry{Name: name, Type: tar.TypeLink, Link: target} }

// Gone is a whiteout of name in dir.
func Gone(dir, name string) Entry { return Entry{Name: dir + "/.wh." + name} }

// Opaque is what hides all that is below dir.
func Opaque(dir string) Entry { return Entry{Name: dir + "/.wh..wh..opq"} }

// Owned is e with an owner.
func Owned(e Entry, uid, gid int) Entry { e.UID, e.GID = uid, gid; return e }

// Of is e with a mode.
func Of(e Entry, mode int64) Entry { e.Mode = mode; return e }

// Device is a character device.
func Device(name string) Entry {
	return Entry{Name: name, Type: tar.TypeChar, Mode: 0o600}
}

// Tar is the stream of a layer. An entry that announces another size than its content
// has is written as it is: the stream is then damaged.
func Tar(tb testing.TB, entries ...Entry) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		hdr := header(e)
		if err := w.WriteHeader(hdr); err != nil {
			tb.Fatal(err)
		}
		if e.Size != 0 && e.Size != int64(len(e.Content)) {
			buf.WriteString(e.Content)
			return buf.Bytes()
		}
		if _, err := io.WriteString(w, e.Content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func header(e Entry) *tar.Header {
	if e.Type == tar.TypeXGlobalHeader {
		return &tar.Header{Typeflag: e.Type, Name: e.Name, PAXRecords: e.PAX}
	}
	hdr := &tar.Header{
		Name: e.Name, Typeflag: e.Type, Mode: e.Mode, Linkname: e.Link, Uid: e.UID, Gid: e.GID,
		ModTime: e.Time, Size: int64(len(e.Content)), PAXRecords: e.PAX, Format: tar.FormatPAX,
	}
	if e.Size != 0 {
		hdr.Size = e.Size
	}
	if hdr.ModTime.IsZero() {
		hdr.ModTime = When
	}
	if e.Type == 0 {
		hdr.Typeflag = tar.TypeReg
		if e.Name != "" && e.Name[len(e.Name)-1] == '/' {
			hdr.Typeflag = tar.TypeDir
		}
	}
	return hdr
}

// Layer is a gzipped layer of those entries.
func Layer(tb testing.TB, entries ...Entry) v1.Layer {
	tb.Helper()
	return FromTar(tb, Tar(tb, entries...))
}

// FromTar is a gzipped layer of that stream.
func FromTar(tb testing.TB, stream []byte) v1.Layer {
	tb.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(stream)), nil })
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// Image is an image of those layers, the lowest first, for this machine.
func Image(tb testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	tb.Helper()
	im, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		tb.Fatal(err)
	}
	file, err := im.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	if im, err = mutate.ConfigFile(im, file); err != nil {
		tb.Fatal(err)
	}
	return im
}

// Layout writes images into an OCI layout and returns its directory. The key is what
// each is called; an image called "" has no name.
func Layout(tb testing.TB, images map[string]v1.Image) string {
	tb.Helper()
	dir := tb.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		tb.Fatal(err)
	}
	for tag, im := range images {
		var opts []layout.Option
		if tag != "" {
			opts = append(opts, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
		}
		if err := l.AppendImage(im, opts...); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// Docker writes an archive as `docker save` does and returns its path.
func Docker(tb testing.TB, images map[string]v1.Image) string {
	tb.Helper()
	refs := map[name.Reference]v1.Image{}
	for tag, im := range images {
		ref, err := name.NewTag(tag)
		if err != nil {
			tb.Fatal(err)
		}
		refs[ref] = im
	}
	f, err := os.CreateTemp(tb.TempDir(), "*.tar")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	if err := tarball.MultiRefWrite(refs, f); err != nil {
		tb.Fatal(err)
	}
	return f.Name()
}

// Busybox is entries for a system of one static program and the names it is called by.
// It skips the test where the machine has no such program (package busybox-static).
func Busybox(tb testing.TB, names ...string) []Entry {
	tb.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		tb.Skip("busybox is not installed (package busybox-static)")
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		tb.Fatal(err)
	}
	if f.Section(".interp") != nil {
		tb.Skip("this machine's busybox needs libraries; package busybox-static has one that does not")
	}
	entries := []Entry{Dir("bin", 0o755), Program("bin/busybox", string(program))}
	for _, name := range names {
		entries = append(entries, Link("bin/"+name, "busybox"))
	}
	return entries
}
