package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"hutch.dev/hutch"
	sandbox "hutch.dev/hutch/internal/runtime"
)

func makeBuffer(b []byte) buffer.Buffer { return buffer.MakeWithData(b) }

// atOnce is how fast a refusal has to be. It takes some 100 µs; on a machine that does
// other things too, much more. What matters is that nobody waits for a timeout, the
// shortest of which is a second.
const atOnce = 500 * time.Millisecond

// soonest is the shortest of a few times that something takes, of which one at once is enough:
// a machine that is busy with something else can be slow to do anything.
func soonest(do func()) time.Duration {
	shortest := time.Hour
	for range 5 {
		began := time.Now()
		do()
		if shortest = min(shortest, time.Since(began)); shortest <= atOnce {
			break
		}
	}
	return shortest
}

func TestConnectIsRefusedAtOnce(t *testing.T) {
	noLeak(t)
	h := &recorder{}
	host, guest := socketPair(t)
	attach(t, host, h)
	s := guestStack(t, guest)
	for _, to := range []string{
		"1.2.3.4:443", "8.8.8.8:53", "10.200.0.1:80", "10.200.0.3:80",
		"169.254.169.254:80", "192.168.0.1:22", "[2606:4700::1111]:443", "[fd00::1]:80",
	} {
		var err error
		took := soonest(func() { _, err = dialTCP(t, s, to) })
		if err == nil || !strings.Contains(err.Error(), "refused") || took > atOnce {
			t.Errorf("connect to %s: %v after %v; want a refusal at once", to, err, took)
		}
		flows := h.refusals()
		if last := flows[len(flows)-1]; last.Proto != TCP || last.Dst.String() != to {
			t.Errorf("connect to %s was noted as %+v", to, last)
		}
	}
}

func TestDatagramIsRefusedAtOnce(t *testing.T) {
	noLeak(t)
	h := &recorder{}
	host, guest := socketPair(t)
	attach(t, host, h)
	s := guestStack(t, guest)
	for _, to := range []string{"8.8.8.8:53", "10.200.0.1:53", "[2001:4860:4860::8888]:53"} {
		var err error
		took := soonest(func() { err = ask(t, s, to) })
		if !strings.Contains(err.Error(), "refused") || took > atOnce {
			t.Errorf("datagram to %s: %v after %v; want a refusal at once", to, err, took)
		}
		flows := h.refusals()
		if last := flows[len(flows)-1]; last.Proto != UDP || last.Dst.String() != to {
			t.Errorf("datagram to %s was noted as %+v", to, last)
		}
	}
}

func TestEchoIsRefusedAtOnce(t *testing.T) {
	h := &recorder{}
	host, guest := socketPair(t)
	attach(t, host, h)
	ping := packet4(1, netip.MustParseAddr("1.2.3.4"), []byte{8, 0, 0, 0, 0, 1, 0, 1})
	send(t, guest, ping)
	answer := receivePacket(t, guest)
	checkAnswer(t, prohibit, ping, answer)
	if icmp := header.ICMPv4(header.IPv4(answer).Payload()); icmp.Type() != header.ICMPv4DstUnreachable || icmp.Code() != header.ICMPv4AdminProhibited {
		t.Errorf("answered with type %d, code %d", icmp.Type(), icmp.Code())
	}
	if flows := h.refusals(); len(flows) != 1 || flows[0].Proto != ICMP || flows[0].Dst.String() != "1.2.3.4:0" {
		t.Errorf("noted as %+v", flows)
	}
}

// What is admitted arrives with its true destination, and the rest is refused still.
func TestAdmittedFlowsAreServed(t *testing.T) {
	noLeak(t)
	h := &recorder{allow: func(f Flow) bool { return f.Dst.Port() == 443 }}
	host, guest := socketPair(t)
	attach(t, host, h)
	s := guestStack(t, guest)

	c, err := dialTCP(t, s, "1.2.3.4:443")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	sent := bytes.Repeat([]byte("0123456789"), 50_000)
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("half a megabyte through a connection: equal %v, %v", bytes.Equal(got, sent), err)
	}
	u := dialUDP(t, s, "9.9.9.9:443")
	if _, err := u.Write([]byte("datagram")); err != nil {
		t.Fatal(err)
	}
	n, err := u.Read(got)
	if err != nil || string(got[:n]) != "datagram" {
		t.Errorf("datagram: %q, %v", got[:n], err)
	}
	if _, err := dialTCP(t, s, "1.2.3.4:80"); err == nil {
		t.Error("a connection that was not admitted was made")
	}
	flows := h.flows()
	if len(flows) != 2 || flows[0].Dst.String() != "1.2.3.4:443" || flows[1].Dst.String() != "9.9.9.9:443" || flows[1].Src.Addr() != guest4 {
		t.Errorf("served: %+v", flows)
	}
}

