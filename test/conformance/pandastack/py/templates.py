"""Templates and builds."""

import os
import tempfile

from check import check, equal, raises, run
from pandastack import NotFoundError, Sandbox, ServerError, TemplateBuildError, get_default_client

templates = get_default_client().templates
image = os.environ["TEST_IMAGE"]


@check("list and get")
def _():
    names = [t.name for t in templates.list()]
    assert "base" in names, names
    t = templates.get("base")
    assert t.size_bytes > 0 and t.rootfs_path and t.cpu >= 1 and t.memory_mb >= 512, t
    raises(NotFoundError, lambda: templates.get("nope"))


@check("an image in a registry becomes a template", seconds=300)
def _():
    b = templates.register("conformance-py", image, size_mb=512, cpu=1, memory_mb=512)
    assert b.id and b.name == "conformance-py" and b.status in ("queued", "building", "done"), b
    lines = list(templates.build_logs(b.id))
    assert lines, "a log that is followed has lines"
    b = templates.wait_for_build(b.id, poll_interval=0.1)
    assert b.is_done and b.bytes > 0 and b.started_at and b.ended_at, b
    equal(list(templates.build_logs(b.id, follow=False)), lines)
    assert b.id in [x.id for x in templates.builds()]
    t = templates.get("conformance-py")
    equal((t.cpu, t.memory_mb), (1, 512))
    templates.delete("conformance-py")
    raises(NotFoundError, lambda: templates.get("conformance-py"))
    raises(NotFoundError, lambda: templates.delete("conformance-py"))


@check("an image that is not there fails the build, in words", seconds=120)
def _():
    b = templates.register("conformance-none-py", image.rsplit("/", 1)[0] + "/nothing:1")
    e = raises(TemplateBuildError, lambda: templates.wait_for_build(b.id, poll_interval=0.1))
    assert e.build.is_failed and e.build.error, e.build
    raises(NotFoundError, lambda: templates.get("conformance-none-py"))


@check("builds from files are refused, whatever their size")
def _():
    e = raises(ServerError, lambda: templates.build_from_dockerfile("x", "FROM scratch\n"))
    assert "image_ref" in str(e), e
    with tempfile.TemporaryDirectory() as d:
        tar = os.path.join(d, "rootfs.tar")
        for size in (1000, 3 << 20):
            with open(tar, "wb") as f:
                f.write(b"\0" * size)
            raises(ServerError, lambda: templates.build("x", rootfs_tar=tar))


@check("a build that is not there")
def _():
    raises(NotFoundError, lambda: templates.get_build("nope"))
    raises(NotFoundError, lambda: list(templates.build_logs("nope")))


run()
