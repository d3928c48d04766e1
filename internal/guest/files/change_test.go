package files_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

func TestMakeDir(t *testing.T) {
	b := newBox(t)
	info, err := b.MakeDir(within(t), hutch.MakeDir{FileRef: ref("a/b/c", "")})
	if err != nil || info.Path != b.home+"/a/b/c" || info.Type != hutch.TypeDirectory || info.Owner != "worker" {
		t.Errorf("%+v, %v", info, err)
	}
	wantState(t, b.home+"/a", workerID, workerID, 0o755)
	wantState(t, b.home+"/a/b/c", workerID, workerID, 0o755)
	if _, err := b.MakeDir(within(t), hutch.MakeDir{FileRef: ref("a/b/d/e", ""), Mode: modeOf(0o1777), Group: "both"}); err != nil {
		t.Error(err)
	}
	wantState(t, b.home+"/a/b/d", workerID, 61003, 0o1777)
	wantState(t, b.home+"/a/b/d/e", workerID, 61003, 0o1777)
	if _, err := b.MakeDir(within(t), hutch.MakeDir{FileRef: ref(b.home+"/for-other", "root"), Owner: "other"}); err != nil {
		t.Error(err)
	}
	wantState(t, b.home+"/for-other", otherID, 0, 0o755)
	if _, err := b.MakeDir(within(t), hutch.MakeDir{FileRef: ref("a/b", ""), Exists: true}); err != nil {
		t.Error(err)
	}
	b.plant(t, "file")
	link(t, "a", b.home+"/link")
	link(t, "nowhere", b.home+"/dangling")
	for what, tt := range map[string]struct {
		m     hutch.MakeDir
		code  hutch.Code
		field string
	}{
		"exists":           {hutch.MakeDir{FileRef: ref("a", "")}, hutch.CodeConflict, ""},
		"exists by a link": {hutch.MakeDir{FileRef: ref("link", "")}, hutch.CodeConflict, ""},
		"a file":           {hutch.MakeDir{FileRef: ref("file", "")}, hutch.CodeBadRequest, "path"},
		"below a file":     {hutch.MakeDir{FileRef: ref("file/x/y", "")}, hutch.CodeBadRequest, "path"},
		"dangling":         {hutch.MakeDir{FileRef: ref("dangling", "")}, hutch.CodeBadRequest, "path"},
		"root's":           {hutch.MakeDir{FileRef: ref(b.dir+"/x/y", "")}, hutch.CodeForbidden, ""},
		"mode":             {hutch.MakeDir{FileRef: ref("x", ""), Mode: modeOf(0o10000)}, hutch.CodeBadRequest, "mode"},
		"give away":        {hutch.MakeDir{FileRef: ref("x/y", ""), Owner: "other"}, hutch.CodeForbidden, ""},
		"nobody":           {hutch.MakeDir{FileRef: ref("x/y", ""), Owner: "missing"}, hutch.CodeBadRequest, "owner"},
	} {
		_, err := b.MakeDir(within(t), tt.m)
		wantCode(t, what, err, tt.code, tt.field)
	}
	if got := strings.Join(names(t, b.home), " "); got != "a dangling file for-other link" {
		t.Errorf("left behind: %s", got)
	}
}

func TestMove(t *testing.T) {
	b := newBox(t)
	b.plant(t, "f", "d/1/x", "d/y", "full/z", "empty/")
	move := func(from, to string, excl bool) (hutch.FileInfo, error) {
		return b.MoveFile(within(t), hutch.MoveFile{From: from, To: to, Excl: excl})
	}
	info, err := move("f", "new/place/g", true)
	if err != nil || info.Path != b.home+"/new/place/g" || get(t, b.home+"/new/place/g") != "content of f" {
		t.Errorf("%+v, %v", info, err)
	}
	wantState(t, b.home+"/new", workerID, workerID, 0o755)
	if _, err := move("d", "empty", false); err != nil {
		t.Error(err)
	}
	link(t, "new", b.home+"/link")
	if _, err := move("link", "link2", false); err != nil {
		t.Error(err)
	}
	if target, err := os.Readlink(b.home + "/link2"); err != nil || target != "new" {
		t.Error("the link itself was not moved")
	}
	if _, err := move("link2/place/g", "h", false); err != nil {
		t.Error(err)
	}
	if _, err := move("h", "empty/y", false); err != nil || get(t, b.home+"/empty/y") != "content of f" {
		t.Error("over a file:", err)
	}
	put(t, b.dir+"/root/f", "x")
	for what, tt := range map[string]struct {
		from, to string
		excl     bool
		code     hutch.Code
		field    string
	}{
		"missing":           {"nowhere", "x", false, hutch.CodeNotFound, ""},
		"excl":              {"empty/y", "full/z", true, hutch.CodeConflict, ""},
		"over a full one":   {"empty", "full", false, hutch.CodeConflict, ""},
		"into itself":       {"empty", "empty/1/e", false, hutch.CodeBadRequest, "to"},
		"the root":          {"/", "x", false, hutch.CodeBadRequest, "from"},
		"no source":         {"", "x", false, hutch.CodeBadRequest, "from"},
		"no target":         {"full", "", false, hutch.CodeBadRequest, "to"},
		"root's source":     {b.dir + "/root/f", "x", false, hutch.CodeForbidden, ""},
		"root's target":     {"full/z", b.dir + "/root/z", false, hutch.CodeForbidden, ""},
		"below a file":      {"full/z", "empty/y/z", false, hutch.CodeBadRequest, "to"},
		"a file on a dir":   {"full/z", "empty", false, hutch.CodeBadRequest, ""},
		"a dir on a file":   {"full", "empty/y", false, hutch.CodeNotFound, ""},
		"home's own parent": {b.dir, b.dir + "x", false, hutch.CodeForbidden, ""},
	} {
		_, err := move(tt.from, tt.to, tt.excl)
		wantCode(t, what, err, tt.code, tt.field)
	}
}

