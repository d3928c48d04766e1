"""Plays a coding agent's session on a real project, with the published client libraries.

The agent makes a sandbox, works in it for some twenty steps as agents do (upload, install,
a wall of test output, an edit that breaks something, a hang, a preview), looks at the same
sandbox through a second library, and kills it. It ends with exit code 0 if every step went
as told.

Usage: agent.py DIRECTORY, which has the project's archive and a directory "wheels". The
server and its key are taken from the environment, as the libraries take them.
"""

import os
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from e2b import CommandExitException, PtySize
from e2b import Sandbox as E2BSandbox
from pandastack import Sandbox
from pandastack.sandbox import get_default_client

COLOUR = sys.stdout.isatty()
BOLD, DIM, OFF = ("\033[1m", "\033[2m", "\033[0m") if COLOUR else ("", "", "")
REPO = "/workspace/click"


class Story:
    """Numbers and times the steps, and stops at the first that goes otherwise than told."""

    def __init__(self) -> None:
        self.number = 0

    def chapter(self, title: str) -> None:
        print(f"\n{BOLD}{title}{OFF}", flush=True)

    def step(self, title, do, want=lambda result: True, show=None, lines=4):
        self.number += 1
        began = time.monotonic()
        result = do()
        took = (time.monotonic() - began) * 1000
        print(f"\n{BOLD}{self.number:2d}. {title}{OFF} {DIM}({took:.0f} ms){OFF}", flush=True)
        text = show(result) if show else ""
        for line in str(text).rstrip().splitlines()[-lines:]:
            print(f"    {DIM}│{OFF} {line[:140]}")
        if not want(result):
            sys.exit(f"demo: step {self.number} went otherwise: {result!r:.2000}")
        return result


def code(n):
    """A command's result is as wanted if its exit code is n."""
    return lambda result: result.exit_code == n


def output(result):
    return result.stdout + result.stderr


def archive(source: Path) -> Path:
    """One archive of all that the agent brings along."""
    out = source / "bring.tar"
    with tarfile.open(out, "w") as tar:
        for path in [source / "wheels", *source.glob("click-*.tar.gz")]:
            tar.add(path, arcname=path.name)
    return out


def set_up(story: Story, box: Sandbox, source: Path) -> None:
    story.chapter("The agent begins")

    def bring():
        box.filesystem.upload(archive(source), "/workspace/bring.tar")
        return box.exec(f"cd /workspace && tar -xf bring.tar && tar -xzf click-*.tar.gz && mv click-*/ {REPO} && ls", check=True)

    story.step("Bring the project", bring, show=output)
    story.step("Make a virtualenv", lambda: box.exec("python3 -m venv /workspace/venv && /workspace/venv/bin/python --version"), code(0), output)
    story.step("Install the test runner", lambda: box.exec(
        "cd /workspace && venv/bin/pip install -q --no-index --find-links wheels pytest flit_core && venv/bin/pip list 2>/dev/null | grep -i pytest",
        timeout_seconds=120), code(0), output)
    story.step("Install the project", lambda: box.exec(
        f"cd {REPO} && ../venv/bin/pip install -q --no-index --no-build-isolation -e . && ../venv/bin/python -c 'import click; print(click.__file__)'",
        timeout_seconds=120), code(0), output)
    story.step("Look around", lambda: box.filesystem.listdir(REPO), lambda l: any(f.name == "src" and f.is_dir for f in l),
               lambda l: " ".join(sorted(f.name for f in l)))
    story.step("Keep a history", lambda: box.exec(
        f"cd {REPO} && git init -q && git add -A && git -c user.name=agent -c user.email=agent@localhost commit -qm start && git log --oneline"), code(0), output)


def test(story: Story, box: Sandbox) -> None:
    story.chapter("The whole test suite: a wall of output")
    seen = []
    story.step("Run every test, reading along", lambda: box.exec_stream(
        f"cd {REPO} && ../venv/bin/python -m pytest -vv -p no:cacheprovider", on_stdout=seen.append, timeout_seconds=300),
        lambda exit_code: exit_code == 0, lambda _: "".join(seen), lines=3)
    story.step("Trace a program line by line: 1 MiB comes back, head and tail, the rest is in a file", lambda: box.exec(
        f"cd {REPO} && ../venv/bin/python -m trace --trace ../venv/bin/pytest --version", timeout_seconds=300),
        lambda r: r.exit_code == 0 and len(r.stdout) < 1_100_000 and "hutch:" in r.stdout,
        lambda r: next(line for line in r.stdout.splitlines() if "hutch:" in line))


