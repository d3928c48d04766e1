package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/term"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// Environment variables that name the server.
const (
	EnvURL     = "HUTCH_API_URL"
	EnvKey     = "HUTCH_API_KEY"
	EnvDataDir = "HUTCH_DATA_DIR"
)

// Files of a server's data directory by which the command line on the same machine finds it.
const (
	ListenFile = "listen"    // the address it serves on, while it does
	KeyFile    = "admin.key" // the first key
)

// DefaultDataDir is where a server keeps its data unless told otherwise.
const DefaultDataDir = "/var/lib/hutch"

// retries is how often a call is tried again: 13 s on average, so that a server may be
// restarted under a command that is being watched.
const retries = 6

// Env is the world of a command.
type Env struct {
	Stdin    io.Reader // read by exec -i, shell and cp - only
	Stdout   io.Writer
	Stderr   io.Writer
	Terminal bool // stdout is a terminal: colours are welcome
	TTY      TTY  // of the user; nil = there is none
	Getenv   func(string) string
	ReadFile func(string) ([]byte, error)
	Now      func() time.Time
	Build    api.BuildInfo // of this binary

	// TemplateCommands are put beside `template ls` and `template get`.
	TemplateCommands []Command
	// ClientOptions are given to every client made.
	ClientOptions []client.Option
}

// OSEnv is the world as the operating system has it.
func OSEnv(build api.BuildInfo) Env {
	return Env{
		TTY:   openTTY(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Terminal: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Getenv:   os.Getenv, ReadFile: os.ReadFile, Now: time.Now, Build: build,
	}
}

// dataDir is the data directory: the flag's, the environment's, or the usual one.
func (e Env) dataDir(flag string) string {
	if flag != "" {
		return flag
	}
	if d := e.Getenv(EnvDataDir); d != "" {
		return d
	}
	return DefaultDataDir
}

// client finds the server and makes a client for it: what the environment names, else
// the server on this machine. The local server's key is never sent to another address.
func (e Env) client(dataDir string, more ...client.Option) (*client.Client, error) {
	url, key := e.Getenv(EnvURL), e.Getenv(EnvKey)
	if url != "" && key == "" {
		return nil, fmt.Errorf("%s is set but %s is not: set both, or neither on the server's machine, where `hutch key create NAME` makes a key", EnvURL, EnvKey)
	}
	if url == "" {
		return e.Local(dataDir, key, more...)
	}
	return e.connect(url, key, more)
}

// Local makes a client for the server on this machine that works in dataDir, whatever the
// environment names. An empty key is that of the machine's own command line.
func (e Env) Local(dataDir, key string, more ...client.Option) (*client.Client, error) {
	dir := e.dataDir(dataDir)
	addr, err := e.local(dir, ListenFile)
	if err != nil {
		return nil, err
	}
	url, err := urlOf(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ListenFile), err)
	}
	if key == "" {
		if key, err = e.local(dir, KeyFile); err != nil {
			return nil, err
		}
	}
	return e.connect(url, key, more)
}

func (e Env) connect(url, key string, more []client.Option) (*client.Client, error) {
	opts := []client.Option{
		client.WithKey(key), client.WithUserAgent("hutch-cli/" + e.Build.Semver), client.WithRetries(retries),
	}
	return client.New(url, append(append(opts, e.ClientOptions...), more...)...)
}

// local reads one of the files by which a server on this machine is found.
func (e Env) local(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	b, err := e.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("no server found: set %s and %s, or start one here with `hutch serve` (looked for %s)", EnvURL, EnvKey, path)
	case errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("%s is not readable for you: run as root, or set %s and %s", path, EnvURL, EnvKey)
	case err != nil:
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// urlOf turns what a server listens on into an address to call. A server that listens on
// every address is called on the loopback one.
func urlOf(listen string) (string, error) {
	if strings.Contains(listen, "://") {
		return listen, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("%q is not an address", listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return "http://" + net.JoinHostPort(host, port), nil
}
