package account

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// mainThread is what TestMain found on the process's first thread.
var mainThread struct {
	elsewhere bool
	err       error
}

// TestMain holds the first thread, so that one test can be about it.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	if os.Getuid() == 0 {
		u := User{Name: "u", UID: 61009, GID: 61010}
		mainThread.err = u.Do(func() error {
			mainThread.elsewhere = unix.Gettid() != unix.Getpid() && unix.Geteuid() == 61009
			return nil
		})
		if ids := idsOf(unix.Gettid()); ids != rootIDs {
			mainThread.err = errors.Join(mainThread.err, fmt.Errorf("the first thread has the ids %s", ids))
		}
	}
	runtime.UnlockOSThread()
	os.Exit(m.Run())
}

const rootIDs = "0 0 0 0/0 0 0 0"

// idsOf is the ids of a thread, users and groups.
func idsOf(tid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", tid))
	var ids []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == "Uid:" || f[0] == "Gid:" {
			ids = append(ids, strings.Join(f[1:], " "))
		}
	}
	return strings.Join(ids, "/")
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("acting for others needs root")
	}
}

func TestDo(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "hutch-account-") //nolint:usetesting // others must be able to enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	secret := filepath.Join(dir, "secret")
	if err := errors.Join(os.Chmod(dir, 0o1777), os.WriteFile(secret, nil, 0o600), os.Chown(secret, 0, 61003), os.Chmod(secret, 0o640)); err != nil {
		t.Fatal(err)
	}
	u := User{Name: "u", UID: 61001, GID: 61002}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			var tid int
			err := u.Do(func() error {
				tid = unix.Gettid()
				f, err := os.Create(fmt.Sprintf("%s/%d", dir, i))
				if err != nil {
					return err
				}
				defer f.Close()
				var st unix.Stat_t
				if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != 61001 || st.Gid != 61002 {
					return fmt.Errorf("made a file of %d:%d, %w", st.Uid, st.Gid, err)
				}
				if _, err := os.ReadFile(secret); !errors.Is(err, os.ErrPermission) {
					return fmt.Errorf("reads a file of a group that it is not in: %w", err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if ids := idsOf(tid); ids != "" && !strings.HasPrefix(ids, "0 ") {
				t.Errorf("thread %d has the ids %s", tid, ids)
			}
		})
	}
	wg.Wait()
	u.Groups = []uint32{61003}
	if err := u.Do(func() error { _, err := os.ReadFile(secret); return err }); err != nil {
		t.Errorf("a file of one of its groups: %v", err)
	}
	want := errors.New("mine")
	if err := u.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	if _, err := os.ReadFile(secret); err != nil {
		t.Errorf("root again: %v", err)
	}
}

func TestDoPanics(t *testing.T) {
	needRoot(t)
	defer func() {
		if p := recover(); p != "ouch" {
			t.Errorf("recovered %v", p)
		}
		if ids := idsOf(unix.Gettid()); ids != rootIDs {
			t.Errorf("ids after a panic: %s", ids)
		}
	}()
	_ = User{Name: "u", UID: 61001, GID: 61001}.Do(func() error { panic("ouch") })
}

// What the process's first thread may do is what the process shows to others.
func TestDoLeavesTheFirstThread(t *testing.T) {
	needRoot(t)
	if mainThread.err != nil || !mainThread.elsewhere {
		t.Errorf("on another thread %v, %v", mainThread.elsewhere, mainThread.err)
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	d := Database{Passwd: dir + "/passwd", Group: dir + "/group"}
	if n := d.Names(); n.User(0) != "root" || n.User(5) != "5" || n.Group(7) != "7" {
		t.Error("without files")
	}
	if err := errors.Join(
		os.WriteFile(d.Passwd, []byte("worker:x:5:6::/:\nworker2:x:5:6::/:\nnonsense\n"), 0o600),
		os.WriteFile(d.Group, []byte("staff:x:7:worker\n::\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	n := d.Names()
	if n.User(5) != "worker" || n.Group(7) != "staff" || n.Group(5) != "5" {
		t.Errorf("%+v", n)
	}
	if id, err := d.UserID("owner", "worker"); err != nil || id != 5 {
		t.Error(id, err)
	}
	if id, err := d.GroupID("group", "7"); err != nil || id != 7 {
		t.Error(id, err)
	}
	for _, name := range []string{"nobody-here", ""} {
		if _, err := d.UserID("owner", name); err == nil {
			t.Errorf("user %q was found", name)
		}
		if _, err := d.GroupID("group", name); err == nil {
			t.Errorf("group %q was found", name)
		}
	}
}
