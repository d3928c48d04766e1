package unpack_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	it "hutch.dev/hutch/internal/template/imagetest"
	"hutch.dev/hutch/internal/template/unpack"
)

var roomy = unpack.Limits{Bytes: 64 << 20, Entries: 10_000}

// open returns a tree in a directory beside which nothing may ever appear.
func open(t testing.TB, limits unpack.Limits) (*unpack.Tree, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("owners need root")
	}
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := unpack.Open(dir, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree, dir
}

// apply unpacks layers and returns the first error.
func apply(t testing.TB, tree *unpack.Tree, layers ...[]it.Entry) error {
	t.Helper()
	for _, entries := range layers {
		if err := tree.Apply(t.Context(), bytes.NewReader(it.Tar(t, entries...))); err != nil {
			return err
		}
	}
	return nil
}

// listing is every name in a tree with what it is: "/" for a directory, "=content" for a
// file, "->target" for a link.
func listing(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			all[rel] = "/"
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			all[rel] = "->" + target
			return err
		default:
			data, err := os.ReadFile(name)
			all[rel] = "=" + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

type names = map[string]string

func TestLayersLieOnEachOther(t *testing.T) {
	tests := map[string]struct {
		layers [][]it.Entry
		want   names
	}{
		"files replace files": {
			[][]it.Entry{{it.Dir("a", 0o755), it.File("a/x", "1"), it.File("a/y", "1")}, {it.File("a/x", "2")}},
			names{"a": "/", "a/x": "=2", "a/y": "=1"},
		},
		"a directory keeps what is in it": {
			[][]it.Entry{{it.File("a/x", "1")}, {it.Dir("a", 0o700)}},
			names{"a": "/", "a/x": "=1"},
		},
		"a file replaces a directory": {
			[][]it.Entry{{it.File("a/b/x", "1")}, {it.File("a", "2")}}, names{"a": "=2"},
		},
		"a directory replaces a file, and a link to a directory": {
			[][]it.Entry{{it.File("a", "1"), it.Dir("d", 0o755), it.File("d/keep", "k"), it.Link("l", "d")}, {it.Dir("a", 0o755), it.Dir("l", 0o755), it.File("l/new", "n")}},
			names{"a": "/", "d": "/", "d/keep": "=k", "l": "/", "l/new": "=n"},
		},
		"parents that are not listed": {[][]it.Entry{{it.File("a/b/c", "1")}}, names{"a": "/", "a/b": "/", "a/b/c": "=1"}},
		"names are cleaned": {
			[][]it.Entry{{it.File("/a", "1"), it.File("./b", "2"), it.File(".//c/./d", "3"), it.Of(it.Entry{Name: "./"}, 0o711)}},
			names{"a": "=1", "b": "=2", "c": "/", "c/d": "=3"},
		},
		"a whiteout hides what is below": {
			[][]it.Entry{{it.File("a/x", "1"), it.File("a/y", "1"), it.File("b/c/z", "1")}, {it.Gone("a", "x"), it.Gone(".", "b")}},
			names{"a": "/", "a/y": "=1"},
		},
		"a whiteout spares its own layer, before and after": {
			[][]it.Entry{{it.File("a/x", "1"), it.File("b/x", "1")}, {it.File("a/x", "2"), it.Gone("a", "x"), it.Gone("b", "x"), it.File("b/x", "2")}},
			names{"a": "/", "a/x": "=2", "b": "/", "b/x": "=2"},
		},
		"a whiteout of a directory that its layer fills again": {
			[][]it.Entry{{it.File("a/old", "1"), it.File("a/s/old", "1")}, {it.File("a/s/new", "2"), it.Gone(".", "a")}},
			names{"a": "/", "a/s": "/", "a/s/new": "=2"},
		},
		"an opaque directory": {
			[][]it.Entry{{it.File("a/x", "1"), it.File("a/s/x", "1"), it.File("b", "1")}, {it.Dir("a", 0o755), it.File("a/s/new", "2"), it.Opaque("a"), it.File("a/late", "2")}},
			names{"a": "/", "a/s": "/", "a/s/new": "=2", "a/late": "=2", "b": "=1"},
		},
		"an opaque root": {
			[][]it.Entry{{it.File("a/x", "1")}, {it.Opaque("."), it.File("b", "2")}}, names{"b": "=2"},
		},
		"whiteouts of nothing, and names that mean nothing": {
			[][]it.Entry{{it.File("a", "1")}, {it.Gone("no/where", "x"), it.Gone(".", "x"), it.File(".wh..wh.plnk", ""), it.Opaque("nowhere")}},
			names{"a": "=1"},
		},
		"a whiteout does not follow links": {
			[][]it.Entry{{it.File("real/x", "1"), it.Link("l", "real")}, {it.Gone(".", "l")}},
			names{"real": "/", "real/x": "=1"},
		},
		"links on the way are the tree's own": {
			[][]it.Entry{{it.Dir("run", 0o755), it.Link("var/run", "/run"), it.Link("up", "../../../../run")}, {it.File("var/run/pid", "1"), it.File("up/sock", "2")}},
			names{"run": "/", "var": "/", "var/run": "->/run", "up": "->../../../../run", "run/pid": "=1", "run/sock": "=2"},
		},
		"a dangling link on the way gets its target": {
			[][]it.Entry{{it.Link("a", "/b/c"), it.Link("d/e", "../f")}, {it.File("a/x", "1"), it.File("d/e/y", "2")}},
			names{"a": "->/b/c", "b": "/", "b/c": "/", "b/c/x": "=1", "d": "/", "d/e": "->../f", "f": "/", "f/y": "=2"},
		},
		"hard links": {
			[][]it.Entry{{it.File("a", "1"), it.Hard("b", "a"), it.Hard("s/c", "/b")}, {it.Gone(".", "a"), it.Hard("b", "b")}},
			names{"b": "=1", "s": "/", "s/c": "=1"},
		},
		"a hard link to a lower layer, whose name goes": {
			[][]it.Entry{{it.File("a", "1")}, {it.Hard("b", "a"), it.Gone(".", "a")}},
			names{"b": "=1"},
		},
		"a hard link to a symbolic one": {
			[][]it.Entry{{it.Link("a", "/etc/passwd"), it.Hard("b", "a")}}, names{"a": "->/etc/passwd", "b": "->/etc/passwd"},
		},
		"a link that changes where names lead": {
			[][]it.Entry{{it.Dir("one", 0o755), it.Dir("two", 0o755), it.Link("cur", "one"), it.File("cur/x", "1"), it.Link("cur", "two"), it.File("cur/x", "2")}},
			names{"one": "/", "one/x": "=1", "two": "/", "two/x": "=2", "cur": "->two"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tree, dir := open(t, roomy)
			if err := apply(t, tree, tt.layers...); err != nil {
				t.Fatal(err)
			}
			if got := listing(t, dir); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %v\nwant %v", got, tt.want)
			}
		})
	}
}

