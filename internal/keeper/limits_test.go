package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/fdpass"
	"hutch.dev/hutch/internal/x/pidfd"
)

// inProcess returns a Keeper that runs here until the test ends.
func inProcess(t testing.TB, maxFiles int) *Keeper {
	k, stop := runKeeper(t, maxFiles)
	t.Cleanup(stop)
	return k
}

// runKeeper returns a Keeper that runs here and what stops it.
func runKeeper(t testing.TB, maxFiles int) (*Keeper, func()) {
	t.Helper()
	k, err := newKeeper(slog.New(slog.DiscardHandler), maxFiles)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	return k, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
}

// store puts an entry whose one process is f.
func store(k *Keeper, id hutch.SandboxID, e hutch.Epoch, f *os.File) error {
	fd, err := fdpass.Dup(f)
	if err != nil {
		return err
	}
	infos := []FileInfo{{Label: "proc.0", Process: true}}
	files, err := hold(infos, []int{fd})
	if err != nil {
		return err
	}
	return k.put(putRequest{Name: id, Epoch: e, Deadline: time.Now().Add(time.Hour).UnixNano(), Files: infos}, files)
}

func TestFilesAreBounded(t *testing.T) {
	f := sleepHandles(t).Procs[0]
	before := openFiles(t)
	k, stop := runKeeper(t, 4) // two entries: a file and a watch each
	for i, id := range []hutch.SandboxID{"i1", "i2"} {
		if err := store(k, id, 1, f); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	if err := store(k, "i3", 1, f); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("third entry: got %v, want ErrNoCapacity", err)
	}
	if err := store(k, "i2", 2, f); err != nil {
		t.Errorf("replacing an entry needs no room: %v", err)
	}
	for _, id := range []hutch.SandboxID{"i1", "i2"} {
		k.delete(id)
	}
	if err := store(k, "i3", 1, f); err != nil {
		t.Errorf("after making room: %v", err)
	}
	stop()
	if err := store(k, "i4", 1, f); !errors.Is(err, hutch.ErrUnavailable) {
		t.Errorf("after the end: got %v, want ErrUnavailable", err)
	}
	eventually(t, "every descriptor is closed", func() bool { return openFiles(t) <= before })
}

func TestEntriesAreBounded(t *testing.T) {
	k := inProcess(t, 2*MaxEntries+2)
	hour := time.Now().Add(time.Hour).UnixNano()
	k.mu.Lock()
	for i := range MaxEntries {
		k.entries[hutch.SandboxID(fmt.Sprint("i", i))] = &entry{deadline: hour, stop: func() {}}
	}
	k.mu.Unlock()
	f := sleepHandles(t).Procs[0]
	if err := store(k, "more", 1, f); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("all alive: got %v, want ErrNoCapacity", err)
	}
	k.mu.Lock()
	k.entries["i7"].exitedAt, k.entries["i8"].exitedAt = 1, 2
	k.mu.Unlock()
	if err := store(k, "more", 1, f); err != nil {
		t.Errorf("with notes on the dead: %v", err)
	}
	if _, _, err := k.get("i7"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("the oldest note: got %v, want ErrNotFound", err)
	}
	if _, _, err := k.get("i8"); err != nil {
		t.Errorf("the other note: %v", err)
	}
}

// A kill after which the process lives on is tried again.
func TestKillIsTriedAgain(t *testing.T) {
	k := inProcess(t, 100)
	f := sleepHandles(t).Procs[0]
	if err := store(k, "i1", 1, f); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	e := k.entries["i1"]
	// As if a first kill had been without effect.
	e.killedAt, e.triedAt, e.reason = 1, time.Now().Add(-killRetry).UnixNano(), ReasonDeadline
	k.rearmLocked()
	k.mu.Unlock()
	waitExit(t, f)
}

func TestAlarm(t *testing.T) {
	a, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	rang := make(chan error)
	go func() {
		for {
			err := a.wait()
			rang <- err
			if err != nil {
				return
			}
		}
	}()
	for name, at := range map[string]int64{
		"past":     1,
		"negative": -5,
		"soon":     time.Now().Add(20 * time.Millisecond).UnixNano(),
	} {
		if err := a.set(at); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := <-rang; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if now := time.Now().UnixNano(); now < at {
			t.Errorf("%s: rang %v early", name, time.Duration(at-now))
		}
	}
	a.close()
	if err := <-rang; !errors.Is(err, os.ErrClosed) {
		t.Errorf("after close: got %v, want ErrClosed", err)
	}
}

