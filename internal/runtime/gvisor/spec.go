package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

const (
	// cpuPeriod of the quota, in microseconds: the kernel's default.
	cpuPeriod = 100_000
	// openFiles is the limit on a process's descriptors: what most distributions'
	// service managers give, high enough for build tools and servers.
	openFiles = 65536
	// goferMount is where an empty, read-only directory of the host is mounted on
	// the disk tier. Only with such a mount does runsc start a gofer, and only with
	// a gofer does it make the file that backs the writable layer.
	goferMount = "/opt/.hutch"
	// skippedType is a file system that gVisor does not know, so it leaves the mount
	// out. An entry for /tmp, even one left out, keeps it from mounting a tmpfs
	// there: agents write a lot to /tmp, which should count as disk.
	skippedType = "hutch-none"
)

// capabilities of root inside: what has a meaning in gVisor's kernel. CAP_NET_RAW is
// not among them, so that nothing inside forges packets; ping works without it.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
	"CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL",
	"CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MKNOD", "CAP_NET_ADMIN",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
	"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_PTRACE",
	"CAP_SYS_RESOURCE", "CAP_SYS_TTY_CONFIG",
}

// flags are the options every runsc of ours is started with; create adds the tier's.
func (r *Runtime) flags(spec runtime.Spec) []string {
	f := []string{
		"--root=" + r.rootDir(),
		"--platform=systrap",
		"--network=sandbox", // gVisor's own network stack; its link is ours
		"--directfs=false",  // the sentry runs as nobody, without capabilities
		"--ignore-cgroups",  // the child that becomes runsc is in them already
		"--host-settings=ignore",
		"--in-sandbox-cgroup=v2",
		"--restore-spec-validation=ignore", // ours is in snapshot.go
	}
	if !locked(spec) {
		f = append(f, "--allow-suid") // sudo, su
	}
	if spec.Resources.DiskTier == hutch.TierDisk {
		f = append(f, fmt.Sprintf("--overlay2=root:dir=%s,size=%s", r.upperDir(spec.ID), diskSize(spec.Resources)))
	}
	return f
}

// locked reports whether no program inside may gain rights. The first process keeps its
// own, so it still has to take them from what it starts: gVisor gives a program that root
// starts the bounding set, and with an empty one the agent would have none.
func locked(spec runtime.Spec) bool { return spec.Profile == hutch.ProfileLocked }

// upperDir is where the disk tier's writable layer lives, as a file without a name.
func (r *Runtime) upperDir(id hutch.SandboxID) string {
	return filepath.Join(r.boxDir(id), "upper")
}

// diskSize is the cap of the writable layer. In memory, files and programs share the
// memory limit, and files belong to no process: a layer that could fill the memory
// would get the whole sandbox killed, so it gets half at most.
func diskSize(res hutch.Resources) string {
	mb := res.DiskMB
	if res.DiskTier == hutch.TierMemory {
		mb = min(mb, max(1, res.MemoryMB/2))
	}
	return fmt.Sprintf("%dm", mb)
}

// ociSpec says how the sandbox looks inside. Its resources have no effect in runsc,
// which we tell to ignore cgroups; the sentry reads them to show its size inside.
func (r *Runtime) ociSpec(spec runtime.Spec) *specs.Spec {
	res := spec.Resources
	overlay := "memory"
	if res.DiskTier == hutch.TierDisk {
		overlay = "dir=" + r.upperDir(spec.ID)
	}
	quota, period := int64(res.MilliCPU)*cpuPeriod/1000, uint64(cpuPeriod)
	memory := int64(res.MemoryMB) << 20
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: spec.Hostname,
		Root:     &specs.Root{Path: r.emptyDir()},
		Process: &specs.Process{
			Args: []string{runtime.GuestPath},
			Cwd:  "/",
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"HOME=/root",
			},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			NoNewPrivileges: locked(spec),
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: openFiles, Soft: openFiles}},
		},
		Mounts: r.mounts(spec),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.CgroupNamespace},
			},
			Resources: &specs.LinuxResources{
				CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
				Memory: &specs.LinuxMemory{Limit: &memory},
			},
		},
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.source":  spec.Image,
			"dev.gvisor.spec.rootfs.type":    "erofs",
			"dev.gvisor.spec.rootfs.overlay": overlay,
			"dev.gvisor.spec.rootfs.options": "size=" + diskSize(res),
		},
	}
}

func (r *Runtime) mounts(spec runtime.Spec) []specs.Mount {
	res := spec.Resources
	// Linux gives shared memory half of all; on the memory tier the writable layer
	// may have that half.
	shm := res.MemoryMB / 2
	if res.DiskTier == hutch.TierMemory {
		shm = res.MemoryMB / 4
	}
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=1777", fmt.Sprintf("size=%dm", max(1, shm))}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup"},
		{Destination: "/tmp", Type: skippedType, Source: "none"},
		{Destination: runtime.GuestDir, Type: "erofs", Source: spec.Guest},
	}
	if res.DiskTier == hutch.TierDisk {
		m = append(m, specs.Mount{Destination: goferMount, Type: "bind", Source: r.emptyDir(), Options: []string{"ro", "bind"}})
	}
	return m
}

// writeBundle writes what runsc create reads into the sandbox's directory.
func (r *Runtime) writeBundle(spec runtime.Spec) error {
	b, err := json.Marshal(r.ociSpec(spec))
	if err != nil {
		return err
	}
	dir := r.boxDir(spec.ID)
	if spec.Resources.DiskTier == hutch.TierDisk {
		if err := os.Mkdir(r.upperDir(spec.ID), 0o700); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}

// check refuses a spec that would not become what it says.
func check(spec runtime.Spec) error {
	res := spec.Resources
	switch {
	case spec.ID == "":
		return hutch.FieldErrorf("id", "is missing")
	case res.MilliCPU < 10:
		return hutch.FieldErrorf("milli_cpu", "%d is less than the smallest share of a CPU, 10", res.MilliCPU)
	case res.MemoryMB < 32:
		return hutch.FieldErrorf("memory_mb", "%d is less than the smallest memory, 32", res.MemoryMB)
	case res.DiskMB < 1:
		return hutch.FieldErrorf("disk_mb", "%d must be at least 1", res.DiskMB)
	case res.Pids < 1:
		return hutch.FieldErrorf("pids", "%d must be at least 1", res.Pids)
	case spec.Profile != "" && !spec.Profile.Valid():
		return hutch.FieldErrorf("profile", "%q is neither %q nor %q", spec.Profile, hutch.ProfileRoot, hutch.ProfileLocked)
	case res.DiskTier != hutch.TierDisk && res.DiskTier != hutch.TierMemory:
		return hutch.FieldErrorf("disk_tier", "%q is neither %q nor %q", res.DiskTier, hutch.TierDisk, hutch.TierMemory)
	}
	return nil
}
