package process

import (
	"os"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/procfs"
)

// owned is a live process and the command it belongs to.
type owned struct {
	procfs.Process
	exec *Exec
}

// members is every live process of the tree.
func (e *Exec) members() []procfs.Process {
	var ps []procfs.Process
	for _, o := range e.table.attribute([]*Exec{e}) {
		if o.exec == e {
			ps = append(ps, o.Process)
		}
	}
	return ps
}

// attribute finds the live processes of the commands, and perhaps of others.
func (t *Table) attribute(execs []*Exec) []owned {
	execs = withHosts(execs)
	list := t.cfg.Proc.List
	if t.cfg.Cgroups == nil {
		execs = t.known() // whose a process is can depend on whose it is not
		list = t.listBetweenForks
	}
	all, err := list()
	if err != nil {
		t.cfg.Log.Error("list processes", "err", err)
		return nil
	}
	return t.attributeAll(all, execs)
}

// listBetweenForks lists the processes when none is just being made: one that is not yet
// what it will be has no marker, and would be taken for one that hides it.
func (t *Table) listBetweenForks() ([]procfs.Process, error) {
	t.reaper.mu.Lock()
	defer t.reaper.mu.Unlock()
	return t.cfg.Proc.List()
}

// attributeAll says which of the processes belong to which command: by group, by having
// been seen before, by session, by marker, and by descent from one of these. Without control
// groups execs must be all there are.
func (t *Table) attributeAll(all []procfs.Process, execs []*Exec) []owned {
	byPID := make(map[int]*procfs.Process, len(all))
	for i := range all {
		byPID[all[i].PID] = &all[i]
	}
	owner := map[int]*Exec{}
	leaders := map[int]*Exec{}
	for _, e := range execs {
		if !e.isReady() {
			continue
		}
		for _, pid := range e.roots(byPID) {
			owner[pid] = e
		}
		leaders[e.pid] = e
	}
	self := os.Getpid()
	for _, p := range all {
		if owner[p.PID] == nil && p.PID != self {
			owner[p.PID] = ancestorOwner(p, byPID, owner, leaders)
		}
	}
	sessions := t.sessions()
	var list []owned
	for _, p := range all {
		if p.PID == self || !p.Alive() {
			continue
		}
		e := owner[p.PID]
		if e == nil && sessions[p.Session] {
			continue // another command's: a session is entered by birth only
		}
		if e == nil {
			if id := t.cfg.Proc.Env(p.PID, Marker); id != "" {
				e = marked(id, execs)
			} else {
				e = t.suspect(p, execs)
			}
			if e == nil {
				continue
			}
		}
		if e.hosts != nil {
			e = e.hosts.owner(p, byPID)
		}
		list = append(list, owned{p, e})
	}
	return remember(list)
}

// sessions are those of the leaders of all commands.
func (t *Table) sessions() map[int]bool {
	set := map[int]bool{}
	for _, e := range t.known() {
		if e.isReady() && e.pid != 0 {
			set[e.pid] = true
		}
	}
	return set
}

// roots are the processes that are the command's by its group or by having been seen.
func (e *Exec) roots(byPID map[int]*procfs.Process) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	var pids []int
	for pid, start := range e.seen {
		if p := byPID[pid]; p != nil && p.Start == start {
			pids = append(pids, pid)
		} else {
			delete(e.seen, pid)
		}
	}
	if e.group != nil {
		pids = append(pids, e.group.PIDs()...)
	}
	return pids
}

// ancestorOwner is the command whose session the process or one of its ancestors is in,
// or that owns an ancestor.
func ancestorOwner(p procfs.Process, byPID map[int]*procfs.Process, owner, leaders map[int]*Exec) *Exec {
	for range len(byPID) { // a chain of parents cannot be longer, unless it was read while it changed
		if e := owner[p.PID]; e != nil {
			return e
		}
		if e := leaders[p.Session]; e != nil && p.Session != 0 {
			return e
		}
		parent := byPID[p.PPID]
		if parent == nil {
			return nil
		}
		p = *parent
	}
	return nil
}

// marked is the command with that id.
func marked(id string, execs []*Exec) *Exec {
	for _, e := range execs {
		if e.id == hutch.ExecID(id) {
			return e
		}
	}
	return nil
}

// suspect is the command that an otherwise unknown process must have come from when
// there are no control groups: the only one that began before it. A process can hide from
// everything else at once, by forking twice into a new session with an empty
// environment; with several commands that could be its origin it is nobody's.
func (t *Table) suspect(p procfs.Process, execs []*Exec) *Exec {
	if t.cfg.Cgroups != nil {
		return nil
	}
	var only *Exec
	for _, e := range execs {
		if !e.isReady() || e.born == 0 || e.born > p.Start {
			continue
		}
		if only != nil {
			return nil
		}
		only = e
	}
	return only
}

// remember notes the processes with their commands, so that they are known again when
// they leave group, session and parent behind.
func remember(list []owned) []owned {
	for _, o := range list {
		o.exec.mu.Lock()
		o.exec.seen[o.PID] = o.Start
		o.exec.mu.Unlock()
	}
	return list
}

// anySeenAlive reports whether a process that was seen in the tree, or is in its group,
// is alive. It is cheap, and does not see new ones elsewhere.
func (e *Exec) anySeenAlive() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.group != nil && len(e.group.PIDs()) > 0 {
		return true
	}
	for pid, start := range e.seen {
		if p, err := e.table.cfg.Proc.Read(pid); err == nil && p.Start == start && p.Alive() {
			return true
		}
	}
	return false
}
