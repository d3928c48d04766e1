package hutch

import (
	"context"
	"io"
	"time"
)

// Guest is what a running sandbox can be asked for besides commands. All of its errors are
// [*Error]; a sandbox that ends under a call is sandbox_gone.
type Guest interface {
	FileReader
	FileWriter
	FileWatcher
	Ports
	Shells
}

// FileReader reads files inside.
type FileReader interface {
	// StatFile describes a path, links not followed; not_found if there is nothing.
	StatFile(ctx context.Context, f FileRef) (FileInfo, error)
	// ListFiles lists a directory; a link to one is followed. What is none is bad_request.
	ListFiles(ctx context.Context, q ListFiles) (FileList, error)
	// OpenFile opens a file for reading, links followed. A directory is bad_request. ctx
	// bounds the reading too.
	OpenFile(ctx context.Context, r ReadFile) (*FileContent, error)
	// SearchFiles hands each match to sink, until there are no more or sink fails.
	SearchFiles(ctx context.Context, q SearchFiles, sink func(FileMatch) error) (SearchResult, error)
	// ReadArchive streams a tree as a tar. A stream cut short ends in an error, never in
	// a clean end.
	ReadArchive(ctx context.Context, r ReadArchive) (*FileContent, error)
}

// FileWriter changes files inside.
type FileWriter interface {
	WriteFile(ctx context.Context, w WriteFile) (WriteResult, error)
	MakeDir(ctx context.Context, m MakeDir) (FileInfo, error)
	MoveFile(ctx context.Context, m MoveFile) (FileInfo, error)
	RemoveFile(ctx context.Context, r RemoveFile) error
	WriteArchive(ctx context.Context, w WriteArchive) (ArchiveResult, error)
}

// FileWatcher reports changes inside.
type FileWatcher interface {
	// WatchFiles calls ready once nothing can be missed any more, then hands every event to
	// sink, until ctx ends (its error), sink fails (that error) or the directory goes
	// (not_found).
	WatchFiles(ctx context.Context, w WatchFiles, ready func() error, sink func(FileEvent) error) error
}

// Ports reaches servers inside.
type Ports interface {
	// DialPort connects to a TCP port of the loopback inside, where a server that listens
	// on every address is found too: IPv4 first, then IPv6. Nothing listening is
	// [ErrPortClosed]. ctx bounds the connecting only.
	DialPort(ctx context.Context, port int) (PortConn, error)
	// Listeners lists the TCP ports that something listens on inside, lowest first.
	Listeners(ctx context.Context) ([]Listener, error)
	// DiskUsage measures the sandbox's root file system.
	DiskUsage(ctx context.Context) (DiskUsage, error)
}

// PortConn is a connection to a server inside. Close ends both directions and every call
// under way.
type PortConn interface {
	io.ReadWriteCloser
	CloseWrite() error // the server reads the end; its answer can still be read
}

// Shells manages shell sessions; see [ExecSpec.Shell].
type Shells interface {
	ListShells(ctx context.Context) ([]Shell, error)
	// CloseShell ends a session with everything that runs in it; not_found if there is none.
	CloseShell(ctx context.Context, name string) error
}

// Shell is a shell session.
type Shell struct {
	Name      string    `json:"name"`
	PID       int       `json:"pid"`
	User      string    `json:"user"`
	Cwd       string    `json:"cwd"`
	Exec      ExecID    `json:"exec_id,omitempty"` // the command that runs in it now
	Commands  int       `json:"commands"`          // run in it so far
	StartedAt time.Time `json:"started_at"`
}

// Listener is a TCP port that something inside listens on.
type Listener struct {
	Port    int    `json:"port"`
	Address string `json:"address"` // "0.0.0.0", "127.0.0.1", "::", …
	PID     int    `json:"pid,omitempty"`
	Command string `json:"command,omitempty"` // whose it is, if that can be told
}

// DiskUsage is the state of a file system, in bytes.
type DiskUsage struct {
	Used  int64 `json:"used"`
	Total int64 `json:"total"`
}

// Sample is the use of a sandbox at one instant.
type Sample struct {
	At         time.Time
	CPUs       int     // that it sees
	CPUPercent float64 // of one CPU, averaged since the sample before
	Memory     int64   // bytes charged by the host
	WorkingSet int64   // of Memory, what the host could not take back by dropping file pages
	MemoryMax  int64   // its limit
	Disk       int64   // bytes
	DiskMax    int64
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// Default and largest terminal.
const (
	DefaultRows, DefaultCols = 24, 80
	MaxRows, MaxCols         = 4096, 4096
)
