package fdpass

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// ErrClosed says that the connection is gone.
var ErrClosed = errors.New("connection to the other process is gone")

// helloTime bounds the handshake where the caller set no deadline.
const helloTime = 10 * time.Second

// Client makes calls. It is safe for concurrent use.
type Client struct {
	conn  *Conn
	hello Hello
	done  chan struct{}

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan received
}

type received struct {
	reply reply
	msg   Message
}

// Dial connects to the service at path and makes sure that it is the one named. That
// nobody serves there, or not for this process, is fs.ErrNotExist.
func Dial(ctx context.Context, path, service string) (*Client, error) {
	conn, err := dial(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", service, err)
	}
	c := &Client{conn: conn, done: make(chan struct{}), pending: map[uint64]chan received{}}
	go c.receive()

	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	if _, err := c.Call(ctx, opHello, nil, &c.hello); err != nil {
		c.Close()
		if errors.Is(err, ErrClosed) { // it was about to end, or does not want this client
			err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
		return nil, fmt.Errorf("greet %s: %w", service, err)
	}
	if c.hello.Service != service {
		c.Close()
		return nil, fmt.Errorf("greet %s: it is %q", service, c.hello.Service)
	}
	return c, nil
}

// Hello is what the other side said of itself.
func (c *Client) Hello() Hello { return c.hello }

// Done is closed once the connection is gone, whoever ended it.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection and returns once nothing of it runs.
func (c *Client) Close() {
	_ = c.conn.Close()
	<-c.done
}

// Call sends in as op, with files, and fills out with the answer unless it is nil. The
// descriptors that come back are the caller's; files stay the caller's too. A failure
// over there is a [RemoteError], a lost connection [ErrClosed]. If ctx ends first the
// call may still take effect; the connection stays of use.
func (c *Client) Call(ctx context.Context, op string, in, out any, files ...*os.File) ([]int, error) {
	fds, err := DupAll(files)
	if err != nil {
		return nil, fmt.Errorf("%s: duplicate files: %w", op, err)
	}
	defer CloseAll(fds)
	var body json.RawMessage
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return nil, fmt.Errorf("%s: encode: %w", op, err)
		}
	}
	id, answer := c.begin()
	defer c.end(id, answer)
	data, err := json.Marshal(request{ID: id, Op: op, Body: body})
	if err != nil {
		return nil, fmt.Errorf("%s: encode: %w", op, err)
	}
	deadline, _ := ctx.Deadline()
	if err := c.conn.Send(deadline, data, fds...); err != nil {
		if errors.Is(err, ErrTooLarge) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		return nil, fmt.Errorf("%s: %w: %w", op, ErrClosed, err)
	}
	select {
	case got := <-answer:
		return got.accept(op, out)
	case <-c.done:
		select { // the answer may have come with the end
		case got := <-answer:
			return got.accept(op, out)
		default:
			return nil, fmt.Errorf("%s: %w", op, ErrClosed)
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
}

func (r *received) accept(op string, out any) ([]int, error) {
	if r.reply.Error != nil {
		r.msg.Close()
		return nil, fmt.Errorf("%s: %w", op, r.reply.Error)
	}
	if out != nil {
		if err := json.Unmarshal(r.reply.Body, out); err != nil {
			r.msg.Close()
			return nil, fmt.Errorf("%s: decode answer: %w", op, err)
		}
	}
	return r.msg.Take(), nil
}

func (c *Client) begin() (uint64, chan received) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	ch := make(chan received, 1)
	c.pending[c.last] = ch
	return c.last, ch
}

// end forgets a call. An answer that came and was not accepted has its files closed.
func (c *Client) end(id uint64, answer chan received) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	select {
	case got := <-answer:
		got.msg.Close()
	default:
	}
}

// receive hands answers to the calls that wait for them, until the connection ends.
func (c *Client) receive() {
	defer close(c.done)
	defer func() { _ = c.conn.Close() }()
	for {
		m, err := c.conn.Recv()
		if err != nil && !errors.Is(err, ErrFilesLost) {
			return
		}
		var r reply
		if jsonErr := json.Unmarshal(m.Data, &r); jsonErr != nil {
			m.Close()
			return
		}
		if err != nil {
			r.Error = &RemoteError{Code: CodeInternal, Message: err.Error()}
		}
		c.mu.Lock()
		ch := c.pending[r.ID]
		delete(c.pending, r.ID)
		if ch != nil {
			ch <- received{reply: r, msg: m} // never blocks: one answer for each id
		}
		c.mu.Unlock()
		if ch == nil {
			m.Close() // its caller has gone
		}
	}
}
