package e2bapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// defaultUser is who acts in sandboxes of this API whose image names nobody.
const defaultUser = "user"

// HeaderToken carries the token of a sandbox's agent.
const HeaderToken = "X-Access-Token" // #nosec G101 -- a header's name

// goneView is the answer of every port of a sandbox that is not running. Clients look for
// the words of the message.
type goneView struct {
	SandboxID hutch.SandboxID `json:"sandboxId"`
	Message   string          `json:"message"`
	Code      int             `json:"code"`
}

const goneMessage = "The sandbox was not found"

func writeGone(w http.ResponseWriter, id hutch.SandboxID) {
	writeJSON(w, http.StatusBadGateway, goneView{SandboxID: id, Message: goneMessage, Code: http.StatusBadGateway})
}

// Agent returns the handler of a sandbox's agent. which says which sandbox a request is for.
func (a *API) Agent(which func(*http.Request) hutch.SandboxID) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /health", http.HandlerFunc(a.health))
	mux.Handle("GET /metrics", http.HandlerFunc(a.agentMetrics))
	mux.Handle("GET /envs", http.HandlerFunc(a.agentEnvs))
	mux.Handle("/files", http.HandlerFunc(a.files))
	mux.Handle("POST /files/compose", http.HandlerFunc(a.compose))
	mux.Handle("/", a.rpc)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.awaitRecovery(w, r) {
			return
		}
		a.boundBody(w, r)
		sb, err := a.awake(r.Context(), which(r))
		if errors.Is(err, hutch.ErrSandboxGone) {
			a.processes.forget(which(r))
			a.watchers.forget(which(r))
			writeGone(w, which(r))
			return
		}
		if err != nil {
			writeFailure(w, err)
			return
		}
		presented := r.Header.Get(HeaderToken)
		if err := a.checkToken(sb, presented, r.URL.EscapedPath()); err != nil {
			writeFailure(w, err)
			return
		}
		if path := r.URL.EscapedPath(); path != "/files" && path != "/health" { // who is there may have shown none
			a.unboundBody(w, r)
		}
		acc := account{sb: sb}
		if presented != "" || openAgent(sb) {
			acc.user = basicUser(r) // who has only a signature acts as whom it names
		}
		if acc.user == "" {
			acc.user = actingUser(sb)
		}
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, acc)))
	})
}

// awake returns a sandbox that runs; hutch.ErrSandboxGone if it does not, whyever.
func (a *API) awake(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := a.svc.Sandboxes.SandboxByID(ctx, id)
	if errors.Is(err, hutch.ErrNotFound) || err == nil && (sb.State != hutch.StateRunning || ending(sb)) {
		return sb, hutch.ErrSandboxGone
	}
	return sb, err
}

// checkToken lets through who has the sandbox's token. What is asked without one is health,
// and files, whose callers may have a signature instead.
func (a *API) checkToken(sb hutch.Sandbox, presented, path string) error {
	switch {
	case openAgent(sb), path == "/health":
		return nil
	case presented == "" && path == "/files":
		return nil
	case !a.svc.Tokens.Valid(sb.ID, TokenAgent, presented):
		return unauthenticated("the sandbox's access token is missing or wrong: connect to the sandbox anew to get it")
	}
	return nil
}

// basicUser is the user that a request names; empty if none. There is no password.
func basicUser(r *http.Request) string {
	scheme, encoded, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return ""
	}
	user, _, _ := strings.Cut(string(b), ":")
	return user
}

// actingUser is who acts in a sandbox when nobody is named.
func actingUser(sb hutch.Sandbox) string {
	if sb.Defaults.User == "" && sb.Access.Surface == hutch.SurfaceE2B {
		return defaultUser
	}
	return sb.Defaults.User
}

