// Command hostile is a guest agent that does its worst. Root runs it inside a sandbox: it takes
// the stream to the node from the real agent, stops that one for good, and from then on is who
// the node talks to. Its argument says how it behaves.
//
// It is what test/e2e attacks a server with; what the node's parsers make of single bytes is
// tested beside them. Everything that it says holds a mark, which no log of the host may hold.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/guestlink"
)

// mark is in all that it says.
const mark = "xEscApEx"

// behaviours by name. Those below a session get the stream as it is, those in one a
// connection, and the others answer calls.
var (
	below = map[string]func(stream *os.File){
		"mute":  func(stream *os.File) { _, _ = io.Copy(io.Discard, stream) },
		"noise": noise,
	}
	within = map[string]func(net.Conn){
		"deaf":     func(net.Conn) { select {} },
		"garbage":  garbage,
		"pings":    func(c net.Conn) { flood(c, nil, frame(6, 0, 0, make([]byte, 8))) },
		"settings": func(c net.Conn) { flood(c, nil, frame(4, 0, 0, nil)) },
		"streams":  streams,
		"headers":  func(c net.Conn) { flood(c, nil, frame(1, 4, 1, append([]byte{0x88}, field("x", 100)...))) },
		"bomb": func(c net.Conn) {
			flood(c, frame(1, 0, 1, append([]byte{0x88}, field("x", 100)...)), frame(9, 0, 1, field("y", 100)))
		},
	}
	above = map[string]http.HandlerFunc{
		"silent":   silent,
		"endless":  endless,
		"slow":     slow,
		"lies":     lies,
		"lengths":  lengths,
		"trailers": trailers,
		"refuses":  refuses,
		"talks":    talks,
		"archives": archives,
	}
)

// Modes are the names of all behaviours, in order.
func modes() []string {
	var all []string
	for name := range below {
		all = append(all, name)
	}
	for name := range within {
		all = append(all, name)
	}
	for name := range above {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func main() {
	if len(os.Args) != 2 {
		fmt.Println(strings.Join(modes(), "\n"))
		return
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

func run(mode string) error {
	stream, err := take()
	if err != nil {
		return err
	}
	if b, ok := below[mode]; ok {
		b(stream)
		return nil
	}
	// Whatever session there is, the agent knows its name and we do not: break it.
	if _, err := stream.Write([]byte{0xf5, 0x02, 0xf5, 0x01, 0xf5, 0x03}); err != nil {
		return fmt.Errorf("break the agent's session: %w", err)
	}
	if b, ok := within[mode]; ok {
		l := guestlink.NewListener(stream)
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			go b(c)
		}
	}
	h, ok := above[mode]
	if !ok {
		return fmt.Errorf("there is no behaviour %q", mode)
	}
	return guestlink.Serve(context.Background(), stream, h)
}

// take takes the stream from the first process, and stops that.
func take() (*os.File, error) {
	first, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return nil, fmt.Errorf("open the agent: %w", err)
	}
	fd, err := unix.PidfdGetfd(first, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("take the agent's stream: %w", err)
	}
	if err := unix.Kill(1, unix.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop the agent: %w", err)
	}
	return os.NewFile(uintptr(fd), "stream"), nil
}

func noise(stream *os.File) {
	b := make([]byte, 64<<10)
	for {
		_, _ = rand.Read(b)
		if _, err := stream.Write(b); err != nil {
			return
		}
	}
}
