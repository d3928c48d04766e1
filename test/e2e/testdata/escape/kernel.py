"""Calls whatever of a kernel has let people out before."""
import ctypes
import mmap
import os
import signal
from attack import *
from errno import *

buf = ctypes.create_string_buffer(65536)
A = ctypes.addressof(buf)
NEVER = (EPERM, ENOSYS, EACCES, ENODEV, ENOTSUP, EOPNOTSUPP)
fd = os.open("/bin/true", os.O_RDONLY)

for name, number, *args in (
    ("load a module", 175, A, 64, A), ("load a module from a file", 313, fd, A, 0), ("unload a module", 176, A, 0),
    ("load another kernel", 246, 0, 0, 0, 0), ("load another kernel from a file", 320, fd, fd, 1, A, 0), ("restart", 169, 0xfee1dead, 672274793, 0x1234567, 0),
    ("switch off", 169, 0xfee1dead, 672274793, 0x4321fedc, 0), ("swap", 167, A, 0), ("swap off", 168, A), ("port access", 172, 3), ("some ports", 173, 0, 16, 1),
    ("performance counters", 298, A, 0, -1, -1, 0), ("faults in user space", 323, 0), ("io_uring", 425, 8, A), ("io_uring enter", 426, fd, 1, 1, 0, 0), ("io_uring register", 427, fd, 0, A, 1),
    ("compare kernels' objects", 312, 1, 1, 0, 0, 0), ("handles of files", 304, -100, A, 0), ("watch a file system", 300, 0, 0), ("accounting", 163, 0), ("quotas", 179, 0, A, 0, A),
    ("set the clock", 164, A, 0), ("set the clock by id", 227, 0, A), ("slew the clock", 159, A), ("segment descriptors", 154, 1, A, 16), ("hang up", 153), ("secret memory", 447, 0),
    ("profiling cookie", 212, 0, A, 16), ("move pages", 279, 1, 1, A, A, A, 0),
):
    ctypes.memset(buf, 0, 4096)
    want = NEVER + ((EINVAL,) if number in (154, 300, 227, 164) else ()) + ((EBADF,) if number in (426, 427) else ())
    refused(name, lambda: syscall(number, *args), *want)
for command in range(0, 38):
    ctypes.memset(buf, 0, 256)
    refused("bpf %d" % command, lambda: syscall(321, command, A, 128), EPERM, EINVAL, ENOSYS, EBADF)

# Keys, queues, segments and semaphores are this kernel's own: what is written into them must not
# show on the host, nor the host's here.
key = MARK.encode() + b"\0"
allowed("add a key", lambda: syscall(248, b"user\0", key, key, 8, -3))
allowed("a keyring of one's own", lambda: syscall(250, 1, key))
for ring in (-1, -2, -3, -4, -5):
    allowed("read keyring %d" % ring, lambda: syscall(250, 11, ring, A, 65536))
refused("the host's key", lambda: syscall(249, b"user\0", target["key"].encode() + b"\0", 0, 0), ENOKEY, ENOSYS, EPERM, EACCES)
shm = allowed("a segment", lambda: syscall(29, 0x5eca9e, 4096, 0o1666))
for k in target["ipc"]:
    refused("the host's segment", lambda: syscall(29, k, 0, 0), ENOENT)
    refused("the host's semaphore", lambda: syscall(64, k, 0, 0), ENOENT)
    refused("the host's queue", lambda: syscall(68, k, 0), ENOENT, ENOSYS)

# Traced processes and others' memory: its own only.
pid = os.fork()
if pid == 0:
    syscall(101, 0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.waitpid(pid, 0)
check("its own child can be traced", syscall(101, 7, pid, 0, 0) == 0)
os.waitpid(pid, 0)
for victim in target["pids"]:
    if victim >= 300:
        refused("trace process %d of the host" % victim, lambda: syscall(101, 16, victim, 0, 0), ESRCH, EPERM)
        refused("read the memory of %d" % victim, lambda: syscall(310, victim, A, 1, A, 1, 0), ESRCH, EPERM, EFAULT, EINVAL)
        refused("a descriptor of %d" % victim, lambda: syscall(434, victim, 0), ESRCH, EINVAL)
        refused("its limits", lambda: syscall(302, victim, 7, 0, A), ESRCH, EPERM)
        refused("its priority", lambda: syscall(141, 0, victim, 19), ESRCH)
        refused("its affinity", lambda: syscall(203, victim, 8, A), ESRCH)

# Namespaces may be made; there are none to enter but one's own.
for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080):
    pid = os.fork()
    if pid == 0:
        allowed("unshare %x" % flag, lambda: syscall(272, flag))
        os._exit(1 if any(os.path.lexists(p) for p in target["files"]) else 0)
    check("nothing new in a namespace %x" % flag, os.waitpid(pid, 0)[1] == 0)
for name in os.listdir("/proc/1/ns"):
    n = allowed("open namespace " + name, lambda: os.open("/proc/1/ns/" + name, os.O_RDONLY))
    if n is not None:
        allowed("enter namespace " + name, lambda: syscall(308, n, 0))
        check("still inside", not any(os.path.lexists(p) for p in target["files"]))

# The vsyscall page, the top of the address space, and code that is not this kernel's.
refused("map the top", lambda: syscall(9, 0x7fffffffe000, 8192, 7, 0x32, -1, 0), ENOMEM, EINVAL, EPERM, EEXIST)
refused("map the kernel", lambda: syscall(9, -(1 << 47), 4096, 7, 0x32, -1, 0), ENOMEM, EINVAL, EPERM, EOVERFLOW)
for number in list(range(335, 424)) + list(range(463, 600)) + [1 << 20, 0x40000000, 0x40000001]:
    refused("call %d, which is none" % number, lambda: syscall(number, 0, 0, 0, 0, 0, 0), ENOSYS)

# A processor's own ways down: each ends the process at most.
for name, code in (("hlt", b"\xf4"), ("in", b"\xe4\x60"), ("cli", b"\xfa"), ("rdmsr", b"\x0f\x32"), ("lgdt", b"\x0f\x01\x10"), ("vmcall", b"\x0f\x01\xc1"), ("int 80", b"\xcd\x80"), ("sysenter", b"\x0f\x34"), ("ud2", b"\x0f\x0b"), ("mov cr3", b"\x0f\x22\xd8")):
    pid = os.fork()
    if pid == 0:
        m = mmap.mmap(-1, 4096, prot=7)
        m.write(b"\xb8\xff\xff\xff\x7f" + code + b"\xc3")  # eax: no call of that number
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
        os._exit(42)
    status = os.waitpid(pid, 0)[1]
    check("instruction " + name, os.WIFSIGNALED(status) or name in ("int 80", "sysenter", "vmcall"), status)
end()
