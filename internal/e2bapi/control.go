package e2bapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// maxBody bounds the body of a control call: the most that a sandbox's environment and
// metadata may be, and the rest.
const maxBody = 8 << 20

// call is one control call: whose it is, and about which sandbox.
type call struct {
	*http.Request
	key hutch.APIKey
}

// sandbox is the sandbox that the path names.
func (c call) sandbox() hutch.SandboxID { return sandboxID(c.PathValue("id")) }

// route is a row of the control API.
type route struct {
	pattern string // method and path
	scope   hutch.Scope
	serve   func(w http.ResponseWriter, c call) error
}

func (a *API) routes() []route {
	return []route{
		{"POST /v2/sandboxes", hutch.ScopeRun, a.createV2},
		{"POST /sandboxes", hutch.ScopeRun, a.createV1},
		{"GET /v2/sandboxes", hutch.ScopeRead, a.listV2},
		{"GET /sandboxes", hutch.ScopeRead, a.listV1},
		{"GET /sandboxes/metrics", hutch.ScopeRead, a.metricsOfMany},
		{"GET /sandboxes/{id}", hutch.ScopeRead, a.info},
		{"DELETE /sandboxes/{id}", hutch.ScopeRun, a.kill},
		{"POST /v2/sandboxes/{id}/connect", hutch.ScopeRun, a.connectV2},
		{"POST /sandboxes/{id}/connect", hutch.ScopeRun, a.connectV1},
		{"POST /sandboxes/{id}/resume", hutch.ScopeRun, a.resume},
		{"POST /sandboxes/{id}/timeout", hutch.ScopeRun, a.setTimeout},
		{"POST /sandboxes/{id}/refreshes", hutch.ScopeRun, a.refresh},
		{"GET /sandboxes/{id}/metrics", hutch.ScopeRead, a.metricsOf},
		{"GET /sandboxes/{id}/logs", hutch.ScopeRead, a.logsV1},
		{"GET /v2/sandboxes/{id}/logs", hutch.ScopeRead, a.logsV2},

		{"GET /templates", hutch.ScopeRead, a.listTemplates},
		{"GET /v2/templates", hutch.ScopeRead, a.listTemplates},
		{"GET /templates/{name}", hutch.ScopeRead, a.templateInfo},
		{"GET /templates/{name}/{part}", hutch.ScopeRead, a.templatePart},
		{"DELETE /templates/{name}", hutch.ScopeRun, a.deleteTemplate},
	}
}

// controlMux matches escaped paths, as ServeMux does: a slash that a client escaped is part
// of a name.
func (a *API) controlMux() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range append(a.routes(), unsupportedRoutes()...) {
		mux.Handle(rt.pattern, a.serveControl(rt))
	}
	mux.Handle("/", a.serveControl(route{pattern: "other", scope: hutch.ScopeRead, serve: func(_ http.ResponseWriter, c call) error {
		return hutch.Errorf(hutch.CodeNotFound, "there is no call %s %.200s in this API", c.Method, c.URL.Path)
	}}))
	return mux
}

// serveControl is what every control call has in common.
func (a *API) serveControl(rt route) http.Handler {
	_, pattern, ok := strings.Cut(rt.pattern, " ")
	if !ok {
		pattern = rt.pattern
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		out := &watched{ResponseWriter: w, status: http.StatusOK}
		var key hutch.APIKey
		a.boundBody(w, r)
		err := func() (err error) {
			if !a.awaitRecovery(out, r) {
				return nil
			}
			if key, err = a.authenticate(r, rt.scope); err != nil {
				return err
			}
			return rt.serve(out, call{Request: r, key: key})
		}()
		if err != nil {
			status := writeFailure(out, err)
			if status == http.StatusInternalServerError {
				a.log.Error("control call", "op", rt.pattern, "sandbox", sandboxID(r.PathValue("id")), "error", err)
			}
		}
		if a.svc.Metrics != nil {
			a.svc.Metrics.HTTPRequest("e2b "+pattern, method(r), out.status, time.Since(began))
		}
		if a.svc.Audit != nil && key.Prefix != "" && r.Method != http.MethodGet && r.Method != http.MethodHead {
			a.svc.Audit.RecordAudit(hutch.AuditEntry{
				At: began.UTC(), Project: key.Project, Key: key.Prefix, Method: method(r), Route: pattern,
				Sandbox: auditedSandbox(r, out), Status: out.status,
			})
		}
	})
}

