"""Commands and terminals."""

import asyncio
import time

from check import araises, check, equal, raises, run
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)

sbx = Sandbox.create(timeout=900, envs={"FROM_CREATE": "yes"})
cmds = sbx.commands


def until(what, cond, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if cond():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited in vain until {what}")


@check("output, exit code, and both streams")
def _():
    r = cmds.run("echo out; echo err >&2")
    equal((r.stdout, r.stderr, r.exit_code, r.error), ("out\n", "err\n", 0, None))


@check("callbacks get the output as it comes")
def _():
    seen = []
    cmds.run(
        "echo 1; sleep 1; echo 2 >&2",
        on_stdout=lambda s: seen.append(("out", s, time.monotonic())),
        on_stderr=lambda s: seen.append(("err", s, time.monotonic())),
    )
    equal([s[:2] for s in seen], [("out", "1\n"), ("err", "2\n")])
    assert seen[1][2] - seen[0][2] > 0.8, "both came at once"


@check("special characters and many lines")
def _():
    text = """!@#$%^&*()_+{}[]|\\:;"'<>,.?/~ äöü 日本 🦊"""
    equal(cmds.run(f"cat <<'END'\n{text}\nline 2\n\nEND").stdout, f"{text}\nline 2\n\n")


@check("a failing command")
def _():
    e = raises(CommandExitException, lambda: cmds.run("echo out; echo err >&2; exit 3"))
    equal((e.exit_code, e.stdout, e.stderr, e.error), (3, "out\n", "err\n", "exit status 3"))


@check("who, where, and with which variables")
def _():
    equal(cmds.run("whoami; pwd; echo $HOME").stdout, "user\n/home/user\n/home/user\n")
    equal(cmds.run("whoami; pwd", user="root").stdout, "root\n/root\n")
    equal(cmds.run("pwd", cwd="/tmp").stdout, "/tmp\n")
    equal(cmds.run("echo $FROM_CREATE $A", envs={"A": "of the call"}).stdout, "yes of the call\n")
    equal(cmds.run('echo "[$A]"').stdout, "[]\n")


@check("a directory and a user that are not there")
def _():
    e = raises(InvalidArgumentException, lambda: cmds.run("pwd", cwd="/no/such"))
    assert "cwd '/no/such' does not exist" in str(e), e
    e = raises(AuthenticationException, lambda: cmds.run("pwd", user="nobody-here"))
    assert "invalid username: 'nobody-here'" in str(e), e


@check("a timeout ends the command")
def _():
    raises(TimeoutException, lambda: cmds.run("sleep 77", timeout=1.5))
    until("the process is gone", lambda: cmds.run('pgrep -fx "sleep 77" || echo none').stdout == "none\n")


@check("in the background: wait, iterate, and kill")
def _():
    cmd = cmds.run("for i in 1 2 3; do echo $i; sleep 0.1; done", background=True)
    equal("".join(out for out, _, _ in cmd if out), "1\n2\n3\n")
    long = cmds.run("sleep 60", background=True)
    equal(long.kill(), True)
    e = raises(CommandExitException, long.wait)
    equal((e.exit_code, e.error), (-1, "signal: killed"))
    equal(cmds.run(f"kill -0 {long.pid} 2>/dev/null; echo $?").stdout, "1\n")
    equal(cmds.kill(long.pid), False)
    equal(cmds.kill(999_999), False)


@check("list and connect")
def _():
    cmd = cmds.run("sleep 1; echo late; exit 4", background=True, cwd="/tmp")
    got = [p for p in cmds.list() if p.pid == cmd.pid][0]
    equal((got.cmd, got.args, got.cwd), ("/bin/bash", ["-l", "-c", "sleep 1; echo late; exit 4"], "/tmp"))
    cmd.disconnect()
    e = raises(CommandExitException, cmds.connect(cmd.pid).wait)
    equal((e.exit_code, e.stdout), (4, "late\n"))
    raises(NotFoundException, lambda: cmds.connect(999_999))


@check("stdin, piece by piece and as a stream")
def _():
    cmd = cmds.run("cat", background=True, stdin=True)
    cmds.send_stdin(cmd.pid, "Hello,\n")
    cmds.send_stdin(cmd.pid, "")
    cmd.send_stdin("wörld 🦊\n")
    cmds.stream_input(cmd.pid, (f"part {i}\n" for i in range(3)))
    cmd.close_stdin()
    cmd.close_stdin()
    equal(cmd.wait().stdout, "Hello,\nwörld 🦊\npart 0\npart 1\npart 2\n")
    raises(NotFoundException, lambda: cmds.stream_input(999_999, ["x"]))
    raises(NotFoundException, lambda: cmds.send_stdin(999_999, "x"))


@check("stdin of a command without one")
def _():
    cmd = cmds.run("sleep 20", background=True)
    raises(SandboxException, lambda: cmd.send_stdin("x"))
    cmd.kill()
    equal(cmds.run("cat; echo end").stdout, "end\n")


@check("much output is all there")
def _():
    equal(len(cmds.run('head -c 20000000 /dev/zero | tr "\\0" x').stdout), 20_000_000)


@check("a terminal: its size, its input, its end")
def _():
    pty = sbx.pty.create(PtySize(rows=24, cols=80), envs={"MY": "own"}, cwd="/tmp")
    sbx.pty.send_stdin(pty.pid, b'echo "cols=$(tput cols):$MY:$(pwd)"\n')
    sbx.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    sbx.pty.stream_input(pty.pid, [b'sleep 0.5; echo "cols=$(tput', b' cols)"\n', b"exit 5\n"])
    text = []
    e = raises(CommandExitException, lambda: pty.wait(on_pty=lambda d: text.append(d.decode(errors="replace"))))
    equal(e.exit_code, 5)
    shown = "".join(text)
    assert ":own:/tmp" in shown and "cols=100" in shown, shown
    equal(sbx.pty.kill(pty.pid), False)


@check("the async client")
async def _():
    s = await AsyncSandbox.connect(sbx.sandbox_id)
    results = await asyncio.gather(*(s.commands.run(f"sleep 0.2; echo {i}") for i in range(20)))
    equal([r.stdout for r in results], [f"{i}\n" for i in range(20)])
    cmd = await s.commands.run("cat", background=True, stdin=True)
    await s.commands.send_stdin(cmd.pid, "x")
    handle = s.commands.stream_input(cmd.pid)
    await handle.send("y")
    await handle.send(b"z")
    await handle.close()
    await s.commands.close_stdin(cmd.pid)
    equal((await cmd.wait()).stdout, "xyz")
    long = await s.commands.run("sleep 60", background=True)
    equal(await long.kill(), True)
    await araises(CommandExitException, long.wait())
    await araises(TimeoutException, s.commands.run("sleep 60", timeout=0.5))
    text = []
    pty = await s.pty.create(PtySize(rows=24, cols=80), on_data=lambda d: text.append(d.decode(errors="replace")))
    await s.pty.send_stdin(pty.pid, b'echo "sum:$((40+2))"; exit\n')
    equal((await pty.wait()).exit_code, 0)
    assert "sum:42" in "".join(text), text


@check("git, as its helper uses it")
def _():
    sbx.git.init("/home/user/repo")
    sbx.files.write("/home/user/repo/a.txt", "a")
    sbx.git.add("/home/user/repo")
    sbx.git.configure_user("A", "a@example.com")
    sbx.git.commit("/home/user/repo", "first")
    equal(sbx.git.status("/home/user/repo").is_clean, True)


run(lambda: sbx.kill())
