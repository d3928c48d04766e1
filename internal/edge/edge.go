// Package edge is the way in: it takes requests for servers inside sandboxes to them.
//
// It owns the recognition of such requests, what their callers must show, and the answers
// for a sandbox that is not there and a port that nothing listens on. It owns neither
// sandboxes nor the connection into one: package control finds the sandbox, and the sandbox's
// [hutch.Guest] dials the port, on its loopback, so that a server that listens on
// localhost alone is reached as well.
//
// A request is for a sandbox if it has both headers [HeaderSandbox] and [HeaderPort], else
// if its host is <port>-<sandbox>.<domain>; everything else is for the next handler. The
// sandbox's id cannot be guessed and is the credential, unless the sandbox was made with
// private ports: then a token is asked for, which never reaches the server inside.
//
// Each request has a connection of its own into the sandbox. None is kept: one from before a
// pause, a restore or a restart inside would be dead in a way that only a timeout tells.
//
// A connection into a sandbox that ends breaks the caller's too; it is never ended as if the
// answer were whole.
//
// Start with [Edge.ServeHTTP], then route.go.
package edge

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/quota"
)

// Sandboxes finds the sandboxes that requests are for.
type Sandboxes interface {
	// SandboxByID returns the record of a sandbox of any project; hutch.ErrNotFound if
	// there is none, hutch.ErrSandboxGone if it has ended.
	SandboxByID(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error)
	// Guest returns what a running sandbox can be asked for. It counts as active until
	// done is called.
	Guest(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (g hutch.Guest, done func(), err error)
}

// Tokens says whether a token is good for a sandbox.
type Tokens interface {
	Valid(id hutch.SandboxID, use, presented string) bool
}

// What the tokens of a sandbox are made for.
const (
	TokenTraffic = "traffic" // opens private ports
	TokenAgent   = "envd"    // opens the sandbox's agent
)

// Config holds what may be set; zero fields get the default named.
type Config struct {
	// Domain is the part of a host name behind "<port>-<sandbox>."; a port behind it has no
	// meaning. Empty = "localhost", whose subdomains most resolvers take for this machine.
	Domain string
	// Recovered reports whether the sandboxes of the last run are taken over. Until then
	// callers are put off: a sandbox that is not yet would seem to be gone. nil = always.
	Recovered func() bool
	// DialTimeout bounds the connecting to a port; 10 s. A sandbox that does not answer
	// for so long is reported as such.
	DialTimeout time.Duration
	// MaxRequests is how many requests to one sandbox may be under way; 512. It keeps one
	// sandbox's visitors from taking the server's descriptors.
	MaxRequests int
	// BodyTimeout is how long the body of a request may take that is answered here, not by a
	// server inside; 30 s.
	BodyTimeout time.Duration
}

// Edge routes requests into sandboxes. It is an http.Handler, safe for concurrent use.
type Edge struct {
	cfg       Config
	sandboxes Sandboxes
	tokens    Tokens
	next      http.Handler
	log       *slog.Logger
	load      *quota.Quota[hutch.SandboxID]
}

// New returns an Edge in front of next. It does no I/O and starts no goroutine.
func New(cfg Config, s Sandboxes, t Tokens, next http.Handler, log *slog.Logger) *Edge {
	if host, _, err := net.SplitHostPort(cfg.Domain); err == nil {
		cfg.Domain = host
	}
	if cfg.Domain == "" {
		cfg.Domain = "localhost"
	}
	cfg.Domain = strings.ToLower(strings.TrimPrefix(cfg.Domain, "."))
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 10 * time.Second
	}
	if cfg.MaxRequests == 0 {
		cfg.MaxRequests = 512
	}
	if cfg.BodyTimeout == 0 {
		cfg.BodyTimeout = 30 * time.Second
	}
	if cfg.Recovered == nil {
		cfg.Recovered = func() bool { return true }
	}
	return &Edge{cfg: cfg, sandboxes: s, tokens: t, next: next, log: log.With("component", "edge"), load: quota.New[hutch.SandboxID](cfg.MaxRequests)}
}

// ServeHTTP takes a request to its sandbox, or to the next handler.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, err := e.route(r)
	if err == nil && to.Sandbox == "" {
		e.next.ServeHTTP(w, r)
		return
	}
	if r.ContentLength != 0 {
		// net/http reads on for whatever was announced, and would wait for it for ever. Never
		// without a body: net/http then waits already for the caller to leave.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(e.cfg.BodyTimeout))
	}
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case !e.cfg.Recovered():
		w.Header().Set("Retry-After", "1")
		e.refuse(w, r, to, starting)
	default:
		e.forward(w, r, to)
	}
}

// target is what a request is for.
type target struct {
	Sandbox hutch.SandboxID
	Port    int
	ByHost  bool // it was named by the host, so that cookies are the sandbox port's own
}
