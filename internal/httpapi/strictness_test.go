package httpapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"go.yaml.in/yaml/v3"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
)

// call is an operation of native.yaml, with ids in its path that lead somewhere.
type call struct {
	name, method, path string
	query              []string // its parameters, without those that may be given several times
	json, raw          bool     // the kind of its body; neither = it takes none
}

func (c call) changes() bool { return c.method != "GET" }

// at is its path with a query, and the path of a file in that where one is needed.
func (c call) at(query string) string {
	if slices.Contains(c.query, "path") && !strings.HasPrefix(query, "path=") {
		query += "&path=/f"
	}
	return c.path + "?" + strings.TrimPrefix(query, "&")
}

// documented lists the operations of native.yaml for a sandbox in which there is something
// to show for each of them.
func (b *bench) documented() []call {
	b.t.Helper()
	sb := string(into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"lease_seconds": 60}`).want(201)).ID)
	at := "/v1/sandboxes/" + sb
	b.Program("shell", shellProgram)
	x := into[api.Exec](b.do("POST", at+"/exec", `{"cmd": "shell", "background": true, "terminal": {}, "stdin_open": true}`).want(202))
	w := into[api.Watcher](b.do("POST", at+"/fs/watchers", `{"path": "/tmp"}`).want(201))
	build := into[api.Build](b.do("POST", "/v1/templates/build", `{"name": "t", "image_ref": "registry.example/a:1"}`).want(202))
	k := into[api.Key](b.do("POST", "/v1/keys", `{}`).want(201))
	b.Inside.SetShell(hutch.Shell{Name: "base"})
	b.Inside.Put("/f", []byte("x"))
	b.do("POST", at+"/ports", `{"port": 3000}`).want(201)
	ids := strings.NewReplacer("{id}", sb, "{exec}", string(x.ExecID), "{watcher}", w.WatcherID, "{build}", build.ID,
		"{name}", "base", "{prefix}", k.Prefix, "{port}", "3000")

	var doc struct {
		Paths map[string]map[string]struct {
			ID         string `yaml:"operationId"`
			Parameters []struct {
				Name, In string
				Schema   struct{ Type string }
			}
			Body *struct{ Content map[string]any } `yaml:"requestBody"`
		}
	}
	if err := yaml.Unmarshal(api.OpenAPI, &doc); err != nil {
		b.t.Fatal(err)
	}
	var all []call
	for path, ops := range doc.Paths {
		for method, op := range ops {
			if op.ID == "proxy" {
				continue // its query and its body are those of a server inside
			}
			c := call{name: op.ID, method: strings.ToUpper(method), path: ids.Replace(path)}
			for _, p := range op.Parameters {
				if p.In == "query" && p.Schema.Type != "array" && p.Schema.Type != "object" {
					c.query = append(c.query, p.Name)
				}
			}
			if op.Body != nil {
				_, c.json = op.Body.Content["application/json"]
				c.raw = !c.json
			}
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b call) int { return strings.Compare(a.name, b.name) })
	return all
}

// Nothing that is accepted is ignored.
func TestWhatNoCallKnowsIsRefusedByAll(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	all := b.documented()
	if len(all) < 60 {
		t.Fatalf("native.yaml has %d operations", len(all))
	}
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			b := *b
			b.t = t
			b.do(c.method, c.at("nosuch=1"), "").wantError(400, "unknown_field", "nosuch")
			for _, p := range c.query {
				b.do(c.method, c.at(p+"=1&"+p+"=1"), "").wantError(400, "bad_request", p)
			}
			if c.changes() && !c.raw {
				b.do(c.method, c.at(""), `{"nosuch": 1}`).wantError(400, "unknown_field", "nosuch")
			}
		})
	}
}

func TestObjectsWithinBodiesAreReadAsStrictly(t *testing.T) {
	b := newTerminalBench(t, httpapi.Config{})
	at := "/v1/sandboxes/" + b.sandbox()
	for terminal, code := range map[string]string{
		`{"height": 5}`:           "unknown_field",
		`{"ROWS": 5}`:             "unknown_field",
		`{"rows": 5, "rows": 6}`:  "bad_request",
		`{"rows": "5"}`:           "bad_request",
		`{"rows": 5, "cols": {}}`: "bad_request",
		`[5, 6]`:                  "bad_request",
	} {
		a := b.do("POST", at+"/exec", `{"cmd": "shell", "background": true, "terminal": `+terminal+`}`).want(400)
		if e := into[api.Error](a); string(e.Code) != code || !strings.HasPrefix(e.Field, "terminal") || strings.Contains(e.Error, "something else") {
			t.Errorf("%s: %+v", terminal, e)
		}
	}
	for _, frame := range []string{`{"resize": {"rows": 5, "cols": 6, "depth": 7}}`, `{"resize": {"rows": 5, "cols": 6, "cols": 7}}`, `{"resize": {"rows": 5}}`} {
		w := b.ws(at + "/ssh")
		w.output("24x80 xterm-256color$ ")
		w.send(websocket.MessageText, frame)
		w.ends(websocket.StatusPolicyViolation)
	}
	w := b.ws(at + "/exec/ws")
	w.send(websocket.MessageText, `{"id": "1", "cancel": true, "timeout_seconds": 5}`)
	w.ends(websocket.StatusPolicyViolation)
}

func TestFlagsOfFormsAreFlags(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	send := func(force string) answer {
		return b.do("POST", "/v1/templates/build", "name=x&image_ref=y&force="+force, "Content-Type", "application/x-www-form-urlencoded")
	}
	for force, want := range map[string]bool{"1": true, "true": true, "0": false, "false": false} {
		send(force).want(202)
		if got := b.Requested[len(b.Requested)-1].Force; got != want {
			t.Errorf("force=%s is %v", force, got)
		}
	}
	send("yes").wantError(400, "bad_request", "force")
}

// A repetition under one key gets the answer of the first attempt, whatever it was about.
func TestEveryCallCanBeRepeatedUnderItsKey(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	all := b.documented()
	bodies := map[string]string{
		"updateSandbox": `{"metadata": {"a": "b"}}`, "updateLifecycle": `{"ttl_seconds": 60}`,
		"exec": `{"cmd": "echo x"}`, "execStream": `{"cmd": "echo x"}`, "signalExec": `{"signal": "HUP"}`,
		"resizeExec": `{"rows": 5, "cols": 6}`, "createWatcher": `{"path": "/tmp"}`, "makeDirectory": `{"path": "/made"}`,
		"moveFile": `{"from": "/f", "to": "/g"}`, "setPort": `{"port": 8000}`, "buildTemplate": `{"name": "x", "image_ref": "y"}`,
	}
	queries := map[string]string{"removeFile": "?path=/made"}
	// What others need, or end, comes in this order; all else before it.
	order := []string{"makeDirectory", "removeFile", "revokeKey", "cancelExec", "pauseSandbox", "resumeSandbox", "killSandbox"}
	slices.SortStableFunc(all, func(x, y call) int { return slices.Index(order, x.name) - slices.Index(order, y.name) })
	n := 0
	for _, c := range all {
		switch {
		case !c.changes(), c.raw, c.name == "revokeToken": // which is revokeKey's other name
			continue
		case c.name == "renewSandbox": // each attempt renews: see TestLeases
			continue
		}
		n++
		send := func(body string) answer {
			return b.do(c.method, c.path+queries[c.name], body, api.HeaderIdempotencyKey, c.name)
		}
		body := bodies[c.name]
		if body == "" && c.json {
			body = "{}"
		}
		first, second := send(body), send(body)
		if first.status < 200 || first.status >= 300 || first.header.Get(api.HeaderReplayed) != "" {
			t.Errorf("%s: status %d, replayed %q: %s", c.name, first.status, first.header.Get(api.HeaderReplayed), first.body)
			continue
		}
		if second.status != first.status || second.header.Get(api.HeaderReplayed) != "true" {
			t.Errorf("%s: repeated to %d, replayed %q: %s", c.name, second.status, second.header.Get(api.HeaderReplayed), second.body)
		}
		if c.name != "createKey" && c.name != "createToken" && string(second.body) != string(first.body) { // a key is shown once
			t.Errorf("%s: repeated to %s, first %s", c.name, second.body, first.body)
		}
		send(body+" ").wantError(422, "idempotency_mismatch", "")
	}
	if n < 24 {
		t.Errorf("%d calls were repeated", n)
	}
}
