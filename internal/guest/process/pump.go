package process

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/guest/output"
)

const (
	// pipeSize is asked for each pipe, so that a command which writes in bursts does not
	// wait for the agent to be scheduled. The kernel takes the memory only when it is used.
	pipeSize = 1 << 20
	// readSize is the most that is read at once.
	readSize = 64 << 10
	// Of a command that writes fast in small pieces, as most do that write much, each piece
	// would be read as it comes, since the agent goes before programs: at the cost of a dozen
	// system calls, most of them switches between the two. So one that has written a mebibyte a
	// second (gulpRate) in its last sixteen pieces (gulpPieces) has gulpPause after each that is
	// less than half of what can be read at once. Only what it writes within that time comes
	// later, and by no more.
	gulpPieces = 16
	gulpRate   = 1 << 20
	gulpPause  = time.Millisecond
	// quietTime and drainTime bound the wait for more output when the leader has exited but
	// others hold its pipes: until nothing came for quietTime, and no longer than drainTime.
	quietTime = 250 * time.Millisecond
	drainTime = time.Second
	// holdTime is how long the end of a lossless command waits for a reader who takes
	// nothing.
	holdTime = 30 * time.Second
)

// buffers are shared by all pumps: one is only held while there is something to read, so a
// silent command costs none.
var buffers = sync.Pool{New: func() any { return new([readSize]byte) }}

// pump moves a command's output from its pipe into a stream.
//
// It goes through three phases: until the leader's exit it stores what comes; then, when
// drain is called, it stores what is in the pipe, and what still comes for a short while;
// then the command has ended, and what processes left running write is read and thrown away,
// so that they neither block nor die of SIGPIPE. The last phase lasts as long as somebody
// holds the pipe: the processes inside are bounded, and so are these.
type pump struct {
	pipe    *os.File
	conn    syscall.RawConn
	stream  *output.Stream
	last    *atomic.Int64 // when there was output last, in the clock of Exec.since
	clock   func() int64
	drained chan struct{} // closed at the end of the second phase

	gulps *gulps              // nil: every piece is read as it comes
	pause func(time.Duration) // pause, but in tests
}

func newPump(pipe *os.File, s *output.Stream, last *atomic.Int64, clock func() int64) (*pump, error) {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &pump{
		pipe: pipe, conn: conn, stream: s, last: last, clock: clock, drained: make(chan struct{}),
		gulps: new(gulps), pause: pause,
	}, nil
}

func (p *pump) run() {
	defer p.pipe.Close()
	err := p.copy(p.stream)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = p.storeRest()
	}
	close(p.drained)
	if errors.Is(err, os.ErrDeadlineExceeded) && p.pipe.SetReadDeadline(time.Time{}) == nil {
		_ = p.copy(io.Discard) // ends with the last holder of the pipe
	}
}

// drain begins the second phase; drained is closed when it is over.
func (p *pump) drain() {
	_ = p.pipe.SetReadDeadline(time.Unix(1, 0)) // fails only once the pipe is closed: over already
}

// copy moves bytes to w until the end of the pipe (nil), or until the deadline.
func (p *pump) copy(w io.Writer) error {
	for {
		n, err := p.read(w, p.conn.Read)
		if n == 0 || err != nil {
			return err
		}
		if p.gulps.enough(n, p.clock()) {
			p.pause(gulpPause)
		}
	}
}

// gulps finds out whether a command writes so fast that it is better read a little later. Nil
// thinks that none does.
type gulps struct {
	pieces, bytes int   // of the lot that is being counted
	since         int64 // when it began, in ns
	fast          bool  // what the lot before came to
}

// enough takes in that a read gave n bytes now, and says whether to pause before the next.
func (g *gulps) enough(n int, now int64) bool {
	if g == nil {
		return false
	}
	g.pieces++
	g.bytes += n
	if g.pieces == gulpPieces {
		passed := time.Duration(now - g.since)
		*g = gulps{since: now, fast: int64(g.bytes)*int64(time.Second) >= gulpRate*int64(passed)}
	}
	return g.fast && n < readSize/2
}

// read moves what one read gives. With p.conn.Read it waits for something, up to the
// deadline; with tryRead it does not.
func (p *pump) read(w io.Writer, with func(func(fd uintptr) bool) error) (n int, err error) {
	var readErr error
	err = with(func(fd uintptr) bool {
		buf := buffers.Get().(*[readSize]byte)
		defer buffers.Put(buf)
		for {
			n, readErr = unix.Read(int(fd), buf[:])
			if !errors.Is(readErr, unix.EINTR) {
				break
			}
		}
		if errors.Is(readErr, unix.EAGAIN) {
			n = 0
			return false
		}
		n = max(n, 0)
		if n > 0 {
			p.last.Store(p.clock())
			// Neither a stream nor Discard refuses; a lossless stream may wait for its readers.
			_, _ = w.Write(buf[:n])
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	return n, readErr
}

// storeRest stores everything that was in the pipe when it was called, however long that
// takes, then what comes until it is quiet or the time is up, which is
// os.ErrDeadlineExceeded.
func (p *pump) storeRest() error {
	// What was in the pipe is out when a read finds it empty, or when as much was read as
	// fits: a writer that never stops must not keep us.
	for taken := 0; taken < pipeSize+readSize; {
		empty := false
		n, err := p.read(p.stream, func(f func(uintptr) bool) error {
			return p.conn.Control(func(fd uintptr) { empty = !f(fd) })
		})
		if err != nil && !errors.Is(err, unix.EAGAIN) || n == 0 && !empty {
			return err
		}
		if empty {
			break
		}
		taken += n
	}
	end := time.Now().Add(drainTime)
	for {
		quiet := time.Now().Add(quietTime)
		if quiet.After(end) {
			quiet = end
		}
		if err := p.pipe.SetReadDeadline(quiet); err != nil {
			return err
		}
		if n, err := p.read(p.stream, p.conn.Read); n == 0 || err != nil {
			return err
		}
	}
}

// newPipe makes a pipe of which the agent's end (the reading one, or the writing one if
// write) does not block.
func newPipe(write bool) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	mine, other := fds[0], fds[1]
	if write {
		mine, other = other, mine
	}
	if err := unix.SetNonblock(mine, true); err != nil {
		unix.Close(mine)
		unix.Close(other)
		return nil, nil, err
	}
	_, _ = unix.FcntlInt(uintptr(mine), unix.F_SETPIPE_SZ, pipeSize) // smaller is slower, no more
	return os.NewFile(uintptr(mine), "pipe"), os.NewFile(uintptr(other), "pipe"), nil
}
