package edge

import (
	"encoding/json"
	"html/template"
	"net/http"
	"strings"

	"hutch.dev/hutch"
)

// kind is a reason why a request did not get to a server inside.
type kind struct {
	status  int
	message string // E2B's clients compare the first two
	advice  string // for a person
}

var (
	noSandboxKind = kind{http.StatusBadGateway, "The sandbox was not found", "It has ended, is paused, or never was. Whoever made it can start another."}
	portKind      = kind{http.StatusBadGateway, "The sandbox is running but port is not open", "Start the server in the sandbox, or wait until it listens, then load this page again."}
	answerKind    = kind{http.StatusBadGateway, "The server in the sandbox broke the connection", "It may have ended or be restarting. Look at its output, then load this page again."}
	silentKind    = kind{http.StatusGatewayTimeout, "The sandbox does not answer", "It may be out of memory or very busy. Try again in a moment."}
	forbidKind    = kind{http.StatusForbidden, "The ports of this sandbox are private: a token is needed", "Send it as the header " + HeaderToken + ", or once as ?" + tokenParam + "=TOKEN."}
	startKind     = kind{http.StatusServiceUnavailable, "The server is starting", "Try again in a moment."}
	manyKind      = kind{http.StatusTooManyRequests, "Too many requests to this sandbox are under way", "Try again in a moment."}

	noSandbox, portClosed, badAnswer = &noSandboxKind, &portKind, &answerKind
	unresponsive, forbidden          = &silentKind, &forbidKind
	tooMany, starting                = refusal{kind: &manyKind}, refusal{kind: &startKind}
)

// refusal is an answer given in place of the server inside.
type refusal struct {
	kind      *kind
	listeners []hutch.Listener // what could have been meant
}

// body is the answer for programs, as E2B's clients know it.
type body struct {
	Sandbox hutch.SandboxID `json:"sandboxId"`
	Message string          `json:"message"`
	Port    int             `json:"port,omitempty"`
	Code    int             `json:"code"`
}

func (e *Edge) refuse(w http.ResponseWriter, r *http.Request, to target, why refusal) {
	k := why.kind
	e.log.DebugContext(r.Context(), "refused", "status", k.status, "why", k.message)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if !isNavigation(r) {
		b := body{Sandbox: to.Sandbox, Message: k.message, Code: k.status}
		if k == portClosed {
			b.Port = to.Port
		}
		h.Set("Content-Type", "application/json")
		w.WriteHeader(k.status)
		_ = json.NewEncoder(w).Encode(b) // the caller left: nobody to tell
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.WriteHeader(k.status)
	_ = page.Execute(w, struct {
		To              target
		Message, Advice string
		Status          int
		Listeners       []hutch.Listener
	}{to, k.message, k.advice, k.status, why.listeners})
}

// isNavigation reports whether a person's browser asks for a page. Node's fetch and scripts
// in pages say that they are none.
func isNavigation(r *http.Request) bool {
	switch mode := r.Header.Get("Sec-Fetch-Mode"); mode {
	case "navigate":
		return true
	case "":
		return strings.Contains(r.Header.Get("Accept"), "text/html") && strings.HasPrefix(r.UserAgent(), "Mozilla/")
	default:
		return false
	}
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Status}}: {{.Message}}</title>
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.4rem}code{background:#f2f2f2;padding:.1em .3em;border-radius:3px}small{color:#666}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#2a2a2a}}
</style>
<h1>{{.Message}}</h1>
<p>Port <code>{{.To.Port}}</code> of sandbox <code>{{.To.Sandbox}}</code>. {{.Advice}}</p>
{{with .Listeners}}<p>Listening there now:{{range .}} <code>{{.Port}}</code>{{with .Command}} ({{.}}){{end}}{{end}}</p>{{end}}
<p><small>{{.Status}} from Hutch, not from the server in the sandbox.</small></p>
</html>
`))
