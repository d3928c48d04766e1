package files_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

// archive reads a tree as an archive.
func (b *box) archive(t testing.TB, r hutch.ReadArchive) []byte {
	t.Helper()
	c, err := b.ReadArchive(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Body.Close()
	data, err := io.ReadAll(c.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// G03: everything goes through both ways: files that tools ignore, large ones, empty
// directories, links, names of all kinds.
func TestArchiveRoundTrip(t *testing.T) {
	b := newBox(t)
	b.plant(t, "tree/.gitignore", "tree/node_modules/x", "tree/empty/", "tree/a/b/c", "tree/ünï", "tree/raw\xff", "tree/"+strings.Repeat("long", 60))
	putAs(t, b.home+"/tree/large", strings.Repeat("0123456789", 2_000_000), workerID)
	b.write(t, hutch.WriteFile{FileRef: ref("tree/meta", ""), Metadata: map[string]string{"k": "v"}, Mode: modeOf(0o700)}, "m")
	link(t, "a/b/c", b.home+"/tree/link")
	link(t, "/usr/bin/env", b.home+"/tree/away")
	if err := errors.Join(os.Link(b.home+"/tree/a/b/c", b.home+"/tree/second"), os.Chmod(b.home+"/tree/empty", 0o500)); err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(b.home + "/tree/a/b/c")
	if err != nil {
		t.Fatal(err)
	}
	for _, zip := range []bool{false, true} {
		data := b.archive(t, hutch.ReadArchive{FileRef: ref("tree", ""), Gzip: zip})
		if is := bytes.HasPrefix(data, []byte{0x1f, 0x8b}); is != zip {
			t.Errorf("gzip %v: begins with %x", zip, data[:2])
		}
		to := "out-" + map[bool]string{false: "plain", true: "gzip"}[zip]
		r, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(to, ""), Content: bytes.NewReader(data)})
		if err != nil || r.Files != 11 || r.Bytes < 20_000_000 || len(r.Skipped) != 0 {
			t.Fatalf("gzip %v: %+v, %v", zip, r, err)
		}
		diff := exec.Command("diff", "-r", "--no-dereference", b.home+"/tree", b.home+"/"+to)
		if out, err := diff.CombinedOutput(); err != nil {
			t.Errorf("gzip %v: %v %s", zip, err, out)
		}
		out := b.home + "/" + to
		one, _ := os.Stat(out + "/a/b/c")
		two, _ := os.Stat(out + "/second")
		if !os.SameFile(one, two) || !one.ModTime().Equal(want.ModTime()) {
			t.Errorf("gzip %v: the second name, or the time, is lost", zip)
		}
		wantState(t, out+"/empty", workerID, workerID, 0o500)
		wantState(t, out+"/meta", workerID, workerID, 0o700)
		if info, err := b.StatFile(within(t), ref(to+"/meta", "")); err != nil || info.Metadata["k"] != "v" {
			t.Errorf("gzip %v: metadata %v, %v", zip, info.Metadata, err)
		}
	}
	// The machine's own tar agrees.
	list := exec.Command("tar", "--quoting-style=literal", "-tf", "-") // whatever the locale
	list.Stdin = bytes.NewReader(b.archive(t, hutch.ReadArchive{FileRef: ref("tree", ""), Exclude: []string{"node_modules", "large", "a/b", "l*", "raw*", "meta"}}))
	out, err := list.Output()
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	if err != nil || len(lines) != 6 || lines[0] != ".gitignore" || lines[1] != "a/" {
		t.Errorf("tar lists %q, %v", lines, err)
	}
}

func TestArchiveRefusals(t *testing.T) {
	b := newBox(t)
	b.plant(t, "tree/f", "file")
	put(t, b.home+"/tree/secret", "x")
	_ = os.Chmod(b.home+"/tree/secret", 0o600)
	c, err := b.ReadArchive(within(t), hutch.ReadArchive{FileRef: ref("tree", "")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(c.Body)
	wantCode(t, "a file that may not be read", err, hutch.CodeForbidden, "")
	c.Body.Close()
	for what, tt := range map[string]struct {
		r     hutch.ReadArchive
		code  hutch.Code
		field string
	}{
		"a file":  {hutch.ReadArchive{FileRef: ref("file", "")}, hutch.CodeBadRequest, "path"},
		"missing": {hutch.ReadArchive{FileRef: ref("nowhere", "")}, hutch.CodeNotFound, ""},
		"pattern": {hutch.ReadArchive{FileRef: ref("tree", ""), Exclude: []string{"["}}, hutch.CodeBadRequest, "exclude"},
	} {
		_, err := b.ReadArchive(within(t), tt.r)
		wantCode(t, what, err, tt.code, tt.field)
	}
}

// entry is an entry of an archive that a test makes.
type entry struct {
	tar.Header
	content string
}

func makeTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name}, content}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, ""}
}

func hardlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

// Nothing of an archive lands outside, by whatever way it tries, also as root.
func TestUnpackStaysInside(t *testing.T) {
	b := newBox(t)
	b.plant(t, "out/victim", "in/")
	victim := b.home + "/out/victim"
	for what, entries := range map[string][]entry{
		"dots":                {file("../out/victim", "x")},
		"dots inside":         {file("a/../../out/victim", "x")},
		"absolute":            {file(victim, "x")},
		"link to a directory": {symlink("d", b.home+"/out"), file("d/victim", "x")},
		"relative link":       {symlink("d", "../out"), file("d/victim", "x")},
		"link to a link":      {symlink("c", ".."), symlink("d", "c/out"), file("d/victim", "x")},
		"directory by link":   {symlink("d", "../out"), {tar.Header{Typeflag: tar.TypeDir, Name: "d/new", Mode: 0o755}, ""}},
		"mode by link":        {symlink("d", "../out"), {tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o777}, ""}},
		"hard link out":       {hardlink("h", "../out/victim"), file("h", "x")},
		"hard link absolute":  {hardlink("h", victim), file("h", "x")},
		"hard link by link":   {symlink("d", "../out"), hardlink("h", "d/victim"), file("h", "x")},
		"symlink by link":     {symlink("d", "../out"), symlink("d/new", "x")},
	} {
		for _, user := range []string{"worker", "root"} {
			if err := errors.Join(os.RemoveAll(b.home+"/in"), os.Mkdir(b.home+"/in", 0o755), os.Chown(b.home+"/in", workerID, workerID)); err != nil {
				t.Fatal(err)
			}
			_, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(b.home+"/in", user), Content: bytes.NewReader(makeTar(t, entries...))})
			if err == nil {
				t.Errorf("%s as %s was accepted", what, user)
			} else if !errors.Is(err, hutch.ErrBadRequest) && !errors.Is(err, hutch.ErrConflict) {
				t.Errorf("%s as %s: %v", what, user, err)
			}
			if get(t, victim) != "content of out/victim" || len(names(t, b.home+"/out")) != 1 || len(names(t, b.home)) != 2 {
				t.Fatalf("%s as %s left its directory", what, user)
			}
			wantState(t, b.home+"/out", workerID, workerID, 0o755)
		}
	}
	// A link that is in the place of a file is replaced, not followed.
	link(t, victim, b.home+"/in/f")
	if err := os.Link(victim, b.home+"/in/g"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref("in", ""), Content: bytes.NewReader(makeTar(t, file("f", "new"), file("./g", "new")))}); err != nil {
		t.Error(err)
	}
	if get(t, victim) != "content of out/victim" || get(t, b.home+"/in/f") != "new" || get(t, b.home+"/in/g") != "new" {
		t.Error("written through a link")
	}
}

