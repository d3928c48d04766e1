"""Files."""

import asyncio
import io
import json
import time
import urllib.error
import urllib.request

from check import araises, check, equal, raises, run
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    Sandbox,
    SandboxException,
)

sbx = Sandbox.create(timeout=900)
fs = sbx.files
text = "äö0123456789\n" * 20_000


def until(what, cond, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if cond():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited in vain until {what}")


@check("write and read, with directories made")
def _():
    info = fs.write("deep/er/a.txt", "content")
    equal((info.name, info.path, info.type), ("a.txt", "/home/user/deep/er/a.txt", FileType.FILE))
    for path in ("deep/er/a.txt", "/home/user/deep/er/a.txt", "~/deep/er/a.txt"):
        equal(fs.read(path), "content")


@check("in each form")
def _():
    fs.write("bytes", b"\x00\x01\xff\xfe\n")
    equal(bytes(fs.read("bytes", format="bytes")), b"\x00\x01\xff\xfe\n")
    fs.write("io", io.BytesIO(text.encode()))
    equal(b"".join(fs.read("io", format="stream")).decode(), text)
    fs.write("textio", io.StringIO(text))
    equal(fs.read("textio"), text)
    fs.write("iterated", (b"part %d\n" % i for i in range(3)))
    equal(fs.read("iterated"), "part 0\npart 1\npart 2\n")
    fs.write("empty", "")
    equal((fs.read("empty"), bytes(fs.read("empty", format="bytes")), b"".join(fs.read("empty", format="stream"))), ("", b"", b""))


@check("several at once")
def _():
    files = [{"path": "multi/0.txt", "data": "no 0"}, {"path": "/tmp/multi/1.txt", "data": b"no 1"}]
    equal([i.path for i in fs.write_files(files)], ["/home/user/multi/0.txt", "/tmp/multi/1.txt"])
    equal(fs.read("multi/0.txt") + fs.read("/tmp/multi/1.txt"), "no 0no 1")
    equal(fs.write_files([]), [])


@check("as a stream of bytes, and packed")
def _():
    fs.write("octets", text, use_octet_stream=True)
    equal(fs.read("octets"), text)
    fs.write("packed", text, gzip=True)
    equal(fs.read("packed"), text)
    equal(fs.read("packed", gzip=True), text)


@check("a large file")
def _():
    big = bytes(range(256)) * (64 << 12)
    fs.write("big", io.BytesIO(big), request_timeout=0)
    equal(fs.get_info("big").size, len(big))
    assert bytes(fs.read("big", format="bytes", request_timeout=0)) == big
    fs.remove("big")


@check("names with special characters")
def _():
    for name in ("with space.txt", "plus+and%20.txt", "日本.txt", "a&b=c?d#e.txt"):
        equal(fs.write(f"names/{name}", name).path, f"/home/user/names/{name}")
        equal(fs.read(f"names/{name}"), name)


@check("what is not there, and what is a directory")
def _():
    raises(FileNotFoundException, lambda: fs.read("no-such-file"))
    raises(FileNotFoundException, lambda: fs.read("no-such-file", format="stream"))
    raises(FileNotFoundException, lambda: fs.get_info("no-such-file"))
    raises(FileNotFoundException, lambda: fs.list("no-such-dir"))
    raises(FileNotFoundException, lambda: fs.rename("no-such-file", "x"))
    equal(fs.exists("no-such-file"), False)
    fs.remove("no-such-file")
    fs.make_dir("dir")
    fs.write("plain", "x")
    raises(InvalidArgumentException, lambda: fs.read("dir"))
    raises(InvalidArgumentException, lambda: fs.write("dir", "x"))
    raises(InvalidArgumentException, lambda: fs.list("plain"))


@check("users")
def _():
    fs.write("/root/secret", "of root", user="root")
    equal(fs.read("secret", user="root"), "of root")
    raises(AuthenticationException, lambda: fs.read("x", user="nobody-here"))
    raises(AuthenticationException, lambda: fs.list("/", user="nobody-here"))


@check("info, lists and directories")
def _():
    fs.write("tree/b/c/d.txt", "12345")
    fs.write("tree/a.txt", "")
    f = fs.get_info("tree/b/c/d.txt")
    equal((f.name, f.path, f.type, f.size, f.mode, f.permissions, f.owner, f.group), ("d.txt", "/home/user/tree/b/c/d.txt", FileType.FILE, 5, 0o644, "-rw-r--r--", "user", "user"))
    names = lambda **kw: [e.path.removeprefix("/home/user/tree/") for e in fs.list("tree", **kw)]
    equal(names(), ["a.txt", "b"])
    equal(names(depth=3), ["a.txt", "b", "b/c", "b/c/d.txt"])
    raises(InvalidArgumentException, lambda: fs.list("tree", depth=0))
    cmd = "ln -s d.txt tree/b/c/link; ln -s nowhere tree/broken"
    sbx.commands.run(cmd)
    equal(fs.get_info("tree/b/c/link").symlink_target, "/home/user/tree/b/c/d.txt")
    equal(fs.make_dir("made/by/us"), True)
    equal(fs.make_dir("made/by/us"), False)
    equal(fs.rename("tree/a.txt", "made/b.txt").path, "/home/user/made/b.txt")
    fs.remove("made")
    equal(fs.exists("made"), False)


@check("metadata")
def _():
    w = fs.write("meta.txt", "x", metadata={"author": "me", "Kind-Of": "note"})
    equal(w.metadata, {"author": "me", "kind-of": "note"})
    equal(fs.get_info("meta.txt").metadata, w.metadata)
    fs.write("meta.txt", "y")
    equal(fs.get_info("meta.txt").metadata, None)
    raises(InvalidArgumentException, lambda: fs.write("meta.txt", "x", metadata={"big": "v" * 5000}))


@check("a full disk is told as such")
def _():
    sbx.commands.run("mkdir -p small && mount -t tmpfs -o size=1m,mode=0777 tmpfs small", user="root", cwd="/home/user")
    raises(NotEnoughSpaceException, lambda: fs.write("small/more", b"x" * (4 << 20)))
    raises(NotEnoughSpaceException, lambda: fs.write("small/more", b"x" * (4 << 20), use_octet_stream=True))


@check("watch, asked again and again")
def _():
    fs.make_dir("watched")
    w = fs.watch_dir("watched", recursive=True, include_entry=True)
    equal(w.get_new_events(), [])
    sbx.commands.run("echo x > watched/f; chmod 600 watched/f; mkdir watched/sub; mv watched/f watched/g; rm watched/g")
    seen = {}

    def got(*wanted):
        for e in w.get_new_events():
            seen[(e.type, e.name)] = e
        return all(k in seen for k in wanted)

    t = FilesystemEventType
    until("all is seen", lambda: got((t.CREATE, "f"), (t.WRITE, "f"), (t.CHMOD, "f"), (t.RENAME, "f"), (t.CREATE, "g"), (t.REMOVE, "g"), (t.CREATE, "sub")))
    equal(seen[(t.CREATE, "sub")].entry.type, FileType.DIR)
    until("a file in a new directory is seen", lambda: sbx.commands.run("echo x >> watched/sub/h") and got((t.WRITE, "sub/h")))
    w.stop()
    raises(SandboxException, w.get_new_events)
    raises(FileNotFoundException, lambda: fs.watch_dir("no-such-dir"))
    raises(InvalidArgumentException, lambda: fs.watch_dir("plain"))


def fetch(url, data=None, content_type=None):
    req = urllib.request.Request(url, data=data, headers={"Content-Type": content_type} if content_type else {})
    try:
        with urllib.request.urlopen(req) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@check("signed URLs, without any header")
def _():
    fs.write("signed/a+b.txt", "signed")
    equal(fetch(sbx.download_url("signed/a+b.txt")), (200, "signed"))
    equal(fetch(sbx.download_url("signed/a+b.txt", use_signature_expiration=60)), (200, "signed"))
    equal(fetch(sbx.download_url("/root/secret", user="root")), (200, "of root"))
    status, body = fetch(sbx.download_url("signed/a+b.txt", use_signature_expiration=-120))
    equal((status, json.loads(body)), (401, {"code": 401, "message": "signature is already expired"}))
    form = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nuploaded\r\n--b--\r\n'
    status, body = fetch(sbx.upload_url("signed/up.txt"), form, "multipart/form-data; boundary=b")
    equal((status, json.loads(body)), (200, [{"name": "up.txt", "path": "/home/user/signed/up.txt", "type": "file"}]))
    equal(fs.read("signed/up.txt"), "uploaded")


@check("the async client")
async def _():
    s = await AsyncSandbox.connect(sbx.sandbox_id)
    await s.files.write("async/a.txt", text)
    equal(await s.files.read("async/a.txt"), text)
    equal(await s.files.read("async/a.txt", gzip=True), text)
    parts = [p async for p in await s.files.read("async/a.txt", format="stream")]
    equal(b"".join(parts).decode(), text)
    equal([e.name for e in await s.files.list("async")], ["a.txt"])
    await araises(FileNotFoundException, s.files.read("no-such-file"))
    events = []
    w = await s.files.watch_dir("async", on_event=lambda e: events.append((e.type, e.name)), include_entry=True)
    await s.commands.run("echo x > async/b.txt; rm async/b.txt")
    for _ in range(200):
        if (FilesystemEventType.REMOVE, "b.txt") in events:
            break
        await asyncio.sleep(0.05)
    assert (FilesystemEventType.CREATE, "b.txt") in events and (FilesystemEventType.REMOVE, "b.txt") in events, events
    await w.stop()
    await araises(FileNotFoundException, s.files.watch_dir("no-such-dir", on_event=lambda e: None))


run(lambda: sbx.kill())
