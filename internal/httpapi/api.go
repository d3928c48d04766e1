package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/quota"
)

// Services is what the API calls. All are needed but MetricsPage and Metrics.
type Services struct {
	Sandboxes   Sandboxes
	Pausing     Pausing
	Execs       Execs
	ExecControl ExecControl
	Guests      Guests
	Settings    Settings
	Leases      Leases
	Leaks       Leaks
	Prepared    Prepared // nil = nothing is prepared
	Meter       Meter
	Billing     Billing
	Logs        Logs
	Templates   Templates
	Builds      Builds
	Audit       AuditLog
	Keys        Keys
	Events      EventLog
	Health      Health
	Auth        Authenticator
	Idempotency store.Idempotency
	Metrics     Metrics      // nil = not counted
	MetricsPage http.Handler // GET /metrics; nil = 404
}

// Metrics is told about every answer. It must not block.
type Metrics interface {
	// HTTPRequest counts one answer: route is a pattern of the route table or "other",
	// so its values are a closed set.
	HTTPRequest(route, method string, status int, d time.Duration)
}

// Config holds what may be set; zero fields get the default named.
type Config struct {
	Build api.BuildInfo

	// SyncHold is how long an exec that is waited for may take before its answer is begun
	// with status 200 and kept alive with blanks; 15 s, half of what the strictest
	// published client waits for a first byte.
	SyncHold time.Duration
	// Keepalive is how long a stream or a begun answer may be silent; 5 s. Balancers in
	// the field cut after 60 s, clients after 30 s.
	Keepalive time.Duration
	// WriteTimeout is how long a caller may not read before its connection is cut; 60 s.
	// The command goes on, and the caller can follow again from where it was.
	WriteTimeout time.Duration
	// BodyTimeout is how long a request's body may take to arrive, counted from its
	// header, so that nobody holds a connection by sending a byte a minute; 30 s. Only the
	// body of a command's stdin may take longer, once its caller has shown a key; that of
	// an upload too, as long as this never passes without a byte.
	BodyTimeout time.Duration
	// MaxUpload is the largest file or archive that a call may send, in bytes; 0 = any.
	MaxUpload int64
	// PingInterval is how often a WebSocket is asked whether its client is there; 15 s.
	PingInterval time.Duration
	// TerminalKeep is how long a terminal that a WebSocket opened outlives its last client;
	// 60 s. The caller may ask for another time, at most MaxTerminalKeep.
	TerminalKeep time.Duration
	// WatcherKeep is how long a polled watcher lives without being asked; 60 s.
	WatcherKeep time.Duration
}

// API serves the native API. It is an http.Handler, safe for concurrent use.
type API struct {
	cfg   Config
	svc   Services
	log   *slog.Logger
	mux   *http.ServeMux
	ports http.Handler // of what is for a server inside; see proxyPath
	calls *calls
	terms *terminals
	watch *watchers
	large *semaphore.Weighted // memory of large answers, in bytes

	proxied *quota.Quota[hutch.SandboxID]
	sockets *quota.Quota[hutch.ProjectID]
}

// New returns an API. It does no I/O and starts no goroutine.
func New(cfg Config, svc Services, logger *slog.Logger) *API {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.SyncHold, 15*time.Second)
	def(&cfg.Keepalive, 5*time.Second)
	def(&cfg.WriteTimeout, time.Minute)
	def(&cfg.BodyTimeout, 30*time.Second)
	def(&cfg.PingInterval, 15*time.Second)
	def(&cfg.TerminalKeep, time.Minute)
	def(&cfg.WatcherKeep, time.Minute)
	a := &API{
		cfg: cfg, svc: svc, log: logger.With("component", "httpapi"), mux: http.NewServeMux(),
		calls: newCalls(), terms: newTerminals(), watch: newWatchers(cfg.WatcherKeep),
		large: semaphore.NewWeighted(maxLargeMemory), proxied: quota.New[hutch.SandboxID](maxProxied), sockets: quota.New[hutch.ProjectID](maxSockets),
	}
	for _, rt := range slices.Concat(routes(), proxyRoutes(), unsupportedRoutes()) {
		a.mux.Handle(strings.TrimPrefix(rt.method+" "+rt.pattern, " "), a.serve(rt))
	}
	a.ports = a.serve(proxyRoutes()[0])
	return a
}

// Close ends what outlives requests: watchers, and the wait for clients to come back to
// their terminals, which are left to the sandbox's own end. No request may be under way.
func (a *API) Close() {
	a.watch.close()
	a.terms.close()
}

// Server returns a server for h with bounds against callers who hold connections
// without sending. Streams have no total limit, so writes are bounded one by one in this
// package. When ctx ends, waits and streams end with hutch.ErrUnavailable, so that their
// callers come back; call Shutdown then.
func Server(ctx context.Context, h http.Handler, logger *slog.Logger) *http.Server {
	base, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		stop(hutch.Errorf(hutch.CodeUnavailable, "the server is stopping: ask again in a moment; commands go on"))
	})
	conns := newConnections(maxConnections())
	return &http.Server{
		ConnState:         conns.state,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
