package fdpass

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/failpoint"
)

// maxSocketPath is what a socket address holds, its final zero byte not counted.
const maxSocketPath = 107

// Listen makes a socket at path that only this user may open, in place of one that is
// there. The caller makes sure that nobody listens on that one any more. The name
// appears only when the socket accepts. Closing the listener leaves the name there.
func Listen(path string) (*net.UnixListener, error) {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var l *net.UnixListener
	err := short(tmp, func(p string) error {
		var err error
		l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: p, Net: "unixpacket"})
		return err
	})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		failpoint.At(failpoint.SocketMade)
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(tmp))
	}
	return l, nil
}

// dial connects to the socket at path. That nobody listens there is fs.ErrNotExist.
func dial(ctx context.Context, path string) (*Conn, error) {
	var c net.Conn
	err := short(path, func(p string) error {
		var err error
		c, err = (&net.Dialer{}).DialContext(ctx, "unixpacket", p)
		return err
	})
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return nil, err
	}
	return NewConn(c.(*net.UnixConn)), nil
}

// short calls f with a name for path that fits a socket address: path itself, or one
// that goes through an open descriptor of its directory.
func short(path string, f func(string) error) error {
	if len(path) <= maxSocketPath {
		return f(path)
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer func() { _ = unix.Close(dir) }()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}