// method is the request's method from a closed set: anybody may send any word.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}

// auditedSandbox is the sandbox that a call was about: the path's, or the one it made.
func auditedSandbox(r *http.Request, out *watched) hutch.SandboxID {
	if sb := sandboxID(r.PathValue("id")); sb != "" {
		return sb
	}
	return out.made
}

// watched is a response of which the status is kept.
type watched struct {
	http.ResponseWriter
	status int
	made   hutch.SandboxID // by a create
}

func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// authenticate finds whose call it is and whether the key's scope includes need.
func (a *API) authenticate(r *http.Request, need hutch.Scope) (hutch.APIKey, error) {
	presented := r.Header.Get("X-API-Key")
	if presented == "" {
		if scheme, bearer, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
			presented = strings.TrimSpace(bearer)
		}
	}
	if presented == "" {
		return hutch.APIKey{}, unauthenticated("no API key was sent: set E2B_API_KEY, which is sent as the header X-API-KEY")
	}
	key, err := a.svc.Auth.Verify(r.Context(), presented)
	if err != nil {
		return hutch.APIKey{}, err
	}
	return key, allowed(key, need)
}

// boundBody gives a request's body its time, for so long as nobody knows whose it is: net/http
// reads on for whatever was announced, and would wait for it for ever. Never without a body:
// net/http then waits already for the caller to leave.
func (a *API) boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.cfg.BodyTimeout))
	}
}

// unboundBody takes boundBody back: input and files take as long as they take.
func (a *API) unboundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
}

// allowed refuses a key whose scope does not include need.
func allowed(key hutch.APIKey, need hutch.Scope) error {
	if !key.Scope.Includes(need) {
		return hutch.Errorf(hutch.CodeForbidden, "this call needs a key of scope %s, and this one's is %s", need, key.Scope)
	}
	return nil
}

// readJSON reads a call's body into v, for so long as a body may take. Clients send bodies without a length, so only reading
// shows whether there is one: without, v stays as it is if that is allowed. Unknown members
// are for E2B's clients to add: they are ignored.
func (a *API) readJSON(w http.ResponseWriter, c call, v any, optional bool) error {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(a.cfg.BodyTimeout))
	// Off again: the server listens on the connection for the caller's leaving, and would
	// take the deadline for it.
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	b, err := io.ReadAll(http.MaxBytesReader(w, c.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return hutch.Errorf(hutch.CodeTooLarge, "the body is larger than %d bytes", large.Limit)
	case err != nil:
		return hutch.Wrap(hutch.CodeBadRequest, err, "the body did not arrive whole")
	case len(bytes.TrimSpace(b)) == 0 && optional:
		return nil
	case len(bytes.TrimSpace(b)) == 0:
		return hutch.Errorf(hutch.CodeBadRequest, "the body is empty: send the JSON of this call")
	}
	if err := json.Unmarshal(b, v); err != nil {
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) && typ.Field != "" {
			return hutch.FieldErrorf(typ.Field, "a JSON %s cannot be its value", typ.Value)
		}
		return hutch.Errorf(hutch.CodeBadRequest, "the body is not the JSON of this call: %v", err)
	}
	return nil
}

// noContent answers a success that says nothing: with a length, or some clients read on.
func noContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func ok(w http.ResponseWriter, status int, v any) error {
	writeJSON(w, status, v)
	return nil
}
