package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// setting is a value for one control file.
type setting struct {
	file     string
	value    string
	optional bool // kernels without it are fine
}

func (s setting) apply() error {
	err := write(s.file, s.value)
	if s.optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write writes to a control file, which must exist: creating one is never meant.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// readFile reads a control file whole. It goes around package os, which asks of every file that it
// opens whether it can be waited for: eight calls of the kernel instead of four, for files that
// are read hundreds of times a second.
func readFile(path string) ([]byte, error) {
	fd, err := again(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 0, 512)
	for {
		b = slices.Grow(b, 512)
		n, err := again(func() (int, error) { return unix.Read(fd, b[len(b):cap(b)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		b = b[:len(b)+n]
	}
}

// again makes a call of the kernel until no signal has cut it short.
func again(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// settings are the control files that make l true.
func (g *Group) settings(l Limits) []setting {
	var s []setting
	set := func(controller, file string, value any) {
		s = append(s, setting{file: filepath.Join(g.dir(controller), file), value: fmt.Sprint(value)})
	}
	optional := func() { s[len(s)-1].optional = true }
	v2 := g.tree.v2
	if l.Memory > 0 {
		if v2 {
			set("memory", "memory.max", l.Memory)
			set("memory", "memory.swap.max", 0)
			optional()
		} else {
			set("memory", "memory.limit_in_bytes", l.Memory)
			set("memory", "memory.memsw.limit_in_bytes", l.Memory)
			optional()
		}
	}
	if l.MemoryHigh > 0 && v2 {
		set("memory", "memory.high", l.MemoryHigh)
	}
	if l.MilliCPU > 0 {
		quota := int64(l.MilliCPU) * period.Microseconds() / 1000
		if v2 {
			set("cpu", "cpu.max", fmt.Sprintf("%d %d", quota, period.Microseconds()))
		} else {
			set("cpu", "cpu.cfs_period_us", period.Microseconds())
			set("cpu", "cpu.cfs_quota_us", quota)
		}
		s = append(s, g.weigh(l.MilliCPU))
	}
	if l.Pids > 0 {
		set("pids", "pids.max", l.Pids)
	}
	return s
}

// weigh is the control file that gives the group the weight of so many thousandths of a CPU.
func (g *Group) weigh(milliCPU int) setting {
	shares := max(2, int64(milliCPU)*1024/1000)
	file, value := "cpu.shares", shares
	if g.tree.v2 {
		file, value = "cpu.weight", weight(shares)
	}
	return setting{file: filepath.Join(g.dir("cpu"), file), value: strconv.FormatInt(value, 10)}
}

// weight maps version 1's shares (2 … 262144) to version 2's weight (1 … 10000),
// as the other users of both do.
func weight(shares int64) int64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

// Usage reads what the kernel accounts to the group.
func (g *Group) Usage() (Usage, error) {
	var u Usage
	if g.tree.v2 {
		cpu, err := g.keyed("cpu", "cpu.stat")
		if err != nil {
			return u, err
		}
		events, err := g.keyed("memory", "memory.events")
		if err != nil {
			return u, err
		}
		u.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
		u.OOMKills = events["oom_kill"]
		return u, errors.Join(
			g.pids(&u.Pids),
			g.number("memory", "memory.current", &u.Memory),
			g.number("memory", "memory.max", &u.MemoryLimit),
			optionalFile(g.number("memory", "memory.peak", &u.MemoryPeak)), // since Linux 5.19
		)
	}
	oom, err := g.keyed("memory", "memory.oom_control")
	if err != nil {
		return u, err
	}
	u.OOMKills = oom["oom_kill"]
	var cpu int64
	err = errors.Join(
		g.pids(&u.Pids),
		g.number("cpuacct", "cpuacct.usage", &cpu),
		g.number("memory", "memory.usage_in_bytes", &u.Memory),
		g.number("memory", "memory.max_usage_in_bytes", &u.MemoryPeak),
		g.number("memory", "memory.limit_in_bytes", &u.MemoryLimit),
	)
	u.CPU = time.Duration(cpu)
	return u, err
}

// pids reads what the kernel counts of processes; its files have the same names in both
// versions.
func (g *Group) pids(p *Pids) error {
	events, err := g.keyed("pids", "pids.events")
	if err := errors.Join(
		optionalFile(err),
		optionalFile(g.number("pids", "pids.peak", &p.Peak)), // since Linux 6.6
		g.number("pids", "pids.max", &p.Limit),
	); err != nil {
		return err
	}
	if p.Refused = events["max"]; p.Refused > 0 {
		p.Peak = max(p.Peak, p.Limit)
	}
	return nil
}

// PidsRefused is how many processes and threads the group's cap has refused.
func (g *Group) PidsRefused() (int64, error) {
	var p Pids
	err := g.pids(&p)
	return p.Refused, err
}

// OOMKills is how many processes of the group the kernel ended over its limit.
func (g *Group) OOMKills() (int64, error) {
	file := "memory.oom_control"
	if g.tree.v2 {
		file = "memory.events"
	}
	m, err := g.keyed("memory", file)
	return m["oom_kill"], err
}

// Unreclaimable is how many bytes of the group's memory the kernel cannot take back
// by dropping file pages: what counts against an out-of-memory kill.
func (g *Group) Unreclaimable() (int64, error) {
	file, inactive, active := "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
	if g.tree.v2 {
		file, inactive, active = "memory.current", "inactive_file", "active_file"
	}
	var used int64
	if err := g.number("memory", file, &used); err != nil {
		return 0, err
	}
	stat, err := g.keyed("memory", "memory.stat")
	return max(0, used-stat[inactive]-stat[active]), err
}

// number reads a control file that holds one number; "max" is the largest there is.
func (g *Group) number(controller, file string, n *int64) error {
	path := filepath.Join(g.dir(controller), file)
	b, err := readFile(path)
	if err != nil {
		return err
	}
	*n, err = parseNumber(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// keyed reads a control file of "key number" lines; other lines are skipped.
func (g *Group) keyed(controller, file string) (map[string]int64, error) {
	b, err := readFile(filepath.Join(g.dir(controller), file))
	if err != nil {
		return nil, err
	}
	return parseKeyed(b), nil
}

func parseKeyed(b []byte) map[string]int64 {
	m := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := parseNumber(value); ok && err == nil {
			m[key] = n
		}
	}
	return m
}

// parseNumber reads a control file's number. Limits that were never set read as
// 2^63 minus a page, or as "max".
func parseNumber(s string) (int64, error) {
	if s == "max" {
		return math.MaxInt64, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

func optionalFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
