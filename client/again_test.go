package client_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// A command that is silent for hours is followed over more breaks than there are retries, if
// each connection held for long, and over no more if none did.
func TestSilentCommandsAreFollowedOverManyBreaks(t *testing.T) {
	const breaks, retries = 5, 2
	for name, c := range map[string]struct {
		lasts time.Duration // of each connection
		works bool
	}{
		"long":  {3 * time.Minute, true},
		"short": {time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake, f, url := newFront(t, nil)
			stop := make(chan struct{})
			fake.Program("quiet", func(*httpapitest.Process) int { <-stop; return 7 })
			var now time.Time
			cl := newClient(t, url, (&clock{}).option(0), client.WithRetries(retries), client.WithNow(func() time.Time {
				now = now.Add(c.lasts)
				return now
			}))
			sb, err := cl.CreateSandbox(t.Context(), api.CreateSandbox{})
			if err != nil {
				t.Fatal(err)
			}
			x, err := cl.StartExec(t.Context(), sb.ID, api.ExecRequest{Cmd: "quiet"})
			if err != nil {
				t.Fatal(err)
			}
			left := breaks
			f.interfere = func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if left == 0 {
					return false
				}
				if left--; left == 0 {
					close(stop)
				}
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				return hangUp(w, r)
			}
			end, err := cl.Follow(t.Context(), x.ExecID, client.StreamOptions{}, func(client.Output) error { return nil })
			if c.works && (err != nil || end.ExitCode != 7) {
				t.Errorf("ended %+v, %v with %d breaks to come", end, err, left)
			}
			if !c.works && (err == nil || left != breaks-retries-1) {
				t.Errorf("ended %+v, %v with %d breaks to come", end, err, left)
			}
			if left > 0 {
				close(stop)
			}
		})
	}
}

// A file that must be new is not written again after a lost answer: its own would be in the way.
func TestExclusiveWritesAreNotRepeatedWhenTheAnswerIsLost(t *testing.T) {
	fake, f, url := newFront(t, nil)
	c := newClient(t, url, (&clock{}).option(0))
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	puts := 0
	f.interfere = func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if puts++; puts > 1 {
			return false
		}
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		return hangUp(w, r)
	}
	_, err = c.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/new"}, strings.NewReader("x"), client.WriteOptions{Excl: true})
	if !client.Lost(err) || errors.Is(err, hutch.ErrConflict) || puts != 1 {
		t.Errorf("after %d tries: %v; want the answer said to be lost", puts, err)
	}
	if got := fake.Inside.Data("/new"); string(got) != "x" {
		t.Errorf("the file is %q", got)
	}
	// One that was refused before it began is tried again.
	f.interfere = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		puts++
		return puts == 2 && refuse(w, 503, hutch.CodeUnavailable, "")
	}
	if _, err := c.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/newer"}, strings.NewReader("x"), client.WriteOptions{Excl: true}); err != nil || puts != 3 {
		t.Errorf("after %d tries: %v", puts, err)
	}
}

func TestListingsCanBeRangedOverAgain(t *testing.T) {
	fake, c, _ := newFake(t)
	for range 4 {
		if _, err := c.CreateSandbox(t.Context(), api.CreateSandbox{}); err != nil {
			t.Fatal(err)
		}
	}
	list := c.Sandboxes(t.Context(), client.SandboxFilter{PageSize: 2})
	for range 2 {
		n := 0
		for _, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 5 {
			t.Errorf("%d sandboxes, want 5", n)
		}
	}
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	const files = hutch.DefaultListLimit + 3
	for i := range files {
		fake.Inside.Put("/many/"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+strings.Repeat("y", i/50), nil)
	}
	all := c.Files(t.Context(), client.File{Sandbox: sb.ID, Path: "/many"}, 0)
	count := func() (n int) {
		for _, err := range all {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if once, again := count(), count(); once < hutch.DefaultListLimit || once != again {
		t.Errorf("%d files, and %d the second time", once, again)
	}
}

// How long a terminal is kept is told to the fraction of a second.
func TestTerminalsAreKeptForFractionsOfASecond(t *testing.T) {
	var asked string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("keep_seconds")
		refuse(w, 404, hutch.CodeNotFound, "")
	}))
	defer s.Close()
	keep := 500 * time.Millisecond
	if _, err := newClient(t, s.URL).OpenTerminal(t.Context(), "i1", client.TerminalOptions{Keep: &keep}); !errors.Is(err, hutch.ErrNotFound) || asked != "0.5" {
		t.Errorf("%v; asked for %q", err, asked)
	}
}
