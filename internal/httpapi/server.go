package httpapi

import (
	"net/http"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func (a *API) openAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(api.OpenAPI)
	return clientGone(err)
}

func (a *API) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, a.cfg.Build)
}

// healthz says that the process answers; nothing more, so that nobody restarts it for
// what a restart does not mend.
func (a *API) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.Health{Status: "ok"})
}

// readyz says whether a create would work now.
func (a *API) readyz(w http.ResponseWriter, r *http.Request) error {
	if err := a.svc.Health.Ready(r.Context()); err != nil {
		he := classify(err)
		return hutch.Wrap(hutch.CodeUnavailable, err, "%s", he.Message)
	}
	return writeJSON(w, http.StatusOK, api.Health{Status: "ok"})
}

func (a *API) metrics(w http.ResponseWriter, r *http.Request) error {
	if a.svc.MetricsPage == nil {
		return hutch.Errorf(hutch.CodeNotFound, "metrics are switched off on this server")
	}
	a.svc.MetricsPage.ServeHTTP(w, r)
	return nil
}
