package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestCreateTakesEveryField(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{
		"template": "base", "cpu": 1.5, "memory_mb": 512, "disk_mb": 1000, "disk_tier": "memory", "pids": 99, "profile": "locked",
		"env": {"A": "1"}, "metadata": {"k": "v", "secret.token": "hidden"}, "hostname": "box",
		"ttl_seconds": 90.5, "idle_timeout_seconds": 60, "persistent": false, "volumes": null, "from_snapshot": null}`).want(201))
	if sb.CPU != 1.5 || sb.MemoryMB != 512 || sb.DiskMB != 1000 || sb.DiskTier != "memory" || sb.Pids != 99 || sb.Profile != hutch.ProfileLocked || sb.Hostname != "box" {
		t.Errorf("sizes did not arrive: %+v", sb)
	}
	if sb.TTLSeconds != 90.5 || sb.IdleTimeoutSeconds != 60 {
		t.Errorf("times did not arrive: ttl %v, idle %v", sb.TTLSeconds, sb.IdleTimeoutSeconds)
	}
	if len(sb.Metadata) != 1 || sb.Metadata["k"] != "v" {
		t.Errorf("metadata %v: want k only, secrets are never read back", sb.Metadata)
	}
	if sb.Status != api.StatusRunning || sb.State != hutch.StateRunning || sb.BootMode == "" || sb.BootMS == 0 {
		t.Errorf("not shown as running: %+v", sb)
	}
	if sb.CreatedAt.Nanosecond() != 0 {
		t.Errorf("created_at %v: clients want whole seconds", sb.CreatedAt)
	}
	if d := time.Until(sb.ExpiresAt); d < time.Minute || d > 2*time.Minute {
		t.Errorf("expires in %v, want about 90 s", d)
	}
	rec, err := b.Sandbox(t.Context(), hutch.DefaultProject, sb.ID)
	if err != nil || rec.Env["A"] != "1" {
		t.Errorf("env did not arrive: %v, %v", rec.Env, err)
	}
}

func TestCreateDefaults(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	a := b.do("POST", "/v1/sandboxes", `{}`).want(201)
	sb := into[api.Sandbox](a)
	if sb.Template != "base" || sb.TTLSeconds != 3600 || sb.Profile != hutch.ProfileRoot {
		t.Errorf("template %q, ttl %v, profile %q; want base, 3600, root", sb.Template, sb.TTLSeconds, sb.Profile)
	}
	if loc := a.header.Get("Location"); loc != "/v1/sandboxes/"+string(sb.ID) {
		t.Errorf("Location %q", loc)
	}
	if strings.Contains(string(a.body), `"metadata"`) {
		t.Error("empty metadata is shown; clients want it absent")
	}
}

func TestCreateRefuses(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	for _, c := range []struct {
		name, body  string
		status      int
		code, field string
		says        string
	}{
		{"unknown field", `{"memory": 5}`, 400, "unknown_field", "memory", "memory_mb"},
		{"misspelt field", `{"templat": "base"}`, 400, "unknown_field", "templat", "template"},
		{"other case", `{"ttlSeconds": 5}`, 400, "unknown_field", "ttlSeconds", "ttl_seconds"},
		{"unlike any", `{"quux": 5}`, 400, "unknown_field", "quux", ""},
		{"twice", `{"cpu": 1, "cpu": 2}`, 400, "bad_request", "cpu", "twice"},
		{"not an object", `[]`, 400, "bad_request", "", "object"},
		{"empty", ``, 400, "bad_request", "", "object"},
		{"cut", `{"cpu": 1`, 400, "bad_request", "", "JSON"},
		{"two values", `{} {}`, 400, "bad_request", "", "goes on"},
		{"not UTF-8", "{\"template\": \"\xff\"}", 400, "bad_request", "", "UTF-8"},
		{"ttl as a string", `{"ttl_seconds": "60"}`, 400, "bad_request", "ttl_seconds", "number"},
		{"negative ttl", `{"ttl_seconds": -1}`, 400, "bad_request", "ttl_seconds", "between"},
		{"ttl of 1e12", `{"ttl_seconds": 1e12}`, 400, "bad_request", "ttl_seconds", ""},
		{"ttl over the operator's", `{"ttl_seconds": 90000}`, 400, "bad_request", "ttl_seconds", ""},
		{"ttl over a float", `{"ttl_seconds": 1e999}`, 400, "bad_request", "ttl_seconds", "number"},
		{"no cpu", `{"cpu": 0}`, 400, "bad_request", "cpu", "more than 0"},
		{"absurd cpu", `{"cpu": 1e300}`, 400, "bad_request", "cpu", ""},
		{"no memory", `{"memory_mb": 0}`, 400, "bad_request", "memory_mb", "more than 0"},
		{"half a MiB", `{"memory_mb": 0.5}`, 400, "bad_request", "memory_mb", "whole"},
		{"no pids", `{"pids": -3}`, 400, "bad_request", "pids", "more than 0"},
		{"env of numbers", `{"env": {"A": 1}}`, 400, "bad_request", "env", "strings"},
		{"persistent", `{"persistent": true}`, 501, "unsupported", "persistent", "ttl_seconds"},
		{"volumes", `{"volumes": [{"name": "v"}]}`, 501, "unsupported", "volumes", ""},
		{"snapshot", `{"from_snapshot": "s"}`, 501, "unsupported", "from_snapshot", ""},
		{"no such template", `{"template": "nope"}`, 404, "not_found", "template", "nope"},
		{"too large", `{"template": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "too_large", "", "1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := *b
			b.t = t
			e := b.do("POST", "/v1/sandboxes", c.body).wantError(c.status, c.code, c.field)
			if !strings.Contains(e.Error, c.says) {
				t.Errorf("%q does not mention %q", e.Error, c.says)
			}
		})
	}
	if n := len(into[[]api.Sandbox](b.do("GET", "/v1/sandboxes?state=all", "").want(200))); n != 0 {
		t.Errorf("%d sandboxes were made by refused calls", n)
	}
}

