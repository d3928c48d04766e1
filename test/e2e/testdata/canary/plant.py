"""Leaves a secret in every place that a sandbox has, and holds on to it until it is killed.

Each place gets a word of its own: the key, a colon, the name of the place, a full stop. The key comes
backwards, so that nothing but what is planted here has it as it is.
"""
import ctypes
import mmap
import os
import signal
import socket
import subprocess

KEY = open("/root/canary/yek").read().strip()[::-1]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
kept, planted = [], []


def word(place):
    planted.append(place)
    return "%s:%s." % (KEY, place)


def much(place, size):
    w = word(place).encode()
    return w * (size // len(w))


def syscall(number, *args):
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


# Files, in every file system; of one that was removed only its blocks are left, another is still open.
for place, path in (("etc", "/etc/canary"), ("root", "/root/canary/file"), ("tmp", "/tmp/canary"), ("workspace", "/workspace/canary"), ("shm", "/dev/shm/canary")):
    with open(path, "w") as f:
        f.write(word(place))
with open("/etc/hosts", "a") as f:
    f.write("# %s\n" % word("hosts"))
with open("/srv/removed", "wb") as f:
    f.write(much("removed", 16 << 20))
    os.fsync(f.fileno())
os.unlink("/srv/removed")
held = open("/srv/held", "wb+")
held.write(word("held").encode())
held.flush()
os.unlink("/srv/held")
os.mkdir("/srv/" + word("directory"))
os.symlink(word("link"), "/srv/link")
os.setxattr("/root/canary/file", "user.canary", word("xattr").encode())

# Mounts, groups, names.
os.mkdir("/mnt/canary")
if libc.mount(b"none", b"/mnt/canary", b"tmpfs", 0, b"") < 0:
    raise OSError(ctypes.get_errno(), "mount")
with open("/mnt/canary/f", "w") as f:
    f.write(word("mounted"))
os.mkdir("/sys/fs/cgroup/" + word("group"))
socket.sethostname(word("host"))

# Memory: of a process, without a name, shared, and of the kernel in what it keeps for others to take.
kept.append(much("memory", 4 << 20))
m = mmap.mmap(-1, 8 << 20)
m.write(much("freed", 8 << 20))
m.close()
os.write(os.memfd_create(word("memfdname")), much("memfd", 1 << 20))
os.write(os.pipe()[1], much("pipe", 4096))
a, b = socket.socketpair()
a.send(much("pair", 4096))
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
out = socket.create_connection(listener.getsockname())
into, _ = listener.accept()
out.send(much("stream", 4096))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
datagrams.sendto(word("datagram").encode(), datagrams.getsockname())
named = socket.socket(socket.AF_UNIX)
named.bind("\0" + word("socket"))
named.listen()

# What System V and the kernel's keyrings keep by number.
libc.shmat.restype = ctypes.c_void_p
text = word("segment").encode()
ctypes.memmove(libc.shmat(syscall(29, 0x5eca9e, 4096, 0o1666), None, 0), text, len(text))
text = word("queue").encode()
message = ctypes.create_string_buffer(bytes(ctypes.c_long(1)) + text)
syscall(69, syscall(68, 0x5eca9e, 0o1666), ctypes.addressof(message), len(text), 0)

# Of processes: arguments, environment, what they are fed.
kept.append(subprocess.Popen(["sleep", "100000"], env={"CANARY": word("childenv")}))
kept.append(subprocess.Popen(["sh", "-c", "sleep 100000; : " + word("argument")]))
kept.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
kept[-1].stdin.write(word("fed").encode())
kept[-1].stdin.flush()

with open("/root/canary/new", "w") as f:
    f.write("\n".join(planted))
os.rename("/root/canary/new", "/root/canary/planted")
while True:
    signal.pause()
