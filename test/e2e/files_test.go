package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// pattern is n bytes that repeat nowhere near the size of a buffer.
type pattern struct{ n, at int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.at == p.n {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), p.n-p.at)]
	for i := range b {
		at := p.at + int64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16 ^ at>>24)
	}
	p.at += int64(len(b))
	return len(b), nil
}

func sumOf(t *testing.T, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestCaseG01EverySizeArrivesWhole(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(1024)})
	sizes := []int64{0, 1, 18 << 10, 19 << 10, 1 << 20, 8<<20 - 1, 8 << 20, 8<<20 + 1, 100 << 20}
	if os.Getenv("HUTCH_SOAK") != "" {
		sizes = append(sizes, 1<<30, 3<<30)
	}
	for _, n := range sizes {
		f := client.File{Sandbox: sb.ID, Path: fmt.Sprintf("/workspace/dir-%d/file", n)}
		want := sumOf(t, &pattern{n: n})
		w, err := s.client.WriteFile(t.Context(), f, &pattern{n: n}, client.WriteOptions{})
		if err != nil || w.Bytes != n {
			t.Fatalf("write %d bytes: %+v, %v", n, w, err)
		}
		if got := s.out(t, sb.ID, "sha256sum <"+f.Path, timeout(120)); !strings.HasPrefix(got, want) {
			t.Errorf("%d bytes: inside there is %s, want %s", n, got, want)
		}
		h := sha256.New()
		if got, err := s.client.ReadFile(t.Context(), f, h); err != nil || got != n || fmt.Sprintf("%x", h.Sum(nil)) != want {
			t.Errorf("read %d bytes: got %d, %x, %v", n, got, h.Sum(nil), err)
		}
		if left := s.out(t, sb.ID, "ls -A "+filepath.Dir(f.Path)); left != "file" {
			t.Errorf("%d bytes: beside the file there is %q", n, left)
		}
		s.out(t, sb.ID, "rm -r "+filepath.Dir(f.Path))
	}
}

// The server's memory is no measure of a file's size.
func TestLargeFilesCostTheServerNoMemory(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(1024)})
	f := client.File{Sandbox: sb.ID, Path: "/workspace/big"}
	const size = 256 << 20
	transfer := func(n int64) {
		t.Helper()
		if _, err := s.client.WriteFile(t.Context(), f, &pattern{n: n}, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.client.ReadFile(t.Context(), f, io.Discard); err != nil || got != n {
			t.Fatalf("read %d of %d: %v", got, n, err)
		}
	}
	transfer(16 << 20)
	before := s.peakMemory(t)
	transfer(size)
	if after := s.peakMemory(t); after > before+48<<20 {
		t.Errorf("the server's peak went from %d to %d MiB with a file of %d", before>>20, after>>20, size>>20)
	}
}

// peakMemory is the most memory the server has had, in bytes.
func (s *server) peakMemory(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int64
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err == nil {
				return kib << 10
			}
		}
	}
	t.Fatal("no peak memory is told")
	return 0
}

// hutchCLI runs the command line against s.
func (s *server) hutchCLI(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), "HUTCH_API_URL="+s.base, "HUTCH_API_KEY="+s.key)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

