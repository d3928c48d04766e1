package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// watching is a watch under way, and the events it has brought as "op name".
type watching struct {
	mu     sync.Mutex
	events []string
	last   hutch.FileEvent
	ended  chan error
}

// watch begins to watch; it can miss nothing any more when this returns.
func (b *box) watch(t testing.TB, q hutch.WatchFiles) *watching {
	t.Helper()
	w := &watching{ended: make(chan error, 1)}
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(within(t))
	t.Cleanup(cancel)
	go func() {
		w.ended <- b.WatchFiles(ctx, q, func() error { close(ready); return nil }, func(e hutch.FileEvent) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events, w.last = append(w.events, fmt.Sprint(e.Op, " ", e.Name)), e
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-w.ended:
		t.Fatal(err)
	}
	return w
}

func (w *watching) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// until waits for an event and returns those up to it, which it forgets.
func (w *watching) until(t testing.TB, event string) []string {
	t.Helper()
	var got []string
	eventually(t, "event "+event, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		i := slices.Index(w.events, event)
		if i < 0 {
			got = w.events
			return false
		}
		got = slices.Clone(w.events[:i+1])
		w.events = w.events[i+1:]
		return true
	})
	return got
}

func TestWatch(t *testing.T) {
	b := newBox(t)
	b.plant(t, "w/old", "w/sub/deep")
	w := b.watch(t, hutch.WatchFiles{FileRef: ref("w", "")})
	at := b.home + "/w/"
	put(t, at+"sub/unseen", "x")
	steps := []struct {
		do   func() error
		last string
		want string
	}{
		{func() error { return os.WriteFile(at+"new", []byte("x"), 0o644) }, "write new", "create new|write new"},
		{func() error { return os.Chmod(at+"new", 0o600) }, "chmod new", "chmod new"},
		{func() error { return os.Rename(at+"new", at+"newer") }, "create newer", "rename new|create newer"},
		{func() error { return os.Remove(at + "newer") }, "remove newer", "remove newer"},
		{func() error { return os.Rename(at+"old", b.home+"/out") }, "rename old", "rename old"},
		{func() error { return os.Rename(b.home+"/out", at+"in") }, "create in", "create in"},
		{func() error { return os.Mkdir(at+"dir", 0o755) }, "create dir", "create dir"},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(w.until(t, s.last), "|"); got != s.want {
			t.Errorf("got %s, want %s", got, s.want)
		}
	}
	for _, q := range []struct {
		path string
		code hutch.Code
	}{{"nowhere", hutch.CodeNotFound}, {"w/in", hutch.CodeBadRequest}, {b.dir + "/root/../etc/passwd/x", hutch.CodeNotFound}} {
		err := b.WatchFiles(within(t), hutch.WatchFiles{FileRef: ref(q.path, "")}, func() error { return nil }, nil)
		wantCode(t, q.path, err, q.code, "")
	}
}

// What is written through the API is told of as what it is, without the files that a write
// needs on the way (G16: it happens inside, so others' watches see it too).
func TestWatchWrites(t *testing.T) {
	b := newBox(t)
	b.plant(t, "w/")
	w := b.watch(t, hutch.WatchFiles{FileRef: ref("w", ""), Entry: true})
	b.write(t, hutch.WriteFile{FileRef: ref("w/f", "")}, "one")
	if got := strings.Join(w.until(t, "write f"), "|"); got != "create f|write f" {
		t.Errorf("new: %s", got)
	}
	if e := w.last.Entry; e == nil || e.Size != 3 || e.Path != b.home+"/w/f" {
		t.Errorf("entry %+v", e)
	}
	b.write(t, hutch.WriteFile{FileRef: ref("w/f", "")}, "two")
	if got := strings.Join(w.until(t, "write f"), "|"); got != "write f" {
		t.Errorf("replaced: %s", got)
	}
	for i, part := range []string{"a", "b"} {
		b.write(t, hutch.WriteFile{FileRef: ref("w/up", ""), Upload: "u", Offset: int64(i), Last: i == 1}, part)
	}
	if got := strings.Join(w.until(t, "write up"), "|"); got != "create up|write up" {
		t.Errorf("uploaded: %s", got)
	}
	if err := b.RemoveFile(within(t), hutch.RemoveFile{FileRef: ref("w/f", "")}); err != nil {
		t.Fatal(err)
	}
	w.until(t, "remove f")
	if err := os.RemoveAll(b.home + "/w"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "the directory goes", <-w.ended, hutch.CodeNotFound, "")
}

