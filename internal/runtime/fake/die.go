package fake

import (
	"net"
	"net/http"
)

// lastWords keeps back what services say when their machine has died: that they were cut
// off, say, or that all is well.
type lastWords struct {
	http.ResponseWriter
	g *Guest
}

func (l lastWords) WriteHeader(status int) {
	if !l.g.isDead() {
		l.ResponseWriter.WriteHeader(status)
	}
}

func (l lastWords) Write(b []byte) (int, error) {
	if l.g.isDead() {
		return 0, net.ErrClosed
	}
	return l.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (l lastWords) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// mustLive breaks off the answer of a guest whose machine has died: a machine that is gone
// says nothing, not even that it is.
func (g *Guest) mustLive() {
	if g.isDead() {
		panic(http.ErrAbortHandler)
	}
}

func (g *Guest) isDead() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dead
}
