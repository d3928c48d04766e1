"""Writes to whatever in /proc and /sys rules a kernel, and reads whatever tells of it."""
import os
from attack import *
from errno import *

value = ("|/tmp/" + MARK).encode()
# After a remount, which root may do: nothing there is the host's.
allowed("remount /sys", lambda: mount("none", "/sys", None, 32))
for path in (
    "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/poweroff_cmd", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname", "/proc/sys/kernel/kexec_load_disabled", "/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/kernel/perf_event_paranoid", "/proc/sys/kernel/dmesg_restrict",
    "/proc/sys/kernel/usermodehelper/bset", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/core_pipe_limit", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", "/proc/sys/kernel/shmmax", "/proc/sys/kernel/msgmax",
    "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/suid_dumpable", "/proc/sys/fs/protected_symlinks", "/proc/sys/fs/file-max", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/vm/panic_on_oom",
    "/proc/sys/vm/mmap_min_addr", "/proc/sys/vm/swappiness", "/proc/sys/net/core/rmem_max", "/proc/sys/net/core/bpf_jit_enable", "/proc/acpi/wakeup", "/proc/bus/pci/00", "/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/kcore", "/proc/kallsyms",
    "/proc/kmsg", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi/scsi", "/proc/fs/xfs", "/proc/asound/version", "/proc/driver/rtc", "/proc/dynamic_debug/control", "/proc/latency_stats", "/proc/config.gz",
    "/sys/kernel/uevent_helper", "/sys/kernel/kexec_crash_size", "/sys/kernel/debug", "/sys/kernel/security/lockdown", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/profiling", "/sys/kernel/vmcoreinfo", "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/notify_on_release", "/sys/fs/cgroup/devices.allow", "/sys/fs/bpf", "/sys/fs/selinux/enforce", "/sys/power/state", "/sys/power/disk", "/sys/module/kernel/parameters/panic", "/sys/firmware/efi/vars", "/sys/firmware/acpi/tables", "/sys/firmware/memmap",
    "/sys/bus/pci/rescan", "/sys/class/net/eth0/address", "/sys/block/sda/uevent", "/sys/devices/virtual/powercap", "/sys/devices/system/memory/probe", "/sys/hypervisor/uuid",
):
    refused("write " + path, lambda: write(path, value), ENOENT, EIO, EACCES, EPERM, EROFS, EISDIR, EINVAL, ENOTDIR)
for top, _, names in os.walk("/proc/sys"):
    for name in names:
        # What may be changed is a matter of the sandbox's kernel; the host is looked at afterwards.
        allowed("change " + name, lambda: write(os.path.join(top, name), read(os.path.join(top, name))))
for path, v in (("/proc/sys/kernel/yama/ptrace_scope", b"0"), ("/proc/sys/net/ipv4/ip_forward", b"1"), ("/proc/sys/kernel/pid_max", b"4194304"), ("/proc/sys/kernel/randomize_va_space", b"0"), ("/proc/1/oom_score_adj", b"1000"), ("/proc/self/oom_score_adj", b"-1000")):
    allowed("change " + path, lambda: write(path, v))

# The agent and its program, and one's own, which is a file of the sandbox like others.
refused("the agent's program", lambda: write("/proc/1/exe", b"x"), EROFS, ETXTBSY)
refused("the agent's memory at no address", lambda: os.pwrite(os.open("/proc/1/mem", os.O_RDWR), b"x", 0))
# In its memory it can be changed, which is this sandbox's own copy.
allowed("the agent's program in its memory", lambda: os.pwrite(os.open("/proc/1/mem", os.O_RDWR), b"x", 0x400000))
check("the agent's program is as it was", read("/opt/hutch/hutch-guest")[:4] == b"\x7fELF")
for path in ("/proc/1/uid_map", "/proc/1/gid_map", "/proc/1/setgroups", "/proc/1/attr/current", "/proc/1/attr/exec", "/proc/1/clear_refs", "/proc/1/ns/pid", "/proc/1/timens_offsets", "/proc/1/sched"):
    refused("write " + path, lambda: write(path, b"0 0 1"))
os.system("cp /bin/true /tmp/%s && /tmp/%s" % (MARK, MARK))
allowed("its own program", lambda: write("/tmp/" + MARK, b"x"))

# What is told of the kernel below.
boot = read("/proc/sys/kernel/random/boot_id").decode().strip()
check("another boot than the host's", boot != target["boot_id"], boot)
check("another kernel than the host's", target["release"] not in read("/proc/version").decode() + os.uname().release)
check("another name than the host's", os.uname().nodename != target["hostname"])
check("no modules", read("/proc/modules") == b"" if os.path.exists("/proc/modules") else True)
check("no disks", os.listdir("/sys/block") == [] if os.path.exists("/sys/block") else True)
said = {p: read(p) for p in ("/proc/cmdline", "/proc/self/cgroup", "/proc/1/cgroup", "/proc/self/mountinfo", "/proc/gvisor/spec_environ", "/proc/1/environ", "/proc/1/cmdline", "/proc/sentry-meminfo", "/proc/net/unix", "/proc/net/tcp")}
for path, text in said.items():
    for needle in target["files"] + target["unix"] + [target["hostname"]]:
        if len(needle) > 6:
            check("%s does not tell of %s" % (path, needle), needle.encode() not in text)
for pid in target["pids"]:
    check("process %d of the host is not shown" % pid, not os.path.exists("/proc/%d" % pid) or pid < 300)
    if pid >= 300:
        refused("signal to process %d of the host" % pid, lambda: os.kill(pid, 0), ESRCH)
end()
