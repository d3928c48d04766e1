"""Takes the guest agent apart: its memory, its descriptors, its stream to the node."""
import os
import re
import signal
import sys
from attack import *
from errno import *

# What the agent keeps in its memory.
needles = {n.encode(): why for n, why in target["needles"].items()}
own = target["own"].encode()
found, seen = {}, 0
mem = os.open("/proc/1/mem", os.O_RDONLY)
for line in open("/proc/1/maps"):
    m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
    if not m or "[vvar]" in line or "[vsyscall]" in line:
        continue
    at, top = (int(x, 16) for x in m.groups())
    tail = b""
    while at < top:
        try:
            b = os.pread(mem, min(1 << 20, top - at), at)
        except OSError:
            b = b""
        if not b:
            at += 4096
            tail = b""
            continue
        seen += len(b)
        for n in list(needles) + [own]:
            if n in tail + b:
                found[n] = True
        tail = b[-200:]
        at += len(b)
check("its memory was read", seen > 4 << 20, seen)
check("what the sandbox was given is in it, so the search works", own in found)
for n, why in needles.items():
    check("the agent's memory does not hold " + why, n not in found)
for path in ("/proc/1/environ", "/proc/1/cmdline", "/proc/gvisor/spec_environ", "/proc/self/environ"):
    for n, why in needles.items():
        check("%s does not hold %s" % (path, why), n not in read(path))

# Its stream cannot be opened by name, but a descriptor can be taken from it.
refused("the stream by name", lambda: os.open("/proc/1/fd/0", os.O_RDWR), ENXIO)
for name in os.listdir("/proc/1/fd"):
    link = os.readlink("/proc/1/fd/" + name)
    check("descriptor %s is of this kernel: %s" % (name, link), not any(p in link for p in target["files"]))
for kind in (1, 2):  # its log, of which the host keeps a bounded piece
    allowed("the agent's log", lambda: write("/proc/1/fd/%d" % kind, MARK.encode() * 20000))
if "noise" in sys.argv:
    stream = syscall(438, syscall(434, 1, 0), 0, 0)
    import random
    import socket
    s = socket.socket(fileno=stream)
    name = str(allowed("the name of the other end", s.getpeername))
    check("the other end of the stream does not tell of the host", not any(p in name for p in target["files"]), name)
    refused("a descriptor through the stream", lambda: s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, (2).to_bytes(4, "little"))]))
    dice = random.Random(1)
    for n in (1, 17, 4096, 65536):
        for special in (b"", b"\xf5\x01", b"\xf5\xf5\xf5"):
            allowed("noise", lambda: s.send(dice.randbytes(n) + special, socket.MSG_DONTWAIT))
end()
