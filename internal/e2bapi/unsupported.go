package e2bapi

import (
	"net/http"

	"hutch.dev/hutch"
)

// unsupportedRoutes are the calls of E2B's API that are not built here. They answer 501 and
// a sentence, lists too: an empty list would say that there is such a thing and none of it.
func unsupportedRoutes() []route {
	var out []route
	for _, group := range []struct {
		sentence string
		patterns []string
	}{
		{"sandboxes cannot be paused to disk here yet: keep it running, or kill it", []string{
			"POST /sandboxes/{id}/pause",
		}},
		{"sandboxes cannot be forked here yet: create another from the same template", []string{
			"POST /sandboxes/{id}/fork",
		}},
		{"there are no snapshots here yet: build a template, or keep the sandbox running", []string{
			"POST /sandboxes/{id}/snapshots", "GET /snapshots",
		}},
		{"what a sandbox may reach cannot be changed here: it reaches nothing outside yet", []string{
			"PUT /sandboxes/{id}/network",
		}},
		{"templates are not built through this API here: use `hutch template build`", []string{
			"POST /v3/templates", "POST /v2/templates", "POST /templates", "POST /templates/{name}",
			"POST /templates/{name}/builds/{build}", "POST /v2/templates/{name}/builds/{build}",
			"GET /templates/{name}/builds/{build}/status", "GET /templates/{name}/builds/{build}/logs",
			"GET /templates/{name}/files/{hash}",
		}},
		{"templates have no tags here but \"default\", and are not private to a project", []string{
			"POST /templates/tags", "DELETE /templates/tags",
			"PATCH /templates/{name}", "PATCH /v2/templates/{name}",
		}},
		{"there are no volumes here yet: write the files into the sandbox", []string{
			"POST /volumes", "GET /volumes", "GET /volumes/{volume}", "DELETE /volumes/{volume}",
		}},
		{"there is no store of secrets here yet: hand them over as environment variables", []string{
			"POST /secrets", "GET /secrets", "GET /secrets/{secret}", "POST /secrets/{secret}", "DELETE /secrets/{secret}",
		}},
		{"projects are not managed through this API: use `hutch keys`", []string{
			"GET /teams", "GET /teams/{team}/metrics", "GET /teams/{team}/metrics/max",
		}},
	} {
		for _, p := range group.patterns {
			out = append(out, route{p, hutch.ScopeRead, func(http.ResponseWriter, call) error {
				return unsupported("not supported here: %s", group.sentence)
			}})
		}
	}
	return out
}
