package e2bapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// Operations that a signature can be for.
const (
	opRead  = "read"
	opWrite = "write"
)

// signed is what a URL of a file says of itself.
type signed struct {
	path, operation, user string
	signature             string
	expiration            string // unix seconds, as written; empty = none
}

func signedOf(r *http.Request) signed {
	q := r.URL.Query()
	s := signed{
		path: q.Get("path"), operation: opRead, user: q.Get("username"),
		signature: q.Get("signature"), expiration: q.Get("signature_expiration"),
	}
	if r.Method == http.MethodPost {
		s.operation = opWrite
	}
	return s
}

// signatureLength is "v1_" and a SHA-256 in base64.
const signatureLength = 3 + 43

// sign computes a signature with a sandbox's token. The path is as it is in the URL.
func (s signed) sign(token string) string {
	parts := []string{s.path, s.operation, s.user, token}
	if s.expiration != "" {
		parts = append(parts, s.expiration)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// matches reports whether the signature was made with token.
func (s signed) matches(token string) bool {
	return subtle.ConstantTimeCompare([]byte(s.signature), []byte(s.sign(token))) == 1
}

// expired refuses a signature whose time is over. Clients know the message.
func (s signed) expired(now time.Time) error {
	if s.expiration == "" {
		return nil
	}
	end, err := strconv.ParseInt(s.expiration, 10, 64)
	if err != nil {
		return unauthenticated("signature_expiration is no number of seconds")
	}
	if end < now.Unix() {
		return unauthenticated("signature is already expired")
	}
	return nil
}

// authorise lets a call about files through that has shown no token: its signature must have
// been made with the sandbox's.
func (a *API) authorise(r *http.Request, sb hutch.Sandbox) error {
	if openAgent(sb) || r.Header.Get(HeaderToken) != "" { // which was looked at before
		return nil
	}
	s := signedOf(r)
	if s.signature == "" {
		return unauthenticated("missing signature query parameter")
	}
	if !s.matches(a.svc.Tokens.Token(sb.ID, TokenAgent)) {
		return unauthenticated("invalid signature")
	}
	return s.expired(time.Now())
}

// signedFiles serves URLs of files that name no sandbox: which it is shows in whose token
// the signature was made with.
func (a *API) signedFiles(w http.ResponseWriter, r *http.Request) {
	if allowOrigins(w, r) {
		return
	}
	if !a.awaitRecovery(w, r) {
		return
	}
	s := signedOf(r)
	if len(s.signature) != signatureLength {
		writeFailure(w, unauthenticated("missing signature query parameter, or not one: without it, and without the headers %s and %s, nothing says which sandbox is meant", HeaderSandbox, HeaderPort))
		return
	}
	sb, err := a.signer(r.Context(), s)
	if err != nil {
		writeFailure(w, err)
		return
	}
	r = r.Clone(r.Context())
	r.Header.Del(HeaderToken)
	a.Agent(func(*http.Request) hutch.SandboxID { return sb }).ServeHTTP(w, r)
}

// signer finds the running sandbox whose token made a signature. It is one hash for each of
// them, and nothing that is guessed is more likely to fit one of many.
func (a *API) signer(ctx context.Context, s signed) (hutch.SandboxID, error) {
	q := hutch.SandboxQuery{States: []hutch.State{hutch.StateRunning}, Limit: 1000}
	for {
		page, next, err := a.svc.Sandboxes.ListSandboxes(ctx, q)
		if err != nil {
			return "", err
		}
		for _, sb := range page {
			if !openAgent(sb) && s.matches(a.svc.Tokens.Token(sb.ID, TokenAgent)) {
				return sb.ID, nil
			}
		}
		if q.Cursor = next; next == "" {
			return "", unauthenticated("invalid signature: no running sandbox has signed this")
		}
	}
}

// allowOrigins lets browsers use URLs of files from any page, since they carry their own
// permission. It reports whether the request was no more than the question.
func allowOrigins(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if r.Method != http.MethodOptions {
		h.Set("Access-Control-Expose-Headers", "*")
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "*")
	h.Set("Access-Control-Max-Age", "7200")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// username is who a call about files acts as.
func username(q url.Values, acc account) string {
	if u := q.Get("username"); u != "" {
		return u
	}
	return acc.user
}