func TestOwnersModesAndTimes(t *testing.T) {
	tree, dir := open(t, roomy)
	old := time.Unix(1500000000, 123456789)
	suid := it.Owned(it.Of(it.File("d/su", "x"), 0o6755), 3, 100007)
	suid.Time = old
	link := it.Owned(it.Link("d/l", "su"), 5, 6)
	link.Time = old
	dirEntry := it.Owned(it.Dir("d", 0o1777), 1, 2)
	dirEntry.Time = old
	ancient := it.File("ancient", "")
	ancient.Time = time.Unix(-5, 0)
	root := it.Of(it.Entry{Name: "./"}, 0o750)
	if err := apply(t, tree, []it.Entry{root, dirEntry, suid, link, ancient}, []it.Entry{it.File("d/late", "y"), it.File("implied/x", "z")}); err != nil {
		t.Fatal(err)
	}
	rep, err := tree.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if !rep.Newest.Equal(it.When) || rep.Entries != 8 || rep.Bytes != 3*4096 {
		t.Errorf("report %+v", rep)
	}
	for name, want := range map[string]struct {
		mode     uint32
		uid, gid uint32
		when     time.Time
	}{
		"":        {unix.S_IFDIR | 0o750, 0, 0, it.When},
		"d":       {unix.S_IFDIR | 0o1777, 1, 2, old},
		"d/su":    {unix.S_IFREG | 0o6755, 3, 100007, old},
		"d/l":     {unix.S_IFLNK | 0o777, 5, 6, old},
		"d/late":  {unix.S_IFREG | 0o644, 0, 0, it.When},
		"implied": {unix.S_IFDIR | 0o755, 0, 0, time.Unix(0, 0)},
		"ancient": {unix.S_IFREG | 0o644, 0, 0, time.Unix(0, 0)},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Error(err)
			continue
		}
		if st.Mode != want.mode || st.Uid != want.uid || st.Gid != want.gid || !time.Unix(st.Mtim.Unix()).Equal(want.when) {
			t.Errorf("/%s is %o of %d:%d at %v, want %+v", name, st.Mode, st.Uid, st.Gid, time.Unix(st.Mtim.Unix()), want)
		}
	}
}

