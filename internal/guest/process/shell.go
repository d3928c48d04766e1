package process

import (
	"context"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

const (
	// maxShells is how many shell sessions there are at once.
	maxShells = 32
	// maxShellName is the longest name of one.
	maxShellName = 64
)

// Why a session ended, for the command that finds itself in a new one.
const (
	shellExited = "exited"
	shellKilled = "killed"
	shellHung   = "hung"
)

// validShell reports whether name can be that of a shell session.
func validShell(name string) bool {
	return len(name) <= maxShellName && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-'
	})
}

// enterShell finds or starts the session that a command asks for, and makes the command the
// one that runs in it. fresh says that the session has just been started, or has failed to
// start a shell: its host has then ended.
func (t *Table) enterShell(e *Exec) (s *session, fresh bool, err error) {
	name := e.spec.Shell
	t.mu.Lock()
	old := t.shells[name]
	if old != nil && !old.over() {
		defer t.mu.Unlock()
		return old, false, old.enter(e)
	}
	if t.livingShells() >= maxShells {
		t.mu.Unlock()
		return nil, false, hutch.Errorf(hutch.CodeUnavailable, "the sandbox has %d shell sessions already: close one first", maxShells)
	}
	s = newSession(t, name, e)
	t.shells[name] = s // with the command in it: nobody else enters while it starts
	t.mu.Unlock()

	err = s.start(e)
	if err != nil {
		t.mu.Lock()
		delete(t.shells, name)
		if old != nil {
			t.shells[name] = old // what there is to say of it is still to be said
		}
		t.mu.Unlock()
		return nil, false, err
	}
	if old != nil {
		e.replaced = old.why()
	}
	return s, true, nil
}

// livingShells counts the sessions that have not ended, and forgets some of those that have
// when there are very many. Table.mu is held.
func (t *Table) livingShells() int {
	n := 0
	for name, s := range t.shells {
		switch {
		case !s.over():
			n++
		case len(t.shells) > 8*maxShells:
			delete(t.shells, name)
		}
	}
	return n
}

// Shells lists the sessions in the order of their names.
func (t *Table) Shells() []hutch.Shell {
	t.mu.Lock()
	var list []*session
	for _, s := range t.shells {
		if !s.over() {
			list = append(list, s)
		}
	}
	t.mu.Unlock()
	shells := make([]hutch.Shell, 0, len(list))
	for _, s := range list {
		if d, ok := s.describe(); ok {
			shells = append(shells, d)
		}
	}
	slices.SortFunc(shells, func(a, b hutch.Shell) int { return strings.Compare(a.Name, b.Name) })
	return shells
}

// CloseShell ends a session with everything that runs in it. The next command of that name
// begins in a new one, of which nothing is said since it was asked for.
func (t *Table) CloseShell(ctx context.Context, name string) error {
	t.mu.Lock()
	s := t.shells[name]
	if s == nil || s.over() {
		t.mu.Unlock()
		return hutch.Errorf(hutch.CodeNotFound, "there is no shell session %.64q in this sandbox", name)
	}
	t.mu.Unlock()
	if !s.isUp() {
		return hutch.ErrShellBusy // it is just being started
	}
	if e := s.current(); e != nil {
		e.requestStop(StopOptions{Reason: hutch.ExecCancelled, Grace: e.spec.Grace, Detail: "its shell session was closed"})
	}
	if err := s.host.Stop(ctx, StopOptions{Reason: hutch.ExecCancelled, Grace: -1}); err != nil {
		return err
	}
	for _, e := range s.members() { // what its commands left running
		<-e.done
		if err := e.killLeft(); err != nil {
			return err
		}
	}
	t.forgetShell(s)
	return nil
}

// forgetShell drops a session of which there is nothing to say to the next one.
func (t *Table) forgetShell(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shells[s.name] == s {
		delete(t.shells, s.name)
	}
}

// withHosts adds the shells that commands run in to them: what they start is found by way of
// the shell.
func withHosts(execs []*Exec) []*Exec {
	all := slices.Clip(execs)
	for _, e := range execs {
		if s := e.session; s != nil && !slices.Contains(all, s.host) {
			all = append(all, s.host)
		}
	}
	return all
}
