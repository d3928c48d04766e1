// Package files is the file service of the guest agent: what hutch.FileReader,
// hutch.FileWriter and hutch.FileWatcher promise, kept inside the sandbox.
//
// It owns the calls below [guestapi.PathFiles]. It refuses to own rights: every system call
// that takes a path is made by a thread with the ids of the acting user ([account.User.Do]),
// so the kernel decides, also about where a link leads. What the kernel would allow the
// agent's threads and not a process of the user, to look at the agent itself, is refused in
// place.go.
//
// Invariants: memory does not grow with the size of a file, nor with that of a directory,
// but for what a watch must remember. A file that is written is the old one or the new one
// at every instant. Nothing that a call made for itself is left when it fails, except the
// parts of an upload that can be continued. A panic or a slow reader ends one call.
//
// No locks are held across system calls but the tokens of [Service.work].
//
// Start with [Service.Handle], then handlers.go; place.go says how a path is resolved.
package files

import (
	"context"
	"net/http"
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guestapi"
)

const (
	// maxWork is how many calls work at once, each on a thread of its own. Calls that only
	// copy bytes of a file that is open do not count.
	maxWork = 64
	// maxTrees is how many of those that go on for as long as their caller likes (archives
	// both ways, searches) are under way at once. They leave room for the others.
	maxTrees = 32
	// maxWatches is how many directories are watched at once: each takes a thread.
	maxWatches = 64
	// chunkSize is how much is read and written at once: a frame of the link.
	chunkSize = guestapi.MaxFileData
)

// Config is what a Service works with.
type Config struct {
	Accounts account.Database
	Refuse   func(http.ResponseWriter, error) // answers a call with an error
}

// Service answers the calls. Its methods are safe for concurrent use.
type Service struct {
	cfg     Config
	work    chan struct{} // tokens: calls at work
	trees   chan struct{} // tokens: archives and searches
	watches chan struct{} // tokens: directories watched
	uploads uploads

	mu   sync.Mutex
	user string // acting user of calls that name none; empty = root
}

// New makes a Service.
func New(cfg Config) *Service {
	return &Service{
		cfg:     cfg,
		work:    make(chan struct{}, maxWork),
		trees:   make(chan struct{}, maxTrees),
		watches: make(chan struct{}, maxWatches),
		uploads: uploads{open: map[string]*upload{}},
	}
}

// SetUser says who acts in calls that name nobody; empty is root.
func (s *Service) SetUser(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user = name
}

// actor is somebody in whose name a call is made.
type actor struct {
	svc   *Service
	user  account.User
	names func() account.Names // found once, when first asked for
}

// actor finds the acting user.
func (s *Service) actor(user string) (*actor, error) {
	if user == "" {
		s.mu.Lock()
		user = s.user
		s.mu.Unlock()
	}
	u, names, err := s.cfg.Accounts.LookupNames(user)
	if err != nil {
		return nil, err
	}
	return &actor{svc: s, user: u, names: sync.OnceValue(names)}, nil
}

// do runs fn with the user's rights when a thread is free for it.
func (a *actor) do(ctx context.Context, fn func() error) error { return a.with(ctx, a.svc.work, fn) }

// doTree is do for what goes on for as long as the caller likes.
func (a *actor) doTree(ctx context.Context, fn func() error) error {
	return a.with(ctx, a.svc.trees, fn)
}

func (a *actor) with(ctx context.Context, tokens chan struct{}, fn func() error) error {
	select {
	case tokens <- struct{}{}:
		defer func() { <-tokens }()
	case <-ctx.Done():
		return hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "%s", hutch.ErrCancelled.Message)
	}
	return a.user.Do(fn)
}

// root reports whether the acting user may do everything.
func (a *actor) root() bool { return a.user.UID == 0 }

// chunks holds buffers for a frame of chunkSize bytes.
var chunks = sync.Pool{New: func() any { b := make([]byte, frameSpace+chunkSize); return &b }}
