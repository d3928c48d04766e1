"""The rules of the wire that PandaStack's clients rest on, a check a rule."""

import json
import os
import re
import socket
import time

import requests
from check import check, equal, run

base = os.environ["PANDASTACK_API"]
key = os.environ["PANDASTACK_API_KEY"]
auth = {"Authorization": f"Bearer {key}"}
made = []


def call(method, path, want=None, **kw):
    kw.setdefault("headers", auth)
    r = requests.request(method, base + path, timeout=40, **kw)
    if want is not None and r.status_code != want:
        raise AssertionError(f"{method} {path}: got {r.status_code}, want {want}: {r.text[:200]}")
    return r


def sandbox(**body):
    r = call("POST", "/v1/sandboxes", 201, json={"template": "base", "ttl_seconds": 300, **body}).json()
    made.append(r["id"])
    return r["id"]


sb = sandbox()
at = f"/v1/sandboxes/{sb}"


def frames(raw):
    assert b"\r" not in raw, "events are framed by LF alone"
    assert raw.endswith(b"\n\n"), "the last event is closed by an empty line"
    out = []
    for frame in raw.decode("ascii").split("\n\n"):
        name, data = "", []
        for line in frame.split("\n"):
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].strip())
        if data:
            out.append((name, json.loads("\n".join(data))))
    return out


@check("1: the key as a bearer, in a header or in the query; errors are flat")
def _():
    call("GET", "/v1/me", 200)
    call("GET", f"/v1/me?access_token={key}", 200, headers={})
    call("GET", "/v1/me", 200, headers={"X-API-Key": key})
    for path, status in (("/v1/me", 401), (f"/v1/sandboxes/{sb}", 401)):
        e = call("GET", path, status, headers={}).json()
        assert isinstance(e["error"], str) and isinstance(e["code"], str) and e["request_id"], e
    equal(call("GET", "/v1/nothing", 404).json()["code"], "not_found")
    equal(call("GET", "/v1/me", 200, headers={**auth, "X-Request-Id": "mine"}).headers["X-Request-Id"], "mine")


@check("2: an empty body of any type is fine where nothing is to be said")
def _():
    for typ in ("text/plain;charset=UTF-8", "application/json", "application/octet-stream", None):
        for action in ("pause", "resume"):
            call("POST", f"{at}/{action}", 204, data="", headers={**auth, **({"Content-Type": typ} if typ else {})})
    # Where we differ: a field that is not known is refused, because nothing that is accepted is ignored.
    equal(call("POST", f"{at}/exec", 400, json={"cmd": "true", "timeout": 3}).json()["code"], "unknown_field")


@check("3: lists are bare arrays, and empty ones are []")
def _():
    for path in ("/v1/sandboxes", "/v1/templates", "/v1/templates/builds", "/v1/me/tokens", f"{at}/ports", f"{at}/shells"):
        assert isinstance(call("GET", path, 200).json(), list), path
    call("POST", f"{at}/exec", 200, json={"cmd": "mkdir -p /tmp/none"})
    equal(call("GET", f"{at}/fs/dir?path=/tmp/none", 200).text.strip(), '{"path":"/tmp/none","entries":[]}')


@check("4: streams of events")
def _():
    r = call("POST", f"{at}/exec/stream", 200, json={"cmd": "printf 'é\\342\\200\\250'; exit 3"})
    equal(r.headers["Content-Type"], "text/event-stream; charset=utf-8")
    assert "no-cache" in r.headers["Cache-Control"] and r.headers["X-Accel-Buffering"] == "no", r.headers
    evs = frames(r.content)
    equal("".join(d["chunk"] for n, d in evs if n == "stdout"), "é\u2028")
    equal((evs[-1][0], evs[-1][1]["exit_code"]), ("exit", 3))
    call("POST", f"{at}/exec/stream", 400, json={"cmd": ""})


