package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/x/id"
)

const (
	// echoCmd answers each key by itself, as an editor or a shell's line editor does: the
	// echo is a program's, not that of the terminal it runs in.
	echoCmd   = "stty raw -echo && printf ready && exec cat"
	echoReady = "ready"

	// keyEvery is how often each terminal's key is pressed, at some moment of its own
	// within it: a person types at most so fast.
	keyEvery = 200 * time.Millisecond

	// echoLimit bounds one keystroke.
	echoLimit = 10 * time.Second
)

// Terminals measures how long a keystroke takes to its echo, in one of s.Terminals
// terminals of one sandbox that are all typed into at once. The floor has as many, in a
// sandbox of its own, by hand. When it is ended early the report is of the runs until
// then, and the error says why.
func Terminals(ctx context.Context, s Settings, c *client.Client, floor *Floor, progress func(done int)) (_ *Report, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	st, rep, err := stand(ctx, "terminals", s, c, floor)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.kill(ctx)) }()
	idle := map[string]chan *terminal{}
	defer func() {
		for _, all := range idle {
			for len(all) > 0 {
				(<-all).close()
			}
		}
	}()
	for name, open := range st.opens() {
		all := make(chan *terminal, s.Terminals)
		idle[name] = all
		for n := range s.Terminals {
			t, err := open(ctx)
			if err != nil {
				return rep.finish(nil, fmt.Errorf("open terminal %d of %s: %w", n+1, name, err))
			}
			all <- t
		}
	}
	// Every run is one keystroke, and as many run at once as there are terminals.
	keys := series{n: s.N * s.Terminals, warmup: s.Warmup * s.Terminals, parallel: s.Terminals, limit: echoLimit}
	if progress != nil {
		keys.progress = func(done int) { progress(done / s.Terminals) }
	}
	runs, err := measure(ctx, keys, st.subjects(func(ctx context.Context, name string, k *clock) error {
		t := <-idle[name]
		defer func() { idle[name] <- t }()
		return t.press(ctx, k)
	}))
	return rep.finish(runs, err)
}

// opens are the ways to open a terminal, by subject.
func (st *standing) opens() map[string]func(context.Context) (*terminal, error) {
	ways := map[string]func(context.Context) (*terminal, error){
		SubjectHutch: func(ctx context.Context) (*terminal, error) { return openTerminal(ctx, st.api, st.sid) },
	}
	if st.floor != nil {
		ways[SubjectFloor] = st.floor.openTerminal
	}
	return ways
}

// terminal is an open terminal in which echoCmd runs.
type terminal struct {
	send  func(ctx context.Context, p []byte) error
	out   chan []byte // what it printed; closed when it ends
	err   error       // why it ended, once out is closed
	late  error       // why what comes next may be the echo of an earlier key; nil: it is not
	close func()
}

// listen has next's output arrive on out until it fails, and waits for the program to be there.
func (t *terminal) listen(ctx context.Context, next func() ([]byte, error)) error {
	t.out = make(chan []byte, 16)
	go func() {
		defer close(t.out)
		for {
			p, err := next()
			if err != nil {
				t.err = err
				return
			}
			if len(p) > 0 {
				t.out <- p
			}
		}
	}()
	var seen []byte
	for string(seen) != echoReady {
		p, err := t.printed(ctx)
		if err != nil {
			return err
		}
		if seen = append(seen, p...); !strings.HasPrefix(echoReady, string(seen)) {
			return fmt.Errorf("it printed %.100q, not %q", seen, echoReady)
		}
	}
	return nil
}

// printed is the next of what it prints.
func (t *terminal) printed(ctx context.Context) ([]byte, error) {
	select {
	case p, ok := <-t.out:
		if !ok {
			return nil, fmt.Errorf("the terminal ended: %w", t.err)
		}
		return p, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// press presses a key at some moment, and books the time to its echo.
func (t *terminal) press(ctx context.Context, c *clock) (err error) {
	if t.late != nil {
		return fmt.Errorf("closed after an earlier key: %w", t.late)
	}
	wait := time.NewTimer(rand.N(keyEvery))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() {
		if err != nil {
			t.late = err
			t.close()
		}
	}()
	key := []byte{byte('a' + rand.IntN(26))}
	pressed := time.Now()
	if err := t.send(ctx, key); err != nil {
		return fmt.Errorf("press a key: %w", err)
	}
	p, err := t.printed(ctx)
	if err != nil {
		return fmt.Errorf("wait for the echo: %w", err)
	}
	c.since(MetricEcho, pressed)
	if string(p) != string(key) {
		return fmt.Errorf("the echo of %q is %.100q", key, p)
	}
	return nil
}

// openTerminal opens one through the server.
func openTerminal(ctx context.Context, c *client.Client, sid hutch.SandboxID) (*terminal, error) {
	conn, err := c.OpenTerminal(ctx, sid, client.TerminalOptions{Cmd: echoCmd, User: fileUser})
	if err != nil {
		return nil, err
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &terminal{
		send: conn.Write,
		close: func() {
			cancel() // and with it the connection: there is nobody to say goodbye to
			_ = conn.Close()
		},
	}
	if err := t.listen(ctx, func() ([]byte, error) { return conn.Read(live) }); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// openTerminal opens one by hand.
func (b *floorBox) openTerminal(ctx context.Context) (*terminal, error) {
	x := hutch.ExecID(id.NewExec())
	spec := hutch.ExecSpec{
		Cmd: echoCmd, User: fileUser, Env: map[string]string{"TERM": "xterm-256color"}, Background: true, Lossless: true,
		Terminal: &hutch.TerminalSize{Rows: hutch.DefaultRows, Cols: hutch.DefaultCols},
		Grace:    hutch.DefaultGrace, MaxOutputBytes: hutch.DefaultOutputBytes,
	}
	if _, err := b.guest.StartExec(ctx, guestapi.StartExec{ID: x, Spec: spec}); err != nil {
		return nil, fmt.Errorf("start command: %w", err)
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f, err := b.guest.Follow(live, x, guestclient.FollowOptions{})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("follow command: %w", err)
	}
	t := &terminal{
		send: func(ctx context.Context, p []byte) error {
			_, err := b.guest.AppendStdin(ctx, x, strings.NewReader(string(p)), false)
			return err
		},
		close: func() {
			_ = f.Close()
			cancel()
		},
	}
	err = t.listen(ctx, func() ([]byte, error) {
		fr, err := f.Next(live)
		switch {
		case err != nil:
			return nil, err
		case fr.Type == guestapi.FrameStdout:
			return fr.Payload, nil
		case fr.Type == guestapi.FrameKeepalive:
			return nil, nil
		}
		return nil, fmt.Errorf("a frame of type %d in place of output", fr.Type)
	})
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}
