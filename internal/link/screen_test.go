package link

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

const flagSYN = header.TCPFlagSyn

// packet4 makes an IPv4 packet from the guest.
func packet4(proto uint8, dst netip.Addr, payload []byte) []byte {
	b := make([]byte, header.IPv4MinimumSize+len(payload))
	h := header.IPv4(b)
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b)), TTL: 64, Protocol: proto,
		SrcAddr: tcpip.AddrFrom4(guest4.As4()), DstAddr: tcpip.AddrFrom4(dst.As4()),
	})
	h.SetChecksum(^h.CalculateChecksum())
	copy(b[header.IPv4MinimumSize:], payload)
	return b
}

// packet6 makes an IPv6 packet from the guest.
func packet6(proto uint8, dst netip.Addr, payload []byte) []byte {
	b := make([]byte, header.IPv6MinimumSize+len(payload))
	header.IPv6(b).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(payload)), HopLimit: 64, TransportProtocol: tcpip.TransportProtocolNumber(proto),
		SrcAddr: tcpip.AddrFrom16(guest6.As16()), DstAddr: tcpip.AddrFrom16(dst.As16()),
	})
	copy(b[header.IPv6MinimumSize:], payload)
	return b
}

// tcpSegment makes a segment without a checksum.
func tcpSegment(src, dst uint16, flags header.TCPFlags) []byte {
	b := make([]byte, header.TCPMinimumSize)
	header.TCP(b).Encode(&header.TCPFields{SrcPort: src, DstPort: dst, SeqNum: 7, DataOffset: 20, Flags: flags, WindowSize: 1000})
	return b
}

// udpDatagram makes a datagram without a checksum.
func udpDatagram(src, dst uint16, payload string) []byte {
	b := make([]byte, header.UDPMinimumSize, header.UDPMinimumSize+len(payload))
	header.UDP(b).Encode(&header.UDPFields{SrcPort: src, DstPort: dst, Length: uint16(cap(b))})
	return append(b, payload...)
}

// with returns a packet with byte i set to v.
func with(b []byte, i int, v byte) []byte {
	b[i] = v
	return b
}