def edit(story: Story, box: Sandbox) -> None:
    story.chapter("The agent edits, breaks something, and mends it")
    utils = f"{REPO}/src/click/utils.py"

    def change():
        text = box.filesystem.read(utils).decode()
        line = "def make_str(value: t.Any) -> str:\n"
        box.filesystem.write(utils, text.replace(line, line + '    value = value or "nothing"\n'))
        return box.exec(f"cd {REPO} && git diff --stat")

    story.step("Edit", change, lambda r: "1 file changed" in r.stdout, output)
    story.step("Write a test for it", lambda: box.filesystem.write(
        f"{REPO}/tests/test_agent.py", 'from click.utils import make_str\n\n\ndef test_empty():\n    assert make_str("") == ""\n'),
        show=lambda r: f"{r['bytes']} bytes in {r['path']}")
    subset = f"cd {REPO} && ../venv/bin/python -m pytest -q -p no:cacheprovider tests/test_agent.py"
    story.step("Rerun a subset: it fails", lambda: box.exec(subset), code(1), output)
    story.step("Take the edit back, rerun: it passes", lambda: box.exec(f"cd {REPO} && git checkout -q src && {subset}"), code(0), output)


def hang(story: Story, box: Sandbox) -> None:
    story.chapter("The agent hangs, and is stopped")
    story.step("Start a server in the foreground, with a limit of 2 s", lambda: box.exec("python3 -m http.server 8000", timeout_seconds=2), code(124), output)
    story.step("The port is free again: nothing of it is left", lambda: box.exec(
        'python3 -c "import socket; s=socket.socket(); s.bind((\'127.0.0.1\', 8000)); print(\'8000 is free\')"'), code(0), output)
    story.step("Wait for input that never comes: it ends at once", lambda: box.exec("read -r answer"), code(1), lambda r: f"exit code {r.exit_code}")
    story.step("Try to call home", lambda: box.exec("curl -sS -m 10 http://192.0.2.1/"), code(7), output)


def preview(story: Story, box: Sandbox) -> None:
    story.chapter("The agent shows its work")
    box.exec("mkdir -p /workspace/site && echo '<h1>made by an agent</h1>' >/workspace/site/index.html")
    box.exec("cd /workspace/site && setsid python3 -m http.server 3000 --bind 127.0.0.1 >/tmp/site.log 2>&1 &")

    def look():
        url = box.preview_url(3000, scheme="http")  # http://3000-<sandbox>.<domain>
        host = url.removeprefix("http://")
        request = urllib.request.Request(os.environ["PANDASTACK_API"], headers={"Host": host})  # whatever this machine's resolver says
        for _ in range(1200):
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return url, answer.read().decode()
            except urllib.error.HTTPError as e:
                if e.code != 502:  # not listening yet
                    raise
                time.sleep(0.05)
        sys.exit("demo: the preview does not come up")

    story.step("A server on the sandbox's own localhost, through the edge", look, lambda r: "made by an agent" in r[1], lambda r: "\n".join(r))


def second_library(story: Story, box: Sandbox) -> None:
    story.chapter("The same sandbox, through another library")
    same = story.step("Connect", lambda: E2BSandbox.connect(box.id), lambda s: s.is_running(), lambda s: f"sandbox {s.sandbox_id}")

    def fails():
        try:
            return same.commands.run("ls /nowhere", user="user")
        except CommandExitException as e:
            return e

    story.step("A command as an unprivileged user", fails, code(2), output)

    def terminal():
        screen, found = bytearray(), threading.Event()

        def show(data):
            screen.extend(data)
            if b"<42>" in screen:
                found.set()

        pty = same.pty.create(PtySize(rows=24, cols=80), timeout=60)
        reader = threading.Thread(target=lambda: pty.wait(on_pty=show), daemon=True)
        reader.start()
        same.pty.send_stdin(pty.pid, b"echo \"<$((6*7))>\"; tty; stty size\n")
        found.wait(30)
        same.pty.send_stdin(pty.pid, b"exit 0\n")
        reader.join(30)
        return screen.decode(errors="replace")

    story.step("A terminal", terminal, lambda s: "<42>" in s and "24 80" in s, lines=3,
               show=lambda s: s.replace("\x1b[?2004h", "").replace("\x1b[?2004l", ""))


def main() -> None:
    source, story = Path(sys.argv[1]), Story()
    client = get_default_client()
    client.timeout = 300
    client.preview_host = f"localhost:{urlsplit(client.api_url).port}"  # the server's domain, unless it was told another
    began = time.monotonic()
    with Sandbox.create(template="base", ttl_seconds=900, metadata={"task": "demo"}) as box:
        print(f"    sandbox {box.id} after {(time.monotonic() - began) * 1000:.0f} ms")
        set_up(story, box, source)
        test(story, box)
        edit(story, box)
        hang(story, box)
        preview(story, box)
        second_library(story, box)
        story.chapter("Twenty steps later")
        story.step("The virtualenv of step 2 is still there", lambda: box.exec(
            f"cd {REPO} && ../venv/bin/python -m pytest --version && git log --oneline && git status --short"), code(0), output)
        story.step("What is left of its time", box.lifecycle, lambda l: l["ttl_seconds"] > 0, lambda l: f"{l}")
    story.step("It is gone", lambda: [s.id for s in Sandbox.list()], lambda ids: box.id not in ids, lambda ids: f"{len(ids)} sandboxes left")


if __name__ == "__main__":
    main()
