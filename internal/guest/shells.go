package guest

import (
	"net/http"

	"hutch.dev/hutch/internal/guestapi"
)

func (a *Agent) getShells(*http.Request) (any, error) {
	return guestapi.Shells{Shells: a.table.Shells()}, nil
}

func (a *Agent) deleteShell(r *http.Request) (any, error) {
	return struct{}{}, a.table.CloseShell(r.Context(), r.PathValue("name"))
}