func TestWhatIsLeftOutIsReported(t *testing.T) {
	tree, dir := open(t, roomy)
	caps := it.Program("bin/ping", "x")
	caps.PAX = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.user.note": "n"}
	err := apply(t, tree, []it.Entry{
		it.File("dev/sda", "below"),
	}, []it.Entry{
		it.Device("dev/sda"),
		{Name: "p", Type: tar.TypeFifo},
		{Name: "b", Type: tar.TypeBlock},
		caps,
		it.Hard("dev/disk", "dev/sda"),
		{Name: "pax_global_header", Type: tar.TypeXGlobalHeader, PAX: map[string]string{"comment": "x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := tree.Finish()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(rep.Skipped, "\n")
	for _, want := range []string{"/dev/sda: a device", "/p: a FIFO", "/b: a device", "/bin/ping: its file capabilities", "/bin/ping: its extended attribute user.note", "/dev/disk: a hard link to /dev/sda"} {
		if !strings.Contains(all, want) {
			t.Errorf("the report lacks %q:\n%s", want, all)
		}
	}
	if rep.SkippedCount != 6 {
		t.Errorf("%d skipped, want 6", rep.SkippedCount)
	}
	if got := listing(t, dir); !reflect.DeepEqual(got, names{"dev": "/", "bin": "/", "bin/ping": "=x"}) {
		t.Errorf("in the tree: %v", got)
	}
}

func TestReportsAreBounded(t *testing.T) {
	tree, _ := open(t, roomy)
	var entries []it.Entry
	for i := range 500 {
		entries = append(entries, it.Device(fmt.Sprintf("d%d", i)))
	}
	if err := apply(t, tree, entries); err != nil {
		t.Fatal(err)
	}
	rep, err := tree.Finish()
	if err != nil || rep.SkippedCount != 500 || len(rep.Skipped) != 200 {
		t.Errorf("%d named of %d, %v; want 200 of 500", len(rep.Skipped), rep.SkippedCount, err)
	}
}

// TestHostileLayers unpacks what would write, link or remove outside of the tree, or take
// without end. Beside the tree is a file that every escape would hit.
func TestHostileLayers(t *testing.T) {
	deep := strings.Repeat("d/", 1000)
	tests := map[string]struct {
		layers [][]it.Entry
		limits unpack.Limits
		code   hutch.Code // empty = it succeeds, harmlessly
		want   string
	}{
		"a name that climbs":         {layers: [][]it.Entry{{it.File("../victim", "x")}}, code: hutch.CodeBadRequest, want: "climbs"},
		"one that climbs in between": {layers: [][]it.Entry{{it.File("a/../../victim", "x")}}, code: hutch.CodeBadRequest, want: "climbs"},
		"a whiteout that climbs":     {layers: [][]it.Entry{{it.Gone("..", "victim")}}, code: hutch.CodeBadRequest, want: "climbs"},
		"a whiteout of ..":           {layers: [][]it.Entry{{it.File(".wh...", "")}}, code: hutch.CodeBadRequest, want: "no name"},
		"a whiteout of nothing":      {layers: [][]it.Entry{{it.File(".wh.", "")}}, code: hutch.CodeBadRequest, want: "no name"},
		"a link out, then a file":    {layers: [][]it.Entry{{it.Link("out", "../.."), it.File("out/victim", "x")}}},
		"an absolute link out":       {layers: [][]it.Entry{{it.Link("out", "TOP"), it.File("out/victim", "x")}}},
		"a file over a link out":     {layers: [][]it.Entry{{it.Link("f", "../victim"), it.File("f", "x")}}},
		"a link out, then whiteouts": {layers: [][]it.Entry{{it.Link("out", "..")}, {it.Gone("out", "victim"), it.Opaque("out")}}},
		"a hard link out":            {layers: [][]it.Entry{{it.Hard("f", "../victim")}}, code: hutch.CodeBadRequest, want: "climbs"},
		"a hard link through a link": {layers: [][]it.Entry{{it.Link("out", ".."), it.Hard("f", "out/victim")}}},
		"a hard link to the root":    {layers: [][]it.Entry{{it.Hard("f", "/")}}, code: hutch.CodeBadRequest, want: "directory"},
		"modes through a link":       {layers: [][]it.Entry{{it.Link("d", ".."), it.Dir("d", 0o777)}}},
		"magic links":                {layers: [][]it.Entry{{it.Link("p", "/proc/self/root"), it.File("p/victim", "x")}}},
		"links in a circle":          {layers: [][]it.Entry{{it.Link("a", "b"), it.Link("b", "a"), it.File("a/x", "1")}}, code: hutch.CodeBadRequest, want: "circle"},
		"dangling links in a circle": {layers: [][]it.Entry{{it.Link("a", "a/b"), it.File("a/x", "1")}}, code: hutch.CodeBadRequest, want: "circle"},
		"a file on the way":          {layers: [][]it.Entry{{it.File("a", "1"), it.File("a/x", "1")}}, code: hutch.CodeBadRequest, want: "no directory"},
		"the root as a file":         {layers: [][]it.Entry{{it.File(".", "1")}}, code: hutch.CodeBadRequest, want: "root of the image"},
		"a long name":                {layers: [][]it.Entry{{it.File(strings.Repeat("n", 300), "1")}}, code: hutch.CodeBadRequest, want: "longer"},
		"a long name on the way":     {layers: [][]it.Entry{{it.File(strings.Repeat("n", 300)+"/x", "1")}}, code: hutch.CodeBadRequest, want: "longer"},
		"a very long name":           {layers: [][]it.Entry{{it.File(strings.Repeat("n/", 3000)+"x", "1")}}, code: hutch.CodeBadRequest, want: "name of"},
		"a deep tree":                {layers: [][]it.Entry{{it.File(deep+"x", "1"), it.Link("s", "/"+deep), it.File("s/"+deep+"x", "1"), it.Link("t", "/s/"+deep), it.File("t/"+deep+"x", "1")}}, code: hutch.CodeBadRequest, want: "nested"},
		"a link without a target":    {layers: [][]it.Entry{{it.Link("l", "")}}, code: hutch.CodeBadRequest, want: "no name"},
		"an unknown type":            {layers: [][]it.Entry{{{Name: "x", Type: 'Z'}}}, code: hutch.CodeBadRequest, want: "unknown type"},
		"no such user":               {layers: [][]it.Entry{{it.Owned(it.File("x", ""), 1<<32-1, 0)}}, code: hutch.CodeBadRequest, want: "no user"},
		"too many entries":           {layers: [][]it.Entry{{it.File("a", ""), it.File("a", ""), it.File("a", "")}}, limits: unpack.Limits{Bytes: 1 << 20, Entries: 2}, code: hutch.CodeTooLarge, want: "more than 2"},
		"too many implied entries":   {layers: [][]it.Entry{{it.File("a/b/c/d/e", "")}}, limits: unpack.Limits{Bytes: 1 << 20, Entries: 3}, code: hutch.CodeTooLarge, want: "more than 3"},
		"too large":                  {layers: [][]it.Entry{{it.File("a", strings.Repeat("x", 5000))}, {it.File("a", strings.Repeat("x", 5000))}}, limits: unpack.Limits{Bytes: 12 << 10, Entries: 9}, code: hutch.CodeTooLarge, want: "larger"},
		"a gigantic size":            {layers: [][]it.Entry{{{Name: "a", Content: "x", Size: 1 << 40, Mode: 0o644}}}, code: hutch.CodeTooLarge, want: "larger"},
		"a file cut short":           {layers: [][]it.Entry{{{Name: "a", Content: "x", Size: 1000, Mode: 0o644}}}, code: hutch.CodeBadRequest, want: "tar archive"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.limits == (unpack.Limits{}) {
				tt.limits = roomy
			}
			tree, dir := open(t, tt.limits)
			top := filepath.Dir(dir)
			victim := filepath.Join(top, "victim")
			if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, layer := range tt.layers {
				for i := range layer {
					layer[i].Link = strings.ReplaceAll(layer[i].Link, "TOP", top)
				}
			}
			err := apply(t, tree, tt.layers...)
			var e *hutch.Error
			switch {
			case tt.code == "" && err != nil:
				t.Errorf("got %v, want success", err)
			case tt.code != "" && (!errors.As(err, &e) || e.Code != tt.code || !strings.Contains(e.Message, tt.want)):
				t.Errorf("got %v, want %s with %q", err, tt.code, tt.want)
			}
			checkOutside(t, top)
		})
	}
}

// checkOutside makes sure that beside the tree is only the file that was there.
func checkOutside(t *testing.T, top string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(top, "victim"), &st); err != nil || st.Mode != unix.S_IFREG|0o600 || st.Nlink != 1 {
		t.Errorf("the file beside the tree: %v, mode %o, %d names", err, st.Mode, st.Nlink)
	}
	if data, err := os.ReadFile(filepath.Join(top, "victim")); err != nil || string(data) != "untouched" {
		t.Errorf("the file beside the tree: %q, %v", data, err)
	}
	if list, err := os.ReadDir(top); err != nil || len(list) != 2 {
		t.Errorf("beside the tree: %v, %v", list, err)
	}
	if info, err := os.Stat(top); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory above: %v, %v", info.Mode(), err)
	}
}

func TestApplyEndsWithItsContext(t *testing.T) {
	tree, _ := open(t, roomy)
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := tree.Apply(ctx, bytes.NewReader(it.Tar(t, it.File("a", "1")))); !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause", err)
	}
}

