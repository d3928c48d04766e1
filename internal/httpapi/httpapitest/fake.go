// Package httpapitest is a service in memory for tests of whatever speaks the native
// API: its handlers, the Go client, the command line.
//
// It owns no machine: a sandbox is a record, a command is a Go function (see
// [Fake.Program]) that writes to buffers. It keeps the contracts in httpapi's
// service.go, so that a test that passes here means something; what a real machine does is
// tested elsewhere.
//
// All methods are safe for concurrent use. Lock order: Fake.mu, then a command's mu.
//
// Start with [New] and [Fake.Server].
package httpapitest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/x/id"
)

// Keys of the tenants that a Fake knows at first.
const (
	AdminKey = "aaaaaaaa00000000000000000000000000000000"
	RunKey   = "bbbbbbbb00000000000000000000000000000000"
	ReadKey  = "cccccccc00000000000000000000000000000000"
	OtherKey = "dddddddd00000000000000000000000000000000" // admin of another project
)

// MaxTTL is the longest TTL a Fake allows.
const MaxTTL = 24 * time.Hour

// Fake is the service. Its fields may be set before it serves.
type Fake struct {
	NotReady error            // what Ready says
	Now      func() time.Time // the time it has; time.Now unless set
	// OnCall, when set, is called before each call of the service with the method's name; an
	// error becomes the call's.
	OnCall func(method string) error
	Inside *Inside // what every sandbox has in it

	mu        sync.Mutex
	sandboxes map[hutch.SandboxID]*hutch.Sandbox
	order     []hutch.SandboxID // oldest first
	execs     map[hutch.ExecID]*command
	execOrder []hutch.ExecID
	programs  map[string]Program
	keys      map[string]hutch.APIKey // by the key itself
	events    []hutch.Event
	eventsCh  chan struct{} // closed and replaced when there are more
	idem      idempotency
	samples   []hutch.Sample
	bill      Bill
	builds    []*build
	audit     []hutch.AuditEntry
	leaked    []hutch.Leak

	noTemplate bool // "base" has been deleted
	// Requested are the builds that were asked for. Read it when no call is under way.
	Requested []hutch.BuildRequest
}

// New returns a Fake with one template, "base", and a few programs.
func New() *Fake {
	f := &Fake{
		sandboxes: make(map[hutch.SandboxID]*hutch.Sandbox),
		execs:     make(map[hutch.ExecID]*command),
		programs:  make(map[string]Program),
		keys:      make(map[string]hutch.APIKey),
		eventsCh:  make(chan struct{}),
		Now:       time.Now,
		Inside:    newInside(),
	}
	f.idem.calls = make(map[string]storedCall)
	for key, k := range map[string]hutch.APIKey{
		AdminKey: {Name: "admin", Scope: hutch.ScopeAdmin, Project: hutch.DefaultProject},
		RunKey:   {Name: "run", Scope: hutch.ScopeRun, Project: hutch.DefaultProject},
		ReadKey:  {Name: "read", Scope: hutch.ScopeRead, Project: hutch.DefaultProject},
		OtherKey: {Name: "other", Scope: hutch.ScopeAdmin, Project: "other"},
	} {
		k.Prefix, k.CreatedAt = key[:8], Epoch
		f.keys[key] = k
	}
	builtins(f)
	return f
}

// Epoch is when a Fake's keys and template were made.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Services is f as httpapi takes it.
func (f *Fake) Services() httpapi.Services {
	return httpapi.Services{
		Sandboxes: f, Pausing: f, Execs: f, ExecControl: f, Guests: f, Settings: f, Leases: f, Leaks: f, Meter: f, Billing: f, Logs: f,
		Templates: f, Builds: f, Audit: f, Keys: f,
		Events: f, Health: f, Auth: f, Idempotency: &f.idem,
	}
}