@check("4: a silent stream is kept alive")
def _():
    r = call("POST", f"{at}/exec/stream", 200, json={"cmd": "sleep 12"}, stream=True)
    began, gaps, last = time.monotonic(), [], time.monotonic()
    raw = b""
    for piece in r.iter_content(None):
        raw += piece
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    assert time.monotonic() - began > 11 and max(gaps) < 11, gaps  # something came before the end
    assert re.search(rb"^:", raw, re.M), raw
    equal(frames(raw)[-1][0], "exit")


@check("4: log lines are wrapped, and a log ends")
def _():
    s = sandbox()
    call("POST", f"/v1/sandboxes/{s}/exec", 200, json={"cmd": "echo '  x'"})
    r = call("GET", f"/v1/sandboxes/{s}/logs?follow=1", 200, stream=True)
    raw, ended = b"", False
    for piece in r.iter_content(None):
        raw += piece
        if b"line" in raw and not ended:
            ended = True
            call("DELETE", f"/v1/sandboxes/{s}", 204)
    equal([d["line"] for n, d in frames(raw)], ["  x"])


@check("5: a timeout is a result, whenever it comes")
def _():
    r = call("POST", f"{at}/exec", 200, json={"cmd": "echo a; sleep 60", "timeout_seconds": 1}).json()
    equal((r["exit_code"], r["stdout"], r["end_reason"]), (124, "a\n", "timeout"))
    assert "timeout" not in r.get("error", "")


