package e2bapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	nativeapi "hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/id"
)

// The rules that servers of E2B's API break, each with its test: those of the control API
// here, those of the agent in process_test.go and files_test.go.

func TestBodiesComeWithoutALength(t *testing.T) {
	b := newBench(t)
	v := b.create(`{"templateID":"base","timeout":77}`) // sent chunked, as everything of bench.control
	sb, err := b.SandboxByID(t.Context(), v.SandboxID)
	if err != nil || sb.TTL != 77*time.Second {
		t.Errorf("got %v, %v: the body was not read", sb.TTL, err)
	}
	if r := b.control("POST", "/sandboxes/"+string(v.SandboxID)+"/timeout", `{"timeout":10}`); r.status != http.StatusNoContent {
		t.Errorf("timeout: %d %s", r.status, r.body)
	}
}

func TestSuccessWithoutBodyIs204(t *testing.T) {
	b := newBench(t)
	sb := "/sandboxes/" + string(b.sb)
	for _, c := range []struct{ method, path, body string }{
		{"POST", sb + "/timeout", `{"timeout":60}`},
		{"POST", sb + "/refreshes", `{"duration":60}`},
		{"POST", sb + "/refreshes", ``},
		{"DELETE", sb, ``},
		{"DELETE", "/templates/ns%2Fmy%3Adefault", ``},
	} {
		if r := b.control(c.method, c.path, c.body); r.status != http.StatusNoContent || len(r.body) > 0 {
			t.Errorf("%s %s: got %d %q", c.method, c.path, r.status, r.body)
		}
	}
}

func TestErrorsHaveTheirStatusInTheBody(t *testing.T) {
	b := newBench(t)
	unknown := "/sandboxes/" + id.NewSandbox()
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", unknown, "", 404},
		{"DELETE", unknown, "", 404},
		{"GET", "/sandboxes/nonexistingsandbox", "", 404},
		{"POST", unknown + "/timeout", `{"timeout":5}`, 404},
		{"POST", "/v2" + unknown + "/connect", "", 404},
		{"POST", unknown + "/connect", `{"timeout":5}`, 404},
		{"GET", unknown + "/metrics", "", 404},
		{"GET", unknown + "/logs", "", 404},
		{"POST", "/v2/sandboxes", `{"templateID":"nope"}`, 404},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":0}`, 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":86401}`, 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":"60"}`, 400},
		{"POST", "/v2/sandboxes", `{"templateID":`, 400},
		{"POST", "/v2/sandboxes", ``, 400},
		{"POST", "/v2/sandboxes", `{}`, 400},
		{"GET", "/v2/sandboxes?limit=101", "", 400},
		{"GET", "/v2/sandboxes?state=asleep", "", 400},
		{"GET", "/v2/sandboxes?order=up", "", 400},
		{"GET", "/v2/sandboxes?startedAfter=yesterday", "", 400},
		{"GET", "/v2/sandboxes?metadata=%2525zz", "", 400},
		{"GET", "/v3/nothing", "", 404},
		{"GET", "/templates/aliases/nope", "", 404},
		{"DELETE", "/templates/snapshot%3Adefault", "", 404},
	} {
		r := b.control(c.method, c.path, c.body)
		var f failure
		r.json(t, &f)
		if r.status != c.status || f.Code != c.status || f.Message == "" {
			t.Errorf("%s %s %s: got %d %s, want %d", c.method, c.path, c.body, r.status, r.body, c.status)
		}
	}
}

func TestKeys(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		key, method, path string
		status            int
	}{
		{"", "GET", "/v2/sandboxes", 401},
		{"e2b_wrong", "GET", "/v2/sandboxes", 401},
		{readKey, "GET", "/v2/sandboxes", 200},
		{readKey, "DELETE", "/sandboxes/" + string(b.sb), 403},
		{otherKey, "GET", "/sandboxes/" + string(b.sb), 404},
		{otherKey, "DELETE", "/sandboxes/" + string(b.sb), 404},
		{readKey, "DELETE", "/templates/base", 403},
		{runKey, "DELETE", "/templates/base", 403},
		{runKey, "DELETE", "/templates/snapshot", 404},
		{runKey, "DELETE", "/sandboxes/" + string(b.sb), 204},
	} {
		r := b.do(c.method, c.path, nil, "X-API-KEY", c.key)
		var f failure
		if r.status >= 400 {
			r.json(t, &f)
		}
		if r.status != c.status || r.status >= 400 && f.Code != r.status {
			t.Errorf("%s %s with %q: got %d %s, want %d", c.method, c.path, c.key, r.status, r.body, c.status)
		}
	}
	if r := b.do("GET", "/v2/sandboxes", nil, "Authorization", "Bearer "+adminKey); r.status != 200 {
		t.Errorf("as a bearer: %d", r.status)
	}
}

