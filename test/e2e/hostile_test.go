package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// hostileAgent builds the guest agent that does its worst, and returns it with its modes.
func hostileAgent(t *testing.T) (program []byte, modes []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hostile")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the hostile agent: %v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return program, strings.Fields(string(out))
}

// replaceAgent makes the hostile agent the one that the node talks to.
func (s *server) replaceAgent(t *testing.T, program []byte, mode string) hutch.SandboxID {
	t.Helper()
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128), CPU: ptr(0.2)}).ID
	s.put(t, sb, "/root/hostile", program)
	s.out(t, sb, "chmod +x /root/hostile")
	// It answers for itself from now on, or not at all.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.client.StartExec(ctx, sb, api.ExecRequest{Cmd: "exec /root/hostile " + mode, Background: true}); err != nil {
		t.Logf("%s began before its start was answered: %v", mode, err)
	}
	return sb
}

// figure is the value of one of the server's metrics.
func (s *server) figure(t *testing.T, name string) float64 {
	t.Helper()
	var v float64
	for line := range strings.Lines(s.ask(t, http.MethodGet, "/metrics", "").want(http.StatusOK).body) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// lasting are the calls that may take as long as there is something to do, so that a liar who
// says that it is well can have them wait until their callers leave, or the sandbox ends.
var lasting = map[string]bool{
	"read": true, "list": true, "write": true, "move": true, "remove": true, "archive": true, "unpack": true, "search": true, "E2B file": true,
}

// everyCall asks the sandbox for everything a caller can ask for, at once. It returns which
// calls had not ended in a minute, but for those that may last, which their callers break off
// after ten seconds.
func (s *server) everyCall(ctx context.Context, sb hutch.SandboxID) (late []string, err error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	visitor := &http.Client{Transport: transport}
	caller, err := client.New(s.base, client.WithKey(s.key), client.WithHTTPClient(visitor), client.WithRetries(0))
	if err != nil {
		return nil, err
	}
	f := client.File{Sandbox: sb, Path: "/etc/hostname"}
	dir := client.File{Sandbox: sb, Path: "/etc"}
	get := func(path string) func(context.Context) error {
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+s.key)
			req.Header.Set("E2b-Sandbox-Id", string(sb))
			res, err := visitor.Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 16<<20))
			return err
		}
	}
	calls := map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := caller.Exec(ctx, sb, api.ExecRequest{Cmd: "true", TimeoutSeconds: ptr(1.0)})
			return err
		},
		"stream": func(ctx context.Context) error {
			_, err := caller.Stream(ctx, sb, api.ExecRequest{Cmd: "yes", TimeoutSeconds: ptr(1.0)}, client.StreamOptions{}, func(client.Output) error { return nil })
			return err
		},
		"session": func(ctx context.Context) error {
			_, err := caller.Exec(ctx, sb, api.ExecRequest{Cmd: "true", Shell: "x", TimeoutSeconds: ptr(1.0)})
			return err
		},
		"stat": func(ctx context.Context) error { _, err := caller.Stat(ctx, f); return err },
		"read": func(ctx context.Context) error { _, err := caller.ReadFile(ctx, f, io.Discard); return err },
		"list": func(ctx context.Context) error {
			for _, err := range caller.Files(ctx, dir, 3) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"write": func(ctx context.Context) error {
			_, err := caller.WriteFile(ctx, client.File{Sandbox: sb, Path: "/tmp/x"}, bytes.NewReader(make([]byte, 3<<20)), client.WriteOptions{})
			return err
		},
		"mkdir": func(ctx context.Context) error {
			_, err := caller.MakeDir(ctx, sb, api.MakeDirectory{Path: "/tmp/d"})
			return err
		},
		"move": func(ctx context.Context) error {
			_, err := caller.MoveFile(ctx, sb, api.MoveFile{From: "/tmp/x", To: "/tmp/y"})
			return err
		},
		"remove": func(ctx context.Context) error { return caller.RemoveFile(ctx, f, true) },
		"archive": func(ctx context.Context) error {
			return caller.ReadArchive(ctx, dir, client.ArchiveOptions{}, io.Discard)
		},
		"unpack": func(ctx context.Context) error {
			_, err := caller.WriteArchive(ctx, dir, bytes.NewReader(make([]byte, 1<<20)), false)
			return err
		},
		"search": func(ctx context.Context) error {
			_, err := caller.Search(ctx, dir, client.SearchOptions{Text: "x"}, func(api.FileMatch) error { return nil })
			return err
		},
		"ports":       func(ctx context.Context) error { _, err := caller.Ports(ctx, sb); return err },
		"shells":      func(ctx context.Context) error { _, err := caller.Shells(ctx, sb); return err },
		"usage":       func(ctx context.Context) error { _, err := caller.Usage(ctx, sb); return err },
		"metrics":     get("/v1/sandboxes/" + string(sb) + "/metrics"),
		"E2B file":    get("/files?path=/etc/hostname&username=root"),
		"E2B metrics": get("/metrics"),
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, call := range calls {
		wg.Go(func() {
			patience := time.Minute
			if lasting[name] {
				patience = 10 * time.Second
			}
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			// What is answered does not matter: the caller asked a liar.
			if err := call(ctx); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !lasting[name] {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, name)
			}
		})
	}
	wg.Wait()
	return late, nil
}

