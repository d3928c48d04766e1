package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

const (
	// maxLogLine is the most bytes of a line; a longer one is handed out in parts.
	maxLogLine = 64 << 10
	// maxTailLines and maxTailBytes bound what is held to find the last lines.
	maxTailLines = 100_000
	maxTailBytes = 4 << 20
	// maxTails is how many callers of a project may be looking at last lines at once. Each
	// holds those lines until it has read them, however slow it is.
	maxTails = 8
)

// Logs hands what a sandbox's commands wrote to sink, line by line, in the order of the
// commands' starts. Of a living sandbox that is everything its guest still has, of a dead
// one what is on record; a line says where bytes are missing. With q.Follow it goes on with
// what comes, in the order it comes, until the sandbox ends, ctx does or sink fails.
func (c *Control) Logs(ctx context.Context, q hutch.LogQuery, sink func(hutch.LogLine) error) error {
	if q.Stream != "" && q.Stream != hutch.Stdout && q.Stream != hutch.Stderr {
		return hutch.FieldErrorf("stream", "must be %q or %q", hutch.Stdout, hutch.Stderr)
	}
	if q.Tail < 0 || q.Tail > maxTailLines {
		return hutch.FieldErrorf("tail", "must be from 0 to %d", maxTailLines)
	}
	if _, err := c.load(ctx, q.Project, q.Sandbox); err != nil {
		return err
	}
	l := &logReader{c: c, q: q, sink: sink}
	if q.Follow {
		return l.follow(ctx)
	}
	return l.past(ctx)
}

// logReader reads the log of one sandbox for one caller.
type logReader struct {
	c *Control
	q hutch.LogQuery

	mu   sync.Mutex // sink is called by one at a time
	sink func(hutch.LogLine) error
}

func (l *logReader) emit(line hutch.LogLine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sink(line)
}

// past hands out what there is.
func (l *logReader) past(ctx context.Context) error {
	if l.q.Tail > 0 {
		return l.last(ctx, nil)
	}
	return l.each(ctx, true, func(x hutch.Exec) error {
		_, err := l.read(ctx, x, hutch.FollowOptions{NoWait: true}, l.emit)
		return err
	})
}

