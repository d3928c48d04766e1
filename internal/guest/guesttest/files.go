package guesttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// fileUser is who acts in the file tests, without an entry in passwd: home is "/".
const fileUser = "7001:7001"

func fref(path string) guestapi.FileRef { return guestapi.FileRef{Path: path, User: fileUser} }

// fileDir makes a directory of fileUser.
func (c *Client) fileDir(t testing.TB, name string) string {
	t.Helper()
	dir := "/tmp/files-" + name
	c.Sh(t, fmt.Sprintf("rm -rf %s && mkdir %s && chown %s %s", dir, dir, fileUser, dir))
	return dir
}

// WriteFile writes a file.
func (c *Client) WriteFile(ctx context.Context, w guestapi.WriteFile, content io.Reader) (guestapi.WriteReply, error) {
	return sendContent[guestapi.WriteReply](ctx, c, guestapi.PathFileWrite, w, content)
}

// sendContent makes a call whose body is a head and content.
func sendContent[A any](ctx context.Context, c *Client, path string, head any, content io.Reader) (reply A, err error) {
	b, err := guestapi.FileFrameJSON(guestapi.FileHead, head)
	if err != nil {
		return reply, err
	}
	resp, err := c.do(ctx, "POST", path, io.MultiReader(bytes.NewReader(b), content))
	if err != nil {
		return reply, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&reply)
	return reply, err
}

