package keeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/pidfd"
)

// Roles of the test binary.
const (
	roleKeeper = "keeper-serve"
	roleAgent  = "keeper-agent" // a node agent that stores a sandbox and waits to be killed
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case roleKeeper:
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			if err := Serve(context.Background(), Config{Dir: os.Args[2], Build: "test", Log: log}); err != nil {
				log.Error("keeper", "error", err)
				os.Exit(1)
			}
			os.Exit(0)
		case roleAgent:
			if err := agent(os.Args[2]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// agent stores a sandbox named "mine", whose guest is a pipe with a word in it, and waits.
func agent(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := Dial(ctx, dir)
	if err != nil {
		return err
	}
	if err := c.Attach(ctx); err != nil {
		return err
	}
	cmd := exec.Command("sleep", "120")
	if err := cmd.Start(); err != nil {
		return err
	}
	proc, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if _, err := w.WriteString("word"); err != nil {
		return err
	}
	h := runtime.Handles{Guest: r, Procs: []*os.File{proc}}
	if err := c.Put(ctx, "mine", 3, h, until(time.Now().Add(time.Hour))); err != nil {
		return err
	}
	if err := c.Put(ctx, "overdue", 1, sleepHandles(nil), until(time.Now().Add(-time.Second))); err != nil {
		return err
	}
	fmt.Println("stored", cmd.Process.Pid)
	select {}
}

// startKeeper starts a keeper process and connects to it. It is gone when the test ends.
func startKeeper(t testing.TB) (*Client, string) {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), dir, exe, roleKeeper, dir)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, logName))
		t.Fatalf("%v\n%s", err, log)
	}
	proc, err := pidfd.Open(c.Hello().PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		_ = pidfd.Signal(proc, unix.SIGKILL)
		if err := pidfd.Wait(context.Background(), proc); err != nil {
			t.Error(err)
		}
		_ = proc.Close()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, logName))
			t.Logf("keeper's log:\n%s", log)
		}
	})
	return c, dir
}

func dialKeeper(t *testing.T, dir string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// sleepHandles makes a sandbox of one process that would run for long. With a nil t it
// is the caller who ends it.
func sleepHandles(t testing.TB) runtime.Handles {
	cmd := exec.Command("sleep", "120")
	err := cmd.Start()
	if err != nil {
		panic(err)
	}
	f, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		panic(err)
	}
	if t != nil {
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = f.Close()
		})
	}
	return runtime.Handles{Procs: []*os.File{f}}
}

// until is a lifetime that only a deadline ends.
func until(deadline time.Time) hutch.Lifetime { return hutch.Lifetime{ExpiresAt: deadline} }

func put(t *testing.T, c *Client, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, deadline time.Time) {
	t.Helper()
	if err := c.Put(t.Context(), id, e, h, until(deadline)); err != nil {
		t.Fatalf("put %s: %v", id, err)
	}
}

// waitExit waits until the process has exited.
func waitExit(t *testing.T, f *os.File) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := pidfd.Wait(ctx, f); err != nil {
		t.Fatalf("process did not exit: %v", err)
	}
}

// waitNote waits until the keeper has noted the end of id.
func waitNote(t *testing.T, c *Client, id hutch.SandboxID) Kept {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		k, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if !k.ExitedAt.IsZero() {
			return k
		}
		closeFiles(k.Handles.Procs)
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: end not noted: %+v", id, k.Info)
		}
	}
}

func TestWhatIsPutComesBack(t *testing.T) {
	c, _ := startKeeper(t)
	if h := c.Hello(); h.Version != Version || h.Build != "test" {
		t.Errorf("hello: %+v", h)
	}
	h := sleepHandles(t)
	h.Procs = append(h.Procs, sleepHandles(t).Procs...)
	guest, guestFar := pipe(t)
	link, linkFar := pipe(t)
	h.Guest, h.Link, h.LinkKind = guest, link, runtime.LinkPackets
	deadline := time.Now().Add(time.Hour)
	meta := []byte(strings.Repeat("m", MaxMeta))
	if err := c.PutEntry(t.Context(), Entry{Name: "i1", Epoch: 4, Lifetime: until(deadline), Meta: meta, Handles: h}); err != nil {
		t.Fatal(err)
	}
	_, _ = guestFar.WriteString("guest")
	_, _ = linkFar.WriteString("link")

	for range 2 { // what was handed out stays there
		k, err := c.Get(t.Context(), "i1")
		if err != nil {
			t.Fatal(err)
		}
		if k.Name != "i1" || k.Epoch != 4 || !k.Deadline.Equal(deadline) || string(k.Meta) != string(meta) {
			t.Errorf("got %+v", k.Info)
		}
		if k.Handles.LinkKind != runtime.LinkPackets || len(k.Handles.Procs) != 2 {
			t.Fatalf("handles: %+v", k.Handles)
		}
		for i, f := range k.Handles.Procs {
			if err := pidfd.Signal(f, 0); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		}
		closeFiles(append(k.Handles.Procs, k.Handles.Guest, k.Handles.Link))
	}
	k, err := c.Get(t.Context(), "i1")
	if err != nil {
		t.Fatal(err)
	}
	defer closeFiles(append(k.Handles.Procs, k.Handles.Guest, k.Handles.Link))
	for want, f := range map[string]*os.File{"guest": k.Handles.Guest, "link": k.Handles.Link} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(f, got); err != nil || string(got) != want {
			t.Errorf("%s: read %q, %v", want, got, err)
		}
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFiles([]*os.File{r, w}) })
	return r, w
}

