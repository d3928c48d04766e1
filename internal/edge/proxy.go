package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/credential"
)

// maxHeader bounds the header of an answer from inside, as the server bounds its callers'.
const maxHeader = 64 << 10

// forward takes a request to a port inside and its answer back, as they come.
func (e *Edge) forward(w http.ResponseWriter, r *http.Request, to target) {
	sb, err := e.sandboxes.SandboxByID(r.Context(), to.Sandbox)
	if err != nil || sb.State != hutch.StateRunning {
		e.refuse(w, r, to, refusalOf(err))
		return
	}
	if sb.Access.PrivatePorts && !e.admitted(w, r, to) {
		return
	}
	leave, ok := e.load.Enter(sb.ID)
	if !ok {
		w.Header().Set("Retry-After", "1")
		e.refuse(w, r, to, tooMany)
		return
	}
	defer leave()
	g, done, err := e.sandboxes.Guest(r.Context(), sb.Project, sb.ID)
	if err != nil {
		e.refuse(w, r, to, refusalOf(err))
		return
	}
	defer done()
	if r.ContentLength != 0 { // now it is the server's inside, which takes its own time
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	e.proxy(g, sb, to).ServeHTTP(w, r)
}

// proxy makes a proxy for one request.
func (e *Edge) proxy(g hutch.Guest, sb hutch.Sandbox, to target) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", net.JoinHostPort("sandbox", strconv.Itoa(to.Port))
			p.Out.Host = p.In.Host
			if mask := sb.Access.MaskHost; mask != "" {
				p.Out.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(to.Port))
			}
			e.forwarded(p)
			e.withoutOurs(p.Out, to)
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, e.cfg.DialTimeout)
				defer cancel()
				c, err := g.DialPort(ctx, to.Port)
				if err != nil {
					return nil, err
				}
				return conn{c}, nil
			},
			DisableKeepAlives:  true,
			DisableCompression: true, // what the server inside sends is what the caller gets
			// A server inside that never ends its header holds no more than this.
			MaxResponseHeaderBytes: maxHeader,
		},
		FlushInterval: -1,
		// Of servers inside and of visitors who leave: else it is the process's own stderr.
		ErrorLog: slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the caller left, or the server stops
			}
			ref := refusalOf(err)
			if ref.kind == portClosed {
				ref.listeners, _ = g.Listeners(r.Context()) // for a person; without it the page says less
			}
			e.refuse(w, r, to, ref)
		},
	}
}

// forwarded says how the request came. A proxy in front of us has said it already: only
// it knows whether the caller spoke TLS, and by what name it called.
func (e *Edge) forwarded(p *httputil.ProxyRequest) {
	p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
	p.SetXForwarded()
	for _, h := range []string{"X-Forwarded-Proto", "X-Forwarded-Host"} {
		if v := p.In.Header.Get(h); v != "" {
			p.Out.Header.Set(h, v)
		}
	}
}

// withoutOurs removes what was meant for us: how the sandbox was named, and what opens it.
func (e *Edge) withoutOurs(r *http.Request, to target) {
	r.Header.Del(HeaderSandbox)
	r.Header.Del(HeaderPort)
	credential.Strip(r, func(v string) bool {
		return e.tokens.Valid(to.Sandbox, TokenAgent, v) || e.tokens.Valid(to.Sandbox, TokenTraffic, v)
	})
}

// refusalOf says what a failure means to the caller.
func refusalOf(err error) refusal {
	switch {
	case errors.Is(err, hutch.ErrPortClosed):
		return refusal{kind: portClosed}
	case errors.Is(err, hutch.ErrGuestUnresponsive), errors.Is(err, context.DeadlineExceeded):
		return refusal{kind: unresponsive}
	case err == nil, errors.Is(err, hutch.ErrNotFound), errors.Is(err, hutch.ErrSandboxGone), errors.Is(err, hutch.ErrInvalidState):
		return refusal{kind: noSandbox}
	}
	return refusal{kind: badAnswer}
}

// conn makes a connection inside one of Go's. It has no deadlines: what must end ends with
// its request.
type conn struct{ hutch.PortConn }

type addr struct{}

func (addr) Network() string { return "sandbox" }
func (addr) String() string  { return "sandbox" }

func (conn) LocalAddr() net.Addr              { return addr{} }
func (conn) RemoteAddr() net.Addr             { return addr{} }
func (conn) SetDeadline(time.Time) error      { return nil }
func (conn) SetReadDeadline(time.Time) error  { return nil }
func (conn) SetWriteDeadline(time.Time) error { return nil }

var _ io.ReadWriteCloser = conn{}
