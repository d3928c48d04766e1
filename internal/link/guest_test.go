package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	sandbox "hutch.dev/hutch/internal/runtime"
)

// The guest's address in these tests.
var (
	guest4 = netip.MustParseAddr("10.200.0.2")
	guest6 = netip.MustParseAddr("fd00::2")
)

// socketPair returns the two ends of a link.
func socketPair(t testing.TB) (host, guest *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	host, guest = os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	t.Cleanup(func() { _ = host.Close(); _ = guest.Close() })
	return host, guest
}

// recorder is a Handler that admits what it is told to and echoes on it.
type recorder struct {
	allow func(Flow) bool // nil = nothing

	mu      sync.Mutex
	refused []Flow
	served  []Flow
}

func (r *recorder) Admit(f Flow) bool { return r.allow != nil && r.allow(f) }

func (r *recorder) Refused(f Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = append(r.refused, f)
}

func (r *recorder) ServeTCP(f Flow, c net.Conn) { r.echo(f, c) }
func (r *recorder) ServeUDP(f Flow, c net.Conn) { r.echo(f, c) }

func (r *recorder) echo(f Flow, c net.Conn) {
	r.mu.Lock()
	r.served = append(r.served, f)
	r.mu.Unlock()
	_, _ = io.Copy(c, c)
}

func (r *recorder) refusals() []Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Flow(nil), r.refused...)
}

func (r *recorder) flows() []Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Flow(nil), r.served...)
}

// attach attaches a link and closes it when the test ends.
func attach(t testing.TB, f *os.File, h Handler) *Endpoint {
	t.Helper()
	e, err := Attach(sandbox.LinkPackets, f, h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// guestStack is a guest's network: a stack on the other end of the link.
func guestStack(t testing.TB, f *os.File) *stack.Stack {
	t.Helper()
	dev, err := newDevice(f)
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := s.CreateNIC(1, dev); err != nil {
		t.Fatal(err)
	}
	for proto, addr := range map[tcpip.NetworkProtocolNumber]tcpip.Address{
		ipv4.ProtocolNumber: tcpip.AddrFrom4(guest4.As4()),
		ipv6.ProtocolNumber: tcpip.AddrFrom16(guest6.As16()),
	} {
		if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: addr.WithPrefix()}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for dev.read(func(b []byte) { inject(dev, b) }) == nil {
		}
	}()
	t.Cleanup(func() {
		_ = dev.shut()
		<-done
		s.Destroy()
	})
	return s
}

// inject hands a packet to a guest's stack.
func inject(dev *device, b []byte) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: makeBuffer(b)})
	defer pkt.DecRef()
	dev.mu.Lock()
	to := dev.dispatcher
	dev.mu.Unlock()
	proto := ipv4.ProtocolNumber
	if header.IPVersion(b) == header.IPv6Version {
		proto = ipv6.ProtocolNumber
	}
	if to != nil {
		to.DeliverNetworkPacket(proto, pkt)
	}
}

func full(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}
}

func protoOf(a netip.AddrPort) tcpip.NetworkProtocolNumber {
	if a.Addr().Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

func dialTCP(t testing.TB, s *stack.Stack, to string) (net.Conn, error) {
	t.Helper()
	a := netip.MustParseAddrPort(to)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := gonet.DialContextTCP(ctx, s, full(a), protoOf(a))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, nil
}

func dialUDP(t testing.TB, s *stack.Stack, to string) net.Conn {
	t.Helper()
	a := netip.MustParseAddrPort(to)
	remote := full(a)
	c, err := gonet.DialUDP(s, nil, &remote, protoOf(a))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// ask sends a datagram and returns the error that comes back for it. A program inside
// gets it from its next call on the socket; gonet does not look for it.
func ask(t testing.TB, s *stack.Stack, to string) error {
	t.Helper()
	a := netip.MustParseAddrPort(to)
	var wq waiter.Queue
	ep, err := s.NewEndpoint(udp.ProtocolNumber, protoOf(a), &wq)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	entry, failed := waiter.NewChannelEntry(waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	if err := ep.Connect(full(a)); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Write(bytes.NewReader([]byte("query")), tcpip.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-failed:
		return errors.New(ep.LastError().String())
	case <-time.After(10 * time.Second):
		return errors.New("no answer")
	}
}

// eventually polls a condition, for ten seconds at most.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

// noLeak fails the test if goroutines of links are left when it ends.
func noLeak(t *testing.T) {
	t.Helper()
	before := linkGoroutines()
	t.Cleanup(func() {
		eventually(t, "every goroutine of the link has ended", func() bool { return linkGoroutines() <= before })
	})
}

// linkGoroutines counts goroutines that run code of this package or of the stack.
func linkGoroutines() int {
	buf := make([]byte, 1<<22)
	buf = buf[:runtime.Stack(buf, true)]
	n := 0
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "tcpip/") || strings.Contains(g, "link.(*Endpoint)") {
			n++
		}
	}
	return n
}