func TestDeadlineKillsWhenNobodyIsAttached(t *testing.T) {
	c, _ := startKeeper(t)
	h := sleepHandles(t)
	second := sleepHandles(t).Procs[0]
	h.Procs = append(h.Procs, second)
	deadline := time.Now().Add(150 * time.Millisecond)
	put(t, c, "i1", 1, h, deadline)
	waitExit(t, h.Procs[0])
	if now := time.Now(); now.Before(deadline) {
		t.Errorf("killed %v early", deadline.Sub(now))
	}
	waitExit(t, second)
	k := waitNote(t, c, "i1")
	if k.KilledAt.Before(deadline) || k.Reason != ReasonDeadline || k.ExitedAt.Before(k.KilledAt) {
		t.Errorf("note: %+v", k.Info)
	}
	if len(k.Files) != 0 || k.Handles.Procs != nil {
		t.Errorf("descriptors of a dead sandbox are kept: %+v", k.Files)
	}
}

func TestLaterDeadlineDoesNotHideAnEarlierOne(t *testing.T) {
	c, _ := startKeeper(t)
	late, soon := sleepHandles(t), sleepHandles(t)
	put(t, c, "late", 1, late, time.Now().Add(time.Hour))
	put(t, c, "soon", 1, soon, time.Now().Add(50*time.Millisecond))
	waitExit(t, soon.Procs[0])
	if !pidfd.Alive(late.Procs[0]) {
		t.Fatal("the one with time left was killed too")
	}
	if err := c.SetLifetime(t.Context(), "late", 2, until(time.Now().Add(50*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	waitExit(t, late.Procs[0])
}

// While a node agent is attached its deadlines are its own, but for a bounded time.
func TestAttachedAgentIsTrustedForTheGrace(t *testing.T) {
	c, dir := startKeeper(t)
	agent := dialKeeper(t, dir)
	if err := agent.Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	within, beyond := sleepHandles(t), sleepHandles(t)
	put(t, c, "within", 1, within, time.Now().Add(-Grace/10))
	put(t, c, "beyond", 1, beyond, time.Now().Add(-Grace-time.Second))
	waitExit(t, beyond.Procs[0])
	if k, err := c.Get(t.Context(), "within"); err != nil || !k.KilledAt.IsZero() || !pidfd.Alive(within.Procs[0]) {
		t.Fatalf("killed although its node agent has time left: %+v, %v", k.Info, err)
	} else {
		closeFiles(k.Handles.Procs)
	}
	gone := time.Now()
	agent.Close()
	waitExit(t, within.Procs[0])
	if k := waitNote(t, c, "within"); k.KilledAt.Before(gone) {
		t.Errorf("killed before its node agent had gone: %+v", k.Info)
	}
}

func TestExitIsNoted(t *testing.T) {
	c, _ := startKeeper(t)
	h := sleepHandles(t)
	put(t, c, "i1", 1, h, time.Now().Add(time.Hour))
	if err := pidfd.Signal(h.Procs[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	k := waitNote(t, c, "i1")
	if !k.KilledAt.IsZero() || k.Reason != "" {
		t.Errorf("an exit of its own is noted as a kill: %+v", k.Info)
	}
	if err := c.SetLifetime(t.Context(), "i1", 1, until(time.Now().Add(time.Hour))); !errors.Is(err, hutch.ErrSandboxGone) {
		t.Errorf("new deadline for a dead sandbox: got %v, want ErrSandboxGone", err)
	}
	if err := c.Put(t.Context(), "i1", 1, sleepHandles(t), until(time.Now().Add(time.Hour))); !errors.Is(err, hutch.ErrSandboxGone) {
		t.Errorf("put over the note: got %v, want ErrSandboxGone", err)
	}
	put(t, c, "i1", 2, sleepHandles(t), time.Now().Add(time.Hour))
	if k, err := c.Get(t.Context(), "i1"); err != nil || !k.ExitedAt.IsZero() || k.Epoch != 2 {
		t.Errorf("next run: %+v, %v", k.Info, err)
	} else {
		closeFiles(k.Handles.Procs)
	}
}

func TestStaleEpochIsRefused(t *testing.T) {
	c, _ := startKeeper(t)
	hour := time.Now().Add(time.Hour)
	put(t, c, "i1", 5, sleepHandles(t), hour)
	if err := c.Put(t.Context(), "i1", 4, sleepHandles(t), until(hour)); !errors.Is(err, hutch.ErrStale) {
		t.Errorf("put: got %v, want ErrStale", err)
	}
	if err := c.SetLifetime(t.Context(), "i1", 4, until(hour)); !errors.Is(err, hutch.ErrStale) {
		t.Errorf("set deadline: got %v, want ErrStale", err)
	}
	if err := c.SetLifetime(t.Context(), "i1", 6, until(hour.Add(time.Hour))); err != nil {
		t.Errorf("set deadline at a newer epoch: %v", err)
	}
	if err := c.Put(t.Context(), "i1", 5, sleepHandles(t), until(hour)); !errors.Is(err, hutch.ErrStale) {
		t.Errorf("put after the epoch was raised: got %v, want ErrStale", err)
	}
	infos, err := c.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].Epoch != 6 || !infos[0].Deadline.Equal(hour.Add(time.Hour)) {
		t.Errorf("after refused calls: %+v, %v", infos, err)
	}
}

func TestPutIsChecked(t *testing.T) {
	c, _ := startKeeper(t)
	hour := time.Now().Add(time.Hour)
	r, _ := pipe(t)
	proc := sleepHandles(t).Procs[0]
	many := make([]*os.File, MaxFiles+1)
	for i := range many {
		many[i] = proc
	}
	for name, e := range map[string]Entry{
		"no process":                 {Name: "i1", Lifetime: until(hour), Handles: runtime.Handles{Guest: r}},
		"a pipe as process":          {Name: "i1", Lifetime: until(hour), Handles: runtime.Handles{Procs: []*os.File{r}}},
		"no name":                    {Lifetime: until(hour), Handles: runtime.Handles{Procs: []*os.File{proc}}},
		"name that is a path":        {Name: "../x", Lifetime: until(hour), Handles: runtime.Handles{Procs: []*os.File{proc}}},
		"no deadline":                {Name: "i1", Lifetime: until(time.Unix(0, 0)), Handles: runtime.Handles{Procs: []*os.File{proc}}},
		"kept for less than no time": {Name: "i1", Lifetime: hutch.Lifetime{ExpiresAt: hour, UsedAt: hour, Idle: -1}, Handles: runtime.Handles{Procs: []*os.File{proc}}},
		"too much meta":              {Name: "i1", Lifetime: until(hour), Meta: make([]byte, MaxMeta+1), Handles: runtime.Handles{Procs: []*os.File{proc}}},
		"too many files":             {Name: "i1", Lifetime: until(hour), Handles: runtime.Handles{Procs: many}},
		"kind of link too long":      {Name: "i1", Lifetime: until(hour), Handles: runtime.Handles{Link: r, LinkKind: runtime.LinkKind(strings.Repeat("k", 40)), Procs: []*os.File{proc}}},
	} {
		if err := c.PutEntry(t.Context(), e); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("%s: got %v, want ErrBadRequest", name, err)
		}
	}
	if infos, err := c.List(t.Context()); err != nil || len(infos) != 0 {
		t.Errorf("something was stored: %+v, %v", infos, err)
	}
}

func TestDeleteForgetsAndEndsNothing(t *testing.T) {
	c, _ := startKeeper(t)
	h := sleepHandles(t)
	put(t, c, "i1", 1, h, time.Now().Add(time.Hour))
	for range 2 {
		if err := c.Delete(t.Context(), "i1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(t.Context(), "i1"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("get: got %v, want ErrNotFound", err)
	}
	if err := c.SetLifetime(t.Context(), "i1", 1, until(time.Now())); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("set deadline: got %v, want ErrNotFound", err)
	}
	if !pidfd.Alive(h.Procs[0]) {
		t.Error("delete killed the sandbox")
	}
}

// A node agent is killed with SIGKILL; the next one finds its sandbox as it was, and the
// sandbox that fell due meanwhile has been ended.
func TestAdoptionAfterKillOfTheAgent(t *testing.T) {
	c, dir := startKeeper(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, roleAgent, dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid int
	if _, scanErr := fmt.Sscanf(line, "stored %d", &pid); err != nil || scanErr != nil {
		t.Fatalf("agent said %q, %v", line, err)
	}
	sandbox, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pidfd.Signal(sandbox, unix.SIGKILL); _ = sandbox.Close() })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	if k := waitNote(t, c, "overdue"); k.Reason != ReasonDeadline {
		t.Errorf("sandbox that fell due: %+v", k.Info)
	}
	next := dialKeeper(t, dir)
	if err := next.Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, err := next.Get(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer closeFiles(append(k.Handles.Procs, k.Handles.Guest))
	word := make([]byte, 4)
	if _, err := io.ReadFull(k.Handles.Guest, word); err != nil || string(word) != "word" {
		t.Errorf("stream of the adopted sandbox: %q, %v", word, err)
	}
	if !pidfd.Alive(k.Handles.Procs[0]) || !pidfd.Alive(sandbox) {
		t.Fatal("the sandbox did not survive its node agent")
	}
	if err := pidfd.Signal(k.Handles.Procs[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitExit(t, sandbox)
}

func TestStartFindsTheRunningKeeper(t *testing.T) {
	c, dir := startKeeper(t)
	again, err := Start(t.Context(), dir, "/nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Hello().PID != c.Hello().PID {
		t.Errorf("two keepers: %d and %d", again.Hello().PID, c.Hello().PID)
	}
	if err := Serve(t.Context(), Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, daemon.ErrRunning) {
		t.Errorf("second keeper: got %v, want ErrRunning", err)
	}
	info, err := os.Stat(filepath.Join(dir, socketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info, err)
	}
}

// A keeper that dies takes the stored descriptors with it; the client must learn that.
func TestClientLearnsOfTheKeepersEnd(t *testing.T) {
	c, dir := startKeeper(t)
	put(t, c, "i1", 1, sleepHandles(t), time.Now().Add(time.Hour))
	if err := unix.Kill(c.Hello().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if _, err := c.List(t.Context()); !errors.Is(err, hutch.ErrUnavailable) {
		t.Errorf("list: got %v, want ErrUnavailable", err)
	}
	exe, _ := os.Executable()
	next, err := Start(t.Context(), dir, exe, roleKeeper, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if infos, err := next.List(t.Context()); err != nil || len(infos) != 0 {
		t.Errorf("new keeper: %+v, %v", infos, err)
	}
	if err := next.Stop(t.Context(), true); err != nil {
		t.Error(err)
	}
	<-next.Done()
}

// SIGTERM must not orphan sandboxes: the keeper leaves after the last one.
func TestTermLeavesWithTheLastSandbox(t *testing.T) {
	c, dir := startKeeper(t)
	keeper, err := pidfd.Open(c.Hello().PID)
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	h := sleepHandles(t)
	put(t, c, "i1", 1, h, time.Now().Add(time.Hour))
	if err := pidfd.Signal(keeper, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// It still serves, and takes what a node agent has to put.
	other := sleepHandles(t)
	put(t, c, "i2", 1, other, time.Now().Add(time.Hour))
	if err := c.Delete(t.Context(), "i2"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetLifetime(t.Context(), "i1", 1, until(time.Now().Add(20*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	waitExit(t, h.Procs[0])
	waitExit(t, keeper)
	if _, err := Dial(t.Context(), dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dial: got %v, want ErrNotExist", err)
	}
}

func TestStopKills(t *testing.T) {
	c, _ := startKeeper(t)
	h := sleepHandles(t)
	put(t, c, "i1", 1, h, time.Now().Add(time.Hour))
	if err := c.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	waitExit(t, h.Procs[0])
	<-c.Done()
}

func TestListComesInPages(t *testing.T) {
	c, _ := startKeeper(t)
	h := sleepHandles(t)
	const n = 2*pageSize + 3
	for i := range n {
		put(t, c, hutch.SandboxID(fmt.Sprintf("i%04d", i)), 1, h, time.Now().Add(time.Hour))
	}
	infos, err := c.List(t.Context())
	if err != nil || len(infos) != n {
		t.Fatalf("%d entries, %v; want %d", len(infos), err, n)
	}
	for i, info := range infos {
		if want := hutch.SandboxID(fmt.Sprintf("i%04d", i)); info.Name != want {
			t.Fatalf("entry %d is %s", i, info.Name)
		}
	}
}
