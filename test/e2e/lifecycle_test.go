package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/store/sqlite"
)

// Cases of what a start that fails, a restart and a lost host leave.

// record reads a sandbox's record as the server keeps it.
func (s *server) record(t *testing.T, id hutch.SandboxID) hutch.Sandbox {
	t.Helper()
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	sb, err := st.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// restart kills the server and starts it again, with the same arguments as before if none
// are given.
func (s *server) restart(t *testing.T, args ...string) {
	t.Helper()
	s.kill9(t)
	if err := s.start(args...); err != nil {
		t.Fatal(err)
	}
}

// Neither the server's nor the gateway's end, nor both at once, costs a sandbox its network or
// its pause.
func TestCaseL10RestartWithManyRunningAndPaused(t *testing.T) {
	t.Parallel()
	n := 2 // of each
	if os.Getenv("HUTCH_SOAK") != "" {
		n = 10
	}
	s := own(t)
	ids := make([]hutch.SandboxID, 2*n)
	parallel(t, len(ids), 2, func(i int) {
		sb, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
		if err != nil {
			t.Error(err)
			return
		}
		ids[i] = sb.ID
		s.out(t, sb.ID, fmt.Sprintf(`mkdir /workspace/w && echo page %d >/workspace/w/index.html`, i))
		s.background(t, sb.ID, `cd /workspace/w && exec python3 -m http.server 8000`)
		s.out(t, sb.ID, `until curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.05; done`, timeout(60))
		if i >= n {
			s.pause(t, sb.ID)
		}
	})
	if t.Failed() {
		return
	}
	s.kill9(t)
	s.killCompanion(t, "egress")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	parallel(t, len(ids), 2, func(i int) {
		if i >= n {
			if err := s.client.Resume(t.Context(), ids[i]); err != nil {
				t.Errorf("resume %d: %v", i, err)
				return
			}
		}
		res, err := s.client.Exec(t.Context(), ids[i], api.ExecRequest{Cmd: `curl -s http://127.0.0.1:8000/`})
		want := fmt.Sprintf("page %d\n", i)
		if err != nil || res.Stdout != want {
			t.Errorf("a command in %d: %q %q, %v", i, res.Stdout, res.Stderr, err)
		}
		if status, body := s.visitPort(t, ids[i], 8000, "/"); status != http.StatusOK || body != want {
			t.Errorf("the port of %d: %d %q", i, status, body)
		}
	})
}

// A start that fails leaves a record that says why, which can be read, listed and deleted, and
// nothing that keeps the next from working.
func TestCaseL18AFailedStartIsToldAndForgotten(t *testing.T) {
	t.Parallel()
	s := own(t)
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	broken, err := st.Template(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	broken.Name, broken.Aliases = "broken", nil
	broken.Image = "sha256:" + strings.Repeat("0", 64)
	if err := errors.Join(st.PutTemplate(t.Context(), broken), st.Close()); err != nil {
		t.Fatal(err)
	}
	const key = "l18-key"
	create := func(headers ...string) asked {
		return s.ask(t, "POST", "/v1/sandboxes", `{"template": "broken", "memory_mb": 128, "metadata": {"walk": "l18"}}`, headers...)
	}
	told := ""
	for i, a := range []asked{create("Idempotency-Key", key), create("Idempotency-Key", key), create()} {
		e := answered[api.Error](a)
		if a.status < 400 || e.Code == "" || e.Error == "" {
			t.Fatalf("attempt %d: %d %s", i, a.status, a.body)
		}
		told = e.Error
		if strings.Contains(a.body, s.dir) || strings.Contains(a.body, rootfs.CacheDir()) {
			t.Errorf("attempt %d names a path of the host: %s", i, a.body)
		}
	}
	dead := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes?state=dead&metadata.walk=l18", "").want(200))
	if len(dead) == 0 {
		t.Fatal("no record of the failed starts is kept")
	}
	for _, sb := range dead {
		if sb.EndReason != hutch.EndStartFailed || sb.EndDetail != told || sb.Status != api.StatusFailed {
			t.Errorf("its record: %+v", sb)
		}
		at := "/v1/sandboxes/" + string(sb.ID)
		look := s.ask(t, "GET", at, "").want(404)
		if e := answered[api.Error](look); e.EndReason != hutch.EndStartFailed {
			t.Errorf("a look at it: %+v", e)
		}
		if said := sb.EndDetail + look.body; strings.Contains(said, s.dir) || strings.Contains(said, rootfs.CacheDir()) {
			t.Errorf("its record names a path of the host: %s", said)
		}
		s.ask(t, "DELETE", at, "").want(404)
		if e := answered[api.Events](s.ask(t, "GET", at+"/events", "").want(200)).Events; len(e) == 0 || e[len(e)-1].Type != "sandbox.ended" || e[len(e)-1].Data["reason"] != string(hutch.EndStartFailed) {
			t.Errorf("its events: %+v", e)
		}
	}
	if alive := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes", "").want(200)); len(alive) != 0 || s.sandboxProcesses() != 0 {
		t.Errorf("%d sandboxes and %d processes are left", len(alive), s.sandboxProcesses())
	}
	s.inside(t, s.create(t, api.CreateSandbox{}).ID, `echo works`, "works")
}

// A server whose disk is full makes nothing that it would not remember, and says so; what runs
// goes on, and can be ended, which is what makes room.
func TestCaseL18AFullDiskOfTheHost(t *testing.T) {
	t.Parallel()
	s := ownOn(t, "size=128m")
	kept := s.create(t, api.CreateSandbox{MemoryMB: ptr(128), DiskTier: hutch.TierMemory})
	full := s.create(t, api.CreateSandbox{MemoryMB: ptr(128)})
	s.out(t, full.ID, `head -c 20000000 /dev/zero >/workspace/big; sync`)
	fill := func() {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(s.dir, "..", "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for block := make([]byte, 1<<20); len(block) > 0; { // to the last byte
			if _, err := f.Write(block); err != nil {
				block = block[:len(block)/2]
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	const one = `{"template": "base", "memory_mb": 128, "disk_tier": "memory"}`
	for range 3 {
		a := s.ask(t, "POST", "/v1/sandboxes", one)
		if e := answered[api.Error](a); a.status < 500 || e.Code == "" || strings.Contains(a.body, s.dir) {
			t.Errorf("a create without room for its record: %d %s", a.status, a.body)
		}
	}
	eventually(t, "nothing is left of what was refused", func() bool { return s.sentries() == 2 })
	within(t, 5*time.Second, "a file", func() {
		if _, err := s.client.Stat(t.Context(), client.File{Sandbox: kept.ID, Path: "/workspace"}); err != nil {
			t.Errorf("what needs no record: %v", err)
		}
	})
	within(t, 5*time.Second, "the kill of what fills it", func() {
		if err := s.client.Kill(t.Context(), full.ID); err != nil {
			t.Errorf("its kill: %v", err)
		}
	})
	if n := s.sentries(); n != 1 {
		t.Errorf("%d sandboxes are on the host after the kill of one of two", n)
	}
	s.inside(t, answered[api.Sandbox](s.ask(t, "POST", "/v1/sandboxes", one).want(http.StatusCreated)).ID, `echo room`, "room")
	eventually(t, "those that were made are on record, and no others", func() bool { return len(s.living(t)) == 2 })
	fill()
	// This one's end makes next to no room: it may have to wait until it can be put on record.
	err := s.client.Kill(t.Context(), kept.ID)
	if n := s.sentries(); n != 1 {
		t.Errorf("%d sandboxes are on the host after the kill of another, which was answered by %v", n, err)
	}
	if err := os.Remove(filepath.Join(s.dir, "..", "filler")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its end is on record", func() bool {
		a := s.ask(t, "GET", "/v1/sandboxes/"+string(kept.ID), "")
		return a.status == http.StatusNotFound && answered[api.Error](a).EndReason == hutch.EndKilled
	})
}

// ownOn is own on a file system of its own, in memory, that is mounted with options.
func ownOn(t *testing.T, options string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "hutch-e2e") //nolint:usetesting // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, 0), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	s := &server{dir: filepath.Join(dir, "d")}
	if err := errors.Join(os.Mkdir(s.dir, 0o755), s.start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.tearDown(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("server's log:\n%s", s.log.String())
		}
	})
	return s
}

// One server has the data directory, and with it the right to act on its sandboxes, until it
// is gone, however it goes; what the next one does carries a higher epoch.
func TestCaseL21TheHolderDiesAndTheNextTakesOver(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	enough, cancel := context.WithTimeout(t.Context(), time.Minute) // it might serve
	defer cancel()
	second := exec.CommandContext(enough, exe, "serve", "--data-dir", s.dir, "--listen", "127.0.0.1:0")
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another") && !strings.Contains(string(out), "already") {
		t.Errorf("a second server on the same directory: %v\n%s", err, out)
	}
	epoch := s.record(t, sb.ID).Epoch
	for range 3 {
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			_ = s.client.Pause(ctx, sb.ID)
		}()
		s.kill9(t) // at whatever moment of the pause
		cancel()
		<-done
		if err := s.start(); err != nil {
			t.Fatalf("the next server: %v", err)
		}
		s.pause(t, sb.ID)
		s.resume(t, sb.ID)
		s.inside(t, sb.ID, `echo mine`, "mine")
		now := s.record(t, sb.ID)
		if now.Epoch <= epoch || now.Transition != "" {
			t.Errorf("epoch %d after %d, %s", now.Epoch, epoch, now.Transition)
		}
		epoch = now.Epoch
	}
}