func TestScreen(t *testing.T) {
	out4, out6 := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("2606:4700::1111")
	syn, query, ping := tcpSegment(1000, 443, flagSYN), udpDatagram(1000, 53, "q"), []byte{8, 0, 0, 0, 0, 1, 0, 1}
	to4 := func(a string) []byte { return packet4(17, netip.MustParseAddr(a), query) }
	to6 := func(a string) []byte { return packet6(17, netip.MustParseAddr(a), query) }
	from4 := func(a string) []byte {
		p := packet4(17, out4, query)
		copy(p[12:16], netip.MustParseAddr(a).AsSlice())
		return p
	}
	for name, c := range map[string]struct {
		packet []byte
		want   verdict
		proto  Proto
		dst    string
	}{
		"connection":            {packet4(6, out4, syn), deliver, TCP, "1.2.3.4:443"},
		"datagram":              {packet4(17, out4, query), deliver, UDP, "1.2.3.4:53"},
		"to the gateway":        {to4("10.200.0.1"), deliver, UDP, "10.200.0.1:53"},
		"echo":                  {packet4(1, out4, ping), prohibit, ICMP, "1.2.3.4:0"},
		"echo reply":            {packet4(1, out4, with([]byte{0, 0, 0, 0, 0, 1, 0, 1}, 0, 0)), drop, ICMP, "1.2.3.4:0"},
		"unreachable":           {packet4(1, out4, []byte{3, 3, 0, 0, 0, 0, 0, 0}), drop, ICMP, "1.2.3.4:0"},
		"other protocol":        {packet4(47, out4, make([]byte, 8)), prohibit, Other, "1.2.3.4:0"},
		"nothing in it":         {packet4(132, out4, nil), prohibit, Other, "1.2.3.4:0"},
		"first fragment":        {with(packet4(17, out4, query), 6, 0x20), prohibit, Other, "1.2.3.4:53"},
		"later fragment":        {with(packet4(17, out4, query), 7, 0x05), drop, UDP, "1.2.3.4:53"},
		"options":               {with(packet4(17, out4, append(make([]byte, 4), query...)), 0, 0x46), prohibit, Other, "1.2.3.4:53"},
		"multicast":             {to4("224.0.0.251"), ignore, UDP, "224.0.0.251:53"},
		"broadcast":             {to4("255.255.255.255"), ignore, UDP, "255.255.255.255:53"},
		"loopback":              {to4("127.0.0.1"), prohibit, UDP, "127.0.0.1:53"},
		"this network":          {to4("0.0.0.0"), prohibit, UDP, "0.0.0.0:53"},
		"from loopback":         {from4("127.0.0.1"), drop, "", ""},
		"from multicast":        {from4("224.0.0.1"), drop, "", ""},
		"from broadcast":        {from4("255.255.255.255"), drop, "", ""},
		"from nobody":           {from4("0.0.0.0"), drop, "", ""},
		"from its destination":  {from4("1.2.3.4"), drop, "", ""},
		"from somebody else":    {from4("192.0.2.1"), deliver, UDP, "1.2.3.4:53"},
		"empty":                 {nil, drop, "", ""},
		"one byte":              {[]byte{0x45}, drop, "", ""},
		"unknown version":       {with(packet4(17, out4, query), 0, 0x55), drop, "", ""},
		"header too short":      {with(packet4(17, out4, query), 0, 0x44), drop, "", ""},
		"header past the end":   {with(packet4(17, out4, query), 0, 0x4f), drop, "", ""},
		"length past the end":   {with(packet4(17, out4, query), 2, 0xff), drop, "", ""},
		"length before header":  {with(packet4(17, out4, query), 3, 10), drop, "", ""},
		"half a TCP header":     {packet4(6, out4, syn[:10]), drop, TCP, ""},
		"half a UDP header":     {packet4(17, out4, query[:4]), drop, UDP, ""},
		"half an ICMP header":   {packet4(1, out4, ping[:4]), drop, ICMP, ""},
		"IPv6 connection":       {packet6(6, out6, syn), reset, TCP, "[2606:4700::1111]:443"},
		"IPv6 reset":            {packet6(6, out6, tcpSegment(1, 2, header.TCPFlagRst)), drop, TCP, ""},
		"IPv6 datagram":         {packet6(17, out6, query), unreach, UDP, "[2606:4700::1111]:53"},
		"IPv6 echo":             {packet6(58, out6, with(ping[:8:8], 0, 8)), drop, ICMP, ""},
		"IPv6 echo request":     {packet6(58, out6, []byte{128, 0, 0, 0, 0, 1, 0, 1}), prohibit, ICMP, "[2606:4700::1111]:0"},
		"IPv6 error":            {packet6(58, out6, []byte{1, 0, 0, 0, 0, 0, 0, 0}), drop, ICMP, ""},
		"IPv6 extension header": {packet6(0, out6, make([]byte, 16)), prohibit, Other, "[2606:4700::1111]:0"},
		"IPv6 fragment":         {packet6(44, out6, make([]byte, 16)), prohibit, Other, "[2606:4700::1111]:0"},
		"IPv6 multicast":        {to6("ff02::2"), drop, "", ""},
		"IPv6 half a header":    {packet6(17, out6, query)[:30], drop, "", ""},
		"IPv6 too long":         {with(packet6(17, out6, query), 4, 0xff), drop, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, flow := screen(c.packet)
			if got != c.want {
				t.Errorf("verdict %d, want %d", got, c.want)
			}
			if flow.Proto != c.proto || c.dst != "" && flow.Dst.String() != c.dst {
				t.Errorf("flow %+v, want %s to %s", flow, c.proto, c.dst)
			}
		})
	}
}

func TestRefusalsAreWellFormed(t *testing.T) {
	out4, out6 := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("2606:4700::1111")
	for name, c := range map[string]struct {
		v      verdict
		packet []byte
	}{
		"IPv4 prohibited":       {prohibit, packet4(1, out4, make([]byte, 1000))},
		"IPv4 short":            {prohibit, packet4(47, out4, nil)},
		"IPv6 prohibited":       {prohibit, packet6(44, out6, make([]byte, 1000))},
		"IPv6 port unreachable": {unreach, packet6(17, out6, udpDatagram(1, 2, "x"))},
		"IPv6 reset of SYN":     {reset, packet6(6, out6, tcpSegment(1, 2, flagSYN))},
		"IPv6 reset of ACK":     {reset, packet6(6, out6, tcpSegment(1, 2, header.TCPFlagAck))},
	} {
		t.Run(name, func(t *testing.T) { checkAnswer(t, c.v, c.packet, refusal(c.v, c.packet)) })
	}
	answer := refusal(reset, packet6(6, out6, tcpSegment(1000, 443, flagSYN)))
	seg := header.TCP(header.IPv6(answer).Payload())
	if seg.Flags() != header.TCPFlagRst|header.TCPFlagAck || seg.AckNumber() != 8 || seg.DestinationPort() != 1000 || seg.SourcePort() != 443 {
		t.Errorf("reset of a SYN with number 7: flags %v, acknowledges %d, ports %d to %d", seg.Flags(), seg.AckNumber(), seg.SourcePort(), seg.DestinationPort())
	}
}