// endless is a stream of zeros after a layer: padding that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestPaddingIsBounded(t *testing.T) {
	tree, _ := open(t, unpack.Limits{Bytes: 1 << 20, Entries: 10})
	err := tree.Apply(t.Context(), &after{bytes.NewReader(it.Tar(t, it.File("a", "1")))})
	if !errors.Is(err, hutch.ErrTooLarge) {
		t.Errorf("got %v, want too_large", err)
	}
}

// after is a reader that goes on with zeros.
type after struct{ r *bytes.Reader }

func (a *after) Read(p []byte) (int, error) {
	if a.r.Len() > 0 {
		return a.r.Read(p)
	}
	return endless{}.Read(p)
}

func TestFurnish(t *testing.T) {
	tree, dir := open(t, roomy)
	if err := apply(t, tree, []it.Entry{it.Link("etc", "/config"), it.Link("tmp", "var/tmp"), it.Dir("sys", 0o700), it.File("proc", "no"), it.File("config/passwd", "root:x")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		added bool
		ok    bool
	}{"/tmp": {true, true}, "/sys": {false, true}, "/a/b": {true, true}, "/": {false, true}, "/proc": {false, false}, "/proc/x": {false, false}} {
		added, err := tree.AddDir(name, 0o1777)
		if added != want.added || (err == nil) != want.ok || err != nil && !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("add %s: %v, %v; want %+v", name, added, err, want)
		}
	}
	if err := tree.Check("/proc"); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("check of a file: %v", err)
	}
	if err := errors.Join(tree.Check("/sys"), tree.Check("/nowhere")); err != nil {
		t.Error(err)
	}
	if added, err := tree.AddFile("etc/hosts", []byte("hosts")); !added || err != nil {
		t.Errorf("add a file: %v, %v", added, err)
	}
	if added, err := tree.AddFile("etc/passwd", []byte("mine")); added || err != nil {
		t.Errorf("add a file that is there: %v, %v", added, err)
	}
	if data, err := tree.ReadFile("/etc/passwd", 4); string(data) != "root" || err != nil {
		t.Errorf("read through a link: %q, %v", data, err)
	}
	if data, err := tree.ReadFile("/sys", 4); data != nil || err != nil {
		t.Errorf("read a directory: %q, %v", data, err)
	}
	if data, err := tree.ReadFile("/no/such", 4); data != nil || err != nil {
		t.Errorf("read nothing: %q, %v", data, err)
	}
	want := names{
		"etc": "->/config", "config": "/", "config/passwd": "=root:x", "config/hosts": "=hosts",
		"tmp": "->var/tmp", "var": "/", "var/tmp": "/", "sys": "/", "proc": "=no", "a": "/", "a/b": "/",
	}
	if got := listing(t, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if info, err := os.Stat(filepath.Join(dir, "var/tmp")); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("/var/tmp: %v, %v", info, err)
	}
}