func TestFailuresOfTheService(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		err    error
		status int
		retry  string
		slug   string
	}{
		{hutch.ErrRateLimited, 429, "1", ""},
		{&hutch.Error{Code: hutch.CodeNoCapacity, Message: "full", RetryAfter: 1500 * time.Millisecond}, 503, "2", "sandbox_capacity_unavailable"},
		{&hutch.Error{Code: hutch.CodeBudgetExhausted, Message: "used up", RetryAfter: 30 * 24 * time.Hour}, 402, "2592000", ""},
		{errors.New("a secret path"), 500, "", "internal_server_error"},
		{hutch.ErrForbidden, 403, "", ""},
	} {
		b.createErr = c.err
		r := b.control("POST", "/v2/sandboxes", `{"templateID":"base"}`)
		var f failure
		r.json(t, &f)
		if r.status != c.status || f.Code != c.status || f.ErrorCode != c.slug || r.header.Get("Retry-After") != c.retry || strings.Contains(f.Message, "secret") {
			t.Errorf("%v: got %d %s, Retry-After %q", c.err, r.status, r.body, r.header.Get("Retry-After"))
		}
	}
}

// TestEveryCodeIsShown holds the table of renderings against the codes there are.
func TestEveryCodeIsShown(t *testing.T) {
	for _, e := range nativeapi.ErrorCodes() {
		if _, ok := renderings[e.Code]; !ok {
			t.Errorf("%s is not in the table", e.Code)
		}
	}
}

func TestUnknownMembersAndNullsAreIgnored(t *testing.T) {
	b := newBench(t)
	b.create(`{"templateID":"base","forceUpload":true,"mcp":null,"iam":null,"network":null,"autoResume":null,"volumeMounts":null,"metadata":null,"envVars":null,"timeout":null,"secure":null,"allow_internet_access":null}`)
	b.create(`{"templateID":"base","volumeMounts":[],"mcp":{},"iam":{},"network":{},"autoPause":false,"autoPauseMemory":true,"autoResume":{"enabled":false},"allow_internet_access":false}`)
}

func TestMembersWithoutEffectAreRefused(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		body, says string
		status     int
	}{
		{`"autoPause":true`, "autoPause", 501},
		{`"autoPauseMemory":false`, "autoPauseMemory", 501},
		{`"autoResume":{"enabled":true}`, "autoResume", 501},
		{`"mcp":{"x":{}}`, "mcp", 501},
		{`"iam":{"tokens":{"a":{"audience":"x","tokenType":"JWT-SVID"}}}`, "iam", 501},
		{`"volumeMounts":[{"name":"v","path":"/mnt"}]`, "volumeMounts", 501},
		{`"network":{"allowOut":["1.1.1.1"]}`, "allowOut", 501},
		{`"network":{"httpsPorts":[443]}`, "httpsPorts", 501},
		{`"network":{"egressProxy":{"address":"a:1"}}`, "egressProxy", 501},
		{`"network":{"rules":{"h":[{}]}}`, "rules", 501},
		{`"network":{"denyOut":["example.com"]}`, "denyOut", 400},
		{`"network":{"maskRequestHost":"a b"}`, "maskRequestHost", 400},
		{`"network":{"maskRequestHost":"host:99999"}`, "maskRequestHost", 400},
	} {
		r := b.control("POST", "/v2/sandboxes", `{"templateID":"base",`+c.body+`}`)
		var f failure
		r.json(t, &f)
		if r.status != c.status || f.Code != c.status || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s: got %d %s", c.body, r.status, r.body)
		}
	}
	if len(b.order) != 1 {
		t.Errorf("%d sandboxes were made", len(b.order)-1)
	}
}

