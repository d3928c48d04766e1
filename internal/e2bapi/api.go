package e2bapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"hutch.dev/hutch"
)

// AgentVersion is the version of E2B's agent that clients are told they talk to: the one
// whose behaviour this package has. Clients switch features on by it.
const AgentVersion = "0.6.13"

// Services is what the API calls. All are needed but Audit, Metrics and Recovered.
type Services struct {
	Sandboxes   Sandboxes
	Lifetimes   Lifetimes
	Execs       Execs
	ExecControl ExecControl
	Guests      Guests
	Templates   Templates
	Usage       Usage
	Logs        Logs
	Tokens      Tokens
	Auth        Authenticator

	Audit   Auditor // nil = not recorded
	Metrics Metrics // nil = not counted
	// Recovered reports whether the sandboxes of the last run are taken over. Until then
	// calls are put off: a sandbox that is not yet would seem to be gone. nil = always.
	Recovered func() bool
}

// Config holds what may be set; zero fields get the default named.
type Config struct {
	// Domain is where ports of sandboxes are reached as <port>-<sandbox>.<domain>, with a
	// port if it is not 443. Clients are told it; empty = they use their own setting.
	Domain string
	// MaxTTL is the longest time to live that may be asked for; 24 h. A longer one is
	// refused at creation and cut when a sandbox's end is moved.
	MaxTTL time.Duration
	// Retained is how long the end of a process can still be asked for; 30 s.
	Retained time.Duration
	// Keepalive is the longest silence of a stream whose client names none; 90 s.
	Keepalive time.Duration
	// BodyTimeout is how long the body of a control call may take to arrive; 30 s.
	BodyTimeout time.Duration
}

// API serves E2B's clients. It is safe for concurrent use. Close must be called.
type API struct {
	cfg     Config
	svc     Services
	log     *slog.Logger
	control http.Handler
	rpc     http.Handler

	processes *processes
	watchers  *watchers
	signers   signers
	listing   chan struct{} // holds a token for each listing being gathered
}

// New returns an API. It does no I/O. Only watchers that clients ask for run in the
// background, until Close.
func New(cfg Config, svc Services, logger *slog.Logger) *API {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.MaxTTL, 24*time.Hour)
	def(&cfg.Retained, 30*time.Second)
	def(&cfg.Keepalive, 90*time.Second)
	def(&cfg.BodyTimeout, 30*time.Second)
	if svc.Recovered == nil {
		svc.Recovered = func() bool { return true }
	}
	a := &API{
		cfg: cfg, svc: svc, log: logger.With("component", "e2bapi"),
		processes: newProcesses(), watchers: newWatchers(), listing: make(chan struct{}, maxListings),
	}
	a.control = a.controlMux()
	a.rpc = a.rpcMux()
	return a
}

// Close ends every watcher and returns once none runs. Streams end with their requests.
func (a *API) Close() { a.watchers.close() }

// account is a sandbox whose agent is called, and as whom.
type account struct {
	sb   hutch.Sandbox
	user string // who acts; empty = the image's own default, which is root
}

type accountKey struct{}

// accountOf returns whose agent a request is for; [API.Agent] has put it there.
func accountOf(ctx context.Context) account {
	acc, _ := ctx.Value(accountKey{}).(account)
	return acc
}

// guest runs fn with the guest of the sandbox that ctx is for.
func (a *API) guest(ctx context.Context, fn func(g hutch.Guest, acc account) error) error {
	acc := accountOf(ctx)
	g, done, err := a.svc.Guests.Guest(ctx, acc.sb.Project, acc.sb.ID)
	if err != nil {
		return err
	}
	defer done()
	return fn(g, acc)
}
