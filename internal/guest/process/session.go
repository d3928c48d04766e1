package process

import (
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/procfs"
)

// session is a shell session: a bash that reads commands from a pipe of the agent's, one
// after the other, and that lives on between them.
//
// Its host is an Exec of its own, in no list: the shell's tree is everything that any of
// its commands started, and owner says which command a process of it is to be counted
// as. A command of the session has no leader and no control group; it ends when the shell
// reports that (driver.go), or ends itself.
type session struct {
	name  string
	table *Table
	host  *Exec // set before up is closed
	dir   string
	uid   uint32
	gid   uint32
	user  string
	up    chan struct{} // closed once the shell was started
	began time.Time
	text  pipeEnds // through which the shell reads the texts of its commands; set before up is closed
	// untold is what the shell is told before its first command, and told is closed once it
	// was told what came last. Whoever's command runs may change them.
	untold string
	told   chan struct{}

	mu       sync.Mutex
	running  *Exec  // the command that runs, or is about to
	nonce    string // that its report must begin with
	begun    bool   // the shell has come to it
	opening  *os.File
	ended    chan exit
	last     int    // exit status of the last command
	cwd      string // as the last report has it
	count    int    // commands so far
	hung     bool
	commands []*Exec // those that may have processes, the running one among them
}

// pipeEnds are both ends of a named pipe, which the agent has open for as long as others are
// to find it there: so nobody's opening of it ever waits.
type pipeEnds struct{ r, w *os.File }

func (p pipeEnds) close() {
	if p.r != nil {
		_ = p.r.Close()
		_ = p.w.Close()
	}
}

func newSession(t *Table, name string, e *Exec) *session {
	told := make(chan struct{})
	close(told)
	return &session{name: name, table: t, running: e, up: make(chan struct{}), told: told, began: time.Now()}
}

func (s *session) isUp() bool {
	select {
	case <-s.up:
		return true
	default:
		return false
	}
}

// over reports whether the shell has ended.
func (s *session) over() bool {
	if !s.isUp() {
		return false
	}
	select {
	case <-s.host.done:
		return true
	default:
		return false
	}
}

// why says how a session ended that is over.
func (s *session) why() string {
	s.mu.Lock()
	hung := s.hung
	s.mu.Unlock()
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	switch end := s.host.result.End; {
	case hung:
		return shellHung
	case end == hutch.ExecExit || end == hutch.ExecPidsLimit:
		return shellExited
	}
	return shellKilled
}

