package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guest/files"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/guestlink"
)

// ids of the users in the tests' passwd.
const (
	workerID = 61001
	otherID  = 61002
)

// box is a file service behind the link that a sandbox has, with the client of the node.
// Its directory belongs to worker, whose home is in it and who acts if nobody is named.
type box struct {
	*guestclient.Client
	dir, home string
	svc       *files.Service
}

func newBox(t testing.TB) *box {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("acting for others needs root")
	}
	dir, err := os.MkdirTemp("", "hutch-files-") //nolint:usetesting // others must be able to enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &box{dir: dir, home: dir + "/worker"}
	etc := dir + "/etc"
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(etc, 0o755)); err != nil {
		t.Fatal(err)
	}
	put(t, etc+"/passwd", "root:x:0:0::"+dir+"/root:/bin/sh\nworker:x:61001:61001::"+b.home+":/bin/sh\nother:x:61002:61002::"+dir+"/other:/bin/sh\n")
	put(t, etc+"/group", "root:x:0:\nworker:x:61001:\nother:x:61002:\nboth:x:61003:worker,other\n")
	for name, uid := range map[string]int{"": 0, "/root": 0, "/worker": workerID, "/other": otherID} {
		_ = os.Mkdir(dir+name, 0o755)
		if err := errors.Join(os.Chmod(dir+name, 0o755), os.Chown(dir+name, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	b.svc = files.New(files.Config{
		Accounts: account.Database{Passwd: etc + "/passwd", Group: etc + "/group"},
		Refuse:   refuse,
	})
	b.svc.SetUser("worker")
	b.Client = serve(t, b.svc)
	return b
}

// serve puts a service behind a link and returns a client of it.
func serve(t testing.TB, svc *files.Service) *guestclient.Client {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	host, guest := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	mux := http.NewServeMux()
	svc.Handle(mux.Handle)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- guestlink.Serve(ctx, guest, mux) }()
	c := guestclient.New(host)
	_ = host.Close()
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		<-served
	})
	return c
}

func refuse(w http.ResponseWriter, err error) {
	var e *hutch.Error
	if !errors.As(err, &e) {
		e = hutch.Wrap(hutch.CodeInternal, err, "%v", err)
	}
	w.WriteHeader(http.StatusTeapot)
	_ = json.NewEncoder(w).Encode(guestapi.Error{Error: e.Message, Code: e.Code, Field: e.Field})
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// put writes a file as root.
func put(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// putAs writes a file that belongs to uid.
func putAs(t testing.TB, path, content string, uid int) {
	t.Helper()
	put(t, path, content)
	if err := os.Lchown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// names lists what is in a directory, sorted.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func ref(path, user string) hutch.FileRef { return hutch.FileRef{Path: path, User: user} }

// write writes a file through the service.
func (b *box) write(t testing.TB, w hutch.WriteFile, content string) hutch.WriteResult {
	t.Helper()
	w.Content = bytes.NewReader([]byte(content))
	r, err := b.WriteFile(within(t), w)
	if err != nil {
		t.Fatalf("write %q: %v", w.Path, err)
	}
	return r
}

// read reads a file through the service.
func (b *box) read(t testing.TB, r hutch.ReadFile) string {
	t.Helper()
	s, err := b.tryRead(t, r)
	if err != nil {
		t.Fatalf("read %q: %v", r.Path, err)
	}
	return s
}

func (b *box) tryRead(t testing.TB, r hutch.ReadFile) (string, error) {
	t.Helper()
	c, err := b.OpenFile(within(t), r)
	if err != nil {
		return "", err
	}
	defer c.Body.Close()
	s, err := io.ReadAll(c.Body)
	return string(s), err
}

// wantCode checks that err has a code, and is about a field if one is given.
func wantCode(t testing.TB, what string, err error, code hutch.Code, field string) {
	t.Helper()
	var e *hutch.Error
	if !errors.As(err, &e) || e.Code != code || field != "" && e.Field != field {
		t.Errorf("%s: got %v, want %s %s", what, err, code, field)
	}
}

// link makes a symbolic link that belongs to worker.
func link(t testing.TB, target, path string) {
	t.Helper()
	if err := errors.Join(os.Symlink(target, path), os.Lchown(path, workerID, workerID)); err != nil {
		t.Fatal(err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func clean(paths []hutch.FileInfo, dir string) []string {
	out := []string{}
	for _, p := range paths {
		rel, _ := filepath.Rel(dir, p.Path)
		out = append(out, rel)
	}
	return out
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("in time: %s", what)
		}
	}
}
