package e2bapi

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// Times to live of sandboxes that ask for none, as E2B's API has them.
const (
	defaultTTLv1 = 15 * time.Second
	defaultTTLv2 = 300 * time.Second
)

// newSandbox is the body of a create. Raw members are those that have no effect here: they
// are looked at only to refuse what asks for one.
type newSandbox struct {
	TemplateID string            `json:"templateID"`
	Timeout    *int64            `json:"timeout"`
	Secure     *bool             `json:"secure"`
	Metadata   map[string]string `json:"metadata"`
	EnvVars    map[string]string `json:"envVars"`
	Network    *network          `json:"network"`

	// Internet is tolerated whatever it says: older clients send true in every create. What
	// a sandbox may reach is the operator's to say.
	Internet *bool `json:"allow_internet_access"`

	AutoPause       *bool           `json:"autoPause"`
	AutoPauseMemory *bool           `json:"autoPauseMemory"`
	AutoResume      *autoResume     `json:"autoResume"`
	MCP             json.RawMessage `json:"mcp"`
	IAM             json.RawMessage `json:"iam"`
	VolumeMounts    json.RawMessage `json:"volumeMounts"`
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

// network is E2B's configuration of a sandbox's network.
type network struct {
	AllowPublicTraffic *bool           `json:"allowPublicTraffic,omitempty"`
	MaskRequestHost    string          `json:"maskRequestHost,omitempty"`
	DenyOut            []string        `json:"denyOut,omitempty"`
	AllowOut           []string        `json:"allowOut,omitempty"`
	HTTPSPorts         []int           `json:"httpsPorts,omitempty"`
	EgressProxy        json.RawMessage `json:"egressProxy,omitempty"`
	Rules              json.RawMessage `json:"rules,omitempty"`
}

func unsupported(format string, args ...any) *hutch.Error {
	return hutch.Errorf(hutch.CodeUnsupported, format, args...)
}

// asks reports whether a raw member asks for anything.
func asks(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", "[]", "false":
		return false
	}
	return true
}

// refuse says which member of a create asks for what is not here.
func (n newSandbox) refuse() error {
	switch {
	case n.AutoPause != nil && *n.AutoPause:
		return unsupported("autoPause: sandboxes cannot be paused to disk here yet, so they end at their timeout: leave the lifecycle out, or ask for \"kill\"")
	case n.AutoPauseMemory != nil && !*n.AutoPauseMemory:
		return unsupported("autoPauseMemory: sandboxes cannot be paused to disk here yet: leave it out")
	case n.AutoResume != nil && n.AutoResume.Enabled:
		return unsupported("autoResume: sandboxes cannot be paused to disk here yet, so there is nothing to wake: leave it out")
	case asks(n.MCP):
		return unsupported("mcp: there is no MCP gateway here: start the server you need with a command")
	case asks(n.IAM):
		return unsupported("iam: workload identities are not issued here: leave it out")
	case asks(n.VolumeMounts):
		return unsupported("volumeMounts: there are no volumes here yet: write the files into the sandbox")
	}
	return n.Network.refuse()
}

func (n *network) refuse() error {
	if n == nil {
		return nil
	}
	for _, dst := range n.DenyOut {
		if _, err := netip.ParseAddr(dst); err == nil {
			continue
		}
		if _, err := netip.ParsePrefix(dst); err != nil {
			return hutch.FieldErrorf("network.denyOut", "%.100q is no address and no range of addresses", dst)
		}
	}
	switch {
	case len(n.AllowOut) > 0:
		return unsupported("network.allowOut: sandboxes reach nothing outside yet: leave it out")
	case len(n.HTTPSPorts) > 0:
		return unsupported("network.httpsPorts: servers in a sandbox are spoken to without TLS: leave it out and serve plain HTTP")
	case asks(n.EgressProxy):
		return unsupported("network.egressProxy: sandboxes reach nothing outside yet: leave it out")
	case asks(n.Rules):
		return unsupported("network.rules: requests are not changed on their way out yet: leave it out")
	}
	return nil
}

// access turns the request into who may reach the sandbox.
func (n newSandbox) access(secure bool) (hutch.Access, error) {
	acc := hutch.Access{Surface: hutch.SurfaceE2B, Secure: secure}
	if n.Network == nil {
		return acc, nil
	}
	acc.PrivatePorts = n.Network.AllowPublicTraffic != nil && !*n.Network.AllowPublicTraffic
	if acc.PrivatePorts && !secure {
		return acc, hutch.FieldErrorf("network.allowPublicTraffic", "false needs a sandbox with secure set")
	}
	acc.MaskHost = n.Network.MaskRequestHost
	if acc.MaskHost != "" && !validHost(strings.ReplaceAll(acc.MaskHost, "${PORT}", "80")) {
		return acc, hutch.FieldErrorf("network.maskRequestHost", "%.100q is no host name, with or without a port", acc.MaskHost)
	}
	return acc, nil
}

