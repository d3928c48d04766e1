package client_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func newFake(t *testing.T) (*httpapitest.Fake, *client.Client, hutch.SandboxID) {
	t.Helper()
	f := httpapitest.New()
	c := newClient(t, f.Server(t, httpapi.Config{}).URL)
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	return f, c, sb.ID
}

func TestSearchFindsAndEnds(t *testing.T) {
	f, c, sb := newFake(t)
	f.Inside.Put("/src/a.go", []byte("x\nneedle\n"))
	f.Inside.Put("/src/b.go", []byte("needle"))
	var found []string
	end, err := c.Search(t.Context(), client.File{Sandbox: sb, Path: "/src"}, client.SearchOptions{Text: "needle", Limit: 1}, func(m api.FileMatch) error {
		found = append(found, m.Path)
		return nil
	})
	if err != nil || len(found) != 1 || found[0] != "/src/a.go" || !end.Truncated {
		t.Errorf("found %v, %+v, %v", found, end, err)
	}
	stop := errors.New("enough")
	if _, err := c.Search(t.Context(), client.File{Sandbox: sb, Path: "/src"}, client.SearchOptions{Name: "*"}, func(api.FileMatch) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of sink became %v", err)
	}
}

func TestBuildsAreFollowedOverBreaks(t *testing.T) {
	fake, fr, url := newFront(t, nil)
	c := newClient(t, url, (&clock{}).option(0))
	b, err := c.BuildTemplate(t.Context(), api.BuildTemplate{Name: "x", ImageRef: "registry.example/x:1"})
	if err != nil {
		t.Fatal(err)
	}
	fake.EndBuild(b.ID, "", "one", "two")
	fr.mu.Lock()
	broken := false
	fr.interfere = func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if broken || !strings.HasSuffix(r.URL.Path, "/logs") {
			return false
		}
		broken = true
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("data: one\n\n"))
		return true // without an end
	}
	fr.mu.Unlock()
	var lines []string
	done, err := c.FollowBuild(t.Context(), b.ID, func(s string) error {
		lines = append(lines, s)
		return nil
	})
	if err != nil || strings.Join(lines, " ") != "one two" || done.Status != "done" {
		t.Errorf("followed %q, %+v, %v", lines, done, err)
	}
	list, err := c.Builds(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != b.ID {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := c.DeleteTemplate(t.Context(), "x"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("deleting what is not there: %v", err)
	}
}

func TestSettingsPortsAndAudit(t *testing.T) {
	f, c, sb := newFake(t)
	private := true
	got, err := c.Update(t.Context(), sb, api.UpdateSandbox{Metadata: map[string]string{"a": "b"}, PrivatePorts: &private})
	if err != nil || got.Metadata["a"] != "b" || !got.PrivatePorts {
		t.Errorf("updated %+v, %v", got, err)
	}
	p, err := c.SetPort(t.Context(), sb, api.SetPort{Port: 3000, Label: "web"})
	if err != nil || p.Label != "web" {
		t.Errorf("set %+v, %v", p, err)
	}
	if err := c.UnsetPort(t.Context(), sb, 3000); err != nil {
		t.Error(err)
	}
	size := make(chan hutch.TerminalSize, 1)
	f.Program("tty", func(p *httpapitest.Process) int { size <- <-p.Resized; return 0 })
	x, err := c.StartExec(t.Context(), sb, api.ExecRequest{Cmd: "tty", Terminal: &api.Terminal{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Resize(t.Context(), x.ExecID, api.Terminal{Rows: 3, Cols: 4}); err != nil {
		t.Fatal(err)
	}
	if s := <-size; s != (hutch.TerminalSize{Rows: 3, Cols: 4}) {
		t.Errorf("resized to %+v", s)
	}
	entries, err := c.Audit(t.Context(), hutch.AuditQuery{Since: time.Now().Add(-time.Hour), Limit: 3})
	if err != nil || len(entries) != 3 || entries[0].Path != "/v1/execs/{exec}/resize" {
		t.Errorf("audit %+v, %v", entries, err)
	}
	stats, err := c.BootStats(t.Context())
	if err != nil || len(stats) != 1 || stats[0].Count != 3 {
		t.Errorf("boots %+v, %v", stats, err)
	}
}
