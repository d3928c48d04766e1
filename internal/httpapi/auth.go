package httpapi

import (
	"net/http"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// tokenParam carries a key where headers cannot be set, as in a browser's WebSocket.
const tokenParam = "access_token"

// presentedKey finds the key a request carries; empty if none.
func presentedKey(r *http.Request) string {
	if scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(key)
	}
	if key := r.Header.Get(api.HeaderAPIKey); key != "" {
		return key
	}
	return r.URL.Query().Get(tokenParam)
}

// authenticate finds whose request it is and whether the key's scope includes need.
func (a *API) authenticate(r *http.Request, need hutch.Scope) error {
	presented := presentedKey(r)
	if presented == "" {
		return hutch.Errorf(hutch.CodeUnauthenticated, "no API key was sent: send it as \"Authorization: Bearer KEY\" or \"%s: KEY\"", api.HeaderAPIKey)
	}
	key, err := a.svc.Auth.Verify(r.Context(), presented)
	if err != nil {
		return err
	}
	infoOf(r).key = key
	if !key.Scope.Includes(need) {
		return hutch.Errorf(hutch.CodeForbidden, "this call needs a key of scope %s, and this one's is %s", need, key.Scope)
	}
	return nil
}
