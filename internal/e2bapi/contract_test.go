package e2bapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// What is left of the rules: members that older and other clients send and answers that are
// never null. gone_test.go has what a sandbox's end looks like from each of its calls.

func TestDeleteWithABody(t *testing.T) {
	b := newBench(t)
	r := b.control("DELETE", "/templates/tags", `{"name":"base","tags":["v1"]}`) // sent without a length
	if r.status != 501 || !strings.Contains(string(r.body), "tags") {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

// Python sends null for what its caller left out, and any client may send what is newer.
func TestNullsAreAsGoodAsNothing(t *testing.T) {
	b := newBench(t)
	sb := "/sandboxes/" + string(b.sb)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v2" + sb + "/connect", `{"timeout":null,"memory":null,"new":1}`, 200},
		{sb + "/connect", `{"timeout":60,"memory":null,"autoPause":null,"new":{}}`, 200},
		{sb + "/timeout", `{"timeout":60,"new":null}`, 204},
		{sb + "/refreshes", `{"duration":null,"new":[]}`, 204},
		{"/sandboxes", `{"templateID":"base","secure":true,"timeout":300,"allow_internet_access":true,"metadata":{},"envVars":{},"autoPause":null,"network":{"allowOut":null,"denyOut":null,"rules":null,"egressProxy":null,"httpsPorts":null,"maskRequestHost":null,"allowPublicTraffic":null}}`, 201},
	} {
		if r := b.control("POST", c.path, c.body); r.status != c.status {
			t.Errorf("%s %s: got %d %s", c.path, c.body, r.status, r.body)
		}
	}
	_, c, pid := b.start(`{"process":{"cmd":"cat","args":null,"envs":null,"cwd":null,"new":1},"pty":null,"tag":null,"stdin":null}`)
	if !c.x.Spec.StdinOpen || c.x.Spec.Terminal != nil || c.x.Spec.Tag != "" || c.x.Spec.Cwd != "" {
		t.Errorf("got %+v", c.x.Spec)
	}
	for _, c := range []struct{ procedure, msg string }{
		{"process.Process/SendInput", fmt.Sprintf(`{"process":{"pid":%d,"tag":null},"input":{"stdin":"YQ==","pty":null}}`, pid)},
		{"process.Process/Update", fmt.Sprintf(`{"process":{"pid":%d},"pty":null}`, pid)},
		{"process.Process/SendSignal", fmt.Sprintf(`{"process":{"pid":%d},"signal":15,"new":null}`, pid)},
		{"process.Process/CloseStdin", fmt.Sprintf(`{"process":{"pid":%d},"new":null}`, pid)},
		{"process.Process/List", `{"new":null}`},
		{"filesystem.Filesystem/ListDir", `{"path":"/home/user","depth":null,"new":1}`},
		{"filesystem.Filesystem/Stat", `{"path":null}`},
		{"filesystem.Filesystem/MakeDir", `{"path":"made","mode":null}`},
		{"filesystem.Filesystem/Move", `{"source":"made","destination":"moved","new":null}`},
		{"filesystem.Filesystem/Remove", `{"path":"moved","new":false}`},
		{"filesystem.Filesystem/CreateWatcher", `{"path":"/home/user","recursive":null,"includeEntry":null,"allowNetworkMounts":null}`},
	} {
		if r := b.call(c.procedure, c.msg); r.status != 200 {
			t.Errorf("%s %s: got %d %s", c.procedure, c.msg, r.status, r.body)
		}
	}
}

// TestResumeThatAsksForMore: a resume takes a member of a create.
func TestResumeThatAsksForMore(t *testing.T) {
	b := newBench(t)
	b.mu.Lock()
	b.sandboxes[b.sb].State = hutch.StatePaused
	b.mu.Unlock()
	path := "/sandboxes/" + string(b.sb) + "/resume"
	if r := b.control("POST", path, `{"timeout":20,"autoPause":true}`); r.status != 501 || !strings.Contains(string(r.body), "autoPause") {
		t.Errorf("got %d %s", r.status, r.body)
	}
	if r := b.control("POST", path, `{"timeout":20,"autoPause":false,"memory":false}`); r.status != 501 || !strings.Contains(string(r.body), "memory") {
		t.Errorf("without memory: got %d %s", r.status, r.body)
	}
	if sb, _ := b.SandboxByID(t.Context(), b.sb); sb.State != hutch.StatePaused {
		t.Errorf("it is %s, though both were refused", sb.State)
	}
	before := time.Now()
	if r := b.control("POST", path, `{"timeout":2000,"autoPause":false,"memory":true}`); r.status != 201 {
		t.Errorf("got %d %s", r.status, r.body)
	}
	if sb, _ := b.SandboxByID(t.Context(), b.sb); sb.State != hutch.StateRunning || sb.ExpiresAt.Before(before.Add(2000*time.Second)) {
		t.Errorf("it is %s and ends at %s", sb.State, sb.ExpiresAt)
	}
}

// TestAnswersAreWhole: lists are never null, and what the clients' models ask for is there.
func TestAnswersAreWhole(t *testing.T) {
	b := newBench(t)
	path := "/sandboxes/" + string(b.sb)
	for call, want := range map[string]string{
		path + "/metrics":      `[]`,
		path + "/logs":         `{"logs":[],"logEntries":[]}`,
		"/v2" + path + "/logs": `{"logs":[]}`,
		"/sandboxes/metrics?sandbox_ids=" + id.NewSandbox(): `{"sandboxes":{}}`,
	} {
		if r := b.control("GET", call, ""); r.status != 200 || !sameJSON(t, string(r.body), want) {
			t.Errorf("%s: got %d %s, want %s", call, r.status, r.body, want)
		}
	}
	listed := []string{"templateID", "sandboxID", "clientID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state", "envdVersion", "metadata"}
	template := []string{"templateID", "buildID", "cpuCount", "memoryMB", "diskSizeMB", "public", "aliases", "names", "createdAt", "updatedAt", "createdBy", "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion", "buildStatus"}
	for call, keys := range map[string][]string{
		"/sandboxes": listed, "/v2/sandboxes": listed, "/templates": template, "/v2/templates": template, "/templates/base/tags": {"tag", "buildID", "createdAt"},
	} {
		var l []map[string]any
		b.control("GET", call, "").json(t, &l)
		for _, v := range l {
			has(t, call, v, keys)
		}
		if len(l) == 0 {
			t.Errorf("%s: there is nothing", call)
		}
	}
	for call, keys := range map[string][]string{
		"GET /templates/base":            {"templateID", "public", "aliases", "names", "createdAt", "updatedAt", "lastSpawnedAt", "spawnCount", "builds"},
		"GET /templates/aliases/base":    {"templateID", "public"},
		"POST /v2" + path + "/connect":   {"templateID", "sandboxID", "clientID", "envdVersion", "envdAccessToken"},
		"POST /v2/sandboxes":             {"templateID", "sandboxID", "clientID", "envdVersion", "envdAccessToken"},
		"GET /sandboxes/" + string(b.sb): append(listed, "allowInternetAccess"),
	} {
		method, call, _ := strings.Cut(call, " ")
		body := ""
		if call == "/v2/sandboxes" {
			body = `{"templateID":"base"}`
		}
		var v map[string]any
		b.control(method, call, body).json(t, &v)
		has(t, call, v, keys)
	}
	b.mu.Lock()
	b.templates = nil
	b.mu.Unlock()
	if r := b.control("GET", "/templates", ""); strings.TrimSpace(string(r.body)) != "[]" {
		t.Errorf("no templates: %s", r.body)
	}
}

func has(t *testing.T, what string, v map[string]any, keys []string) {
	t.Helper()
	for _, k := range keys {
		if _, ok := v[k]; !ok {
			t.Errorf("%s: %s is missing in %v", what, k, v)
		}
	}
}

func TestDomainIsTold(t *testing.T) {
	b := newBench(t)
	path := "/sandboxes/" + string(b.sb)
	for _, domain := range []string{"", "sbx.example:8443"} {
		b.api.cfg.Domain = domain
		for what, r := range map[string]reply{
			"create":  b.control("POST", "/v2/sandboxes", `{"templateID":"base"}`),
			"connect": b.control("POST", "/v2"+path+"/connect", ""),
			"info":    b.control("GET", path, ""),
		} {
			var v map[string]any
			r.json(t, &v)
			if got, there := v["domain"]; there != (domain != "") || there && got != domain {
				t.Errorf("%s with %q: got %s", what, domain, r.body)
			}
		}
	}
}

// TestStatusesOfFailedCalls: clients derive their classes of errors from both.
func TestStatusesOfFailedCalls(t *testing.T) {
	b := newBench(t)
	_, _, pid := b.start(startShell)
	b.put("there", "x")
	b.call("filesystem.Filesystem/MakeDir", `{"path":"dir"}`)
	for range maxWatchers {
		b.call("filesystem.Filesystem/CreateWatcher", `{"path":"dir"}`)
		<-b.watches
	}
	for _, c := range []struct {
		procedure, msg, code string
		status               int
		headers              []string
	}{
		{"filesystem.Filesystem/Stat", `{"path":"nope"}`, "not_found", 404, nil},
		{"filesystem.Filesystem/MakeDir", `{"path":"dir"}`, "already_exists", 409, nil},
		{"filesystem.Filesystem/ListDir", `{"path":"there"}`, "invalid_argument", 400, nil},
		{"filesystem.Filesystem/Stat", `{"path":`, "invalid_argument", 400, nil},
		{"filesystem.Filesystem/Stat", `{"path":"x"}`, "unauthenticated", 401, []string{"Authorization", "Basic " + b64("nobody-here:")}},
		{"filesystem.Filesystem/CreateWatcher", `{"path":"dir"}`, "resource_exhausted", 429, nil},
		{"process.Process/SendInput", fmt.Sprintf(`{"process":{"pid":%d},"input":{"stdin":"YQ=="}}`, pid), "internal", 500, nil},
	} {
		r := b.call(c.procedure, c.msg, c.headers...)
		var e struct{ Code, Message string }
		r.json(t, &e)
		if r.status != c.status || e.Code != c.code || e.Message == "" || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: got %d %s, want %d %s", c.procedure, c.msg, r.status, r.body, c.status, c.code)
		}
	}
}

