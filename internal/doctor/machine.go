package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func (e *Env) root() Check {
	if e.UID != 0 {
		return ok("root", "running as user %d", e.UID).fail("Hutch makes namespaces and cgroups; run it as root: sudo hutch serve")
	}
	return ok("root", "running as root")
}

func (e *Env) arch() Check {
	c := ok("architecture", "%s", e.Arch)
	switch e.Arch {
	case "amd64":
		return c
	case "arm64":
		return c.warn("Hutch is not tested on arm64; for what is, use an x86-64 machine (uname -m says x86_64)")
	}
	return c.fail("use an x86-64 machine (uname -m says x86_64)")
}

// What a machine should have. A sandbox at rest costs 12 MiB (measured), one that
// works up to what its template says: 2 GiB for base.
const (
	minMemory  = 1 << 30
	goodMemory = 4 << 30
)

func (e *Env) memory() Check {
	text, err := e.read("proc/meminfo")
	var total int64
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			kb, convErr := strconv.ParseInt(f[1], 10, 64)
			total, err = kb<<10, convErr
		}
	}
	if err != nil || total == 0 {
		return ok("memory", "cannot read how much there is").fail("mount /proc: mount -t proc proc /proc")
	}
	c := ok("memory", "%s, %d CPUs", size(total), e.CPUs)
	switch {
	case total < minMemory:
		return c.fail("a sandbox would not fit beside the server; use a machine with 4 GiB or more (free -h shows what there is)")
	case total < goodMemory:
		return c.warn("room for one or two sandboxes of the base template; use a machine with 4 GiB or more (free -h shows what there is), or make smaller ones")
	}
	return c
}

// goodPids: a sandbox at rest takes about 15 processes and threads of the machine
// (measured); 32768, the kernel's default on small machines, is used up by 2,000 of
// them, and by half as many that work.
const (
	goodPids       = 131072
	pidsPerSandbox = 30
)

func (e *Env) pids() Check {
	text, err := e.read("proc/sys/kernel/pid_max")
	n, convErr := strconv.Atoi(text)
	if err = errors.Join(err, convErr); err != nil {
		return ok("pids", "cannot read kernel.pid_max").warn("mount /proc: mount -t proc proc /proc")
	}
	c := ok("pids", "kernel.pid_max is %d", n)
	if n < goodPids {
		return c.warn("enough for some %d sandboxes; for more run: sysctl -w kernel.pid_max=4194304 (and put it in /etc/sysctl.d)", n/pidsPerSandbox)
	}
	return c
}

// goodFiles: for each sandbox a stream, a link and a few process handles are open, in
// the server and once more in the keeper, and each connection through it takes two.
const (
	minFiles  = 1024
	goodFiles = 16384
)

func (e *Env) files() Check {
	text, err := e.read("proc/self/limits")
	hard := ""
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, "Max open files"); found {
			if f := strings.Fields(rest); len(f) > 1 {
				hard = f[1]
			}
		}
	}
	if hard == "unlimited" {
		return ok("files", "any number of open files")
	}
	n, convErr := strconv.Atoi(hard)
	if err = errors.Join(err, convErr); err != nil {
		return ok("files", "cannot read the limit of open files").warn("mount /proc: mount -t proc proc /proc")
	}
	c := ok("files", "up to %d open files", n)
	fix := "raise the limit: ulimit -Hn 1048576 before starting, or LimitNOFILE=1048576 in the unit"
	switch {
	case n < minFiles:
		return c.fail("%s", fix)
	case n < goodFiles:
		return c.warn("%s", fix)
	}
	return c
}

// released is before any release of Hutch: a clock that shows less is wrong, and then
// expiry, certificates and logs are too.
var released = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (e *Env) clock() Check {
	now := e.Now().UTC()
	c := ok("clock", "%s", now.Format(time.RFC3339))
	if now.Before(released) {
		return c.fail("set the clock: timedatectl set-ntp true (or: date -s '<now>')")
	}
	return c
}

// What a disk should have. The base image takes 0.8 GiB and twice as much again while
// it is built; a sandbox may fill the disk its template gives it (10 GiB for base).
const (
	minDisk  = 3 << 30
	goodDisk = 20 << 30
)

// disks checks the directories of records and of images; both on one disk are told
// once.
func (e *Env) disks() []Check {
	var checks []Check
	seen := map[string]bool{}
	for _, d := range []struct{ name, dir, flag string }{
		{"data disk", e.DataDir, "another data directory"},
		{"image disk", e.CacheDir, "another image directory"},
	} {
		if d.dir == "" || seen[d.dir] {
			continue
		}
		seen[d.dir] = true
		dir := existing(filepath.Join(e.Root, d.dir))
		n, err := e.Free(dir)
		if err != nil {
			checks = append(checks, ok(d.name, "%s: %v", d.dir, err).fail("make the directory: mkdir -p %s", d.dir))
			continue
		}
		c := ok(d.name, "%s free at %s", size(n), d.dir)
		switch {
		case n < minDisk:
			c = c.fail("free some (df -h %s), or configure %s on a larger disk", d.dir, d.flag)
		case n < goodDisk:
			c = c.warn("enough to start with; a few busy sandboxes fill it: free some (df -h %s), or configure %s on a larger disk", d.dir, d.flag)
		}
		checks = append(checks, c)
	}
	return checks
}

// existing is dir, or the nearest directory above it that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// ports tries to listen where the server will.
func (e *Env) ports(ctx context.Context) []Check {
	var checks []Check
	for _, addr := range e.Listen {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", addr)
		if err == nil {
			l.Close()
			checks = append(checks, ok("port", "%s is free", addr))
			continue
		}
		c := ok("port", "cannot listen on %s: %v", addr, err)
		if errors.Is(err, syscall.EADDRINUSE) {
			_, port, _ := net.SplitHostPort(addr) // it was good enough to listen on
			c = ok("port", "%s is taken", addr).fail("find who has it: ss -ltnp 'sport = :%s'; stop that, or have Hutch listen elsewhere (--listen)", port)
		} else {
			c = c.fail("choose an address this machine has (ip addr shows them) with --listen")
		}
		checks = append(checks, c)
	}
	return checks
}

// sandbox really starts one.
func (e *Env) sandbox(ctx context.Context) Check {
	detail, err := e.Probe(ctx)
	if err != nil {
		return ok("sandbox", "a trial sandbox did not start: %v", err).
			fail("mend what is reported above first; if all of that is ok, the kernel's log may say why: dmesg | tail -n 50")
	}
	return ok("sandbox", "%s", detail)
}
