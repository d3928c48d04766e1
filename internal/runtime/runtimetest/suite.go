package runtimetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
)

// suite is one check's surroundings.
type suite struct {
	*testing.T
	f Factory
	r runtime.Runtime
}

// ctx bounds one call.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), s.f.Patience)
	s.Cleanup(cancel)
	return ctx
}

// newID returns a name that nothing else on the host has.
func newID[T ~string](kind byte) T {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	b := make([]byte, 20)
	_, _ = rand.Read(b) // never fails
	for i := range b {
		b[i] = alphabet[b[i]%32]
	}
	return T(append([]byte{kind}, b...))
}

// box is a sandbox with a client of its guest.
type box struct {
	s      *suite
	spec   runtime.Spec
	sb     runtime.Sandbox
	client *guestclient.Client
}

// create makes a sandbox that is gone at the end of the check.
func (s *suite) create() *box {
	s.Helper()
	return s.createAs("")
}

// createAs is create with a profile.
func (s *suite) createAs(p hutch.Profile) *box {
	s.Helper()
	b := &box{s: s, spec: s.f.Spec(s.T, newID[hutch.SandboxID]('i'))}
	b.spec.Profile = p
	sb, err := s.r.Create(s.ctx(), b.spec)
	if err != nil {
		s.Fatalf("Create: %v", err)
	}
	b.sb = sb
	b.client = guestclient.New(sb.Handles().Guest)
	s.Cleanup(func() {
		_ = b.client.Close()
		if err := s.r.Sweep(s.ctx(), b.spec.ID); err != nil {
			s.Errorf("Sweep at the end of the check: %v", err)
		}
		if err := sb.Kill(s.ctx()); err != nil {
			s.Errorf("Kill at the end of the check: %v", err)
		}
		s.checkGone(b.spec.ID)
	})
	return b
}

// start makes a sandbox that runs and has been told who it is.
func (s *suite) start() *box {
	s.Helper()
	b := s.create()
	b.boot("")
	if r := b.hello(); r.Restored {
		s.Errorf("a guest that was not restored says it was")
	}
	return b
}

func (b *box) boot(snapshot string) {
	b.s.Helper()
	if err := b.sb.Start(b.s.ctx(), runtime.StartOptions{Snapshot: snapshot}); err != nil {
		b.s.Fatalf("Start: %v", err)
	}
}

func (b *box) hello() guestapi.HelloReply {
	b.s.Helper()
	r, err := b.helloAs(b.spec.Profile)
	if err != nil {
		b.s.Fatalf("Hello: %v", err)
	}
	return r
}

func (b *box) helloAs(p hutch.Profile) (guestapi.HelloReply, error) {
	b.s.Helper()
	seed := make([]byte, 64)
	_, _ = rand.Read(seed)
	return b.client.Hello(b.s.ctx(), guestapi.Hello{
		Profile:  p,
		Protocol: guestapi.ProtocolVersion, Sandbox: b.spec.ID, Epoch: 1, Hostname: b.spec.Hostname,
		Time: time.Now().UnixNano(), Seed: seed,
		CPUs: b.spec.Resources.CPUs(), Pids: b.spec.Resources.Pids, DiskMB: b.spec.Resources.DiskMB,
	})
}

// launch starts a command.
func (b *box) launch(cmd string) hutch.ExecID {
	b.s.Helper()
	id := newID[hutch.ExecID]('e')
	if _, err := b.client.StartExec(b.s.ctx(), startExec(id, cmd)); err != nil {
		b.s.Fatalf("start %q: %v", cmd, err)
	}
	return id
}

func startExec(id hutch.ExecID, cmd string) guestapi.StartExec {
	return guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{Cmd: cmd, Grace: time.Second, MaxOutputBytes: hutch.DefaultOutputBytes}}
}

// run runs a command to its end and returns what it printed and its exit code.
func (b *box) run(cmd string) (stdout string, code int) {
	b.s.Helper()
	id := b.launch(cmd)
	f := b.follow(id, 0)
	var out bytes.Buffer
	for {
		fr, err := f.Next(b.s.ctx())
		if err != nil {
			b.s.Fatalf("follow %q: %v", cmd, err)
		}
		switch fr.Type {
		case guestapi.FrameStdout:
			out.Write(fr.Payload)
		case guestapi.FrameEnd:
			if st := f.Status(); st.Result == nil || st.Result.End != hutch.ExecExit {
				b.s.Fatalf("%q ended with %+v", cmd, st.Result)
			}
			return out.String(), f.Status().Result.ExitCode
		default:
		}
	}
}

func (b *box) follow(id hutch.ExecID, offset int64) *guestclient.Follow {
	b.s.Helper()
	f, err := b.client.Follow(b.s.ctx(), id, guestclient.FollowOptions{Stdout: offset})
	if err != nil {
		b.s.Fatalf("Follow: %v", err)
	}
	b.s.Cleanup(func() { _ = f.Close() })
	return f
}

// checkAlive checks that a command runs inside.
func (b *box) checkAlive() {
	b.s.Helper()
	word := string(newID[hutch.ExecID]('e'))
	if out, code := b.run(b.s.f.Commands.Echo(word)); out != word+"\n" || code != 0 {
		b.s.Fatalf("echo: got %q, code %d", out, code)
	}
}

// checkFile checks what is in the file that the commands write.
func (b *box) checkFile(want string) {
	b.s.Helper()
	c := b.s.f.Commands
	if out, code := b.run(c.Read(c.File)); out != want+"\n" || code != 0 {
		b.s.Errorf("the file holds %q (code %d), want %q", out, code, want)
	}
}

