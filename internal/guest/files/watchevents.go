package files

import (
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// handle takes in one event. errWatchGone is the end of the watch.
func (t *tree) handle(e rawEvent) error {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		if err := t.rearm(); err != nil {
			return err
		}
		t.emit(hutch.OpOverflow, "")
		return nil
	}
	n := t.nodes[e.wd]
	if n == nil {
		return nil // dropped meanwhile
	}
	if e.mask&unix.IN_MOVED_TO == 0 || len(t.moved) > 1 {
		t.settle(e.cookie)
	}
	if e.name == "" {
		return t.self(n, e)
	}
	if isTemp(e.name) {
		t.temp(e)
		return nil
	}
	switch {
	case e.mask&unix.IN_CREATE != 0:
		return t.created(n, e)
	case e.mask&unix.IN_MOVED_TO != 0:
		return t.movedTo(n, e)
	case e.mask&unix.IN_MOVED_FROM != 0:
		child := n.below[e.name]
		t.tell(hutch.OpRename, n, e.name)
		delete(n.told, e.name)
		if child != nil {
			t.detach(child)
		}
		t.moved[e.cookie] = child
	case e.mask&unix.IN_DELETE != 0:
		t.tell(hutch.OpRemove, n, e.name)
		delete(n.told, e.name)
		if child := n.below[e.name]; child != nil {
			t.drop(child)
		}
	case e.mask&unix.IN_ATTRIB != 0:
		t.tell(hutch.OpChmod, n, e.name)
	case e.mask&unix.IN_MODIFY != 0:
		t.tell(hutch.OpWrite, n, e.name)
	}
	return nil
}

// settle drops what has left the tree: renames whose second half did not follow.
func (t *tree) settle(cookie uint32) {
	for c, n := range t.moved {
		if c != cookie {
			delete(t.moved, c)
			t.drop(n)
		}
	}
}

// self takes in an event about a watched directory itself. Of those below the root its
// parent tells too.
func (t *tree) self(n *node, e rawEvent) error {
	switch {
	case n == t.root && e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
		return errWatchGone
	case e.mask&unix.IN_IGNORED != 0:
		t.detach(n)
		delete(t.nodes, n.wd)
	}
	return nil
}

// temp remembers what becomes of a file that a write has put beside its target.
func (t *tree) temp(e rawEvent) {
	if e.mask&unix.IN_MOVED_FROM != 0 {
		clear(t.temps) // a rename to a name that is not watched has no second half
		t.temps[e.cookie] = e.name
	}
}

func (t *tree) created(n *node, e rawEvent) error {
	if _, told := n.told[e.name]; told {
		delete(n.told, e.name)
	} else {
		t.tell(hutch.OpCreate, n, e.name)
	}
	if e.mask&unix.IN_ISDIR != 0 && t.recursive && n.below[e.name] == nil {
		return t.take(n, e.name, true)
	}
	return nil
}

// movedTo takes in the second half of a rename, or the only one of a file from elsewhere.
func (t *tree) movedTo(n *node, e rawEvent) error {
	if temp, ours := t.temps[e.cookie]; ours {
		delete(t.temps, e.cookie)
		delete(n.told, e.name)
		if !strings.HasPrefix(temp, tempOld) {
			t.tell(hutch.OpCreate, n, e.name)
		}
		if !strings.HasPrefix(temp, tempCopy) {
			t.tell(hutch.OpWrite, n, e.name)
			return nil
		}
	} else if _, told := n.told[e.name]; !told {
		t.tell(hutch.OpCreate, n, e.name)
	}
	delete(n.told, e.name)
	child, known := t.moved[e.cookie]
	delete(t.moved, e.cookie)
	if e.mask&unix.IN_ISDIR == 0 || !t.recursive {
		return nil
	}
	if replaced := n.below[e.name]; replaced != nil && replaced != child {
		t.drop(replaced)
	}
	if known && child != nil && !child.holds(n) {
		t.attach(child, n, e.name)
		if t.isAt(child) {
			return t.retell(child, 0)
		}
		if t.isGone(child) {
			return nil // what became of it is still to come
		}
		// Events are late: what was taken in under the old name was a directory that came
		// there after the rename. Its own event is still to come.
		t.detach(child)
	}
	return t.take(n, e.name, true)
}
