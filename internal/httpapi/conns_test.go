package httpapi

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Who holds connections without using them does not keep others out.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	const most = 4
	entered, leave := make(chan struct{}), make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- struct{}{}
			<-leave
		}
	}))
	conns := newConnections(most)
	idle := make(chan struct{}, 4*most)
	s.Config.ConnState = func(c net.Conn, st http.ConnState) {
		conns.state(c, st)
		if st == http.StateIdle {
			idle <- struct{}{}
		}
	}
	s.Start()
	defer s.Close()
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, bufio.NewReader(c)
	}
	ask := func(c net.Conn, r *bufio.Reader, path string) error {
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
	busy, busyReader := dial()
	answered := make(chan error, 1)
	go func() { answered <- ask(busy, busyReader, "/slow") }()
	<-entered
	first, firstReader := dial()
	for i := range 3 * most {
		c, r := first, firstReader
		if i > 0 {
			c, r = dial()
		}
		if err := ask(c, r, "/"); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		<-idle // a caller has its answer before that
	}
	if err := ask(first, firstReader, "/"); err == nil {
		t.Error("the connection that was idle for longest is still there")
	}
	close(leave)
	if err := <-answered; err != nil {
		t.Errorf("the one that was in use: %v", err)
	}
	// With all of them in use there is no room.
	full := newConnections(1)
	a, b := net.Pipe()
	if full.note(a, http.StateNew) != nil || full.note(a, http.StateActive) != nil {
		t.Error("there was room for one")
	}
	if got := full.note(b, http.StateNew); got != b {
		t.Errorf("for the second %v goes, want itself", got)
	}
	full.note(b, http.StateClosed)
	full.note(a, http.StateHijacked)
	if len(full.all) != 0 || full.idle.Len() != 0 {
		t.Errorf("left: %v", full.all)
	}
}

func TestServerBoundsItsConnections(t *testing.T) {
	if Server(t.Context(), http.NotFoundHandler(), slog.New(slog.DiscardHandler)).ConnState == nil || maxConnections() < 1 {
		t.Error("it does not")
	}
}
