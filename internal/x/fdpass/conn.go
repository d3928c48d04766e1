// Package fdpass carries messages with open files between processes of one host, over
// a unix socket of type SEQPACKET.
//
// It has two layers. [Conn] sends and receives single messages. [Server] and [Client]
// make calls of them: a request with an operation, a JSON body and files, and one reply.
//
// It owns the framing, the bounds ([MaxMessage], [MaxFiles]) and the descriptors while
// they are under way: what is received closed on exec, what is not taken is closed. It
// knows nothing of what the calls mean, and has no notion of retrying.
//
// Files travel as descriptor numbers, not as *os.File: Go registers an *os.File over a
// socket with its poller, and a process that only stores sockets would be woken by
// every packet on them.
//
// Start with [Conn.Recv], then [Server.Serve] and [Client.Call].
package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one message. A SEQPACKET message must fit the socket's send buffer, 208 KiB
// unless the host was told otherwise, and Linux passes at most 253 files with one.
const (
	MaxMessage = 128 << 10 // bytes
	MaxFiles   = 32
)

var (
	// ErrTooLarge says that a message is longer than MaxMessage or has more than MaxFiles files.
	ErrTooLarge = errors.New("message too large")
	// ErrFilesLost says that files sent with a message did not arrive, as happens to a
	// receiver that may not open more. Those that did arrive are closed.
	ErrFilesLost = errors.New("files of the message were lost: too many, or this process may not open more")
)

// Message is one received message. Whoever receives it owns its descriptors.
type Message struct {
	Data []byte
	FDs  []int
}

// Take returns the descriptors and makes the caller their owner.
func (m *Message) Take() []int {
	fds := m.FDs
	m.FDs = nil
	return fds
}

// Close closes the descriptors that nobody took.
func (m *Message) Close() { CloseAll(m.Take()) }

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Dup returns a new descriptor, closed on exec, for the file f. Unlike [os.File.Fd] it
// leaves f, and everybody who shares it, in the mode it is in.
func Dup(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	if err := rc.Control(func(s uintptr) { fd, dupErr = DupFD(int(s)) }); err != nil {
		return -1, err
	}
	return fd, dupErr
}

// DupFD returns a new descriptor, closed on exec, for what fd refers to.
func DupFD(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("fcntl", err)
}

// DupAll duplicates files; on failure none is left open.
func DupAll(files []*os.File) ([]int, error) {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fd, err := Dup(f)
		if err != nil {
			CloseAll(fds)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// Files makes files of descriptors and takes them over.
func Files(fds []int, name string) []*os.File {
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), name)
	}
	return files
}

// Conn is one connection. Send may be called by several goroutines at once, Recv by one.
type Conn struct {
	c   *net.UnixConn
	buf []byte // of the receiver
	oob []byte

	mu sync.Mutex // held while sending
}

// NewConn returns a Conn over c, which must be of type SEQPACKET, and takes it over.
func NewConn(c *net.UnixConn) *Conn {
	return &Conn{c: c, buf: make([]byte, MaxMessage+1), oob: make([]byte, unix.CmsgSpace(MaxFiles*4))}
}

// Send sends one message and waits until the socket has taken it, at most until the
// deadline (zero = for ever). fds stay the caller's.
func (c *Conn) Send(deadline time.Time, data []byte, fds ...int) error {
	if len(data) == 0 || len(data) > MaxMessage || len(fds) > MaxFiles {
		return fmt.Errorf("send %d bytes and %d files: %w", len(data), len(fds), ErrTooLarge)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.c.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, _, err := c.c.WriteMsgUnix(data, oob, nil)
	return err
}

// Recv waits for one message. The end of the connection is io.EOF. ErrTooLarge and
// ErrFilesLost concern the one message only; Data then holds what arrived of it.
func (c *Conn) Recv() (Message, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.buf, c.oob)
	if err != nil {
		return Message{}, err
	}
	fds, err := rights(c.oob[:oobn])
	m := Message{Data: append([]byte(nil), c.buf[:n]...), FDs: fds}
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0:
		err = ErrFilesLost
	case flags&unix.MSG_TRUNC != 0 || n > MaxMessage:
		err = ErrTooLarge
	}
	if err != nil {
		m.Close()
	}
	return m, err
}

// rights extracts the descriptors from control messages.
func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			CloseAll(fds)
			return nil, fmt.Errorf("parse descriptors: %w", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// PeerUID returns the user of the process that made the connection.
func (c *Conn) PeerUID() (uint32, error) {
	rc, err := c.c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := rc.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, os.NewSyscallError("getsockopt", credErr)
	}
	return cred.Uid, nil
}

// Close ends the connection; a Recv that waits returns.
func (c *Conn) Close() error { return c.c.Close() }
