"""Fills one table of the kernel after the other, until it is refused or has taken enough."""
import ctypes
import errno
import os
import resource
import select
import socket
import sys
import time
from attack import *

os.makedirs("/tmp/" + MARK, exist_ok=True)
os.chdir("/tmp/" + MARK)
resource.setrlimit(resource.RLIMIT_NOFILE, (60000, 60000))
kept = []


def fill(make, most):
    """Calls make until it fails; returns how often it did not, and the error."""
    until = time.monotonic() + 10
    for n in range(most):
        try:
            kept.append(make(n))
        except OSError as e:
            return n, errno.errorcode.get(e.errno)
        if n % 64 == 0 and time.monotonic() > until:
            return n, "time"
    return most, None


def descriptors(n): return os.open("/dev/null", os.O_RDONLY)
def sockets(n): return socket.socket(socket.AF_INET, socket.SOCK_DGRAM if n % 2 else socket.SOCK_STREAM).detach()
def listeners(n):
    s = socket.socket()
    s.bind(("127.0.0.1", 1024 + n))
    s.listen(1)
    return s.detach()
def pairs(n):
    a, b = socket.socketpair()
    a.setblocking(False)
    try:
        while True:
            a.send(bytes(4096))
    except BlockingIOError:
        pass
    return a.detach(), b.detach()
def pipes(n):
    r, w = os.pipe2(os.O_NONBLOCK)
    os.write(w, bytes(65536))
    return r, w
def inodes(n): os.close(os.open("f%d" % n, os.O_CREAT | os.O_WRONLY))
def directories(n): os.mkdir("d%d" % n)
def deep(n):
    os.mkdir("d")
    os.chdir("d")
def links(n): os.symlink("x" * 4000, "l%d" % n)
def unlinked(n):
    fd = os.open("u", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.unlink("u")
    return fd
def xattrs(n):
    os.close(os.open("x%d" % (n // 100), os.O_CREAT | os.O_WRONLY))
    os.setxattr("x%d" % (n // 100), "user.%d%s" % (n, "n" * 200), bytes(4096))
def mounts(n): mount("none", "m%d" % n, "tmpfs")
def watches(n):
    if n % 1000 == 0:
        watches.fd = libc.inotify_init1(0o4000)
    os.makedirs("w%d" % n, exist_ok=True)
    if libc.inotify_add_watch(watches.fd, b"w%d" % n, 0xfff) < 0:
        raise OSError(ctypes.get_errno(), "")
def queued(n):
    if n == 0:
        queued.fd = libc.inotify_init1(0o4000)
        libc.inotify_add_watch(queued.fd, b".", 0xfff)
    os.close(os.open("q%d" % (n % 10), os.O_CREAT | os.O_WRONLY))
def epolls(n):
    e = select.epoll()
    if n:
        e.register(epolls.last, 1)
    epolls.last = e
    return e
def timers(n):
    t = ctypes.c_int()
    if libc.timer_create(1, None, ctypes.byref(t)) < 0:
        raise OSError(ctypes.get_errno(), "")
def segments(n):
    i = syscall(29, 0, 4096, 0o1600)
    return i
def maps(n): return syscall(9, 0, 4096, 1 if n % 2 else 3, 0x22, -1, 0)
def memfds(n): return os.memfd_create("m%d" % n)
def namespaces(n): syscall(272, 0x20000)
def locks(n):
    import fcntl
    if n == 0:
        locks.fd = os.open("lock", os.O_CREAT | os.O_RDWR)
    fcntl.lockf(locks.fd, fcntl.LOCK_EX, 1, n * 2)
def terminals(n): return os.openpty()


which = sys.argv[1]
done, why = fill(globals()[which], int(sys.argv[2]))
print(MARK, which, done, why, flush=True)
os._exit(0)
