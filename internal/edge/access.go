package edge

import (
	"net/http"
	"net/url"
	"strings"

	"hutch.dev/hutch/internal/x/credential"
)

// What carries the token of private ports. The header is E2B's. The parameter is for who can
// set no header: it is taken once, and turned into a cookie of the port's own host name.
const (
	HeaderToken = credential.HeaderTraffic
	tokenParam  = credential.ParamTraffic
	cookieName  = credential.CookieTraffic
)

// admitted reports whether the request shows the token of a sandbox with private ports.
// If not, or if the caller is to come again with a cookie, it has been answered.
func (e *Edge) admitted(w http.ResponseWriter, r *http.Request, to target) bool {
	if t := r.Header.Get(HeaderToken); t != "" {
		if e.tokens.Valid(to.Sandbox, TokenTraffic, t) {
			return true
		}
	} else if c, err := r.Cookie(cookieName); err == nil && to.ByHost && e.tokens.Valid(to.Sandbox, TokenTraffic, c.Value) {
		return true
	} else if t := r.URL.Query().Get(tokenParam); t != "" && e.tokens.Valid(to.Sandbox, TokenTraffic, t) {
		if !to.ByHost || r.Method != http.MethodGet && r.Method != http.MethodHead {
			return true
		}
		http.SetCookie(w, &http.Cookie{
			Name: cookieName, Value: t, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
			Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
		})
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Location", withoutToken(r.URL))
		w.WriteHeader(http.StatusSeeOther)
		return false
	}
	e.refuse(w, r, to, refusal{kind: forbidden})
	return false
}

// withoutToken is the same page, as a reference that cannot lead elsewhere.
func withoutToken(u *url.URL) string {
	q := u.Query()
	q.Del(tokenParam)
	same := url.URL{Path: "/" + strings.TrimLeft(u.Path, "/"), RawQuery: q.Encode()}
	return same.String()
}
