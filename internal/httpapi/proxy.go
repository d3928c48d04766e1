package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/credential"
)

// dialTimeout bounds the connecting to a port inside: a guest answers within milliseconds
// or has no time.
const dialTimeout = 10 * time.Second

// maxProxied is how many requests to servers in one sandbox may be under way.
const maxProxied = 512

// maxHeader bounds the header of a request, and of an answer from inside.
const maxHeader = 64 << 10

// headerProxySandbox names the sandbox to a server inside; the compatible API's name.
const headerProxySandbox = "X-Fcs-Sandbox"

// proxyRoutes take any method, and are a server's inside: no schema of ours says what
// they answer.
func proxyRoutes() []route {
	return []route{
		{pattern: proxyPattern, scope: hutch.ScopeRun, once: onceByItself, handle: (*API).proxy},
	}
}

const proxyPattern = "/v1/sandboxes/{id}/proxy/{port}/{rest...}"

// proxyPath reports whether a request is for a server inside, and sets its path's values if
// so. The mux would send who asks for "/a/../b" or "//a" away to another path, as is right for
// ours; what is inside reads its paths itself.
func proxyPath(r *http.Request) bool {
	e := strings.SplitN(r.URL.EscapedPath(), "/", 7)
	if len(e) < 7 || e[0] != "" || e[1] != "v1" || e[2] != "sandboxes" || e[4] != "proxy" {
		return false
	}
	for i, name := range map[int]string{3: "id", 5: "port", 6: "rest"} {
		value, err := url.PathUnescape(e[i])
		if err != nil || i < 6 && (value == "" || value == "." || value == "..") {
			return false
		}
		r.SetPathValue(name, value)
	}
	return true
}

// proxy passes a request on to a server inside, whatever it is, WebSockets too.
func (a *API) proxy(w http.ResponseWriter, r *http.Request) error {
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	leave, ok := a.proxied.Enter(sb.ID)
	if !ok {
		return hutch.Errorf(hutch.CodeRateLimited, "%d requests to servers in this sandbox are under way, which is the most: try again in a moment", maxProxied)
	}
	defer leave()
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	// Connect first: what fails here is answered in our words.
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	conn, err := g.DialPort(ctx, port)
	cancel()
	if err != nil {
		return err
	}
	if r.Body != nil && r.ContentLength != 0 {
		r.Body = struct {
			*upload
			io.Closer
		}{a.bodyOf(w, r), r.Body}
	}
	dropCORS(w.Header()) // the server inside has its own
	var broken error
	p := &httputil.ReverseProxy{
		Rewrite:        func(pr *httputil.ProxyRequest) { a.rewrite(pr, sb, port) },
		Transport:      oneConnection(conn),
		ModifyResponse: contain,
		FlushInterval:  -1,
		ErrorLog:       slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, err error) { broken = err },
	}
	p.ServeHTTP(w, r)
	if broken == nil {
		return nil
	}
	cors(w.Header())
	if r.Context().Err() != nil {
		return clientGone(broken)
	}
	return hutch.Wrap(hutch.CodePortClosed, broken, "the server at port %d in the sandbox closed the connection without an answer, or sent none that is HTTP", port)
}

// untrusted keeps what a server inside sends from acting as a page of this server, which
// has its name here: scripts in it see nothing that belongs to another page. Pages that
// need storage of their own are reached by the sandbox's own name.
const untrusted = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"

func contain(res *http.Response) error {
	res.Header.Add("Content-Security-Policy", untrusted)
	return nil
}

// rewrite makes the request that the server inside sees: without the key, and with what
// it was before.
func (a *API) rewrite(pr *httputil.ProxyRequest, sb hutch.Sandbox, port int) {
	prefix := fmt.Sprintf("%s/sandboxes/%s/proxy/%d", api.Version, sb.ID, port)
	out := pr.Out
	out.URL.Scheme, out.URL.Host = "http", "sandbox"
	out.URL.Path = "/" + pr.In.PathValue("rest")
	out.URL.RawPath = ""
	if raw, ok := strings.CutPrefix(pr.In.URL.EscapedPath(), prefix); ok && strings.HasPrefix(raw, "/") {
		if path, err := url.PathUnescape(raw); err == nil {
			out.URL.Path, out.URL.RawPath = path, raw
		}
	}
	out.URL.RawQuery = pr.In.URL.RawQuery
	out.Header.Del("Authorization") // the key that let the caller in, in whatever form
	out.Header.Del(api.HeaderAPIKey)
	shown := pr.In.URL.Query()[tokenParam]
	credential.Strip(out, func(v string) bool { return credential.IsToken(v) || slices.Contains(shown, v) })
	out.Host = pr.In.Host
	if sb.Access.MaskHost != "" {
		out.Host = strings.ReplaceAll(sb.Access.MaskHost, "${PORT}", strconv.Itoa(port))
	}
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Prefix", prefix)
	out.Header.Set(headerProxySandbox, string(sb.ID))
}

// oneConnection is a transport that uses conn, for one request.
func oneConnection(conn hutch.PortConn) *http.Transport {
	return &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		// A server inside that never ends its header holds no more than callers may send.
		MaxResponseHeaderBytes: maxHeader,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			c := conn
			if conn = nil; c == nil {
				return nil, errors.New("the connection was used")
			}
			return portConn{c}, nil
		},
	}
}

// portConn is a connection to a port inside as package net has connections. Deadlines
// are not its own: whoever waits has a context.
type portConn struct{ hutch.PortConn }

type portAddr struct{}

func (portAddr) Network() string { return "sandbox" }
func (portAddr) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (portConn) LocalAddr() net.Addr { return portAddr{} }

// RemoteAddr implements net.Conn.
func (portConn) RemoteAddr() net.Addr { return portAddr{} }

// SetDeadline implements net.Conn.
func (portConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (portConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (portConn) SetWriteDeadline(time.Time) error { return nil }