func TestCreate(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		path, body string
		ttl        time.Duration
		access     hutch.Access
	}{
		"v2 is secure":       {"/v2/sandboxes", `{"templateID":"base"}`, 300 * time.Second, hutch.Access{Surface: "e2b", Secure: true}},
		"v1 is open":         {"/sandboxes", `{"templateID":"base"}`, 15 * time.Second, hutch.Access{Surface: "e2b"}},
		"v1 secure":          {"/sandboxes", `{"templateID":"base","secure":true,"timeout":300}`, 300 * time.Second, hutch.Access{Surface: "e2b", Secure: true}},
		"private":            {"/v2/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`, 300 * time.Second, hutch.Access{Surface: "e2b", Secure: true, PrivatePorts: true}},
		"public":             {"/v2/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":true,"denyOut":["0.0.0.0/0","10.0.0.1"]}}`, 300 * time.Second, hutch.Access{Surface: "e2b", Secure: true}},
		"masked":             {"/v2/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"localhost:${PORT}"}}`, 300 * time.Second, hutch.Access{Surface: "e2b", Secure: true, MaskHost: "localhost:${PORT}"}},
		"by alias, with tag": {"/v2/sandboxes", `{"templateID":"default:default"}`, 300 * time.Second, hutch.Access{Surface: "e2b", Secure: true}},
	} {
		t.Run(name, func(t *testing.T) {
			r := b.control("POST", c.path, c.body)
			var v map[string]any
			r.json(t, &v)
			if r.status != 201 {
				t.Fatalf("got %d %s", r.status, r.body)
			}
			for _, k := range []string{"templateID", "sandboxID", "clientID", "envdVersion"} {
				if s, _ := v[k].(string); s == "" {
					t.Errorf("%s is missing: %s", k, r.body)
				}
			}
			sb, err := b.SandboxByID(t.Context(), hutch.SandboxID(v["sandboxID"].(string)))
			if err != nil {
				t.Fatal(err)
			}
			got := sb.Access
			if sb.TTL != c.ttl || fmt.Sprint(got) != fmt.Sprint(c.access) || sb.Template != "base" {
				t.Errorf("got %v, %+v, %q", sb.TTL, got, sb.Template)
			}
			if _, has := v["envdAccessToken"]; has != c.access.Secure {
				t.Errorf("envdAccessToken: %s", r.body)
			}
			if _, has := v["trafficAccessToken"]; has != c.access.PrivatePorts {
				t.Errorf("trafficAccessToken: %s", r.body)
			}
		})
	}
	if r := b.control("POST", "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`); r.status != 400 {
		t.Errorf("private without secure: %d", r.status)
	}
}

func TestIdempotencyKey(t *testing.T) {
	b := newBench(t)
	make := func(key, body string) reply {
		return b.control("POST", "/v2/sandboxes", body, "Idempotency-Key", key)
	}
	var first, again, other sandboxView
	make("k-1", `{"templateID":"base","metadata":{"a":"1"}}`).json(t, &first)
	make("k-1", `{"templateID":"base","metadata":{"a":"1"}}`).json(t, &again)
	make("k-2", `{"templateID":"base","metadata":{"a":"1"}}`).json(t, &other)
	if first.SandboxID != again.SandboxID || first.SandboxID == other.SandboxID || !id.ValidSandbox(string(first.SandboxID)) {
		t.Errorf("got %s, %s, %s", first.SandboxID, again.SandboxID, other.SandboxID)
	}
	if r := make("k-1", `{"templateID":"base","metadata":{"a":"2"}}`); r.status != 422 {
		t.Errorf("another request: %d %s", r.status, r.body)
	}
	if r := make("K 1", `{"templateID":"base"}`); r.status != 400 {
		t.Errorf("a key of another form: %d", r.status)
	}
	b.control("DELETE", "/sandboxes/"+string(first.SandboxID), "")
	if r := make("k-1", `{"templateID":"base","metadata":{"a":"1"}}`); r.status != 409 {
		t.Errorf("after its end: %d %s", r.status, r.body)
	}
}

func TestInfoHasWhatPythonNeeds(t *testing.T) {
	b := newBench(t)
	r := b.control("GET", "/sandboxes/"+string(b.sb)+"-hutch", "") // an id in its older form
	var v map[string]any
	r.json(t, &v)
	for _, k := range []string{"templateID", "sandboxID", "clientID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state", "envdVersion", "metadata", "network", "lifecycle", "volumeMounts"} {
		if v[k] == nil {
			t.Errorf("%s is missing: %s", k, r.body)
		}
	}
	if v["state"] != "running" || v["cpuCount"] != 2.0 || v["envdAccessToken"] != b.Token(b.sb, TokenAgent) {
		t.Errorf("got %s", r.body)
	}
}

