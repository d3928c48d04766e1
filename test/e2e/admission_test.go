package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/auth"
	"hutch.dev/hutch/internal/store/sqlite"
)

// Cases of creates: asked for twice, in a crowd, across a crash, and where there is no room.

// living lists the sandboxes that are on record as alive.
func (s *server) living(t *testing.T) (all []api.Sandbox) {
	t.Helper()
	for sb, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sb)
	}
	return all
}

// losing is a connection whose answers are lost on the way, the first few.
type losing struct {
	next http.RoundTripper
	left atomic.Int32
}

var errLost = errors.New("the answer was lost")

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.next.RoundTrip(r)
	if err != nil || l.left.Add(-1) < 0 {
		return res, err
	}
	_, _ = io.Copy(io.Discard, res.Body) // the server has done all of it
	_ = res.Body.Close()
	return nil, errLost
}

func TestCaseM01ACreateAskedForAgainIsTheSame(t *testing.T) {
	t.Parallel()
	s := own(t)
	const body = `{"template": "base", "memory_mb": 128, "metadata": {"walk": "m01"}}`
	post := func(c *http.Client, key, body string) (status int, answer string, err error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+"/v1/sandboxes", strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		req.Header.Set("Idempotency-Key", key)
		res, err := c.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res.StatusCode, string(b), err
	}
	lossy := &losing{next: &http.Transport{}}
	lossy.left.Store(2)
	var answers []string
	for len(answers) < 3 {
		status, answer, err := post(&http.Client{Transport: lossy}, "m01-lost", body)
		if errors.Is(err, errLost) {
			continue
		}
		if err != nil || status != http.StatusCreated {
			t.Fatalf("%d %s, %v", status, answer, err)
		}
		answers = append(answers, answer)
	}
	if answers[0] != answers[1] || answers[1] != answers[2] {
		t.Errorf("one key, several answers: %q", answers)
	}
	if n := len(s.living(t)); n != 1 {
		t.Errorf("%d sandboxes came of one key, want 1", n)
	}

	crowd := make([]string, 20)
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			status, answer, err := post(http.DefaultClient, "m01-crowd", body)
			if err != nil || status != http.StatusCreated {
				t.Errorf("%d %s, %v", status, answer, err)
			}
			crowd[i] = answer
		})
	}
	wg.Wait()
	for _, answer := range crowd {
		if answer != crowd[0] {
			t.Errorf("one key at once, several answers: %s and %s", answer, crowd[0])
		}
	}
	if n := len(s.living(t)); n != 2 || s.sentries() != 2 {
		t.Errorf("%d sandboxes on record and %d on the host came of two keys", n, s.sentries())
	}

	status, answer, err := post(http.DefaultClient, "m01-crowd", strings.Replace(body, "128", "256", 1))
	if err != nil || status != http.StatusUnprocessableEntity || !strings.Contains(answer, string(hutch.CodeIdempotencyMismatch)) {
		t.Errorf("the key with another body: %d %s, %v", status, answer, err)
	}
}

// Whoever asks with a key of his own, and goes on asking while the server is killed and comes
// back, has one sandbox in the end, and nobody has his.
func TestCaseM03ManyCreatesAcrossACrash(t *testing.T) {
	t.Parallel()
	n := 10
	if os.Getenv("HUTCH_SOAK") != "" {
		n = 100
	}
	s := own(t)
	key := s.key
	var base atomic.Pointer[string]
	now := func() { b := s.base; base.Store(&b) }
	now()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	ids := make([]hutch.SandboxID, n)
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			err := poll(ctx, "a create is answered", func() (bool, error) {
				c, err := client.New(*base.Load(), client.WithKey(key), client.WithRetries(0))
				if err != nil {
					return false, err
				}
				ids[i], err = createOnce(ctx, c, *base.Load(), key, fmt.Sprintf("m03-%d", i))
				return err == nil, nil
			})
			if err != nil {
				t.Error(err)
			}
			made.Add(1)
		})
	}
	for _, mark := range []int{n / 6, n / 2} {
		eventually(t, "some are made", func() bool { return int(made.Load()) >= mark })
		s.restart(t)
		now()
	}
	wg.Wait()
	owners := map[hutch.SandboxID]int{}
	for i, id := range ids {
		if other, taken := owners[id]; taken || id == "" {
			t.Errorf("creates %d and %d have the same sandbox %q", i, other, id)
		}
		owners[id] = i
	}
	for _, sb := range s.living(t) {
		if _, ok := owners[sb.ID]; !ok {
			t.Errorf("%s is alive and nobody's", sb.ID)
		}
		delete(owners, sb.ID)
	}
	if len(owners) > 0 {
		t.Errorf("of %d answered creates no sandbox is on record: %v", len(owners), owners)
	}
	eventually(t, "the host has as many", func() bool { return s.sentries() == n })
}

// createOnce asks for a sandbox under a key and returns its id.
func createOnce(ctx context.Context, c *client.Client, base, key, once string) (hutch.SandboxID, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/sandboxes", strings.NewReader(`{"template": "base", "memory_mb": 128}`))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Idempotency-Key", once)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		return "", errors.New(res.Status)
	}
	var sb api.Sandbox
	if err := decode(res.Body, &sb); err != nil {
		return "", err
	}
	_, err = c.Sandbox(ctx, sb.ID)
	return sb.ID, err
}

