package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/id"
)

// The fault walk: the server is killed at each failpoint, in the middle of what reaches it,
// and started again. Then what was asked for is asked for again under the same key, as a
// client does whose connection broke, and what must be true of every record, of the host and
// of the sandboxes that had nothing to do with it is looked at (fault_truth_test.go).
//
// Which points there are says internal/x/failpoint; in which story each is reached,
// fault_stories_test.go. `make fault` walks all of them, `make test` the few that are marked.

// story is something that a server can die in.
type story struct {
	name string
	// ready sets the scene on a server that is well. What it makes it says to w.
	ready func(w *walk)
	// act is what the server dies in. It runs beside the death, and may be cut off; nil: it
	// dies while it starts.
	act func(w *walk)
	// down is done while there is no server.
	down func(w *walk)
	// check says what must have become of it. Everything else is looked at after it.
	check func(w *walk)
	stops []stop
	// with are flags of the server that dies, beside those that it always has.
	with func(w *walk) []string
	// alone: on a server of its own, without sandboxes that stand by. What a keeper's
	// or a gateway's death costs is no business of theirs.
	alone bool
	// scene comes before the first start of a server that is alone.
	scene func(w *walk)
	// walk is the whole way, for those in which it is not the server that dies at the point.
	walk func(w *walk)
}

// stop is a failpoint in a story.
type stop struct {
	at    failpoint.Name
	nth   int            // 0 = the first time
	hold  failpoint.Name // nobody gets past here meanwhile
	short bool           // also in the short walk
	after bool           // what was asked for is done by then: it must hold without being asked for again

	holdNth int // of hold: from the how manieth time on
}

func (s stop) String() string {
	out := string(s.at)
	if s.nth > 1 {
		out += fmt.Sprintf("@%d", s.nth)
	}
	if s.hold != "" {
		out += "-without-" + string(s.hold)
	}
	return out
}

func (s stop) args() []string {
	die := string(s.at)
	if s.nth > 1 {
		die += fmt.Sprintf("@%d", s.nth)
	}
	hold := string(s.hold)
	if s.holdNth > 1 {
		hold += fmt.Sprintf("@%d", s.holdNth)
	}
	return []string{"--die-at", die, "--hold-at", hold}
}

// walk is one server's way through stories.
type walk struct {
	*server
	t *testing.T

	story story
	stop  stop
	mark  string // names what this stop makes, and begins the keys of its calls
	box   hutch.SandboxID
	exec  hutch.ExecID
	path  string   // of something else that the story makes
	size  int      // MiB of memory of the sandbox that a create makes
	flags []string // of the server

	orphaned <-chan struct{} // closed once the process of an orphan has ended

	runner  hutch.SandboxID // stands by, and runs a command
	counts  hutch.ExecID    // which counts, and misses no number
	paused  hutch.SandboxID // stands by, and stands still
	results []walked
}

// walked is what came of one stop.
type walked struct {
	Story   string `json:"story"`
	Point   string `json:"point"`
	ReadyMS int64  `json:"ready_ms"` // from the next start to its being ready
	Held    bool   `json:"held"`     // what must be true was
}

// faultReport names the file for the results of a long walk; a walk without it is short.
const faultReport = "HUTCH_FAULT"

func TestFaultWalk(t *testing.T) {
	t.Parallel()
	long := os.Getenv("HUTCH_SOAK") != "" || os.Getenv(faultReport) != ""
	var results []walked
	reached := map[failpoint.Name]bool{}
	var w *walk // with sandboxes that stand by, for all stories that may have them
	for _, st := range stories() {
		var stops []stop
		for _, s := range st.stops {
			reached[s.at] = true
			if long || s.short {
				stops = append(stops, s)
			}
		}
		if len(stops) == 0 {
			continue
		}
		t.Run(st.name, func(t *testing.T) {
			for _, s := range stops {
				on := w
				t.Run(s.String(), func(t *testing.T) {
					if st.alone || on == nil {
						on = newWalk(t, st.alone)
					}
					if !st.alone {
						w = on
					}
					on.t, on.story, on.stop = t, st, s
					defer func() { // whatever came of it
						results = append(results, on.results...)
						on.results = nil
					}()
					on.walk()
				})
			}
		})
	}
	for _, n := range failpoint.All() {
		if !reached[n] {
			t.Errorf("the walk does not come to %s", n)
		}
	}
	if w != nil {
		w.t = t
		w.checkCount()
		if err := w.tearDown(); err != nil {
			t.Error(err)
		}
	}
	if path := os.Getenv(faultReport); path != "" {
		writeWalk(t, path, results)
	}
}