func TestCaseG03ATreeArrivesWithEverythingInIt(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	src := filepath.Join(t.TempDir(), "tree")
	for name, content := range map[string]string{
		".gitignore": "ignored\n*.log\n", "ignored": "not left out", "x.log": "neither", ".env": "dot",
		"deep/er/file": "x", "big": strings.Repeat("0123456789abcdef", 20<<20/16), "sp ace\n\"ü\"": "odd",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(src, "empty"), 0o755), os.Symlink("deep/er", filepath.Join(src, "link")), os.Chmod(filepath.Join(src, "ignored"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, errOut, err := s.hutchCLI(t, "cp", src, string(sb.ID)+":/workspace/"); err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	back := t.TempDir()
	if _, errOut, err := s.hutchCLI(t, "cp", string(sb.ID)+":/workspace/tree", back); err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	diff := exec.CommandContext(t.Context(), "diff", "-r", "--no-dereference", src, filepath.Join(back, "tree"))
	if out, err := diff.CombinedOutput(); err != nil {
		t.Errorf("what came back differs: %v\n%s", err, out)
	}
	if got := s.out(t, sb.ID, "cd /workspace/tree && stat -c '%a %U' ignored .env && readlink link"); got != "755 root\n640 root\ndeep/er" {
		t.Errorf("inside: %q", got)
	}
}

func TestCaseG05G06NamesAreOnlyNames(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	for _, name := range []string{`re"port.txt`, `report\`, "a,b.txt", "new\nline", "sp ace", "ünïcödé ☃", "-rf", "a%2Fb", "q?x=1&y#z", "'; rm -rf *", "semi;colon"} {
		f := client.File{Sandbox: sb.ID, Path: "/workspace/names/" + name}
		if _, err := s.client.WriteFile(t.Context(), f, strings.NewReader(name), client.WriteOptions{}); err != nil {
			t.Errorf("write %q: %v", name, err)
			continue
		}
		st, err := s.client.Stat(t.Context(), f)
		if err != nil || st.Name != name || st.Size != int64(len(name)) {
			t.Errorf("stat %q: %+v, %v", name, st, err)
		}
		var b bytes.Buffer
		if _, err := s.client.ReadFile(t.Context(), f, &b); err != nil || b.String() != name {
			t.Errorf("read %q: %q, %v", name, b.String(), err)
		}
		if err := s.client.RemoveFile(t.Context(), f, false); err != nil {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	if left := s.out(t, sb.ID, "ls -A /workspace/names"); left != "" {
		t.Errorf("left: %q", left)
	}
}

func TestCaseG06ACommaDoesNotSplitAPath(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, "cd /workspace && echo a >a && echo b >b.txt && echo both >a,b.txt")
	out, errOut, err := s.hutchCLI(t, "cp", string(sb.ID)+":/workspace/a,b.txt", "-")
	if err != nil || out != "both\n" {
		t.Errorf("got %q, %v: %s", out, err, errOut)
	}
}

func TestCaseG08TheUserOwnsWhatTheUserUploads(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	f := client.File{Sandbox: sb.ID, Path: "notes/f", User: "user"}
	if _, err := s.client.WriteFile(t.Context(), f, strings.NewReader("1\n"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.out(t, sb.ID, "echo 2 >>notes/f; cat ~/notes/f; stat -c '%U:%G %a' notes notes/f", asUser("user")); got != "1\n2\nuser:user 755\nuser:user 644" {
		t.Errorf("got %q", got)
	}
	// Who replaces a file leaves its owner and mode; who asks for others gets them.
	s.out(t, sb.ID, "chmod 600 /home/user/notes/f")
	if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/home/user/notes/f"}, strings.NewReader("3"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/srv/x"}, strings.NewReader("3"), client.WriteOptions{Mode: "0751", Owner: "user", Group: "staff"}); err != nil {
		t.Fatal(err)
	}
	if got := s.out(t, sb.ID, "stat -c '%U:%G %a' /home/user/notes/f /srv/x"); got != "user:user 600\nuser:staff 751" {
		t.Errorf("got %q", got)
	}
	// The user may do no more by this way than by any other.
	for _, path := range []string{"/etc/x", "/root/x", "/etc/passwd"} {
		_, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: path, User: "user"}, strings.NewReader("x"), client.WriteOptions{})
		if !errors.Is(err, hutch.ErrForbidden) {
			t.Errorf("%s: got %v, want forbidden", path, err)
		}
	}
	if _, err := s.client.Stat(t.Context(), client.File{Sandbox: sb.ID, Path: "/x", User: "nobody-here"}); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("a user who is not there: %v", err)
	}
}

func TestCaseG13LinksLeadNowhereElse(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Env: map[string]string{"TOKEN": "of the sandbox"}})
	s.out(t, sb.ID, "cd /workspace && ln -s /proc/1/environ out.txt && ln -s /proc/1/mem mem && ln -s /etc/shadow shadow", asUser("user"))
	for _, name := range []string{"out.txt", "mem", "shadow"} {
		var b bytes.Buffer
		_, err := s.client.ReadFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/" + name, User: "user"}, &b)
		if !errors.Is(err, hutch.ErrForbidden) {
			t.Errorf("%s: got %q, %v, want forbidden", name, b.String(), err)
		}
	}
	// Root inside may read it: there is nothing of the agent's or of the host's in it.
	var b bytes.Buffer
	_, err := s.client.ReadFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/out.txt"}, &b)
	if err != nil {
		t.Fatalf("root reads the agent's environment: %v", err)
	}
	for _, secret := range []string{s.key, "HUTCH_API", s.dir} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("the agent's environment holds %q", secret)
		}
	}
}

func TestCaseG16WhatIsUploadedIsNoticedInside(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	const watcher = `
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init()
assert libc.inotify_add_watch(fd, b"/workspace", 0x80 | 0x100 | 0x8) > 0  # moved to, create, close write
open("/tmp/armed", "w").close()
seen = set()
while "f" not in seen:
    buf = os.read(fd, 4096)
    while buf:
        _, mask, _, n = struct.unpack_from("iIII", buf)
        seen.add(buf[16:16 + n].rstrip(b"\0").decode())
        buf = buf[16 + n:]
print("noticed")
`
	x := s.background(t, sb.ID, "python3 -c '"+strings.ReplaceAll(watcher, "'", `'"'"'`)+"'")
	s.out(t, sb.ID, "until [ -e /tmp/armed ]; do sleep 0.05; done")
	if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/f"}, strings.NewReader("x"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if r := s.ended(t, x).Result; r.ExitCode != 0 || strings.TrimSpace(r.Stdout) != "noticed" {
		t.Errorf("%d %q %q", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func TestCaseG18HugeDirectories(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(2048)})
	files := 20_000
	if os.Getenv("HUTCH_SOAK") != "" {
		files = 200_000
	}
	s.out(t, sb.ID, fmt.Sprintf("mkdir /workspace/many && cd /workspace/many && seq -f 'file-%%06g' %d | xargs touch", files), timeout(300))
	n, last := 0, ""
	for f, err := range s.client.Files(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/many"}, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Name <= last {
			t.Fatalf("%s comes after %s", f.Name, last)
		}
		n, last = n+1, f.Name
	}
	if n != files {
		t.Errorf("%d entries of %d", n, files)
	}
	if err := s.client.RemoveFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/many"}, false); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("removing a full directory: %v", err)
	}
	if err := s.client.RemoveFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/many"}, true); err != nil {
		t.Error(err)
	}
}