// each calls f for every command of the sandbox, without output, in the order of their starts
// or the reverse. errEnough from f ends it.
func (l *logReader) each(ctx context.Context, oldest bool, f func(hutch.Exec) error) error {
	if err := l.c.execs.settleAll(ctx, l.q.Sandbox); err != nil {
		return err
	}
	filter := store.ExecFilter{Sandbox: l.q.Sandbox, Oldest: oldest, Brief: true}
	for cursor := ""; ; {
		list, next, err := l.c.store.ExecsOf(ctx, filter, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return fmt.Errorf("list commands of %s: %w", l.q.Sandbox, err)
		}
		for _, x := range list {
			if err := f(x); errors.Is(err, errEnough) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		cursor = next
	}
}

var errEnough = errors.New("enough")

// last hands out the last lines, looking at the commands from the newest back. reached is
// told how far each command was read; it may be nil.
func (l *logReader) last(ctx context.Context, reached func(hutch.Exec, position)) error {
	leave, ok := l.c.tails.Enter(l.q.Project)
	if !ok {
		return hutch.Errorf(hutch.CodeRateLimited, "%d callers of this project are reading last lines of logs already: ask again in a moment, or for all lines", maxTails)
	}
	defer leave()
	var parts []lastLines // of each command, the newest first
	left := l.q.Tail
	room := maxTailBytes
	err := l.each(ctx, false, func(x hutch.Exec) error {
		part := lastLines{most: left, room: room}
		at, err := l.read(ctx, x, hutch.FollowOptions{NoWait: true}, part.add)
		if err != nil {
			return err
		}
		if reached != nil {
			reached(x, at)
		}
		left -= len(part.lines)
		room -= part.bytes
		parts = append(parts, part)
		if left <= 0 || room <= 0 {
			left, room = 0, 0
			if reached == nil {
				return errEnough
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := len(parts) - 1; i >= 0; i-- {
		for _, line := range parts[i].lines {
			if err := l.emit(line); err != nil {
				return err
			}
		}
	}
	return nil
}

// lastLines keeps the last lines that it is given, so many and so many bytes of them.
type lastLines struct {
	most, room int
	lines      []hutch.LogLine
	bytes      int
}

func (t *lastLines) add(line hutch.LogLine) error {
	t.lines = append(t.lines, line)
	t.bytes += len(line.Text)
	drop := 0
	for drop < len(t.lines) && (len(t.lines)-drop > t.most || t.bytes > t.room) {
		t.bytes -= len(t.lines[drop].Text)
		t.lines[drop] = hutch.LogLine{}
		drop++
	}
	t.lines = t.lines[drop:]
	return nil
}

// read hands the lines of one command to emit, and says how far it came in each stream:
// up to the end of the last whole line, or of everything if the command has ended.
func (l *logReader) read(ctx context.Context, x hutch.Exec, o hutch.FollowOptions, emit func(hutch.LogLine) error) (position, error) {
	at := position{stdout: o.Stdout, stderr: o.Stderr}
	streams := map[string]*lineSplitter{}
	for _, name := range []string{hutch.Stdout, hutch.Stderr} {
		if l.q.Stream != "" && l.q.Stream != name {
			continue
		}
		streams[name] = &lineSplitter{most: maxLogLine, emit: func(text string) error {
			line := hutch.LogLine{At: time.Now(), Exec: x.ID, Stream: name, Text: text}
			if o.NoWait || x.Result != nil {
				line.At = x.CreatedAt
			}
			return emit(line)
		}}
	}
	out, err := l.c.FollowExec(ctx, l.q.Project, l.q.Sandbox, x.ID, o, func(ev hutch.OutputEvent) error {
		at.note(ev)
		s := streams[ev.Stream]
		if s == nil {
			return nil
		}
		if ev.GapTo > 0 {
			if err := s.flush(false); err != nil {
				return err
			}
			return s.emit(fmt.Sprintf("… %d bytes are not kept …", ev.GapTo-ev.Offset))
		}
		return s.write(ev.Data)
	})
	for name, s := range streams {
		if err != nil || out.Result == nil { // it goes on: a line that has not ended is read again
			at.back(name, len(s.rest))
			continue
		}
		if err := s.flush(false); err != nil {
			return at, err
		}
	}
	if o.NoWait && errors.Is(err, hutch.ErrInvalidState) {
		return at, emit(hutch.LogLine{At: x.CreatedAt, Exec: x.ID, Stream: hutch.Stdout, Text: "… the sandbox is paused: what this command has written cannot be read …"})
	}
	return at, err
}

// follow hands out what there is and what comes.
func (l *logReader) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &logFollower{l: l, cancel: cancel, seen: map[hutch.ExecID]bool{}}
	err := f.run(ctx)
	if err != nil {
		cancel(err)
	}
	f.wg.Wait()                                    // every command's rest, if the sandbox has ended
	if cause := context.Cause(ctx); cause != nil { // why it was broken off, not what that broke
		err = cause
	}
	cancel(nil)
	return err
}

// logFollower follows all commands of a sandbox at once.
type logFollower struct {
	l      *logReader
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	seen   map[hutch.ExecID]bool
}

// run begins to follow every command, and returns when the sandbox has ended.
func (f *logFollower) run(ctx context.Context) error {
	c, q := f.l.c, f.l.q
	// Events from here on: what starts while the past is read is not missed, and not told twice.
	after, err := f.lastEvent(ctx)
	if err != nil {
		return err
	}
	if err := f.past(ctx); err != nil {
		return err
	}
	return c.WatchEvents(ctx, hutch.EventQuery{Project: q.Project, Sandbox: q.Sandbox, After: after}, func(ev hutch.Event) error {
		if ev.Type == execStarted {
			f.add(ctx, hutch.Exec{ID: ev.Exec, CreatedAt: ev.At}, position{})
		}
		return nil
	})
}

// lastEvent is the number of the sandbox's last event so far.
func (f *logFollower) lastEvent(ctx context.Context) (int64, error) {
	var after int64
	for {
		l, err := f.l.c.Events(ctx, hutch.EventQuery{Project: f.l.q.Project, Sandbox: f.l.q.Sandbox, After: after, Limit: 1000})
		if err != nil {
			return 0, err
		}
		if len(l) == 0 {
			return after, nil
		}
		for _, ev := range l {
			if ev.Type == sandboxEnded {
				return ev.Seq - 1, nil // so that who watches hears of it
			}
		}
		after = l[len(l)-1].Seq
	}
}

// past hands out what there is, and begins to follow the commands that run.
func (f *logFollower) past(ctx context.Context) error {
	if f.l.q.Tail > 0 {
		var running []func()
		err := f.l.last(ctx, func(x hutch.Exec, at position) {
			f.seen[x.ID] = true
			if x.Result == nil {
				running = append(running, func() { f.start(ctx, x, at) })
			}
		})
		for _, start := range running {
			start()
		}
		return err
	}
	return f.l.each(ctx, true, func(x hutch.Exec) error {
		if x.Result == nil {
			f.add(ctx, x, position{})
			return nil
		}
		f.seen[x.ID] = true
		_, err := f.l.read(ctx, x, hutch.FollowOptions{NoWait: true}, f.l.emit)
		return err
	})
}

// add follows a command that is not followed yet.
func (f *logFollower) add(ctx context.Context, x hutch.Exec, from position) {
	if !f.seen[x.ID] {
		f.seen[x.ID] = true
		f.start(ctx, x, from)
	}
}

func (f *logFollower) start(ctx context.Context, x hutch.Exec, from position) {
	f.wg.Go(func() {
		if err := f.live(ctx, x, from); err != nil {
			f.cancel(err)
		}
	})
}

// live follows one command to its end. While its sandbox is paused nothing comes.
func (f *logFollower) live(ctx context.Context, x hutch.Exec, from position) error {
	for {
		moved := f.l.c.watchers.next()
		at, err := f.l.read(ctx, x, hutch.FollowOptions{Stdout: from.stdout, Stderr: from.stderr}, f.l.emit)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, hutch.ErrInvalidState), errors.Is(err, hutch.ErrStale):
			from = at
		default:
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
