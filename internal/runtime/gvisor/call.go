package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxAnswer bounds what is read from a sentry: a sandbox that took its sentry over
// must not be able to fill our memory. Our calls answer with less than 200 bytes.
const maxAnswer = 1 << 20

// maxErrText bounds the part of an error that is kept: some hold whole specs.
const maxErrText = 1000

// remoteError is an error that the sentry answered with.
type remoteError struct{ method, text string }

func (e *remoteError) Error() string { return e.method + ": sentry: " + e.text }

// request and answer are gVisor's urpc messages. The library's own client is not
// used: it can neither be interrupted nor bounded.
type request struct {
	Method string `json:"method"`
	Arg    any    `json:"arg"`
}

type answer struct {
	Success bool            `json:"success"`
	Err     string          `json:"err"`
	Result  json.RawMessage `json:"result"`
}

// call is one call to a sentry's control socket.
type call struct {
	method string
	arg    any
	files  []*os.File    // handed over with the call; gVisor's FilePayload, in order
	limit  time.Duration // on top of the context's deadline
	result any           // nil if the answer's value is of no use
	most   int64         // bytes of the answer; 0 = maxAnswer
}

// do makes the call on a connection of its own. It ends at the earlier of c.limit
// and ctx's end, whatever the other side does. Descriptors that the other side
// sends are discarded by the kernel, since nothing is received them with.
func (c call) do(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	if err := c.exchange(ctx, socket); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		var remote *remoteError
		if errors.As(err, &remote) {
			return err
		}
		return fmt.Errorf("call %s: %w", c.method, err)
	}
	return nil
}

func (c call) exchange(ctx context.Context, socket string) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	conn := nc.(*net.UnixConn)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	if err := c.send(conn); err != nil {
		return err
	}
	return c.receive(conn)
}

// receive reads the answer and puts its value into c.result.
func (c call) receive(from io.Reader) error {
	var a answer
	most := c.most
	if most == 0 {
		most = maxAnswer
	}
	if err := json.NewDecoder(io.LimitReader(from, most)).Decode(&a); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if !a.Success {
		return &remoteError{method: c.method, text: a.Err[:min(len(a.Err), maxErrText)]}
	}
	if c.result == nil {
		return nil
	}
	if err := json.Unmarshal(a.Result, c.result); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}

func (c call) send(conn *net.UnixConn) error {
	data, err := json.Marshal(request{Method: c.method, Arg: c.arg})
	if err != nil {
		return err
	}
	n := 0
	err = withFDs(c.files, nil, func(fds []int) error {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		n, _, err = conn.WriteMsgUnix(data, rights, nil)
		return err
	})
	if err == nil && n < len(data) {
		_, err = conn.Write(data[n:])
	}
	return err
}

// withFDs lends the descriptors of files, after those in fds, to do; none of them is
// closed meanwhile. It is not File.Fd, which would make a file blocking for all who
// share it.
func withFDs(files []*os.File, fds []int, do func(fds []int) error) error {
	if len(files) == 0 {
		return do(fds)
	}
	rc, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := rc.Control(func(fd uintptr) {
		inner = withFDs(files[1:], append(fds, int(fd)), do)
	}); err != nil {
		return err
	}
	return inner
}