func TestListsAreNeverNull(t *testing.T) {
	b := newBench(t)
	b.kill()
	for _, path := range []string{"/v2/sandboxes", "/sandboxes", "/v2/sandboxes?template=unknown", "/v2/sandboxes?metadata=a%3Db"} {
		if r := b.control("GET", path, ""); r.status != 200 || strings.TrimSpace(string(r.body)) != "[]" {
			t.Errorf("%s: got %d %s", path, r.status, r.body)
		}
	}
}

func TestListPages(t *testing.T) {
	b := newBench(t)
	var made []string
	for range 3 {
		made = append(made, string(b.create(`{"templateID":"base","metadata":{"set":"pages"}}`).SandboxID))
	}
	for _, order := range []string{"asc", "desc"} {
		var got []string
		token := ""
		for page := 0; ; page++ {
			r := b.control("GET", "/v2/sandboxes?metadata=set%3Dpages&limit=2&order="+order+"&nextToken="+url.QueryEscape(token), "")
			var l []listedView
			r.json(t, &l)
			for _, v := range l {
				got = append(got, string(v.SandboxID))
			}
			if token = r.header.Get("X-Next-Token"); token == "" {
				if _, there := r.header["X-Next-Token"]; there {
					t.Error("the header is there without a next page")
				}
				break
			}
		}
		want := fmt.Sprint(made)
		if order == "desc" {
			want = fmt.Sprint([]string{made[2], made[1], made[0]})
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, want %v", order, got, want)
		}
	}
}

// TestMetadataFilter: names and values are escaped, made a query of, and escaped again.
func TestMetadataFilter(t *testing.T) {
	b := newBench(t)
	v := b.create(`{"templateID":"base","metadata":{"a b":"c&d","p%q":"=+/ü"}}`)
	for _, filter := range []string{"metadata=a%252520b%3Dc%252526d", "metadata=" + url.QueryEscape(url.QueryEscape("p%25q")+"="+url.QueryEscape("%3D%2B%2F%C3%BC"))} {
		var l []listedView
		b.control("GET", "/v2/sandboxes?"+filter, "").json(t, &l)
		if len(l) != 1 || l[0].SandboxID != v.SandboxID {
			t.Errorf("%s: got %v", filter, l)
		}
	}
}

// What the native API never shows of its sandboxes is not shown here either; of one that was
// made here all is, as its clients expect.
func TestSecretMetadataOfNativeSandboxes(t *testing.T) {
	b := newBench(t)
	made := b.create(`{"templateID":"base","metadata":{"secret.k":"of-this-api"}}`)
	b.mu.Lock()
	native := *b.sandboxes[made.SandboxID]
	b.mu.Unlock()
	native.Access.Surface, native.Metadata = hutch.SurfaceNative, map[string]string{"secret.k": "of-the-other", "k": "shown"}
	if got := showListed(native).Metadata; len(got) != 1 || got["k"] != "shown" {
		t.Errorf("shown of a native one: %v", got)
	}
	if got := string(b.control("GET", "/v2/sandboxes", "").body); !strings.Contains(got, "of-this-api") {
		t.Errorf("one of this API: %s", got)
	}
}

func TestListFilters(t *testing.T) {
	b := newBench(t)
	b.control("GET", "/v2/sandboxes?state=running,paused&startedAfter=2026-01-02T03:04:05.678Z&template=base%3Adefault", "")
	q := b.queries[len(b.queries)-1]
	if fmt.Sprint(q.States) != "[running paused]" || q.Template != "base" || q.Since.UnixMilli() != 1767323045678 || q.Limit != 100 {
		t.Errorf("got %+v", q)
	}
	sb, _ := b.SandboxByID(t.Context(), b.sb)
	var l []listedView
	b.control("GET", "/v2/sandboxes?startedAfter="+showTime(sb.CreatedAt), "").json(t, &l)
	if len(l) != 1 {
		t.Error("a sandbox is not found by its own start")
	}
}

