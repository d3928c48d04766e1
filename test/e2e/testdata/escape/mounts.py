"""Mounts everything, and looks for the host in it."""
import ctypes
import os
import stat
from attack import *
from errno import *

BIND, REC, REMOUNT = 4096, 16384, 32
base = "/tmp/" + MARK
os.makedirs(base)
root = os.stat("/")
at = iter(range(10000))


def somewhere():
    return "%s/%d" % (base, next(at))


def looks_like_host(top):
    """The host's canary, by its path below top."""
    return [p for p in target["files"] for dots in ("", "/..", "/../../../../../..") if os.path.lexists(top + dots + p)]


# What a gofer, a disk or another kernel would answer. Descriptors are those of the sandbox's
# kernel, where the root image, the gofer and the control socket are.
for fd in list(range(0, 64)) + list(range(250, 260)):
    for kind, data in (("9p", "trans=fd,rfdno=%d,wfdno=%d,aname=/" % (fd, fd)), ("gofer", "trans=fd,rfdno=%d,wfdno=%d,aname=/" % (fd, fd)), ("erofs", "ifd=%d" % fd), ("lisafs", "trans=fd,rfdno=%d,wfdno=%d" % (fd, fd))):
        refused("%s on descriptor %d" % (kind, fd), lambda: mount("none", somewhere(), kind, 0, data), ENODEV, EPERM, EINVAL)
for source in ("/dev/sda", "/dev/vda", "/dev/loop0", "/dev/nvme0n1", "/dev/root", "UUID=0"):
    for kind in ("ext2", "ext4", "xfs", "btrfs", "vfat", "iso9660", "squashfs", "erofs", "udf"):
        refused("mount %s as %s" % (source, kind), lambda: mount(source, somewhere(), kind), ENODEV, ENOENT, ENOTBLK, EPERM)
for kind in ("debugfs", "tracefs", "securityfs", "bpf", "binfmt_misc", "configfs", "hugetlbfs", "pstore", "efivarfs", "fusectl", "nfs", "nfs4", "cifs", "ceph", "virtiofs", "vboxsf", "autofs", "rpc_pipefs", "selinuxfs", "smackfs", "resctrl", "host", "hostfs", "rootfs", "ramfs", "nsfs", "pipefs", "sockfs"):
    refused("mount " + kind, lambda: mount("none", somewhere(), kind), ENODEV, EPERM, EINVAL)

# What may be mounted is of this kernel, and shows nothing of the one below.
for kind, data in (("proc", ""), ("sysfs", ""), ("devtmpfs", ""), ("devpts", "newinstance"), ("tmpfs", ""), ("cgroup2", ""), ("cgroup", "memory"), ("mqueue", "")):
    here = somewhere()
    if allowed("mount " + kind, lambda: mount("none", here, kind, 0, data) or True):
        check("%s shows nothing of the host" % kind, not looks_like_host(here), here)
        if kind == "proc":
            pids = [int(p) for p in os.listdir(here) if p.isdigit()]
            check("a proc of its own has its own processes", max(pids) < 100000 and not set(pids) & set(target["pids"]), pids)
        if kind == "sysfs":
            check("a sysfs of its own has no disks", not os.listdir(here + "/block"))
        if kind == "devtmpfs":
            for name in os.listdir(here):
                mode = os.lstat(here + "/" + name).st_mode
                check("no disk in devtmpfs: " + name, not stat.S_ISBLK(mode))

# Overlays and binds of every way to the root, and up from there.
for n, source in enumerate(("/", "/proc/1/root", "/proc/self/root", "/proc/1/root/..", "/proc/1/cwd", "/proc/thread-self/root", "/opt/.hutch", "/opt/hutch", "/dev", "/proc/1/fd", "/proc/1/ns", "/sys", "/..")):
    here = somewhere()
    if allowed("bind " + source, lambda: mount(source, here, None, BIND | (REC if n % 2 else 0)) or True):
        check("bind of %s is not the host" % source, not looks_like_host(here))
    upper, work, here = somewhere(), somewhere(), somewhere()
    os.makedirs(upper)
    os.makedirs(work)
    if allowed("overlay on " + source, lambda: mount("none", here, "overlay", 0, "lowerdir=%s,upperdir=%s,workdir=%s" % (source, upper, work)) or True):
        check("overlay of %s is not the host" % source, not looks_like_host(here))
for flags in (REMOUNT, REMOUNT | 1, BIND | REMOUNT, 1 << 17, 1 << 18, 1 << 19, 1 << 20):
    for where in ("/", "/sys", "/opt/hutch", "/opt/.hutch", "/proc"):
        allowed("change the mount at " + where, lambda: mount("none", where, None, flags))
refused("the agent's image stays as it is", lambda: write("/opt/hutch/hutch-guest", b"x"), EROFS)
if os.path.isdir("/opt/.hutch"):
    refused("the host's directory behind the gofer", lambda: os.open("/opt/.hutch/" + MARK, os.O_CREAT | os.O_RDWR), EROFS, EACCES, EPERM)
    refused("a device through the gofer", lambda: os.mknod("/opt/.hutch/dev", stat.S_IFBLK | 0o600, os.makedev(8, 0)), EROFS, EACCES, EPERM)
    refused("a link through the gofer", lambda: os.symlink("/", "/opt/.hutch/l"), EROFS, EACCES, EPERM)
    check("and it is empty", os.listdir("/opt/.hutch") == [])
    for name in ("..", "../..", "../../.."):
        check("up from it is not the host", not looks_like_host("/opt/.hutch/" + name))

# Handles of files, and every descriptor of the agent, as ways round.
handle = ctypes.create_string_buffer(256)
for n in range(0, 4):
    ctypes.memset(handle, n, 256)
    refused("open by handle", lambda: syscall(304, -100, ctypes.addressof(handle), 0))
for pid in (p for p in os.listdir("/proc") if p.isdigit()):
    for kind in ("root", "cwd", "exe"):
        check("%s of %s" % (kind, pid), not looks_like_host("/proc/%s/%s" % (pid, kind)))
    for fd in allowed("descriptors of " + pid, lambda: os.listdir("/proc/%s/fd" % pid)) or []:
        check("descriptor %s of %s" % (fd, pid), not looks_like_host("/proc/%s/fd/%s" % (pid, fd)))

# Out of a changed root, in new namespaces, the old way.
pid = os.fork()
if pid == 0:
    try:
        allowed("new namespaces", lambda: syscall(272, 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x40000000))
        os.makedirs(base + "/jail", exist_ok=True)
        fd = os.open("/", os.O_RDONLY)
        os.chroot(base + "/jail")
        os.fchdir(fd)
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        now = os.stat("/")
        check("up and out ends at its own root", (now.st_dev, now.st_ino) == (root.st_dev, root.st_ino) and not looks_like_host(""))
    finally:
        os._exit(1 if broken else 0)
check("breaking out of a root", os.waitpid(pid, 0)[1] == 0)
check("the root is what it was", (os.stat("/..").st_dev, os.stat("/../..").st_ino) == (root.st_dev, root.st_ino))
for p in target["files"]:
    refused("the host's " + p, lambda: os.open(p, os.O_RDONLY), ENOENT, ENOTDIR)
text = read("/proc/self/mountinfo") + read("/proc/self/mounts")
check("no path of the host in the list of mounts", not any(p.encode() in text for p in target["files"]))
end()
