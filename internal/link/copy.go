package link

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// Copy copies from src to dst until src sends no more, like io.Copy. If src is a connection
// of the host's kernel, it holds a buffer only while there is something to copy.
func Copy(dst io.Writer, src io.Reader) (int64, error) {
	sc, ok := src.(syscall.Conn)
	if !ok {
		b := buffers.Get().(*[]byte)
		defer buffers.Put(b)
		return io.CopyBuffer(onlyWriter{dst}, onlyReader{src}, *b)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var total int64
	for {
		b, n, err := readReady(raw)
		if n > 0 {
			var w int
			w, err = dst.Write((*b)[:n])
			total += int64(w)
		}
		if b != nil {
			buffers.Put(b)
		}
		if err != nil || n == 0 {
			return total, err
		}
	}
}

// These hide the methods that io.CopyBuffer would use in place of the buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// readReady waits until something can be read, and reads it into a buffer, which is the
// caller's to put back. 0 bytes without an error are the end.
func readReady(raw syscall.RawConn) (b *[]byte, n int, err error) {
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		b = buffers.Get().(*[]byte)
		for {
			n, readErr = unix.Read(int(fd), *b)
			if !errors.Is(readErr, unix.EINTR) {
				break
			}
		}
		if errors.Is(readErr, unix.EAGAIN) {
			buffers.Put(b)
			b, readErr = nil, nil
			return false
		}
		return true
	})
	return b, max(n, 0), errors.Join(err, readErr)
}