func TestUnpack(t *testing.T) {
	b := newBox(t)
	data := makeTar(t,
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}, ""},
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "closed/", Mode: 0o500}, ""},
		file("closed/f", "in a closed one"),
		file("implied/parent/f", "x"),
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o4755, Uid: otherID, Gid: otherID}, "s"},
		entry{tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}, ""},
		entry{tar.Header{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}, ""},
		symlink("link", "implied/parent"),
		file("link/through", "stays inside"),
	)
	r, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref("new/place", ""), Content: bytes.NewReader(data)})
	if err != nil || r.Files != 5 || len(r.Skipped) != 2 || !strings.HasPrefix(r.Skipped[0], "pipe: ") {
		t.Errorf("%+v, %v", r, err)
	}
	at := b.home + "/new/place"
	wantState(t, at, workerID, workerID, 0o755)
	wantState(t, at+"/closed", workerID, workerID, 0o500)
	wantState(t, at+"/suid", workerID, workerID, 0o4755)
	if get(t, at+"/implied/parent/through") != "stays inside" || get(t, at+"/closed/f") != "in a closed one" {
		t.Error("other content")
	}
	_, err = b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref("x", ""), Content: bytes.NewReader(data), KeepOwner: true})
	wantCode(t, "keep owners as worker", err, hutch.CodeForbidden, "")
	if _, err = b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(b.home+"/x", "root"), Content: bytes.NewReader(data), KeepOwner: true}); err != nil {
		t.Error(err)
	}
	wantState(t, b.home+"/x/suid", otherID, otherID, 0o4755)
	if r, err = b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref("nothing", "")}); err != nil || r.Files != 0 {
		t.Errorf("nothing: %+v, %v", r, err)
	}
}

func TestUnpackMalformed(t *testing.T) {
	b := newBox(t)
	whole := makeTar(t, file("a", strings.Repeat("a", 5000)), file("b", strings.Repeat("b", 5000)))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(whole)
	_ = z.Close()
	flipped := bytes.Clone(zipped.Bytes())
	flipped[len(flipped)-5] ^= 1
	for what, data := range map[string][]byte{
		"text":           []byte(strings.Repeat("not an archive ", 100)),
		"cut":            whole[:7000],
		"cut in gzip":    zipped.Bytes()[:zipped.Len()/2],
		"false checksum": flipped,
		"gzip of text":   {0x1f, 0x8b, 'x', 'y'},
	} {
		_, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref("in", ""), Content: bytes.NewReader(data)})
		wantCode(t, what, err, hutch.CodeBadRequest, "")
	}
	disk := b.smallDisk(t, "1m")
	_, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(disk, ""), Content: bytes.NewReader(makeTar(t, file("big", strings.Repeat("x", 3<<20))))})
	wantCode(t, "no room", err, hutch.CodeDiskFull, "")
	if got := names(t, disk); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	_, err = b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(b.dir, ""), Content: bytes.NewReader(whole)})
	wantCode(t, "root's directory", err, hutch.CodeForbidden, "")
}

// What an archive that breaks off has not brought whole is as it was: the old file, or none.
func TestUnpackCutShortKeepsWhatWasThere(t *testing.T) {
	b := newBox(t)
	whole := makeTar(t, file("a", strings.Repeat("a", 5000)), file("b", strings.Repeat("b", 5000)), file("c", "c"))
	into := b.home + "/in"
	for _, dir := range []string{into, into + "/d"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, into+"/a", "old a")
	put(t, into+"/b", "old b")
	_, err := b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(into, "root"), Content: bytes.NewReader(whole[:8000])})
	wantCode(t, "cut", err, hutch.CodeBadRequest, "")
	if got := get(t, into+"/a"); got != strings.Repeat("a", 5000) {
		t.Errorf("a: %.20q", got)
	}
	if got := get(t, into+"/b"); got != "old b" {
		t.Errorf("b: %.20q", got)
	}
	if got := names(t, into); len(got) != 3 { // the directory too
		t.Errorf("there is %q", got)
	}
	put(t, into+"/d/file", "in the way")
	_, err = b.WriteArchive(within(t), hutch.WriteArchive{FileRef: ref(into, "root"), Content: bytes.NewReader(makeTar(t, file("d", "x")))})
	wantCode(t, "a directory in the way", err, hutch.CodeConflict, "")
}
