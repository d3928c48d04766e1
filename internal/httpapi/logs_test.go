package httpapi_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestLogs(t *testing.T) {
	b := newBench(t, quick)
	sb := b.sandbox()
	logs := "/v1/sandboxes/" + sb + "/logs"
	a := b.do("GET", logs, "").want(200)
	if string(a.body) != "" || a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("no logs are %q, %s", a.body, a.header)
	}
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "echo   one"}`).want(200)
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "echo {\"error\":\"é\"}"}`).want(200)
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "nothing"}`).want(200)
	all := "one\n{\"error\":\"é\"}\nnothing: not found\n"
	for query, want := range map[string]string{
		"": all, "?stream=both&follow=0": all, "?follow=false": all, "?tail=1": "nothing: not found\n",
		"?stream=stderr": "nothing: not found\n", "?stream=stdout&tail=1": "{\"error\":\"é\"}\n",
	} {
		if got := string(b.do("GET", logs+query, "").want(200).body); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
	b.do("GET", logs+"?stream=stdin", "").wantError(400, "bad_request", "stream")
	b.do("GET", "/v1/sandboxes/none/logs?follow=1", "").wantError(404, "not_found", "")
	for _, follow := range []string{"1", "true"} {
		evs := b.events(b.send(b.request("GET", logs+"?follow="+follow, "")))
		if len(evs) != 3 || evs[0].Name != api.EventLine {
			t.Fatalf("followed: %+v", evs)
		}
		// An application's own JSON must not be taken for ours.
		if l := eventData[api.LogLine](t, evs[1]); l.Line != `{"error":"é"}` || l.Stream != hutch.Stdout || l.ExecID == "" {
			t.Errorf("a line is %+v", l)
		}
	}
}

func TestTailOfEvents(t *testing.T) {
	b := newBench(t, quick)
	sb := b.sandbox()
	for range 5 {
		b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "true"}`).want(200)
	}
	events := "/v1/sandboxes/" + sb + "/events"
	got := into[api.Events](b.do("GET", events+"?tail=2", "").want(200))
	if len(got.Events) != 2 || got.Events[1].Seq != 6 || got.Events[1].Type != "exec.started" {
		t.Errorf("the last two are %+v", got)
	}
	if got := into[api.Events](b.do("GET", events+"?tail=50", "").want(200)); len(got.Events) != 6 {
		t.Errorf("of six the last fifty are %d", len(got.Events))
	}
	in := newEventReader(b.send(b.request("GET", events+"?tail=1&follow=1", "")).Body)
	if ev := eventData[api.Event](t, in.next(t)); ev.Seq != 6 {
		t.Errorf("following begins with %+v", ev)
	}
	b.do("GET", events+"?tail=1&after=3", "").wantError(400, "bad_request", "tail")
	b.do("GET", events+"?tail=1001", "").wantError(400, "bad_request", "tail")
}

// form is a multipart body of fields, and of files by name.
func form(t *testing.T, fields, files map[string]string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for k, v := range fields {
		if err := w.WriteField(k, v); err != nil {
			t.Fatal(err)
		}
	}
	for k, v := range files {
		part, err := w.CreateFormFile(k, k)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write([]byte(v))
	}
	_ = w.Close()
	return b.String(), w.FormDataContentType()
}

