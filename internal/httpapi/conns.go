package httpapi

import (
	"container/list"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sys/unix"
)

// maxConnections is how many connections of callers are kept: half of the descriptors that
// this process may have, so that sandboxes get theirs whatever callers do.
func maxConnections() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 512
	}
	return int(min(r.Cur/2, 100_000))
}

// connections bounds the connections of a server. When there are too many, the one that
// has been idle for longest goes; only if none is idle, the newest.
type connections struct {
	max int

	mu   sync.Mutex
	all  map[net.Conn]*list.Element // nil: it is not idle
	idle *list.List                 // of net.Conn, idle for longest first
}

func newConnections(max int) *connections {
	return &connections{max: max, all: make(map[net.Conn]*list.Element), idle: list.New()}
}

// state is told of each connection's state, as [http.Server.ConnState] is.
func (c *connections) state(conn net.Conn, s http.ConnState) {
	if victim := c.note(conn, s); victim != nil {
		_ = victim.Close() // the server notices, and tells us
	}
}

// note keeps count, and returns the connection that has to go for another.
func (c *connections) note(conn net.Conn, s http.ConnState) (victim net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.all[conn]; e != nil {
		c.idle.Remove(e)
		c.all[conn] = nil
	}
	switch s {
	case http.StateNew:
		c.all[conn] = nil
		if len(c.all) <= c.max {
			return nil
		}
		if e := c.idle.Front(); e != nil {
			victim, _ = e.Value.(net.Conn)
			c.idle.Remove(e)
			delete(c.all, victim)
			return victim
		}
		delete(c.all, conn)
		return conn
	case http.StateIdle:
		if _, known := c.all[conn]; known {
			c.all[conn] = c.idle.PushBack(conn)
		}
	case http.StateActive: // it is not idle any more, which is noted above
	case http.StateHijacked, http.StateClosed:
		delete(c.all, conn)
	}
	return nil
}
