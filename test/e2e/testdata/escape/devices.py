"""Makes a node of every device there could be, and opens it."""
import os
import stat
from attack import *
from errno import *

# What this kernel has: null, zero, full, random, urandom, tty and ptmx, fuse, tun. They are its own.
own = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (10, 229), (10, 200)}
# Whatever opens one of these reaches the host.
named = {
    "mem": (1, 1), "kmem": (1, 2), "port": (1, 4), "kmsg": (1, 11), "console": (5, 1), "kvm": (10, 232), "vhost-net": (10, 238),
    "loop-control": (10, 237), "hpet": (10, 228), "vfio": (10, 196), "uinput": (10, 223), "snapshot": (10, 231), "btrfs": (10, 234),
    "mapper": (10, 236), "cuse": (10, 203), "watchdog": (10, 130), "nvram": (10, 144), "rtc": (253, 0), "msr": (202, 0), "cpuid": (203, 0), "nvidia": (195, 255), "dri": (226, 0), "sg": (21, 0),
}
path = "/tmp/" + MARK
majors = list(range(0, 32)) + list(range(60, 64)) + [65, 89, 90, 108, 116, 136, 153, 180, 188, 189, 195, 202, 203, 226] + list(range(228, 262)) + [508, 509, 510, 511, 4095]
devices = set(named.values()) | {(major, minor) for major in majors for minor in (0, 1, 2, 3, 16, 63, 127, 128, 255)}
for kind, name in ((stat.S_IFCHR, "character"), (stat.S_IFBLK, "block")):
    for major, minor in sorted(devices):
        if kind == stat.S_IFCHR and ((major, minor) in own or major in (136, 4 if minor == 0 else -1)):
            continue
        try:
            os.mknod(path, kind | 0o666, os.makedev(major, minor))
        except OSError as e:
            check("make %s device %d:%d" % (name, major, minor), e.errno == EPERM, e)
            continue
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_NONBLOCK, os.O_WRONLY):
            refused("open %s device %d:%d" % (name, major, minor), lambda: os.open(path, flags), ENXIO, ENODEV, EPERM, EIO, EACCES)
        os.unlink(path)
# In places that are not of this kernel alone.
for where in ("/dev/", "/dev/shm/", "/root/", "/run/"):
    p = where + MARK
    os.mknod(p, stat.S_IFBLK | 0o666, os.makedev(8, 0))
    refused("the first disk in " + where, lambda: os.open(p, os.O_RDONLY), ENXIO, ENODEV, EPERM)
for top, dirs, files in os.walk("/dev"):
    for f in files:
        p = os.path.join(top, f)
        mode = os.lstat(p).st_mode
        check("there is no disk among the devices: " + p, not stat.S_ISBLK(mode) or f == MARK)
check("the agent's output is a pipe or a log, and no terminal", not os.isatty(2))
end()
