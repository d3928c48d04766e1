package edge

import (
	"net/http"
	"net/url"
	"strings"
)

// What carries a token. The names of the headers are E2B's.
const (
	HeaderToken = "E2b-Traffic-Access-Token" // #nosec G101 -- a header's name
	// HeaderAgentToken opens the sandbox's agent; some clients send it to other ports too,
	// where no server is to learn it.
	HeaderAgentToken = "X-Access-Token" // #nosec G101 -- a header's name

	// tokenParam carries the token of who can set no header. It is taken once, and
	// turned into a cookie of the port's own host name.
	tokenParam = "hutch_token"
	cookieName = "hutch_token"
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

// dropCookie removes one cookie of a request and leaves the others as they are.
func dropCookie(h http.Header, name string) {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return
	}
	var kept []string
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			if n, _, _ := strings.Cut(part, "="); part != "" && n != name {
				kept = append(kept, part)
			}
		}
	}
	h.Del("Cookie")
	if len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}
