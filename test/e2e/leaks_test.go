package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/x/cgroup"
	"hutch.dev/hutch/internal/x/id"
)

// looked is what `hutch leaks` said.
type looked struct {
	api.Leaks

	code   int
	stderr string
}

// kinds are the kinds of what was found of a sandbox, or of none.
func (l looked) kinds(sb hutch.SandboxID) []string {
	var out []string
	for _, x := range l.Leaks.Leaks {
		if x.SandboxID == sb {
			out = append(out, string(x.Kind))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// leaks runs `hutch leaks`. What it prints for people and for programs must agree with its
// exit code.
func (s *server) leaks(t *testing.T, args ...string) looked {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"leaks", "--json", "--data-dir", s.dir, "--cache-dir", rootfs.CacheDir()}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	l := looked{code: cmd.ProcessState.ExitCode(), stderr: errOut.String()}
	if l.code != 2 {
		if err := json.Unmarshal(out.Bytes(), &l.Leaks); err != nil {
			t.Fatalf("%v in %q", err, out.String())
		}
		if (len(l.Leaks.Leaks) > 0) != (l.code == 1) {
			t.Errorf("exit code %d with %+v", l.code, l.Leaks)
		}
	}
	return l
}

// stray makes, by hand, what a fault of ours could leave of a sandbox that is not on record.
func (s *server) stray(t *testing.T) map[hutch.SandboxID]string {
	t.Helper()
	made := map[hutch.SandboxID]string{}
	name := func(kind string) hutch.SandboxID {
		sb := hutch.SandboxID(id.NewSandbox())
		made[sb] = kind
		return sb
	}
	tree, err := cgroup.Detect(s.cgroup())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Create(string(name("cgroup")), cgroup.Limits{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "run", "sandboxes", string(name("state"))), 0o711); err != nil {
		t.Fatal(err)
	}
	k, err := keeper.Dial(t.Context(), s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	// Its process is any that lives: nothing of a keeper's entry is looked at but its name.
	held, err := k.Get(t.Context(), s.create(t, api.CreateSandbox{MemoryMB: ptr(128)}).ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Put(t.Context(), name("keeper"), 1, held.Handles, hutch.Lifetime{ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for _, f := range append(held.Handles.Procs, held.Handles.Guest, held.Handles.Link) {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return made
}

func TestLeaks(t *testing.T) {
	t.Parallel()
	s := own(t, "--reconcile-every", "1h") // it is to sweep when it is told to
	nothing := func(when string) {
		t.Helper()
		if l := s.leaks(t); l.code != 0 {
			t.Errorf("%s: exit code %d, %+v, %s", when, l.code, l.Leaks, l.stderr)
		}
	}
	nothing("an empty server")
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128)})
	paused := s.create(t, api.CreateSandbox{MemoryMB: ptr(128), DiskTier: hutch.TierMemory})
	if err := s.client.Pause(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	nothing("with sandboxes")

	made := s.stray(t)
	l := s.leaks(t)
	if len(l.Leaks.Leaks) != len(made) {
		t.Errorf("found %+v, made %v", l.Leaks, made)
	}
	for sb, kind := range made {
		if got := l.kinds(sb); !slices.Equal(got, []string{kind}) {
			t.Errorf("of the %s of %s it found %v", kind, sb, got)
		}
	}
	if l := s.leaks(t, "--sweep"); l.code != 0 || len(l.Swept) != len(made) {
		t.Errorf("the sweep left %+v and removed %+v", l.Leaks.Leaks, l.Swept)
	}
	nothing("after a sweep")
	if got := s.metric(t, `hutch_operations_total{phase="sweep_orphan",result="ok"}`); got != "3" {
		t.Errorf("the server counts %q orphans", got)
	}
	if got := s.out(t, sb.ID, "echo alive"); got != "alive" {
		t.Errorf("a sandbox on record says %q after the sweep", got)
	}

	made = s.stray(t) // and now without a server
	s.kill9(t)
	l = s.leaks(t)
	for sb, kind := range made {
		if got := l.kinds(sb); !slices.Equal(got, []string{kind}) {
			t.Errorf("without a server, of the %s of %s it found %v", kind, sb, got)
		}
	}
	if len(l.Leaks.Leaks) != len(made) {
		t.Errorf("without a server it found %+v, made were %v", l.Leaks, made)
	}
	if l := s.leaks(t, "--sweep"); l.code != 2 || !strings.Contains(l.stderr, "hutch serve") {
		t.Errorf("a sweep without a server: %d, %q", l.code, l.stderr)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	nothing("after the next start")
	if got := s.out(t, sb.ID, "echo alive"); got != "alive" {
		t.Errorf("a sandbox on record says %q after the restart", got)
	}
}

// metric is a metric's value as the server shows it; empty if it has none.
func (s *server) metric(t *testing.T, name string) string {
	t.Helper()
	v, err := s.readMetric(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *server) readMetric(name string) (string, error) {
	res, err := http.Get(s.base + "/metrics")
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", nil
}

func TestLeaksWhereThereIsNoServer(t *testing.T) {
	s := &server{dir: t.TempDir()}
	if l := s.leaks(t); l.code != 2 || !strings.Contains(l.stderr, "--data-dir") {
		t.Errorf("an empty directory: %d, %q", l.code, l.stderr)
	}
}

// A server that is killed in creates leaves what `hutch leaks` tells apart: machines whose
// record is there, for the next server to finish or undo, and machines without one. After its next
// start there is neither.
func TestLeaksOfCutCreates(t *testing.T) {
	t.Parallel()
	s := own(t)
	for round := range 2 {
		c, err := client.New(s.base, client.WithKey(s.key), client.WithRetries(0))
		if err != nil {
			t.Fatal(err)
		}
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				_, _ = c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)}) // it is cut off
			})
		}
		eventually(t, "a machine is being made", func() bool { return s.sandboxProcesses() > 0 })
		<-time.After(time.Duration(round) * 15 * time.Millisecond)
		s.kill9(t)
		calls.Wait()
		l := s.leaks(t)
		if l.code == 2 {
			t.Errorf("round %d, without a server: %s", round, l.stderr)
		}
		for _, x := range l.Leaks.Leaks {
			if x.Kind != hutch.TraceRecord && x.SandboxID == "" {
				t.Errorf("%+v is of no sandbox", x)
			}
		}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		if l := s.leaks(t); l.code != 0 {
			t.Errorf("round %d, after the restart: %+v %s", round, l.Leaks, l.stderr)
		}
	}
}

// A machine whose record is gone altogether, as after the restore of an older backup, is found
// with all that it has, and is ended by the next server.
func TestLeaksOfAWholeMachine(t *testing.T) {
	t.Parallel()
	s := own(t)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.exited
	db := filepath.Join(s.dir, "hutch.db")
	backup, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	sb, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
	if err != nil {
		t.Fatal(err)
	}
	s.kill9(t)
	if err := errors.Join(os.Remove(db+"-wal"), os.Remove(db+"-shm"), os.WriteFile(db, backup, 0o600)); err != nil {
		t.Fatal(err)
	}
	l := s.leaks(t)
	if got, want := l.kinds(sb.ID), []string{"cgroup", "disk", "keeper", "link", "process", "state"}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v: %+v", got, want, l.Leaks)
	}
	for _, x := range l.Leaks.Leaks {
		if x.Kind == hutch.TraceProcess && (x.Since.Before(sb.CreatedAt.Add(-time.Minute)) || x.Since.After(time.Now().Add(time.Minute))) {
			t.Errorf("a process of a sandbox of %s is said to run since %s", sb.CreatedAt, x.Since)
		}
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if n := s.sandboxProcesses(); n != 0 {
		t.Errorf("%d processes are left after the start", n)
	}
	if l := s.leaks(t); l.code != 0 {
		t.Errorf("after the start: %+v %s", l.Leaks, l.stderr)
	}
	if got := s.metric(t, `hutch_operations_total{phase="sweep_orphan",result="ok"}`); got != "1" {
		t.Errorf("the server counts %q orphans", got)
	}
}

// L20: containers stay after the app that made them was killed.
func TestCaseL20WhatADeadOwnerLeftIsReaped(t *testing.T) {
	t.Parallel()
	s := common(t)
	p := s.startHutch(t, "create", "--memory", "128M", "--lease", "10s", "--keep-alive")
	id := hutch.SandboxID(p.read(t, len(hutch.SandboxID(id.NewSandbox()))))
	first, err := s.client.Sandbox(t.Context(), id)
	if err != nil || first.LeaseSeconds != 10 || first.LeasedTo.IsZero() {
		t.Fatalf("it is %+v, %v", first, err)
	}
	eventually(t, "its owner renews the lease", func() bool {
		now, err := s.client.Lifecycle(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return now.LeasedTo.After(first.LeasedTo)
	})
	p.kill()
	var gone error
	eventually(t, "what the dead owner left is reaped", func() bool {
		_, gone = s.client.Sandbox(t.Context(), id)
		return gone != nil
	})
	if !errors.Is(gone, hutch.ErrSandboxGone) || !strings.Contains(gone.Error(), string(hutch.EndOwnerGone)) {
		t.Errorf("it is gone as %v", gone)
	}
	if _, err := s.client.Renew(t.Context(), id); !errors.Is(err, hutch.ErrSandboxGone) {
		t.Errorf("a late renewal: %v", err)
	}
}
