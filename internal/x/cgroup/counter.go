package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Counter is a group's count of CPU time, as a file that stays open: to look at it takes one call
// of the kernel. It is safe for concurrent use, and does not keep the group from being removed.
type Counter struct {
	file *os.File
	v2   bool
}

// Counter opens the group's count.
func (g *Group) Counter() (*Counter, error) {
	controller, name := "cpuacct", "cpuacct.usage"
	if g.tree.v2 {
		controller, name = "cpu", "cpu.stat"
	}
	f, err := os.Open(filepath.Join(g.dir(controller), name))
	if err != nil {
		return nil, err
	}
	return &Counter{file: f, v2: g.tree.v2}, nil
}

// CPU is the CPU time of [Usage]; fs.ErrNotExist once the group is removed or the counter closed.
func (c *Counter) CPU() (time.Duration, error) {
	var buf [512]byte // version 2's first line is what is asked for, and others follow
	n, err := c.file.ReadAt(buf[:], 0)
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, os.ErrClosed):
		return 0, &fs.PathError{Op: "read", Path: c.file.Name(), Err: fs.ErrNotExist}
	case err != nil && !errors.Is(err, io.EOF):
		return 0, err
	case c.v2:
		usec, ok := parseKeyed(buf[:n])["usage_usec"]
		if !ok {
			return 0, fmt.Errorf("read %s: it has no usage_usec", c.file.Name())
		}
		return time.Duration(usec) * time.Microsecond, nil
	}
	ns, err := parseNumber(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", c.file.Name(), err)
	}
	return time.Duration(ns), nil
}

// Close lets go of the file.
func (c *Counter) Close() error { return c.file.Close() }
