package httpapi_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestLeases(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b.Now = func() time.Time { return at }
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"lease_seconds": 60, "ttl_seconds": 3600}`).want(http.StatusCreated))
	if sb.LeaseSeconds != 60 || !sb.LeasedTo.Equal(at.Add(time.Minute)) {
		t.Errorf("created: leased to %s, %v", sb.LeasedTo, sb.LeaseSeconds)
	}
	at = at.Add(30 * time.Second)
	path := "/v1/sandboxes/" + string(sb.ID)
	l := into[api.Lifecycle](b.do("POST", path+"/renew", "").want(http.StatusOK))
	if !l.LeasedTo.Equal(at.Add(time.Minute)) || l.LeaseSeconds != 60 || !l.ExpiresAt.Equal(sb.ExpiresAt) {
		t.Errorf("renewed: %+v", l)
	}
	if got := into[api.Lifecycle](b.do("GET", path+"/lifecycle", "").want(http.StatusOK)); !got.LeasedTo.Equal(l.LeasedTo) {
		t.Errorf("its lifecycle: %+v", got)
	}
	if got := into[api.Sandbox](b.do("GET", path, "").want(http.StatusOK)); !got.LeasedTo.Equal(l.LeasedTo) {
		t.Errorf("itself: %+v", got)
	}
	// Each is made: a kept answer would tell an owner that the lease holds when it does not.
	for range 2 {
		at = at.Add(30 * time.Second)
		l = into[api.Lifecycle](b.do("POST", path+"/renew", "", idem, "always-the-same").want(http.StatusOK))
		if !l.LeasedTo.Equal(at.Add(time.Minute)) {
			t.Errorf("renewed under a key at %s: leased to %s", at, l.LeasedTo)
		}
	}
	if _, kept := b.StoredCall(hutch.DefaultProject, "always-the-same"); kept {
		t.Error("what need not be repeated is kept for a day")
	}
	for _, e := range into[api.Audit](b.do("GET", "/v1/audit", "").want(http.StatusOK)).Entries {
		if e.Path == "/v1/sandboxes/{id}/renew" {
			t.Error("heartbeats fill the audit")
		}
	}
	b.do("POST", path+"/renew", `{"lease_seconds": 5}`).want(http.StatusBadRequest)
	b.as(httpapitest.ReadKey).do("POST", path+"/renew", "").want(http.StatusForbidden)
	free := "/v1/sandboxes/" + b.sandbox()
	b.do("POST", free+"/renew", "").want(http.StatusConflict)
	if got := into[map[string]any](b.do("GET", free, "").want(http.StatusOK)); got["leased_to"] != nil || got["lease_seconds"] != nil {
		t.Errorf("one without an owner shows %v, %v", got["leased_to"], got["lease_seconds"])
	}
	b.do("POST", "/v1/sandboxes/nobody/renew", "").want(http.StatusNotFound)
	for _, bad := range []string{`-1`, `"60"`, `1e300`, `null`} {
		if got := b.do("POST", "/v1/sandboxes", `{"lease_seconds": `+bad+`}`); (got.status == http.StatusCreated) != (bad == "null") {
			t.Errorf("lease_seconds %s: %d", bad, got.status)
		}
	}
}

func TestShowLeaks(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	none := b.do("GET", "/v1/leaks", "").want(http.StatusOK)
	if got := string(none.body); got != `{"leaks":[],"swept":[]}`+"\n" {
		t.Errorf("none: %s", got)
	}
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b.Leaked(
		hutch.Leak{Kind: hutch.TraceCgroup, Name: "hutch/x", Sandbox: "x", Why: "because", Since: at},
		hutch.Leak{Kind: hutch.TraceTemp, Name: "/srv/y", Why: "because"},
	)
	got := into[api.Leaks](b.do("GET", "/v1/leaks", "").want(http.StatusOK))
	if len(got.Leaks) != 2 || len(got.Swept) != 0 || got.Leaks[0] != (api.Leak{Kind: hutch.TraceCgroup, Name: "hutch/x", SandboxID: "x", Why: "because", Since: at}) {
		t.Errorf("found: %+v", got)
	}
	got = into[api.Leaks](b.do("POST", "/v1/leaks/sweep", "").want(http.StatusOK))
	if len(got.Leaks) != 1 || got.Leaks[0].Kind != hutch.TraceTemp || len(got.Swept) != 1 || got.Swept[0].SandboxID != "x" {
		t.Errorf("swept: %+v", got)
	}
	b.do("GET", "/v1/leaks?sweep=true", "").want(http.StatusBadRequest)
	b.do("POST", "/v1/leaks/sweep?all=true", "").want(http.StatusBadRequest)
	b.do("POST", "/v1/leaks/sweep", `{"all": true}`).want(http.StatusBadRequest)
	b.as(httpapitest.RunKey).do("GET", "/v1/leaks", "").want(http.StatusForbidden)
	b.as(httpapitest.RunKey).do("POST", "/v1/leaks/sweep", "").want(http.StatusForbidden)
	var audited []string
	for _, e := range into[api.Audit](b.do("GET", "/v1/audit", "").want(http.StatusOK)).Entries {
		audited = append(audited, e.Path)
	}
	if !slices.Contains(audited, "/v1/leaks/sweep") || slices.Contains(audited, "/v1/leaks") {
		t.Errorf("on record are %q: a sweep is to be, a look is not", audited)
	}
}
