// Package guest is the guest agent: the first process of every sandbox.
//
// It owns what happens inside: it is told who it is (identity.go) and how much its commands
// may do (profile.go), runs commands
// (package process), and serves the calls of package guestapi to the node (server.go). It
// refuses to own limits and bills: whoever is root in the sandbox can do to it as they
// like, so the host does the limiting, and nothing secret ever comes here.
//
// Nothing but hello is answered on a link session until that session has said hello, and
// after a restore every session must say it again: a clone must have its own name, clock
// and seed before anything runs in it.
//
// The agent answers while every CPU inside is busy and the disk is full: it writes no
// file to answer. It holds no lock while it waits for a process.
//
// Start with [Agent.Run], then server.go.
package guest

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guest/cgroup"
	"hutch.dev/hutch/internal/guest/files"
	"hutch.dev/hutch/internal/guest/machine"
	"hutch.dev/hutch/internal/guest/output"
	"hutch.dev/hutch/internal/guest/process"
	"hutch.dev/hutch/internal/guest/procfs"
	"hutch.dev/hutch/internal/guestapi"
)

// maxCalls is how many calls are served at once on a session: a follower for each of several
// hundred commands, and room for the calls that end them.
const maxCalls = 1000

// Config is what an agent works with. [Default] is that of a sandbox.
type Config struct {
	Version    string
	Started    time.Time // the agent's first instruction
	Proc       string    // mounted proc file system
	Cgroup     string    // where cgroup2 is mounted; empty = commands have no groups
	OutputDir  string    // where output that does not fit in memory goes
	ShellDir   string    // where the pipes of shell sessions are
	Etc        string    // directory of passwd, group, hosts, hostname, machine-id
	OutputPool int64     // bytes of memory for the output of all commands
	// Restores blocks until the sandbox has been restored from a snapshot, each time it is
	// called; an error means that this machine cannot be. Nil = it cannot.
	Restores  func() error
	Protected bool // machine.Protect was called, and commands must not inherit it
	Log       *slog.Logger
}

// Default is the configuration of an agent in a sandbox.
func Default() Config {
	return Config{
		Proc:       "/proc",
		Cgroup:     "/sys/fs/cgroup",
		OutputDir:  "/var/lib/hutch/exec",
		ShellDir:   "/run/hutch",
		Etc:        "/etc",
		OutputPool: outputPool("/proc"),
		Restores:   machine.AwaitRestore,
	}
}

// outputPool is an eighth of the sandbox's memory, within bounds: 32 MiB hold the largest
// budgets of one command, and 256 MiB those of eight at once.
func outputPool(proc string) int64 {
	return min(max(procfs.FS{Root: proc}.Memory()/8, 32<<20), 256<<20)
}

// Agent is the guest agent.
type Agent struct {
	cfg    Config
	table  *process.Table
	users  account.Database
	files  *files.Service
	server *http.Server

	portConns chan struct{} // tokens: connections to ports

	mu       sync.Mutex
	life     uint64    // +1 at each restore: hellos of another life do not count
	identity *identity // the last hello's; nil before the first
	restored bool      // since the last hello
	moved    bool      // the last hello brought another identity, and no restore was seen yet
	locked   bool      // the profile that the first hello named; valid with identity
	ahead    *ahead    // done by a hello of epoch 0, and nobody else's since; else nil
	confined *confined // nil: the profile is not locked, or not known yet
}

// New makes an agent. It does nothing before Run, but for the tree of control groups.
func New(cfg Config) *Agent {
	a := &Agent{cfg: cfg, portConns: make(chan struct{}, guestapi.MaxPortConns)}
	var tree *cgroup.Tree
	if cfg.Cgroup != "" {
		var err error
		if tree, err = cgroup.Open(cfg.Cgroup); err != nil {
			cfg.Log.Warn("commands have no control groups", "err", err)
			tree = nil
		}
	}
	a.users = account.Database{Passwd: cfg.Etc + "/passwd", Group: cfg.Etc + "/group", Locked: new(atomic.Pointer[string]), Cache: new(account.Cache)}
	a.files = files.New(files.Config{Accounts: a.users, Refuse: writeError})
	a.table = process.New(process.Config{
		Proc:     procfs.FS{Root: cfg.Proc},
		Cgroups:  tree,
		Accounts: a.users,
		Output:   output.Dir{Path: cfg.OutputDir},
		Pool:     output.NewPool(cfg.OutputPool),
		ShellDir: cfg.ShellDir,
		Log:      cfg.Log,

		Protected: cfg.Protected,
	})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	a.server = &http.Server{
		Handler:     a.handler(),
		Protocols:   &protocols,
		ConnContext: newSession,
		ErrorLog:    slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug), // the node's mistakes, which it sees itself
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxCalls,
			// As package guestlink, the other end, has them and explains them: a file's
			// bytes come in long frames, and few bodies may lie unread.
			MaxReadFrameSize:              256<<10 + 1<<10,
			MaxReceiveBufferPerStream:     1 << 20,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
		},
	}
	return a
}

// Run serves the sessions that l accepts until ctx ends or the listener fails. It then
// kills every command.
func (a *Agent) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	reaping := make(chan struct{})
	go func() {
		defer close(reaping)
		_ = a.table.Run(ctx) // ends with ctx only
	}()
	if a.cfg.Restores != nil {
		go a.watchRestores(ctx)
	}
	stop := context.AfterFunc(ctx, func() { _ = a.server.Close() })
	err := a.server.Serve(l)
	stop()
	a.table.Clean(context.WithoutCancel(ctx))
	cancel()
	<-reaping
	return err
}

// watchRestores closes the gate after each restore. It cannot be told to end: it sits in
// a read that only a restore ends, and dies with the process.
func (a *Agent) watchRestores(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.cfg.Restores(); err != nil {
			a.cfg.Log.Info("restores are not announced here", "err", err)
			return
		}
		a.noteRestore()
	}
}
