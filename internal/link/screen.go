package link

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// verdict is what is to be done with a packet.
type verdict int

const (
	drop     verdict = iota // nothing that could be answered
	deliver                 // TCP or UDP over IPv4, for the stack
	prohibit                // refuse: "administratively prohibited"
	unreach                 // refuse: "port unreachable"
	reset                   // refuse: TCP reset
	ignore                  // refuse without an answer, as is right for multicast
)

// packet works one packet off.
func (e *Endpoint) packet(b []byte) {
	v, flow := screen(b)
	switch v {
	case deliver:
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
		pkt.RXChecksumValidated = true
		e.dev.deliver(pkt)
		pkt.DecRef()
	case drop:
		e.droppedIn.Add(1)
		e.refused.Store(true) // it costs as much, and counts against the same rate
	case ignore, prohibit, unreach, reset:
		e.refuse(flow) // before the answer: who got that finds it counted
		if answer := refusal(v, b); answer != nil {
			_ = e.dev.write(answer) // a sandbox that does not read goes without
		}
	}
}

// screen decides what is to be done with a packet and says what flow it is. It is the
// first thing to touch a guest's bytes, and the only thing to touch most of them.
func screen(b []byte) (verdict, Flow) {
	switch header.IPVersion(b) {
	case header.IPv4Version:
		return screen4(b)
	case header.IPv6Version:
		return screen6(b)
	}
	return drop, Flow{}
}

func screen4(b []byte) (verdict, Flow) {
	if len(b) < header.IPv4MinimumSize {
		return drop, Flow{}
	}
	h := header.IPv4(b)
	if !h.IsValid(len(b)) {
		return drop, Flow{}
	}
	src, dst := netip.AddrFrom4(h.SourceAddress().As4()), netip.AddrFrom4(h.DestinationAddress().As4())
	if !answerable(src) || src == dst {
		return drop, Flow{}
	}
	payload := b[h.HeaderLength():h.TotalLength()]
	flow, fits := flowOf(h.Protocol(), payload, src, dst)
	switch {
	case h.FragmentOffset() != 0:
		return drop, flow // an error may only be sent for the first
	case !fits:
		return drop, flow
	case !unicast(dst):
		return ignore, flow
	case h.More(), h.HeaderLength() != header.IPv4MinimumSize: // a fragment; options
		flow.Proto = Other
		return prohibit, flow
	case flow.Proto == ICMP:
		return screenICMP(payload, flow)
	case flow.Proto == Other, dst.IsLoopback(), isThisNetwork(dst):
		return prohibit, flow
	}
	return deliver, flow
}

// screenICMP answers questions and drops answers: an error must not follow an error.
func screenICMP(payload []byte, flow Flow) (verdict, Flow) {
	t := header.ICMPv4(payload).Type()
	if t == header.ICMPv4Echo || t == header.ICMPv4Timestamp || t == header.ICMPv4InfoRequest {
		return prohibit, flow
	}
	return drop, flow
}

func screen6(b []byte) (verdict, Flow) {
	if len(b) < header.IPv6MinimumSize {
		return drop, Flow{}
	}
	h := header.IPv6(b)
	if !h.IsValid(len(b)) {
		return drop, Flow{}
	}
	src, dst := netip.AddrFrom16(h.SourceAddress().As16()), netip.AddrFrom16(h.DestinationAddress().As16())
	if !answerable(src) || src == dst || !unicast(dst) {
		return drop, Flow{} // neighbour discovery and its like are no attempts to get out
	}
	payload := h.Payload()
	flow, fits := flowOf(h.NextHeader(), payload, src, dst)
	switch {
	case !fits:
		return drop, flow
	case flow.Proto == TCP:
		if header.TCP(payload).Flags().Contains(header.TCPFlagRst) {
			return drop, flow
		}
		return reset, flow
	case flow.Proto == UDP:
		return unreach, flow
	case flow.Proto == ICMP && header.ICMPv6(payload).Type() != header.ICMPv6EchoRequest:
		return drop, flow
	}
	return prohibit, flow
}

// flowOf reads the ports; fits is false if the packet is too short for its own header.
func flowOf(protocol uint8, payload []byte, src, dst netip.Addr) (f Flow, fits bool) {
	f = Flow{Proto: Other, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, 0)}
	var need int
	switch protocol {
	case uint8(header.TCPProtocolNumber):
		f.Proto, need = TCP, header.TCPMinimumSize
	case uint8(header.UDPProtocolNumber):
		f.Proto, need = UDP, header.UDPMinimumSize
	case uint8(header.ICMPv4ProtocolNumber):
		f.Proto, need = ICMP, header.ICMPv4MinimumSize
	case uint8(header.ICMPv6ProtocolNumber):
		f.Proto, need = ICMP, header.ICMPv6MinimumSize
	}
	if len(payload) < need {
		return f, false
	}
	if f.Proto == TCP || f.Proto == UDP {
		// Both begin with the two ports.
		h := header.UDP(payload)
		f.Src, f.Dst = netip.AddrPortFrom(src, h.SourcePort()), netip.AddrPortFrom(dst, h.DestinationPort())
	}
	return f, true
}

// answerable reports whether an answer to src could go anywhere.
func answerable(src netip.Addr) bool {
	return unicast(src) && !src.IsLoopback() && !isThisNetwork(src) && !src.Is4In6()
}

func unicast(a netip.Addr) bool {
	return !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// isThisNetwork reports 0.0.0.0/8 and ::.
func isThisNetwork(a netip.Addr) bool {
	return a.Is4() && a.As4()[0] == 0 || a == netip.IPv6Unspecified()
}
