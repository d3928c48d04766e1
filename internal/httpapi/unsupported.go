package httpapi

import (
	"net/http"
	"strings"

	"hutch.dev/hutch"
)

// unsupported lists calls of the compatible API that this server does not have. Their
// clients get a sentence rather than "no such endpoint".
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
		"POST /v1/sandboxes/{id}/promote", "GET /v1/snapshots", "DELETE /v1/snapshots/{snapshot}",
	}},
	{"the filesystem calls are not supported by this server; read and write files by exec, with stdin for long ones", []string{
		"GET /v1/sandboxes/{id}/fs", "PUT /v1/sandboxes/{id}/fs", "DELETE /v1/sandboxes/{id}/fs",
		"GET /v1/sandboxes/{id}/fs/dir", "GET /v1/sandboxes/{id}/fs/stat",
	}},
	{"code contexts are not supported by this server; run an interpreter by exec", []string{
		"POST /v1/sandboxes/{id}/repl", "POST /v1/sandboxes/{id}/repl/sessions", "GET /v1/sandboxes/{id}/repl/sessions",
		"POST /v1/sandboxes/{id}/repl/sessions/{session}/run", "DELETE /v1/sandboxes/{id}/repl/sessions/{session}",
		"GET /v1/repl/languages",
	}},
	{"terminals are not supported by this server; use exec/stream with stdin_open", []string{
		"GET /v1/sandboxes/{id}/exec/ws", "GET /v1/sandboxes/{id}/exec/pty", "GET /v1/sandboxes/{id}/ssh",
	}},
	{"sandbox logs are not supported by this server; each command's output is under /v1/execs/{exec}/output", []string{
		"GET /v1/sandboxes/{id}/logs",
	}},
	{"ports and previews are not supported by this server", []string{
		"GET /v1/sandboxes/{id}/ports", "POST /v1/sandboxes/{id}/ports", "POST /v1/sandboxes/{id}/preview-token",
	}},
	{"templates are built on the server's own machine: hutch template build", []string{
		"POST /v1/templates/build", "GET /v1/templates/builds", "GET /v1/templates/builds/{build}",
		"GET /v1/templates/builds/{build}/logs", "DELETE /v1/templates/{name}",
	}},
	{"volumes are not supported by this server", []string{
		"GET /v1/volumes", "POST /v1/volumes", "GET /v1/volumes/{volume}", "DELETE /v1/volumes/{volume}",
	}},
	{"databases, apps, functions and schedules are not part of Hutch", []string{
		"GET /v1/databases", "POST /v1/databases", "GET /v1/apps", "POST /v1/apps",
		"GET /v1/functions", "POST /v1/functions", "GET /v1/schedules", "POST /v1/schedules",
	}},
}

// unsupportedRoutes are routes that refuse, once a key is shown.
func unsupportedRoutes() []route {
	var out []route
	for _, u := range unsupported {
		refusal := hutch.Errorf(hutch.CodeUnsupported, "%s", u.sentence)
		for _, p := range u.patterns {
			m, path, _ := strings.Cut(p, " ")
			out = append(out, route{method: m, pattern: path, scope: hutch.ScopeRead, handle: func(*API, http.ResponseWriter, *http.Request) error {
				return refusal
			}})
		}
	}
	return out
}
