"""Logs."""

import threading

from check import check, equal, raises, run
from pandastack import BadRequestError, NotFoundError, Sandbox

sbx = Sandbox.create(template="base", ttl_seconds=600)
sbx.exec('echo "  indented"; echo \'{"error": "mine"}\'; echo é; echo problem >&2')


@check("what commands wrote, line by line")
def _():
    lines = list(sbx.logs())
    equal(sorted(lines), sorted(["  indented", '{"error": "mine"}', "é", "problem"]))
    equal(list(sbx.logs(stream="stderr")), ["problem"])
    equal(list(sbx.logs(stream="stdout")), ["  indented", '{"error": "mine"}', "é"])
    raises(BadRequestError, lambda: list(sbx.logs(stream="console")))


@check("followed, with what is to come, until the sandbox ends", seconds=60)
def _():
    s = Sandbox.create(template="base", ttl_seconds=120)
    s.exec('echo first; echo \'{"error": "mine"}\'')
    seen, first = [], threading.Event()

    def follow():
        for line in s.logs(follow=True):
            seen.append(line)
            if line == "first":
                first.set()

    t = threading.Thread(target=follow)
    t.start()
    assert first.wait(20), seen
    s.exec("echo second")
    s.kill()
    t.join(20)
    assert not t.is_alive(), seen
    equal(seen, ["first", '{"error": "mine"}', "second"])


@check("of a sandbox that is not there")
def _():
    raises(NotFoundError, lambda: list(Sandbox.from_dict({"id": "nope"}, client=sbx._client).logs()))


run(sbx.kill)
