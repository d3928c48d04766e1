package files_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

func modeOf(m uint32) *uint32 { return &m }

// state is whose a file is and what may be done with it.
func state(t testing.TB, path string) (uid, gid int, mode uint32) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return int(sys.Uid), int(sys.Gid), sys.Mode & 0o7777
}

func wantState(t testing.TB, path string, uid, gid int, mode uint32) {
	t.Helper()
	if u, g, m := state(t, path); u != uid || g != gid || m != mode {
		t.Errorf("%s: %d:%d %#o, want %d:%d %#o", path, u, g, m, uid, gid, mode)
	}
}

// G08: what is uploaded belongs to who uploads it, so that the agent can go on with it.
func TestWrite(t *testing.T) {
	b := newBox(t)
	r := b.write(t, hutch.WriteFile{FileRef: ref("new/deep/f", "")}, "one")
	if r.Offset != 3 || r.Info == nil || r.Info.Path != b.home+"/new/deep/f" || r.Info.Size != 3 || r.Info.Owner != "worker" {
		t.Errorf("result %+v, %+v", r, r.Info)
	}
	wantState(t, b.home+"/new", workerID, workerID, 0o755)
	wantState(t, b.home+"/new/deep", workerID, workerID, 0o755)
	wantState(t, b.home+"/new/deep/f", workerID, workerID, 0o644)
	b.write(t, hutch.WriteFile{FileRef: ref("new/deep/f", ""), Mode: modeOf(0o600)}, "two")
	wantState(t, b.home+"/new/deep/f", workerID, workerID, 0o600)
	b.write(t, hutch.WriteFile{FileRef: ref("new/deep/f", "")}, "")
	wantState(t, b.home+"/new/deep/f", workerID, workerID, 0o600)
	if got := get(t, b.home+"/new/deep/f"); got != "" {
		t.Errorf("holds %q", got)
	}
	if r, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("nothing", "")}); err != nil || r.Info.Size != 0 {
		t.Errorf("no content: %+v, %v", r, err)
	}
	if got := names(t, b.home+"/new/deep"); len(got) != 1 {
		t.Errorf("left beside it: %v", got)
	}
}

func TestWriteOwner(t *testing.T) {
	b := newBox(t)
	b.write(t, hutch.WriteFile{FileRef: ref(b.home+"/of-other", "root"), Owner: "other", Group: "both", Mode: modeOf(0o4755)}, "x")
	wantState(t, b.home+"/of-other", otherID, 61003, 0o4755)
	b.write(t, hutch.WriteFile{FileRef: ref(b.home+"/of-other", "root")}, "y")
	wantState(t, b.home+"/of-other", otherID, 61003, 0o4755)

	// Who may write a file of somebody else leaves it its owner, and takes no rights of his.
	if err := os.Chmod(b.home+"/of-other", 0o4777); err != nil {
		t.Fatal(err)
	}
	b.write(t, hutch.WriteFile{FileRef: ref("of-other", "")}, "by worker")
	wantState(t, b.home+"/of-other", otherID, 61003, 0o777)
	_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("of-other", ""), Mode: modeOf(0o4755)})
	wantCode(t, "mode of somebody else's file", err, hutch.CodeForbidden, "")

	b.write(t, hutch.WriteFile{FileRef: ref("shared", ""), Group: "both"}, "x")
	wantState(t, b.home+"/shared", workerID, 61003, 0o644)
	for name, w := range map[string]hutch.WriteFile{
		"give away":      {FileRef: ref("gift", ""), Owner: "other"},
		"foreign group":  {FileRef: ref("gift", ""), Group: "other"},
		"foreign folder": {FileRef: ref(b.dir+"/other/f", "")},
		"root's folder":  {FileRef: ref(b.dir+"/f", "")},
		"root's parents": {FileRef: ref(b.dir+"/x/y/f", "")},
		"unwritable":     {FileRef: ref("readonly", "")},
		"of root":        {FileRef: ref("of-root", "")},
	} {
		putAs(t, b.home+"/readonly", "x", workerID)
		put(t, b.home+"/of-root", "x")
		if err := os.Chmod(b.home+"/readonly", 0o444); err != nil {
			t.Fatal(err)
		}
		_, err := b.WriteFile(within(t), w)
		wantCode(t, name, err, hutch.CodeForbidden, "")
	}
	for name, tt := range map[string]struct {
		w     hutch.WriteFile
		field string
	}{
		"no such user":  {hutch.WriteFile{FileRef: ref("x", "root"), Owner: "missing"}, "owner"},
		"no such group": {hutch.WriteFile{FileRef: ref("x", "root"), Group: "missing"}, "group"},
		"mode":          {hutch.WriteFile{FileRef: ref("x", ""), Mode: modeOf(0o100644)}, "mode"},
		"offset":        {hutch.WriteFile{FileRef: ref("x", ""), Offset: 1}, "offset"},
		"upload":        {hutch.WriteFile{FileRef: ref("x", ""), Upload: "a/b"}, "upload"},
		"slash":         {hutch.WriteFile{FileRef: ref("x/", "")}, "path"},
		"directory":     {hutch.WriteFile{FileRef: ref("~", "")}, "path"},
		"device":        {hutch.WriteFile{FileRef: ref("/dev/null", "root")}, "path"},
		"below a file":  {hutch.WriteFile{FileRef: ref("shared/x", "")}, "path"},
	} {
		_, err := b.WriteFile(within(t), tt.w)
		wantCode(t, name, err, hutch.CodeBadRequest, tt.field)
	}
	if got := names(t, b.home); strings.Join(got, " ") != "of-other of-root readonly shared" {
		t.Errorf("left behind: %q", got)
	}
}

