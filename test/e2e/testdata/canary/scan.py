"""Looks for a secret in everything that root can read in a sandbox, and prints where it is.

A line for each place: what was looked through, and the name of the place that was planted. The last
says how much was looked through. Whatever this process has of the key is not counted.
"""
import ctypes
import errno
import mmap
import os
import re
import socket
import stat
import sys

KEY = open("/root/canary/yek").read().strip()[::-1]
SINCE = float(sys.argv[1])
PRUNED = set(sys.argv[2:])  # large parts of the image, in which nothing was planted
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
wanted = re.compile(re.escape(KEY.encode()) + rb":([a-z]+)\.|" + re.escape(KEY.encode()))
found = set()
looked = {"names": 0, "files": 0, "memory": 0, "fresh": 0}
PIECE = 1 << 20


def look(where, data):
    if isinstance(data, str):
        data = data.encode(errors="surrogateescape")
    for m in wanted.finditer(data):
        found.add((where, (m.group(1) or b"?").decode()))


def read(path, most=64 << 20):
    out = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return out
    try:
        while len(out) < most:
            b = os.read(fd, PIECE)
            if not b:
                break
            out += b
    except OSError:
        pass
    finally:
        os.close(fd)
    return out


def syscall(number, *args):
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


# Files: all names, and the contents of those that are not the image's, which is from before.
for top, dirs, names in os.walk("/"):
    dirs[:] = [d for d in dirs if os.path.join(top, d) not in PRUNED | {"/proc"}]
    for name in dirs + names:
        path = os.path.join(top, name)
        looked["names"] += 1
        look("names", name)
        try:
            st = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISLNK(st.st_mode):
            look("links", os.readlink(path))
        if st.st_ctime < SINCE:
            continue
        try:
            for x in os.listxattr(path, follow_symlinks=False):
                look("attributes", os.getxattr(path, x, follow_symlinks=False))
        except OSError:
            pass
        if stat.S_ISREG(st.st_mode):
            looked["files"] += 1
            look("files", read(path))

# Processes: what is told of them, their memory, and what they hold open.
for pid in (p for p in os.listdir("/proc") if p.isdigit()):
    for name in ("environ", "cmdline", "cgroup", "mountinfo", "comm", "maps"):
        if pid != str(os.getpid()) or name != "environ":
            look(name, read("/proc/%s/%s" % (pid, name)))
    if pid == str(os.getpid()):
        continue
    try:
        mem = os.open("/proc/%s/mem" % pid, os.O_RDONLY)
    except OSError:
        continue
    for line in read("/proc/%s/maps" % pid).decode(errors="replace").splitlines():
        m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r\S+ \S+ \S+ \d+\s*(\S*)", line)
        if not m or m.group(3) in ("[vvar]", "[vsyscall]"):
            continue
        at, top = int(m.group(1), 16), int(m.group(2), 16)
        tail = b""
        while at < top:
            try:
                b = os.pread(mem, min(PIECE, top - at), at)
            except OSError:
                b = b""
            looked["memory"] += len(b)
            look("memory", tail + b)
            tail = b[-200:]
            at += len(b) or 4096
    os.close(mem)
    for fd in os.listdir("/proc/%s/fd" % pid):
        path = "/proc/%s/fd/%s" % (pid, fd)
        try:
            look("descriptors", os.readlink(path))
            st = os.stat(path)
            if stat.S_ISREG(st.st_mode):
                look("open files", read(path))
            elif stat.S_ISSOCK(st.st_mode):
                handle = syscall(434, int(pid), 0)
                s = socket.socket(fileno=syscall(438, handle, int(fd), 0))
                os.close(handle)
                look("addresses", repr(s.getsockname()))
                if s.type in (socket.SOCK_STREAM, socket.SOCK_DGRAM) and pid != "1":
                    look("sockets", s.recv(PIECE, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            pass

# The kernel's own.
for path in ("/proc/mounts", "/proc/net/unix", "/proc/net/tcp", "/proc/keys", "/proc/cmdline", "/proc/version", "/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sys/kernel/hostname", "/proc/sentry-meminfo", "/proc/gvisor/spec_environ"):
    look(path, read(path))
look("host name", socket.gethostname())
try:
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(syscall(29, 0x5eca9e, 0, 0), None, 0o10000)
    look("segments", ctypes.string_at(at, 4096))
except OSError:
    pass
try:
    q = syscall(68, 0x5eca9e, 0)
    text = ctypes.create_string_buffer(8192)
    syscall(70, q, ctypes.addressof(text), 8000, 0, 0o4000)
    look("queues", text.raw)
except OSError:
    pass


# What nobody has written to: memory and disk that may have been another's.
def fresh(where, m, size):
    zero = bytes(PIECE)
    for at in range(0, size, PIECE):
        b = m[at:at + PIECE]
        looked["fresh"] += len(b)
        if b != zero[:len(b)]:
            found.add((where, "not zero"))
            look(where, b)


size = 48 << 20
with mmap.mmap(-1, size) as m:
    fresh("fresh memory", m, size)
with mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as m:
    fresh("fresh private memory", m, 4 << 20)
for where in ("/srv", "/dev/shm", "/tmp"):
    path = where + "/fresh"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        size = 16 << 20
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP:
                raise
        os.ftruncate(fd, size)
        os.pwrite(fd, b"\0", size // 2 + 100)  # so that the block about it is there
        fresh("fresh blocks of " + where, mmap.mmap(fd, size, prot=mmap.PROT_READ), size)
    finally:
        os.close(fd)
        os.unlink(path)
for where, place in sorted(found):
    print(where, place, sep="\t")
print("looked through %(names)d names, %(files)d files, %(memory)d bytes of memory, %(fresh)d fresh bytes" % looked)