@check("5: late answers are begun in time, and blanks keep them alive")
def _():
    host, port = base.removeprefix("http://").rsplit(":", 1)
    s = socket.create_connection((host, int(port)))
    body = b'{"cmd": "sleep 28; echo late"}'
    s.sendall(f"POST {at}/exec HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    began, times, raw = time.monotonic(), [], b""
    while piece := s.recv(65536):
        raw += piece
        times.append(time.monotonic() - began)
    assert 14 < times[0] < 26, times  # before the command's end
    head, rest = raw.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200"), head
    text = b"".join(p.split(b"\r\n", 1)[1] if b"\r\n" in p else p for p in re.split(rb"(?<=\r\n)(?=[0-9a-f]+\r\n)", rest))
    blanks = text.split(b"{", 1)[0].count(b" ")
    assert blanks >= 2, f"{blanks} blanks before the result"
    equal(json.loads(text.replace(b"\r\n", b"").strip().rstrip(b"0") or b"{}")["stdout"], "late\n")


@check("6: no error reads like a machine that is not up yet")
def _():
    texts = [
        call("GET", f"{at}/proxy/1/", 502).text,
        call("POST", "/v1/sandboxes/nope/exec", 404, json={"cmd": "true"}).text,
        call("GET", f"{at}/fs?path=/nope", 404).text,
    ]
    for text in texts:
        for word in ("connect: connection refused", "no route to host", "i/o timeout"):
            assert word not in text, text


@check("7: 404 for what is missing, 409 for what is paused")
def _():
    for path in ("fs?path=/nope", "fs/stat?path=/nope", "fs/dir?path=/nope"):
        call("GET", f"{at}/{path}", 404)
    call("POST", f"{at}/pause", 204)
    try:
        for method, path in (("GET", "fs?path=/etc/hostname"), ("PUT", "fs?path=/tmp/x"), ("GET", "fs/stat?path=/"), ("GET", "fs/dir")):
            equal(call(method, f"{at}/{path}", 409).json()["code"], "invalid_state")
        call("POST", f"{at}/exec", 409, json={"cmd": "true"})
        call("POST", f"{at}/exec/stream", 409, json={"cmd": "true"})
        call("GET", at, 200)
        call("GET", f"{at}/ports", 200)
    finally:
        call("POST", f"{at}/resume", 204)


@check("8: what needs snapshots is refused at once, in words")
def _():
    for path in ("fork", "fork-tree", "snapshots", "promote", "hibernate", "wake"):
        e = call("POST", f"{at}/{path}", 501, json={"count": 2}).json()
        assert e["code"] == "unsupported" and e["error"], e


@check("9: the templates that clients name are there")
def _():
    for name in ("ubuntu-24.04", "base", "code-interpreter"):
        call("GET", f"/v1/templates/{name}", 200)


@check("10: a sandbox shows when and how it was made")
def _():
    s = call("GET", f"/v1/sandboxes/{sandbox(metadata={'a': 'b', 'secret.x': 'y'})}", 200).json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", s["created_at"]), s
    assert s["boot_ms"] > 0 and s["boot_mode"], s
    equal(s["metadata"], {"a": "b"})
    assert "metadata" not in call("GET", at, 200).json()


@check("11: who I am, what this is, and what it is not")
def _():
    call("GET", "/v1/me", 200)
    for path in ("/healthz", "/readyz", "/version", "/v1/version"):
        call("GET", path, 200, headers={})
    equal(sorted(call("GET", "/v1/version", 200, headers={}).json()), ["arch", "build_time", "commit", "go", "os", "semver", "service"])
    for path in ("databases", "apps", "functions", "schedules", "volumes", "snapshots", "orgs", "repl/languages", "lsp/languages"):
        equal(call("GET", f"/v1/{path}", 501).json()["code"], "unsupported")
    call("POST", "/v1/mcp", 501)


@check("12: previews by name need no token, and signed ones are refused in words")
def _():
    e = call("POST", f"{at}/preview-token", 501, json={"port": 3000}).json()
    assert "proxy" in e["error"], e


@check("labels of ports")
def _():
    p = call("POST", f"{at}/ports", 201, json={"port": 3000, "label": "web"}).json()
    equal((p["port"], p["label"], p["listening"], p["source"]), (3000, "web", False, "user"))
    assert call("GET", f"{at}/ports", 200).json()[0]["proxy_url"].endswith("/proxy/3000/")
    call("POST", f"{at}/ports", 400, json={"port": 22})
    call("DELETE", f"{at}/ports/3000", 204)
    equal(call("GET", f"{at}/ports", 200).json(), [])


@check("events, usage, boots and the audit")
def _():
    evs = call("GET", f"{at}/events?tail=50", 200).json()["events"]
    assert evs and evs[0]["sandbox_id"] == sb and evs[0]["time"] and evs[0]["type"].startswith("sandbox."), evs
    equal(len(call("GET", f"{at}/events?tail=1", 200).json()["events"]), 1)
    m = call("GET", f"{at}/metrics", 200).json()
    assert m["uptime_seconds"] > 0 and m["host_rss_bytes"] > 0 and m["host_cpu_percent"] >= 0, m
    u = call("GET", f"{at}/util", 200).json()
    assert 0 < u["memory_bytes"] < u["memory_max_bytes"] and 0 < u["disk_max_bytes"], u
    deadline = time.monotonic() + 20
    while not call("GET", f"/v1/metrics/sandbox/{sb}", 200).json()["series"]:
        assert time.monotonic() < deadline, "no sample was taken"
        time.sleep(0.5)
    assert call("GET", "/v1/metrics/overview?step=1m", 200).json()["series"][-1]["sandboxes"] >= 1
    boots = call("GET", "/v1/stats/boot", 200).json()["stats"]
    assert any(b["template"] == "base" and b["count"] >= 1 and 0 < b["p50_ms"] <= b["p99_ms"] for b in boots), boots
    deadline = time.monotonic() + 10
    while True:
        entries = call("GET", "/v1/audit?limit=1000", 200).json()["entries"]
        mine = [e for e in entries if e.get("sandbox_id") == sb]
        if any(e["path"] == "/v1/sandboxes/{id}/fork" and e["status"] == 501 for e in mine):
            break
        assert time.monotonic() < deadline, entries[:5]
        time.sleep(0.1)
    assert all(e["method"] != "GET" or "exec" in e["path"] or "ssh" in e["path"] for e in entries)


@check("CORS: any origin, and a preflight needs no key")
def _():
    r = call("OPTIONS", "/v1/sandboxes", 204, headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"})
    equal((r.headers["Access-Control-Allow-Origin"], r.headers["Access-Control-Max-Age"]), ("*", "600"))


def clean_up():
    for s in made:
        call("DELETE", f"/v1/sandboxes/{s}")


run(clean_up)
