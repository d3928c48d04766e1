"""A program that people are shown, as it stands but for its live kernel, which is refused here."""

import time

from check import check, equal, raises, run
from pandastack import NotFoundError, Sandbox, ServerError


class AgentWorkspace:
    """One machine for one task. State persists across steps; nothing leaks
    into the next task, because the machine is destroyed with the task."""

    def __init__(self, ttl_seconds: int = 1800):
        # ttl_seconds is the platform-side backstop: if this process dies
        # before close(), the sandbox still reaps itself. See requirement 4.
        self.sb = Sandbox.create(template="code-interpreter",
                                 ttl_seconds=ttl_seconds)

    def shell(self, cmd: str, timeout_seconds: int = 120) -> dict:
        """Filesystem-level work: clone, install, run the test suite."""
        r = self.sb.exec(cmd, timeout_seconds=timeout_seconds)
        return {
            "exit_code": r.exit_code,
            "stdout": _clip(r.stdout, 6000),
            "stderr": _clip(r.stderr, 2000),
        }

    def close(self) -> None:
        self.sb.kill()


def _clip(text: str, limit: int) -> str:
    """Truncate loudly, so the model knows it is not seeing everything."""
    if len(text) <= limit:
        return text
    dropped = len(text) - limit
    return text[:limit] + f"\n... [truncated {dropped} bytes]"


@check("one machine for one task", seconds=120)
def _():
    ws = AgentWorkspace()
    try:
        began = time.monotonic()
        clone = ws.shell("git clone --depth 1 https://example.com/repo /workspace/repo")
        assert time.monotonic() - began < 10, "without a network a clone fails at once, it does not hang"
        assert clone["exit_code"] != 0 and clone["stderr"], clone
        install = ws.shell("cd /workspace/repo && pip install -e .", timeout_seconds=300)
        assert install["exit_code"] != 0, install
        run_agent(ws)
    finally:
        ws.close()
    raises(NotFoundError, lambda: Sandbox.get(ws.sb.id))


def run_agent(ws):
    """Some of what an agent does in twenty turns, against the same machine."""
    equal(ws.shell("python3 -m venv --system-site-packages /workspace/venv && mkdir -p /workspace/repo")["exit_code"], 0)
    ws.sb.filesystem.write("/workspace/repo/app.py", "def add(a, b):\n    return a - b\n")
    ws.sb.filesystem.write("/workspace/repo/test_app.py", "import unittest\nfrom app import add\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n")
    test = "cd /workspace/repo && /workspace/venv/bin/python -m unittest -q"
    failed = ws.shell(test)
    equal(failed["exit_code"], 1)
    assert "AssertionError" in failed["stderr"], failed
    equal(ws.shell("cd /workspace/repo && sed -i 's/a - b/a + b  # and not minus/' app.py && git init -q && git add -A && git -c user.name=a -c user.email=a@example.com commit -qm fix")["exit_code"], 0)
    equal(ws.shell(test)["exit_code"], 0)
    stuck = ws.shell("cat && sleep 1000", timeout_seconds=1)
    equal(stuck["exit_code"], 124)
    equal(ws.shell("pgrep -f 'sleep 100[0]'")["exit_code"], 1)


@check("the live kernel is refused in words")
def _():
    with Sandbox.create(template="code-interpreter", ttl_seconds=60) as sb:
        assert "code contexts" in str(raises(ServerError, lambda: sb.create_code_context(language="python")))


run()