// Server serves f until the test ends.
func (f *Fake) Server(t testing.TB, cfg httpapi.Config) *httptest.Server {
	t.Helper()
	if cfg.Build == (api.BuildInfo{}) {
		cfg.Build = api.BuildInfo{Service: "hutch", Semver: "0.0.0-test"}
	}
	h := httpapi.New(cfg, f.Services(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	var calls sync.WaitGroup // s waits for none whose connection is a WebSocket, and they log
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		defer calls.Done()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.Close()
		h.Close()
		calls.Wait()
	})
	return s
}

func (f *Fake) called(method string) error {
	if f.OnCall == nil {
		return nil
	}
	return f.OnCall(method)
}

func (f *Fake) recordLocked(typ string, p hutch.ProjectID, sb hutch.SandboxID, x hutch.ExecID) {
	f.events = append(f.events, hutch.Event{
		Seq: int64(len(f.events) + 1), At: f.Now(), Project: p, Sandbox: sb, Exec: x, Type: typ,
	})
	close(f.eventsCh)
	f.eventsCh = make(chan struct{})
}

func (f *Fake) liveLocked(p hutch.ProjectID, sid hutch.SandboxID) (*hutch.Sandbox, error) {
	sb, ok := f.sandboxes[sid]
	if !ok || sb.Project != p {
		return nil, hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %q", sid)
	}
	if sb.State == hutch.StateDead {
		return nil, &hutch.Error{Code: hutch.CodeSandboxGone, Message: fmt.Sprintf("sandbox %s has ended (%s)", sid, sb.EndReason), Reason: string(sb.EndReason)}
	}
	return sb, nil
}