// health says that the sandbox runs: whoever is here has been found running.
func (a *API) health(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

// agentMetricsView is the use of a sandbox as its agent tells it.
type agentMetricsView struct {
	Unix        int64   `json:"ts"`
	CPUCount    int     `json:"cpu_count"`
	CPUUsed     float64 `json:"cpu_used_pct"`
	MemTotalMiB int64   `json:"mem_total_mib"`
	MemUsedMiB  int64   `json:"mem_used_mib"`
	MemTotal    int64   `json:"mem_total"`
	MemUsed     int64   `json:"mem_used"`
	MemCache    int64   `json:"mem_cache"`
	DiskUsed    int64   `json:"disk_used"`
	DiskTotal   int64   `json:"disk_total"`
}

func (a *API) agentMetrics(w http.ResponseWriter, r *http.Request) {
	sb := accountOf(r.Context()).sb
	s, err := a.svc.Usage.Usage(r.Context(), sb.Project, sb.ID)
	if err != nil {
		a.writeAgentFailure(w, r, err)
		return
	}
	v := showSample(s)
	writeJSON(w, http.StatusOK, agentMetricsView{
		Unix: v.Unix, CPUCount: v.CPUCount, CPUUsed: v.CPUUsed, MemTotal: v.MemTotal, MemUsed: v.MemUsed,
		MemTotalMiB: v.MemTotal >> 20, MemUsedMiB: v.MemUsed >> 20, DiskUsed: v.DiskUsed, DiskTotal: v.DiskTotal,
	})
}

// agentEnvs answers with the sandbox's variables, which who has its token can read inside
// too.
func (a *API) agentEnvs(w http.ResponseWriter, r *http.Request) {
	env := accountOf(r.Context()).sb.Env
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, http.StatusOK, env)
}

// writeAgentFailure answers a plain call of the agent with an error.
func (a *API) writeAgentFailure(w http.ResponseWriter, r *http.Request, err error) {
	acc := accountOf(r.Context())
	if a.hasGone(r.Context(), acc.sb, err) {
		writeGone(w, acc.sb.ID)
		return
	}
	he := explain(err, acc.user)
	if writeFailure(w, he) == http.StatusInternalServerError {
		a.log.Error("agent call", "op", r.Method+" "+r.URL.Path, "sandbox", acc.sb.ID, "error", err)
	}
}

// explain puts an error of the guest into the words that E2B's clients are used to.
func explain(err error, user string) *hutch.Error {
	he := classify(err)
	if he.Code == hutch.CodeBadRequest && he.Field == "user" {
		return hutch.Wrap(hutch.CodeUnauthenticated, err, "invalid username: '%s'", user)
	}
	return he
}

// goneWait is how long after a sandbox's end its record may still say that it runs.
const goneWait = 3 * time.Second

// hasGone reports whether err is because the sandbox does not run any more. It returns only
// once its record says so, so that who asks next is told the same.
func (a *API) hasGone(ctx context.Context, sb hutch.Sandbox, err error) bool {
	he := classify(err)
	switch he.Code {
	case hutch.CodeSandboxGone, hutch.CodeGuestUnresponsive, hutch.CodeUnavailable, hutch.CodeInvalidState, hutch.CodeInternal, hutch.CodeStale:
	default:
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goneWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := a.awake(ctx, sb.ID); errors.Is(err, hutch.ErrSandboxGone) {
			return true
		}
		if he.Code != hutch.CodeSandboxGone {
			return false // it may be for another reason
		}
		select {
		case <-ctx.Done():
			return true
		case <-tick.C:
		}
	}
}

// interpreter answers calls of the server that runs code in contexts, unless the sandbox has
// one of its own: then they are for next, as those of any port.
func (a *API) interpreter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := target(r)
		if !a.awaitRecovery(w, r) {
			return
		}
		sb, err := a.awake(r.Context(), id)
		if err != nil {
			next.ServeHTTP(w, r) // the edge says that it is gone
			return
		}
		if a.listens(r.Context(), sb, InterpreterPort) {
			next.ServeHTTP(w, r)
			return
		}
		// Of all statuses this is the one whose body both clients show to their users.
		http.Error(w, fmt.Sprintf("not supported here: running code in contexts needs a code interpreter, and nothing listens on port %d of this sandbox: "+
			"run the code as a command, or start an interpreter there", InterpreterPort), http.StatusNotFound)
	})
}

// listens reports whether a server answers at a port. What cannot be told is left to whoever
// connects next.
func (a *API) listens(ctx context.Context, sb hutch.Sandbox, port int) bool {
	g, done, err := a.svc.Guests.Guest(ctx, sb.Project, sb.ID)
	if err != nil {
		return true
	}
	defer done()
	conn, err := g.DialPort(ctx, port)
	if err != nil {
		return !errors.Is(err, hutch.ErrPortClosed)
	}
	_ = conn.Close()
	return true
}