// FileFrames makes a call that is answered in frames and hands each but the last to each. An
// answer without a last frame is an error, and so is one whose last frame tells of one.
func (c *Client) FileFrames(ctx context.Context, path string, in any, each func(guestapi.FileFrameType, []byte) error) (end guestapi.FileEnd, err error) {
	b, err := json.Marshal(in)
	if err != nil {
		return end, err
	}
	resp, err := c.do(ctx, "POST", path, bytes.NewReader(b))
	if err != nil {
		return end, err
	}
	defer resp.Body.Close()
	for {
		kind, n, err := guestapi.ReadFileFrameHeader(resp.Body)
		if err != nil {
			return end, fmt.Errorf("read frame: %w", err)
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(resp.Body, payload); err != nil {
			return end, fmt.Errorf("read frame: %w", err)
		}
		if kind != guestapi.FileFinal {
			if err := each(kind, payload); err != nil {
				return end, err
			}
			continue
		}
		if err := json.Unmarshal(payload, &end); err != nil {
			return end, err
		}
		if e := end.Error; e != nil {
			return end, &hutch.Error{Code: e.Code, Message: e.Error, Field: e.Field}
		}
		return end, nil
	}
}

// readFile reads a file, and hands its content to to.
func (c *Client) readFile(ctx context.Context, r guestapi.ReadFile, to io.Writer) (info hutch.FileInfo, err error) {
	_, err = c.FileFrames(ctx, guestapi.PathFileRead, r, func(kind guestapi.FileFrameType, b []byte) error {
		if kind == guestapi.FileHead {
			return json.Unmarshal(b, &info)
		}
		_, err := to.Write(b)
		return err
	})
	return info, err
}

func (c *Client) stat(t testing.TB, path string) hutch.FileInfo {
	t.Helper()
	var info hutch.FileInfo
	c.must(t, "POST", guestapi.PathFileStat, fref(path), &info)
	return info
}

// out is what a shell command prints.
func (c *Client) out(t testing.TB, cmd string) string {
	t.Helper()
	r := c.Sh(t, cmd)
	if r.ExitCode != 0 {
		t.Fatalf("%s: exit %d, %s", cmd, r.ExitCode, r.Stderr.Head)
	}
	return strings.TrimSpace(string(r.Stdout.Head))
}

func testFiles(t *testing.T, c *Client) {
	for name, test := range map[string]func(*testing.T, *Client){
		"Content":  testFileContent,
		"Rights":   testFileRights,
		"Metadata": testFileMetadata,
		"Upload":   testFileUpload,
		"Change":   testFileChange,
		"List":     testFileList,
		"Search":   testFileSearch,
		"Archive":  testFileArchive,
		"Watch":    testFileWatch,
		"Full":     testFileFull,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// noise is size bytes, none the same for long.
func noise(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i * (i >> 8) >> 3)
	}
	return b
}

func testFileContent(t *testing.T, c *Client) {
	dir := c.fileDir(t, "content")
	t.Run("G01 sizes", func(t *testing.T) {
		for _, size := range []int{0, 1, 18 << 10, 19 << 10, 256 << 10, 1<<20 + 1, 30 << 20} {
			data := noise(size)
			sum := sha256.Sum256(data)
			want := hex.EncodeToString(sum[:])
			r, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/sizes/f")}, bytes.NewReader(data))
			if err != nil || r.Info == nil || r.Info.Size != int64(size) {
				t.Fatalf("write %d bytes: %+v, %v", size, r, err)
			}
			if got := c.out(t, "sha256sum < "+dir+"/sizes/f | cut -d' ' -f1"); got != want {
				t.Errorf("%d bytes: another sum inside", size)
			}
			h := sha256.New()
			info, err := c.readFile(t.Context(), guestapi.ReadFile{FileRef: fref(dir + "/sizes/f")}, h)
			if err != nil || info.Size != int64(size) || hex.EncodeToString(h.Sum(nil)) != want {
				t.Errorf("%d bytes: read %+v, %v", size, info, err)
			}
		}
		if got := c.out(t, "ls -A "+dir+"/sizes"); got != "f" {
			t.Errorf("beside the file: %s", got)
		}
	})
	t.Run("G05 G06 names", func(t *testing.T) {
		for _, name := range []string{`re"port.txt`, `report\`, "a,b.txt", "new\nline", "ünï", " "} {
			path := dir + "/names/" + name
			if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(path)}, strings.NewReader("x")); err != nil {
				t.Errorf("%q: %v", name, err)
				continue
			}
			if got := c.out(t, "ls -A "+dir+"/names"); got != strings.TrimSpace(name) {
				t.Errorf("%q is %q inside", name, got)
			}
			c.must(t, "POST", guestapi.PathFileRemove, guestapi.RemoveFile{FileRef: fref(path)}, nil)
		}
		raw := guestapi.FileRef{RawPath: []byte(dir + "/names/\xff"), User: fileUser}
		if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: raw}, strings.NewReader("x")); err != nil {
			t.Error(err)
		}
		if got := c.out(t, "cd "+dir+"/names && printf '%s' * | od -An -tx1"); got != "ff" {
			t.Errorf("a byte that is not UTF-8 is %q inside", got)
		}
	})
	t.Run("ranges", func(t *testing.T) {
		c.out(t, "printf 0123456789 > "+dir+"/r")
		var b bytes.Buffer
		if _, err := c.readFile(t.Context(), guestapi.ReadFile{FileRef: fref(dir + "/r"), Offset: 3, Length: 4}, &b); err != nil || b.String() != "3456" {
			t.Errorf("%q, %v", b.String(), err)
		}
		_, err := c.readFile(t.Context(), guestapi.ReadFile{FileRef: fref(dir + "/r"), Offset: 11}, &b)
		if code(err) != hutch.CodeBadRequest {
			t.Errorf("behind the end: %v", err)
		}
	})
}

func testFileRights(t *testing.T, c *Client) {
	dir := c.fileDir(t, "rights")
	t.Run("G08 belongs to the user", func(t *testing.T) {
		if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/d/f")}, strings.NewReader("a\n")); err != nil {
			t.Fatal(err)
		}
		if got := c.out(t, "stat -c '%u %g %a' "+dir+"/d "+dir+"/d/f | tr '\\n' ' '"); got != "7001 7001 755 7001 7001 644" {
			t.Errorf("owner and mode: %s", got)
		}
		if r := c.Run(t, hutch.ExecSpec{Cmd: "echo x >> " + dir + "/d/f && cat " + dir + "/d/f", User: fileUser}); string(r.Stdout.Head) != "a\nx\n" {
			t.Errorf("the user goes on with it: %q %q", r.Stdout.Head, r.Stderr.Head)
		}
	})
	t.Run("G11 relative to the home", func(t *testing.T) {
		ref := guestapi.FileRef{Path: "files-rights/home", User: fileUser}
		c.out(t, "ln -sfn "+dir+" /files-rights")
		if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: ref}, strings.NewReader("x")); err != nil {
			t.Error(err)
		}
		c.out(t, "rm /files-rights; test -f "+dir+"/home")
	})
	t.Run("G13 links lead no further than the user's rights", func(t *testing.T) {
		c.out(t, "echo root > /root/of-root && chmod 600 /root/of-root && cd "+dir+
			" && ln -s /proc/1/environ environ && ln -s /proc/1/fd fds && ln -s /proc/1/fd/0 fd && ln -s /proc/self/mem mem && ln -s /root/of-root secret")
		for _, path := range []string{"environ", "fd", "mem", "secret"} {
			_, err := c.readFile(t.Context(), guestapi.ReadFile{FileRef: fref(dir + "/" + path)}, io.Discard)
			if code(err) != hutch.CodeForbidden && code(err) != hutch.CodeBadRequest {
				t.Errorf("read %s: %v", path, err)
			}
		}
		if _, err := c.readFile(t.Context(), guestapi.ReadFile{FileRef: fref(dir + "/environ")}, io.Discard); code(err) != hutch.CodeForbidden {
			t.Errorf("environ: %v", err)
		}
		for _, path := range []string{"fds", "/proc/1/fd", "/proc/self/fd", "/proc/1"} {
			if path[0] != '/' {
				path = dir + "/" + path
			}
			var l hutch.FileList
			if err := c.Call(t.Context(), "POST", guestapi.PathFileList, guestapi.ListFiles{FileRef: fref(path)}, &l); code(err) != hutch.CodeForbidden {
				t.Errorf("list %s: %d entries, %v", path, len(l.Entries), err)
			}
		}
		for _, path := range []string{dir + "/secret", "/root/new", "/etc/passwd", "/etc/new"} {
			_, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(path)}, strings.NewReader("x"))
			if code(err) != hutch.CodeForbidden {
				t.Errorf("write %s: %v", path, err)
			}
		}
		var b bytes.Buffer
		ref := guestapi.FileRef{Path: "/proc/1/environ", User: "root"}
		if _, err := c.readFile(t.Context(), guestapi.ReadFile{FileRef: ref}, &b); err != nil || strings.Contains(strings.ToLower(b.String()), "key") {
			t.Errorf("the agent's environment: %q, %v", b.String(), err)
		}
	})
	t.Run("the template's user acts", func(t *testing.T) {
		h := Hello()
		h.Defaults.User = fileUser
		c.must(t, "POST", guestapi.PathHello, h, nil)
		if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: guestapi.FileRef{Path: dir + "/default"}}, strings.NewReader("x")); err != nil {
			t.Error(err)
		}
		c.must(t, "POST", guestapi.PathHello, Hello(), nil)
		if got := c.out(t, "stat -c %u "+dir+"/default"); got != "7001" {
			t.Errorf("owner %s", got)
		}
	})
	t.Run("a thread that acts for a user is not the user's", func(t *testing.T) {
		c.watchFiles(t, guestapi.WatchFiles{FileRef: fref(dir)}) // it has the user's rights for long
		r := c.Run(t, hutch.ExecSpec{User: fileUser, Timeout: time.Minute, Cmd: `n=0
			for t in /proc/1/task/*; do
				n=$((n+1))
				kill -KILL ${t##*/} 2>/dev/null && echo killed $t
				cat $t/environ >/dev/null 2>&1 && echo read $t/environ
				head -c1 $t/mem >/dev/null 2>&1 && echo read $t/mem
				for f in $t/fd/*; do # their numbers may be seen
					readlink $f && echo looked at $f
					[ -r $f ] && echo may read $f
				done
			done
			echo $((n>1))`})
		if got := string(r.Stdout.Head); got != "1\n" {
			t.Errorf("what the user may do with it: %q", got)
		}
	})
	t.Run("no thread is left with a user's rights", func(t *testing.T) {
		Eventually(t, 10*time.Second, "the agent's threads are root's", func() bool { // the watch before ends by and by
			return c.out(t, "cat /proc/1/task/*/status | grep '^[UG]id:' | sort -u | tr -d '[:space:]'") == "Gid:0000Uid:0000"
		})
	})
}

