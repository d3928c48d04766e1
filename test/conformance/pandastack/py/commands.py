"""Commands."""

import concurrent.futures
import threading
import time

from check import check, equal, raises, run
from pandastack import BadRequestError, Client, CommandFailed, NotFoundError, Sandbox

sbx = Sandbox.create(template="base", ttl_seconds=900)


# What is bounded would take a minute if the bound did not hold: the limits are for a machine
# whose processors are all taken.
def within(seconds, fn):
    began = time.monotonic()
    out = fn()
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.1f} s, want less than {seconds}"
    return out


@check("output, exit code and time")
def _():
    r = sbx.exec("echo out; echo err >&2; exit 3")
    equal((r.stdout, r.stderr, r.exit_code), ("out\n", "err\n", 3))
    assert r.duration_ms >= 0, r
    equal(sbx.exec("sleep 1.1").duration_ms >= 1000, True)
    equal(sbx.commands.run("echo again", timeout=10).stdout, "again\n")


@check("check=True raises with what there was")
def _():
    e = raises(CommandFailed, lambda: sbx.exec("echo a; echo b >&2; exit 9", check=True))
    equal((e.exit_code, e.stdout, e.stderr), (9, "a\n", "b\n"))
    equal(sbx.exec("true", check=True).exit_code, 0)


@check("who and where: root, in its home, with the template's PATH")
def _():
    r = sbx.exec("id -u; pwd; command -v python3 >/dev/null && echo found")
    equal(r.stdout, "0\n/root\nfound\n")


@check("what is no command")
def _():
    raises(BadRequestError, lambda: sbx.exec(""))
    raises(NotFoundError, lambda: Sandbox.from_dict({"id": "nope"}, client=sbx._client).exec("true"))
    equal(sbx.exec("no-such-program").exit_code, 127)
    equal(sbx.exec("kill -9 $$").exit_code, 137)
    raises(BadRequestError, lambda: sbx.exec("true", timeout_seconds=-1))


@check("a timeout ends the command, all of it, and keeps what it wrote")
def _():
    r = within(40, lambda: sbx.exec("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.5; done; sleep 77", timeout_seconds=2))
    equal(r.exit_code, 124)
    assert r.stdout.startswith("1\n2\n3\n"), r.stdout
    equal(sbx.exec("pgrep -f 'sleep 7[7]'").exit_code, 1)
    r = within(40, lambda: sbx.exec("trap '' TERM; sleep 78", timeout_seconds=1))
    equal(r.exit_code, 124)


@check("children left behind do not hold a command")
def _():
    equal(within(40, lambda: sbx.exec("sleep 60 >/dev/null 2>&1 & echo started")).stdout, "started\n")
    equal(within(40, lambda: sbx.exec("(setsid sleep 60 &); echo started")).stdout, "started\n")


@check("nobody types: what reads input gets its end")
def _():
    equal(sbx.exec("cat; echo end", timeout_seconds=20).stdout, "end\n")


@check("commands run side by side, and files are read meanwhile")
def _():
    # None of them ends before all have begun and a file has been read.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        cmd = "touch /tmp/side.{}; until [ -e /tmp/side.go ] && [ $(ls /tmp/side.? | wc -l) = 4 ]; do sleep 0.1; done; echo done"
        slow = [pool.submit(sbx.exec, cmd.format(i), timeout_seconds=50) for i in range(4)]
        sbx.filesystem.read("/etc/hostname")
        sbx.filesystem.write("/tmp/side.go", "")
        equal([f.result().stdout for f in slow], ["done\n"] * 4)


@check("a silent command outlasts the client's patience", seconds=90)
def _():
    # The client gives up after 30 s without a byte.
    r = sbx.exec("sleep 33; echo late", timeout_seconds=60)
    equal((r.stdout, r.exit_code), ("late\n", 0))


@check("so does one that its timeout ends", seconds=90)
def _():
    patient = Client(timeout=18)
    r = patient.sandboxes.get(sbx.id).exec("echo before; sleep 60", timeout_seconds=20)
    equal((r.stdout, r.exit_code), ("before\n", 124))


@check("text survives, whatever it is")
def _():
    text = "é 😀 \u2028 \u0085 \x0b \x1c tab\t \r\n\x1b[31mred\x1b[0m {\"a\": 1} event: exit\ndata: x\n\n"
    sbx.filesystem.write("/tmp/text", text)
    equal(sbx.exec("cat /tmp/text").stdout, text)
    got = []
    equal(sbx.exec_stream("cat /tmp/text; exit 5", on_stdout=got.append), 5)
    equal("".join(got), text)


@check("a stream comes as it is written")
def _():
    seen = []
    began = time.monotonic()
    code = sbx.exec_stream(
        "echo one; sleep 2; echo two >&2; sleep 1; exit 4",
        on_stdout=lambda s: seen.append(("out", s, time.monotonic() - began)),
        on_stderr=lambda s: seen.append(("err", s, time.monotonic() - began)),
    )
    equal(code, 4)
    equal([s[:2] for s in seen], [("out", "one\n"), ("err", "two\n")])
    assert seen[0][2] < 1.5 < seen[1][2], seen


@check("no character of a stream is split")
def _():
    got = []
    equal(sbx.exec_stream("python3 -c \"print('ä€😀' * 30000, end='')\"", on_stdout=got.append), 0)
    equal("".join(got), "ä€😀" * 30000)
    assert not any("\ufffd" in s for s in got)


@check("a stream whose command is over its time")
def _():
    got = []
    equal(within(8, lambda: sbx.exec_stream("echo a; sleep 60", on_stdout=got.append, timeout_seconds=1)), 124)
    equal(got, ["a\n"])


@check("a stream whose sandbox goes is no success")
def _():
    s = Sandbox.create(template="base", ttl_seconds=60)
    started = threading.Event()
    threading.Thread(target=lambda: (started.wait(20), s.kill())).start()
    code = None
    try:
        code = s.exec_stream("echo up; sleep 60", on_stdout=lambda _: started.set())
    except Exception as e:
        assert type(e).__name__ in ("ServerError", "ExecInterrupted"), e
    assert code != 0, code


@check("more than the budget is cut so that it can be seen, and kept in a file")
def _():
    r = sbx.exec("seq 1 600000")
    assert len(r.stdout) < 1_200_000, len(r.stdout)
    assert r.stdout.startswith("1\n2\n") and r.stdout.endswith("599999\n600000\n"), r.stdout[:20]
    assert "bytes of stdout dropped here; the whole output is in " in r.stdout
    path = r.stdout.split("the whole output is in ")[1].split("]")[0]
    equal(sbx.exec(f"wc -l < {path}").stdout.strip(), "600000")


@check("code")
def _():
    equal(sbx.run_code("print('it\\'s \"quoted\"')").stdout, "it's \"quoted\"\n")
    equal(sbx.run_code("import sys; sys.exit(6)").exit_code, 6)
    equal(sbx.run_code("echo $((6*7))", language="shell").stdout, "42\n")
    raises(ValueError, lambda: sbx.run_code("1", language="cobol"))


@check("many at once, none lost")
def _():
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        out = list(pool.map(lambda i: sbx.exec(f"echo {i}").stdout, range(48)))
    equal(out, [f"{i}\n" for i in range(48)])


run(sbx.kill)
