package link

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// nic is the one interface of a link's stack.
const nic tcpip.NICID = 1

// newStack makes the network stack of the link: an interface without an address of its
// own that takes packets to any address (promiscuous) and answers in its name (spoofing).
func (e *Endpoint) newStack() (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	// Its own limit on errors sent is for hosts that share a network. This one has one
	// peer, and the link's limit on refusals holds before.
	s.SetICMPLimit(rate.Inf)
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(false) // buffers are what bufferFor says
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: firstBuffer, Max: maxBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: firstBuffer, Max: maxBuffer}
	timeWait, finWait := tcpip.TCPTimeWaitTimeoutOption(timeWait), tcpip.TCPLingerTimeoutOption(lingerTime)
	option := func(o tcpip.SettableTransportProtocolOption) tcpip.Error {
		return s.SetTransportProtocolOption(tcp.ProtocolNumber, o)
	}
	err := errors.Join(
		stackError("create interface", s.CreateNIC(nic, e.dev)),
		stackError("accept every address", s.SetPromiscuousMode(nic, true)),
		stackError("answer for every address", s.SetSpoofing(nic, true)),
		stackError("enable selective acknowledgement", option(&sack)),
		stackError("fix receive buffers", option(&moderate)),
		stackError("bound receive buffers", option(&receive)),
		stackError("bound send buffers", option(&send)),
		stackError("bound the wait of closed connections", option(&timeWait)),
		stackError("bound the wait for a close", option(&finWait)),
	)
	if err != nil {
		s.Destroy()
		return nil, err
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})

	connections := tcp.NewForwarder(s, firstBuffer, maxHandshakes, e.acceptTCP)
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		flags := header.TCP(pkt.TransportHeader().Slice()).Flags()
		if !flags.Contains(header.TCPFlagSyn) || flags.Contains(header.TCPFlagAck) {
			e.refused.Store(true) // no attempt to get out, but it is answered
			return false
		}
		return e.admit(flowID(TCP, id)) && connections.HandlePacket(id, pkt)
	})
	s.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return e.datagram(flowID(UDP, id), pkt)
	})
	return s, nil
}

// admit asks the handler about a new connection. What it does not admit the stack refuses by
// itself: nobody took the packet.
func (e *Endpoint) admit(f Flow) bool {
	if !e.flows.full() && e.handler.Admit(f) {
		e.admitted.Store(true)
		return true
	}
	e.refuse(f)
	return false
}

// acceptTCP has a connection decided on and served. The stack calls it on a goroutine of its
// own; at most maxHandshakes are not answered yet at once.
func (e *Endpoint) acceptTCP(fr *tcp.ForwarderRequest) {
	n := e.flows.enter()
	if n == 0 {
		fr.Complete(true)
		return
	}
	defer e.flows.leave()
	r := &Request{flow: flowID(TCP, fr.ID()), ctx: e.ctx, forwarder: fr, buffer: bufferFor(n)}
	defer r.end()
	e.handler.ServeTCP(r)
	if r.conn == nil {
		e.refused.Store(true)
	}
}

// datagram offers a datagram to the handler.
func (e *Endpoint) datagram(f Flow, pkt *stack.PacketBuffer) bool {
	answer := func(b []byte) bool { return e.dev.write(datagramHeaders(f, len(b)), b) == nil }
	if e.handler.Datagram(f, pkt.Data().AsRange().ToSlice(), answer) {
		return true
	}
	e.refuse(f)
	return false
}

// datagramHeaders are the headers of a datagram of size bytes that answers a flow.
func datagramHeaders(f Flow, size int) []byte {
	b := make([]byte, header.IPv4MinimumSize+header.UDPMinimumSize)
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b) + size),
		TTL:         ttl,
		Protocol:    uint8(header.UDPProtocolNumber),
		SrcAddr:     tcpip.AddrFrom4(f.Dst.Addr().As4()),
		DstAddr:     tcpip.AddrFrom4(f.Src.Addr().As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.UDP(b[header.IPv4MinimumSize:]).Encode(&header.UDPFields{
		SrcPort: f.Dst.Port(), DstPort: f.Src.Port(),
		Length: uint16(header.UDPMinimumSize + size), // and no checksum, which is allowed: nothing gets lost in memory
	})
	return b
}

func flowID(p Proto, id stack.TransportEndpointID) Flow {
	addr := func(a tcpip.Address, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4(a.As4()), port)
	}
	return Flow{Proto: p, Src: addr(id.RemoteAddress, id.RemotePort), Dst: addr(id.LocalAddress, id.LocalPort)}
}

// stackError gives an error of the stack a place; nil stays nil.
func stackError(doing string, err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", doing, err)
}