// enter makes e the command that runs, in a session that has been started.
func (s *session) enter(e *Exec) error {
	switch {
	case !s.isUp():
		return hutch.ErrShellBusy
	case e.spec.Cwd != "":
		return hutch.FieldErrorf("cwd", "is for the start of a shell session, and %q runs already: use cd", s.name)
	case len(e.spec.Env) > 0:
		return hutch.FieldErrorf("env", "is for the start of a shell session, and %q runs already: use export", s.name)
	}
	if e.spec.User != "" {
		u, err := s.table.cfg.Accounts.Lookup(e.spec.User)
		if err != nil {
			return err
		}
		if u.UID != s.uid || u.GID != s.gid {
			return hutch.FieldErrorf("user", "the shell session %q runs as %s", s.name, s.user)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return hutch.ErrShellBusy
	}
	s.running = e
	return nil
}

// start starts the shell for its first command, which says where and as whom.
func (s *session) start(e *Exec) error {
	t := s.table
	s.host = newExec(t, hutch.ExecID("e"+strings.ToLower(rand.Text()[:20])), hutch.ExecSpec{
		Argv: slices.Clone(shellCommand), Cwd: e.spec.Cwd, Env: e.spec.Env, User: e.spec.User,
		Background: true, Grace: hutch.DefaultGrace, MaxOutputBytes: hutch.MinOutputBytes,
	}, e.settings)
	s.host.hosts = s
	p, err := t.newPlan(s.host.spec, e.settings)
	if err != nil {
		return err
	}
	s.uid, s.gid, s.user = p.user.UID, p.user.GID, p.user.Name
	s.dir = t.cfg.ShellDir + "/" + string(s.host.id)
	// Nobody but root makes anything in it, or sees what is in it; its user opens what it
	// is told of.
	if err := os.MkdirAll(s.dir, 0o711); err != nil {
		return noPipes(err)
	}
	var status pipeEnds
	s.text.r, s.text.w, err = s.fifo("text")
	if err == nil {
		status.r, status.w, err = s.fifo("status")
	}
	if err != nil {
		s.end()
		return noPipes(err)
	}
	if err := s.host.start(); err != nil {
		status.close()
		s.end()
		return err
	}
	close(s.host.ready)
	s.cwd = s.host.cwd
	close(s.up)
	if s.host.pid == 0 { // no bash: it has ended
		status.close()
		s.end()
		return nil
	}
	t.mu.Lock()
	t.lingering[s.host.id] = s.host // where processes are looked for, until none is left
	t.mu.Unlock()
	go s.serve(status)
	s.untold = prelude(s.dir)
	return nil
}

func noPipes(err error) error {
	return hutch.Wrap(hutch.CodeUnavailable, err, "the sandbox has no room for the pipes of a shell session")
}

// end removes the session's pipes. What is being told is told no further.
func (s *session) end() {
	s.text.close()
	_ = os.RemoveAll(s.dir) // what cannot be removed is inside only
}

// tell has the shell run text with those redirections, and after it a line. It does not
// wait: a shell that does not read is a hung one.
//
// A shell reads what it is typed byte by byte, with a system call for each, and what comes
// from a named pipe in one piece: so it is typed no more than that it should look there. It
// is told how much that is. The end of the pipe could not tell it: in gVisor's kernel a
// writer that waits for a reader, and that a signal interrupts, has been there all the same
// for a reader who comes just then, and who reads the end at once.
func (s *session) tell(text, redirections, after string) {
	read := readNext(len(text))
	if s.untold != "" {
		text, s.untold = s.untold+text, ""
		read = readText(s.dir, strconv.Itoa(len(text)))
	}
	lines := read + `; { eval "$__hutch"; }` + redirections + "\n" + after + "\n"
	before, told := s.told, make(chan struct{})
	s.told = told
	// The command in what came before has ended. If it ended early, some was not read.
	_ = s.text.w.SetWriteDeadline(time.Unix(1, 0))
	go func() {
		defer close(told)
		<-before
		for buf := make([]byte, 4096); tryRead(s.text.r, buf) > 0; {
		}
		_ = s.text.w.SetWriteDeadline(time.Time{})
		// What fails here fails because the shell has ended, which serve sees.
		_, _ = s.host.stdin.pipe.WriteString(lines)
		_, _ = s.text.w.WriteString(text)
	}()
}

// fifo makes a named pipe for the session's user and opens both of its ends.
func (s *session) fifo(name string) (r, w *os.File, err error) {
	path := s.dir + "/" + name
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	if err := unix.Chown(path, int(s.uid), int(s.gid)); err != nil {
		return nil, nil, fmt.Errorf("give pipe to its user: %w", err)
	}
	const flags = unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC
	rd, err := unix.Open(path, unix.O_RDONLY|flags, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open pipe: %w", err)
	}
	wr, err := unix.Open(path, unix.O_WRONLY|flags, 0)
	if err != nil {
		unix.Close(rd)
		return nil, nil, fmt.Errorf("open pipe: %w", err)
	}
	_, _ = unix.FcntlInt(uintptr(wr), unix.F_SETPIPE_SZ, pipeSize) // smaller is slower, no more
	return os.NewFile(uintptr(rd), path), os.NewFile(uintptr(wr), path), nil
}

// serve takes the shell's reports until it has ended.
func (s *session) serve(status pipeEnds) {
	defer s.end()
	defer status.close()
	go func() {
		<-s.host.done
		_ = status.r.SetReadDeadline(time.Unix(1, 0))
	}()
	var reports reportBuffer
	buf := make([]byte, 4096)
	for {
		n, err := status.r.Read(buf)
		if err != nil {
			break
		}
		s.take(reports.add(buf[:n]))
	}
	// What it reported right before its end is in the pipe.
	for {
		n := tryRead(status.r, buf)
		if n <= 0 {
			break
		}
		s.take(reports.add(buf[:n]))
	}
	s.finish(exit{status: s.host.waitStatus(), at: time.Now()})
}

// tryRead reads what is there.
func tryRead(f *os.File, buf []byte) (n int) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	if conn.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) }) != nil {
		return 0
	}
	return n
}

