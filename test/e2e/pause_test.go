package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/template/imagetest"
)

// Cases of pauses. A pause here is in memory; what is said of one on disk waits for it.

func (s *server) pause(t *testing.T, id hutch.SandboxID) {
	t.Helper()
	if err := s.client.Pause(t.Context(), id); err != nil {
		t.Fatalf("pause: %v", err)
	}
}

func (s *server) resume(t *testing.T, id hutch.SandboxID) {
	t.Helper()
	if err := s.client.Resume(t.Context(), id); err != nil {
		t.Fatalf("resume: %v", err)
	}
}

func TestCaseL01EveryPauseKeepsEveryChange(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	for i := range 10 {
		s.out(t, sb.ID, fmt.Sprintf(`echo %d >/workspace/f%d; echo %d >/dev/shm/f%d`, i, i, i, i))
		s.pause(t, sb.ID)
		s.resume(t, sb.ID)
		want := ""
		for j := range i + 1 {
			want += fmt.Sprintf("%d\n%d\n", j, j)
		}
		if got := s.out(t, sb.ID, fmt.Sprintf(`for i in $(seq 0 %d); do cat /workspace/f$i /dev/shm/f$i; done`, i)); got+"\n" != want {
			t.Errorf("after pause %d: %q, want %q", i+1, got, want)
		}
	}
}

// A pause is as long as its caller likes: nothing but its end ends it, and no clock inside is
// behind afterwards.
func TestCaseL03APauseOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, `echo kept >/workspace/f`)
	x := s.background(t, sb.ID, `read line; echo "got $line"`, func(r *api.ExecRequest) { r.StdinOpen = true })
	s.pause(t, sb.ID)
	paused := time.Now()
	if os.Getenv("HUTCH_SOAK") != "" {
		<-time.After(11 * time.Minute)
	}
	s.restart(t)
	s.killCompanion(t, "keeper") // the next one is told of what is paused, too
	eventually(t, "the new keeper is told", func() bool {
		k, err := keeper.Dial(t.Context(), s.dir)
		if err != nil {
			return false
		}
		defer k.Close()
		all, err := k.List(t.Context())
		return err == nil && len(all) == 1
	})
	s.restart(t)
	if got, err := s.client.Sandbox(t.Context(), sb.ID); err != nil || got.State != hutch.StatePaused {
		t.Fatalf("after restarts: %+v, %v", got, err)
	}
	stood := time.Since(paused)
	s.resume(t, sb.ID)
	// A clock that stood still would be behind by all of the pause.
	asked := time.Now()
	inside := seconds(t, s.out(t, sb.ID, `date +%s.%N`))
	if inside.Before(asked.Add(-stood/2)) || inside.After(time.Now().Add(stood/2)) {
		t.Errorf("asked at %v the clock inside says %v; it was paused for %v", asked, inside, stood)
	}
	s.inside(t, sb.ID, `cat /workspace/f`, "kept")
	if _, err := s.client.WriteStdin(t.Context(), x, 0, strings.NewReader("word\n"), true); err != nil {
		t.Fatal(err)
	}
	if r := s.ended(t, x).Result; r.Stdout != "got word\n" || r.ExitCode != 0 {
		t.Errorf("the command of before the pause: %+v", r)
	}
}

// seconds is the time that date +%s.%N prints.
func seconds(t *testing.T, s string) time.Time {
	t.Helper()
	var sec, nsec int64
	if _, err := fmt.Sscanf(s, "%d.%d", &sec, &nsec); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return time.Unix(sec, nsec)
}