func TestWriteExcl(t *testing.T) {
	b := newBox(t)
	b.write(t, hutch.WriteFile{FileRef: ref("f", ""), Excl: true}, "one")
	_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("f", ""), Excl: true})
	wantCode(t, "it exists", err, hutch.CodeConflict, "")
	if got := get(t, b.home+"/f"); got != "one" {
		t.Errorf("holds %q", got)
	}
	link(t, "nowhere", b.home+"/dangling")
	_, err = b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("dangling", ""), Excl: true})
	wantCode(t, "a link that leads nowhere", err, hutch.CodeConflict, "")
}

func TestWriteThroughLinks(t *testing.T) {
	b := newBox(t)
	if err := os.Mkdir(b.home+"/d", 0o777); err != nil {
		t.Fatal(err)
	}
	_ = os.Chown(b.home+"/d", workerID, workerID)
	putAs(t, b.home+"/d/f", "old", workerID)
	link(t, "d/f", b.home+"/rel")
	link(t, b.home+"/rel", b.home+"/abs")
	link(t, "d/made", b.home+"/dangling")
	link(t, "d/..", b.home+"/dots")
	b.write(t, hutch.WriteFile{FileRef: ref("abs", "")}, "new")
	b.write(t, hutch.WriteFile{FileRef: ref("dangling", "")}, "made")
	if get(t, b.home+"/d/f") != "new" || get(t, b.home+"/d/made") != "made" {
		t.Error("the links' targets were not written")
	}
	for _, name := range []string{"rel", "abs", "dangling"} {
		if st, err := os.Lstat(b.home + "/" + name); err != nil || st.Mode().Type() != os.ModeSymlink {
			t.Errorf("%s is no link any more", name)
		}
	}
	_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("dots", "")})
	wantCode(t, "a link to a directory", err, hutch.CodeBadRequest, "path")
	put(t, b.dir+"/root/secret", "root's")
	link(t, b.dir+"/root/secret", b.home+"/trap")
	_, err = b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("trap", "")})
	wantCode(t, "a link to root's file", err, hutch.CodeForbidden, "")
}

