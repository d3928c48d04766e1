package process

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/output"
	"hutch.dev/hutch/internal/guest/procfs"
)

// shellCommand is how a session's shell is started: without anybody's start files, reading
// commands from its standard input, which is the agent's pipe and no terminal. With -T a
// trap on DEBUG that the driver sets holds in functions too.
var shellCommand = []string{"/bin/bash", "--noprofile", "--norc", "-T", "-s"}

// abortSignal makes the shell give up the command it is at: what is left of it, lists,
// loops and functions, is not run.
const abortSignal = 63

const (
	// reportTime is how long a shell has to report the end of a command after the last
	// process of it was killed. One that does not is hung.
	reportTime = 2 * time.Second
	// abortEvery is how often a shell is told to give up: in between, a command may have
	// gone on where the trap does not hold.
	abortEvery = 100 * time.Millisecond
)

// prelude is what a shell is told first: what begins and ends a command, and how one is
// given up. A report goes through a pipe that is opened for each, so that no program
// inherits it, and nothing of it ever is in a command's output.
//
// A command is given up by a trap on DEBUG that, before every simple command but those of
// the driver, leaves all loops and says by its status that the command is not to be run,
// as it can under extdebug. Nothing after a break is run, so the break itself must fail.
func prelude(dir string) string {
	status := dir + "/status"
	return `
__hutch_next() { ` + readText(dir, `"$1"`) + `; }
__hutch_resume() { if [[ -n ${__hutch_aborted-} ]]; then builtin trap - DEBUG; builtin shopt -u extdebug; __hutch_aborted=; fi; }
__hutch_skip() { case $BASH_COMMAND in *__hutch*|*DEBUG*) builtin return 0;; esac; builtin return 1; }
__hutch_begin() { __hutch_resume; builtin export ` + Marker + `="$1"; builtin printf '%s ` + fmt.Sprint(begun) + ` %s\0' "$1" "$PWD" >` + quote(status) + `; }
__hutch_status() { builtin return "$1"; }
__hutch_end() { builtin local __hutch_st=$?; __hutch_resume; builtin printf '%s %s %s\0' "$1" "$__hutch_st" "$PWD" >` + quote(status) + `; }
builtin trap '__hutch_aborted=1; builtin shopt -s extdebug; builtin trap "__hutch_skip || ! builtin break 1000 2>/dev/null" DEBUG' ` + fmt.Sprint(abortSignal) + `
`
}

// readText makes a shell read the text of a command: so many characters from the pipe that
// it comes through, each of them a byte (asciiQuote). The text is in an array, since those are
// not exported, not even under set -a.
func readText(dir, length string) string {
	return `IFS= builtin read -r -N ` + length + ` '__hutch[0]' <` + quote(dir+"/text") + ` || builtin true`
}

// readNext is short for readText once the prelude was run.
func readNext(length int) string { return fmt.Sprintf("__hutch_next %d", length) }

// quote makes one word of s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// asciiQuote makes one word of s for a bash, of nothing but ASCII: that has as many bytes as
// characters, whatever the shell's locale makes of s.
func asciiQuote(s string) string {
	beyond := func(r rune) bool { return r >= utf8.RuneSelf }
	if !strings.ContainsFunc(s, beyond) {
		return quote(s)
	}
	var b strings.Builder
	b.WriteString("$'")
	for _, c := range []byte(s) {
		switch {
		case c >= utf8.RuneSelf:
			fmt.Fprintf(&b, `\%o`, c)
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteByte(c)
		}
	}
	b.WriteString("'")
	return b.String()
}

