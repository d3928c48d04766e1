package edge

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// The headers that name a sandbox and a port of it. They are E2B's, whose clients send them.
const (
	HeaderSandbox = "E2b-Sandbox-Id"
	HeaderPort    = "E2b-Sandbox-Port"
)

// The refusals of a request that is for a sandbox, but for none that can be.
var (
	errHalf = errors.New("missing header: " + HeaderSandbox + " and " + HeaderPort + " go together")
	errPort = errors.New("invalid host: the port of a sandbox is a number from 1 to 65535")
	errHost = errors.New("invalid host: a sandbox's port is reached at <port>-<sandbox>.<domain>")
)

// route finds what a request is for; no sandbox means it is for the next handler.
func (e *Edge) route(r *http.Request) (target, error) {
	sb, port := r.Header.Get(HeaderSandbox), r.Header.Get(HeaderPort)
	switch {
	case sb != "" && port != "":
		return parse(sb, port)
	case sb != "" || port != "":
		return target{}, errHalf
	}
	label, ok := e.label(r.Host)
	if !ok {
		return target{}, nil
	}
	port, sb, ok = strings.Cut(label, "-")
	if !ok || strings.ContainsFunc(port, func(c rune) bool { return c < '0' || c > '9' }) {
		return target{}, nil // api.<domain>, say: a name of the server itself
	}
	to, err := parse(sb, port)
	to.ByHost = true
	return to, err
}

// label is the part of a host name before the domain; false if it is not below the domain.
func (e *Edge) label(host string) (string, bool) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, ok := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(host, ".")), "."+e.cfg.Domain)
	return label, ok && label != "" && !strings.Contains(label, ".")
}

// parse reads the name of a sandbox and the number of a port. What follows a dash in the
// sandbox's name, a client's addition, has no meaning.
func parse(sandbox, port string) (target, error) {
	sandbox, _, _ = strings.Cut(strings.ToLower(sandbox), "-")
	if !id.ValidSandbox(sandbox) {
		// It cannot exist, and is answered as one that does not: what ids look like is
		// nobody's business here.
		if sandbox == "" || len(sandbox) > 63 || strings.ContainsFunc(sandbox, notAlphanumeric) {
			return target{}, errHost
		}
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || len(port) > 5 || port[0] == '+' {
		return target{}, errPort
	}
	return target{Sandbox: hutch.SandboxID(sandbox), Port: n}, nil
}

func notAlphanumeric(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') }
