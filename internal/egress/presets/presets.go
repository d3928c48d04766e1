// Package presets fills the gateway's configuration from the machine's own package clients:
// which hosts they fetch from becomes what sandboxes may be allowed to reach by the name of
// a preset, and how those clients are set up becomes what they need inside.
//
// It knows no registry. A host is in a preset because a file, a variable, or the client
// itself, asked for its default, said so; what none of them says is in none, and
// [Found.Problems] tells. Hosts that a registry redirects to are known only where the client
// knows them.
//
// No login gets into what is found: not into [Found.Inside], which every sandbox can read,
// nor into a problem. Where a client has one, a problem says that it stays outside.
//
// It reads files, asks clients, and resolves names, each through [Machine], and changes
// nothing. One client that is broken hides no other.
//
// Start with [Find].
package presets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// The presets.
const (
	Debian = "debian"
	PyPI   = "pypi"
	NPM    = "npm"
	Golang = "golang"
	Crates = "crates"
	GitHub = "github"
)

// Machine is what is read.
type Machine struct {
	Root string // of the file system; "/" for this machine
	Home string // below Root, of the user whose clients count
	// Getenv is the environment of that user.
	Getenv func(name string) string
	// Run asks a client and returns its standard output. It must run in a directory without
	// settings of its own ("/"), and end within a time. Nil = no client is asked.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
	// Resolve looks a host up as the gateway will. Nil = no exceptions are made.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Addrs are the addresses of the machine's interfaces, with the networks that they are in.
	Addrs []netip.Prefix
}

// Found is what came of it.
type Found struct {
	// Env has the presets, the exceptions that they take, and the host's own addresses.
	Env    policy.Env
	Inside Inside
	// Problems are sentences for the operator: what could not be read, or is not covered.
	Problems []string
}

// Inside is how the clients of a sandbox have to be set up.
type Inside struct {
	Files []File            // by path
	Env   map[string]string // of every process
	// CAs are files of this machine with certificates that its clients are told to trust.
	// Where they are not the system's own, sandboxes have to trust them too.
	CAs []string
}

// File is one of a sandbox, readable for all.
type File struct {
	Path string
	Text string
}

// maxFile bounds a file that is read, in bytes.
const maxFile = 1 << 20

// finder collects.
type finder struct {
	m       Machine
	hosts   map[string]map[string][]hutch.PortRange // by preset, then host
	inside  Inside
	problem []string
}

// Find reads m. It returns what it could; only a cancelled ctx is an error.
func Find(ctx context.Context, m Machine) (Found, error) {
	f := &finder{m: m, hosts: make(map[string]map[string][]hutch.PortRange), inside: Inside{Env: make(map[string]string)}}
	f.apt()
	f.pip(ctx)
	f.npm(ctx)
	f.golang(ctx)
	f.cargo()
	f.forge()
	f.certificates()
	env := f.env()
	f.exceptions(ctx, &env)
	if err := ctx.Err(); err != nil {
		return Found{}, fmt.Errorf("read package clients: %w", context.Cause(ctx))
	}
	slices.SortFunc(f.inside.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(f.inside.CAs)
	f.inside.CAs = slices.Compact(f.inside.CAs)
	slices.Sort(f.problem)
	return Found{Env: env, Inside: f.inside, Problems: slices.Compact(f.problem)}, nil
}

// env writes the presets out.
func (f *finder) env() policy.Env {
	env := policy.Env{Presets: make(map[string]policy.Preset)}
	for name, hosts := range f.hosts {
		var p policy.Preset
		for _, h := range slices.Sorted(maps.Keys(hosts)) {
			p.Hosts = append(p.Hosts, policy.Host{Domain: h, Ports: hosts[h]})
		}
		env.Presets[name] = p
	}
	// The forge is where an agent could publish: it is not trusted unless the operator says so.
	env.Trusted = slices.DeleteFunc(slices.Sorted(maps.Keys(env.Presets)), func(n string) bool { return n == GitHub })
	return env
}

// add puts the host of an address into a preset, and returns the address without a login;
// empty if it is none that is fetched over the network. Client says whose it is.
func (f *finder) add(preset, client, address string) string {
	rest := strings.TrimSpace(address)
	kind := ""
	if i := strings.Index(rest, "+http"); i >= 0 { // sparse+https://, mirror+http://
		kind, rest = rest[:i+1], rest[i+1:]
	}
	u, err := url.Parse(rest)
	if err != nil {
		f.say("%s: one of its addresses cannot be understood", client) // it may hold a password
		return ""
	}
	port := map[string]uint16{"http": 80, "https": 443}[u.Scheme]
	if port == 0 {
		return "" // a directory, a disc
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			f.say("%s: the address at %q has no valid port", client, u.Hostname())
			return ""
		}
		port = uint16(n)
	}
	if u.User != nil {
		f.say("%s has a login for %q, which stays outside: fetching from there needs one that the gateway adds", client, u.Hostname())
		u.User = nil
	}
	if !f.host(preset, client, u.Hostname(), port) {
		return ""
	}
	return kind + u.String()
}

// host puts a host into a preset.
func (f *finder) host(preset, client, host string, port uint16) bool {
	name, err := policy.NormalName(host)
	if err != nil {
		f.say("%s fetches from %q, which is no host name: give the machine a name, and map that to its address", client, host)
		return false
	}
	hosts := f.hosts[preset]
	if hosts == nil {
		hosts = make(map[string][]hutch.PortRange)
		f.hosts[preset] = hosts
	}
	if p := hutch.Port(port); !slices.Contains(hosts[name], p) {
		hosts[name] = append(hosts[name], p)
		slices.SortFunc(hosts[name], func(a, b hutch.PortRange) int { return int(a.First) - int(b.First) })
	}
	return true
}

func (f *finder) say(format string, args ...any) {
	f.problem = append(f.problem, fmt.Sprintf(format, args...))
}

// read is a file's text; empty if there is none.
func (f *finder) read(path string) string {
	full := filepath.Join(f.m.Root, path)
	st, err := os.Stat(full)
	switch {
	case err == nil && st.Size() > maxFile:
		f.say("%s is larger than %d bytes: it was not read", path, maxFile)
		return ""
	case err == nil && !st.Mode().IsRegular():
		return "" // /dev/null: somebody's way to say no file
	}
	data, err := os.ReadFile(full)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.say("%s cannot be read", path)
	}
	return string(data)
}

// home is a path in the user's home.
func (f *finder) home(path string) string { return filepath.Join("/", f.m.Home, path) }

// config is where the user's programs keep settings.
func (f *finder) config(path string) string {
	if dir := f.m.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join("/", dir, path)
	}
	return f.home(filepath.Join(".config", path))
}

// ask runs a client; ok is false if there is none, or it has nothing to say.
func (f *finder) ask(ctx context.Context, name string, args ...string) (string, bool) {
	if f.m.Run == nil {
		return "", false
	}
	out, err := f.m.Run(ctx, name, args...)
	return strings.TrimSpace(string(out)), err == nil && len(out) > 0 && len(out) <= maxFile
}

// certificates notes the files that variables name to every client.
func (f *finder) certificates() {
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO"} {
		f.ca(f.m.Getenv(name))
	}
}

// ca notes a file of certificates.
func (f *finder) ca(path string) {
	if filepath.IsAbs(path) {
		f.inside.CAs = append(f.inside.CAs, filepath.Clean(path))
	}
}
