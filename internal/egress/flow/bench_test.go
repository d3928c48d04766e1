package flow

import (
	"io"
	"log/slog"
	"net"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/link"
	"hutch.dev/hutch/internal/link/linktest"
	"hutch.dev/hutch/internal/runtime"
)

// acceptAll is what a gateway would be that decides nothing: what the benchmarks compare with.
type acceptAll struct{ to string }

func (acceptAll) Admit(link.Flow) bool                               { return true }
func (acceptAll) Refused(link.Flow)                                  {}
func (acceptAll) Datagram(link.Flow, []byte, func([]byte) bool) bool { return false }

func (a acceptAll) ServeTCP(r *link.Request) {
	c, err := r.Accept()
	if err != nil {
		return
	}
	up, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", a.to)
	if err != nil {
		return
	}
	defer up.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = link.Copy(c, up)
		_ = c.CloseWrite()
	}()
	_, _ = c.WriteTo(up)
	_ = up.(*net.TCPConn).CloseWrite()
	<-done
}

// paths are the ways to a TLS server that are compared.
func paths(b *testing.B, serve func(net.Conn)) map[string]*linktest.Guest {
	b.Helper()
	server := tcpServer(b, serve)
	host, guest := linktest.Pair(b)
	e, err := link.Attach(runtime.LinkPackets, host, acceptAll{server}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	plain := linktest.New(b, guest)
	w := newWorld(b, domain("web.example.com"), hutch.NetworkRule{CIDR: "203.0.113.128/25"})
	w.host("web.example.com", "203.0.113.7", 443, server)
	w.resolve("web.example.com")
	return map[string]*linktest.Guest{"accept all": plain, "gateway": w.guest}
}

// BenchmarkConnect is a new connection to its first byte back.
func BenchmarkConnect(b *testing.B) {
	hello := clientHello(b, "web.example.com")
	for name, g := range paths(b, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = c.Write([]byte("x"))
	}) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c, err := g.Dial("203.0.113.7:443")
				if err != nil {
					b.Fatal(err)
				}
				_, _ = c.Write(hello)
				if _, err := io.ReadAll(c); err != nil {
					b.Fatal(err)
				}
				_ = c.Close()
			}
		})
	}
}

// BenchmarkDownload is one large stream from the server.
func BenchmarkDownload(b *testing.B) {
	hello := clientHello(b, "web.example.com")
	const size = 64 << 20
	block := make([]byte, 256<<10)
	for name, g := range paths(b, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		for n := 0; n < size; n += len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	}) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				c, err := g.Dial("203.0.113.7:443")
				if err != nil {
					b.Fatal(err)
				}
				_, _ = c.Write(hello)
				if n, err := io.Copy(io.Discard, c); err != nil || n != size {
					b.Fatalf("%d bytes, %v", n, err)
				}
				_ = c.Close()
			}
		})
	}
}

// BenchmarkRefusal is a connection that is reset at its first packet.
func BenchmarkRefusal(b *testing.B) {
	w := newWorld(b, domain("web.example.com"))
	for b.Loop() {
		if _, err := w.guest.Dial("203.0.113.7:443"); err == nil {
			b.Fatal("connected")
		}
	}
}
