package e2bapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// TestGoneFromEveryCall: a sandbox that does not run is a 502 with the same body, whichever
// of the agent's calls is made, and why ever it does not run.
func TestGoneFromEveryCall(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"killed": (*bench).kill,
		"paused": func(b *bench) { b.mu.Lock(); b.sandboxes[b.sb].State = hutch.StatePaused; b.mu.Unlock() },
		"being killed": func(b *bench) {
			b.mu.Lock()
			b.sandboxes[b.sb].Transition = hutch.Killing
			b.mu.Unlock()
		},
		"never there": func(b *bench) { b.sb = hutch.SandboxID(id.NewSandbox()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			end(b)
			for _, c := range []struct{ method, path, typ string }{
				{"GET", "/health", ""},
				{"GET", "/metrics", ""},
				{"GET", "/envs", ""},
				{"GET", "/files?path=x", ""},
				{"POST", "/files?path=x", "application/octet-stream"},
				{"POST", "/files/compose", "application/json"},
				{"POST", "/process.Process/List", "application/json"},
				{"POST", "/process.Process/SendSignal", "application/json"},
				{"POST", "/process.Process/Start", "application/connect+json"},
				{"POST", "/process.Process/Connect", "application/connect+json"},
				{"POST", "/filesystem.Filesystem/Stat", "application/json"},
				{"POST", "/filesystem.Filesystem/WatchDir", "application/connect+json"},
				{"POST", "/filesystem.Filesystem/GetWatcherEvents", "application/json"},
			} {
				r := b.agent(c.method, c.path, strings.NewReader("{}"), "Content-Type", c.typ)
				if r.status != 502 || !sameJSON(t, string(r.body), fmt.Sprintf(`{"sandboxId":%q,"message":"The sandbox was not found","code":502}`, b.sb)) {
					t.Errorf("%s %s: got %d %s", c.method, c.path, r.status, r.body)
				}
			}
		})
	}
}

// lateRecord is the sandboxes of a world in which it takes a few looks after a sandbox's end
// until its record tells of it.
type lateRecord struct {
	Sandboxes
	w     *world
	mu    sync.Mutex
	ended hutch.SandboxID
	looks int
}

func (l *lateRecord) end(id hutch.SandboxID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended, l.looks = id, 3
}

func (l *lateRecord) SandboxByID(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	l.mu.Lock()
	due := false
	if id == l.ended && l.looks > 0 {
		l.looks--
		due = l.looks == 0
	}
	l.mu.Unlock()
	if due {
		if _, err := l.w.KillSandbox(ctx, testProject, id); err != nil {
			return hutch.Sandbox{}, err
		}
	}
	return l.Sandboxes.SandboxByID(ctx, id)
}

// dying is content that breaks off after its first bytes, since the sandbox has ended.
type dying struct {
	io.ReadCloser
	end func()
	n   int
}

func (d *dying) Read(p []byte) (int, error) {
	if d.n == 0 {
		d.end()
		return 0, hutch.ErrSandboxGone
	}
	n, err := d.ReadCloser.Read(p[:min(len(p), d.n)])
	d.n -= n
	return n, err
}

// TestDeathBreaksDownloads: one that the end of the sandbox cuts short does not look whole,
// and by then health is a 502, though the record of the end comes late.
func TestDeathBreaksDownloads(t *testing.T) {
	for name, headers := range map[string][]string{"as it is": nil, "packed": {"Accept-Encoding", "gzip"}, "a part": {"Range", "bytes=10-"}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.put("f", strings.Repeat("0123456789", 100_000))
			late := &lateRecord{Sandboxes: b.world, w: b.world}
			b.api.svc.Sandboxes = late
			b.reading = func(r io.ReadCloser) io.ReadCloser { return &dying{r, func() { late.end(b.sb) }, 300_000} }
			req, err := http.NewRequestWithContext(t.Context(), "GET", b.srv.URL+"/files?path=f", nil)
			if err != nil {
				t.Fatal(err)
			}
			all := b.address(headers...)
			for i := 0; i+1 < len(all); i += 2 {
				req.Header.Set(all[i], all[i+1])
			}
			res, err := (&http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}).Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			if err == nil {
				t.Error("it came to an end as if it were whole")
			}
			if r := b.agent("GET", "/health", nil); r.status != 502 {
				t.Errorf("health when it broke off: %d", r.status)
			}
		})
	}
}

func TestDeathEndsUploads(t *testing.T) {
	body, typ := form(`name="file"; filename="f"`, "content")
	for typ, body := range map[string]string{typ: body, "application/octet-stream": "content"} {
		b := newBench(t)
		late := &lateRecord{Sandboxes: b.world, w: b.world}
		b.api.svc.Sandboxes = late
		b.writing = func() error { late.end(b.sb); return hutch.ErrSandboxGone }
		r := b.agent("POST", "/files?path=f", strings.NewReader(body), "Content-Type", typ)
		var g goneView
		r.json(t, &g)
		if r.status != 502 || g.Code != 502 || g.SandboxID != b.sb {
			t.Errorf("%s: got %d %s", typ, r.status, r.body)
		}
	}
}

// TestUploaderLeaves: what a client who leaves has sent is not taken for a whole file.
func TestUploaderLeaves(t *testing.T) {
	for _, typ := range []string{"application/octet-stream", "multipart/form-data; boundary=bound"} {
		b := newBench(t)
		b.put("f", "old")
		begun := make(chan struct{})
		b.writing = func() error { close(begun); return nil }
		pipe, client := io.Pipe()
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", b.srv.URL+"/files?path=f", pipe)
		if err != nil {
			t.Fatal(err)
		}
		all := b.address("Content-Type", typ)
		for i := 0; i+1 < len(all); i += 2 {
			req.Header.Set(all[i], all[i+1])
		}
		done := make(chan error, 1)
		go func() {
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				err = fmt.Errorf("answered %s", res.Status)
				_ = res.Body.Close()
			}
			done <- err
		}()
		sent := "new and not whole"
		if strings.HasPrefix(typ, "multipart") {
			sent = "--bound\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n" + sent
		}
		if _, err := io.WriteString(client, sent); err != nil {
			t.Fatal(err)
		}
		<-begun
		leave()
		_ = client.CloseWithError(context.Canceled)
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v", typ, err)
		}
		b.srv.Close() // returns once every request has been served
		if got, err := os.ReadFile(b.real("/home/user/f")); err != nil || string(got) != "old" {
			t.Errorf("%s: there is %q, %v", typ, got, err)
		}
	}
}