func TestFlowsAtOnceAreBounded(t *testing.T) {
	noLeak(t)
	h := &recorder{allow: func(Flow) bool { return true }}
	host, guest := socketPair(t)
	e := attach(t, host, h)
	e.flows.mu.Lock()
	e.flows.max = 2
	e.flows.mu.Unlock()
	s := guestStack(t, guest)
	for range 2 {
		if _, err := dialTCP(t, s, "1.2.3.4:443"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dialTCP(t, s, "1.2.3.4:443"); err == nil {
		t.Error("a third connection was made")
	}
	if err := ask(t, s, "1.2.3.4:443"); !strings.Contains(err.Error(), "refused") {
		t.Errorf("a flow of datagrams over the bound: %v", err)
	}
}

func TestLinkEndsWithTheSandbox(t *testing.T) {
	noLeak(t)
	host, guest := socketPair(t)
	e := attach(t, host, &recorder{})
	_ = guest.Close()
	<-e.Done()
	if err := e.Err(); err != nil {
		t.Errorf("Err: %v", err)
	}
}

// An empty packet reads like the end of the socket, and is not.
func TestEmptyPacketIsNotTheEnd(t *testing.T) {
	host, guest := socketPair(t)
	e := attach(t, host, &recorder{})
	for range 3 {
		send(t, guest, nil)
	}
	eventually(t, "they are counted", func() bool { return e.Stats().DroppedIn == 3 })
	select {
	case <-e.Done():
		t.Fatal("the link ended")
	default:
	}
}

func TestCloseEndsEverything(t *testing.T) {
	noLeak(t)
	for name, use := range map[string]func(t *testing.T, guest *os.File){
		"idle": func(*testing.T, *os.File) {},
		"with a connection": func(t *testing.T, guest *os.File) {
			if _, err := dialTCP(t, guestStack(t, guest), "1.2.3.4:443"); err != nil {
				t.Error(err)
			}
		},
		"with a handshake under way": func(t *testing.T, guest *os.File) {
			send(t, guest, packet4(6, netip.MustParseAddr("1.2.3.4"), tcpSegment(1000, 443, flagSYN)))
			if answer := receivePacket(t, guest); len(answer) < 40 || answer[33]&0x12 != 0x12 {
				t.Errorf("no handshake: %x", answer)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			host, guest := socketPair(t)
			h := &recorder{allow: func(Flow) bool { return true }}
			e, err := Attach(sandbox.LinkPackets, host, h, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			use(t, guest)
			e.Close()
			e.Close() // again does nothing
			if err := e.Err(); err != nil {
				t.Errorf("Err: %v", err)
			}
		})
	}
}

// The endpoint works on a duplicate: what else refers to the link stays of use, and
// another endpoint can take over.
func TestLinkOutlivesItsEndpoint(t *testing.T) {
	host, guest := socketPair(t)
	s := guestStack(t, guest)
	for range 3 {
		e := attach(t, host, &recorder{})
		if _, err := dialTCP(t, s, "1.2.3.4:443"); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("connect: %v", err)
		}
		e.Close()
	}
}

func TestAttachRefusesOtherKinds(t *testing.T) {
	host, _ := socketPair(t)
	log := slog.New(slog.DiscardHandler)
	for _, kind := range []sandbox.LinkKind{sandbox.LinkEthernet, "", "x"} {
		if _, err := Attach(kind, host, &recorder{}, log); !errors.Is(err, hutch.ErrUnsupported) {
			t.Errorf("kind %q: got %v, want ErrUnsupported", kind, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := Attach(sandbox.LinkPackets, r, &recorder{}, log); err == nil {
		t.Error("a pipe was taken for a link")
	}
}

// panicker is a Handler with a bug.
type panicker struct{ recorder }

func (*panicker) Admit(Flow) bool { panic("bug") }

func TestPanicEndsOneLinkOnly(t *testing.T) {
	host, guest := socketPair(t)
	broken := attach(t, host, &panicker{})
	host2, guest2 := socketPair(t)
	attach(t, host2, &recorder{})

	send(t, guest, packet4(17, netip.MustParseAddr("1.2.3.4"), udpDatagram(1000, 53, "x")))
	<-broken.Done()
	if broken.Err() == nil {
		t.Error("the link ended without an error")
	}
	if _, err := dialTCP(t, guestStack(t, guest2), "1.2.3.4:443"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("another link: %v", err)
	}
}

// A flood is answered at a bounded rate and costs bounded memory; the link works on
// afterwards.
func TestFlood(t *testing.T) {
	noLeak(t)
	for name, packet := range map[string]func(i int) []byte{
		"connections": func(i int) []byte {
			return packet4(6, addr4(i), tcpSegment(uint16(i), 443, flagSYN))
		},
		"datagrams": func(i int) []byte { return packet4(17, addr4(i), udpDatagram(uint16(i), 53, "x")) },
		"echo":      func(i int) []byte { return packet4(1, addr4(i), []byte{8, 0, 0, 0, 0, 1, 0, 1}) },
		"fragments": func(i int) []byte {
			p := packet4(17, addr4(i), make([]byte, 1000))
			p[4], p[5], p[6] = byte(i>>8), byte(i), 0x20
			return p
		},
		"giants":  func(i int) []byte { return packet4(17, addr4(i), make([]byte, MTU-20)) },
		"nothing": func(int) []byte { return nil },
		"garbage": func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 100) },
	} {
		t.Run(name, func(t *testing.T) {
			host, guest := socketPair(t)
			h := &counter{}
			e := attach(t, host, h)
			before, goroutines := heap(), runtime.NumGoroutine()
			const n = 2000
			began := time.Now()
			for i := range n {
				send(t, guest, packet(i))
				drain(guest)
			}
			eventually(t, "all are read", func() bool { drain(guest); return e.Stats().PacketsIn == n })
			if least := time.Duration(n-refuseBurst-100) * time.Second / refuseRate; time.Since(began) < least {
				t.Errorf("%d packets took %v: not throttled", n, time.Since(began))
			}
			if got := runtime.NumGoroutine(); got > goroutines+5 {
				t.Errorf("%d goroutines more", got-goroutines)
			}
			if grown := int64(heap()) - int64(before); grown > 4<<20 {
				t.Errorf("heap grew by %d KiB", grown>>10)
			}
			if _, err := dialTCP(t, guestStack(t, guest), "1.2.3.4:443"); err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("connect after the flood: %v", err)
			}
		})
	}
}

// Handshakes that are never completed are bounded, and end with the link.
func TestAdmittedSynFloodIsBounded(t *testing.T) {
	noLeak(t)
	host, guest := socketPair(t)
	h := &recorder{allow: func(Flow) bool { return true }}
	e := attach(t, host, h)
	before := runtime.NumGoroutine()
	const n = 20 * maxHandshakes
	for i := range n {
		send(t, guest, packet4(6, addr4(i), tcpSegment(uint16(1+i), 443, flagSYN)))
		drain(guest)
	}
	eventually(t, "all are read", func() bool { drain(guest); return e.Stats().PacketsIn == n })
	if got := runtime.NumGoroutine() - before; got > 2*maxHandshakes {
		t.Errorf("%d goroutines for %d handshakes", got, n)
	}
}

// A sandbox that reads nothing loses packets and delays nobody.
func TestGuestThatDoesNotRead(t *testing.T) {
	host, guest := socketPair(t)
	e := attach(t, host, &counter{})
	for i := range 2000 {
		send(t, guest, packet4(17, addr4(i), udpDatagram(1000, 53, "x")))
	}
	eventually(t, "all are read", func() bool { return e.Stats().PacketsIn == 2000 })
	if s := e.Stats(); s.DroppedOut == 0 || s.PacketsOut == 0 {
		t.Errorf("stats: %+v", s)
	}
}

// counter is a Handler that remembers nothing.
type counter struct {
	recorder
	n atomic.Int64
}

func (c *counter) Refused(Flow) { c.n.Add(1) }

// Five hundred links: what each costs.
func TestFootprint(t *testing.T) {
	const n = 500
	hosts := make([]*os.File, n)
	for i := range hosts {
		hosts[i], _ = socketPair(t)
	}
	threads := tasks(t)
	before := heap()
	began := time.Now()
	for _, f := range hosts {
		attach(t, f, &recorder{})
	}
	took := time.Since(began) / n
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	each := (int64(heap()) - int64(before)) / n
	t.Logf("a link: %v to attach, %d KiB of heap", took, each>>10)
	if each > 128<<10 {
		t.Errorf("a link takes %d KiB", each>>10)
	}
	if more := tasks(t) - threads; more > 20 {
		t.Errorf("%d links take %d threads", n, more)
	}
}

func tasks(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// heap is what is in use after a collection.
func heap() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func addr4(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
}

// send puts one packet on the link, waiting while the socket is full.
func send(t testing.TB, f *os.File, b []byte) {
	t.Helper()
	rc, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = f.SetWriteDeadline(time.Now().Add(10 * time.Second))
	var sendErr error
	err = rc.Write(func(fd uintptr) bool {
		sendErr = unix.Send(int(fd), b, unix.MSG_NOSIGNAL)
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	if err = errors.Join(err, sendErr); err != nil {
		t.Fatal(fmt.Errorf("send %d bytes: %w", len(b), err))
	}
}

// drain reads what is there.
func drain(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	b := make([]byte, 2048)
	_ = rc.Control(func(fd uintptr) {
		for {
			if _, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err != nil {
				return
			}
		}
	})
}

// receivePacket waits for one packet.
func receivePacket(t testing.TB, f *os.File) []byte {
	t.Helper()
	_ = f.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, MTU)
	n, err := f.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}
