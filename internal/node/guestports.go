package node

import (
	"context"
	"sync"

	"hutch.dev/hutch"
)

func (g *guest) DialPort(ctx context.Context, port int) (hutch.PortConn, error) {
	// ctx is for the connecting only: the connection lives by the sandbox's run.
	run, err := g.run()
	if err != nil {
		return nil, err
	}
	var conn hutch.PortConn
	err = g.short(ctx, func(ctx context.Context, c hutch.Guest) (err error) {
		conn, err = c.DialPort(ctx, port)
		return err
	})
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancelCause(run)
	p := &portConn{PortConn: conn, g: g, life: life}
	stopWatch := g.b.await(patientAfter, cancel)
	cut := context.AfterFunc(life, func() { _ = conn.Close() })
	p.close = sync.OnceValue(func() error {
		cut()
		stopWatch()
		cancel(nil)
		return conn.Close()
	})
	return p, nil
}

// portConn is a connection to a server inside, which ends with the sandbox's run, whatever
// the server does.
type portConn struct {
	hutch.PortConn
	g     *guest
	life  context.Context //nolint:containedctx // the run that the connection belongs to
	close func() error
}

func (p *portConn) Read(b []byte) (int, error) {
	n, err := p.PortConn.Read(b)
	if n > 0 {
		p.g.b.hear()
	}
	return n, p.why(err)
}

func (p *portConn) Write(b []byte) (int, error) {
	n, err := p.PortConn.Write(b)
	return n, p.why(err)
}

func (p *portConn) CloseWrite() error { return p.why(p.PortConn.CloseWrite()) }

func (p *portConn) Close() error { return p.close() }

// why is the error of a connection: the server's own end as it is, one of ours by its reason.
func (p *portConn) why(err error) error {
	if err == nil {
		return nil
	}
	if cut := cutBy(p.life); cut != nil {
		return cut
	}
	return err
}

func (g *guest) Listeners(ctx context.Context) (l []hutch.Listener, err error) {
	err = g.short(ctx, func(ctx context.Context, c hutch.Guest) error {
		l, err = c.Listeners(ctx)
		return err
	})
	return l, err
}

func (g *guest) DiskUsage(ctx context.Context) (u hutch.DiskUsage, err error) {
	err = g.short(ctx, func(ctx context.Context, c hutch.Guest) error {
		u, err = c.DiskUsage(ctx)
		return err
	})
	return u, err
}

func (g *guest) ListShells(ctx context.Context) (l []hutch.Shell, err error) {
	err = g.short(ctx, func(ctx context.Context, c hutch.Guest) error {
		l, err = c.ListShells(ctx)
		return err
	})
	return l, err
}

func (g *guest) CloseShell(ctx context.Context, name string) error {
	return g.call(ctx, func(ctx context.Context, c hutch.Guest) error { return c.CloseShell(ctx, name) })
}
