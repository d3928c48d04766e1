package guesttest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func testFileList(t *testing.T, c *Client) {
	dir := c.fileDir(t, "list")
	c.out(t, "cd "+dir+"; mkdir -p sub1/sub1_1 sub1/sub1_2 sub2; touch .dot a; ln -s sub1 link")
	var got []string
	q := guestapi.ListFiles{FileRef: fref(dir), Depth: 2, Limit: 3}
	for {
		var l hutch.FileList
		c.must(t, "POST", guestapi.PathFileList, q, &l)
		for _, e := range l.Entries {
			got = append(got, strings.TrimPrefix(e.Path, dir+"/"))
			if e.Name == "link" && (e.Target == nil || e.Target.Path != dir+"/sub1" || e.Target.Type != hutch.TypeDirectory) {
				t.Errorf("link: %+v", e.Target)
			}
		}
		if q.Cursor = l.Next; l.Next == "" {
			break
		}
	}
	if s := strings.Join(got, " "); s != ".dot a link sub1 sub1/sub1_1 sub1/sub1_2 sub2" {
		t.Errorf("listed %s", s)
	}
	t.Run("G18 a large directory", func(t *testing.T) {
		const count = 20_000
		c.out(t, fmt.Sprintf("mkdir %s/large; cd %s/large; seq %d | xargs touch", dir, dir, count))
		begin, seen, pages := time.Now(), 0, 0
		q := guestapi.ListFiles{FileRef: fref(dir + "/large"), Limit: 5000}
		for {
			var l hutch.FileList
			c.must(t, "POST", guestapi.PathFileList, q, &l)
			seen, pages = seen+len(l.Entries), pages+1
			if q.Cursor = l.Next; l.Next == "" {
				break
			}
		}
		t.Logf("%d entries in %d pages in %s", seen, pages, time.Since(begin))
		if seen != count || pages < 4 || time.Since(begin) > time.Minute {
			t.Errorf("%d entries in %d pages in %s", seen, pages, time.Since(begin))
		}
		c.out(t, "rm -rf "+dir+"/large")
	})
}

func testFileSearch(t *testing.T, c *Client) {
	dir := c.fileDir(t, "search")
	c.out(t, "cd "+dir+`; mkdir d .h; printf 'one\nfunc two\n' > d/a.go; printf 'func\0' > bin; echo func > .h/x`)
	var got []string
	end, err := c.FileFrames(t.Context(), guestapi.PathFileSearch, guestapi.SearchFiles{FileRef: fref(dir), Text: `^func`}, func(_ guestapi.FileFrameType, b []byte) error {
		var m hutch.FileMatch
		err := json.Unmarshal(b, &m)
		got = append(got, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(m.Path, dir+"/"), m.Line, m.Text))
		return err
	})
	if err != nil || end.Search == nil || end.Search.Truncated || strings.Join(got, "|") != "d/a.go:2:func two" {
		t.Errorf("%v, %+v, %v", got, end, err)
	}
}

