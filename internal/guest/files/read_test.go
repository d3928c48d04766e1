package files_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/syscalls"
)

func TestReadRange(t *testing.T) {
	b := newBox(t)
	putAs(t, b.home+"/f", "0123456789", workerID)
	for _, tt := range []struct {
		offset, length int64
		want           string
	}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {3, 4, "3456"}, {8, 100, "89"}, {10, 0, ""}, {10, 5, ""}, {0, 1, "0"}} {
		if got := b.read(t, hutch.ReadFile{FileRef: ref("f", ""), Offset: tt.offset, Length: tt.length}); got != tt.want {
			t.Errorf("from %d, %d bytes: %q, want %q", tt.offset, tt.length, got, tt.want)
		}
	}
	for field, r := range map[string]hutch.ReadFile{"offset": {Offset: 11}, "length": {Length: -1}} {
		r.FileRef = ref("f", "")
		_, err := b.tryRead(t, r)
		wantCode(t, field, err, hutch.CodeBadRequest, field)
	}
	_, err := b.tryRead(t, hutch.ReadFile{FileRef: ref("f", ""), Offset: -1})
	wantCode(t, "negative offset", err, hutch.CodeBadRequest, "offset")
}

func TestReadRefusals(t *testing.T) {
	b := newBox(t)
	b.plant(t, "d/")
	if err := unix.Mkfifo(b.home+"/pipe", 0o666); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(b.home+"/pipe", 0o666)
	put(t, b.dir+"/root/secret", "x")
	_ = os.Chmod(b.dir+"/root/secret", 0o600)
	link(t, b.dir+"/root/secret", b.home+"/trap")
	for path, code := range map[string]hutch.Code{
		"d": hutch.CodeBadRequest, "pipe": hutch.CodeBadRequest, "/dev/zero": hutch.CodeBadRequest,
		"nowhere": hutch.CodeNotFound, "trap": hutch.CodeForbidden,
	} {
		_, err := b.tryRead(t, hutch.ReadFile{FileRef: ref(path, "")})
		wantCode(t, path, err, code, "")
	}
	if got := b.read(t, hutch.ReadFile{FileRef: ref(b.home+"/trap", "root")}); got != "x" {
		t.Errorf("root reads %q", got)
	}
}

// G13: links that lead into the agent itself show a user no more than a process of that
// user would see, and root no secret, since there is none.
func TestAgentIsNoFile(t *testing.T) {
	b := newBox(t)
	self := "/proc/" + itoa(os.Getpid())
	secret, err := os.Open(b.dir + "/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	fd := self + "/fd/" + itoa(int(secret.Fd()))
	for i, target := range []string{
		self + "/environ", self + "/mem", self + "/maps", self + "/auxv", self + "/status", fd, "/proc/self/maps", "/proc/self/fd/" + itoa(int(secret.Fd())),
		"/proc/thread-self/maps", self + "/root/etc/passwd", self + "/cwd/files.go", self + "/exe",
	} {
		name := "link" + itoa(i)
		link(t, target, b.home+"/"+name)
		for _, path := range []string{name, target} {
			if s, err := b.tryRead(t, hutch.ReadFile{FileRef: ref(path, "")}); err == nil {
				t.Errorf("%s was read: %.40q", target, s)
			}
			if _, err := b.WriteFile(within(t), hutch.WriteFile{FileRef: ref(path, "")}); err == nil {
				t.Errorf("%s was written", target)
			}
		}
	}
	_, err = b.tryRead(t, hutch.ReadFile{FileRef: ref("link0", "")})
	wantCode(t, "environ", err, hutch.CodeForbidden, "")
	for _, dir := range []string{self, self + "/fd", self + "/task", "/proc/self/fd", self + "/map_files"} {
		if l, err := b.ListFiles(within(t), hutch.ListFiles{FileRef: ref(dir, "")}); err == nil {
			t.Errorf("%s was listed: %d entries", dir, len(l.Entries))
		}
	}
	if got := b.read(t, hutch.ReadFile{FileRef: ref("/proc/sys/kernel/ostype", "")}); strings.TrimSpace(got) != "Linux" {
		t.Errorf("another file of proc: %q", got)
	}
	if s, err := b.tryRead(t, hutch.ReadFile{FileRef: ref("/proc/sys/kernel/../"+itoa(os.Getppid())+"/comm", "")}); err != nil && !strings.Contains(err.Error(), "nothing at") {
		t.Errorf("another process: %q, %v", s, err)
	}
}

// The threads that act for users are root's again afterwards, and the first one never is
// anybody else's.
func TestThreadsReturn(t *testing.T) {
	b := newBox(t)
	for range 50 {
		b.write(t, hutch.WriteFile{FileRef: ref("f", "")}, "x")
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			if f[0] == "Uid:" && strings.Join(f[1:], " ") != "0 0 0 0" || f[0] == "Gid:" && strings.Join(f[1:], " ") != "0 0 0 0" {
				t.Errorf("thread %s: %s", task.Name(), line)
			}
		}
	}
}

// A reader who stops in the middle ends the call.
func TestReadAbandoned(t *testing.T) {
	b := newBox(t)
	f, err := os.Create(b.home + "/big")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for range 100 { // more than there are threads for calls at work
		c, err := b.OpenFile(within(t), hutch.ReadFile{FileRef: ref("big", "")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Body.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		c.Body.Close()
		if _, err := c.Body.Read(make([]byte, 1<<20)); err == nil {
			if _, err = c.Body.Read(make([]byte, 1<<20)); err == nil {
				t.Fatal("a closed body can be read")
			}
		}
	}
	ctx, cancel := context.WithCancel(within(t))
	c, err := b.OpenFile(ctx, hutch.ReadFile{FileRef: ref("big", "")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Body.Close()
	cancel()
	buf := make([]byte, 1<<20)
	for err == nil {
		_, err = c.Body.Read(buf)
	}
	wantCode(t, "after cancel", err, hutch.CodeCancelled, "")
}

// TestReadIsCheap: in a sandbox whose CPUs are all busy each system call of the agent waits its
// turn, and so does each piece of an answer.
func TestReadIsCheap(t *testing.T) {
	b := newBox(t)
	mux := http.NewServeMux()
	b.svc.Handle(mux.Handle)
	for size, want := range map[int]int64{0: 1, 5: 1, 3000: 1, 1 << 20: 5} {
		putAs(t, b.home+"/f", strings.Repeat("x", size), workerID)
		q, err := json.Marshal(guestapi.ReadFile{FileRef: guestapi.FileRef{Path: b.home + "/f", User: "root"}})
		if err != nil {
			t.Fatal(err)
		}
		w := &pieces{ResponseRecorder: httptest.NewRecorder()}
		n, err := syscalls.Reads(func() {
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, guestapi.PathFileRead, strings.NewReader(string(q))))
		})
		if err != nil {
			t.Skip(err)
		}
		if n -= 2; n > want { // the lists of users, which are too young to be kept
			t.Errorf("%d bytes were read by %d reads, want %d", size, n, want)
		}
		if got := int64(w.writes); got > want+1 || w.Flushed {
			t.Errorf("%d bytes were sent in %d pieces, flushed: %v", size, got, w.Flushed)
		}
		if w.Body.Len() < size {
			t.Errorf("%d bytes of %d were sent", w.Body.Len(), size)
		}
	}
}

// pieces counts what an answer is written in.
type pieces struct {
	*httptest.ResponseRecorder
	writes int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.writes++
	return p.ResponseRecorder.Write(b)
}