// newWalk starts a server. One that is not alone is not torn down with t, but by the walk.
func newWalk(t *testing.T, alone bool) *walk {
	t.Helper()
	if alone {
		dir, err := os.MkdirTemp("", "hutch-e2e") //nolint:usetesting // short: sockets live below it
		if err != nil {
			t.Fatal(err)
		}
		w := &walk{server: &server{dir: dir}, t: t}
		t.Cleanup(func() {
			if w.cmd == nil {
				return
			}
			if err := w.tearDown(); err != nil {
				t.Error(err)
			}
		})
		return w
	}
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{server: s, t: t}
	w.runner = w.make(nil)
	w.counts = w.background(t, w.runner, `i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; sleep 0.1; done`, timeout(36_000), budget(16<<20))
	w.paused = w.make(func(r *api.CreateSandbox) { r.DiskTier = hutch.TierMemory })
	w.must(s.client.Pause(t.Context(), w.paused))
	return w
}

// walk goes to one stop and on.
func (w *walk) walk() {
	t := w.t
	var ready time.Duration
	defer func() {
		w.results = append(w.results, walked{Story: w.story.name, Point: w.stop.String(), ReadyMS: ready.Milliseconds(), Held: !t.Failed()})
		if t.Failed() && w.log != nil {
			t.Logf("server's log:\n%s", w.log.String())
		}
	}()
	w.mark, w.box, w.exec, w.path, w.size = id.NewExec(), "", "", "", 128
	if w.story.scene != nil {
		w.story.scene(w)
	}
	if w.story.walk != nil {
		w.story.walk(w)
		return
	}
	// There is none yet, or the stop before ended badly.
	if (w.cmd == nil && w.story.ready != nil) || (w.cmd != nil && w.dead()) {
		w.must(w.start(w.flags...))
	}
	if w.story.ready != nil {
		w.story.ready(w)
	}
	if w.cmd != nil {
		w.endServer()
	}
	if w.story.act == nil && w.story.down != nil {
		w.story.down(w)
	}
	w.dieAtStop()
	if w.story.act != nil && w.story.down != nil {
		w.story.down(w)
	}
	began := time.Now()
	w.must(w.start(w.flags...))
	ready = time.Since(began)
	if w.story.check != nil {
		w.story.check(w)
	}
	w.truth()
}

// dieAtStop starts the server and has it die at the stop: in the act, or before, as at the
// commits of which a start makes some too.
func (w *walk) dieAtStop() {
	t := w.t
	t.Helper()
	args := append(slices.Clone(w.flags), w.stop.args()...)
	if w.story.with != nil {
		args = append(args, w.story.with(w)...)
	}
	err := w.start(args...)
	switch {
	case err != nil && !w.dead():
		t.Fatal(err)
	case err == nil && w.story.act == nil:
		t.Fatalf("the server came up: it did not come to %s", w.stop)
	case err == nil:
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.story.act(w)
		}()
		select {
		case <-w.exited:
		case <-time.After(time.Minute):
			t.Fatalf("it does not come to %s", w.stop)
		}
		<-done
	}
	if !strings.Contains(w.log.String(), failpoint.Mark+string(w.stop.at)+"\n") {
		t.Fatalf("the server did not die at %s, but of %v: %s", w.stop, w.cmd.ProcessState, w.log.String())
	}
}

// dead reports whether the server's process has been killed.
func (w *walk) dead() bool {
	ws, ok := syscall.WaitStatus(0), false
	if w.cmd.ProcessState != nil {
		ws, ok = w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// endServer stops the server as an operator does.
func (w *walk) endServer() {
	w.t.Helper()
	w.must(w.cmd.Process.Signal(syscall.SIGTERM))
	if err := <-w.exited; err != nil {
		w.t.Fatalf("the server ended: %v\n%s", err, w.log.String())
	}
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// make makes a sandbox that no test's end ends.
func (w *walk) make(tune func(*api.CreateSandbox)) hutch.SandboxID {
	w.t.Helper()
	req := api.CreateSandbox{Template: "base", MemoryMB: ptr(128)}
	if tune != nil {
		tune(&req)
	}
	sb, err := w.client.CreateSandbox(w.t.Context(), req)
	w.must(err)
	return sb.ID
}

// answer is what a call was answered with.
type answer struct {
	status int
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %.300s", a.status, a.body) }

// ok reports whether the call did what it was made for.
func (a answer) ok() bool { return a.status >= 200 && a.status < 300 }

func (a answer) decode(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal(a.body, into); err != nil {
		t.Fatalf("%v in %s", err, a)
	}
}

// call makes a call under the key of this stop, once: what comes of it is not asked for again.
func (w *walk) call(method, path string, body any) (answer, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		in = bytes.NewReader(b)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, in)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	req.Header.Set(api.HeaderIdempotencyKey, w.mark+path)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, b}, err
}

// again makes the call of the act once more, of the next server.
func (w *walk) again(method, path string, body any) answer {
	w.t.Helper()
	a, err := w.call(method, path, body)
	w.must(err)
	return a
}