// waitStatus is how the leader of an ended command ended, as the kernel says it.
func (e *Exec) waitStatus() syscall.WaitStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.result.Signal != "" && e.result.ExitCode > 128 {
		return syscall.WaitStatus(e.result.ExitCode - 128)
	}
	return syscall.WaitStatus(e.result.ExitCode << 8)
}

// take looks for the end of the running command in reports.
func (s *session) take(reports []report) {
	for _, r := range reports {
		s.mu.Lock()
		if s.running != nil && r.status == begun && r.nonce == string(s.running.id) {
			s.begun = true
			if s.opening != nil {
				_ = s.opening.Close()
			}
		}
		ours := s.running != nil && s.nonce != "" && r.nonce == s.nonce && r.status != begun
		if ours {
			s.last = r.status
			if r.cwd != "" {
				s.cwd = r.cwd
			}
		}
		s.mu.Unlock()
		if ours {
			s.finish(exit{status: syscall.WaitStatus(r.status << 8), at: time.Now()})
		}
	}
}

// finish tells the running command that it has ended. Only the first time counts.
func (s *session) finish(x exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nonce = ""
	if s.ended != nil {
		s.ended <- x // there is room for one
		s.ended = nil
	}
}

// leave makes the session free for the next command, and says where it is now.
func (s *session) leave() (cwd string) {
	over := s.over()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.nonce, s.begun, s.opening, s.ended = nil, "", false, nil, nil
	s.count++
	if over {
		return ""
	}
	return s.cwd
}

func (s *session) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

func (s *session) current() *Exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// members are the commands that may have processes in the session.
func (s *session) members() []*Exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

func (s *session) describe() (hutch.Shell, bool) {
	if !s.isUp() {
		return hutch.Shell{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := hutch.Shell{Name: s.name, PID: s.host.pid, User: s.user, Cwd: s.cwd, Commands: s.count, StartedAt: s.began}
	if s.running != nil {
		d.Exec = s.running.id
	}
	return d, true
}

// owner is the command that a process of the session is counted as: the one it was seen in
// first, the one it was started with the marker of, its parent's, or the one that runs. The
// shell itself is its host's, as is what is there while nothing runs.
func (s *session) owner(p procfs.Process, byPID map[int]*procfs.Process) *Exec {
	commands := s.members()
	for range len(byPID) + 1 {
		if p.PID == s.host.pid {
			break
		}
		for _, e := range commands {
			if e.saw(p) {
				return e
			}
		}
		if e := marked(s.table.cfg.Proc.Env(p.PID, Marker), commands); e != nil {
			return e
		}
		parent := byPID[p.PPID]
		if parent == nil || parent.PID == s.host.pid {
			if e := s.current(); e != nil && slices.Contains(commands, e) {
				return e
			}
			break
		}
		p = *parent
	}
	return s.host
}

// saw reports whether the process has been counted as the command's before.
func (e *Exec) saw(p procfs.Process) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	start, ok := e.seen[p.PID]
	return ok && start == p.Start
}