// FuzzApply unpacks layers of entries that the input spells, and of raw bytes: whatever
// they say, nothing beside the tree changes.
func FuzzApply(f *testing.F) {
	for _, seed := range []string{
		"f a", "d a\nf a/b", "l a ../..\nf a/victim", "h a ../victim", "l a /\nw a victim", "f .wh..wh..opq\nl x ..\nd x", "l a b\nl b a\nf a/x",
	} {
		f.Add([]byte(seed), false)
	}
	f.Add(it.Tar(f, it.File("a", "1"), it.Link("b", "a")), true)
	f.Fuzz(func(t *testing.T, data []byte, raw bool) {
		tree, dir := open(t, unpack.Limits{Bytes: 1 << 20, Entries: 200})
		top := filepath.Dir(dir)
		if err := os.WriteFile(filepath.Join(top, "victim"), []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		layers := [][]byte{data}
		if !raw {
			layers = spelled(t, string(data))
		}
		for _, layer := range layers {
			if err := tree.Apply(t.Context(), bytes.NewReader(layer)); err != nil {
				break
			}
		}
		_, _ = tree.Finish()
		checkOutside(t, top)
	})
}

// spelled makes layers of lines "type name target"; an empty line begins the next layer.
func spelled(t *testing.T, text string) [][]byte {
	var layers [][]byte
	for part := range strings.SplitSeq(text, "\n\n") {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for line := range strings.SplitSeq(part, "\n") {
			words := strings.SplitN(line, " ", 3)
			words = append(words, "", "", "")
			hdr := &tar.Header{Name: words[1], Linkname: words[2], Mode: 0o777, ModTime: it.When}
			switch words[0] {
			case "d":
				hdr.Typeflag, hdr.Name = tar.TypeDir, hdr.Name+"/"
			case "l":
				hdr.Typeflag = tar.TypeSymlink
			case "h":
				hdr.Typeflag = tar.TypeLink
			case "w":
				hdr.Typeflag, hdr.Name, hdr.Linkname = tar.TypeReg, hdr.Name+"/.wh."+words[2], ""
			default:
				hdr.Typeflag, hdr.Linkname = tar.TypeReg, ""
			}
			_ = w.WriteHeader(hdr)
		}
		_ = w.Close()
		layers = append(layers, buf.Bytes())
	}
	return layers
}
