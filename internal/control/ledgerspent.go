package control

import (
	"time"

	"hutch.dev/hutch"
)

// spent is what a project with a budget has used since a period began: counted once from the
// records, and from then on added to as its sandboxes are charged. A month has millions of
// seconds of them, which are too many to add up each second.
//
// They go on being charged, and that goes on being stored, while the records are read. So what
// is charged meanwhile is put aside, and of it only that is added which the records do not have
// yet: what begins where they end, sandbox by sandbox.
type spent struct {
	from     time.Time // begin of the period; zero until it has been counted
	total    hutch.UsageTotal
	counting bool
	late     []hutch.Usage // charged since the count began
}

// addLocked takes over what a sandbox is charged.
func (s *spent) addLocked(id hutch.SandboxID, u hutch.Usage) {
	if s.counting {
		u.Sandbox = id
		s.late = append(s.late, u)
	}
	s.total.Add(since(u, s.from))
}

// since is the part of u from an instant on, which may be no time.
func since(u hutch.Usage, from time.Time) hutch.Usage {
	part, _ := u.Clip(from, time.Time{})
	return part
}

// spentSince returns what a project has used since a period began, if that was counted.
func (l *ledger) spentSince(p hutch.ProjectID, from time.Time) (hutch.UsageTotal, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.spent[p]
	if s == nil || !s.from.Equal(from) {
		return hutch.UsageTotal{}, false
	}
	return s.total, true
}

// beginCount puts aside what is charged from now on, until endCount or dropCount. There is one
// count of a project at a time. What was charged before is to be stored before the records are
// read.
func (l *ledger) beginCount(p hutch.ProjectID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spent[p] == nil {
		l.spent[p] = &spent{}
	}
	l.spent[p].counting = true
}

// mayBeLate names the sandboxes of which something was put aside, or may be.
func (l *ledger) mayBeLate(p hutch.ProjectID) map[hutch.SandboxID]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := map[hutch.SandboxID]bool{}
	for id, a := range l.accounts {
		if a.project == p {
			ids[id] = true
		}
	}
	for _, u := range l.spent[p].late {
		ids[u.Sandbox] = true
	}
	return ids
}

// endCount takes over what the records have since from, and up to when they have it of each
// sandbox. It returns that with what was charged since.
func (l *ledger) endCount(p hutch.ProjectID, from time.Time, onRecord hutch.UsageTotal, upTo map[hutch.SandboxID]time.Time) hutch.UsageTotal {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &spent{from: from, total: onRecord}
	for _, u := range l.spent[p].late {
		if !u.From.Before(upTo[u.Sandbox]) {
			s.total.Add(since(u, from))
		}
	}
	l.spent[p] = s
	return s.total
}

// dropCount ends a count that came to nothing. What was counted before stays.
func (l *ledger) dropCount(p hutch.ProjectID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spent[p].counting, l.spent[p].late = false, nil
}

// living lists the sandboxes that are charged, by project.
func (l *ledger) living() map[hutch.ProjectID][]look {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[hutch.ProjectID][]look{}
	for id, a := range l.accounts {
		if a.ended.IsZero() {
			all[a.project] = append(all[a.project], look{id, a.epoch, a.state})
		}
	}
	return all
}
