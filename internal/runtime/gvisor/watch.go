package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/cgroup"
	"hutch.dev/hutch/internal/x/pidfd"
)

const (
	// oomWindow is how long ago memory may last have been short, or something been ended
	// for it, for a sandbox's end to be that's doing. The victim's memory is freed before
	// its end shows, which takes some hundred milliseconds for gigabytes, and seconds where
	// it has to wait for a CPU.
	oomWindow = 10 * time.Second
	// highPoll is how often a sandbox that is near its limit is looked at. Version 1
	// tells only of crossings, and while file pages keep the group at its limit,
	// programs can grow without there being another.
	highPoll = 100 * time.Millisecond
)

// memoryHigh is the use, of limit, at which the guest should end something: a tenth
// below the limit, but at least 32 MiB, which a program fills in some 50 ms, and at
// most 256 MiB.
func memoryHigh(limit int64) int64 {
	return limit - min(max(limit/10, 32<<20), 256<<20)
}

// mailbox is a channel of events that holds at most one of each kind.
type mailbox struct {
	mu *sync.Mutex // one writer at a time
	ch chan runtime.Event
}

func newMailbox() mailbox {
	// One place for each kind.
	return mailbox{mu: new(sync.Mutex), ch: make(chan runtime.Event, 3)}
}

// put adds e unless an unread event of its kind is there. After the last event the
// channel is closed, and nothing may be put any more.
func (m mailbox) put(e runtime.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var unread []runtime.Event
	found := false
	for {
		select {
		case u := <-m.ch:
			found = found || u.Kind == e.Kind
			unread = append(unread, u)
			continue
		default:
		}
		break
	}
	if !found {
		unread = append(unread, e)
	}
	for _, u := range unread {
		m.ch <- u // has room: only this method sends, and it took these out
	}
	if e.Kind == runtime.KindExited {
		close(m.ch)
	}
}

// watch starts what turns the kernel's news of the sandbox into events. All of it
// ends with the sentry.
func (s *sandbox) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	var w sync.WaitGroup
	w.Go(func() { s.watchOOM(ctx) })
	w.Go(func() { s.watchHigh(ctx) })
	go func() {
		if err := pidfd.Wait(context.Background(), s.procs[0]); err != nil {
			// Only if the pidfd cannot be watched, which Create and Adopt did once
			// already. Without it there is no telling, so take it for gone.
			s.log.Error("sandbox cannot be watched", "op", "watch", "err", err)
		}
		cancel()
		w.Wait()
		s.mu.Lock()
		asked := s.killed || s.rec.Phase == leaving
		s.mu.Unlock()
		e := runtime.Event{Kind: runtime.KindExited}
		if !asked {
			e.OOM = s.oomEnded()
			e.Pids = !e.OOM && s.pidsEnded()
		}
		s.events.put(e)
		close(s.exited)
	}()
}

// notified calls seen for each notification until ctx ends.
func (s *sandbox) notified(ctx context.Context, n *cgroup.Notifier, err error, seen func()) {
	if err != nil {
		s.log.Warn("memory of sandbox cannot be watched", "op", "watch", "err", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = n.Close() })
	defer stop()
	defer func() { _ = n.Close() }()
	for n.Wait() == nil && ctx.Err() == nil {
		seen()
	}
}

// watchOOM reports the kernel's kills in the sandbox.
func (s *sandbox) watchOOM(ctx context.Context) {
	n, err := s.group.NotifyOOM()
	s.notified(ctx, n, err, func() {
		// The kernel tells when it finds no memory; the kill comes a moment later.
		s.eachTick(ctx, highPoll, func() (more bool) {
			if s.countOOM() {
				s.events.put(runtime.Event{Kind: runtime.KindOOMKill})
				return false
			}
			use, err := s.group.Unreclaimable()
			return err == nil && use > memoryHigh(limits(s.spec.Resources).Memory)
		})
	})
}

// countOOM says whether the kernel has ended more processes since the last call, and
// notes when.
func (s *sandbox) countOOM() bool {
	n, err := s.group.OOMKills()
	if err != nil {
		return false
	}
	s.mu.Lock()
	more := n > s.rec.OOMKills
	s.mu.Unlock()
	if !more {
		return false
	}
	// For the process that finds the sandbox ended and did not see it.
	err = s.keep(func(rec *record) { rec.OOMKills, rec.OOMAt = max(n, rec.OOMKills), time.Now() })
	if err != nil {
		s.log.Warn("a kill for memory is not on record", "op", "watch", "err", err)
	}
	return true
}

// oomEnded says whether the sandbox, whose sentry has just ended, was ended over its
// memory limit.
func (s *sandbox) oomEnded() bool {
	s.countOOM()
	s.mu.Lock()
	defer s.mu.Unlock()
	return overMemory(s.rec.OOMKills, s.rec.OOMAt, s.highAt, time.Now())
}

// overMemory says whether what ended now was ended over its memory limit: of kills for that,
// the last was seen at killed, and memory was last seen to be short at high.
func overMemory(kills int64, killed, high, now time.Time) bool {
	if high.After(killed) {
		killed = high
	}
	return kills > 0 && now.Sub(killed) < oomWindow
}

// pidsEnded says whether the sandbox, whose sentry has just ended, was refused processes by
// the cap on the host. A sentry does not outlive that, so there is no asking when it was.
func (s *sandbox) pidsEnded() bool {
	n, err := s.group.PidsRefused()
	return err == nil && n > 0
}

// Ended implements runtime.Coroner.
func (r *Runtime) Ended(_ context.Context, spec runtime.Spec, at time.Time) (runtime.Event, runtime.Stats, error) {
	e := runtime.Event{Kind: runtime.KindExited}
	tree, err := r.tree()
	if err != nil {
		return e, runtime.Stats{}, err
	}
	rec, err := r.readRecord(spec.ID)
	var group *cgroup.Group
	if err == nil {
		group, err = tree.Open(string(spec.ID))
	}
	var st runtime.Stats
	if err == nil {
		st, err = statsOf(group)
	}
	if errors.Is(err, fs.ErrNotExist) { // its removal had begun
		return e, runtime.Stats{}, nil
	}
	if err != nil {
		return e, runtime.Stats{}, fmt.Errorf("read what is left of sandbox %s: %w", spec.ID, err)
	}
	// One that nobody saw came after the last look at a sandbox that was watched all along.
	e.OOM = st.OOMKills > rec.OOMKills || overMemory(rec.OOMKills, rec.OOMAt, time.Time{}, at)
	if !e.OOM {
		refused, err := group.PidsRefused()
		e.Pids = err == nil && refused > 0
	}
	return e, st, nil
}

// watchHigh reports that memory which cannot be taken back came near the limit. File
// pages do not count: the kernel drops them first.
func (s *sandbox) watchHigh(ctx context.Context) {
	high := memoryHigh(limits(s.spec.Resources).Memory)
	n, err := s.group.NotifyHigh(high)
	s.notified(ctx, n, err, func() {
		was := false
		s.eachTick(ctx, highPoll, func() (more bool) {
			use, err := s.group.Unreclaimable()
			if err != nil {
				return false
			}
			is := use >= high
			if is {
				s.mu.Lock()
				s.highAt = time.Now()
				s.mu.Unlock()
			}
			if is && !was {
				s.events.put(runtime.Event{Kind: runtime.KindMemoryHigh})
			}
			was = is
			u, err := s.group.Usage()
			return err == nil && u.Memory >= high
		})
	})
}

// eachTick calls look now and then at every tick, while it wants more.
func (s *sandbox) eachTick(ctx context.Context, every time.Duration, look func() (more bool)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for look() {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