// validHost accepts what may be in a Host header: letters, digits, hyphens and dots, then
// perhaps a port.
func validHost(s string) bool {
	host, port, hasPort := strings.Cut(s, ":")
	if n, err := strconv.Atoi(port); hasPort && (err != nil || n < 1 || n > 65535) {
		return false
	}
	if host == "" || len(host) > 253 {
		return false
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

func (a *API) createV2(w http.ResponseWriter, c call) error {
	return a.create(w, c, true, defaultTTLv2)
}

func (a *API) createV1(w http.ResponseWriter, c call) error {
	return a.create(w, c, false, defaultTTLv1)
}

// create makes a sandbox. always says that it is secure whatever the body says.
func (a *API) create(w http.ResponseWriter, c call, always bool, ttl time.Duration) error {
	var body newSandbox
	if err := a.readJSON(w, c, &body, false); err != nil {
		return err
	}
	if err := body.refuse(); err != nil {
		return err
	}
	acc, err := body.access(always || body.Secure != nil && *body.Secure)
	if err != nil {
		return err
	}
	if body.Timeout != nil {
		if ttl, err = a.ttl(*body.Timeout); err != nil {
			return err
		}
	}
	t, err := a.template(c.Context(), body.TemplateID)
	if err != nil {
		return err
	}
	req := hutch.CreateSandbox{
		Project: c.key.Project, Template: t.Name, Env: body.EnvVars, Metadata: body.Metadata, TTL: &ttl, Access: acc,
	}
	if key := c.Header.Get("Idempotency-Key"); key != "" {
		if req.ID, err = idempotentID(c.key, key); err != nil {
			return err
		}
	}
	sb, err := a.svc.Sandboxes.CreateSandbox(c.Context(), req)
	if err != nil {
		return err
	}
	if err := sameCreate(sb, req); err != nil {
		return err
	}
	if out, ok := w.(*watched); ok {
		out.made = sb.ID
	}
	return ok(w, http.StatusCreated, a.showSandbox(sb))
}

// ttl reads a timeout of a create, in seconds.
func (a *API) ttl(seconds int64) (time.Duration, error) {
	most := int64(a.cfg.MaxTTL / time.Second)
	if seconds <= 0 || seconds > most {
		return 0, hutch.FieldErrorf("timeout", "must be from 1 to %d seconds, not %d", most, seconds)
	}
	return time.Duration(seconds) * time.Second, nil
}

// idempotentID is the id of the sandbox that a key of the client's stands for. It is made
// with the API key's hash, so that who can guess one cannot guess the other.
func idempotentID(key hutch.APIKey, presented string) (hutch.SandboxID, error) {
	bad := strings.ContainsFunc(presented, func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
	if bad || len(presented) > 255 {
		return "", hutch.FieldErrorf("Idempotency-Key", "must be 1 to 255 lower-case letters, digits and hyphens")
	}
	mac := hmac.New(sha256.New, key.Hash)
	fmt.Fprintf(mac, "e2b sandbox\n%s\n%s", key.Project, presented)
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := []byte("i")
	for _, b := range mac.Sum(nil)[:20] {
		id = append(id, letters[int(b)%len(letters)])
	}
	return hutch.SandboxID(id), nil
}

// sameCreate refuses to pass a sandbox off as one that another request made: with an id of
// its own that is always so, with an Idempotency-Key it need not be.
func sameCreate(sb hutch.Sandbox, req hutch.CreateSandbox) error {
	same := func(x, y map[string]string) bool { return len(x) == 0 && len(y) == 0 || maps.Equal(x, y) }
	switch {
	case req.ID == "":
		return nil
	case sb.State == hutch.StateDead:
		return hutch.Errorf(hutch.CodeConflict, "the sandbox of this Idempotency-Key has ended: take another key")
	case sb.Template != req.Template || !same(sb.Metadata, req.Metadata) || !same(sb.Env, req.Env):
		return hutch.Errorf(hutch.CodeIdempotencyMismatch, "this Idempotency-Key was used for another sandbox: take another key")
	}
	return nil
}
