"""What this server does not have fails at once, as a caller can understand."""

import threading

from check import check, equal, raises, run
from pandastack import Sandbox, ServerError, explore, get_default_client

client = get_default_client()
sbx = Sandbox.create(template="base", ttl_seconds=300)


def refused(call):
    text = str(raises(ServerError, call))
    assert "support" in text or "not part of" in text, text
    assert "timeout" not in text and "connection refused" not in text, text
    return text


@check("snapshots and forks")
def _():
    for call in (
        sbx.snapshot,
        sbx.fork,
        lambda: sbx.fork(metadata={"a": "b"}),
        lambda: sbx.fork(cancel=threading.Event()),
        lambda: sbx.fork_tree(2),
        lambda: sbx.promote(cleanup_siblings=True),
        lambda: explore(sbx, ["true"]),
        lambda: Sandbox.create(from_snapshot="x"),
        client.snapshots.list,
        lambda: client.snapshots.list(sandbox_id=sbx.id),
        lambda: client.snapshots.get("x"),
        lambda: client.snapshots.delete("x"),
    ):
        refused(call)


@check("hibernation and sandboxes that outlive their time")
def _():
    for call in (sbx.hibernate, sbx.wake, lambda: sbx.set_persistent(True), lambda: Sandbox.create(persistent=True)):
        refused(call)


@check("code contexts")
def _():
    refused(sbx.create_code_context)


@check("volumes")
def _():
    refused(lambda: client.volumes.create("v", 100))
    refused(client.volumes.list)
    refused(lambda: client.volumes.get("v"))
    refused(lambda: client.volumes.delete("v"))
    refused(lambda: Sandbox.create(volumes=[{"name": "v"}]))


@check("databases, apps, functions and schedules, lists too")
def _():
    for api in (client.databases, client.apps, client.functions, client.schedules):
        refused(api.list)
        refused(lambda: api.get("x"))
        refused(lambda: api.delete("x"))


@check("the sandbox is as it was")
def _():
    equal(sbx.exec("echo fine").stdout, "fine\n")


run(sbx.kill)