func TestBuilds(t *testing.T) {
	b := newBench(t, quick)
	if got := string(b.do("GET", "/v1/templates/builds", "").want(200).body); got != "[]\n" {
		t.Errorf("no builds are %s", got)
	}
	fields := map[string]string{"name": "mine", "image_ref": "registry.example/a:1", "size_mb": "1024", "cpu": "1.5", "memory_mb": "512", "profile": "locked"}
	body, typ := form(t, fields, nil)
	multi := into[api.Build](b.do("POST", "/v1/templates/build", body, "Content-Type", typ).want(202))
	if multi.Name != "mine" || multi.Status != "queued" || multi.ID == "" || multi.StartedAt.IsZero() {
		t.Errorf("queued %+v", multi)
	}
	values := url.Values{}
	for k, v := range fields {
		values.Set(k, v)
	}
	b.do("POST", "/v1/templates/build", values.Encode(), "Content-Type", "application/x-www-form-urlencoded").want(202)
	b.do("POST", "/v1/templates/build", `{"name": "mine", "image_ref": "registry.example/a:1", "size_mb": 1024, "cpu": 1.5, "memory_mb": 512, "profile": "locked"}`).want(202)
	for i, req := range b.Requested {
		if req.Name != "mine" || req.ImageRef != "registry.example/a:1" || req.Resources != (hutch.Resources{MilliCPU: 1500, MemoryMB: 512, DiskMB: 10240}) || req.Profile != hutch.ProfileLocked || req.Project != hutch.DefaultProject {
			t.Errorf("request %d: %+v", i, req)
		}
	}
	once := into[api.Build](b.do("POST", "/v1/templates/build", `{"name": "x", "image_ref": "y", "disk_mb": 50, "size_mb": 20000}`, "Idempotency-Key", "k").want(202))
	again := into[api.Build](b.do("POST", "/v1/templates/build", `{"name": "x", "image_ref": "y", "disk_mb": 50, "size_mb": 20000}`, "Idempotency-Key", "k").want(202))
	if once.ID != again.ID || len(b.Requested) != 4 || b.Requested[3].Resources.DiskMB != 50 || b.Requested[3].ID != once.ID {
		t.Errorf("a repetition made %s of %s; requested %+v", again.ID, once.ID, b.Requested[3:])
	}
	b.do("POST", "/v1/templates/build", `{"name": "large", "image_ref": "y", "size_mb": 20000}`).want(202)
	if got := b.Requested[4].Resources.DiskMB; got != 20000 {
		t.Errorf("a size of 20000 MB makes sandboxes of %d", got)
	}
	if list := into[[]api.Build](b.do("GET", "/v1/templates/builds", "").want(200)); len(list) != 5 || list[1].ID != once.ID {
		t.Errorf("listed %+v", list)
	}

	res := b.send(b.request("GET", "/v1/templates/builds/"+multi.ID+"/logs?follow=1", ""))
	b.EndBuild(multi.ID, "", "pull  layer", "end", `{"error":"x"}`, "two\u2028lines é")
	raw := new(strings.Builder)
	if _, err := fmt.Fprint(raw, readAll(t, res.Body)); err != nil {
		t.Fatal(err)
	}
	if want := "data: pull  layer\n\ndata: | end\n\ndata: | {\"error\":\"x\"}\n\ndata: two lines é\n\nevent: done\ndata: end\n\n"; !strings.HasSuffix(raw.String(), want) {
		t.Errorf("the log is %q, want it to end in %q", raw, want)
	}
	if got := readAll(t, b.send(b.request("GET", "/v1/templates/builds/"+multi.ID+"/logs?from=3", "")).Body); strings.Contains(got, "pull") || !strings.Contains(got, "lines") {
		t.Errorf("from line 3 on: %q", got)
	}
	if got := readAll(t, b.send(b.request("GET", "/v1/templates/builds/"+once.ID+"/logs", "")).Body); !strings.HasSuffix(got, "event: done\ndata: end\n\n") {
		t.Errorf("what there is so far: %q", got)
	}
	done := into[api.Build](b.do("GET", "/v1/templates/builds/"+multi.ID, "").want(200))
	if done.Status != "done" || done.SizeMB != 6 || done.Bytes != 5<<20+1 || done.EndedAt.IsZero() || done.Error != "" {
		t.Errorf("done: %+v", done)
	}
	b.EndBuild(once.ID, "there is no such image")
	if f := into[api.Build](b.do("GET", "/v1/templates/builds/"+once.ID, "").want(200)); f.Status != "failed" || f.Error != "there is no such image" {
		t.Errorf("failed: %+v", f)
	}
}

func TestBuildsThatCannotBe(t *testing.T) {
	b := newBench(t, quick)
	build := "/v1/templates/build"
	for name, c := range map[string]struct {
		fields, files map[string]string
		status        int
		code, field   string
	}{
		"rootfs":     {map[string]string{"name": "x"}, map[string]string{"rootfs": "tar"}, 501, "unsupported", ""},
		"dockerfile": {map[string]string{"name": "x", "dockerfile": "FROM y"}, nil, 501, "unsupported", ""},
		"huge":       {map[string]string{"name": "x"}, map[string]string{"rootfs": string(bytesOf(3 << 20))}, 501, "unsupported", ""},
		"kernel":     {map[string]string{"name": "x", "image_ref": "y", "kernel": "5"}, nil, 501, "unsupported", "kernel"},
		"no name":    {map[string]string{"image_ref": "y"}, nil, 400, "bad_request", "name"},
		"no image":   {map[string]string{"name": "y"}, nil, 400, "bad_request", "image_ref"},
		"size":       {map[string]string{"name": "x", "image_ref": "y", "size_mb": "big"}, nil, 400, "bad_request", "size_mb"},
		"cpu":        {map[string]string{"name": "x", "image_ref": "y", "cpu": "0"}, nil, 400, "bad_request", "cpu"},
		"no cpu":     {map[string]string{"name": "x", "image_ref": "y", "cpu": "NaN"}, nil, 400, "bad_request", "cpu"},
		"force":      {map[string]string{"name": "x", "image_ref": "y", "force": "yes"}, nil, 400, "bad_request", "force"},
		"unknown":    {map[string]string{"name": "x", "image_ref": "y", "imageref": "z"}, nil, 400, "unknown_field", "imageref"},
	} {
		body, typ := form(t, c.fields, c.files)
		for _, headers := range [][]string{{"Content-Type", typ}, {"Content-Type", typ, "Idempotency-Key", "k" + name}} {
			if a := b.do("POST", build, body, headers...); a.status != c.status {
				t.Errorf("%s: status %d, want %d: %s", name, a.status, c.status, a.body)
			} else {
				a.wantError(c.status, c.code, c.field)
			}
		}
	}
	b.do("POST", build, "x", "Content-Type", "multipart/form-data").wantError(400, "bad_request", "")
	b.do("POST", build, "--b\r\nbroken", "Content-Type", "multipart/form-data; boundary=b").wantError(400, "bad_request", "")
	b.do("POST", build, "a=%zz", "Content-Type", "application/x-www-form-urlencoded").wantError(400, "bad_request", "")
	b.as(httpapitest.RunKey).do("POST", build, "{}").wantError(403, "forbidden", "")
	b.do("GET", "/v1/templates/builds/none", "").wantError(404, "not_found", "")
	b.do("GET", "/v1/templates/builds/none/logs?follow=1", "").wantError(404, "not_found", "")
	b.do("DELETE", "/v1/templates/none", "").wantError(404, "not_found", "")
	b.do("DELETE", "/v1/templates/base", "", "Idempotency-Key", "k").want(204)
	b.do("DELETE", "/v1/templates/base", "", "Idempotency-Key", "k").want(204)
	if got := string(b.do("GET", "/v1/templates", "").want(200).body); got != "[]\n" {
		t.Errorf("no templates are %s", got)
	}
}

