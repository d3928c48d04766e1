package gvisor

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/gvisor/gen"
)

// What the sandbox sends arrives on the link as bare IP packets with their true
// destination.
func TestLinkCarriesPackets(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	h := s.Handles()
	if h.LinkKind != runtime.LinkPackets {
		t.Fatalf("kind of link: %s", h.LinkKind)
	}
	g.spawn(t, `exec python3 -c "
import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.sendto(b'hello',('192.0.2.7',4242))"`)
	if err := h.Link.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, linkMTU)
	for {
		n, err := h.Link.Read(buf)
		if err != nil {
			t.Fatalf("read from the link: %v", err)
		}
		p := buf[:n]
		if len(p) < 28 || p[0]>>4 != 4 || p[9] != 17 { // IPv4, UDP
			continue
		}
		src, dst := net.IP(p[12:16]), net.IP(p[16:20])
		port, data := binary.BigEndian.Uint16(p[22:]), string(p[28:])
		if !src.Equal(linkAddr) || dst.String() != "192.0.2.7" || port != 4242 || data != "hello" {
			t.Errorf("packet from %s to %s:%d: %q", src, dst, port, data)
		}
		return
	}
}

// Loopback must work without anything at the other end of the link.
func TestLoopback(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierMemory))
	got := g.sh(t, `exec python3 -c "
import socket
l=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(l.getsockname()); a,_=l.accept()
c.sendall(b'x'); print(a.recv(1))"`)
	if got != "b'x'" {
		t.Errorf("over loopback: %s", got)
	}
}

// Whatever the first process writes to its output, it fills no disk and is never
// blocked, and the sandbox is not ended for it.
func TestConsoleIsBounded(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	g.sh(t, `dd if=/dev/zero of=/proc/1/fd/1 bs=64k count=100 2>&1 | tail -1; dd if=/dev/zero of=/proc/1/fd/2 bs=1 count=10 2>&1 | tail -1`)
	g.ping(t)
	entries, err := os.ReadDir(s.r.boxDir(s.id))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if fi.Size() > 64<<10 {
			t.Errorf("%s has grown to %d bytes", e.Name(), fi.Size())
		}
	}
}

// The process that a hostile program would have to take over has no rights.
func TestSentryIsConfined(t *testing.T) {
	r := newRuntime(t)
	s, _ := start(t, r, newSpec(hutch.TierDisk))
	status := func(pid int) map[string]string {
		t.Helper()
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]string{}
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(line, ":")
			m[k] = strings.Join(strings.Fields(v), " ")
		}
		return m
	}
	pids, err := s.group.Procs()
	if err != nil || len(pids) < 4 {
		t.Fatalf("processes: %v, %v", pids, err)
	}
	for _, pid := range pids {
		st := status(pid)
		if st["Seccomp"] != "2" {
			t.Errorf("process %d runs without a filter: seccomp %s", pid, st["Seccomp"])
		}
		if pid == s.rec.Gofer.PID {
			continue // has the rights to open files, in an empty root of its own
		}
		if st["Uid"] != "65534 65534 65534 65534" || st["CapEff"] != "0000000000000000" || st["CapPrm"] != "0000000000000000" {
			t.Errorf("process %d has uid %s, capabilities %s of %s", pid, st["Uid"], st["CapEff"], st["CapPrm"])
		}
	}
	for _, c := range []struct {
		what string
		pid  int
		may  []string
	}{{"the sentry", s.rec.Sentry.PID, []string{"etc/localtime"}}, {"the gofer", s.rec.Gofer.PID, nil}} {
		seen := 0
		err := fs.WalkDir(os.DirFS(fmt.Sprintf("/proc/%d/root", c.pid)), ".", func(path string, d fs.DirEntry, err error) error {
			if path == "proc" {
				return fs.SkipDir
			}
			if seen++; err == nil && !d.IsDir() && !slices.Contains(c.may, path) {
				t.Errorf("%s has %s in its root", c.what, path)
			}
			return err
		})
		if err != nil || seen < 2 || seen > 10 {
			t.Errorf("the root of %s: %d entries, %v", c.what, seen, err)
		}
	}
	for _, ns := range []string{"net", "mnt", "pid", "user", "ipc", "uts"} {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", s.rec.Sentry.PID, ns)); err != nil || got == own {
			t.Errorf("the sentry's %s namespace is the host's: %s, %v", ns, got, err)
		}
	}
}

// The stamp decides whether the seccomp programs are used and which snapshots fit.
func TestExeIsStamped(t *testing.T) {
	newRuntime(t)
	out, err := exec.CommandContext(t.Context(), exeFile, RunscCommand, "--version").Output()
	if want := "runsc version " + gen.GvisorVersion; err != nil || !strings.HasPrefix(string(out), want+"\n") {
		t.Errorf("%s says %q, %v; want %q: run `make build`", exeFile, out, err, want)
	}
}
