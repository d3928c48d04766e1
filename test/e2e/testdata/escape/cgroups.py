"""Lifts every limit inside, moves the agent about, and takes what the host lets it."""
import errno
import os
import signal
import sys
from attack import *

top = "/sys/fs/cgroup"
allowed("remount", lambda: mount("none", top, None, 32))
for where, _, names in os.walk(top):
    for name in names:
        if name.endswith((".max", ".high", ".weight", ".min", ".low")):
            allowed("lift " + name, lambda: write(where + "/" + name, b"max"))
allowed("free groups", lambda: write("/proc/sys/kernel/pid_max", b"4194304"))
os.makedirs(top + "/" + MARK, exist_ok=True)
for group in (top, top + "/" + MARK, top + "/hutch", top + "/agent"):
    for pid in (1, os.getpid()):
        allowed("move", lambda: write(group + "/cgroup.procs", str(pid).encode()))
for control in ("cgroup.freeze", "cgroup.subtree_control", "cgroup.type", "cgroup.max.depth"):
    for v in (b"1", b"+memory +pids", b"threaded", b"0"):
        allowed(control, lambda: write(top + "/agent/" + control, v))
allowed("thaw", lambda: write(top + "/agent/cgroup.freeze", b"0"))
for where, _, _ in sorted(os.walk(top + "/hutch"), reverse=True):
    allowed("remove", lambda: os.rmdir(where))
check("up from the groups is nothing", os.path.realpath(top + "/../../../..") == "/" and b"hutch-" not in read("/proc/self/cgroup") + read("/proc/1/cgroup"))
print(MARK, "lifted", flush=True)
end()
