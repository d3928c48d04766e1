"""Tries what would give rights that a locked sandbox does not give, and prints what worked."""
import ctypes, errno, os, shutil, signal, socket, struct, subprocess

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
tried = worked = 0


def door(name, fn):
    """Runs fn in a process of its own, for what it does must not help the next one."""
    global tried, worked
    tried += 1
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            fn()
        except (OSError, PermissionError, ValueError):
            os._exit(0)
        except BaseException as e:
            print("broken:", name, repr(e), flush=True)
            os._exit(2)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 1:
        worked += 1
        print("worked:", name, flush=True)
    elif code != 0:
        print("ended:", name, code, flush=True)


def call(nr, *args):
    """A system call; its failure is an OSError. On x86-64."""
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in args])
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


def some(what):
    """Nothing is no secret."""
    if not what:
        raise OSError(errno.ENODATA, "empty")


def write(path, text="1"):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


NEWUSER, NEWNS, NEWNET, NEWPID, NEWUTS, NEWIPC, NEWCGROUP = 0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000, 0x8000000, 0x2000000

# Another id.
for name, fn in {
    "setuid 0": lambda: os.setuid(0), "seteuid 0": lambda: os.seteuid(0), "setreuid 0": lambda: os.setreuid(-1, 0),
    "setresuid 0": lambda: os.setresuid(0, 0, 0), "setgid 0": lambda: os.setgid(0), "setresgid 0": lambda: os.setresgid(0, 0, 0),
    "setgroups": lambda: os.setgroups([0, 27, 42]), "setfsuid 0": lambda: (call(122, 0), os.listdir("/root")),
}.items():
    door(name, fn)

# Namespaces, each alone and with one of users before it, and by every call that makes one.
for flag, name in {NEWUSER: "user", NEWNS: "mnt", NEWNET: "net", NEWPID: "pid", NEWUTS: "uts", NEWIPC: "ipc", NEWCGROUP: "cgroup"}.items():
    door("unshare " + name, lambda: call(272, flag))
    door("unshare user and " + name, lambda: call(272, flag | NEWUSER))


def clone(flags):
    if call(56, flags | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def clone3(flags):
    args = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    if call(435, args, len(args)) == 0:
        os._exit(0)


door("clone user", lambda: clone(NEWUSER))
door("clone user and mnt", lambda: clone(NEWUSER | NEWNS))
door("clone3 user", lambda: clone3(NEWUSER))
door("clone3 user and mnt", lambda: clone3(NEWUSER | NEWNS))
for ns in ("mnt", "net", "pid", "user", "uts", "ipc"):
    door("setns 1 " + ns, lambda: call(308, os.open("/proc/1/ns/" + ns, os.O_RDONLY), 0))

# Mounts, by the old calls and the new, and roots.
MS_REMOUNT, MS_BIND = 32, 4096
door("mount tmpfs", lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0))
door("mount proc", lambda: call(165, b"none", b"/tmp", b"proc", 0, 0))
door("mount bind", lambda: call(165, b"/tmp", b"/etc", 0, MS_BIND, 0))
door("remount /", lambda: call(165, 0, b"/", 0, MS_REMOUNT | MS_BIND, 0))
door("remount / without bind", lambda: call(165, b"none", b"/", b"overlay", MS_REMOUNT, 0))
for place in (b"/tmp", b"/workspace", b"/dev/shm", b"/proc", b"/sys", b"/"):
    door("umount %s" % place, lambda: call(166, place, 2))
door("open_tree", lambda: call(428, -100, b"/", 1))
door("fsopen", lambda: call(430, b"tmpfs", 0))
door("move_mount", lambda: call(429, -100, b"/tmp", -100, b"/etc", 0))
door("mount_setattr", lambda: call(442, -100, b"/", 0, struct.pack("4Q", 0, 1, 0, 0), 32))
door("chroot", lambda: os.chroot("/tmp"))
door("pivot_root", lambda: call(155, b"/tmp", b"/tmp"))

# Devices, programs that carry rights, files by handle.
door("mknod null", lambda: os.mknod("/tmp/door-null", 0o666 | 0o020000, os.makedev(1, 3)))
door("mknod disk", lambda: os.mknod("/tmp/door-disk", 0o666 | 0o060000, os.makedev(8, 0)))
open("/tmp/door-file", "w").close()


def file_capability():
    # Some kernels let everybody write the attribute. What counts is whether it has an effect.
    shutil.copy("/bin/cat", "/tmp/door-cat")
    os.chmod("/tmp/door-cat", 0o6755)
    try:
        os.setxattr("/tmp/door-cat", "security.capability", struct.pack("<5I", 0x02000001, 0xffffffff, 0, 0x1ff, 0))
    except OSError:
        pass
    for line in subprocess.check_output(["/tmp/door-cat", "/proc/self/status"], text=True).splitlines():
        if line.startswith("Cap") and int(line.split()[1], 16):
            return
    raise PermissionError


door("file capability", file_capability)
door("chown to root", lambda: os.chown("/tmp/door-file", 0, 0))
door("trusted attribute", lambda: os.setxattr("/tmp/door-file", "trusted.x", b"1"))
door("open_by_handle_at", lambda: call(304, os.open("/", os.O_RDONLY), struct.pack("II8s", 8, 1, b"\2"), 0))

# Capabilities and what takes them away.
door("capset", lambda: call(126, struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 0xffffffff, 0xffffffff, 0xffffffff, 0x1ff, 0x1ff, 0x1ff)))
door("capset inheritable", lambda: call(126, struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 0, 0, 1 << 21, 0, 0, 0)))
door("ambient capability", lambda: call(157, 47, 2, 21, 0, 0))
door("no_new_privs off", lambda: call(157, 38, 0, 0, 0, 0))
door("securebits", lambda: call(157, 28, 0x2f, 0, 0, 0))