func TestCaseG20ManySmallFilesAreRemoved(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(2048)})
	began := time.Now()
	s.out(t, sb.ID, `mkdir -p /workspace/node_modules && cd /workspace/node_modules && for d in $(seq 100); do mkdir $d; done && for d in *; do (cd $d && seq 500 | xargs touch); done`, timeout(300))
	making := time.Since(began) // on a machine as busy as now
	within(t, making, "rm -rf of 50,000 files", func() { s.out(t, sb.ID, "rm -rf /workspace/node_modules", timeout(300)) })
}

// watch follows a directory until the test ends, and returns a function that waits for an
// event.
func (s *server) watch(t *testing.T, sb hutch.SandboxID, dir string) (await func(op hutch.FileOp, name string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	events, ready := make(chan api.FileChange, 1000), make(chan struct{})
	go func() {
		err := s.client.Watch(ctx, client.File{Sandbox: sb, Path: dir}, client.WatchOptions{Recursive: true}, func() { close(ready) }, func(c api.FileChange) error {
			events <- c
			return nil
		})
		if ctx.Err() == nil {
			t.Errorf("the watch ended: %v", err)
		}
	}()
	received(t, "the watch has begun", ready)
	return func(op hutch.FileOp, name string) {
		t.Helper()
		late := time.After(time.Minute)
		var seen []string
		for {
			select {
			case c := <-events:
				if c.Op == op && c.Name == name {
					return
				}
				seen = append(seen, string(c.Op)+" "+c.Name)
			case <-late:
				t.Fatalf("no %s of %s; seen: %q", op, name, seen)
			}
		}
	}
}

func TestCaseG21WatchesFollowRenames(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, "mkdir /workspace/w")
	await := s.watch(t, sb.ID, "/workspace/w")
	s.out(t, sb.ID, "mkdir /workspace/w/a")
	await(hutch.OpCreate, "a")
	s.out(t, sb.ID, "mv /workspace/w/a /workspace/w/b")
	await(hutch.OpCreate, "b")
	s.out(t, sb.ID, "touch /workspace/w/b/f")
	await(hutch.OpCreate, "b/f")
	s.out(t, sb.ID, "mkdir -p /workspace/w/b/deep/er && touch /workspace/w/b/deep/er/g")
	await(hutch.OpCreate, "b/deep/er/g")
	if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/w/b/up"}, strings.NewReader("x"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(hutch.OpCreate, "b/up")
	s.out(t, sb.ID, "rm -r /workspace/w/b")
	await(hutch.OpRemove, "b")
}

