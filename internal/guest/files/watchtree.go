package files

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// maxWatched is how many directories one watch may span: each is remembered.
const maxWatched = 50_000

// errWatchGone is a watched directory that is not there any more.
var errWatchGone = hutch.Errorf(hutch.CodeNotFound, "the watched directory is gone")

// node is a directory that is watched. What it is called follows from its parents, so that a
// rename changes the paths of everything below it.
type node struct {
	wd     int32
	id     inode
	name   string
	parent *node // nil = the directory that was asked for, or one that has been moved away
	below  map[string]*node
	// told are names that were found when the directory was taken in, and of which the
	// kernel may tell again.
	told map[string]struct{}
}

// tree turns the kernel's events, which are about single directories, into events about
// paths in a tree. It is used by one goroutine.
type tree struct {
	actor     *actor
	abs       string // of the directory that was asked for
	recursive bool
	emit      func(op hutch.FileOp, rel string)

	queue *inotify
	root  *node
	nodes map[int32]*node
	// moved are directories (nil: files) that have left a name and not got another yet, by
	// the cookie of their rename. The kernel tells both halves in a row, so those that are
	// still here when something else was told have left the tree.
	moved map[uint32]*node
	// temps are renames of files that a write has put beside its target.
	temps map[uint32]string
}

// arm begins to watch.
func (t *tree) arm() error {
	q, err := newInotify()
	if err != nil {
		return err
	}
	t.queue, t.nodes, t.moved, t.temps = q, map[int32]*node{}, map[uint32]*node{}, map[uint32]string{}
	dir, st, err := t.actor.openTree(t.abs)
	if err == nil {
		defer dir.Close()
		var wd int32
		if wd, err = q.add(dir); err == nil {
			t.root = &node{wd: wd, id: inode{st.Dev, st.Ino}}
			t.nodes[wd] = t.root
			if t.recursive {
				err = t.spread(t.root, dir, 0, false)
			}
		}
	}
	if err != nil {
		q.Close()
	}
	return err
}

// rearm begins anew, when events were lost.
func (t *tree) rearm() error {
	t.queue.Close()
	return t.arm()
}

// path is where a node is, relative to the root. ok is false for one that has been moved out
// of the tree.
func (t *tree) path(n *node, name string) (rel string, ok bool) {
	parts := []string{name}
	for ; n != t.root; n = n.parent {
		if n == nil {
			return "", false
		}
		parts = append(parts, n.name)
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Trim(strings.Join(parts, "/"), "/"), true
}

// take watches the directory name in the node n, and what is below. With tell, files that
// are in it already are told of: they may have come before the watch.
func (t *tree) take(n *node, name string, tell bool) error {
	rel, ok := t.path(n, name)
	if !ok {
		return nil
	}
	p, err := t.actor.place(join(t.abs, rel))
	if err != nil {
		return passing(err)
	}
	defer p.Close()
	return t.takeAt(n, p, 0, tell)
}

// passing is the outcome of looking at a directory that changes meanwhile: what is gone or
// may not be looked at is left out.
func passing(err error) error {
	if gone(err) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	return err
}

func (t *tree) takeAt(n *node, p place, depth int, tell bool) error {
	if depth > maxWalkDepth {
		return nil
	}
	dir, err := t.actor.openDir(p)
	if err != nil {
		return passing(err)
	}
	defer dir.Close()
	if madeUp(dir) {
		return nil
	}
	if len(t.nodes) >= maxWatched {
		return hutch.Errorf(hutch.CodeTooLarge, "there are more than %d directories to watch: watch a smaller tree", maxWatched)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return passing(err)
	}
	wd, err := t.queue.add(dir)
	if errors.Is(err, unix.ENOSPC) {
		return hutch.Wrap(hutch.CodeTooLarge, err, "there are more directories to watch than the kernel allows: watch a smaller tree")
	}
	if err != nil {
		return passing(err)
	}
	child := t.nodes[wd]
	if child != nil { // the kernel knows it: it was moved while nobody looked
		t.detach(child)
	} else {
		child = &node{wd: wd, id: inode{st.Dev, st.Ino}}
		t.nodes[wd] = child
	}
	t.attach(child, n, p.name)
	return t.spread(child, dir, depth+1, tell)
}

// spread watches the directories in an open one.
func (t *tree) spread(n *node, dir *os.File, depth int, tell bool) error {
	after := ""
	for {
		names, more, err := namesAfter(dir, after, batch)
		if err != nil {
			return passing(err)
		}
		for _, name := range names {
			after = name
			if tell {
				t.tellFound(n, name)
			}
			p := place{dir, name}
			st, err := p.lstat()
			if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || n.below[name] != nil {
				continue
			}
			if err := t.takeAt(n, p, depth, tell); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// tellFound tells of a file that was found in a directory that is taken in.
func (t *tree) tellFound(n *node, name string) {
	if _, known := n.told[name]; known {
		return
	}
	if n.told == nil {
		n.told = map[string]struct{}{}
	}
	n.told[name] = struct{}{}
	t.tell(hutch.OpCreate, n, name)
}

func (t *tree) attach(child, parent *node, name string) {
	child.parent, child.name = parent, name
	if parent.below == nil {
		parent.below = map[string]*node{}
	}
	parent.below[name] = child
}

// detach takes a node out of its parent.
func (t *tree) detach(n *node) {
	if n.parent != nil && n.parent.below[n.name] == n {
		delete(n.parent.below, n.name)
	}
	n.parent = nil
}

// drop ends the watches of a node and of what is below it.
func (t *tree) drop(n *node) {
	if n == nil {
		return
	}
	t.detach(n)
	t.queue.remove(n.wd)
	delete(t.nodes, n.wd)
	for _, child := range n.below {
		t.drop(child)
	}
}

func (t *tree) tell(op hutch.FileOp, n *node, name string) {
	if rel, ok := t.path(n, name); ok && rel != "" {
		t.emit(op, rel)
	}
}

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
	if known && child != nil {
		t.attach(child, n, e.name)
		if t.isAt(child) {
			return nil
		}
		// Events are late: what was taken in under the old name was a directory that came
		// there after the rename. Its own event is still to come.
		t.detach(child)
	}
	return t.take(n, e.name, true)
}

// isAt reports whether a node is where it is said to be, or nothing is.
func (t *tree) isAt(n *node) bool {
	rel, ok := t.path(n, "")
	if !ok {
		return true
	}
	p, err := t.actor.place(join(t.abs, rel))
	if err != nil {
		return true
	}
	defer p.Close()
	st, err := p.lstat()
	return err != nil || n.id == inode{st.Dev, st.Ino}
}