// startInShell starts a command in its shell session.
func (e *Exec) startInShell() error {
	s, fresh, err := e.table.enterShell(e)
	if err != nil {
		return err
	}
	owner := e.outputOwner(s.uid, s.gid)
	e.stdout, e.stderr = e.newStream("stdout", owner), e.newStream("stderr", owner)
	e.cwd, e.session = s.host.cwd, s
	if fresh && s.host.pid == 0 {
		r := *s.host.result // there is no shell: nobody changes it any more
		e.complain(r.Detail)
		s.leave()
		e.table.forgetShell(s)
		e.finish(&hutch.ExecResult{End: r.End, ExitCode: r.ExitCode, Detail: r.Detail})
		return nil
	}
	files, err := s.openPipes(e)
	if err != nil {
		files.closeAll()
		s.leave()
		return noPipes(err)
	}
	e.pumps, e.keepers = files.pumps, files.keepers
	if files.stdin != nil {
		e.stdin = newStdin(files.stdin, nil)
	}
	if g := e.measured(); g != nil {
		e.before = g.Usage()
		e.baseline, e.allBefore = e.table.cfg.Cgroups.Refused(), e.table.cfg.Cgroups.CPU()
	}
	s.begin(e, files)
	for _, p := range e.pumps {
		go p.run()
	}
	go e.superviseInShell()
	return nil
}

// shellPipes are the named pipes of a command in a session.
type shellPipes struct {
	in, out, err string   // paths
	stdin        *os.File // nil: /dev/null
	pumps        []*pump
	// keepers are the agent's own ends of the pipes' other side, which keep a pipe from
	// ending before the shell has opened it.
	keepers []*os.File
	opening *os.File // the one to be closed once the shell has opened them all; can be nil
}

func (s *session) openPipes(e *Exec) (files shellPipes, err error) {
	name := string(e.id)
	if e.spec.StdinOpen {
		var r *os.File
		if r, files.stdin, err = s.fifo(name + ".in"); err != nil {
			return files, err
		}
		files.in = files.stdin.Name()
		files.keepers = append(files.keepers, r)
		// The input can be over before the shell has opened it, which would wait for a
		// writer then. This one is there until it has.
		fd, err := unix.Open(files.in, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return files, fmt.Errorf("open pipe: %w", err)
		}
		files.opening = os.NewFile(uintptr(fd), files.in)
		files.keepers = append(files.keepers, files.opening)
	} else {
		files.in = os.DevNull
	}
	for _, out := range []struct {
		ext  string
		path *string
		to   *output.Stream
	}{{".out", &files.out, e.stdout}, {".err", &files.err, e.stderr}} {
		r, w, err := s.fifo(name + out.ext)
		if err != nil {
			return files, err
		}
		*out.path = r.Name()
		files.keepers = append(files.keepers, w)
		p, err := newPump(r, out.to, &e.last, e.clock)
		if err != nil {
			r.Close()
			return files, err
		}
		files.pumps = append(files.pumps, p)
	}
	return files, nil
}

func (p shellPipes) closeAll() {
	for _, f := range p.keepers {
		closePipe(f)
	}
	for _, pump := range p.pumps {
		closePipe(pump.pipe)
	}
	if p.stdin != nil {
		closePipe(p.stdin)
	}
}

// closePipe closes an end of a named pipe and removes its name.
func closePipe(f *os.File) {
	_ = f.Close()
	_ = unix.Unlink(f.Name()) // gone already when it was the other end's turn before
}

// begin types the command.
func (s *session) begin(e *Exec, files shellPipes) {
	nonce := rand.Text()[:16]
	ended := make(chan exit, 1)
	e.exited = ended
	s.mu.Lock()
	s.nonce, s.ended, s.opening = nonce, ended, files.opening
	s.commands = append(s.commands, e)
	last := s.last
	s.mu.Unlock()
	if s.over() { // nobody will read it, and serve may have looked before we were there
		s.finish(exit{status: s.host.waitStatus(), at: time.Now()})
		return
	}
	run := "builtin eval -- " + asciiQuote(e.spec.Cmd) + " 2>" + quote(files.err)
	if last != 0 {
		// $? is what the command before left. As the last of a list the command still
		// heeds set -e, and what comes before it does not.
		run = fmt.Sprintf("__hutch_status %d || ", last) + run
	}
	// The begin is reported when the pipes are open, but for that of stderr, where set -x
	// would show it.
	s.tell("__hutch_begin "+string(e.id)+"; "+run, " <"+quote(files.in)+" >"+quote(files.out), "__hutch_end "+nonce)
}