# The agent.
def vm_read():
    buf = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(buf), 8)
    remote = struct.pack("QQ", 0x400000, 8)
    call(310, 1, local, 1, remote, 1, 0)


for request, name in ((16, "attach"), (0x4206, "seize")):
    door("ptrace " + name, lambda: call(101, request, 1, 0, 0))
    for task in os.listdir("/proc/1/task"):
        door("ptrace %s of a thread" % name, lambda: call(101, request, int(task), 0, 0))
door("process_vm_readv", vm_read)
for f in ("mem", "maps", "environ", "auxv", "syscall", "stack", "pagemap", "io"):
    door("/proc/1/" + f, lambda: some(os.read(os.open("/proc/1/" + f, os.O_RDONLY), 1)))
for d in ("fd", "map_files", "root", "cwd"):
    door("/proc/1/" + d, lambda: some(os.listdir("/proc/1/%s/" % d)))
    door("/proc/1/task/1/" + d, lambda: some(os.listdir("/proc/1/task/1/%s/" % d)))
door("/proc/1/fd/0", lambda: os.open("/proc/1/fd/0", os.O_RDWR))
door("the agent's root", lambda: os.open("/proc/1/root/etc/shadow", os.O_RDONLY))
door("pidfd_getfd", lambda: call(438, call(434, 1, 0), 0, 0))
door("kill 1", lambda: os.kill(1, signal.SIGKILL))
door("stop 1", lambda: os.kill(1, signal.SIGSTOP))
door("limits of 1", lambda: call(302, 1, 7, struct.pack("QQ", 0, 0), 0))
door("oom score of 1", lambda: write("/proc/1/oom_score_adj", "1000"))
door("priority of 1", lambda: call(203, 1, 8, b"\1" * 8))

# The kernel's own parameters, the machine's name and clock, control groups.
for root, dirs, files in os.walk("/proc/sys"):
    for f in files:
        door(os.path.join(root, f), lambda: os.open(os.path.join(root, f), os.O_WRONLY))
for root, dirs, files in os.walk("/sys/fs/cgroup"):
    for f in files:
        door(os.path.join(root, f), lambda: os.open(os.path.join(root, f), os.O_WRONLY))
    door("mkdir " + root, lambda: os.mkdir(root + "/door"))
door("sysrq", lambda: write("/proc/sysrq-trigger", "b"))
door("sethostname", lambda: socket.sethostname("door"))
door("clock", lambda: call(227, 0, struct.pack("qq", 1, 0)))
door("reboot", lambda: call(169, 0xfee1dead, 672274793, 0, 0))
door("module", lambda: call(175, b"x", 1, b""))
door("swapon", lambda: call(167, b"/tmp/door-file", 0))
door("syslog clear", lambda: call(103, 5, 0, 0))
door("bpf", lambda: call(321, 0, struct.pack("4I", 1, 4, 4, 1) + bytes(56), 72))
door("quotactl", lambda: call(179, 0x800002 << 8, b"/", 0, 0))

# Sockets that forge packets, interfaces, addresses.
door("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
door("packet socket, cooked", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 3))
for proto in (socket.IPPROTO_RAW, socket.IPPROTO_ICMP, socket.IPPROTO_TCP, socket.IPPROTO_UDP):
    door("raw socket %d" % proto, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, proto))
    door("raw socket %d, IPv6" % proto, lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, proto))


def interface(request, rest):
    import fcntl
    fcntl.ioctl(socket.socket(), request, struct.pack("16s24s", b"lo", rest))


door("interface down", lambda: interface(0x8914, struct.pack("H", 0)))
door("interface address", lambda: interface(0x8916, struct.pack("HH4s", 2, 0, bytes([127, 0, 0, 2]))))


def add_address():
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    msg = struct.pack("IHHII", 40, 20, 0x605, 1, 0) + struct.pack("BBBBI", 2, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7])) + struct.pack("HH4s", 8, 1, bytes([10, 9, 8, 7]))
    s.send(msg)
    reply = s.recv(4096)
    if struct.unpack_from("i", reply, 16)[0] < 0:
        raise PermissionError


door("add an address", add_address)

# The system's files, also by names that its user may have rights on.
for place in ("/", "/etc", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/opt", "/opt/hutch", "/var", "/var/lib", "/var/cache", "/run", "/home", "/root", "/boot", "/srv", "/mnt", "/dev", "/dev/pts", "/sys", "/run/hutch", "/var/lib/hutch"):
    door("new file in " + place, lambda: os.open(place + "/door", os.O_CREAT | os.O_WRONLY))
    door("new directory in " + place, lambda: os.mkdir(place + "/door"))
    door("times of " + place, lambda: os.utime(place))
for f in ("/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/sudoers", "/usr/bin/env", "/usr/bin/sudo", "/bin/sh", "/opt/hutch/hutch-guest"):
    door("write " + f, lambda: os.open(f, os.O_WRONLY))
    door("remove " + f, lambda: os.unlink(f))
    door("move " + f, lambda: os.rename(f, "/tmp/door-moved"))
    door("mode of " + f, lambda: os.chmod(f, 0o777))
door("read /etc/shadow", lambda: open("/etc/shadow").read())
door("hard link to a program that carries rights", lambda: os.link("/usr/bin/sudo", "/tmp/door-sudo"))

print("tried" if tried > 350 else "tried only", "worked", worked)