// G01: sizes around buffers, and one of many.
func TestWriteSizes(t *testing.T) {
	b := newBox(t)
	for _, size := range []int64{0, 1, 18 << 10, 19 << 10, 64<<10 - 1, 64 << 10, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20, 40 << 20} {
		sent := sha256.New()
		src := io.TeeReader(io.LimitReader(&pattern{}, size), sent)
		r, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("big", ""), Content: src})
		if err != nil || r.Offset != size || r.Info.Size != size {
			t.Fatalf("%d bytes: %+v, %v", size, r, err)
		}
		c, err := b.OpenFile(within(t), hutch.ReadFile{FileRef: ref("big", "")})
		if err != nil {
			t.Fatal(err)
		}
		got := sha256.New()
		n, err := io.Copy(got, c.Body)
		c.Body.Close()
		if err != nil || n != size || c.Info.Size != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			t.Errorf("%d bytes: read %d, %v", size, n, err)
		}
	}
}

// Memory does not grow with the size of a file.
func TestMemory(t *testing.T) {
	b := newBox(t)
	const size = 96 << 20
	var before, after runtime.MemStats
	move := func(size int64) {
		if _, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("big", ""), Content: io.LimitReader(&pattern{}, size)}); err != nil {
			t.Fatal(err)
		}
		c, err := b.OpenFile(within(t), hutch.ReadFile{FileRef: ref("big", "")})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Body.Close()
		if _, err := io.Copy(io.Discard, c.Body); err != nil {
			t.Fatal(err)
		}
	}
	move(8 << 20)
	runtime.ReadMemStats(&before)
	move(size)
	runtime.ReadMemStats(&after)
	if grown := after.HeapSys + after.StackSys - before.HeapSys - before.StackSys; int64(grown) > size/3 {
		t.Errorf("%d MiB of memory more for a file of %d MiB", grown>>20, size>>20)
	}
}

// pattern is bytes without end, none the same for long.
type pattern struct{ n int }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(p.n * (p.n >> 8) >> 3)
		p.n++
	}
	return len(b), nil
}

// broken is content that fails on its way.
type broken struct {
	first io.Reader
	err   error
}

func (r *broken) Read(p []byte) (int, error) {
	if n, err := r.first.Read(p); err == nil {
		return n, nil
	}
	return 0, r.err
}

