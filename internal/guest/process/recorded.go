package process

import (
	"maps"
	"slices"

	"hutch.dev/hutch"
)

// maxKept is how many deleted commands have their output files held open for readers that
// come later. A file that is dropped stays where it is, for those inside.
const maxKept = 128

// Delete forgets an ended command, whose result is recorded elsewhere by now. Its memory is
// given back once nobody reads it. Its output file stays, and can be followed until
// maxKept others have been deleted; so do processes that it left running, which are
// shown as its own and can be stopped by its id. A running one is invalid_state.
func (t *Table) Delete(id hutch.ExecID) error {
	e, err := t.Get(id)
	if err != nil {
		return err
	}
	select {
	case <-e.done:
	default:
		return hutch.Errorf(hutch.CodeInvalidState, "command %s is running: stop it first", id)
	}
	t.mu.Lock()
	_, known := t.execs[id]
	delete(t.execs, id)
	if known {
		t.lingering[id] = e
	}
	t.mu.Unlock()
	if known {
		e.settle()
		t.sweep()
	}
	return nil
}

// Find is Get for what a deleted command can still be asked: to be stopped with what it
// left running, and for its output file.
func (t *Table) Find(id hutch.ExecID) (*Exec, error) {
	t.mu.Lock()
	e := t.lingering[id]
	if i := slices.IndexFunc(t.kept, func(k *Exec) bool { return k.id == id }); i >= 0 {
		e = t.kept[i]
	}
	t.mu.Unlock()
	if e != nil {
		return e, nil
	}
	return t.Get(id)
}

// sweep takes deleted commands of which nothing runs any more off the list of those that
// must be looked for among the processes.
func (t *Table) sweep() {
	t.mu.Lock()
	left := slices.Collect(maps.Values(t.lingering))
	t.mu.Unlock()
	if len(left) == 0 {
		return
	}
	alive := map[*Exec]bool{}
	for _, o := range t.attribute(left) {
		alive[o.exec] = true
	}
	for _, e := range left {
		if !alive[e] && e.removeGroup() {
			t.keep(e)
		}
	}
}

// keep moves a command from the lingering to the kept if it has a file, and lets the
// oldest of those go.
func (t *Table) keep(e *Exec) {
	t.mu.Lock()
	_, lingers := t.lingering[e.id]
	delete(t.lingering, e.id)
	var gone []*Exec
	switch {
	case !lingers: // another sweep was faster
	case e.hasFile():
		t.kept = append(t.kept, e)
		if len(t.kept) > maxKept {
			gone = append(gone, t.kept[0])
			t.kept = slices.Delete(t.kept, 0, 1)
		}
	default:
		gone = append(gone, e)
	}
	t.mu.Unlock()
	for _, e := range gone {
		e.letGo()
	}
}

// Read says that somebody reads the output, which keeps it until done is called. It is
// false when there is nothing left to read.
func (e *Exec) Read() (done func(), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone || e.settled && e.readers == 0 && !e.hasFile() {
		return nil, false
	}
	e.readers++
	return e.unread, true
}

func (e *Exec) unread() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.readers--
	e.freeLocked()
}

// settle says that the result is recorded elsewhere.
func (e *Exec) settle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settled = true
	e.freeLocked()
}

// letGo says that nobody will come to read any more.
func (e *Exec) letGo() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	e.freeLocked()
}

// freeLocked gives back what is not needed any more. What a file has is not kept in memory
// too; a stream without one is kept as long as the other's file is, for their readers want both.
func (e *Exec) freeLocked() {
	if e.readers > 0 || e.stdout == nil {
		return
	}
	switch {
	case e.gone, e.settled && !e.hasFile():
		e.stdout.Release()
		e.stderr.Release()
	case e.settled:
		e.stdout.Forget()
		e.stderr.Forget()
	}
}

// hasFile reports whether the output of a stream is in a file that can be read.
func (e *Exec) hasFile() bool {
	return e.stdout != nil && (e.stdout.HasFile() || e.stderr.HasFile())
}
