package guestlink

import (
	"sync"
	"time"
)

// deadline is a deadline that goroutines can wait for. Its zero value never passes.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	moves int           // how often it was set: tells a timer that it is too late
	ch    chan struct{} // closed when it passes; nil until somebody asks
}

// set moves the deadline to t; the zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moves++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.ch == nil || isClosed(d.ch) {
		// Whoever waits on the old channel has been woken and asks again.
		d.ch = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	if left := time.Until(t); left > 0 {
		move := d.moves
		d.timer = time.AfterFunc(left, func() { d.pass(move) })
	} else {
		close(d.ch)
	}
}

// pass lets the deadline of the given move pass, unless it was moved again.
func (d *deadline) pass(move int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moves == move {
		close(d.ch)
	}
}

// wait returns a channel that is closed when the deadline passes.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
	}
	return d.ch
}

func (d *deadline) passed() bool { return isClosed(d.wait()) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