func TestEndOfASandbox(t *testing.T) {
	b := newBench(t)
	path := "/sandboxes/" + string(b.sb)
	endAt := func() time.Time {
		sb, err := b.SandboxByID(t.Context(), b.sb)
		if err != nil {
			t.Fatal(err)
		}
		return sb.ExpiresAt
	}
	near := func(what string, in time.Duration) {
		t.Helper()
		if d := time.Until(endAt()) - in; d > 2*time.Second || d < -2*time.Second {
			t.Errorf("%s: it ends in %v, want %v", what, time.Until(endAt()), in)
		}
	}
	before := endAt()
	if r := b.control("POST", "/v2"+path+"/connect", `{"timeout":10}`); r.status != 200 || !endAt().Equal(before) {
		t.Errorf("connect made it end sooner: %d, %v, was %v", r.status, endAt(), before)
	}
	if r := b.control("POST", "/v2"+path+"/connect", ""); r.status != 200 {
		t.Errorf("connect without a body: %d", r.status)
	}
	b.control("POST", path+"/connect", `{"timeout":1000}`)
	near("connect", 1000*time.Second)
	b.control("POST", path+"/timeout", `{"timeout":5}`)
	near("timeout", 5*time.Second)
	b.control("POST", path+"/refreshes", `{"duration":100}`)
	near("refresh", 100*time.Second)
	b.control("POST", path+"/timeout", `{"timeout":9999999}`)
	near("a timeout beyond the most", 24*time.Hour)
	b.control("POST", path+"/timeout", `{"timeout":-1}`)
	near("a timeout that is over", 0)
	for body, status := range map[string]int{`{}`: 400, `{"timeout":0}`: 400} {
		if r := b.control("POST", path+"/connect", body); r.status != status {
			t.Errorf("connect %s: %d", body, r.status)
		}
	}
	if r := b.control("POST", path+"/resume", ""); r.status != 409 {
		t.Errorf("resume of one that runs: %d", r.status)
	}
	if r := b.control("POST", path+"/refreshes", `{"duration":3601}`); r.status != 400 {
		t.Errorf("a refresh beyond the most: %d", r.status)
	}
}

func TestPausedElsewhere(t *testing.T) {
	b := newBench(t)
	pause := func() { b.mu.Lock(); b.sandboxes[b.sb].State = hutch.StatePaused; b.mu.Unlock() }
	pause()
	var v detailView
	b.control("GET", "/sandboxes/"+string(b.sb), "").json(t, &v)
	if v.State != "paused" {
		t.Errorf("got state %q", v.State)
	}
	if r := b.agent("GET", "/health", nil); r.status != 502 {
		t.Errorf("health: %d", r.status)
	}
	if r := b.control("POST", "/v2/sandboxes/"+string(b.sb)+"/connect", `{"memory":false}`); r.status != 501 {
		t.Errorf("connect without memory: %d", r.status)
	}
	if r := b.control("POST", "/v2/sandboxes/"+string(b.sb)+"/connect", ""); r.status != 201 {
		t.Errorf("connect: %d %s", r.status, r.body)
	}
	pause()
	if r := b.control("POST", "/sandboxes/"+string(b.sb)+"/resume", `{"timeout":20}`); r.status != 201 {
		t.Errorf("resume: %d %s", r.status, r.body)
	}
	if r := b.agent("GET", "/health", nil); r.status != 204 {
		t.Errorf("health afterwards: %d", r.status)
	}
}

func TestEscapedNames(t *testing.T) {
	b := newBench(t)
	for path, status := range map[string]int{
		"/templates/aliases/ns%2Fmy": 200, "/templates/aliases/ns%2Fmy%3Adefault": 200, "/templates/aliases/ns%2Fmy%3Av1": 404,
		"/templates/ns%2Fmy": 200, "/templates/ns%2Fmy/tags": 200, "/templates/aliases/tags": 404, "/templates/ns/my": 404,
	} {
		if r := b.control("GET", path, ""); r.status != status {
			t.Errorf("%s: got %d %s, want %d", path, r.status, r.body, status)
		}
	}
	b.control("DELETE", "/templates/ns%2Fmy%3Adefault", "")
	if fmt.Sprint(b.deleted) != "[ns/my]" {
		t.Errorf("deleted %v", b.deleted)
	}
}

func TestTemplates(t *testing.T) {
	b := newBench(t)
	for _, path := range []string{"/templates", "/v2/templates"} {
		var l []map[string]any
		b.control("GET", path, "").json(t, &l)
		if len(l) != 2 || l[0]["templateID"] != "base" || fmt.Sprint(l[0]["names"]) != "[base default]" || l[1]["buildStatus"] != "ready" {
			t.Errorf("%s: got %v", path, l)
		}
	}
}

