package cli

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"hutch.dev/hutch/api"
)

// TTY is the terminal that this program's user sits at.
type TTY interface {
	// Raw has every key delivered as it is typed, Ctrl-C too, until restore is called.
	Raw() (restore func(), err error)
	// Size is the terminal's, false if it cannot be told.
	Size() (api.Terminal, bool)
	// Resized is sent on when the size changes, until stop is called.
	Resized() (changes <-chan os.Signal, stop func())
}

// osTTY is the terminal on stdin and stdout.
type osTTY struct{ in, out *os.File }

// openTTY returns the terminal of this program, nil if there is none.
func openTTY() TTY {
	if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
		return nil
	}
	return osTTY{os.Stdin, os.Stdout}
}

func (t osTTY) Raw() (func(), error) {
	old, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(t.in.Fd()), old) }, nil
}

func (t osTTY) Size() (api.Terminal, bool) {
	cols, rows, err := term.GetSize(int(t.out.Fd()))
	return api.Terminal{Rows: rows, Cols: cols}, err == nil && rows > 0 && cols > 0
}

func (osTTY) Resized() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	return ch, func() { signal.Stop(ch) }
}