func TestCaseL05PausedIsListed(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.pause(t, sb.ID)
	state := ""
	for l, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.ID == sb.ID {
			state = string(l.State) + " " + string(l.Status)
		}
	}
	if state != "paused paused" {
		t.Errorf("the native list shows it as %q", state)
	}
	out, errout, err := s.hutchCLI(t, "ls")
	if !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
		return strings.HasPrefix(l, string(sb.ID)) && strings.Contains(l, "paused")
	}) {
		t.Errorf("hutch ls: %v %s\n%s", err, errout, out)
	}
	type listed struct {
		ID    hutch.SandboxID `json:"sandboxID"`
		State string          `json:"state"`
	}
	found := false
	for _, l := range answered[[]listed](s.ask(t, "GET", "/v2/sandboxes?limit=100", "", "X-API-KEY", s.key).want(200)) {
		found = found || l == listed{sb.ID, "paused"}
	}
	if !found {
		t.Error("E2B's list does not show it as paused")
	}
}

// What a pause keeps is all of it, though everything that it could be read from again is gone:
// the template is deleted, its image's file removed, and no page of the sandbox's disk is left
// in the host's memory.
func TestCaseL06APauseNeedsNoCache(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	data := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	cache := ""
	s := withTemplates(t, func(s *server, dir string) {
		cache = dir
		im := imagetest.Image(t, v1.Config{Env: []string{"PATH=/bin"}}, imagetest.Layer(t, append(imagetest.Busybox(t, "sh", "head", "sha256sum"), imagetest.File("data", string(data)))...))
		oci := imagetest.Layout(t, map[string]v1.Image{"": im})
		buildTemplate(t, s, cache, "--oci", oci, "--name", "kept")
		buildTemplate(t, s, cache, "--oci", oci, "--name", "other") // without any a server is not ready
	})
	sums := map[hutch.SandboxID]string{}
	const sum = `sha256sum /data /made /dev/shm/made`
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		sb := s.create(t, api.CreateSandbox{Template: "kept", DiskTier: tier})
		sums[sb.ID] = s.out(t, sb.ID, fmt.Sprintf(`head -c %d /dev/urandom >/made; head -c 1000000 /dev/urandom >/dev/shm/made; `, size)+sum)
		if !strings.HasPrefix(sums[sb.ID], sha(data)+" ") {
			t.Errorf("the image has %s, want %s of /data", sums[sb.ID], sha(data))
		}
		s.pause(t, sb.ID)
	}
	if out, errout, err := s.hutchCLI(t, "template", "rm", "kept", "--data-dir", s.dir); err != nil {
		t.Fatalf("%v %s%s", err, out, errout)
	}
	images, err := filepath.Glob(filepath.Join(cache, "images", "*"))
	if err != nil || len(images) == 0 {
		t.Fatalf("%v in %s, %v", images, cache, err)
	}
	for _, image := range images {
		if err := os.RemoveAll(image); err != nil {
			t.Fatal(err)
		}
	}
	s.restart(t, "--cache-dir", cache)
	for id, want := range sums {
		s.evict(t, id)
		s.resume(t, id)
		s.inside(t, id, sum, want)
	}
}

// evict makes the host drop what it has in memory of the files that a sandbox's kernel has
// open.
func (s *server) evict(t *testing.T, id hutch.SandboxID) {
	t.Helper()
	files := 0
	for _, pid := range s.kernelOf(t, id) {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if fi, err := os.Stat(fd); err != nil || !fi.Mode().IsRegular() {
				continue
			}
			f, err := os.Open(fd)
			if err != nil {
				continue // memory that is shared by descriptor
			}
			if f.Sync() == nil && unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) == nil {
				files++
			}
			_ = f.Close()
		}
	}
	if files == 0 {
		t.Errorf("sandbox %s has no file open", id)
	}
}