// A full disk is said to be one, and takes nothing away.
func TestFullDiskLeavesTheOldFile(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{DiskMB: ptr(256)})
	f := client.File{Sandbox: sb.ID, Path: "/workspace/f"}
	if _, err := s.client.WriteFile(t.Context(), f, strings.NewReader("old"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.client.WriteFile(t.Context(), f, &pattern{n: 400 << 20}, client.WriteOptions{})
	if !errors.Is(err, hutch.ErrDiskFull) {
		t.Fatalf("got %v, want disk_full", err)
	}
	var e *client.Error
	if !errors.As(err, &e) || e.Status != http.StatusInsufficientStorage {
		t.Errorf("got %+v, want status 507", e)
	}
	if got := s.out(t, sb.ID, "cat /workspace/f; ls -A /workspace"); got != "oldf" {
		t.Errorf("inside: %q", got)
	}
	// The room is there again.
	if _, err := s.client.WriteFile(t.Context(), f, &pattern{n: 100 << 20}, client.WriteOptions{}); err != nil {
		t.Error(err)
	}
}

// A caller who dies in the middle of an upload leaves the old file, and nothing else.
func TestUploaderIsKilled(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, "echo old >/workspace/f")
	for _, query := range []string{"", "&upload=u1&last=1"} {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.base+"/v1/sandboxes/"+string(sb.ID)+"/fs?path=/workspace/f"+query, r)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		done := make(chan error, 1)
		go func() {
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
			done <- err
		}()
		if _, err := io.CopyN(w, &pattern{n: 20 << 20}, 20<<20); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = w.CloseWithError(context.Canceled) // the transport reads on until it is told
		if err := <-done; err == nil {
			t.Error("the upload was answered")
		}
		if query == "" {
			eventually(t, "nothing is left of it", func() bool { return s.out(t, sb.ID, "ls -A /workspace") == "f" })
		}
		if got := s.out(t, sb.ID, "cat /workspace/f"); got != "old" {
			t.Errorf("%q: inside there is %.40q", query, got)
		}
	}
	// What has arrived of an upload in parts is there to go on from.
	res, err := s.client.UploadedBytes(t.Context(), client.File{Sandbox: sb.ID, Path: "/workspace/f"}, "u1")
	if err != nil || res == 0 || res > 20<<20 {
		t.Errorf("%d bytes are there, %v", res, err)
	}
}