func testFileMetadata(t *testing.T, c *Client) {
	dir := c.fileDir(t, "metadata")
	want := map[string]string{"author": "worker", strings.Repeat("k", hutch.MaxMetadataKey): strings.Repeat("v", 3000)}
	w := guestapi.WriteFile{FileRef: fref(dir + "/f"), Metadata: map[string]string{"Author": "worker", strings.Repeat("k", hutch.MaxMetadataKey): strings.Repeat("v", 3000)}}
	if _, err := c.WriteFile(t.Context(), w, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	same := func(info hutch.FileInfo) bool {
		return maps.Equal(info.Metadata, want)
	}
	if info := c.stat(t, dir+"/f"); !same(info) {
		t.Errorf("stat: %d pairs", len(info.Metadata))
	}
	var moved hutch.FileInfo
	c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: fref(dir + "/f"), To: fref(dir + "/g")}, &moved)
	if !same(moved) {
		t.Errorf("after a move: %d pairs", len(moved.Metadata))
	}
	if r := c.Sh(t, "command -v python3 >/dev/null || exit 9; python3 -c \"import os; print(os.getxattr('"+dir+"/g', 'user.e2b.author').decode()); os.setxattr('"+dir+"/g', 'user.e2b.inside', b'yes')\""); r.ExitCode != 9 {
		if string(r.Stdout.Head) != "worker\n" || c.stat(t, dir+"/g").Metadata["inside"] != "yes" {
			t.Errorf("a program inside sees %q %q", r.Stdout.Head, r.Stderr.Head)
		}
	}
	if _, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/g")}, strings.NewReader("y")); err != nil || len(c.stat(t, dir+"/g").Metadata) != 0 {
		t.Errorf("a write without metadata leaves %v, %v", c.stat(t, dir+"/g").Metadata, err)
	}
	_, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/g"), Metadata: map[string]string{"a": "ü"}}, strings.NewReader(""))
	if code(err) != hutch.CodeBadRequest {
		t.Errorf("a value that cannot be: %v", err)
	}
}