// Where there is no room nothing is said to be there: a create is refused in so many words,
// with when to ask again, nothing of it is listed as running, and what there is goes on.
func TestCaseM05NoRoomIsNotReady(t *testing.T) {
	t.Parallel()
	s := own(t, "--max-sandboxes", "1")
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128)})
	for range 3 {
		a := s.ask(t, "POST", "/v1/sandboxes", `{"template": "base", "memory_mb": 128, "metadata": {"walk": "m05"}}`)
		e := answered[api.Error](a)
		if a.status != http.StatusServiceUnavailable || e.Code != hutch.CodeNoCapacity || a.header.Get("Retry-After") == "" {
			t.Errorf("a create too many: %d, Retry-After %q, %+v", a.status, a.header.Get("Retry-After"), e)
		}
	}
	if all := s.living(t); len(all) != 1 || all[0].ID != sb.ID || s.sentries() != 1 {
		t.Errorf("alive are %+v, on the host %d", all, s.sentries())
	}
	if refused := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes?state=new,running,paused&metadata.walk=m05", "").want(200)); len(refused) != 0 {
		t.Errorf("refused ones are listed: %+v", refused)
	}
	if a := s.ask(t, "GET", "/readyz", "").want(503); !strings.Contains(a.body, "the one sandbox that this server allows is taken") {
		t.Errorf("what has no room says: %s", a.body)
	}
	s.inside(t, sb.ID, `echo here`, "here")
	// Room that is made is room at once.
	if err := s.client.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	s.ask(t, "GET", "/readyz", "").want(200)
	s.inside(t, s.create(t, api.CreateSandbox{MemoryMB: ptr(128)}).ID, `echo next`, "next")
}

// Asking for what is so already is no failure, however many ask at once; and a sandbox that
// is being made so is waited for.
func TestCaseM08ResumingWhatRuns(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	crowd := func(name, path string, want ...int) {
		t.Helper()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				a := s.ask(t, "POST", path, "", "X-API-KEY", s.key)
				for _, ok := range want {
					if a.status == ok {
						return
					}
				}
				t.Errorf("%s: %d %s", name, a.status, a.body)
			})
		}
		wg.Wait()
		s.inside(t, sb.ID, `echo same`, "same")
	}
	native, e2b := "/v1/sandboxes/"+string(sb.ID)+"/resume", "/v2/sandboxes/"+string(sb.ID)+"/connect"
	crowd("resume of a running one", native, http.StatusNoContent)
	crowd("connect to a running one", e2b, http.StatusOK)
	for _, path := range []string{native, e2b} {
		s.pause(t, sb.ID)
		crowd("to a paused one, "+path, path, http.StatusNoContent, http.StatusOK, http.StatusCreated)
	}
}

// keyOf makes a key of another project than the server's own.
func (s *server) keyOf(t *testing.T, p hutch.ProjectID) string {
	t.Helper()
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	key, _, err := auth.New(st, time.Now).Create(t.Context(), "a test's", p, hutch.ScopeRun, 0)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A limit of sandboxes counts those that are being made, those that run, and those that are
// paused or being resumed, across a restart too; and it is a project's own.
func TestCaseM10ALimitCountsEveryState(t *testing.T) {
	t.Parallel()
	s := own(t, "--project-max-sandboxes", "1")
	req := api.CreateSandbox{Template: "base", MemoryMB: ptr(128)}
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a := s.ask(t, "POST", "/v1/sandboxes", `{"template": "base", "memory_mb": 128}`)
			switch {
			case a.status == http.StatusCreated:
				made.Add(1)
			case a.status != http.StatusTooManyRequests, a.header.Get("Retry-After") == "":
				t.Errorf("one too many: %d, Retry-After %q, %s", a.status, a.header.Get("Retry-After"), a.body)
			}
		})
	}
	wg.Wait()
	alive := s.living(t)
	if made.Load() != 1 || len(alive) != 1 {
		t.Fatalf("of eight at once %d were made, %d are alive; the limit is 1", made.Load(), len(alive))
	}
	sb := alive[0].ID
	full := func(when string) {
		t.Helper()
		a := s.ask(t, "POST", "/v1/sandboxes", `{"template": "base", "memory_mb": 128}`)
		if e := answered[api.Error](a); a.status != http.StatusTooManyRequests || e.Code != hutch.CodeRateLimited {
			t.Errorf("%s, another: %d %s", when, a.status, a.body)
		}
	}
	s.pause(t, sb)
	full("paused")
	s.restart(t, "--project-max-sandboxes", "1")
	full("paused, after a restart")
	s.resume(t, sb)
	full("resumed")
	other, err := client.New(s.base, client.WithKey(s.keyOf(t, "other")), client.WithRetries(0)) // it has another address now
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.CreateSandbox(t.Context(), req)
	if err != nil {
		t.Fatalf("another project's first: %v", err)
	}
	if err := other.Kill(t.Context(), theirs.ID); err != nil {
		t.Error(err)
	}
	if err := s.client.Kill(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	s.create(t, req)
}

// Who asks for much waits behind himself: while one project floods the server with creates,
// another's is made before more than a few of the flood, however long its queue.
func TestCaseM11AFloodDrownsNobodyElse(t *testing.T) {
	t.Parallel()
	const crowd = 24
	s := own(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var made atomic.Int32
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			for ctx.Err() == nil {
				sb, err := s.client.CreateSandbox(ctx, api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
				if err == nil {
					made.Add(1)
					_ = s.client.Kill(context.WithoutCancel(ctx), sb.ID)
				}
			}
		})
	}
	other, err := client.New(s.base, client.WithKey(s.keyOf(t, "other")), client.WithRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the flood is under way", func() bool { return made.Load() >= 4 })
	for range 2 {
		before := made.Load()
		sb, err := other.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
		if err != nil {
			t.Fatalf("a create beside the flood: %v", err)
		}
		// In a queue of all it would have come after those that were waiting, some twenty.
		if n := made.Load() - before; n > crowd/2 {
			t.Errorf("%d of the flood were made before it", n)
		}
		if err := other.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	stop()
	wg.Wait()
}
