"""The life of sandboxes."""

import asyncio
import datetime
import os
import time

from check import araises, check, equal, raises, run
from e2b import (
    AsyncSandbox,
    AsyncTemplate,
    AuthenticationException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    Template,
)
from e2b.exceptions import SandboxNotRunningException

mark = f"py-{os.getpid()}"
made = []


def make(*args, **kwargs):
    sbx = Sandbox.create(*args, **kwargs)
    made.append(sbx)
    return sbx


def near(at, seconds):
    left = (at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert abs(left - seconds) < 5, f"it is {left} s away, want {seconds}"


def ids(pages):
    return [s.sandbox_id for s in pages]


shared = make()


@check("create without anything makes one of base")
def _():
    assert shared.is_running()
    info = shared.get_info()
    equal(info.template_id, "base")
    equal(info.name, "base")
    equal(info.state, SandboxState.RUNNING)
    near(info.end_at, 300)
    assert info.cpu_count >= 1 and info.memory_mb >= 128
    equal(info.envd_version, "0.6.13")


@check("create with metadata, variables and a timeout")
def _():
    sbx = make("base", metadata={"mark": mark, "a b": "c&d=e%/ü"}, envs={"GREETING": "hello"}, timeout=91)
    equal(sbx.get_info().metadata, {"mark": mark, "a b": "c&d=e%/ü"})
    near(sbx.get_info().end_at, 91)
    equal(sbx.commands.run("echo $GREETING").stdout, "hello\n")


@check("what older callers always send is taken")
def _():
    sbx = make(allow_internet_access=True, secure=True, timeout=60)
    assert sbx.is_running()
    sbx.kill()
    sbx = make(allow_internet_access=False, lifecycle={"on_timeout": "kill", "auto_resume": False})
    equal(sbx.get_info().allow_internet_access, False)
    sbx.kill()


@check("the same idempotency key makes one sandbox")
def _():
    key = f"{mark}-key"
    first = make(idempotency_key=key, metadata={"once": mark})
    again = Sandbox.create(idempotency_key=key, metadata={"once": mark})
    equal(again.sandbox_id, first.sandbox_id)
    e = raises(SandboxException, lambda: Sandbox.create(idempotency_key=key, metadata={"once": "other"}))
    equal(e.status_code, 422)
    first.kill()


@check("an unknown template, and a timeout that cannot be")
def _():
    e = raises(SandboxException, lambda: Sandbox.create("no-such-template"))
    assert e.status_code == 404 and "template 'no-such-template' not found" in str(e), e
    e = raises(SandboxException, lambda: Sandbox.create(timeout=25 * 3600))
    assert e.status_code == 400 and "timeout" in str(e), e
    equal(Template.exists("base"), True)
    equal(Template.exists("some/thing:v1"), False)


@check("a wrong key")
def _():
    raises(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    raises(AuthenticationException, lambda: Sandbox.list(api_key="e2b_" + "0" * 40).next_items())


@check("lists, by state, metadata, template and start")
def _():
    page = Sandbox.list(query=SandboxQuery(metadata={"mark": mark, "a b": "c&d=e%/ü"})).next_items()
    equal(ids(page), [made[1].sandbox_id])
    equal(Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items(), [])
    both = SandboxQuery(state=[SandboxState.RUNNING, SandboxState.PAUSED], template="base")
    assert shared.sandbox_id in ids(Sandbox.list(query=both).next_items())
    equal(Sandbox.list(query=SandboxQuery(template="nothing")).next_items(), [])
    since = Sandbox.list(query=SandboxQuery(started_after=made[1].get_info().started_at)).next_items()
    assert made[1].sandbox_id in ids(since) and shared.sandbox_id not in ids(since), since


@check("pages, both ways")
def _():
    want = [make(metadata={"set": mark}).sandbox_id for _ in range(3)]
    for order in ("asc", "desc"):
        pager = Sandbox.list(query=SandboxQuery(metadata={"set": mark}), limit=2, order=order)
        got, pages = [], 0
        while pager.has_next:
            got += ids(pager.next_items())
            pages += 1
        equal(got, want if order == "asc" else want[::-1])
        equal(pages, 2)
    for sandbox_id in want:
        equal(Sandbox.kill(sandbox_id), True)


@check("set_timeout, and connect, which never brings the end nearer")
def _():
    shared.set_timeout(600)
    near(shared.get_info().end_at, 600)
    before = shared.get_info().end_at
    again = Sandbox.connect(shared.sandbox_id, timeout=10)
    equal(again.get_info().end_at, before)
    again.connect(timeout=900)
    near(shared.get_info().end_at, 900)
    equal(again.commands.run("echo there").stdout, "there\n")


@check("an end in five seconds is one")
def _():
    sbx = make(timeout=5)
    time.sleep(6.5)
    equal(sbx.is_running(), False)
    raises(SandboxNotFoundException, sbx.get_info)


@check("kill, twice, and what is left afterwards")
def _():
    sbx = make(metadata={"killed": mark})
    equal(sbx.kill(), True)
    equal(sbx.is_running(), False)
    equal(sbx.kill(), False)
    equal(Sandbox.kill("nonexistingsandbox"), False)
    equal(Sandbox.list(query=SandboxQuery(metadata={"killed": mark})).next_items(), [])
    raises(SandboxNotFoundException, sbx.get_info)
    raises(SandboxNotFoundException, lambda: sbx.set_timeout(5))
    raises(SandboxNotFoundException, lambda: Sandbox.connect(sbx.sandbox_id))
    raises(SandboxNotRunningException, lambda: sbx.commands.run("true"))
    raises(SandboxNotRunningException, lambda: sbx.files.read("x"))
    raises(SandboxNotRunningException, lambda: sbx.files.list("/"))


@check("a kill while a command runs is told as such")
def _():
    sbx = make()
    cmd = sbx.commands.run("sleep 60", background=True, timeout=0)
    sbx.kill()
    e = raises(SandboxNotRunningException, cmd.wait)
    assert "killed or reached its end of life" in str(e), e


@check("metrics come, and are of the time asked for")
def _():
    for _ in range(30):
        if shared.get_metrics():
            break
        time.sleep(1)
    m = shared.get_metrics()[0]
    assert m.cpu_count >= 1 and m.mem_total > 0 and m.disk_total > 0 and m.mem_used > 0, m
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    equal(shared.get_metrics(start=past, end=past), [])


@check("tokens and names of ports")
def _():
    sbx = make(network={"allow_public_traffic": False, "mask_request_host": "localhost:${PORT}"})
    assert sbx.traffic_access_token
    assert sbx.get_host(8000).startswith(f"8000-{sbx.sandbox_id}."), sbx.get_host(8000)
    equal(sbx.get_info().network["allow_public_traffic"], False)
    equal(shared.traffic_access_token, None)
    sbx.kill()


@check("the async client")
async def _():
    sbx = await AsyncSandbox.create(metadata={"async": mark}, timeout=60)
    assert await sbx.is_running()
    page = await AsyncSandbox.list(query=SandboxQuery(metadata={"async": mark})).next_items()
    equal(ids(page), [sbx.sandbox_id])
    await sbx.set_timeout(120)
    near((await sbx.get_info()).end_at, 120)
    equal((await (await AsyncSandbox.connect(sbx.sandbox_id)).commands.run("echo hi")).stdout, "hi\n")
    equal(await AsyncTemplate.exists("base"), True)
    cmd = await sbx.commands.run("sleep 60", background=True, timeout=0)
    waiting = asyncio.ensure_future(cmd.wait())
    await asyncio.sleep(0.2)
    equal(await sbx.kill(), True)
    await araises(SandboxNotRunningException, waiting)
    equal(await sbx.is_running(), False)
    equal(await sbx.kill(), False)
    await araises(SandboxNotFoundException, sbx.get_info())


run(lambda: [s.kill() for s in made])