// Whatever the handler is told, it answers, stores nothing that is not valid, and
// keeps no descriptor.
func FuzzHandle(f *testing.F) {
	for _, op := range []string{opPut, opSetDeadline, opGet, opList, opDelete, opAttach, opStop, "?"} {
		f.Add(op, []byte(`{"name":"i1","epoch":1,"deadline":99999999999999999,"files":[{"label":"proc.0","process":true}]}`), 1)
		f.Add(op, []byte(`{"name":"`+strings.Repeat("x", 100)+`","deadline":-1}`), 0)
		f.Add(op, []byte(`[]`), 3)
	}
	var all []*os.File // testing.F takes no new clean-ups while it fuzzes
	f.Cleanup(func() {
		for _, p := range all {
			_ = pidfd.Signal(p, unix.SIGKILL)
		}
	})
	fresh := func() *os.File {
		all = append(all, sleepHandles(nil).Procs[0])
		return all[len(all)-1]
	}
	proc := fresh()
	k := inProcess(f, 1000)
	s := newFuzzServer(f, k)
	f.Fuzz(func(t *testing.T, op string, body []byte, files int) {
		if !json.Valid(body) || op == "" || len(op) > 32 || files < 0 || files > 4 || len(body) > 1000 {
			return
		}
		many := make([]*os.File, files)
		for i := range many {
			many[i] = proc
		}
		fds, err := s.Call(t.Context(), op, json.RawMessage(body), nil, many...)
		fdpass.CloseAll(fds)
		if errors.Is(err, fdpass.ErrClosed) {
			t.Fatalf("%s %s: the session ended", op, body)
		}
		for _, i := range k.list("", 100) {
			if checkName(i.Name) != nil || i.ExitedAt.IsZero() && len(i.Files) == 0 {
				t.Fatalf("stored %+v", i)
			}
		}
		if op == opStop || !pidfd.Alive(proc) { // it was overdue, or all were told to end
			proc = fresh()
		}
	})
}

// newFuzzServer serves k on a socket and connects to it.
func newFuzzServer(f *testing.F, k *Keeper) *fdpass.Client {
	f.Helper()
	path := f.TempDir() + "/s"
	l, err := fdpass.Listen(path)
	if err != nil {
		f.Fatal(err)
	}
	srv := fdpass.Server{Hello: fdpass.Hello{Service: service}, Handler: k, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ctx, l) }()
	f.Cleanup(func() { cancel(); <-done })
	c, err := fdpass.Dial(f.Context(), path, service)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	return c
}

// The keeper's size with as many sandboxes as a large host has.
func TestFootprint(t *testing.T) {
	c, _ := startKeeper(t)
	h := sleepHandles(t)
	h.Guest, _ = pipe(t)
	h.Link, _ = pipe(t)
	h.LinkKind = runtime.LinkPackets
	h.Procs = append(h.Procs, h.Procs[0])
	before := rss(t, c.Hello().PID)
	const n = 500
	began := time.Now()
	for i := range n {
		put(t, c, hutch.SandboxID(fmt.Sprint("i", i)), 1, h, time.Now().Add(time.Hour))
	}
	each := time.Since(began) / n
	after := rss(t, c.Hello().PID)
	t.Logf("%d entries of 4 files: RSS %d KiB (empty: %d), %v a put", n, after, before, each)
	if perEntry := (after - before) / n; perEntry > 64 {
		t.Errorf("an entry takes %d KiB", perEntry)
	}
	if threads := entriesOf(t, fmt.Sprintf("/proc/%d/task", c.Hello().PID)); threads > 40 {
		t.Errorf("%d threads for %d entries", threads, n)
	}
}

// rss is a process's resident memory in KiB.
func rss(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var kib int
		if _, err := fmt.Sscanf(string(line), "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func openFiles(t testing.TB) int { return entriesOf(t, "/proc/self/fd") }

func entriesOf(t testing.TB, dir string) int {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// eventually polls a condition, for ten seconds at most.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}
