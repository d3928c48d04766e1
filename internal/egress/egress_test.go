package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/link"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/pidfd"
)

// roleServe makes the test binary a gateway; the build follows the directory.
const roleServe = "egress-serve"

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == roleServe {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		if err := Serve(context.Background(), Config{Dir: os.Args[2], Build: os.Args[3], Log: log}); err != nil {
			log.Error("egress", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startGateway connects to the gateway of dir, starting it if it has to. It is gone
// when the test ends.
func startGateway(t *testing.T, dir, build string) *Client {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), dir, build, exe, roleServe, dir, build)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, logName))
		t.Fatalf("%v\n%s", err, log)
	}
	proc, err := pidfd.Open(c.Hello().PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		_ = pidfd.Signal(proc, unix.SIGKILL)
		if err := pidfd.Wait(context.Background(), proc); err != nil {
			t.Error(err)
		}
		_ = proc.Close()
	})
	return c
}

// socketPair returns the two ends of a link.
func socketPair(t testing.TB) (host, guest *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	host, guest = os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	t.Cleanup(func() { _ = host.Close(); _ = guest.Close() })
	return host, guest
}

func attach(t *testing.T, c *Client, id hutch.SandboxID, e hutch.Epoch, f *os.File) {
	t.Helper()
	if err := c.Attach(t.Context(), id, e, runtime.LinkPackets, f); err != nil {
		t.Fatal(err)
	}
}

// udpTo is a datagram from a guest, without checksums.
func udpTo(dst string, port uint16) []byte {
	b := append([]byte{
		0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 200, 0, 2,
	}, netip.MustParseAddr(dst).AsSlice()...)
	return append(b, 4, 0, byte(port>>8), byte(port), 0, 9, 0, 0, 'q')
}

// prompt is how soon a refusal comes, on a machine whose CPUs are all taken too: a program
// that is not refused waits for longer before it gives up.
const prompt = 5 * time.Second

// try sends a datagram and waits for its refusal: an ICMP error with the code "port
// unreachable". It returns how long that took.
func try(t *testing.T, guest *os.File, dst string) time.Duration {
	t.Helper()
	began := time.Now()
	_ = guest.SetDeadline(began.Add(10 * time.Second))
	if _, err := guest.Write(udpTo(dst, 53)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1500)
	n, err := guest.Read(b)
	if err != nil {
		t.Fatalf("no answer to a datagram to %s: %v", dst, err)
	}
	if n < 28 || b[9] != 1 || b[20] != 3 || b[21] != 3 {
		t.Fatalf("answer to a datagram to %s: %x", dst, b[:n])
	}
	return time.Since(began)
}

