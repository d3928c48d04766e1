// Package linktest is the other end of a link, for tests: a guest with a network stack of its
// own, which connects to any address there is.
//
// Start with [New].
package linktest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Inside is the network of a Guest.
var Inside = netip.MustParsePrefix("10.200.0.0/30")

const (
	nic   = 1
	mtu   = 65535
	queue = 4096 // packets on their way out of the guest
	// socketBuffer is what a link holds, in bytes each way.
	socketBuffer = 4 << 20
	limitTime    = 20 * time.Second // for anything a test waits for
)

// Guest is a guest's network.
type Guest struct {
	t     testing.TB
	stack *stack.Stack
}

// Pair returns the two ends of a link.
func Pair(t testing.TB) (host, guest *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// As the isolator does; without the privilege a fast sender loses packets, and is slow.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer)
	}
	host, guest = os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	t.Cleanup(func() { _ = host.Close(); _ = guest.Close() })
	return host, guest
}

// New returns a guest on that end of a link. It is gone when the test ends.
func New(t testing.TB, f *os.File) *Guest {
	t.Helper()
	ep := channel.New(queue, mtu, "")
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := s.CreateNIC(nic, ep); err != nil {
		t.Fatal(err)
	}
	address := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddrFrom4(Inside.Addr().Next().Next().As4()).WithPrefix(),
	}
	if err := s.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	ctx, cancel := context.WithCancel(context.Background())
	received, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(received)
		b := make([]byte, mtu)
		for {
			n, err := f.Read(b)
			if err != nil {
				return
			}
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b[:n])})
			ep.InjectInbound(ipv4.ProtocolNumber, pkt)
			pkt.DecRef()
		}
	}()
	go func() {
		defer close(sent)
		for pkt := ep.ReadContext(ctx); pkt != nil; pkt = ep.ReadContext(ctx) {
			v := pkt.ToView()
			_, _ = f.Write(v.AsSlice()) // to a link that has ended it goes nowhere
			v.Release()
			pkt.DecRef()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-sent
		_ = f.Close()
		<-received
		s.Destroy()
	})
	return &Guest{t: t, stack: s}
}

// Dial connects to an address over TCP.
func (g *Guest) Dial(to string) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), limitTime)
	defer cancel()
	c, err := gonet.DialContextTCP(ctx, g.stack, full(to), ipv4.ProtocolNumber)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(limitTime))
	g.t.Cleanup(func() { _ = c.Close() })
	return c, nil
}

// MustDial is Dial of what must succeed.
func (g *Guest) MustDial(to string) *gonet.TCPConn {
	g.t.Helper()
	c, err := g.Dial(to)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// DialUDP makes a socket that sends to an address.
func (g *Guest) DialUDP(to string) net.Conn {
	g.t.Helper()
	remote := full(to)
	c, err := gonet.DialUDP(g.stack, nil, &remote, ipv4.ProtocolNumber)
	if err != nil {
		g.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(limitTime))
	g.t.Cleanup(func() { _ = c.Close() })
	return c
}

func full(to string) tcpip.FullAddress {
	a := netip.MustParseAddrPort(to)
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(a.Addr().As4()), Port: a.Port()}
}