// A host that goes down takes its sandboxes with it, and the records say so: none is ever shown
// as one that runs, however orderly the server was stopped before.
func TestCaseL23AHostThatGoesDown(t *testing.T) {
	t.Parallel()
	s := own(t)
	running, paused := s.create(t, api.CreateSandbox{MemoryMB: ptr(128)}), s.create(t, api.CreateSandbox{MemoryMB: ptr(128)})
	x := s.background(t, running.ID, `sleep 100000`)
	s.pause(t, paused.ID)
	if err := s.cmd.Process.Signal(stopSignal); err != nil {
		t.Fatal(err)
	}
	if err := <-s.exited; err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process is left", func() bool {
		pids := s.pids()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(pids) == 0
	})
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if all := s.living(t); len(all) != 0 {
		t.Errorf("said to be alive: %+v", all)
	}
	dead := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes?state=dead", "").want(200))
	if len(dead) != 2 {
		t.Errorf("dead on record: %+v", dead)
	}
	for _, sb := range dead {
		if sb.EndReason != hutch.EndLost {
			t.Errorf("%s ended by %s, %q", sb.ID, sb.EndReason, sb.EndDetail)
		}
	}
	if r := s.ended(t, x).Result; r.EndReason != hutch.ExecSandboxGone {
		t.Errorf("its command ended by %s", r.EndReason)
	}
	if l := s.leaks(t); l.code != 0 {
		t.Errorf("left over: %+v %s", l.Leaks, l.stderr)
	}
	s.inside(t, s.create(t, api.CreateSandbox{MemoryMB: ptr(128)}).ID, `echo next`, "next")
}