// TestNotBuilt: what is not here answers 501 and a sentence, lists too, whatever is asked.
func TestNotBuilt(t *testing.T) {
	b := newBench(t)
	for _, rt := range unsupportedRoutes() {
		method, pattern, _ := strings.Cut(rt.pattern, " ")
		path := strings.NewReplacer("{id}", string(b.sb), "{name}", "base", "{build}", "b", "{hash}", "h", "{volume}", "v", "{secret}", "s", "{team}", "t").Replace(pattern)
		r := b.control(method, path, "")
		var f failure
		r.json(t, &f)
		if r.status != 501 || f.Code != 501 || len(f.Message) < 30 {
			t.Errorf("%s %s: got %d %s", method, path, r.status, r.body)
		}
	}
	if r := b.do("GET", "/volumes", nil); r.status != 401 {
		t.Errorf("without a key: %d", r.status)
	}
}

func TestMetricsOfSandboxes(t *testing.T) {
	b := newBench(t)
	path := "/sandboxes/" + string(b.sb) + "/metrics"
	if r := b.control("GET", path, ""); strings.TrimSpace(string(r.body)) != "[]" {
		t.Errorf("before the first: %s", r.body)
	}
	for i := range 4 {
		b.samples = append(b.samples, hutch.Sample{At: time.Unix(1000+int64(i)*5, 5e8), CPUs: 4, CPUPercent: 200, Memory: 10, MemoryMax: 20, Disk: 30, DiskMax: 40})
	}
	var l []map[string]any
	b.control("GET", path+"?start=1005&end=1010", "").json(t, &l)
	if len(l) != 2 || l[0]["timestampUnix"] != 1005.0 || l[0]["cpuUsedPct"] != 50.0 || l[0]["memUsed"] != 10.0 || l[0]["diskTotal"] != 40.0 || l[0]["memCache"] != 0.0 || l[0]["cpuCount"] != 4.0 {
		t.Errorf("got %v", l)
	}
	var many struct{ Sandboxes map[string]metricView }
	b.control("GET", "/sandboxes/metrics?sandbox_ids="+string(b.sb)+","+id.NewSandbox(), "").json(t, &many)
	if len(many.Sandboxes) != 1 || many.Sandboxes[string(b.sb)].CPUUsed != 50 {
		t.Errorf("got %v", many)
	}
	for _, bad := range []string{path + "?start=x", "/sandboxes/metrics", "/sandboxes/metrics?sandbox_ids=" + strings.Repeat("a,", 101)} {
		if r := b.control("GET", bad, ""); r.status != 400 {
			t.Errorf("%.60s: %d", bad, r.status)
		}
	}
}

