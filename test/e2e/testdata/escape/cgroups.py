"""Lifts every limit inside, moves the agent about, and takes what the host lets it.

With the argument bomb it only leaves its own limits, and then makes processes without end.
"""
import os
import signal
import sys
from attack import *

top = "/sys/fs/cgroup"
ns = os.open("/proc/1/ns/cgroup", os.O_RDONLY)
# A command's groups are delegated: from its own namespace it may not change what it is in.
own = top + read("/proc/1/cgroup").decode().strip()[3:]
allowed("lift its own limit from where it is", lambda: write(own + "/pids.max", b"max"))
check("the agent's namespace lets it out", libc.setns(ns, 0) == 0)
group = top + read("/proc/self/cgroup").decode().strip()[3:]


def lift(least):
    lifted = 0
    for where, _, names in os.walk(top):
        for name in names:
            if name.endswith((".max", ".high", ".weight", ".min", ".low")) and allowed("lift " + name, lambda: write(where + "/" + name, b"max")):
                lifted += name == "pids.max"
    check("limits of processes are lifted", lifted >= least and read(group + "/pids.max") == b"max\n", lifted)


def move(pid, where):
    return allowed("move %d to %s" % (pid, where), lambda: write(where + "/cgroup.procs", str(pid).encode()))


os.makedirs(top + "/" + MARK, exist_ok=True)
if "bomb" in sys.argv:
    lift(2)
    check("it moves out of its group", move(os.getpid(), top + "/" + MARK))
    print(MARK, "lifted" if not broken else "kept", flush=True)
    while not broken:
        try:
            os.fork() or signal.pause()
        except OSError:
            pass
    sys.exit(1)

allowed("remount", lambda: mount("none", top, None, 32))
lift(2)
allowed("more numbers of processes", lambda: write("/proc/sys/kernel/pid_max", b"4194304"))
for where in (top, top + "/" + MARK, top + "/hutch", top + "/agent"):
    for pid in (1, os.getpid()):
        move(pid, where)
check("it moves", move(os.getpid(), top + "/" + MARK))
for control in ("cgroup.freeze", "cgroup.subtree_control", "cgroup.type", "cgroup.max.depth"):
    for v in (b"1", b"+memory +pids", b"threaded", b"0"):
        allowed(control, lambda: write(top + "/agent/" + control, v))
for where, _, _ in sorted(os.walk(top + "/hutch"), reverse=True):
    allowed("remove", lambda: os.rmdir(where))
check("up from the groups is nothing", os.path.realpath(top + "/../../../..") == "/" and b"hutch-" not in read("/proc/self/cgroup") + read("/proc/1/cgroup"))
end()
