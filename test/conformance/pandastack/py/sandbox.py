"""The life of sandboxes, keys, ports and preview addresses."""

import datetime
import os

import requests
from check import check, equal, raises, run
from pandastack import (
    AuthError,
    BadRequestError,
    Client,
    NotFoundError,
    Sandbox,
    ServerError,
    get_default_client,
)

base = os.environ["PANDASTACK_API"]
key = os.environ["PANDASTACK_API_KEY"]
client = get_default_client()
sbx = Sandbox.create(metadata={"team": "a", "secret.token": "hidden"}, ttl_seconds=900)


@check("what a create answers")
def _():
    equal(sbx.template, "code-interpreter")
    equal(sbx.status, "running")
    equal(sbx.metadata, {"team": "a"}, "metadata, without what is secret")
    equal(sbx.persistent, False)
    assert sbx.cpu >= 1 and sbx.memory_mb >= 512, (sbx.cpu, sbx.memory_mb)
    assert isinstance(sbx.boot_ms, int) and sbx.boot_ms > 0, sbx.boot_ms
    assert sbx.boot_mode, sbx.boot_mode
    made = datetime.datetime.fromisoformat(sbx.created_at)
    equal((made.tzinfo, made.microsecond), (datetime.timezone.utc, 0), "created_at")


@check("list, get and refresh")
def _():
    assert sbx.id in [s.id for s in Sandbox.list()]
    assert sbx.id in [s.id for s in client.sandboxes.list()]
    again = Sandbox.get(sbx.id)
    equal((again.id, again.template, again.metadata), (sbx.id, sbx.template, {"team": "a"}))
    equal(sbx.refresh().status, "running")


@check("every template that clients name by themselves is there")
def _():
    for name in ("ubuntu-24.04", "base", "code-interpreter"):
        with Sandbox.create(template=name, ttl_seconds=60) as s:
            equal(s.exec("command -v python3 git && python3 -m venv --help >/dev/null && test -d /workspace").exit_code, 0, name)


@check("the first command works, without a wait")
def _():
    with Sandbox.create(template="base", ttl_seconds=60) as s:
        equal(s.exec("echo ready").stdout, "ready\n")


@check("kill, and what comes after")
def _():
    s = Sandbox.create(template="base", ttl_seconds=60)
    s.kill()
    for call in (s.kill, s.refresh, s.lifecycle, lambda: s.exec("true"), lambda: s.filesystem.read("/etc/hostname")):
        assert "ended" in str(raises(NotFoundError, call))
    raises(NotFoundError, lambda: Sandbox.get("00000000-0000-4000-8000-000000000000"))


@check("a context manager kills")
def _():
    with Sandbox.create(template="base", ttl_seconds=60) as s:
        pass
    raises(NotFoundError, lambda: Sandbox.get(s.id))


@check("a lifetime can be read and changed")
def _():
    life = sbx.lifecycle()
    equal((life["ttl_seconds"], life["persistent"]), (900, False))
    assert life["idle_seconds"] >= 0, life
    equal(sbx.set_ttl(1200)["ttl_seconds"], 1200)
    equal(sbx.set_persistent(False)["persistent"], False)
    raises(BadRequestError, lambda: sbx.set_ttl(-1))
    raises(BadRequestError, lambda: Sandbox.create(template="base", ttl_seconds=-1))


@check("pause and resume")
def _():
    s = Sandbox.create(template="base", ttl_seconds=120)
    try:
        s.exec("echo kept > /tmp/kept; (sleep 600 &)")
        s.pause()
        s.pause()
        equal(s.refresh().status, "paused")
        for call in (lambda: s.exec("true"), lambda: s.filesystem.read("/tmp/kept"), lambda: s.filesystem.write("/tmp/x", "y")):
            assert "paused" in str(raises(BadRequestError, call))
        s.resume()
        s.resume()
        equal(s.refresh().status, "running")
        equal(s.exec("cat /tmp/kept; pgrep -c sleep").stdout, "kept\n1\n")
    finally:
        s.kill()


@check("a template that is not there")
def _():
    raises(NotFoundError, lambda: Sandbox.create(template="no-such-template"))


@check("a key that is none")
def _():
    raises(AuthError, lambda: Client(api_key="pds_" + "0" * 40).me())
    raises(AuthError, lambda: Client(api_key="nonsense").sandboxes.list())


@check("whose key it is, and keys of one's own")
def _():
    assert client.me()["prefix"], client.me()
    made = client.tokens.create("conformance", expires_in_days=1)
    assert made.token and made.prefix, made
    equal(made.name, "conformance")
    listed = {t.prefix: t for t in client.tokens.list()}
    equal(listed[made.prefix].name, "conformance")
    equal(listed[made.prefix].token, None, "a key is shown once")
    other = Client(api_key=made.token)
    assert sbx.id in [s.id for s in other.sandboxes.list()]
    raises(BadRequestError, lambda: other.tokens.create("more"))  # 403: this client has no class for it
    client.tokens.revoke(made.prefix)
    raises(AuthError, other.me)
    raises(NotFoundError, lambda: client.tokens.revoke(made.prefix))


@check("ports, and the addresses of previews")
def _():
    sbx.exec("cd /tmp && (python3 -m http.server 8765 >/dev/null 2>&1 &) ; for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8765))' 2>/dev/null && exit 0; sleep 0.1; done; exit 1")
    urls = sbx.preview_urls()
    assert 8765 in urls, urls
    equal(urls[8765], sbx.preview_url(8765))
    equal(sbx.preview_url(8765, scheme="http"), f"http://8765-{sbx.id}.127.0.0.1")
    raises(ValueError, lambda: sbx.preview_url(0))


@check("a server inside, through the proxy and by its name")
def _():
    sbx.filesystem.write("/tmp/hello.txt", "from inside")
    auth = {"Authorization": f"Bearer {key}"}
    through = requests.get(f"{base}/v1/sandboxes/{sbx.id}/proxy/8765/hello.txt", headers=auth, timeout=10)
    equal((through.status_code, through.text), (200, "from inside"))
    client.preview_host = "localhost:" + base.rsplit(":", 1)[1]
    host = sbx.preview_url(8765, scheme="http").removeprefix("http://")
    named = requests.get(f"{base}/hello.txt", headers={"Host": host}, timeout=10)
    equal((named.status_code, named.text), (200, "from inside"))
    equal(requests.get(f"{base}/v1/sandboxes/{sbx.id}/proxy/1/", headers=auth, timeout=10).status_code, 502)


@check("a retry of creates is only for what was refused before anything was made")
def _():
    e = raises(ServerError, lambda: Client(max_create_retry_seconds=30).sandboxes.create(template="base", persistent=True))
    assert "persistent" in str(e), e


run(sbx.kill)
