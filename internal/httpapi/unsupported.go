package httpapi

import (
	"net/http"
	"strings"

	"hutch.dev/hutch"
)

// unsupported lists calls of the compatible API that this server does not have. Their
// clients get a sentence rather than "no such endpoint". "*" stands for every method, and a
// pattern that ends in a slash for what is below it too.
var unsupported = []struct {
	sentence string
	patterns []string // "METHOD path"
}{
	{"hibernation is not supported by this server; pause keeps a sandbox in memory", []string{
		"POST /v1/sandboxes/{id}/hibernate", "POST /v1/sandboxes/{id}/stop",
		"POST /v1/sandboxes/{id}/wake", "POST /v1/sandboxes/{id}/start",
	}},
	{"snapshots and forks are not supported by this server", []string{
		"POST /v1/sandboxes/{id}/snapshots", "POST /v1/sandboxes/{id}/fork", "POST /v1/sandboxes/{id}/fork-tree",
		"POST /v1/sandboxes/{id}/promote", "GET /v1/snapshots", "GET /v1/snapshots/{snapshot}", "DELETE /v1/snapshots/{snapshot}",
	}},
	{"code contexts are not supported by this server; run an interpreter by exec", []string{
		"POST /v1/sandboxes/{id}/repl", "POST /v1/sandboxes/{id}/repl/sessions", "GET /v1/sandboxes/{id}/repl/sessions",
		"POST /v1/sandboxes/{id}/repl/sessions/{session}/run", "DELETE /v1/sandboxes/{id}/repl/sessions/{session}",
		"GET /v1/repl/languages",
	}},
	{"signed preview links are not supported by this server; a port is at /v1/sandboxes/{id}/proxy/{port}/ for who has a key", []string{
		"POST /v1/sandboxes/{id}/preview-token", "POST /v1/sandboxes/{id}/preview", "* /v1/p/{token}/",
	}},
	{"tools for models are not served over MCP by this server", []string{"* /mcp", "* /v1/mcp", "* /v1/sandboxes/{id}/mcp"}},
	{"language servers are not supported by this server; run one in the sandbox and reach it through a port", []string{
		"GET /v1/sandboxes/{id}/lsp/{language}", "GET /v1/lsp/languages",
	}},
	{"running sandboxes cannot be made into images by this server", []string{"POST /v1/sandboxes/{id}/bake-image"}},
	{"volumes are not supported by this server", []string{"* /v1/volumes", "* /v1/volumes/"}},
	{"databases, apps, functions, schedules and organisations are not part of Hutch", []string{
		"* /v1/databases", "* /v1/databases/", "* /v1/apps", "* /v1/apps/", "* /v1/functions", "* /v1/functions/",
		"* /v1/schedules", "* /v1/schedules/", "* /v1/orgs", "* /v1/orgs/", "* /v1/github/", "* /v1/webhooks/",
		"* /v1/repos/", "* /v1/preview-repos", "* /v1/preview-repos/", "PUT /v1/me/current-org", "POST /v1/me/current-org",
		"GET /v1/sandboxes/{id}/postgres-info", "GET /v1/sandboxes/{id}/pg-tunnel",
	}},
}

// unsupportedRoutes are routes that refuse, once a key is shown.
func unsupportedRoutes() []route {
	var out []route
	for _, u := range unsupported {
		refusal := hutch.Errorf(hutch.CodeUnsupported, "%s", u.sentence)
		for _, p := range u.patterns {
			m, path, _ := strings.Cut(p, " ")
			out = append(out, route{method: strings.TrimPrefix(m, "*"), pattern: path, scope: hutch.ScopeRead, handle: func(*API, http.ResponseWriter, *http.Request) error {
				return refusal
			}})
		}
	}
	return out
}