func FuzzBuildForms(f *testing.F) {
	body := "--b\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nx\r\n--b--\r\n"
	f.Add("multipart/form-data; boundary=b", []byte(body))
	f.Add("application/x-www-form-urlencoded", []byte("name=x&cpu=1"))
	f.Add("application/json", []byte(`{"name": "x"}`))
	f.Fuzz(func(t *testing.T, typ string, body []byte) {
		if req, err := httpapi.DecodeBuild(typ, body); err == nil && (req.Name == "" || req.ImageRef == "") {
			t.Errorf("%q %q gave %+v", typ, body, req)
		}
	})
}

func TestAudit(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	b.do("GET", "/v1/sandboxes", "").want(200)
	b.do("POST", "/v1/sandboxes/"+sb+"/fork", "").want(501)
	b.as(httpapitest.ReadKey).do("DELETE", "/v1/sandboxes/"+sb, "", "X-Request-Id", "mine").want(403)
	b.as("nobody").do("DELETE", "/v1/sandboxes/"+sb, "").want(401)
	x := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "true"}`).want(200))
	b.do("POST", "/v1/execs/"+string(x.ExecID)+"/cancel", "").want(200)
	b.do("GET", "/v1/sandboxes/"+sb+"/ssh", "").want(400)
	got := into[api.Audit](b.do("GET", "/v1/audit", "").want(200))
	var lines []string
	for _, e := range got.Entries {
		lines = append(lines, fmt.Sprintf("%s %s %d %s %v", e.Method, e.Path, e.Status, e.Actor, string(e.SandboxID) == sb))
		if e.RequestID == "" || e.TS.IsZero() || e.Workspace != hutch.DefaultProject || e.ID == 0 {
			t.Errorf("entry %+v lacks something", e)
		}
	}
	want := []string{
		"GET /v1/sandboxes/{id}/ssh 400 aaaaaaaa true",
		"POST /v1/execs/{exec}/cancel 200 aaaaaaaa true",
		"POST /v1/sandboxes/{id}/exec 200 aaaaaaaa true",
		"DELETE /v1/sandboxes/{id} 403 cccccccc true",
		"POST /v1/sandboxes/{id}/fork 501 aaaaaaaa true",
		"POST /v1/sandboxes 201 aaaaaaaa true",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("audited\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if got := into[api.Audit](b.do("GET", "/v1/audit?limit=1&since=2020-01-01T00:00:00Z&workspace=default", "").want(200)); len(got.Entries) != 1 || got.Since.Year() != 2020 {
		t.Errorf("one since 2020: %+v", got)
	}
	b.do("GET", "/v1/audit?workspace=other", "").wantError(403, "forbidden", "")
	b.do("GET", "/v1/audit?limit=1001", "").wantError(400, "bad_request", "limit")
	if got := string(b.as(httpapitest.OtherKey).do("GET", "/v1/audit?since=1", "").want(200).body); !strings.HasPrefix(got, `{"entries":[],`) {
		t.Errorf("another project's audit is %s", got)
	}
	b.as(httpapitest.RunKey).do("GET", "/v1/audit", "").wantError(403, "forbidden", "")
}