// Root inside can put itself in the agent's place. Whatever it then says, calls end, the server
// does not grow, its log stays clean, others are served, and the sandbox can be killed.
func TestHostileGuest(t *testing.T) {
	program, modes := hostileAgent(t)
	t.Setenv("GOGC", "10") // so that what is garbage is soon gone from the figures
	b := besiege(t)
	goroutines, files := b.figure(t, "go_goroutines"), b.openFiles(t)
	before := b.peakMemory(t)
	if os.Getenv("HUTCH_SOAK") == "" {
		// One of each kind that the others are variants of.
		some := []string{"bomb", "endless", "garbage", "lengths", "lies", "noise", "silent", "streams", "talks", "trailers"}
		for _, mode := range some {
			if !slices.Contains(modes, mode) {
				t.Fatalf("there is no behaviour %s: %v", mode, modes)
			}
		}
		modes = some
	}
	boxes := make([]hutch.SandboxID, len(modes))
	var wg sync.WaitGroup
	turns := make(chan struct{}, 3)
	for i, mode := range modes {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			boxes[i] = b.replaceAgent(t, program, mode)
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i, sb := range boxes {
		wg.Go(func() {
			b.awaitLiar(t, sb)
			began := time.Now()
			defer func() {
				t.Logf("%s: every call had ended after %v", modes[i], time.Since(began).Round(time.Millisecond))
			}()
			if late, err := b.everyCall(t.Context(), sb); err != nil || len(late) > 0 {
				t.Errorf("%s: %v; callers still waited for %q", modes[i], err, late)
			}
		})
	}
	// Meanwhile the neighbour works.
	for range 5 {
		within(t, 5*time.Second, "a neighbour's command", func() { b.out(t, b.neighbour, "cat /srv/secret") })
	}
	wg.Wait()
	if grown := b.peakMemory(t) - before; grown > 512<<20 {
		t.Errorf("the server's peak grew by %d MiB", grown>>20)
	}
	t.Logf("the server's peak grew by %d MiB", (b.peakMemory(t)-before)>>20)
	for i, sb := range boxes {
		within(t, grace, "killing "+modes[i], func() {
			if err := b.client.Kill(t.Context(), sb); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
				t.Errorf("kill %s: %v", modes[i], err)
			}
		})
	}
	var g float64
	var more string
	defer func() { t.Logf("%v goroutines of %v; more open files: %q", g, goroutines, more) }()
	eventually(t, "the server's goroutines and descriptors are what they were", func() bool {
		http.DefaultClient.CloseIdleConnections()
		g, more = b.figure(t, "go_goroutines"), b.openFiles(t).beyond(files)
		return g <= goroutines+8 && more == "" // some of its callers' connections
	})
	eventually(t, "the server's heap is small", func() bool { return b.figure(t, "go_memstats_heap_alloc_bytes") < 64<<20 })
	b.unharmed(t)
}

// awaitLiar returns once the real agent does not answer any more.
func (s *server) awaitLiar(t *testing.T, sb hutch.SandboxID) {
	eventually(t, "the agent is replaced", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		res, err := s.client.Exec(ctx, sb, api.ExecRequest{Cmd: "echo it is me"})
		return err != nil || res.Stdout != "it is me\n"
	})
}

// A liar's archive is unpacked by the command line where its caller said, and nowhere else.
func TestHostileArchives(t *testing.T) {
	program, _ := hostileAgent(t)
	b := besiege(t)
	sb := b.replaceAgent(t, program, "archives")
	b.awaitLiar(t, sb)
	into := t.TempDir()
	dest := filepath.Join(into, "deep", "dest")
	if err := os.MkdirAll(dest, 0o755); err != nil {
		t.Fatal(err)
	}
	_, errOut, err := b.hutchCLI(t, "cp", string(sb)+":/srv/tree", dest)
	t.Logf("%v: %.300s", err, errOut)
	if left, _ := filepath.Glob(filepath.Join(into, "*"+mark+"*")); len(left) > 0 {
		t.Errorf("outside of %s there is %q", dest, left)
	}
	if left, _ := filepath.Glob(filepath.Join(into, "deep", "*"+mark+"*")); len(left) > 0 {
		t.Errorf("outside of %s there is %q", dest, left)
	}
	b.unharmed(t)
}
