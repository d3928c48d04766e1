"""Files."""

import hashlib
import os
import pathlib
import tempfile
import time

import requests
from check import check, equal, raises, run
from pandastack import BadRequestError, NotFoundError, Sandbox, ServerError

base = os.environ["PANDASTACK_API"]
auth = {"Authorization": f"Bearer {os.environ['PANDASTACK_API_KEY']}"}
sbx = Sandbox.create(template="base", ttl_seconds=900)
fs = sbx.filesystem


@check("what is written is read, text and bytes")
def _():
    equal(fs.write("/tmp/text", "héllo\n"), {"path": "/tmp/text", "bytes": 7})
    equal(fs.read("/tmp/text"), "héllo\n".encode())
    every = bytes(range(256)) * 100
    equal(fs.write("/tmp/bytes", every)["bytes"], 25600)
    equal(fs.read("/tmp/bytes"), every)
    equal(fs.write("/tmp/empty", b"")["bytes"], 0)
    equal(fs.read("/tmp/empty"), b"")
    fs.write("/tmp/text", "shorter")
    equal(fs.read("/tmp/text"), b"shorter")


@check("parents are made, and names may be anything")
def _():
    for name in ("/tmp/deep/er/still/x", "/tmp/a b+c%20d&e=f?g#h", "/tmp/ünï/ço dé.txt", "/tmp/quote'\"\\n"):
        fs.write(name, name)
        equal(fs.read(name), name.encode(), name)
        equal(fs.stat(name).size, len(name.encode()), name)


@check("up and down")
def _():
    with tempfile.TemporaryDirectory() as d:
        one, two = pathlib.Path(d, "one"), pathlib.Path(d, "two")
        one.write_bytes(os.urandom(100_000))
        fs.upload(one, "/tmp/up")
        fs.download("/tmp/up", two)
        equal(two.read_bytes(), one.read_bytes())


@check("a file of 40 MiB, over the limit that others have", seconds=120)
def _():
    data = os.urandom(1 << 20) * 40
    equal(fs.write("/tmp/large", data)["bytes"], len(data))
    equal(sbx.exec("sha256sum /tmp/large").stdout.split()[0], hashlib.sha256(data).hexdigest())
    equal(hashlib.sha256(fs.read("/tmp/large")).hexdigest(), hashlib.sha256(data).hexdigest())


@check("a listing")
def _():
    sbx.exec("mkdir -p /tmp/ls/sub /tmp/empty-dir; echo 12345 > /tmp/ls/f; ln -s /tmp /tmp/ls/link; touch -d @1700000000 /tmp/ls/f")
    got = {e.name: e for e in fs.listdir("/tmp/ls")}
    equal(sorted(got), ["f", "link", "sub"])
    f, sub, link = got["f"], got["sub"], got["link"]
    equal((f.path, f.is_dir, f.size, f.mode, f.mtime), ("/tmp/ls/f", False, 6, "f", 1700000000))
    equal((sub.is_dir, sub.mode), (True, "d"))
    equal((link.is_dir, link.mode), (False, "l"), "a link to a directory is none itself, or walks never end")
    equal(fs.listdir("/tmp/empty-dir"), [])
    assert "etc" in [e.name for e in fs.listdir()], "the root when nothing is said"


@check("a listing of many")
def _():
    sbx.exec("mkdir /tmp/many; cd /tmp/many; seq 1 12000 | xargs touch")
    equal(len(fs.listdir("/tmp/many")), 12000)


@check("stat and exists")
def _():
    s = fs.stat("/tmp/ls/f")
    equal((s.name, s.path, s.is_dir, s.size, s.mtime), ("f", "/tmp/ls/f", False, 6, 1700000000))
    equal(fs.stat("/tmp/ls/link").mode, "l")
    equal((fs.exists("/tmp/ls"), fs.exists("/tmp/nope"), fs.exists("/tmp/ls/f/x")), (True, False, False))


@check("a walk ends, links and all")
def _():
    sbx.exec("mkdir -p /tmp/w/a/b; ln -s /tmp/w /tmp/w/a/b/loop; touch /tmp/w/a/1 /tmp/w/a/b/2")
    got = [(d, [x.name for x in dirs], sorted(x.name for x in files)) for d, dirs, files in fs.walk("/tmp/w")]
    equal(got, [("/tmp/w", ["a"], []), ("/tmp/w/a", ["b"], ["1"]), ("/tmp/w/a/b", [], ["2", "loop"])])


@check("what is not there, or is something else")
def _():
    for call in (lambda: fs.read("/tmp/nope"), lambda: fs.stat("/tmp/nope"), lambda: fs.listdir("/tmp/nope")):
        raises(NotFoundError, call)
    raises(BadRequestError, lambda: fs.read("/tmp"))
    raises(BadRequestError, lambda: fs.listdir("/tmp/text"))
    raises(BadRequestError, lambda: fs.read(""))
    raises(BadRequestError, lambda: fs.write("/tmp/" + "a" * 5000, "x"))


@check("files of the kernel, which have no size")
def _():
    assert b"processor" in fs.read("/proc/cpuinfo")


@check("a write leaves the file's mode and owner as they were")
def _():
    sbx.exec("echo '#!/bin/sh' > /tmp/script; chmod 750 /tmp/script; chown 1000:1000 /tmp/script")
    fs.write("/tmp/script", "#!/bin/sh\necho changed\n")
    equal(sbx.exec("stat -c '%a %u:%g' /tmp/script; /tmp/script").stdout, "750 1000:1000\nchanged\n")


@check("a full disk is told, and the old file stays", seconds=120)
def _():
    made = requests.post(f"{base}/v1/sandboxes", headers=auth, json={"template": "base", "disk_mb": 64, "ttl_seconds": 120}, timeout=30).json()
    small = Sandbox.get(made["id"])
    try:
        small.filesystem.write("/root/f", "old")
        e = raises(ServerError, lambda: small.filesystem.write("/root/f", os.urandom(1 << 20) * 100))
        assert "full" in str(e), e
        equal(small.filesystem.read("/root/f"), b"old")
        equal(small.filesystem.write("/root/g", "fits")["bytes"], 4)
    finally:
        small.kill()


@check("a client killed in the middle leaves the old file")
def _():
    import socket

    fs.write("/tmp/half", "old")
    host, port = base.removeprefix("http://").rsplit(":", 1)
    s = socket.create_connection((host, int(port)))
    s.sendall(f"PUT /v1/sandboxes/{sbx.id}/fs?path=/tmp/half HTTP/1.1\r\nHost: x\r\nAuthorization: {auth['Authorization']}\r\nContent-Length: 1000000\r\n\r\n".encode() + b"new" * 1000)
    s.close()
    deadline = time.monotonic() + 10
    while True:
        equal(fs.read("/tmp/half"), b"old")
        if sbx.exec("ls -A /tmp | grep -c half").stdout.strip() == "1":
            return
        assert time.monotonic() < deadline, sbx.exec("ls -A /tmp").stdout


@check("removal takes what is below, which no client has a call for")
def _():
    fs.write("/tmp/gone/a/b", "x")
    url = f"{base}/v1/sandboxes/{sbx.id}/fs"
    equal(requests.delete(url, params={"path": "/tmp/gone"}, headers=auth, timeout=10).status_code, 204)
    equal(fs.exists("/tmp/gone"), False)
    equal(requests.delete(url, params={"path": "/tmp/gone"}, headers=auth, timeout=10).status_code, 404)


run(sbx.kill)
