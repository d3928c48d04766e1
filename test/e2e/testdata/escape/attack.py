"""What every attack is written with.

An attack is a program that root runs inside a sandbox. Each thing it tries says what must come
of it: refused, with the errors that are right; or allowed, because all it changes is the
sandbox's own. What comes otherwise is printed as BROKEN and makes the program fail. It ends
with the number of things tried, so that one that stops half way is noticed.

target.nosj, beside this file, says what is to be reached: see siege_test.go. It is JSON
written backwards: what came here through the guest agent would else be found in its memory.
"""
import ctypes
import errno
import json
import os
import sys

MARK = "xEscApEx"  # in all that an attack writes; nothing on the host may ever hold it

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "target.nosj")) as f:
    target = json.loads(f.read()[::-1])

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long  # an address is larger than an int
tried = broken = 0


def _say(ok, what, saw):
    global tried, broken
    tried += 1
    if not ok:
        broken += 1
        print("BROKEN", what, "->", str(saw)[:300], flush=True)


def check(what, ok, saw=""):
    """ok must hold."""
    _say(ok, what, saw)


def refused(what, f, *errors):
    """f must raise OSError, with one of errors if there are any. Returns the error's number."""
    try:
        saw = "it succeeded: %r" % (f(),)
    except OSError as e:
        if not errors or e.errno in errors:
            _say(True, what, "")
            return e.errno
        saw = errno.errorcode.get(e.errno, e.errno)
    _say(False, what, saw)


def allowed(what, f):
    """f may do what it likes, to the sandbox. Returns its value, None if it failed."""
    global tried
    tried += 1
    try:
        return f()
    except OSError:
        return None


def syscall(number, *args):
    """A system call by its number on x86-64."""
    r = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


def mount(source, at, kind, flags=0, data=""):
    os.makedirs(at, exist_ok=True)
    if libc.mount(source.encode(), at.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode()) < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def write(path, value):
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return os.write(fd, value)
    finally:
        os.close(fd)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def end():
    print(MARK, tried, "tried", flush=True)
    sys.exit(1 if broken else 0)