func (b *box) writeFile(text string) {
	b.s.Helper()
	c := b.s.f.Commands
	if _, code := b.run(c.Write(c.File, text)); code != 0 {
		b.s.Fatalf("writing the file failed with code %d", code)
	}
}

// data waits for the next frame of output.
func (s *suite) data(f *guestclient.Follow) {
	s.Helper()
	for {
		fr, err := f.Next(s.ctx())
		if err != nil {
			s.Fatalf("follow: %v", err)
		}
		if fr.Type == guestapi.FrameStdout {
			return
		}
	}
}

// quiet is how long nothing must come for it to count as nothing. Tick is five times
// as fast at least.
const quiet = 500 * time.Millisecond

// checkQuiet checks that output stops: what was on its way may still come.
func (s *suite) checkQuiet(f *guestclient.Follow) {
	s.Helper()
	for range 50 {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		_, err := f.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil {
			s.Fatalf("follow: %v", err)
		}
	}
	s.Error("the guest goes on ticking")
}

// checkpoint saves b into a new directory. The check is skipped if the runtime cannot.
func (b *box) checkpoint(leaveRunning bool) (dir string) {
	b.s.Helper()
	dir = b.s.TempDir()
	err := b.sb.Checkpoint(b.s.ctx(), dir, leaveRunning)
	if errors.Is(err, hutch.ErrUnsupported) {
		b.s.Skipf("this runtime refuses checkpoints: %v", err)
	}
	if err != nil {
		b.s.Fatalf("Checkpoint: %v", err)
	}
	return dir
}

// checkGone checks that nothing of id is left on the host.
func (s *suite) checkGone(id hutch.SandboxID) {
	s.Helper()
	if s.listed(id) {
		s.Errorf("something of %s is left on the host", id)
	}
}

func (s *suite) listed(id hutch.SandboxID) bool {
	s.Helper()
	ids, err := s.r.List(s.ctx())
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	return slices.Contains(ids, id)
}

// checkRefused checks that everything a dead sandbox must refuse is refused.
func (b *box) checkRefused() {
	b.s.Helper()
	calls := map[string]func() error{
		"Start":      func() error { return b.sb.Start(b.s.ctx(), runtime.StartOptions{}) },
		"Pause":      func() error { return b.sb.Pause(b.s.ctx()) },
		"Resume":     func() error { return b.sb.Resume(b.s.ctx()) },
		"Checkpoint": func() error { return b.sb.Checkpoint(b.s.ctx(), b.s.TempDir(), true) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, hutch.ErrSandboxGone) {
			b.s.Errorf("%s after the end: got %v, want ErrSandboxGone", name, err)
		}
	}
}

// ended reads events up to the channel's end and checks that the last is the exit.
func (s *suite) ended(events <-chan runtime.Event) (last runtime.Event) {
	s.Helper()
	exits := 0
	ctx := s.ctx()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				if exits != 1 || last.Kind != runtime.KindExited {
					s.Errorf("%d exits, the last event was %+v: want one exit, last", exits, last)
				}
				return last
			}
			last = e
			if e.Kind == runtime.KindExited {
				exits++
			}
		case <-ctx.Done():
			s.Fatal("the events do not end")
		}
	}
}

// duplicate returns duplicates of handles, as a keeper holds them.
func (s *suite) duplicate(h runtime.Handles) runtime.Handles {
	s.Helper()
	dup := func(f *os.File) *os.File {
		rc, err := f.SyscallConn()
		if err != nil {
			s.Fatalf("duplicate a handle: %v", err)
		}
		fd := -1
		var opErr error
		err = rc.Control(func(n uintptr) { fd, opErr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) })
		if err = errors.Join(err, opErr); err != nil {
			s.Fatalf("duplicate a handle: %v", err)
		}
		return os.NewFile(uintptr(fd), f.Name())
	}
	out := runtime.Handles{Guest: dup(h.Guest), Link: dup(h.Link), LinkKind: h.LinkKind}
	for _, p := range h.Procs {
		out.Procs = append(out.Procs, dup(p))
	}
	s.Cleanup(func() { closeHandles(out) })
	return out
}

func closeHandles(h runtime.Handles) {
	for _, f := range append(slices.Clone(h.Procs), h.Guest, h.Link) {
		_ = f.Close() // may have been given away and closed
	}
}

// signalProc sends a signal to the process behind a pidfd.
func (s *suite) signalProc(pidfd *os.File, sig unix.Signal) error {
	s.Helper()
	rc, err := pidfd.SyscallConn()
	if err != nil {
		s.Fatalf("pidfd: %v", err)
	}
	var opErr error
	if err := rc.Control(func(fd uintptr) { opErr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		s.Fatalf("pidfd: %v", err)
	}
	return opErr
}

// checkProcsGone checks that the processes behind pidfds have exited.
func (s *suite) checkProcsGone(procs []*os.File) {
	s.Helper()
	for i, p := range procs {
		if !s.exited(p, 0) {
			s.Errorf("process %d of %d is still there", i+1, len(procs))
		}
	}
}

// exited waits for up to d for the process behind a pidfd to exit.
func (s *suite) exited(pidfd *os.File, d time.Duration) bool {
	s.Helper()
	rc, err := pidfd.SyscallConn()
	if err != nil {
		s.Fatalf("pidfd: %v", err)
	}
	gone := false
	err = rc.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for end := time.Now().Add(d); ; {
			n, err := unix.Poll(p, max(0, int(time.Until(end).Milliseconds())))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			gone = err == nil && n == 1
			return
		}
	})
	if err != nil {
		s.Fatalf("pidfd: %v", err)
	}
	return gone
}