// Between file systems a move copies, and looks the same after it.
func TestMoveAcross(t *testing.T) {
	b := newBox(t)
	disk := b.smallDisk(t, "2m")
	b.plant(t, "tree/sub/f", "tree/private/", "tree/x")
	b.write(t, hutch.WriteFile{FileRef: ref("tree/meta", ""), Metadata: map[string]string{"k": "v"}, Mode: modeOf(0o751)}, "m")
	link(t, "sub/f", b.home+"/tree/link")
	if err := errors.Join(os.Chmod(b.home+"/tree/private", 0o700), unix.Mkfifo(b.home+"/tree/pipe", 0o640), os.Chown(b.home+"/tree/pipe", workerID, workerID)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(b.home + "/tree/sub/f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.MoveFile(within(t), hutch.MoveFile{From: "tree", To: disk + "/moved"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.home + "/tree"); !errors.Is(err, os.ErrNotExist) {
		t.Error("the source is still there")
	}
	if got := strings.Join(names(t, disk), " "); got != "moved" {
		t.Errorf("beside it: %s", got)
	}
	after, err := os.Stat(disk + "/moved/sub/f")
	if err != nil || !after.ModTime().Equal(before.ModTime()) || get(t, disk+"/moved/link") != "content of tree/sub/f" {
		t.Errorf("after: %v, %v", after, err)
	}
	wantState(t, disk+"/moved/private", workerID, workerID, 0o700)
	wantState(t, disk+"/moved/meta", workerID, workerID, 0o751)
	wantState(t, disk+"/moved/pipe", workerID, workerID, 0o640)
	if info, err := b.StatFile(within(t), ref(disk+"/moved/meta", "")); err != nil || info.Metadata["k"] != "v" {
		t.Errorf("metadata %v, %v", info.Metadata, err)
	}

	b.plant(t, "large/f")
	put(t, b.home+"/large/f", strings.Repeat("x", 3<<20))
	_, err = b.MoveFile(within(t), hutch.MoveFile{From: "large", To: disk + "/large"})
	wantCode(t, "no room", err, hutch.CodeDiskFull, "")
	if got := strings.Join(names(t, disk), " "); got != "moved" || len(get(t, b.home+"/large/f")) != 3<<20 {
		t.Errorf("after a failed move: %s", got)
	}
	_, err = b.MoveFile(within(t), hutch.MoveFile{From: "large/f", To: disk + "/moved/x", Excl: true})
	wantCode(t, "excl", err, hutch.CodeConflict, "")
}

func TestRemove(t *testing.T) {
	b := newBox(t)
	b.plant(t, "f", "d/1/2/x", "d/y", "e/")
	remove := func(path string, recursive, missing bool) error {
		return b.RemoveFile(within(t), hutch.RemoveFile{FileRef: ref(path, ""), Recursive: recursive, Missing: missing})
	}
	wantCode(t, "a full one", remove("d", false, false), hutch.CodeConflict, "")
	wantCode(t, "missing", remove("nowhere", true, false), hutch.CodeNotFound, "")
	wantCode(t, "the root", remove("/", true, false), hutch.CodeBadRequest, "path")
	wantCode(t, "root's", remove(b.dir+"/etc/passwd", true, false), hutch.CodeForbidden, "")
	link(t, b.home+"/d", b.home+"/link")
	for _, p := range []string{"f", "e", "link", "nowhere", "nowhere/x"} {
		if err := remove(p, false, true); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	if got := strings.Join(names(t, b.home), " "); got != "d" {
		t.Errorf("left: %s", got)
	}
	if err := os.Mkdir(b.home+"/d/1/roots", 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, b.home+"/d/1/roots/f", "x")
	link(t, "/etc", b.home+"/d/to-etc")
	wantCode(t, "with root's file in it", remove("d", true, false), hutch.CodeForbidden, "")
	if got := strings.Join(names(t, b.home+"/d/1"), " "); got != "roots" || len(names(t, b.home+"/d")) != 1 {
		t.Errorf("left of it: %v, %v", names(t, b.home+"/d"), got)
	}
	if err := b.RemoveFile(within(t), hutch.RemoveFile{FileRef: ref(b.home+"/d", "root"), Recursive: true}); err != nil {
		t.Error(err)
	}
	if len(names(t, b.home)) != 0 || len(names(t, "/etc")) == 0 {
		t.Error("not all of it was removed, or more")
	}
}
