package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/guesttest"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestlink"
)

func TestMain(m *testing.M) {
	nested, err := guesttest.Enter()
	if err == nil && nested != nil {
		err = run(time.Now())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nested agent:", err)
		os.Exit(1)
	}
	if nested == nil {
		os.Exit(m.Run())
	}
}

// The program as a runtime starts it: the first process, with the stream to the node on its
// standard input and nothing else.
func TestFirstProcess(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.NewFile(uintptr(fds[1]), "guest")
	guesttest.Nested(t, guesttest.Nesting{Cgroup: true}, stdin)
	stdin.Close()
	host, err := guestlink.NewHost(os.NewFile(uintptr(fds[0]), "host"))
	if err != nil {
		t.Fatal(err)
	}
	link := guestlink.NewTransport(host)
	t.Cleanup(func() { _ = link.Close() })
	c := &guesttest.Client{HTTP: &http.Client{Transport: link}}

	var r guestapi.HelloReply
	if err := c.Call(t.Context(), "POST", guestapi.PathHello, guesttest.Hello(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Version != version || r.BootNS <= 0 {
		t.Errorf("reply %+v", r)
	}
	t.Run("inside", func(t *testing.T) {
		res := c.Run(t, hutch.ExecSpec{Cmd: "grep -h ^0:: /proc/1/cgroup /proc/self/cgroup; cat /proc/$$/oom_score_adj; umask; ls -d /proc/1/root/dev/pts/ptmx; df /dev/shm | tail -1 | cut -d' ' -f1"})
		want := "0::/../../agent\n0::/\n0\n0022\n/proc/1/root/dev/pts/ptmx\n"
		if got := string(res.Stdout.Head); !strings.HasPrefix(got, want) {
			t.Errorf("inside: %q %q, want %q", got, res.Stderr.Head, want)
		}
	})
	t.Run("stdin over the link", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "wc -c", StdinOpen: true})
		if _, err := c.Stdin(t.Context(), s.ID, 0, strings.NewReader(strings.Repeat("x", 3<<20)), true); err != nil {
			t.Fatal(err)
		}
		if out := strings.TrimSpace(string(c.End(t, s.ID).Stdout.Head)); out != fmt.Sprint(3<<20) {
			t.Errorf("it read %s bytes", out)
		}
	})
}
