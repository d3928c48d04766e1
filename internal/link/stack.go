package link

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
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
	err := errors.Join(
		stackError("create interface", s.CreateNIC(nic, e.dev)),
		stackError("accept every address", s.SetPromiscuousMode(nic, true)),
		stackError("answer for every address", s.SetSpoofing(nic, true)),
		stackError("enable selective acknowledgement", s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)),
	)
	if err != nil {
		s.Destroy()
		return nil, err
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})

	connections := tcp.NewForwarder(s, 0, maxHandshakes, e.acceptTCP)
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		flags := header.TCP(pkt.TransportHeader().Slice()).Flags()
		if !flags.Contains(header.TCPFlagSyn) || flags.Contains(header.TCPFlagAck) {
			e.refused.Store(true) // no attempt to get out, but it is answered
			return false
		}
		return e.admit(flowID(TCP, id)) && connections.HandlePacket(id, pkt)
	})
	datagrams := udp.NewForwarder(s, e.acceptUDP)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return e.admit(flowID(UDP, id)) && datagrams.HandlePacket(id, pkt)
	})
	return s, nil
}

// admit asks the handler about a new flow. What it does not admit the stack refuses by
// itself: nobody took the packet.
func (e *Endpoint) admit(f Flow) bool {
	if !e.flows.full() && e.handler.Admit(f) {
		return true
	}
	e.refuse(f)
	return false
}

// acceptTCP completes a connection's handshake and has it served. The stack calls it on
// a goroutine of its own, at most maxHandshakes at once.
func (e *Endpoint) acceptTCP(r *tcp.ForwarderRequest) {
	if !e.flows.enter() {
		r.Complete(true)
		return
	}
	defer e.flows.leave()
	flow := flowID(TCP, r.ID())
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	r.Complete(err != nil)
	if err != nil { // the guest gave up, or the link ends
		return
	}
	c := gonet.NewTCPConn(&wq, ep)
	defer func() { _ = c.Close() }()
	e.handler.ServeTCP(flow, c)
}

// acceptUDP begins a flow of datagrams. The stack calls it while a packet is worked off.
func (e *Endpoint) acceptUDP(r *udp.ForwarderRequest) bool {
	if !e.flows.enter() {
		return false
	}
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		e.flows.leave()
		return true // the stack has dropped the packet
	}
	c := gonet.NewUDPConn(&wq, ep)
	go func() {
		defer e.flows.leave()
		defer func() { _ = c.Close() }()
		e.handler.ServeUDP(flowID(UDP, r.ID()), c)
	}()
	return true
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
