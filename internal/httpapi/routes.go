package httpapi

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// route is one operation.
type route struct {
	method, pattern string
	scope           hutch.Scope // least a key needs; empty = no key
	once            onceMode    // what an Idempotency-Key does
	ref             func() string
	// claim chooses the id that ref would, if something is ready for this request; else "".
	// Release is called when it has been answered. nil = nothing ever is.
	claim     func(a *API, r *http.Request, body []byte) (id string, release func())
	maxBody   int64 // 0 = maxBody
	oversize  error // what a larger body is refused with; nil = too_large
	changes   bool  // changes something although it is a GET
	heartbeat bool  // changes nothing but when it was made last, again and again: no audit needs it
	stops     bool  // ends something, once or twice the same: done even if its key can't be recorded
	handle    func(a *API, w http.ResponseWriter, r *http.Request) error
}

// routes is the API. A test holds it equal to api/openapi/native.yaml.
func routes() []route {
	return []route{
		{method: "POST", pattern: "/v1/sandboxes", scope: hutch.ScopeRun, once: onceReplay, ref: id.NewSandbox, claim: (*API).claimPrepared, handle: (*API).createSandbox},
		{method: "GET", pattern: "/v1/sandboxes", scope: hutch.ScopeRead, handle: (*API).listSandboxes},
		{method: "GET", pattern: "/v1/sandboxes/{id}", scope: hutch.ScopeRead, handle: (*API).getSandbox},
		{method: "DELETE", pattern: "/v1/sandboxes/{id}", scope: hutch.ScopeRun, once: onceReplay, stops: true, handle: (*API).killSandbox},
		{method: "PATCH", pattern: "/v1/sandboxes/{id}", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).updateSandbox},
		{method: "GET", pattern: "/v1/sandboxes/{id}/lifecycle", scope: hutch.ScopeRead, handle: (*API).getLifecycle},
		{method: "PATCH", pattern: "/v1/sandboxes/{id}/lifecycle", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).updateLifecycle},
		{method: "POST", pattern: "/v1/sandboxes/{id}/pause", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).pauseSandbox},
		{method: "POST", pattern: "/v1/sandboxes/{id}/resume", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).resumeSandbox},
		// A kept answer would say that the lease was renewed when it was not.
		{method: "POST", pattern: "/v1/sandboxes/{id}/renew", scope: hutch.ScopeRun, once: onceByItself, heartbeat: true, handle: (*API).renewSandbox},
		{method: "GET", pattern: "/v1/sandboxes/{id}/events", scope: hutch.ScopeRead, handle: (*API).sandboxEvents},
		{method: "GET", pattern: "/v1/sandboxes/{id}/logs", scope: hutch.ScopeRead, handle: (*API).sandboxLogs},
		{method: "GET", pattern: "/v1/sandboxes/{id}/usage", scope: hutch.ScopeRead, handle: (*API).usage},
		{method: "GET", pattern: "/v1/sandboxes/{id}/util", scope: hutch.ScopeRead, handle: (*API).usage},
		{method: "GET", pattern: "/v1/sandboxes/{id}/metrics", scope: hutch.ScopeRead, handle: (*API).processMetrics},

		{method: "POST", pattern: "/v1/sandboxes/{id}/exec", scope: hutch.ScopeRun, once: onceAttach, ref: id.NewExec, maxBody: maxExecBody, handle: (*API).exec},
		{method: "POST", pattern: "/v1/sandboxes/{id}/exec/stream", scope: hutch.ScopeRun, once: onceAttach, ref: id.NewExec, maxBody: maxExecBody, handle: (*API).execStream},
		{method: "GET", pattern: "/v1/sandboxes/{id}/exec/ws", scope: hutch.ScopeRun, changes: true, handle: (*API).execSocket},
		{method: "GET", pattern: "/v1/sandboxes/{id}/exec/pty", scope: hutch.ScopeRun, changes: true, handle: (*API).openTerminal},
		{method: "GET", pattern: "/v1/sandboxes/{id}/ssh", scope: hutch.ScopeRun, changes: true, handle: (*API).openTerminal},
		{method: "GET", pattern: "/v1/sandboxes/{id}/execs", scope: hutch.ScopeRead, handle: (*API).listExecs},
		{method: "GET", pattern: "/v1/execs/{exec}", scope: hutch.ScopeRead, handle: (*API).getExec},
		{method: "GET", pattern: "/v1/execs/{exec}/output", scope: hutch.ScopeRead, handle: (*API).execOutput},
		{method: "GET", pattern: "/v1/execs/{exec}/follow", scope: hutch.ScopeRead, handle: (*API).followExec},
		{method: "POST", pattern: "/v1/execs/{exec}/cancel", scope: hutch.ScopeRun, once: onceReplay, stops: true, handle: (*API).cancelExec},
		{method: "POST", pattern: "/v1/execs/{exec}/signal", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).signalExec},
		// Its offset makes a repetition harmless, and its body may never end.
		{method: "POST", pattern: "/v1/execs/{exec}/stdin", scope: hutch.ScopeRun, once: onceByItself, handle: (*API).writeStdin},
		{method: "POST", pattern: "/v1/execs/{exec}/resize", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).resizeExec},
		{method: "GET", pattern: "/v1/execs/{exec}/terminal", scope: hutch.ScopeRun, changes: true, handle: (*API).attachTerminal},
		{method: "GET", pattern: "/v1/sandboxes/{id}/shells", scope: hutch.ScopeRead, handle: (*API).listShells},
		{method: "DELETE", pattern: "/v1/sandboxes/{id}/shells/{name}", scope: hutch.ScopeRun, once: onceReplay, stops: true, handle: (*API).closeShell},

		{method: "GET", pattern: "/v1/sandboxes/{id}/fs", scope: hutch.ScopeRun, handle: (*API).readFile},
		// Written whole or not at all, and parts have offsets: a repetition is harmless.
		{method: "PUT", pattern: "/v1/sandboxes/{id}/fs", scope: hutch.ScopeRun, once: onceByItself, handle: (*API).writeFile},
		{method: "DELETE", pattern: "/v1/sandboxes/{id}/fs", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).removeFile},
		{method: "GET", pattern: "/v1/sandboxes/{id}/fs/stat", scope: hutch.ScopeRun, handle: (*API).statFile},
		{method: "GET", pattern: "/v1/sandboxes/{id}/fs/dir", scope: hutch.ScopeRun, handle: (*API).listDir},
		{method: "POST", pattern: "/v1/sandboxes/{id}/fs/mkdir", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).makeDir},
		{method: "POST", pattern: "/v1/sandboxes/{id}/fs/move", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).moveFile},
		{method: "GET", pattern: "/v1/sandboxes/{id}/fs/search", scope: hutch.ScopeRun, handle: (*API).searchFiles},
		{method: "GET", pattern: "/v1/sandboxes/{id}/fs/archive", scope: hutch.ScopeRun, handle: (*API).readArchive},
		{method: "PUT", pattern: "/v1/sandboxes/{id}/fs/archive", scope: hutch.ScopeRun, once: onceByItself, handle: (*API).writeArchive},
		{method: "GET", pattern: "/v1/sandboxes/{id}/fs/watch", scope: hutch.ScopeRun, handle: (*API).watchFiles},
		{method: "POST", pattern: "/v1/sandboxes/{id}/fs/watchers", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).createWatcher},
		{method: "GET", pattern: "/v1/sandboxes/{id}/fs/watchers/{watcher}/events", scope: hutch.ScopeRun, handle: (*API).watcherEvents},
		{method: "DELETE", pattern: "/v1/sandboxes/{id}/fs/watchers/{watcher}", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).closeWatcher},

		{method: "GET", pattern: "/v1/sandboxes/{id}/ports", scope: hutch.ScopeRead, handle: (*API).listPorts},
		{method: "POST", pattern: "/v1/sandboxes/{id}/ports", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).setPort},
		{method: "DELETE", pattern: "/v1/sandboxes/{id}/ports/{port}", scope: hutch.ScopeRun, once: onceReplay, handle: (*API).unsetPort},

		{method: "GET", pattern: "/v1/events", scope: hutch.ScopeRead, handle: (*API).events},
		{method: "GET", pattern: "/v1/templates", scope: hutch.ScopeRead, handle: (*API).listTemplates},
		{method: "GET", pattern: "/v1/templates/{name}", scope: hutch.ScopeRead, handle: (*API).getTemplate},
		{method: "POST", pattern: "/v1/templates/build", scope: hutch.ScopeAdmin, once: onceReplay, ref: uuid.NewString, maxBody: maxBuildBody, oversize: errNoUploads, handle: (*API).buildTemplate},
		{method: "DELETE", pattern: "/v1/templates/{name}", scope: hutch.ScopeAdmin, once: onceReplay, handle: (*API).deleteTemplate},
		{method: "GET", pattern: "/v1/templates/builds", scope: hutch.ScopeRead, handle: (*API).listBuilds},
		{method: "GET", pattern: "/v1/templates/builds/{build}", scope: hutch.ScopeRead, handle: (*API).getBuild},
		{method: "GET", pattern: "/v1/templates/builds/{build}/logs", scope: hutch.ScopeRead, handle: (*API).buildLogs},

		{method: "GET", pattern: "/v1/metrics/overview", scope: hutch.ScopeRead, handle: (*API).overviewSeries},
		{method: "GET", pattern: "/v1/metrics/sandbox/{id}", scope: hutch.ScopeRead, handle: (*API).sandboxSeries},
		{method: "GET", pattern: "/v1/stats/boot", scope: hutch.ScopeRead, handle: (*API).bootStats},
		{method: "GET", pattern: "/v1/usage", scope: hutch.ScopeRead, handle: (*API).usageReport},
		{method: "GET", pattern: "/v1/audit", scope: hutch.ScopeAdmin, handle: (*API).audit},
		{method: "GET", pattern: "/v1/leaks", scope: hutch.ScopeAdmin, handle: (*API).leaks},
		{method: "POST", pattern: "/v1/leaks/sweep", scope: hutch.ScopeAdmin, once: onceReplay, handle: (*API).sweepLeaks},

		{method: "POST", pattern: "/v1/keys", scope: hutch.ScopeAdmin, once: onceReplay, handle: (*API).createKey},
		{method: "GET", pattern: "/v1/keys", scope: hutch.ScopeAdmin, handle: (*API).listKeys},
		{method: "DELETE", pattern: "/v1/keys/{prefix}", scope: hutch.ScopeAdmin, once: onceReplay, handle: (*API).revokeKey},
		{method: "GET", pattern: "/v1/me", scope: hutch.ScopeRead, handle: (*API).me},
		{method: "POST", pattern: "/v1/me/tokens", scope: hutch.ScopeAdmin, once: onceReplay, handle: (*API).createToken},
		{method: "GET", pattern: "/v1/me/tokens", scope: hutch.ScopeAdmin, handle: (*API).listTokens},
		{method: "DELETE", pattern: "/v1/me/tokens/{prefix}", scope: hutch.ScopeAdmin, once: onceReplay, handle: (*API).revokeKey},

		{method: "GET", pattern: "/v1/openapi.yaml", handle: (*API).openAPI},
		{method: "GET", pattern: "/v1/version", handle: (*API).version},
		{method: "GET", pattern: "/version", handle: (*API).version},
		{method: "GET", pattern: "/healthz", handle: (*API).healthz},
		{method: "GET", pattern: "/readyz", handle: (*API).readyz},
		{method: "GET", pattern: "/metrics", handle: (*API).metrics},
	}
}

