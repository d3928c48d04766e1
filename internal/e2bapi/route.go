package e2bapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// Headers and ports by which E2B's clients address a sandbox.
const (
	HeaderSandbox = "E2b-Sandbox-Id"
	HeaderPort    = "E2b-Sandbox-Port"

	// AgentPort is where clients look for the agent, InterpreterPort for the server that
	// runs code in contexts.
	AgentPort       = 49983
	InterpreterPort = 49999
)

// recoveryWait is how long a call waits for the sandboxes of the last run; clients give up
// after 60 s.
const recoveryWait = 20 * time.Second

// Router returns a handler that answers what is for this API and leaves the rest to next:
// traffic for other ports of sandboxes, and other APIs.
func (a *API) Router(next http.Handler) http.Handler {
	agent := a.Agent(func(r *http.Request) hutch.SandboxID { sb, _ := target(r); return sb })
	interpreter := a.interpreter(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sb, port := target(r); sb != "" {
			switch port {
			case AgentPort:
				agent.ServeHTTP(w, r)
			case InterpreterPort:
				interpreter.ServeHTTP(w, r)
			default:
				next.ServeHTTP(w, r)
			}
			return
		}
		switch path := r.URL.EscapedPath(); {
		case r.Header.Get(HeaderSandbox) != "" || r.Header.Get(HeaderPort) != "":
			next.ServeHTTP(w, r) // half an address: the edge says what is missing
		case path == "/files":
			a.signedFiles(w, r)
		case isControl(path):
			a.control.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// controlRoots are the first segments of the control API's paths.
var controlRoots = []string{"sandboxes", "v2", "v3", "templates", "snapshots", "volumes", "secrets", "teams"}

func isControl(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	for _, root := range controlRoots {
		if first == root {
			return true
		}
	}
	return false
}

// target finds which port of which sandbox a request is for: by its headers, else by the
// first label of its host, "<port>-<sandbox>". The id is empty if it is for none.
func target(r *http.Request) (hutch.SandboxID, int) {
	sb, port := r.Header.Get(HeaderSandbox), r.Header.Get(HeaderPort)
	if sb == "" && port == "" {
		label, _, _ := strings.Cut(r.Host, ".")
		port, sb, _ = strings.Cut(label, "-")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n < 1 || sb == "" {
		return "", 0
	}
	sbID := sandboxID(sb)
	if r.Header.Get(HeaderSandbox) == "" && !id.ValidSandbox(string(sbID)) {
		return "", 0 // a host name of ordinary form
	}
	return sbID, int(n)
}

// sandboxID reads an id as clients write it: an older form has the client's id behind it.
func sandboxID(s string) hutch.SandboxID {
	sb, _, _ := strings.Cut(strings.ToLower(s), "-")
	return hutch.SandboxID(sb)
}

// awaitRecovery waits until the sandboxes of the last run are taken over, and answers the
// request if that takes too long.
func (a *API) awaitRecovery(w http.ResponseWriter, r *http.Request) bool {
	if a.svc.Recovered() {
		return true
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(recoveryWait)
	defer late.Stop()
	for {
		select {
		case <-tick.C:
			if a.svc.Recovered() {
				return true
			}
		case <-r.Context().Done():
			return false
		case <-late.C:
			w.Header().Set("Connection", "close") // whatever body was announced is not waited for
			writeFailure(w, hutch.Errorf(hutch.CodeUnavailable,
				"the server is starting: sandboxes of the last run are being taken over; ask again in a moment"))
			return false
		}
	}
}
