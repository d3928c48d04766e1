package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/backoff"
	"hutch.dev/hutch/internal/x/failpoint"
)

// Of a build's log the beginning is kept as it comes, and the last lines once the build has
// ended: why it failed is said at the end.
const (
	maxBuildLines = 9_500
	maxBuildBytes = 4 << 20
	maxBuildTail  = 500      // lines
	buildTailLine = 2 << 10  // bytes of a line in the tail
	maxBuildLine  = 64 << 10 // bytes of a line
	buildPause    = 100 * time.Millisecond
)

// buildLog keeps the record and the log of one build.
type buildLog struct {
	c  *Control
	wg sync.WaitGroup

	mu      sync.Mutex
	rec     hutch.Build
	dirty   bool            // rec is not stored
	pending []hutch.LogLine // not stored
	lines   int             // of the beginning
	bytes   int
	tail    []hutch.LogLine // once the beginning is full
	dropped int             // lines that came before tail
	more    chan struct{}   // holds a token when there is something to store
	over    bool
}

func newBuildLog(c *Control, rec hutch.Build) *buildLog {
	return &buildLog{c: c, rec: rec, more: make(chan struct{}, 1)}
}

// begin records that the build is under way, and stores what comes from now on.
func (l *buildLog) begin() {
	l.mu.Lock()
	l.rec.Status, l.dirty = hutch.BuildRunning, true
	l.mu.Unlock()
	l.signal()
	l.wg.Go(l.write)
}

func (l *buildLog) signal() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// line takes a line of a step, which may be empty where only the step is news.
func (l *buildLog) line(step, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if step != "" && step != l.rec.Step {
		l.rec.Step, l.dirty = step, true
	}
	for _, part := range strings.Split(strings.TrimRight(text, "\r\n"), "\n") {
		if part != "" {
			l.keepLocked(hutch.LogLine{At: time.Now(), Text: cleanLine(part, maxBuildLine)})
		}
	}
	l.signal()
}

func (l *buildLog) keepLocked(line hutch.LogLine) {
	if l.lines < maxBuildLines && l.bytes+len(line.Text) <= maxBuildBytes && l.dropped == 0 && len(l.tail) == 0 {
		l.lines++
		l.bytes += len(line.Text)
		l.pending = append(l.pending, line)
		return
	}
	line.Text = cleanLine(line.Text, buildTailLine)
	if l.tail = append(l.tail, line); len(l.tail) > maxBuildTail {
		l.tail = slices.Delete(l.tail, 0, 1)
		l.dropped++
	}
}

// write stores what comes until the build is over and everything is stored.
func (l *buildLog) write() {
	for tries := 0; ; {
		<-l.more
		err := l.store()
		l.mu.Lock()
		done := l.over && !l.dirty && len(l.pending) == 0
		l.mu.Unlock()
		switch {
		case done:
			return
		case err == nil:
			tries = 0
			_ = backoff.Sleep(l.c.builds.work, buildPause) // gather; the end of the server is no reason to
		case l.c.builds.work.Err() != nil && tries > 3:
			return // the next start says that it was cut off
		default:
			if tries == 0 {
				l.c.log.Error("the log of a build could not be stored", "build", l.rec.ID, "op", "build", "error", err)
			}
			tries++
			_ = backoff.Sleep(context.Background(), rewrite.Delay(tries, rand.Float64))
			l.signal()
		}
	}
}

// store writes what is not stored yet: lines first, so that a record that says it has ended
// has them all.
func (l *buildLog) store() error {
	l.mu.Lock()
	lines, rec, dirty := l.pending, l.rec, l.dirty
	l.pending, l.dirty = nil, false
	l.mu.Unlock()
	ctx, cancel := finish(l.c.builds.work, finishTimeout)
	defer cancel()
	if len(lines) > 0 {
		if err := l.c.store.AppendBuildLog(ctx, rec.ID, lines...); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.pending, l.dirty = append(lines, l.pending...), l.dirty || dirty
			return err
		}
	}
	if dirty {
		if err := l.c.store.PutBuild(ctx, rec); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.dirty = true
			return err
		}
	}
	failpoint.At(failpoint.BuildStored)
	l.c.builds.moved.wake()
	return nil
}

// end records how the build ended.
func (l *buildLog) end(t hutch.Template, err error) {
	l.mu.Lock()
	started := l.rec.Status == hutch.BuildRunning
	if l.dropped > 0 {
		l.pending = append(l.pending, hutch.LogLine{At: time.Now(), Text: fmt.Sprintf("… %d lines are not kept …", l.dropped)})
	}
	l.pending = append(l.pending, l.tail...)
	l.rec.EndedAt, l.rec.Status, l.rec.SizeBytes = time.Now(), hutch.BuildDone, t.SizeBytes
	if err != nil {
		l.rec.Status, l.rec.Error = hutch.BuildFailed, l.c.buildError(l.rec, err)
		l.pending = append(l.pending, failedLine(l.rec))
	}
	l.dirty, l.over = true, true
	l.mu.Unlock()
	l.signal()
	if !started {
		l.write()
	}
	l.wg.Wait()
	l.c.log.Info("build ended", "build", l.rec.ID, "op", "build", "template", l.rec.Template, "status", string(l.rec.Status))
}

// buildError is what the tenant is told of a build that failed.
func (c *Control) buildError(rec hutch.Build, err error) string {
	if c.builds.work.Err() != nil {
		return cutBuild
	}
	if e, ok := errors.AsType[*hutch.Error](err); ok {
		return e.Message
	}
	c.log.Error("build", "build", rec.ID, "op", "build", "template", rec.Template, "error", err)
	return "it failed for a reason that is the server's: its log and the server's say more"
}

// failedLine ends the log of a build that failed.
func failedLine(b hutch.Build) hutch.LogLine {
	return hutch.LogLine{At: b.EndedAt, Text: "failed: " + b.Error}
}
