package files

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
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
	// untold says that not all that is in it was told of and taken in, because when it was
	// looked at it did not have the path any more that events had told of so far.
	untold bool
}

// tree turns the kernel's events, which are about single directories, into events about
// paths in a tree. It is used by one goroutine.
type tree struct {
	actor     *actor
	ctx       context.Context //nolint:containedctx // of the call that the tree is the state of
	abs       string          // of the directory that was asked for
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
	if gone(err) {
		n.untold = true // it has another path by now, of which an event is still to come
		return nil
	}
	if err != nil {
		return passing(err)
	}
	defer p.Close()
	var st unix.Stat_t
	if err := unix.Fstat(p.fd(), &st); err != nil || (n.id != inode{st.Dev, st.Ino}) {
		n.untold = true // the same, and another directory has its path
		return passing(err)
	}
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
	if child != nil && child.holds(n) {
		return nil // mounted within itself, or moved meanwhile, of which an event is still to come
	}
	if child != nil { // the kernel knows it: it was moved while nobody looked
		t.detach(child)
		child.untold = false
	} else {
		child = &node{wd: wd, id: inode{st.Dev, st.Ino}}
		t.nodes[wd] = child
	}
	t.attach(child, n, p.name)
	return t.spread(child, dir, depth+1, tell)
}

// spread watches the directories in an open one. With tell, all that is found is told of.
func (t *tree) spread(n *node, dir *os.File, depth int, tell bool) error {
	after := ""
	for {
		names, more, err := namesAfter(dir, after, batch)
		if err != nil {
			return passing(err)
		}
		// What was found before the directory was renamed is at its old path. If the rename
		// came first, its event is still to come, and then the rest is told.
		if tell && !n.untold && !t.isAt(n) {
			n.untold = true
		}
		for _, name := range names {
			if err := t.ctx.Err(); err != nil {
				return err
			}
			after = name
			if tell && !n.untold {
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

// holds reports whether a node is other, or is above it as far as events have told. Attached
// below that it would have no path.
func (n *node) holds(other *node) bool {
	for ; other != nil; other = other.parent {
		if other == n {
			return true
		}
	}
	return false
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

// lookAt says what is where a node is said to be.
func (t *tree) lookAt(n *node) (id inode, err error) {
	rel, ok := t.path(n, "")
	if !ok {
		return id, unix.ENOENT
	}
	p, err := t.actor.place(join(t.abs, rel))
	if err != nil {
		return id, err
	}
	defer p.Close()
	st, err := p.lstat()
	return inode{st.Dev, st.Ino}, err
}

// isAt reports whether a node is where it is said to be.
func (t *tree) isAt(n *node) bool {
	id, err := t.lookAt(n)
	return err == nil && id == n.id
}

// isGone reports whether nothing is where a node is said to be.
func (t *tree) isGone(n *node) bool {
	_, err := t.lookAt(n)
	return gone(err)
}

// retell tells of what was found below a node and not told of, now that it has its name.
func (t *tree) retell(n *node, depth int) error {
	for _, child := range slices.Collect(maps.Values(n.below)) {
		if err := t.retell(child, depth+1); err != nil {
			return err
		}
	}
	rel, ok := t.path(n, "")
	if !n.untold || !ok || !t.isAt(n) {
		return nil
	}
	dir, err := t.actor.open(unix.AT_FDCWD, join(t.abs, rel), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return passing(err)
	}
	defer dir.Close()
	n.untold = false // unless it has been renamed again
	return t.spread(n, dir, depth, true)
}