func testFileUpload(t *testing.T, c *Client) {
	dir := c.fileDir(t, "upload")
	part := func(offset int64, content string, last bool) guestapi.WriteReply {
		t.Helper()
		r, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: fref(dir + "/f"), Upload: "u", Offset: offset, Last: last}, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := part(0, "hello ", false); r.Offset != 6 || r.Gap {
		t.Errorf("first: %+v", r)
	}
	if r := part(9, "x", false); r.Offset != 6 || !r.Gap {
		t.Errorf("a gap: %+v", r)
	}
	if r := part(3, "lo world", true); r.Offset != 11 || r.Info == nil {
		t.Errorf("last: %+v", r)
	}
	if got := c.out(t, "cat "+dir+"/f; echo; ls -A "+dir); got != "hello world\nf" {
		t.Errorf("inside: %q", got)
	}
}

func testFileChange(t *testing.T, c *Client) {
	dir := c.fileDir(t, "change")
	mode := uint32(0o750)
	var info hutch.FileInfo
	c.must(t, "POST", guestapi.PathFileMkdir, guestapi.MakeDir{FileRef: fref(dir + "/a/b/c"), Mode: &mode}, &info)
	if info.Type != hutch.TypeDirectory || info.Mode != 0o750 || info.UID != 7001 {
		t.Errorf("made %+v", info)
	}
	if err := c.Call(t.Context(), "POST", guestapi.PathFileMkdir, guestapi.MakeDir{FileRef: fref(dir + "/a/b")}, nil); code(err) != hutch.CodeConflict {
		t.Errorf("one that exists: %v", err)
	}
	root := func(path string) guestapi.FileRef { return guestapi.FileRef{Path: path, User: "root"} }
	t.Run("across file systems", func(t *testing.T) {
		c.out(t, "echo x > "+dir+"/a/b/c/f; chown -R "+fileUser+" "+dir+"; rm -rf /dev/shm/moved; chmod 1777 /dev/shm")
		c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: fref(dir + "/a"), To: fref("/dev/shm/moved")}, &info)
		if got := c.out(t, "cat /dev/shm/moved/b/c/f; stat -c %a /dev/shm/moved/b; ls -A "+dir); got != "x\n750" {
			t.Errorf("moved: %q", got)
		}
		c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: fref("/dev/shm/moved"), To: fref(dir + "/a")}, &info)
		// As root, whose copies get the owners of what they are copies of.
		c.out(t, "> /dev/shm/roots; chmod 600 /dev/shm/roots; ln -s /dev/shm/roots "+dir+"/a/link; mkfifo -m 640 "+dir+"/a/pipe; chown -h "+fileUser+" "+dir+"/a/link "+dir+"/a/pipe; chmod 4711 "+dir+"/a/b/c/f")
		c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: root(dir + "/a"), To: root("/dev/shm/moved")}, &info)
		got := c.out(t, "cd /dev/shm/moved; stat -c '%F %u:%g %a' b b/c/f pipe; stat -c '%F %u:%g' link; stat -c '%u %a' /dev/shm/roots")
		want := "directory 7001:7001 750\nregular file 7001:7001 4711\nfifo 7001:7001 640\nsymbolic link 7001:7001\n0 600"
		if got != want {
			t.Errorf("moved by root: %q, want %q", got, want)
		}
		c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: root("/dev/shm/moved"), To: root(dir + "/a")}, &info)
	})
	t.Run("a directory of the image", func(t *testing.T) {
		before := c.out(t, "find /etc/init.d | wc -l")
		c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: root("/etc/init.d"), To: root("/etc/init.moved")}, &info)
		c.must(t, "POST", guestapi.PathFileMove, guestapi.MoveFile{From: root("/etc/init.moved"), To: root("/etc/init.d")}, &info)
		if got := c.out(t, "find /etc/init.d | wc -l"); got != before {
			t.Errorf("%s files, before %s", got, before)
		}
	})
	t.Run("G20 many files go fast", func(t *testing.T) {
		c.out(t, "mkdir "+dir+"/many; cd "+dir+"/many; for d in $(seq 50); do mkdir $d; (cd $d; seq 400 | xargs touch); done; chown -R "+fileUser+" .")
		begin := time.Now()
		c.must(t, "POST", guestapi.PathFileRemove, guestapi.RemoveFile{FileRef: fref(dir + "/many"), Recursive: true}, nil)
		t.Logf("20,000 files removed in %s", time.Since(begin))
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("removing 20,000 files took %s", took)
		}
		c.out(t, "! test -e "+dir+"/many")
	})
	if err := c.Call(t.Context(), "POST", guestapi.PathFileRemove, guestapi.RemoveFile{FileRef: fref(dir + "/a")}, nil); code(err) != hutch.CodeConflict {
		t.Errorf("a full directory: %v", err)
	}
	if err := c.Call(t.Context(), "POST", guestapi.PathFileRemove, guestapi.RemoveFile{FileRef: fref("/etc/passwd")}, nil); code(err) != hutch.CodeForbidden {
		t.Errorf("root's file: %v", err)
	}
}