// superviseInShell is supervise for a command in a session.
func (e *Exec) superviseInShell() {
	s := e.session
	x, stopped := e.watch()
	r := &hutch.ExecResult{}
	if stopped {
		var got exit
		got, r.Killed, r.Escalated = e.stopInShell(x)
		x = &got
		e.mu.Lock()
		r.End, r.Detail = e.stop.Reason, e.stop.Detail
		e.mu.Unlock()
		r.ExitCode, r.Signal = stoppedCode(r.End, *x)
	} else {
		r.End, r.ExitCode, r.Signal = exitCode(x.status)
	}
	if e.stdin != nil {
		e.stdin.close()
	}
	for _, f := range e.keepers {
		closePipe(f)
	}
	e.drain()
	if !stopped {
		for _, p := range e.members() {
			r.LeftRunning = append(r.LeftRunning, hutch.KilledProcess{PID: p.PID, Command: p.Comm})
		}
	}
	r.Detail = capped(&r.Killed, r.Detail)
	r.Detail = capped(&r.LeftRunning, r.Detail)
	e.account(r, *x)
	r.ShellReplaced = e.replaced
	s.prune(e, len(r.LeftRunning) > 0)
	r.Cwd = s.leave()
	e.finish(r)
}

// prune forgets a command that left nothing running, and others whose processes have ended
// since.
func (s *session) prune(e *Exec, left bool) {
	commands := s.members()
	kept := commands[:0]
	for _, c := range commands {
		if c == e && left || c != e && c.anySeenAlive() {
			kept = append(kept, c)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands = kept
}

// stopInShell stops a command in a session: the shell is told to give it up, and what it
// started gets TERM and, after the grace, KILL. A shell that does not report the end by
// then is killed with everything in its session.
func (e *Exec) stopInShell(x *exit) (end exit, killed []hutch.KilledProcess, escalated bool) {
	e.stopMu.Lock()
	defer e.stopMu.Unlock()
	s := e.session
	list := map[int]hutch.KilledProcess{}
	asked := time.Now().Before(e.killTime()) // before it is forced
	var told time.Time
	var quiet time.Time // since when nothing of it is there but the shell
	for wait := pollMin; x == nil; wait = min(2*wait, pollMax) {
		sig := unix.SIGTERM
		if !time.Now().Before(e.killTime()) {
			sig = unix.SIGKILL
		}
		var ps []procfs.Process
		if s.hasBegun() { // what it is told before would be about the command before
			if time.Since(told) > abortEvery {
				told = time.Now()
				_ = e.table.reaper.signal(s.host.pid, abortSignal) // before what it waits for ends
			}
			ps = e.members()
		}
		for _, p := range ps {
			if list[p.PID].Signal == signalName(sig) {
				continue
			}
			list[p.PID] = hutch.KilledProcess{PID: p.PID, Command: p.Comm, Signal: signalName(sig)}
			escalated = escalated || asked && sig == unix.SIGKILL
			e.kill(p, sig)
			e.kill(p, unix.SIGCONT)
		}
		if len(ps) > 0 || quiet.IsZero() {
			quiet = time.Now()
		}
		if sig == unix.SIGKILL && time.Since(quiet) > reportTime {
			s.giveUp()
			escalated = true
		}
		select {
		case got := <-e.exited:
			x = &got
		case <-time.After(wait):
		}
	}
	more, late, _ := e.killTreeLocked() // those in the background
	for _, k := range more {
		list[k.PID] = k
	}
	for _, k := range list {
		killed = append(killed, k)
	}
	sortKilled(killed)
	return *x, killed, escalated || late
}

// giveUp kills a shell that does not report.
func (s *session) giveUp() {
	s.mu.Lock()
	s.hung = true
	s.mu.Unlock()
	s.host.requestStop(StopOptions{Reason: hutch.ExecCancelled})
}