// wantNothing checks that no packet comes. A deadline that is over would not look: this one
// gives a packet that is under way the time to arrive.
func wantNothing(t *testing.T, guest *os.File) {
	t.Helper()
	if err := guest.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := guest.Read(make([]byte, 1500)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a packet of %d bytes came, %v; want none", n, err)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

func TestEverythingIsRefusedAndCounted(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host, guest := socketPair(t)
	attach(t, c, "i1", 3, host)
	_ = host.Close() // the gateway has its own
	for _, dst := range []string{"8.8.8.8", "8.8.8.8", "10.200.0.1"} {
		if took := try(t, guest, dst); took > prompt {
			t.Errorf("%s refused after %v", dst, took)
		}
	}
	s, err := c.Stats(t.Context(), "i1")
	if err != nil {
		t.Fatal(err)
	}
	if s.Epoch != 3 || s.Refused != (Counts{UDP: 3}) || s.Link.PacketsIn != 3 || !s.Ended.IsZero() {
		t.Errorf("stats: %+v", s)
	}
	if len(s.Recent) != 2 || s.Recent[0].Dst.String() != "10.200.0.1:53" || s.Recent[1].Count != 2 || s.Recent[1].Proto != link.UDP {
		t.Errorf("recent: %+v", s.Recent)
	}
	all, err := c.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "i1" || all[0].Recent != nil || all[0].Refused.UDP != 3 {
		t.Errorf("list: %+v, %v", all, err)
	}
}

func TestSandboxesAreApart(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host1, guest1 := socketPair(t)
	host2, guest2 := socketPair(t)
	attach(t, c, "i1", 1, host1)
	attach(t, c, "i2", 1, host2)
	try(t, guest1, "10.200.0.3")
	eventually(t, "the answer to who asked is counted", func() bool {
		s, err := c.Stats(t.Context(), "i1")
		return err == nil && s.Link.PacketsOut == 1
	})
	wantNothing(t, guest2)
	if s, err := c.Stats(t.Context(), "i2"); err != nil || s.Link.PacketsOut != 0 {
		t.Errorf("neighbour: %+v, %v; want nothing sent to it", s, err)
	}
}

func TestLinkEndsWithItsSandbox(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host, guest := socketPair(t)
	attach(t, c, "i1", 1, host)
	try(t, guest, "8.8.8.8")
	_ = guest.Close()
	var s Stats
	eventually(t, "its end is noted", func() bool {
		var err error
		s, err = c.Stats(t.Context(), "i1")
		return err == nil && !s.Ended.IsZero()
	})
	if s.Refused.UDP != 1 {
		t.Errorf("what was counted is gone: %+v", s)
	}
	for range 2 {
		if err := c.Detach(t.Context(), "i1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Stats(t.Context(), "i1"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("after detach: got %v, want ErrNotFound", err)
	}
}

// While nobody serves a link nothing leaves, and a new gateway serves it on.
func TestKillOfTheGateway(t *testing.T) {
	dir := t.TempDir()
	c := startGateway(t, dir, "")
	host, guest := socketPair(t)
	attach(t, c, "i1", 1, host)
	try(t, guest, "8.8.8.8")
	for range 2 {
		if err := unix.Kill(c.Hello().PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if err := c.Attach(t.Context(), "i1", 1, runtime.LinkPackets, host); !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("attach to a dead gateway: got %v, want ErrUnavailable", err)
		}
		// What is sent meanwhile waits.
		if _, err := guest.Write(udpTo("9.9.9.9", 53)); err != nil {
			t.Fatal(err)
		}
		c = startGateway(t, dir, "")
		attach(t, c, "i1", 1, host)
		_ = guest.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := guest.Read(make([]byte, 1500)); err != nil {
			t.Fatalf("what was sent meanwhile is not answered: %v", err)
		}
		try(t, guest, "8.8.8.8")
	}
}

func TestEpochs(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host, guest := socketPair(t)
	attach(t, c, "i1", 4, host)
	try(t, guest, "8.8.8.8")
	if err := c.Attach(t.Context(), "i1", 3, runtime.LinkPackets, host); !errors.Is(err, hutch.ErrStale) {
		t.Errorf("older epoch: got %v, want ErrStale", err)
	}
	attach(t, c, "i1", 4, host) // again: the same run
	try(t, guest, "8.8.8.8")
	if s, err := c.Stats(t.Context(), "i1"); err != nil || s.Refused.UDP != 2 || len(s.Recent) != 1 {
		t.Errorf("same epoch: %+v, %v; want its counts kept", s, err)
	}
	attach(t, c, "i1", 5, host)
	try(t, guest, "8.8.8.8")
	if s, err := c.Stats(t.Context(), "i1"); err != nil || s.Refused.UDP != 1 || s.Epoch != 5 {
		t.Errorf("newer epoch: %+v, %v; want new counts", s, err)
	}
}

func TestAttachIsChecked(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host, _ := socketPair(t)
	if err := c.Attach(t.Context(), "i1", 1, runtime.LinkEthernet, host); !errors.Is(err, hutch.ErrUnsupported) {
		t.Errorf("a tap: got %v, want ErrUnsupported", err)
	}
	if err := c.Attach(t.Context(), "../i1", 1, runtime.LinkPackets, host); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("a path as name: got %v, want ErrBadRequest", err)
	}
	if err := c.call(t.Context(), opAttach, attachRequest{Name: "i1", Kind: runtime.LinkPackets}, nil); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("no file: got %v, want ErrBadRequest", err)
	}
	if err := c.call(t.Context(), "admit", nil, nil); !errors.Is(err, hutch.ErrUnsupported) {
		t.Errorf("unknown operation: got %v, want ErrUnsupported", err)
	}
	if all, err := c.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("list: %+v, %v", all, err)
	}
}