func TestTTLZeroIsTheLongest(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"ttl_seconds": 0}`).want(201))
	if sb.TTLSeconds != httpapitest.MaxTTL.Seconds() {
		t.Errorf("ttl %v, want the operator's longest", sb.TTLSeconds)
	}
}

func TestLifeOfASandbox(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	path := "/v1/sandboxes/" + b.sandbox()

	// Published clients send these with an empty text body.
	if a := b.do("POST", path+"/pause", "", "Content-Type", "text/plain;charset=UTF-8").want(204); len(a.body) != 0 {
		t.Errorf("pause answered %q", a.body)
	}
	if sb := into[api.Sandbox](b.do("GET", path, "").want(200)); sb.Status != api.StatusPaused {
		t.Errorf("status %s after a pause", sb.Status)
	}
	b.do("POST", path+"/exec", `{"cmd": "true"}`).wantError(409, "invalid_state", "")
	b.do("POST", path+"/resume", "{}").want(204)
	b.do("POST", path+"/resume", `{"force": true}`).wantError(400, "unknown_field", "force")

	l := into[api.Lifecycle](b.do("PATCH", path+"/lifecycle", `{"ttl_seconds": 7200}`).want(200))
	if l.TTLSeconds != 7200 || time.Until(l.ExpiresAt) < 119*time.Minute || l.Persistent {
		t.Errorf("lifecycle %+v after asking for two hours", l)
	}
	if again := into[api.Lifecycle](b.do("GET", path+"/lifecycle", "").want(200)); again.TTLSeconds != 7200 || !again.ExpiresAt.Equal(l.ExpiresAt) {
		t.Errorf("lifecycle reads %+v, was set to %+v", again, l)
	}
	b.do("PATCH", path+"/lifecycle", `{"ttl_seconds": null, "persistent": false}`).want(200)
	b.do("PATCH", path+"/lifecycle", `{"persistent": true}`).wantError(501, "unsupported", "persistent")
	b.do("PATCH", path+"/lifecycle", `{"ttl_seconds": -1}`).wantError(400, "bad_request", "ttl_seconds")

	b.do("DELETE", path, "").want(204)
	for _, c := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/pause"}, {"GET", "/lifecycle"}} {
		e := b.do(c[0], path+c[1], "").wantError(404, "sandbox_gone", "")
		if e.EndReason != hutch.EndKilled {
			t.Errorf("%s%s: end_reason %q, want killed", c[0], c[1], e.EndReason)
		}
	}
	if evs := into[api.Events](b.do("GET", path+"/events", "").want(200)); len(evs.Events) != 4 || evs.Next != 4 {
		t.Errorf("events of the dead sandbox: %+v, want 4", evs)
	}
}

func TestListFiltersAndPages(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	var ids []string
	for i := range 5 {
		sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", fmt.Sprintf(`{"metadata": {"n": "%d", "odd": "%v"}}`, i, i%2 == 1)).want(201))
		ids = append(ids, string(sb.ID))
	}
	b.do("DELETE", "/v1/sandboxes/"+ids[0], "").want(204)
	list := func(query string) (got []string, a answer) {
		a = b.do("GET", "/v1/sandboxes"+query, "").want(200)
		for _, sb := range into[[]api.Sandbox](a) {
			got = append(got, sb.Metadata["n"])
		}
		return got, a
	}
	for _, c := range []struct{ query, want string }{
		{"", "4 3 2 1"},
		{"?state=all", "4 3 2 1 0"},
		{"?state=dead", "0"},
		{"?state=dead,running", "4 3 2 1 0"},
		{"?template=base&metadata.odd=true", "3 1"},
		{"?metadata.odd=true&metadata.n=3", "3"},
		{"?template=other", ""},
	} {
		if got, _ := list(c.query); strings.Join(got, " ") != c.want {
			t.Errorf("list%s: %v, want %s", c.query, got, c.want)
		}
	}
	var paged []string
	query := "?limit=3"
	for range 3 {
		got, a := list(query)
		paged = append(paged, got...)
		cursor := a.header.Get(api.HeaderNextCursor)
		if cursor == "" {
			break
		}
		if link := a.header.Get("Link"); !strings.Contains(link, "cursor="+cursor) || !strings.Contains(link, `rel="next"`) {
			t.Errorf("Link %q does not lead to cursor %s", link, cursor)
		}
		query = "?limit=3&cursor=" + cursor
	}
	if strings.Join(paged, " ") != "4 3 2 1" {
		t.Errorf("pages hold %v", paged)
	}
	if a := b.do("GET", "/v1/sandboxes?template=other", "").want(200); strings.TrimSpace(string(a.body)) != "[]" {
		t.Errorf("an empty list is %s, want []", a.body)
	}
	b.do("GET", "/v1/sandboxes?limit=0", "").wantError(400, "bad_request", "limit")
	b.do("GET", "/v1/sandboxes?limit=1001", "").wantError(400, "bad_request", "limit")
	b.do("GET", "/v1/sandboxes?state=sleepy", "").wantError(400, "bad_request", "state")
	b.do("GET", "/v1/sandboxes?stat=dead", "").wantError(400, "unknown_field", "stat")
	b.do("GET", "/v1/sandboxes?limit=1&limit=2", "").wantError(400, "bad_request", "limit")
	b.do("GET", "/v1/sandboxes?cursor=x", "").wantError(400, "bad_request", "cursor")
}

func TestAnotherProjectsSandboxIsNotFound(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	id := b.sandbox()
	exec := into[api.Exec](b.do("POST", "/v1/sandboxes/"+id+"/exec", `{"cmd": "sleep", "background": true}`).want(202))
	other := b.as(httpapitest.OtherKey)
	for _, c := range [][3]string{
		{"GET", "/v1/sandboxes/" + id, ""},
		{"DELETE", "/v1/sandboxes/" + id, ""},
		{"POST", "/v1/sandboxes/" + id + "/pause", ""},
		{"POST", "/v1/sandboxes/" + id + "/exec", `{"cmd": "true"}`},
		{"GET", "/v1/sandboxes/" + id + "/execs", ""},
		{"GET", "/v1/sandboxes/" + id + "/events", ""},
		{"GET", "/v1/execs/" + string(exec.ExecID), ""},
		{"GET", "/v1/execs/" + string(exec.ExecID) + "/output", ""},
		{"GET", "/v1/execs/" + string(exec.ExecID) + "/follow", ""},
		{"POST", "/v1/execs/" + string(exec.ExecID) + "/cancel", ""},
		{"POST", "/v1/execs/" + string(exec.ExecID) + "/stdin?offset=0", "x"},
		{"POST", "/v1/execs/" + string(exec.ExecID) + "/signal", `{"signal": "INT"}`},
	} {
		other.do(c[0], c[1], c[2]).wantError(http.StatusNotFound, "not_found", "")
	}
	if n := len(into[[]api.Sandbox](other.do("GET", "/v1/sandboxes?state=all", "").want(200))); n != 0 {
		t.Errorf("another project lists %d sandboxes", n)
	}
	b.do("POST", "/v1/execs/"+string(exec.ExecID)+"/cancel", "").want(200)
}