// checkAnswer makes sure that an answer is what a receiver accepts: addressed back, not
// much larger than the question, its checksums right.
func checkAnswer(t *testing.T, v verdict, packet, answer []byte) {
	t.Helper()
	if answer == nil {
		t.Fatalf("no answer for verdict %d", v)
	}
	if len(answer) > len(packet)+header.IPv6MinimumSize+header.TCPMinimumSize {
		t.Errorf("%d bytes answer %d", len(answer), len(packet))
	}
	if header.IPVersion(answer) == header.IPv4Version {
		in, out := header.IPv4(packet), header.IPv4(answer)
		if !out.IsValid(len(answer)) || !out.IsChecksumValid() || int(out.TotalLength()) != len(answer) {
			t.Fatalf("not a valid packet: %x", answer)
		}
		if out.DestinationAddress() != in.SourceAddress() || out.SourceAddress() != in.DestinationAddress() {
			t.Errorf("goes from %v to %v", out.SourceAddress(), out.DestinationAddress())
		}
		if sum := checksum.Checksum(out.Payload(), 0); sum != 0xffff {
			t.Errorf("checksum over ICMP is %x", sum)
		}
		return
	}
	in, out := header.IPv6(packet), header.IPv6(answer)
	if !out.IsValid(len(answer)) || header.IPv6MinimumSize+int(out.PayloadLength()) != len(answer) {
		t.Fatalf("not a valid packet: %x", answer)
	}
	if out.DestinationAddress() != in.SourceAddress() || out.SourceAddress() != in.DestinationAddress() {
		t.Errorf("goes from %v to %v", out.SourceAddress(), out.DestinationAddress())
	}
	pseudo := header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(out.NextHeader()), out.SourceAddress(), out.DestinationAddress(), out.PayloadLength())
	if sum := checksum.Checksum(out.Payload(), pseudo); sum != 0xffff {
		t.Errorf("checksum is %x", sum)
	}
}

// Whatever arrives, screen decides without a panic, what it passes on is complete, and
// what is answered is well-formed.
func FuzzScreen(f *testing.F) {
	out4, out6 := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("2606:4700::1111")
	for _, b := range [][]byte{
		nil,
		{0x45},
		{0x60},
		packet4(6, out4, tcpSegment(1, 2, flagSYN)), packet4(17, out4, udpDatagram(1, 2, "x")), packet4(1, out4, []byte{8, 0, 0, 0, 0, 0, 0, 0}),
		packet6(6, out6, tcpSegment(1, 2, flagSYN)), packet6(17, out6, udpDatagram(1, 2, "x")), packet6(58, out6, []byte{128, 0, 0, 0, 0, 0, 0, 0}),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, flow := screen(b)
		switch v {
		case deliver:
			if flow.Proto != TCP && flow.Proto != UDP || !flow.Dst.Addr().Is4() {
				t.Fatalf("delivered %+v", flow)
			}
			if int(binary.BigEndian.Uint16(b[2:])) > len(b) {
				t.Fatalf("delivered less than there should be: %x", b)
			}
		case prohibit, unreach, reset:
			checkAnswer(t, v, b, refusal(v, b))
		case drop, ignore:
		}
	})
}

// The whole way in: any packet leaves the link working.
func FuzzLink(f *testing.F) {
	out4 := netip.MustParseAddr("1.2.3.4")
	f.Add(packet4(6, out4, tcpSegment(1, 443, flagSYN)), true)
	f.Add(packet4(6, out4, tcpSegment(1, 443, header.TCPFlagAck)), true)
	f.Add(packet4(17, out4, udpDatagram(1, 443, "x")), true)
	f.Add(packet4(17, out4, udpDatagram(1, 53, "x")), false)
	host, guest := socketPair(f)
	e := attach(f, host, &counter{recorder: recorder{allow: func(f Flow) bool { return f.Dst.Port() == 443 }}})
	e.limit.SetLimit(1e9) // the rate is not what is tried here
	var sent uint64
	f.Fuzz(func(t *testing.T, b []byte, twice bool) {
		if len(b) > 4096 {
			return
		}
		for range map[bool]int{true: 2, false: 1}[twice] {
			send(t, guest, b)
			sent++
		}
		for e.Stats().PacketsIn < sent {
			select {
			case <-e.Done():
				t.Fatalf("the link ended: %v", e.Err())
			default:
			}
			drain(guest)
		}
		drain(guest)
	})
}
