package e2bapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	a.boundBody(w, r)
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

// signer finds the running sandbox whose token made a signature, among those that a token
// was told of. It is one hash for each of them, and nothing that is guessed is more likely
// to fit one of many.
func (a *API) signer(ctx context.Context, s signed) (hutch.SandboxID, error) {
	id, ok := a.signers.find(func(id hutch.SandboxID) bool { return s.matches(a.svc.Tokens.Token(id, TokenAgent)) })
	if !ok && a.signers.mayLook(time.Now()) {
		if err := a.lookForSigners(ctx); err != nil {
			return "", err
		}
		id, ok = a.signers.find(func(id hutch.SandboxID) bool { return s.matches(a.svc.Tokens.Token(id, TokenAgent)) })
	}
	if !ok {
		return "", unauthenticated("invalid signature: no running sandbox has signed this")
	}
	sb, err := a.awake(ctx, id)
	if errors.Is(err, hutch.ErrSandboxGone) {
		if sb.State != hutch.StatePaused {
			a.signers.forget(id)
		}
		return "", unauthenticated("invalid signature: no running sandbox has signed this")
	}
	if err == nil && openAgent(sb) {
		return "", unauthenticated("invalid signature: no running sandbox has signed this")
	}
	return id, err
}

// lookForSigners learns of sandboxes whose tokens were told before this process began, and
// forgets those that have ended.
func (a *API) lookForSigners(ctx context.Context) error {
	began, alive := time.Now(), map[hutch.SandboxID]time.Time{}
	q := hutch.SandboxQuery{States: []hutch.State{hutch.StateRunning, hutch.StatePaused}, Limit: 1000}
	for {
		page, next, err := a.svc.Sandboxes.ListSandboxes(ctx, q)
		if err != nil {
			return err
		}
		for _, sb := range page {
			if !openAgent(sb) {
				alive[sb.ID] = began
			}
		}
		if q.Cursor = next; next == "" {
			a.signers.replace(alive, began)
			return nil
		}
	}
}

const (
	// lookEvery is how often strangers can have all records read by guessing signatures.
	lookEvery = 10 * time.Second
	// maxSigners bounds what is remembered; one that is forgotten is found by looking.
	maxSigners = 100_000
)

// signers are the sandboxes whose tokens somebody was told, and so can sign with.
type signers struct {
	mu     sync.Mutex
	ids    map[hutch.SandboxID]time.Time // since when they are known
	looked time.Time
}

func (s *signers) add(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = make(map[hutch.SandboxID]time.Time)
	}
	if len(s.ids) >= maxSigners {
		for some := range s.ids {
			delete(s.ids, some)
			break
		}
	}
	s.ids[id] = time.Now()
}

// replace makes alive all there are, but for those who came after began.
func (s *signers) replace(alive map[hutch.SandboxID]time.Time, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, since := range s.ids {
		if since.After(began) {
			alive[id] = since
		}
	}
	s.ids = alive
}

func (s *signers) forget(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}

func (s *signers) find(signed func(hutch.SandboxID) bool) (hutch.SandboxID, bool) {
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.ids))
	s.mu.Unlock()
	for _, id := range ids {
		if signed(id) {
			return id, true
		}
	}
	return "", false
}

// mayLook reports whether the records may be looked through again.
func (s *signers) mayLook(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.looked) < lookEvery {
		return false
	}
	s.looked = now
	return true
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