// CreateSandbox implements httpapi.Sandboxes.
func (f *Fake) CreateSandbox(_ context.Context, req hutch.CreateSandbox) (hutch.Sandbox, error) {
	if err := f.called("CreateSandbox"); err != nil {
		return hutch.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.ID == "" {
		req.ID = hutch.SandboxID(id.NewSandbox())
	} else if sb, ok := f.sandboxes[req.ID]; ok {
		return *sb, nil
	}
	if req.Template != "base" {
		return hutch.Sandbox{}, &hutch.Error{Code: hutch.CodeNotFound, Field: "template", Message: fmt.Sprintf("there is no template %q", req.Template)}
	}
	ttl := time.Hour
	if req.TTL != nil {
		ttl = *req.TTL
	}
	if ttl == 0 {
		ttl = MaxTTL
	}
	if ttl > MaxTTL {
		return hutch.Sandbox{}, hutch.FieldErrorf("ttl_seconds", "must be at most %d", int(MaxTTL.Seconds()))
	}
	res := hutch.Resources{MilliCPU: 2000, MemoryMB: 2048, DiskMB: 10240, DiskTier: hutch.TierDisk, Pids: 512}
	for _, r := range []struct{ in, out *int }{
		{&req.Resources.MilliCPU, &res.MilliCPU},
		{&req.Resources.MemoryMB, &res.MemoryMB},
		{&req.Resources.DiskMB, &res.DiskMB},
		{&req.Resources.Pids, &res.Pids},
	} {
		if *r.in != 0 {
			*r.out = *r.in
		}
	}
	if req.Resources.DiskTier != "" {
		res.DiskTier = req.Resources.DiskTier
	}
	profile := cmp.Or(req.Profile, hutch.ProfileRoot)
	if !profile.Valid() {
		return hutch.Sandbox{}, hutch.FieldErrorf("profile", "must be root or locked")
	}
	host := req.Hostname
	if host == "" {
		host = string(req.ID)
	}
	now := f.Now()
	sb := &hutch.Sandbox{
		ID: req.ID, Project: req.Project, Template: req.Template, Hostname: host,
		State: hutch.StateRunning, Epoch: 1, Resources: res, Profile: profile, Env: req.Env, Metadata: req.Metadata,
		TTL: ttl, IdleTimeout: req.IdleTimeout, CreatedAt: now, StartedAt: now, ActiveAt: now,
		Access: req.Access, Budget: req.Budget, ExpiresAt: now.Add(ttl), BootMode: "cold", Boot: 30 * time.Millisecond,
	}
	if sb.Lease = req.Lease; sb.Lease > 0 {
		sb.LeasedTo = now.Add(sb.Lease)
	}
	f.sandboxes[sb.ID] = sb
	f.order = append(f.order, sb.ID)
	f.recordLocked("sandbox.started", sb.Project, sb.ID, "")
	return *sb, nil
}

// Sandbox implements httpapi.Sandboxes.
func (f *Fake) Sandbox(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	if err := f.called("Sandbox"); err != nil {
		return hutch.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	return *sb, nil
}

// page cuts a newest-first listing; a cursor is the number of entries before it.
func page[T any](all []T, cursor string, limit int) ([]T, string, error) {
	from := 0
	if cursor != "" {
		n, err := strconv.Atoi(cursor)
		if err != nil || n < 0 || n > len(all) {
			return nil, "", hutch.FieldErrorf("cursor", "is not from here")
		}
		from = n
	}
	if limit == 0 {
		limit = 100
	}
	to := min(len(all), from+limit)
	next := ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return all[from:to], next, nil
}

// ListSandboxes implements httpapi.Sandboxes.
func (f *Fake) ListSandboxes(_ context.Context, q hutch.SandboxQuery) ([]hutch.Sandbox, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []hutch.Sandbox
	for _, sid := range slices.Backward(f.order) {
		sb := f.sandboxes[sid]
		fits := sb.Project == q.Project && slices.Contains(q.States, sb.State) && (q.Template == "" || q.Template == sb.Template)
		for k, v := range q.Metadata {
			fits = fits && sb.Metadata[k] == v
		}
		if fits {
			all = append(all, *sb)
		}
	}
	return page(all, q.Cursor, q.Limit)
}

// ExtendSandbox implements httpapi.Sandboxes.
func (f *Fake) ExtendSandbox(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, ttl time.Duration) (hutch.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	if ttl == 0 {
		ttl = MaxTTL
	}
	sb.TTL, sb.ExpiresAt = ttl, f.Now().Add(ttl)
	return *sb, nil
}

func (f *Fake) turn(method string, p hutch.ProjectID, sid hutch.SandboxID, to hutch.State, event string) (hutch.Sandbox, error) {
	if err := f.called(method); err != nil {
		return hutch.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	if sb.State != to {
		sb.State = to
		sb.Epoch++
		f.recordLocked(event, p, sid, "")
	}
	return *sb, nil
}

// PauseSandbox implements httpapi.Pausing.
func (f *Fake) PauseSandbox(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	return f.turn("PauseSandbox", p, sid, hutch.StatePaused, "sandbox.paused")
}

// ResumeSandbox implements httpapi.Pausing.
func (f *Fake) ResumeSandbox(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	return f.turn("ResumeSandbox", p, sid, hutch.StateRunning, "sandbox.resumed")
}

// KillSandbox implements httpapi.Sandboxes.
func (f *Fake) KillSandbox(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	if err := f.called("KillSandbox"); err != nil {
		return hutch.Sandbox{}, err
	}
	return f.End(p, sid, hutch.EndKilled)
}

// End ends a sandbox, and the commands in it, as if for the reason given.
func (f *Fake) End(p hutch.ProjectID, sid hutch.SandboxID, why hutch.SandboxEnd) (hutch.Sandbox, error) {
	f.mu.Lock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		f.mu.Unlock()
		return hutch.Sandbox{}, err
	}
	sb.End(why, "")
	sb.EndedAt = f.Now()
	out := *sb
	var running []*command
	for _, c := range f.execs {
		if c.sandbox == sid {
			running = append(running, c)
		}
	}
	f.recordLocked("sandbox.ended", p, sid, "")
	f.mu.Unlock()
	for _, c := range running {
		c.stop(hutch.ExecSandboxGone)
		<-c.done
	}
	return out, nil
}

// ListTemplates implements httpapi.Templates.
func (f *Fake) ListTemplates(context.Context) ([]hutch.Template, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.noTemplate {
		return nil, nil
	}
	return []hutch.Template{f.template()}, nil
}

// Template implements httpapi.Templates.
func (f *Fake) Template(_ context.Context, name string) (hutch.Template, error) {
	if name != "base" {
		return hutch.Template{}, hutch.Errorf(hutch.CodeNotFound, "there is no template %q", name)
	}
	return f.template(), nil
}

func (*Fake) template() hutch.Template {
	return hutch.Template{
		Name: "base", BuildID: "6f1c1f2e-0000-4000-8000-000000000001", Image: "sha256:00", SizeBytes: 1 << 20,
		Resources: hutch.Resources{MilliCPU: 2000, MemoryMB: 2048}, CreatedAt: Epoch,
	}
}

// Verify implements httpapi.Authenticator.
func (f *Fake) Verify(_ context.Context, presented string) (hutch.APIKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.keys[presented]
	if !ok || !k.RevokedAt.IsZero() {
		return hutch.APIKey{}, hutch.Errorf(hutch.CodeUnauthenticated, "this API key is not valid here")
	}
	return k, nil
}

// CreateKey implements httpapi.Keys.
func (f *Fake) CreateKey(_ context.Context, req hutch.CreateKey) (hutch.APIKey, string, error) {
	if err := f.called("CreateKey"); err != nil {
		return hutch.APIKey{}, "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := fmt.Sprintf("%08x%032x", len(f.keys), 0)
	k := hutch.APIKey{Prefix: key[:8], Project: req.Project, Name: req.Name, Scope: req.Scope, CreatedAt: Epoch}
	if req.TTL > 0 {
		k.ExpiresAt = Epoch.Add(req.TTL)
	}
	f.keys[key] = k
	return k, key, nil
}

// ListKeys implements httpapi.Keys.
func (f *Fake) ListKeys(_ context.Context, p hutch.ProjectID) ([]hutch.APIKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []hutch.APIKey
	for _, key := range slices.Sorted(maps.Keys(f.keys)) {
		if f.keys[key].Project == p {
			out = append(out, f.keys[key])
		}
	}
	return out, nil
}

// RevokeKey implements httpapi.Keys.
func (f *Fake) RevokeKey(_ context.Context, p hutch.ProjectID, prefix string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, k := range f.keys {
		if k.Prefix == prefix && k.Project == p && k.RevokedAt.IsZero() {
			k.RevokedAt = Epoch
			f.keys[key] = k
			return nil
		}
	}
	return hutch.Errorf(hutch.CodeNotFound, "there is no valid key %q", prefix)
}

// Events implements httpapi.EventLog.
func (f *Fake) Events(_ context.Context, q hutch.EventQuery) ([]hutch.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.eventsLocked(q)
	if q.Limit == 0 {
		q.Limit = 100
	}
	return out[:min(len(out), q.Limit)], nil
}

func (f *Fake) eventsLocked(q hutch.EventQuery) []hutch.Event {
	var out []hutch.Event
	for _, ev := range f.events {
		if ev.Project == q.Project && ev.Seq > q.After && (q.Sandbox == "" || ev.Sandbox == q.Sandbox) {
			out = append(out, ev)
		}
	}
	return out
}

// WatchEvents implements httpapi.EventLog.
func (f *Fake) WatchEvents(ctx context.Context, q hutch.EventQuery, sink func(hutch.Event) error) error {
	for {
		f.mu.Lock()
		list, more := f.eventsLocked(q), f.eventsCh
		f.mu.Unlock()
		for _, ev := range list {
			if err := sink(ev); err != nil {
				return err
			}
			q.After = ev.Seq
			if q.Sandbox != "" && ev.Type == "sandbox.ended" {
				return nil
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Ready implements httpapi.Health.
func (f *Fake) Ready(context.Context) error { return f.NotReady }