// G21: paths follow renames, and directories that come later are watched too.
func TestWatchRecursive(t *testing.T) {
	b := newBox(t)
	b.plant(t, "w/x/y/")
	w := b.watch(t, hutch.WatchFiles{FileRef: ref("w", ""), Recursive: true})
	at := b.home + "/w/"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put(t, at+"x/y/f", "x")
	w.until(t, "write x/y/f")
	must(os.Mkdir(at+"a", 0o755))
	must(os.Rename(at+"a", at+"b"))
	put(t, at+"b/f", "x")
	got := w.until(t, "create b/f") // perhaps found when b was taken in: then nothing is told of its content
	if slices.ContainsFunc(got, func(e string) bool { return strings.HasSuffix(e, " a/f") }) {
		t.Errorf("under the old name: %v", got)
	}
	must(os.Rename(at+"x", at+"b/z"))
	put(t, at+"b/z/y/g", "x")
	w.until(t, "write b/z/y/g") // watched all the while
	must(os.Rename(at+"b", at+"c"))
	must(os.Chmod(at+"c/z/y/g", 0o600))
	w.until(t, "chmod c/z/y/g")

	must(os.Rename(at+"c/z", b.home+"/outside"))
	put(t, b.home+"/outside/y/unseen", "x")
	must(os.Mkdir(b.home+"/outside/new", 0o755))
	put(t, at+"c/seen", "x")
	if got := w.until(t, "write c/seen"); slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "unseen") }) {
		t.Errorf("outside: %v", got)
	}
	must(os.Rename(b.home+"/outside", at+"back"))
	w.until(t, "create back/y/unseen")
	put(t, at+"back/y/again", "x")
	w.until(t, "write back/y/again")

	// Deep ones at once: each file is told of, though the watches come after it.
	must(os.MkdirAll(at+"p/q/r/s", 0o755))
	put(t, at+"p/q/r/s/f", "x")
	w.until(t, "create p/q/r/s/f")
	must(os.RemoveAll(at + "p"))
	w.until(t, "remove p")
	must(os.MkdirAll(at+"p/q", 0o755))
	put(t, at+"p/q/f", "x")
	w.until(t, "create p/q/f")
	must(os.Chmod(at+"p/q/f", 0o600))
	w.until(t, "chmod p/q/f")

	if w.all(); len(w.ended) > 0 {
		t.Error("it ended:", <-w.ended)
	}
	must(os.Rename(b.home+"/w", b.home+"/w2"))
	wantCode(t, "the directory is moved", <-w.ended, hutch.CodeNotFound, "")
}

// A directory that is mounted within itself is watched once, where it is.
func TestWatchOfATreeInItself(t *testing.T) {
	for name, of := range map[string]string{"a directory of the tree": "/w/a", "the tree": "/w"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.plant(t, "w/a/b/c/")
			at := b.home + "/w/a/b/c"
			if err := unix.Mount(b.home+of, at, "", unix.MS_BIND, ""); err != nil {
				t.Skip("no right to mount:", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			w := b.watch(t, hutch.WatchFiles{FileRef: ref("w", ""), Recursive: true})
			put(t, b.home+"/w/a/b/f", "x")
			w.until(t, "write a/b/f")
			put(t, b.home+"/w/f", "x")
			w.until(t, "write f")
		})
	}
}

// The same at once and again and again: wherever the watch is behind, the file is told of
// under the name that its directory has in the end.
func TestWatchRenamesAtOnce(t *testing.T) {
	b := newBox(t)
	dir := b.smallDisk(t, "100m")
	w := b.watch(t, hutch.WatchFiles{FileRef: ref(dir, ""), Recursive: true})
	for i := range 300 {
		before, after := fmt.Sprintf("%s/a%d", dir, i), fmt.Sprintf("%s/b%d", dir, i)
		if err := errors.Join(os.MkdirAll(before+"/x/y", 0o755), os.Rename(before, after), os.Rename(after+"/x", after+"/z")); err != nil {
			t.Fatal(err)
		}
		put(t, fmt.Sprintf("%s/z/y/f%d", after, i), "x")
	}
	for i := range 300 {
		name := fmt.Sprintf("b%d/z/y/f%d", i, i)
		got := w.until(t, "create "+name)
		if j := slices.IndexFunc(got, func(e string) bool { return strings.HasSuffix(e, fmt.Sprint("/f", i)) && !strings.HasSuffix(e, name) }); j >= 0 {
			t.Errorf("also %s", got[j])
		}
	}
}

// A reader who does not keep up is told that events are lost, and the watch goes on.
func TestWatchOverflow(t *testing.T) {
	b := newBox(t)
	dir := b.smallDisk(t, "100m")
	stuck, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	seen := map[string]bool{}
	overflow := false
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- b.WatchFiles(ctx, hutch.WatchFiles{FileRef: ref(dir, ""), Recursive: true}, func() error { close(ready); return nil }, func(e hutch.FileEvent) error {
			once.Do(func() { close(stuck); <-release })
			mu.Lock()
			defer mu.Unlock()
			seen[e.Name] = true
			overflow = overflow || e.Op == hutch.OpOverflow
			return nil
		})
	}()
	<-ready
	long := strings.Repeat("x", 200) // more than lies between both ends, with the longest queue in the middle
	for i := range 30_000 {
		f, err := os.Create(fmt.Sprintf("%s/%s%d", dir, long, i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if i == 0 {
			<-stuck
		}
	}
	close(release)
	eventually(t, "an overflow is told", func() bool { mu.Lock(); defer mu.Unlock(); return overflow })
	if err := os.Mkdir(dir+"/after", 0o755); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watch goes on", func() bool { mu.Lock(); defer mu.Unlock(); return seen["after"] })
	put(t, dir+"/after/f", "x")
	eventually(t, "below too", func() bool { mu.Lock(); defer mu.Unlock(); return seen["after/f"] })
	cancel()
	if err := <-ended; !errors.Is(err, hutch.ErrCancelled) {
		t.Errorf("ended with %v", err)
	}
}

// Watches end with their callers: as many as there can be, again and again.
func TestWatchesEnd(t *testing.T) {
	b := newBox(t)
	b.plant(t, "w/")
	for range 3 {
		var wg sync.WaitGroup
		for range 50 {
			ctx, cancel := context.WithCancel(within(t))
			wg.Go(func() {
				err := b.WatchFiles(ctx, hutch.WatchFiles{FileRef: ref("w", "")}, func() error { cancel(); return nil }, func(hutch.FileEvent) error { return nil })
				if !errors.Is(err, hutch.ErrCancelled) && !errors.Is(err, hutch.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	eventually(t, "room for another", func() bool {
		ctx, cancel := context.WithCancel(within(t))
		err := b.WatchFiles(ctx, hutch.WatchFiles{FileRef: ref("w", "")}, func() error { cancel(); return nil }, func(hutch.FileEvent) error { return nil })
		return errors.Is(err, hutch.ErrCancelled)
	})
}
