package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Notifier waits for the kernel to say that something happened in a group.
type Notifier struct {
	f *os.File // an eventfd (version 1) or an inotify descriptor (version 2)
}

// Wait blocks until the kernel has said so, at least once, since the last Wait. It
// holds no thread. Being told does not mean that it is still so: look. After Close
// it returns os.ErrClosed.
func (n *Notifier) Wait() error {
	// Larger than any inotify event; an eventfd gives eight bytes of it.
	_, err := n.f.Read(make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	return err
}

// Close ends a Wait under way and frees the notifier.
func (n *Notifier) Close() error { return n.f.Close() }

// NotifyOOM returns a notifier of the group having hit its memory limit and found
// nothing to reclaim.
func (g *Group) NotifyOOM() (*Notifier, error) {
	if g.tree.v2 {
		return g.notifyEvents()
	}
	return g.notifyV1("memory.oom_control", "")
}

// NotifyHigh returns a notifier of the group's memory having crossed bytes, in
// either direction. On version 2 it is the limit MemoryHigh that counts.
func (g *Group) NotifyHigh(bytes int64) (*Notifier, error) {
	if g.tree.v2 {
		return g.notifyEvents()
	}
	return g.notifyV1("memory.usage_in_bytes", fmt.Sprint(bytes))
}

// notifyV1 registers an eventfd with a control file of the memory controller.
func (g *Group) notifyV1(file, arg string) (*Notifier, error) {
	dir := g.dir("memory")
	control, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	line := fmt.Sprintf("%d %d %s", fd, control.Fd(), arg)
	if err := write(filepath.Join(dir, "cgroup.event_control"), line); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", file, err), f.Close())
	}
	return &Notifier{f: f}, nil
}

// notifyEvents watches memory.events, which the kernel marks as modified whenever
// one of its counters grows.
func (g *Group) notifyEvents() (*Notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make inotify descriptor: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(g.dir("memory"), "memory.events"), unix.IN_MODIFY); err != nil {
		return nil, errors.Join(fmt.Errorf("watch memory.events: %w", err), f.Close())
	}
	return &Notifier{f: f}, nil
}
