package files_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

// plant makes files and directories (names that end in a slash) below the home.
func (b *box) plant(t testing.TB, paths ...string) {
	t.Helper()
	for _, p := range paths {
		full := b.home + "/" + p
		dir := full
		if !strings.HasSuffix(p, "/") {
			dir = filepath.Dir(full)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for d := strings.TrimSuffix(dir, "/"); d != b.home && len(d) > len(b.home); d = filepath.Dir(d) {
			if err := os.Chown(d, workerID, workerID); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.HasSuffix(p, "/") {
			putAs(t, full, "content of "+p, workerID)
		}
	}
}

// all lists a directory to its end, page by page.
func (b *box) all(t testing.TB, q hutch.ListFiles) (out []hutch.FileInfo, pages int) {
	t.Helper()
	for {
		l, err := b.ListFiles(within(t), q)
		if err != nil {
			t.Fatal(err)
		}
		if q.Limit > 0 && len(l.Entries) > q.Limit {
			t.Fatalf("a page of %d entries, asked for %d", len(l.Entries), q.Limit)
		}
		out = append(out, l.Entries...)
		pages++
		if q.Cursor = l.Next; l.Next == "" {
			return out, pages
		}
	}
}

func TestList(t *testing.T) {
	b := newBox(t)
	b.plant(t, "l/sub1/sub1_1/x", "l/sub1/sub1_2", "l/sub2/", "l/a", "l/sub1.d", "l/.hidden", "l/Z")
	link(t, "sub1", b.home+"/l/link")
	link(t, "l", b.home+"/l-link")
	for depth, want := range map[int]string{
		0:  ".hidden Z a link sub1 sub1.d sub2",
		1:  ".hidden Z a link sub1 sub1.d sub2",
		2:  ".hidden Z a link sub1 sub1/sub1_1 sub1/sub1_2 sub1.d sub2",
		3:  ".hidden Z a link sub1 sub1/sub1_1 sub1/sub1_1/x sub1/sub1_2 sub1.d sub2",
		64: ".hidden Z a link sub1 sub1/sub1_1 sub1/sub1_1/x sub1/sub1_2 sub1.d sub2",
	} {
		for _, limit := range []int{0, 1, 2, 3, 100} {
			got, _ := b.all(t, hutch.ListFiles{FileRef: ref("l", ""), Depth: depth, Limit: limit})
			if s := strings.Join(clean(got, b.home+"/l"), " "); s != want {
				t.Errorf("depth %d, limit %d: %s, want %s", depth, limit, s, want)
			}
		}
	}
	got, _ := b.all(t, hutch.ListFiles{FileRef: ref("l-link", "")})
	if len(got) != 7 || got[0].Path != b.home+"/l-link/.hidden" {
		t.Errorf("a link to a directory: %+v", got)
	}
	for what, tt := range map[string]struct {
		q     hutch.ListFiles
		code  hutch.Code
		field string
	}{
		"missing":   {hutch.ListFiles{FileRef: ref("nowhere", "")}, hutch.CodeNotFound, ""},
		"a file":    {hutch.ListFiles{FileRef: ref("l/a", "")}, hutch.CodeBadRequest, "path"},
		"depth":     {hutch.ListFiles{FileRef: ref("l", ""), Depth: 65}, hutch.CodeBadRequest, "depth"},
		"limit":     {hutch.ListFiles{FileRef: ref("l", ""), Limit: 10_001}, hutch.CodeBadRequest, "limit"},
		"cursor":    {hutch.ListFiles{FileRef: ref("l", ""), Cursor: "Li4"}, hutch.CodeBadRequest, "cursor"},
		"no cursor": {hutch.ListFiles{FileRef: ref("l", ""), Cursor: "%"}, hutch.CodeBadRequest, "cursor"},
	} {
		_, err := b.ListFiles(within(t), tt.q)
		wantCode(t, what, err, tt.code, tt.field)
	}
	if err := os.Chmod(b.home+"/l/sub1", 0); err != nil {
		t.Fatal(err)
	}
	got, _ = b.all(t, hutch.ListFiles{FileRef: ref("l", ""), Depth: 5})
	if len(got) != 7 {
		t.Errorf("beside a directory that may not be read: %v", clean(got, b.home))
	}
	if err := errors.Join(os.Chown(b.home+"/l/sub1", 0, 0), os.Chmod(b.home+"/l/sub1", 0o744)); err != nil {
		t.Fatal(err)
	}
	got, _ = b.all(t, hutch.ListFiles{FileRef: ref("l", ""), Depth: 5})
	if len(got) != 7 {
		t.Errorf("beside a directory of which only the names may be read: %v", clean(got, b.home))
	}
	_, err := b.ListFiles(within(t), hutch.ListFiles{FileRef: ref("l/sub1", "")})
	wantCode(t, "a directory that may not be read", err, hutch.CodeForbidden, "")
}

// Pages together are the whole in its order, whatever their size and the tree.
func TestListPages(t *testing.T) {
	b := newBox(t)
	r := rand.New(rand.NewPCG(1, 2))
	var made []string
	dirs := []string{"t/"}
	for range 300 {
		dir := dirs[r.IntN(len(dirs))]
		name := dir + strings.Repeat(string("ab-.z"[r.IntN(5)]), 1+r.IntN(3)) + fmt.Sprint(r.IntN(30))
		if r.IntN(4) == 0 {
			name += "/"
			dirs = append(dirs, name)
		}
		if _, err := os.Lstat(b.home + "/" + strings.TrimSuffix(name, "/")); err == nil {
			continue
		}
		made = append(made, strings.TrimSuffix(name, "/"))
		b.plant(t, name)
	}
	slices.SortFunc(made, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	for _, limit := range []int{1, 7, 50, 299, 1000} {
		got, _ := b.all(t, hutch.ListFiles{FileRef: ref("t", ""), Depth: 64, Limit: limit})
		paths := clean(got, b.home)
		if !slices.Equal(paths, made) {
			t.Fatalf("limit %d: %d of %d entries, or another order", limit, len(paths), len(made))
		}
	}
}

// What changes between two pages neither repeats an entry nor loses another.
func TestListWhileItChanges(t *testing.T) {
	b := newBox(t)
	b.plant(t, "l/a/1", "l/a/2", "l/b", "l/c/1", "l/d")
	l, err := b.ListFiles(within(t), hutch.ListFiles{FileRef: ref("l", ""), Depth: 2, Limit: 2})
	if err != nil || l.Next == "" {
		t.Fatal(l, err)
	}
	if err := errors.Join(os.RemoveAll(b.home+"/l/a"), os.RemoveAll(b.home+"/l/c")); err != nil {
		t.Fatal(err)
	}
	b.plant(t, "l/aa")
	got, _ := b.all(t, hutch.ListFiles{FileRef: ref("l", ""), Depth: 2, Limit: 2, Cursor: l.Next})
	if s := strings.Join(clean(got, b.home+"/l"), " "); s != "aa b d" {
		t.Errorf("after the change: %s", s)
	}
}

// G18: a large directory comes in pages, each about as fast as the first.
func TestListLarge(t *testing.T) {
	b := newBox(t)
	const count = 40_000
	dir := b.smallDisk(t, "100m") + "/large"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		f, err := os.OpenFile(fmt.Sprintf("%s/file-%06d", dir, i), os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	got, pages := b.all(t, hutch.ListFiles{FileRef: ref(dir, ""), Limit: 10_000})
	if len(got) != count || pages < 4 || !slices.IsSortedFunc(got, func(a, b hutch.FileInfo) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("%d entries in %d pages", len(got), pages)
	}
	if err := os.Chown(dir, workerID, workerID); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveFile(within(t), hutch.RemoveFile{FileRef: ref(dir, ""), Recursive: true}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is still there")
	}
}