// TestInnerCallsAreHidden: those that only E2B's own platform makes.
func TestInnerCallsAreHidden(t *testing.T) {
	b := newBench(t)
	for _, path := range []string{"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"} {
		r := b.agent("POST", path, strings.NewReader("{}"), "Content-Type", "application/json")
		var f failure
		if r.json(t, &f); r.status != 404 || f.Code != 404 {
			t.Errorf("%s: got %d %s", path, r.status, r.body)
		}
	}
}

// TestFiltersHaveTheirEffect: each member of a list's query leaves something out.
func TestFiltersHaveTheirEffect(t *testing.T) {
	b := newBench(t)
	first := b.create(`{"templateID":"base","metadata":{"n":"1","both":"x"}}`).SandboxID
	second := b.create(`{"templateID":"ns/my","metadata":{"n":"2","both":"x"}}`).SandboxID
	b.mu.Lock()
	b.sandboxes[second].State = hutch.StatePaused
	b.sandboxes[second].CreatedAt = time.Now().Add(time.Hour)
	b.mu.Unlock()
	after := "startedAfter=" + time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000Z")
	for query, want := range map[string][]hutch.SandboxID{
		"/v2/sandboxes?metadata=both%3Dx":                            {second, first},
		"/v2/sandboxes?metadata=both%3Dx&order=asc":                  {first, second},
		"/v2/sandboxes?metadata=both%3Dx%26n%3D1":                    {first},
		"/v2/sandboxes?metadata=both%3Dx&state=running":              {first},
		"/v2/sandboxes?metadata=both%3Dx&state=paused":               {second},
		"/v2/sandboxes?metadata=both%3Dx&state=paused,running":       {second, first},
		"/v2/sandboxes?metadata=both%3Dx&state=paused&state=running": {second, first},
		"/v2/sandboxes?metadata=both%3Dx&template=ns%2Fmy%3Adefault": {second},
		"/v2/sandboxes?metadata=both%3Dx&limit=1":                    {second},
		"/v2/sandboxes?" + after:                                     {second},
		"/sandboxes?metadata=both%3Dx":                               {first}, // what runs
		"/sandboxes?metadata=n%3D3":                                  {},
	} {
		var l []listedView
		b.control("GET", query, "").json(t, &l)
		got := []hutch.SandboxID{}
		for _, v := range l {
			got = append(got, v.SandboxID)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"/v2/sandboxes?limit=0", "/v2/sandboxes?limit=x", "/v2/sandboxes?state=running,asleep", "/sandboxes?metadata=%2525zz"} {
		if r := b.control("GET", query, ""); r.status != 400 {
			t.Errorf("%s: %d", query, r.status)
		}
	}
}

// TestSizesOfTerminals: as far as a terminal can have them.
func TestSizesOfTerminals(t *testing.T) {
	b := newBench(t)
	_, c, pid := b.start(`{"process":{"cmd":"sh"},"pty":{"size":{"cols":4000000000,"rows":1}}}`)
	if *c.x.Spec.Terminal != (hutch.TerminalSize{Rows: 1, Cols: hutch.MaxCols}) {
		t.Errorf("got %+v", c.x.Spec.Terminal)
	}
	if r := b.call("process.Process/Update", fmt.Sprintf(`{"process":{"pid":%d},"pty":{"size":{"cols":7,"rows":4000000000}}}`, pid)); r.status != 200 || c.size != (hutch.TerminalSize{Rows: hutch.MaxRows, Cols: 7}) {
		t.Errorf("got %d %s, %+v", r.status, r.body, c.size)
	}
}