func TestLogs(t *testing.T) {
	b := newBench(t)
	for i := range 4 {
		l := hutch.LogLine{At: time.UnixMilli(int64(1000 * (i + 1))), Exec: "e1", Stream: hutch.Stdout, Text: fmt.Sprintf("line %d", i)}
		if i == 2 {
			l.Stream = hutch.Stderr
		}
		b.lines = append(b.lines, l)
	}
	path := "/sandboxes/" + string(b.sb) + "/logs"
	texts := func(query string) string {
		t.Helper()
		var v struct{ Logs []logEntry }
		r := b.control("GET", "/v2"+path+query, "")
		r.json(t, &v)
		var out []string
		for _, l := range v.Logs {
			out = append(out, l.Message)
		}
		return strings.Join(out, ",")
	}
	for query, want := range map[string]string{
		"":                                   "line 0,line 1,line 2,line 3",
		"?limit=2":                           "line 0,line 1",
		"?cursor=2000":                       "line 1,line 2,line 3",
		"?direction=backward&limit=2":        "line 3,line 2",
		"?direction=backward&cursor=3000":    "line 1,line 0",
		"?direction=backward&limit=1&level=": "line 3",
		"?level=error":                       "line 2",
		"?search=3":                          "line 3",
	} {
		if got := texts(query); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
	// Commands come one after another, whenever their lines were written.
	for i := range 4 {
		b.lines = append(b.lines, hutch.LogLine{At: time.UnixMilli(int64(i)), Exec: "e2", Stream: hutch.Stdout, Text: fmt.Sprintf("early %d", i)})
	}
	for query, want := range map[string]string{"?direction=backward&limit=1": "line 3", "?limit=1": "early 0", "?limit=0": ""} {
		if got := texts(query); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
	var v1 struct {
		Logs       []logLine
		LogEntries []logEntry
	}
	b.control("GET", path+"?start=3000", "").json(t, &v1)
	if len(v1.Logs) != 2 || v1.Logs[0].Line != "line 2" || v1.LogEntries[0].Level != "error" {
		t.Errorf("got %+v", v1)
	}
	for _, bad := range []string{"?limit=1001", "?direction=up", "?level=loud", "?cursor=now"} {
		if r := b.control("GET", "/v2"+path+bad, ""); r.status != 400 {
			t.Errorf("%s: %d", bad, r.status)
		}
	}
}

func TestAuditAndMetrics(t *testing.T) {
	b := newBench(t)
	b.control("GET", "/sandboxes/"+string(b.sb), "")
	b.kill()
	b.control("DELETE", "/sandboxes/"+string(b.sb), "")
	b.do("HEAD", "/sandboxes/"+string(b.sb), nil, "X-API-KEY", adminKey)
	b.do("BREW", "/sandboxes", nil)
	var got []string
	for _, e := range b.audit {
		got = append(got, fmt.Sprintf("%s %s %s %d %v %s", e.Method, e.Route, e.Key, e.Status, e.Sandbox == b.sb, e.Project))
	}
	want := "[POST /v2/sandboxes aaaaaaaa 201 true default DELETE /sandboxes/{id} aaaaaaaa 204 true default DELETE /sandboxes/{id} aaaaaaaa 404 true default]"
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	if all := fmt.Sprint(b.requests); !strings.Contains(all, "GET e2b /sandboxes/{id} 200") || !strings.Contains(all, "other e2b other 401") || strings.Contains(all, "BREW") {
		t.Errorf("got %v", b.requests)
	}
}

// TestRouting: what is not for this API is left to the next, whatever its path.
func TestRouting(t *testing.T) {
	b := newBench(t)
	sb := string(b.sb)
	for name, c := range map[string]struct {
		path    string
		headers []string
		status  int
	}{
		"native":                    {"/v1/sandboxes", nil, 418},
		"root":                      {"/", nil, 418},
		"another port by header":    {"/sandboxes", []string{HeaderSandbox, sb, HeaderPort, "8000"}, 418},
		"another port by host":      {"/sandboxes", []string{"Host", "8000-" + sb + ".localhost:80"}, 418},
		"agent by header":           {"/health", []string{HeaderSandbox, sb, HeaderPort, "49983"}, 204},
		"agent by host":             {"/health", []string{"Host", "49983-" + sb + ".example.com"}, 204},
		"half an address":           {"/health", []string{HeaderSandbox, sb}, 418},
		"other half":                {"/files", []string{HeaderPort, "49983"}, 418},
		"bad port":                  {"/health", []string{HeaderSandbox, sb, HeaderPort, "x"}, 418},
		"an ordinary host":          {"/v2/sandboxes", []string{"Host", "10-0.example.com", "X-API-KEY", adminKey}, 200},
		"a file without signature":  {"/files?path=x", nil, 401},
		"a path that begins alike":  {"/sandboxesX", nil, 418},
		"agent of no sandbox":       {"/health", []string{HeaderSandbox, "nope", HeaderPort, "49983"}, 502},
		"interpreter not there":     {"/execute", []string{HeaderSandbox, sb, HeaderPort, "49999"}, 404},
		"its contexts, by host":     {"/contexts", []string{"Host", "49999-" + sb + ".localhost"}, 404},
		"its contexts, with token":  {"/contexts", []string{HeaderSandbox, sb, HeaderPort, "49999", HeaderToken, b.Token(b.sb, TokenAgent)}, 404},
		"interpreter of no sandbox": {"/execute", []string{HeaderSandbox, "nope", HeaderPort, "49999"}, 418},
	} {
		if r := b.do("GET", c.path, nil, c.headers...); r.status != c.status {
			t.Errorf("%s: got %d %s, want %d", name, r.status, r.body, c.status)
		}
	}
	b.ports[InterpreterPort] = true
	for _, path := range []string{"/execute", "/contexts", "/contexts/c1/restart"} { // of which only the first comes with a token
		if r := b.do("POST", path, strings.NewReader("{}"), HeaderSandbox, sb, HeaderPort, "49999"); r.status != 418 {
			t.Errorf("an interpreter of the sandbox's own: %s: %d", path, r.status)
		}
	}
}

func TestCallsWaitForRecovery(t *testing.T) {
	b := newBench(t)
	ready := make(chan struct{})
	asked := make(chan struct{}, 1)
	b.api.svc.Recovered = func() bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-ready:
			return true
		default:
			return false
		}
	}
	got := make(chan int, 2)
	go func() { got <- b.control("GET", "/sandboxes/"+string(b.sb), "").status }()
	go func() { got <- b.agent("GET", "/health", nil).status }()
	<-asked
	select {
	case s := <-got:
		t.Fatalf("answered %d too early", s)
	default:
	}
	close(ready)
	if s := <-got + <-got; s != 404 { // 200 and 204
		t.Errorf("got %d in all", s)
	}
}