// A server that is killed at any moment of a pause or a resume leaves a sandbox that is one or
// the other after the next start, and goes on from there.
func TestCaseL08KilledInTheMiddleOfAPause(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, `echo kept >/workspace/f`)
	for i := range 6 {
		turn := s.client.Pause
		if i%2 == 1 {
			turn = s.client.Resume
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = turn(ctx, sb.ID) // it may be answered, or not
		}()
		select {
		case <-done:
		case <-time.After(time.Duration(i) * 2 * time.Millisecond):
		}
		s.kill9(t)
		cancel()
		<-done
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		var got api.Sandbox
		within(t, 20*time.Second, "what the crash has cut off", func() {
			eventually(t, "it has settled", func() bool {
				var err error
				if got, err = s.client.Sandbox(t.Context(), sb.ID); err != nil {
					t.Fatal(err)
				}
				return got.Transition == ""
			})
		})
		if got.State == hutch.StateRunning {
			s.inside(t, sb.ID, `cat /workspace/f`, "kept")
		} else if _, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: "true"}); !errors.Is(err, hutch.ErrInvalidState) {
			t.Errorf("it is %s, and a command in it: %v", got.State, err)
		}
		if i%2 == 0 { // the next is a resume
			s.pause(t, sb.ID)
		} else {
			s.resume(t, sb.ID)
		}
	}
	s.inside(t, sb.ID, `cat /workspace/f`, "kept")
}

func TestCaseL11MetadataSurvivesAPause(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{Metadata: map[string]string{"walk": "l11", "secret.word": "hidden", "odd": "a=b&c,d"}})
	other := s.create(t, api.CreateSandbox{Metadata: map[string]string{"walk": "other"}})
	check := func(when string) {
		t.Helper()
		for _, q := range []string{
			"metadata.walk=l11", "metadata.secret.word=hidden", "metadata.odd=a%3Db%26c%2Cd",
			"metadata.walk=l11&metadata.odd=a%3Db%26c%2Cd&state=running,paused",
		} {
			var found []hutch.SandboxID
			for _, l := range answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes?"+q, "").want(200)) {
				found = append(found, l.ID)
			}
			if !slices.Equal(found, []hutch.SandboxID{sb.ID}) {
				t.Errorf("%s, by %s: %v, want %s and not %s", when, q, found, sb.ID, other.ID)
			}
		}
		got, err := s.client.Sandbox(t.Context(), sb.ID)
		if err != nil || got.Metadata["walk"] != "l11" || got.Metadata["odd"] != "a=b&c,d" || got.Metadata["secret.word"] != "" {
			t.Errorf("%s: %v, %v", when, got.Metadata, err)
		}
	}
	check("before")
	s.pause(t, sb.ID)
	check("paused")
	s.restart(t)
	check("after a restart")
	s.resume(t, sb.ID)
	check("resumed")
}

// What takes no body takes every way to send none.
func TestCaseL13ResumeTakesAnyEmptyBody(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	bodies := []struct{ body, typ string }{{"", ""}, {"", "application/json"}, {"{}", "application/json"}, {"{}", ""}, {"{}", "text/plain"}, {" \n", ""}}
	for _, b := range bodies {
		for _, call := range []string{"/v1/sandboxes/%s/pause", "/v1/sandboxes/%s/resume"} {
			if a := s.send(t, fmt.Sprintf(call, sb.ID), b.body, b.typ); a.status != http.StatusNoContent {
				t.Errorf("%s with %q as %q: %d %s", call, b.body, b.typ, a.status, a.body)
			}
		}
		s.pause(t, sb.ID)
		if a := s.send(t, fmt.Sprintf("/v2/sandboxes/%s/connect", sb.ID), b.body, b.typ); a.status != http.StatusCreated {
			t.Errorf("connect with %q as %q: %d %s", b.body, b.typ, a.status, a.body)
		}
		s.inside(t, sb.ID, `echo on`, "on")
	}
}

// send posts a body as the type it is given, or as none.
func (s *server) send(t *testing.T, path, body, typ string) asked {
	t.Helper()
	headers := []string{"X-API-KEY", s.key}
	if typ != "" {
		headers = append(headers, "Content-Type", typ)
	}
	return s.ask(t, "POST", path, body, headers...)
}
