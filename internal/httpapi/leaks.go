package httpapi

import (
	"context"
	"net/http"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Leaks compares the records with what is on the hosts.
type Leaks interface {
	// Leaks returns what nobody accounts for. With sweep it removes first what may be
	// removed: left is then what is there afterwards, swept what went.
	Leaks(ctx context.Context, sweep bool) (left, swept []hutch.Leak, err error)
}

func (a *API) leaks(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	return a.answerLeaks(w, r, false)
}

func (a *API) sweepLeaks(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	return a.answerLeaks(w, r, true)
}

func (a *API) answerLeaks(w http.ResponseWriter, r *http.Request, sweep bool) error {
	left, swept, err := a.svc.Leaks.Leaks(r.Context(), sweep)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.Leaks{Leaks: showLeaks(left), Swept: showLeaks(swept)})
}

func showLeaks(in []hutch.Leak) []api.Leak {
	out := make([]api.Leak, 0, len(in))
	for _, l := range in {
		out = append(out, api.Leak{Kind: l.Kind, Name: l.Name, SandboxID: l.Sandbox, Why: l.Why, Since: milli(l.Since)})
	}
	return out
}
