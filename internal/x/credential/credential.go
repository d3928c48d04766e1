// Package credential takes what opens this installation out of requests that go on to
// somebody else: programs in sandboxes, which are to learn no key and no token.
//
// It owns where such things are carried and what they look like, and touches nothing else of
// a request: a value that only stands in the same place is the application's own.
//
// Start with [Strip].
package credential

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Places of credentials in requests.
const (
	HeaderKey     = "X-Api-Key"
	HeaderAgent   = "X-Access-Token"           // #nosec G101 -- a header's name
	HeaderTraffic = "E2b-Traffic-Access-Token" // #nosec G101 -- a header's name
	ParamKey      = "access_token"
	ParamTraffic  = "hutch_token"
	CookieTraffic = "hutch_token"
)

// digits is how many hex digits a key or a token has.
const digits = 40

// IsKey reports whether s has the form in which keys are handed out: a word that clients
// insist on, and 40 hex digits.
func IsKey(s string) bool {
	for _, word := range []string{"e2b_", "pds_"} {
		if rest, ok := strings.CutPrefix(s, word); ok {
			return IsToken(rest)
		}
	}
	return false
}

// IsToken reports whether s has the form of a sandbox's token, or of a key without its word.
func IsToken(s string) bool {
	if len(s) != digits {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return (c < '0' || c > '9') && (c < 'a' || c > 'f') })
}

// Strip removes keys from a request, and what token says is a token of ours. What carries
// only traffic tokens goes whatever it holds: nobody else uses those names.
func Strip(r *http.Request, token func(string) bool) {
	ours := func(v string) bool { v = strings.TrimSpace(v); return IsKey(v) || token(v) }
	r.Header.Del(HeaderTraffic)
	for _, h := range []string{HeaderKey, HeaderAgent} {
		drop(r.Header, h, ours)
	}
	drop(r.Header, "Authorization", func(v string) bool {
		scheme, rest, ok := strings.Cut(v, " ")
		return ok && strings.EqualFold(scheme, "Bearer") && ours(rest)
	})
	dropCookie(r.Header, CookieTraffic)
	r.URL.RawQuery = dropParams(r.URL.RawQuery, func(name, value string) bool {
		return name == ParamTraffic || name == ParamKey && ours(value)
	})
}

// drop removes the values of a header that bad fits.
func drop(h http.Header, name string, bad func(string) bool) {
	kept := slices.DeleteFunc(slices.Clone(h[name]), bad)
	if len(kept) == 0 {
		h.Del(name)
		return
	}
	h[name] = kept
}

// dropCookie removes one cookie and leaves the others as they are.
func dropCookie(h http.Header, name string) {
	var kept []string
	for _, line := range h["Cookie"] {
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

// dropParams removes parameters of a query and leaves the rest as it was written. Some
// servers take a semicolon for an ampersand, so both end a parameter.
func dropParams(raw string, bad func(name, value string) bool) string {
	var out strings.Builder
	for len(raw) > 0 {
		pair, sep := raw, ""
		if i := strings.IndexAny(raw, "&;"); i >= 0 {
			pair, sep = raw[:i], raw[i:i+1]
		}
		raw = raw[len(pair)+len(sep):]
		name, value, _ := strings.Cut(pair, "=")
		n, errN := url.QueryUnescape(name)
		v, errV := url.QueryUnescape(value)
		if errN == nil && errV == nil && bad(n, v) {
			continue
		}
		out.WriteString(pair)
		out.WriteString(sep)
	}
	return strings.TrimRight(out.String(), "&;")
}