func TestStartReplacesAnotherBuild(t *testing.T) {
	dir := t.TempDir()
	old := startGateway(t, dir, "one")
	same := startGateway(t, dir, "one")
	if same.Hello().PID != old.Hello().PID {
		t.Error("a gateway of the same build was replaced")
	}
	next := startGateway(t, dir, "two")
	<-old.Done()
	if h := next.Hello(); h.Build != "two" || h.PID == old.Hello().PID {
		t.Errorf("new gateway: %+v", h)
	}
	if err := Serve(t.Context(), Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, daemon.ErrRunning) {
		t.Errorf("second gateway: got %v, want ErrRunning", err)
	}
}

func TestListComesInPages(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	const n = 2*pageSize + 3
	for i := range n {
		host, _ := socketPair(t)
		attach(t, c, hutch.SandboxID(fmt.Sprintf("i%04d", i)), 1, host)
	}
	all, err := c.List(t.Context())
	if err != nil || len(all) != n {
		t.Fatalf("%d sandboxes, %v; want %d", len(all), err, n)
	}
	for i, s := range all {
		if want := hutch.SandboxID(fmt.Sprintf("i%04d", i)); s.Name != want {
			t.Fatalf("sandbox %d is %s", i, s.Name)
		}
	}
}

// A hostile guest neither ends the gateway nor makes it grow, and its neighbour is
// served on.
func TestHostileGuest(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host1, hostile := socketPair(t)
	host2, neighbour := socketPair(t)
	attach(t, c, "hostile", 1, host1)
	attach(t, c, "neighbour", 1, host2)
	try(t, neighbour, "8.8.8.8")
	before := rss(t, c.Hello().PID)

	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	_ = hostile.SetDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 65535)
	for i := range 5000 {
		p := b[:rng.IntN(200)]
		if i%50 == 0 {
			p = b[:rng.IntN(len(b))]
		}
		for j := range min(len(p), 100) {
			p[j] = byte(rng.Uint32())
		}
		if i%2 == 0 && len(p) > 28 { // likely to get further in
			copy(p, udpTo("8.8.8.8", uint16(i))[:20])
			p[2], p[3], p[9] = byte(len(p)>>8), byte(len(p)), []byte{6, 17, 1, 6}[rng.IntN(4)]
			p[16+rng.IntN(4)] = byte(rng.Uint32())
		}
		if len(p) == 0 {
			continue // not a packet for Write
		}
		if _, err := hostile.Write(p); err != nil {
			t.Fatalf("packet %d, seed %d: %v", i, seed, err)
		}
		if i%500 == 0 {
			if took := try(t, neighbour, "8.8.8.8"); took > prompt {
				t.Errorf("neighbour waited %v, seed %d", took, seed)
			}
		}
	}
	s, err := c.Stats(t.Context(), "hostile")
	if err != nil || !s.Ended.IsZero() || len(s.Recent) > maxRecent {
		t.Fatalf("seed %d: %+v, %v", seed, s, err)
	}
	if grown := rss(t, c.Hello().PID) - before; grown > 32<<10 {
		t.Errorf("the gateway grew by %d KiB, seed %d", grown, seed)
	}
}

// What the process costs with as many links as a large host has.
func TestFootprint(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	before := rss(t, c.Hello().PID)
	const n = 500
	hosts := make([]*os.File, n)
	guests := make([]*os.File, n)
	for i := range hosts {
		hosts[i], guests[i] = socketPair(t)
	}
	began := time.Now()
	for i, f := range hosts {
		attach(t, c, hutch.SandboxID(fmt.Sprint("i", i)), 1, f)
	}
	each := time.Since(began) / n
	var slowest, total time.Duration
	for _, g := range guests {
		took := try(t, g, "8.8.8.8")
		slowest, total = max(slowest, took), total+took
	}
	after := rss(t, c.Hello().PID)
	t.Logf("%d links: %v an attach, RSS %d KiB (empty: %d), a refusal %v (slowest %v)", n, each, after, before, total/n, slowest)
	if perLink := (after - before) / n; perLink > 512 {
		t.Errorf("a link takes %d KiB", perLink)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.Hello().PID))
	if err != nil || len(tasks) > 40 {
		t.Errorf("%d threads, %v", len(tasks), err)
	}
}

// rss is a process's resident memory in KiB.
func rss(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize() / 1024
}