// A write that does not come to its end changes nothing and leaves nothing.
func TestWriteCutShort(t *testing.T) {
	b := newBox(t)
	b.write(t, hutch.WriteFile{FileRef: ref("f", "")}, "old")
	gone := errors.New("gone")
	_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("f", ""), Content: &broken{io.LimitReader(&pattern{}, 3<<20), gone}})
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(within(t))
	_, err = b.WriteFile(ctx, hutch.WriteFile{FileRef: ref("f", ""), Content: io.MultiReader(io.LimitReader(&pattern{}, 3<<20), readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, context.Canceled
	}))})
	wantCode(t, "cancelled", err, hutch.CodeCancelled, "")
	eventually(t, "only the old file is there", func() bool {
		return strings.Join(names(t, b.home), " ") == "f" && get(t, b.home+"/f") == "old"
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// smallDisk mounts a file system of some bytes as worker's.
func (b *box) smallDisk(t testing.TB, size string) string {
	t.Helper()
	dir := b.home + "/disk"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("no right to mount:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := errors.Join(os.Chown(dir, workerID, workerID), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDiskFull(t *testing.T) {
	b := newBox(t)
	dir := b.smallDisk(t, "1m")
	b.write(t, hutch.WriteFile{FileRef: ref(dir+"/f", "")}, "old")
	_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref(dir+"/f", ""), Content: io.LimitReader(&pattern{}, 20<<20)})
	wantCode(t, "write", err, hutch.CodeDiskFull, "")
	_, err = b.WriteFile(within(t), hutch.WriteFile{FileRef: ref(dir+"/f", ""), Upload: "u", Content: io.LimitReader(&pattern{}, 20<<20)})
	wantCode(t, "part of an upload", err, hutch.CodeDiskFull, "")
	if got := names(t, dir); len(got) != 1 || get(t, dir+"/f") != "old" {
		t.Errorf("left: %v, %q", got, get(t, dir+"/f"))
	}
	b.write(t, hutch.WriteFile{FileRef: ref(dir+"/f", "")}, strings.Repeat("x", 500<<10)) // there is room again
}

func TestUpload(t *testing.T) {
	b := newBox(t)
	part := func(offset int64, content string, last bool) (hutch.WriteResult, error) {
		return b.WriteFile(within(t), hutch.WriteFile{
			FileRef: ref("up/f", ""), Upload: "u-1", Offset: offset, Last: last, Content: strings.NewReader(content), Mode: modeOf(0o600),
		})
	}
	want := func(what string, r hutch.WriteResult, err error, offset int64) {
		t.Helper()
		if err != nil || r.Offset != offset || r.Info != nil {
			t.Errorf("%s: %+v, %v; want offset %d", what, r, err, offset)
		}
	}
	r, err := part(0, "hello ", false)
	want("first", r, err, 6)
	r, err = part(0, "", false)
	want("how far", r, err, 6)
	r, err = part(9, "late", false)
	wantCode(t, "a gap", err, hutch.CodeConflict, "")
	if r.Offset != 6 {
		t.Errorf("a gap is answered with offset %d", r.Offset)
	}
	r, err = part(3, "lo wor", false)
	want("overlapping", r, err, 9)
	r, err = part(0, "hel", false)
	want("nothing new", r, err, 9)
	if _, err := os.Stat(b.home + "/up/f"); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file is there before its last part")
	}
	if l, err := b.ListFiles(within(t), hutch.ListFiles{FileRef: ref("up", "")}); err != nil || len(l.Entries) != 0 {
		t.Errorf("listed meanwhile: %+v, %v", l, err)
	}
	r, err = part(9, "ld", true)
	if err != nil || r.Offset != 11 || r.Info == nil || r.Info.Size != 11 {
		t.Errorf("last: %+v, %v", r, err)
	}
	if got := get(t, b.home+"/up/f"); got != "hello world" || len(names(t, b.home+"/up")) != 1 {
		t.Errorf("holds %q beside %v", got, names(t, b.home+"/up"))
	}
	wantState(t, b.home+"/up/f", workerID, workerID, 0o600)

	// A part that is cut short is continued from where it is.
	_, err = b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("up/f", ""), Upload: "u-2", Content: &broken{strings.NewReader(strings.Repeat("a", 1<<20)), errors.New("gone")}})
	if err == nil {
		t.Fatal("a part that is cut short was taken for whole")
	}
	var at int64
	eventually(t, "the part before is over", func() bool {
		r, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("up/f", ""), Upload: "u-2"})
		at = r.Offset
		return err == nil
	})
	if got := get(t, b.home+"/up/f"); got != "hello world" {
		t.Errorf("the old file holds %q", got)
	}
	rest := strings.Repeat("a", int(1<<20-at)) + "b"
	r, err = b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("up/f", ""), Upload: "u-2", Offset: at, Last: true, Content: strings.NewReader(rest)})
	if err != nil || r.Offset != 1<<20+1 || get(t, b.home+"/up/f") != strings.Repeat("a", 1<<20)+"b" {
		t.Errorf("continued: %+v, %v", r, err)
	}
}

// Parts that an agent before this one left, long ago, are not gone on with.
func TestUploadStale(t *testing.T) {
	b := newBox(t)
	w := hutch.WriteFile{FileRef: ref("f", ""), Upload: "u"}
	if r := b.write(t, w, "old"); r.Offset != 3 {
		t.Fatalf("%+v", r)
	}
	old := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(b.home+"/"+names(t, b.home)[0], old, old); err != nil {
		t.Fatal(err)
	}
	w.Last = true
	if r := b.write(t, w, "new"); r.Offset != 3 || get(t, b.home+"/f") != "new" {
		t.Errorf("%+v, holds %q", r, get(t, b.home+"/f"))
	}
}

