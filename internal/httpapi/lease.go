package httpapi

import (
	"context"
	"net/http"
	"time"

	"hutch.dev/hutch"
)

// Leases says that owners of sandboxes live.
type Leases interface {
	// RenewSandbox moves LeasedTo to the sandbox's lease from now. Without a lease it is
	// hutch.ErrInvalidState; one that has run out is hutch.ErrSandboxGone.
	RenewSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
}

func (a *API) renewSandbox(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	sb, err := a.svc.Leases.RenewSandbox(r.Context(), project(r), sandboxID(r))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showLifecycle(sb, time.Now()))
}
