package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// minKernel is what Hutch is tested with at the oldest; pidfd_open, which everything
// that outlives a restart rests on, came with 5.3, Debian 12 has 6.1.
var minKernel = [2]int{5, 10}

func (e *Env) kernel() Check {
	release, err := e.read("proc/sys/kernel/osrelease")
	if err != nil {
		return ok("kernel", "cannot read the kernel's version: %v", err).fail("mount /proc: mount -t proc proc /proc")
	}
	c := ok("kernel", "Linux %s", release)
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return c.warn("the version could not be understood; see that `uname -r` says %d.%d or newer", minKernel[0], minKernel[1])
	}
	major, _ := strconv.Atoi(parts[0]) // digits only; too many of them make it large
	minor, _ := strconv.Atoi(parts[1])
	if major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		return c.fail("boot Linux %d.%d or newer: apt-get install -y linux-image-amd64 && reboot", minKernel[0], minKernel[1])
	}
	return c
}

// seccomp: sandboxed programs' system calls reach gVisor by a trap, and its own are
// filtered.
func (e *Env) seccomp() Check {
	have, err := e.read("proc/sys/kernel/seccomp/actions_avail")
	if err != nil || !slices.Contains(strings.Fields(have), "trap") {
		return ok("seccomp", "the kernel has no seccomp filters").
			fail("boot a kernel with CONFIG_SECCOMP_FILTER=y; Debian's has it: apt-get install -y linux-image-amd64 && reboot")
	}
	return ok("seccomp", "filters, with trap")
}

// ptrace: gVisor attaches to the processes that sandboxed code runs in, once each.
func (e *Env) ptrace() Check {
	scope, err := e.read("proc/sys/kernel/yama/ptrace_scope")
	if err == nil && scope == "3" {
		return ok("ptrace", "kernel.yama.ptrace_scope is 3: attaching is switched off for everybody until the next boot").
			fail("remove the setting from /etc/sysctl.d (grep -r ptrace_scope /etc/sysctl.*), then run: reboot")
	}
	return ok("ptrace", "root may attach")
}

// namespaces: each sandbox's kernel runs as nobody in a user namespace.
func (e *Env) namespaces() Check {
	text, err := e.read("proc/sys/user/max_user_namespaces")
	n, convErr := strconv.Atoi(text)
	switch {
	case err != nil || convErr != nil:
		return ok("namespaces", "the kernel has no user namespaces").
			fail("boot a kernel with CONFIG_USER_NS=y; Debian's has it: apt-get install -y linux-image-amd64 && reboot")
	case n == 0:
		return ok("namespaces", "user.max_user_namespaces is 0: none can be made").fail("run: sysctl -w user.max_user_namespaces=65536")
	case n < 4096:
		return ok("namespaces", "user.max_user_namespaces is %d: as many sandboxes at most", n).warn("run: sysctl -w user.max_user_namespaces=65536")
	}
	return ok("namespaces", "up to %d user namespaces", n)
}

// overcommit: a sandbox's kernel reserves far more address space than it will use.
func (e *Env) overcommit() Check {
	if mode, err := e.read("proc/sys/vm/overcommit_memory"); err == nil && mode == "2" {
		return ok("overcommit", "vm.overcommit_memory is 2: reserving address space counts as use").fail("run: sysctl -w vm.overcommit_memory=0")
	}
	return ok("overcommit", "address space may be reserved")
}

// wanted are the controllers that limit a sandbox.
var wanted = []string{"memory", "cpu", "pids"}

func (e *Env) cgroups() Check {
	text, err := e.read("proc/self/mountinfo")
	if err != nil {
		return ok("cgroups", "cannot read the mounts: %v", err).fail("mount /proc: mount -t proc proc /proc")
	}
	v1, unified := cgroupMounts(text)
	if have, err := e.read(filepath.Join(unified, "cgroup.controllers")); unified != "" && err == nil {
		if fields := strings.Fields(have); slices.Contains(fields, "memory") {
			return e.cgroupsV2(unified, fields)
		}
	}
	if len(v1) == 0 {
		if unified != "" {
			return ok("cgroups", "version 2 without the memory controller").
				fail("boot with cgroup_enable=memory: add it to GRUB_CMDLINE_LINUX in /etc/default/grub, then run: update-grub && reboot")
		}
		return ok("cgroups", "not mounted").fail("run: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	return e.cgroupsV1(v1)
}

// cgroupsV2 checks the unified hierarchy: controllers there, and ours to use.
func (e *Env) cgroupsV2(mount string, have []string) Check {
	if missing := without(wanted, have); len(missing) > 0 {
		return ok("cgroups", "version 2 without %s", strings.Join(missing, ", ")).
			fail("inside a container or a slice, let them be delegated (systemd: Delegate=yes in the unit, then systemctl daemon-reload); on a machine of its own boot a kernel that has them")
	}
	if err := unix.Access(filepath.Join(e.Root, mount, "cgroup.subtree_control"), unix.W_OK); err != nil {
		return ok("cgroups", "version 2, but it may not be written to (%v)", err).fail("run Hutch on the machine itself, or remount: mount -o remount,rw %s", mount)
	}
	return ok("cgroups", "version 2 with %s", strings.Join(wanted, ", "))
}

// cgroupsV1 checks the hierarchies of the controllers.
func (e *Env) cgroupsV1(mounts map[string]string) Check {
	for _, controller := range append(slices.Clone(wanted), "cpuacct") {
		mount, found := mounts[controller]
		if !found {
			fix := "run: mkdir -p /sys/fs/cgroup/%[1]s && mount -t cgroup -o %[1]s cgroup /sys/fs/cgroup/%[1]s"
			return ok("cgroups", "version 1 without %s", controller).fail(fix, controller)
		}
		if err := unix.Access(filepath.Join(e.Root, mount), unix.W_OK); err != nil {
			return ok("cgroups", "version 1, but %s may not be written to (%v)", controller, err).
				fail("run Hutch on the machine itself, or remount: mount -o remount,rw %s", mount)
		}
	}
	return ok("cgroups", "version 1 with %s", strings.Join(wanted, ", "))
}

// cgroupMounts reads mountinfo (proc_pid_mountinfo(5)): where each version 1
// controller is mounted, and the unified hierarchy.
func cgroupMounts(mountinfo string) (v1 map[string]string, unified string) {
	v1 = map[string]string{}
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(line, " - ")
		mount, fsys := strings.Fields(before), strings.Fields(after)
		if !found || len(mount) < 5 || len(fsys) < 3 {
			continue
		}
		switch fsys[0] {
		case "cgroup2":
			unified = mount[4]
		case "cgroup":
			for option := range strings.SplitSeq(fsys[2], ",") {
				v1[option] = mount[4]
			}
		}
	}
	return v1, unified
}

// without returns what of want is not in have.
func without(want, have []string) []string {
	var missing []string
	for _, w := range want {
		if !slices.Contains(have, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

// kvm is for information: without it sandboxes run on gVisor's own platform.
func (e *Env) kvm() Check {
	if _, err := os.Stat(filepath.Join(e.Root, "dev/kvm")); err != nil {
		return ok("kvm", "not there; not needed")
	}
	return ok("kvm", "there; not used yet")
}

// size prints bytes in GiB.
func size(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