// TestBodyTimeout: a body that does not come is not waited for, a call that takes long is.
func TestBodyTimeout(t *testing.T) {
	b := newBench(t)
	b.api.cfg.BodyTimeout = 50 * time.Millisecond
	begun, goOn := make(chan struct{}), make(chan struct{})
	b.creating = func() { close(begun); <-goOn }
	got := make(chan reply, 1)
	go func() { defer close(got); got <- b.control("POST", "/v2/sandboxes", `{"templateID":"base"}`) }()
	<-begun
	b.creating = nil
	pipe, stall := io.Pipe()
	if r := b.do("POST", "/v2/sandboxes", pipe, "X-API-KEY", adminKey); r.status != 400 {
		t.Errorf("a body that does not come: %d %s", r.status, r.body)
	}
	_ = stall.Close()
	close(goOn) // more than the time of a body has passed
	if r := <-got; r.status != 201 {
		t.Errorf("a call that takes long: %d %s", r.status, r.body)
	}
}

func TestBodyThatIsTooLarge(t *testing.T) {
	b := newBench(t)
	r := b.do("POST", "/v2/sandboxes", io.LimitReader(zeros{}, maxBody+1), "X-API-KEY", adminKey)
	if r.status != 413 {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestSandboxIDs: clients make host names of ids, and cut them at hyphens.
func TestSandboxIDs(t *testing.T) {
	b := newBench(t)
	for range 20 {
		sb, err := idempotentID(hutch.APIKey{Hash: []byte("h")}, id.NewSandbox())
		if err != nil || !id.ValidSandbox(string(sb)) {
			t.Errorf("%q %v", sb, err)
		}
	}
	if !id.ValidSandbox(string(b.sb)) {
		t.Errorf("%q", b.sb)
	}
}

func TestSigners(t *testing.T) {
	var s signers
	now := time.Now()
	if !s.mayLook(now) || s.mayLook(now.Add(lookEvery-1)) || !s.mayLook(now.Add(lookEvery)) {
		t.Error("the records can be had read at another rate")
	}
	s.add("old")
	s.add("gone")
	began := time.Now()
	s.add("new") // while they are read
	s.replace(map[hutch.SandboxID]time.Time{"old": began}, began)
	for id, want := range map[hutch.SandboxID]bool{"old": true, "new": true, "gone": false} {
		if _, ok := s.find(func(x hutch.SandboxID) bool { return x == id }); ok != want {
			t.Errorf("%s is known: %v", id, ok)
		}
	}
	s.forget("old")
	if id, ok := s.find(func(hutch.SandboxID) bool { return true }); !ok || id != "new" {
		t.Errorf("got %q, %v", id, ok)
	}
}

// A body that is announced and does not come holds no connection of who has shown nothing.
func TestBodiesOfStrangers(t *testing.T) {
	b := newBench(t)
	b.api.cfg.BodyTimeout = 50 * time.Millisecond
	agent := fmt.Sprintf("%s: %s\r\n%s: %d\r\n", HeaderSandbox, b.sb, HeaderPort, AgentPort)
	for name, head := range map[string]string{
		"no key":       "POST /v2/sandboxes HTTP/1.1\r\n",
		"no token":     "POST /process.Process/List HTTP/1.1\r\nContent-Type: application/json\r\n" + agent,
		"no signature": "POST /files?path=x HTTP/1.1\r\n" + agent,
		"health":       "POST /health HTTP/1.1\r\n" + agent,
		"no sandbox":   "POST /files?path=x&signature=" + strings.Repeat("x", signatureLength) + " HTTP/1.1\r\n",
	} {
		conn, err := net.Dial("tcp", b.srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := fmt.Fprintf(conn, "%sHost: x\r\nContent-Length: 4\r\n\r\nbo", head); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("%s: %.40q, then %v; want a refusal and the end of the connection", name, got, err)
		}
		_ = conn.Close()
	}
	// Who is known may take its time.
	pipe, slow := io.Pipe()
	time.AfterFunc(150*time.Millisecond, func() { _, _ = io.WriteString(slow, "slow"); _ = slow.Close() })
	if r := b.agent("POST", "/files?path=slow", pipe, "Content-Type", "application/octet-stream"); r.status != 200 {
		t.Errorf("a slow upload: %d %s", r.status, r.body)
	}
}