// serve wraps a route's handler in what all of them share.
func (a *API) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := infoOf(r)
		i.route, i.changes = rt.pattern, rt.changes || r.Method != http.MethodGet && r.Method != http.MethodHead && !rt.heartbeat
		i.sandbox = hutch.SandboxID(logID(r.PathValue("id")))
		err := func() error {
			if rt.scope == "" { // none of these has parameters
				if err := newQuery(r).check(); err != nil {
					return err
				}
			} else if err := a.authenticate(r, rt.scope); err != nil {
				return err
			}
			if _, err := url.ParseQuery(r.URL.RawQuery); err != nil && rt.pattern != proxyPattern { // not ours to read
				return hutch.Errorf(hutch.CodeBadRequest, "the query is malformed: write %% as %%25, ; as %%3B, and separate parameters by &")
			}
			if rt.once == onceReplay || rt.once == onceAttach {
				return a.once(rt, w, r)
			}
			return rt.handle(a, w, r)
		}()
		if err == nil || errors.Is(err, errClientGone) {
			return
		}
		if rec, ok := w.(*recorder); ok && rec.status != 0 {
			// Too late for an answer: a broken connection is the honest one.
			panic(http.ErrAbortHandler)
		}
		a.writeError(w, r, err)
	})
}

func (rt route) bodyLimit() int64 {
	if rt.maxBody > 0 {
		return rt.maxBody
	}
	return maxBody
}