func testFileArchive(t *testing.T, c *Client) {
	dir := c.fileDir(t, "archive")
	c.out(t, "cd "+dir+"; mkdir -p tree/empty tree/node_modules; echo x > tree/.gitignore; head -c 20000000 /dev/zero > tree/large; ln -s large tree/link; ln tree/large tree/second; chmod 500 tree/empty; chown -R "+fileUser+" tree")
	for _, zip := range []bool{false, true} {
		var archive bytes.Buffer
		_, err := c.FileFrames(t.Context(), guestapi.PathFileArchive, guestapi.ReadArchive{FileRef: fref(dir + "/tree"), Gzip: zip}, func(kind guestapi.FileFrameType, b []byte) error {
			if kind == guestapi.FileData {
				archive.Write(b)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := sendContent[hutch.ArchiveResult](t.Context(), c, guestapi.PathFileUnpack, guestapi.WriteArchive{FileRef: fref(dir + "/out")}, &archive)
		if err != nil || r.Files != 4 {
			t.Fatalf("gzip %v: %+v, %v", zip, r, err)
		}
		if got := c.out(t, "cd "+dir+"; diff -r tree out && cd out && stat -c '%n %a %u' * .gitignore | tr '\\n' ' '; stat -c %h large"); got != "empty 500 7001 large 644 7001 link 777 7001 node_modules 755 7001 second 644 7001 .gitignore 644 7001 2" {
			t.Errorf("gzip %v: %s", zip, got)
		}
		c.out(t, "rm -rf "+dir+"/out")
	}
	t.Run("links lead nowhere", func(t *testing.T) {
		c.out(t, "cd "+dir+"; mkdir outside in; echo old > outside/f; chown -R "+fileUser+" .")
		for _, name := range []string{"link/f", "link/new", "link/new/f"} {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range []*tar.Header{
				{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "../outside", Mode: 0o777},
				{Typeflag: tar.TypeReg, Name: name, Mode: 0o644},
			} {
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
			_, err := sendContent[hutch.ArchiveResult](t.Context(), c, guestapi.PathFileUnpack, guestapi.WriteArchive{FileRef: fref(dir + "/in")}, &b)
			if code(err) != hutch.CodeBadRequest {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := c.out(t, "cd "+dir+"/outside; ls -A; cat f"); got != "f\nold" {
			t.Errorf("outside: %q", got)
		}
		c.must(t, "POST", guestapi.PathFileRemove, guestapi.RemoveFile{FileRef: fref(dir + "/in"), Recursive: true}, nil)
		c.out(t, "test -f "+dir+"/outside/f")
	})
}

// watchFiles begins a watch; events come as "op name".
func (c *Client) watchFiles(t testing.TB, w guestapi.WatchFiles) (events chan string, ended chan error) {
	t.Helper()
	events, ended = make(chan string, 10_000), make(chan error, 1)
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		_, err := c.FileFrames(ctx, guestapi.PathFileWatch, w, func(kind guestapi.FileFrameType, b []byte) error {
			if kind == guestapi.FileHead {
				close(ready)
				return nil
			}
			var e hutch.FileEvent
			err := json.Unmarshal(b, &e)
			events <- string(e.Op) + " " + e.Name
			return err
		})
		ended <- err
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("the watch is not ready after a minute")
	}
	return events, ended
}

// until is the events up to one that is waited for.
func until(t testing.TB, events chan string, want string) (got []string) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case e := <-events:
			if got = append(got, e); e == want {
				return got
			}
		case <-deadline.C:
			t.Fatalf("no %q, but %q", want, got)
		}
	}
}

func testFileWatch(t *testing.T, c *Client) {
	dir := c.fileDir(t, "watch")
	events, ended := c.watchFiles(t, guestapi.WatchFiles{FileRef: fref(dir), Recursive: true})
	t.Run("G21 paths follow renames", func(t *testing.T) {
		c.out(t, "cd "+dir+"; mkdir a; mv a b; touch b/f")
		got := until(t, events, "create b/f")
		if slices.Contains(got, "create a/f") {
			t.Errorf("under the old name: %q", got)
		}
		c.out(t, "cd "+dir+"; mkdir -p b/x/y; mv b/x z; echo x > z/y/g")
		until(t, events, "create z/y/g")
		c.out(t, "cd "+dir+"; mv z "+dir+".out; echo x > "+dir+".out/y/h; touch last")
		if got := until(t, events, "create last"); slices.ContainsFunc(got, func(e string) bool { return strings.HasSuffix(e, "/h") }) {
			t.Errorf("outside: %q", got)
		}
		c.out(t, "rm -rf "+dir+".out")
	})
	t.Run("G16 writes of the API are seen", func(t *testing.T) {
		for _, want := range []string{"create w|write w", "write w"} {
			if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/w")}, strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
			got := until(t, events, "write w")
			got = slices.DeleteFunc(got, func(e string) bool { return !strings.HasSuffix(e, " w") })
			if strings.Join(got, "|") != want {
				t.Errorf("%q, want %s", got, want)
			}
		}
	})
	c.out(t, "rm -rf "+dir)
	var err error
	select {
	case err = <-ended:
	case <-time.After(20 * time.Second):
		err = errors.New("it goes on")
	}
	if code(err) != hutch.CodeNotFound {
		t.Errorf("the directory goes: %v", err)
	}
}

func testFileFull(t *testing.T, c *Client) {
	dir := c.fileDir(t, "full")
	if r := c.Sh(t, "mount -t tmpfs -o size=1m none "+dir+" && chown "+fileUser+" "+dir); r.ExitCode != 0 {
		t.Skipf("no file system can be mounted: %s", r.Stderr.Head)
	}
	defer c.Sh(t, "umount -l "+dir)
	if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/f")}, strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	_, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/f")}, bytes.NewReader(noise(5<<20)))
	if code(err) != hutch.CodeDiskFull {
		t.Errorf("got %v, want disk_full", err)
	}
	if got := c.out(t, "cat "+dir+"/f; echo; ls -A "+dir); got != "old\nf" {
		t.Errorf("after it: %q", got)
	}
}
