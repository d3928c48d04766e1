package link

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"hutch.dev/hutch/internal/x/fdpass"
)

// device is a packet socket as the stack sees it. gVisor's own, fdbased, blocks a thread
// in poll(2) for each link, keeps half a megabyte of buffers ready in each, and takes an
// empty packet for the end or spins on it; this one waits in Go's poller.
type device struct {
	f   *os.File
	raw syscall.RawConn
	mtu atomic.Uint32

	packetsIn, bytesIn               atomic.Uint64
	packetsOut, bytesOut, droppedOut atomic.Uint64

	mu         sync.Mutex
	dispatcher stack.NetworkDispatcher // nil while detached
}

var _ stack.LinkEndpoint = (*device)(nil)

// buffers holds packet buffers for links that are reading right now.
var buffers = sync.Pool{New: func() any { b := make([]byte, MTU+1); return &b }}

// newDevice works on a duplicate of f.
func newDevice(f *os.File) (*device, error) {
	fd, err := fdpass.Dup(f)
	if err != nil {
		return nil, err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind != unix.SOCK_SEQPACKET {
		err = fmt.Errorf("not a socket of type SEQPACKET but %d", kind)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	d := &device{f: os.NewFile(uintptr(fd), "link")}
	d.mtu.Store(MTU)
	if d.raw, err = d.f.SyscallConn(); err != nil {
		return nil, errors.Join(err, d.f.Close())
	}
	return d, nil
}

// read waits for one packet and calls f with it. The packet is f's only for the call.
// That the other end is closed is io.EOF, that this one is os.ErrClosed.
func (d *device) read(f func(packet []byte)) error {
	var packet *[]byte
	var n int
	var readErr error
	err := d.raw.Read(func(fd uintptr) bool {
		packet = buffers.Get().(*[]byte)
		n, readErr = receive(int(fd), *packet)
		if errors.Is(readErr, unix.EAGAIN) {
			buffers.Put(packet) // an idle link holds none
			return false
		}
		return true
	})
	if err != nil { // the poller has one reason to give up: the file is closed
		return fmt.Errorf("%w: %w", os.ErrClosed, err)
	}
	defer buffers.Put(packet)
	if readErr != nil {
		return readErr
	}
	d.packetsIn.Add(1)
	d.bytesIn.Add(uint64(n))
	f((*packet)[:n])
	return nil
}

// receive reads one packet without waiting.
func receive(fd int, b []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECONNRESET):
			return 0, io.EOF // closed over there with packets of ours unread
		case err != nil:
			return 0, err
		case n == 0 && hungUp(fd):
			return 0, io.EOF
		default:
			return n, nil // also an empty packet, which reads like the end
		}
	}
}

func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// write sends one packet made of parts. It never waits: a sandbox that does not read
// loses packets, as on any network.
func (d *device) write(parts ...[]byte) error {
	var n int
	var sendErr error
	err := d.raw.Write(func(fd uintptr) bool {
		for {
			n, sendErr = unix.SendmsgBuffers(int(fd), parts, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if !errors.Is(sendErr, unix.EINTR) {
				return true
			}
		}
	})
	if err = errors.Join(err, sendErr); err != nil {
		d.droppedOut.Add(1)
		return err
	}
	d.packetsOut.Add(1)
	d.bytesOut.Add(uint64(n))
	return nil
}

// WritePackets sends what the stack wants sent.
func (d *device) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		err := d.write(pkt.AsSlices()...)
		switch {
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
			// A full socket is a lost packet, which TCP sends again.
		default:
			return i, &tcpip.ErrClosedForSend{}
		}
	}
	return pkts.Len(), nil
}

// deliver hands a packet to the stack; it drops it while none is attached.
func (d *device) deliver(pkt *stack.PacketBuffer) {
	d.mu.Lock()
	to := d.dispatcher
	d.mu.Unlock()
	if to != nil {
		to.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
	}
}

func (d *device) stats() Stats {
	return Stats{
		PacketsIn: d.packetsIn.Load(), BytesIn: d.bytesIn.Load(),
		PacketsOut: d.packetsOut.Load(), BytesOut: d.bytesOut.Load(), DroppedOut: d.droppedOut.Load(),
	}
}

// shut closes the socket; a read that waits returns.
func (d *device) shut() error { return d.f.Close() }

// Attach is called by the stack, with nil when it lets go.
func (d *device) Attach(to stack.NetworkDispatcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dispatcher = to
}

// IsAttached implements stack.LinkEndpoint.
func (d *device) IsAttached() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dispatcher != nil
}

// What follows says that there is no link layer: packets are all there is.

// MTU implements stack.LinkEndpoint.
func (d *device) MTU() uint32 { return d.mtu.Load() }

// SetMTU implements stack.LinkEndpoint.
func (d *device) SetMTU(mtu uint32) { d.mtu.Store(mtu) }

// MaxHeaderLength implements stack.LinkEndpoint.
func (d *device) MaxHeaderLength() uint16 { return 0 }

// LinkAddress implements stack.LinkEndpoint.
func (d *device) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress implements stack.LinkEndpoint.
func (d *device) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.LinkEndpoint.
func (d *device) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// ARPHardwareType implements stack.LinkEndpoint.
func (d *device) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader implements stack.LinkEndpoint.
func (d *device) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.LinkEndpoint.
func (d *device) ParseHeader(*stack.PacketBuffer) bool { return true }

// Wait implements stack.LinkEndpoint; the reader is not the device's.
func (d *device) Wait() {}

// Close implements stack.LinkEndpoint; the socket is closed by shut.
func (d *device) Close() {}

// SetOnCloseAction implements stack.LinkEndpoint.
func (d *device) SetOnCloseAction(func()) {}
