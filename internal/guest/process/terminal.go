package process

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
)

// terminal is the agent's side of a command's terminal: the master of a pseudo-terminal
// of which the command has the other end as its 0, 1 and 2. It has two descriptors, so
// that the end of the input does not take the output away with it.
type terminal struct {
	out *os.File // for the pump, which closes it
	in  *os.File // for the input and for the size
}

// openTerminal makes a terminal of a size that belongs to the user.
func openTerminal(size hutch.TerminalSize, u account.User) (t *terminal, theirs *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	in, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("copy descriptor of terminal: %w", err)
	}
	t = &terminal{out: os.NewFile(uintptr(fd), "terminal"), in: os.NewFile(uintptr(in), "terminal")}
	if theirs, err = openOther(fd, u); err == nil {
		err = t.resize(size)
	}
	if err != nil {
		t.out.Close()
		t.in.Close()
		if theirs != nil {
			theirs.Close()
		}
		return nil, nil, err
	}
	return t, theirs, nil
}

// openOther opens the end of a terminal that its command gets.
func openOther(master int, u account.User) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, fmt.Errorf("unlock terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, fmt.Errorf("number of terminal: %w", err)
	}
	path := "/dev/pts/" + strconv.Itoa(n)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open other end of terminal: %w", err)
	}
	// Where the file system does not take an owner, programs still have their descriptors.
	_ = unix.Fchown(fd, int(u.UID), -1)
	_ = unix.Fchmod(fd, 0o620)
	if attr, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		attr.Iflag |= unix.IUTF8 // a backspace takes a character, not a byte
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, attr)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// resize changes the size; the foreground job gets WINCH when it is another one.
func (t *terminal) resize(size hutch.TerminalSize) error {
	err := t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)})
	})
	if err != nil {
		return fmt.Errorf("size of terminal: %w", err)
	}
	return nil
}

func (t *terminal) control(f func(fd int) error) error {
	conn, err := t.in.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	if err := conn.Control(func(fd uintptr) { ioctlErr = f(int(fd)) }); err != nil {
		return err
	}
	return ioctlErr
}

// endOfFile is what has to be typed for a program that reads lines to see the end of its
// input, after a text that ends with last: once at the start of a line, twice within one.
// A program that reads key by key has no end of input.
func (t *terminal) endOfFile(last byte) []byte {
	var keys []byte
	_ = t.control(func(fd int) error {
		attr, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil || attr.Lflag&unix.ICANON == 0 {
			return err
		}
		keys = []byte{attr.Cc[unix.VEOF]}
		if last != '\n' && last != '\r' {
			keys = append(keys, keys[0])
		}
		return nil
	})
	return keys
}

// Resize changes the size of the command's terminal. That it has ended is invalid_state,
// as is a command without one.
func (e *Exec) Resize(size hutch.TerminalSize) error {
	if e.spec.Terminal == nil {
		return hutch.Errorf(hutch.CodeInvalidState, "command %s was started without a terminal", e.id)
	}
	size, err := checkSize(size)
	if err != nil {
		return err
	}
	if e.terminal != nil {
		err = e.terminal.resize(size)
	}
	if e.terminal == nil || err != nil { // the terminal is closed when its command ends
		return hutch.Errorf(hutch.CodeInvalidState, "command %s has ended", e.id)
	}
	return nil
}

// checkSize fills in what was left open and refuses what no terminal has.
func checkSize(s hutch.TerminalSize) (hutch.TerminalSize, error) {
	if s.Rows == 0 {
		s.Rows = hutch.DefaultRows
	}
	if s.Cols == 0 {
		s.Cols = hutch.DefaultCols
	}
	switch {
	case s.Rows < 1 || s.Rows > hutch.MaxRows:
		return s, hutch.FieldErrorf("terminal.rows", "must be between 1 and %d", hutch.MaxRows)
	case s.Cols < 1 || s.Cols > hutch.MaxCols:
		return s, hutch.FieldErrorf("terminal.cols", "must be between 1 and %d", hutch.MaxCols)
	}
	return s, nil
}
