package link

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
)

// Sizes of what is answered.
const (
	// quoted is how much of a packet an error quotes: enough for its headers with all
	// their options, and for whoever looks at it. RFC 1812 allows 576 bytes in all.
	quoted = 128
	ttl    = 64
)

// refusal makes the packet that answers b with v; nil if there is none. b has passed
// screen.
func refusal(v verdict, b []byte) []byte {
	switch {
	case header.IPVersion(b) == header.IPv4Version && v == prohibit:
		return icmp4(header.ICMPv4AdminProhibited, b)
	case header.IPVersion(b) == header.IPv6Version && v == prohibit:
		return icmp6(header.ICMPv6Prohibited, b)
	case header.IPVersion(b) == header.IPv6Version && v == unreach:
		return icmp6(header.ICMPv6PortUnreachable, b)
	case header.IPVersion(b) == header.IPv6Version && v == reset:
		return reset6(b)
	}
	return nil
}

// icmp4 says "destination unreachable", in the name of the destination.
func icmp4(code header.ICMPv4Code, b []byte) []byte {
	in := header.IPv4(b)
	quote := b[:min(int(in.TotalLength()), quoted)]
	out := make([]byte, header.IPv4MinimumSize+header.ICMPv4MinimumSize+len(quote))
	ip := header.IPv4(out)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(out)),
		TTL:         ttl,
		Protocol:    uint8(header.ICMPv4ProtocolNumber),
		SrcAddr:     in.DestinationAddress(),
		DstAddr:     in.SourceAddress(),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	icmp := header.ICMPv4(out[header.IPv4MinimumSize:])
	icmp.SetType(header.ICMPv4DstUnreachable)
	icmp.SetCode(code)
	copy(icmp[header.ICMPv4MinimumSize:], quote)
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	return out
}

// icmp6 is icmp4 for IPv6.
func icmp6(code header.ICMPv6Code, b []byte) []byte {
	in := header.IPv6(b)
	quote := b[:min(header.IPv6MinimumSize+int(in.PayloadLength()), quoted)]
	payload := header.ICMPv6DstUnreachableMinimumSize + len(quote)
	out, src, dst := answer6(in, header.ICMPv6ProtocolNumber, payload)
	icmp := header.ICMPv6(out[header.IPv6MinimumSize:])
	icmp.SetType(header.ICMPv6DstUnreachable)
	icmp.SetCode(code)
	copy(icmp[header.ICMPv6DstUnreachableMinimumSize:], quote)
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: src, Dst: dst}))
	return out
}

// reset6 refuses a TCP segment as RFC 9293 3.10.7.1 says for a connection that does not
// exist.
func reset6(b []byte) []byte {
	in := header.IPv6(b)
	seg := header.TCP(in.Payload())
	out, src, dst := answer6(in, header.TCPProtocolNumber, header.TCPMinimumSize)
	f := header.TCPFields{
		SrcPort: seg.DestinationPort(), DstPort: seg.SourcePort(),
		DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagRst,
	}
	if seg.Flags().Contains(header.TCPFlagAck) {
		f.SeqNum = seg.AckNumber()
	} else {
		length := max(0, len(seg)-int(seg.DataOffset()))
		for _, flag := range []header.TCPFlags{header.TCPFlagSyn, header.TCPFlagFin} {
			if seg.Flags().Contains(flag) {
				length++
			}
		}
		f.Flags |= header.TCPFlagAck
		f.AckNum = uint32(seqnum.Value(seg.SequenceNumber()).Add(seqnum.Size(length)))
	}
	tcp := header.TCP(out[header.IPv6MinimumSize:])
	tcp.Encode(&f)
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, src, dst, header.TCPMinimumSize)
	tcp.SetChecksum(^tcp.CalculateChecksum(sum))
	return out
}

// answer6 makes a packet of size bytes of payload that goes back where in came from.
func answer6(in header.IPv6, p tcpip.TransportProtocolNumber, size int) (out []byte, src, dst tcpip.Address) {
	src, dst = in.DestinationAddress(), in.SourceAddress()
	out = make([]byte, header.IPv6MinimumSize+size)
	header.IPv6(out).Encode(&header.IPv6Fields{
		PayloadLength:     uint16(size),
		TransportProtocol: p,
		HopLimit:          ttl,
		SrcAddr:           src,
		DstAddr:           dst,
	})
	return out, src, dst
}