// Parts of one upload do not mix, and others' files are not taken for parts.
func TestUploadAlone(t *testing.T) {
	b := newBox(t)
	begun, more := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		first := true
		_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("f", ""), Upload: "u", Content: readerFunc(func(p []byte) (int, error) {
			if first {
				first = false
				return copy(p, bytes.Repeat([]byte("a"), 100)), nil
			}
			close(begun)
			<-more
			return 0, io.EOF
		})})
		done <- err
	}()
	<-begun // by what sends it: the service may not have seen it yet, and would refuse it as the later of two
	eventually(t, "the first is being written", func() bool { return len(names(t, b.home)) == 1 })
	_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("f", ""), Upload: "u"})
	wantCode(t, "the second", err, hutch.CodeConflict, "")
	close(more)
	if err := <-done; err != nil {
		t.Error(err)
	}
	temp := names(t, b.home)[0]
	if !strings.HasPrefix(temp, ".hutch-upload-") {
		t.Fatalf("the parts are in %q", temp)
	}
	if err := errors.Join(os.Chmod(b.home+"/"+temp, 0o666), os.Chown(b.home+"/"+temp, otherID, otherID)); err != nil {
		t.Fatal(err)
	}
	_, err = b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("f", ""), Upload: "u", Last: true})
	wantCode(t, "somebody else's file", err, hutch.CodeConflict, "")
}

func TestMetadata(t *testing.T) {
	b := newBox(t)
	b.write(t, hutch.WriteFile{FileRef: ref("f", ""), Metadata: map[string]string{"Author": "worker", "x-1": "a b"}}, "x")
	info, err := b.StatFile(within(t), ref("f", ""))
	if err != nil || len(info.Metadata) != 2 || info.Metadata["author"] != "worker" || info.Metadata["x-1"] != "a b" {
		t.Fatalf("metadata %v, %v", info.Metadata, err)
	}
	var buf [64]byte
	if n, err := unix.Lgetxattr(b.home+"/f", "user.e2b.author", buf[:]); err != nil || string(buf[:n]) != "worker" {
		t.Errorf("the attribute: %q, %v", buf[:max(n, 0)], err)
	}
	c, err := b.OpenFile(within(t), hutch.ReadFile{FileRef: ref("f", "")})
	if err != nil || len(c.Info.Metadata) != 2 {
		t.Errorf("open: %+v, %v", c, err)
	}
	c.Body.Close()
	r := b.write(t, hutch.WriteFile{FileRef: ref("f", "")}, "y")
	if info, _ = b.StatFile(within(t), ref("f", "")); len(info.Metadata) != 0 || len(r.Info.Metadata) != 0 {
		t.Errorf("metadata left after a write without: %v", info.Metadata)
	}
	for name, m := range map[string]map[string]string{
		"empty key":  {"": "x"},
		"long key":   {strings.Repeat("k", 247): "x"},
		"key":        {"ü": "x"},
		"space":      {"a b": "x"},
		"value":      {"a": "ü"},
		"newline":    {"a": "b\nc"},
		"twice":      {"a": "1", "A": "2"},
		"altogether": {"a": strings.Repeat("v", 4096)},
	} {
		_, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref("g", ""), Metadata: m})
		wantCode(t, name, err, hutch.CodeBadRequest, "metadata")
	}
	long := map[string]string{strings.Repeat("k", 246): strings.Repeat("v", 4096-246)}
	g := ref(b.smallDisk(t, "1m")+"/g", "") // some file systems keep less
	b.write(t, hutch.WriteFile{FileRef: g, Metadata: long}, "")
	if info, err = b.StatFile(within(t), g); err != nil || len(info.Metadata) != 1 {
		t.Errorf("the longest metadata: %d, %v", len(info.Metadata), err)
	}
}
