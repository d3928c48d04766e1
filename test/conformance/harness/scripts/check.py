"""Checks of a conformance suite, reported as the harness reads them: one JSON object a line."""

import asyncio
import inspect
import json
import os
import re
import time
import traceback

_checks = []


def _report(line):
    print(json.dumps(line), flush=True)


def check(name, seconds=60):
    """Adds a check: it passes unless the function, plain or async, raises or takes too long."""

    def add(fn):
        _checks.append((name, fn, seconds))
        return fn

    return add


def equal(got, want, what=""):
    """Fails unless both are the same."""
    if got != want:
        raise AssertionError(f"{what + ': ' if what else ''}got {got!r}, want {want!r}")


def raises(kind, fn):
    """Fails unless fn raises an exception of exactly that class, which it returns."""
    try:
        got = fn()
    except Exception as e:  # whatever it is, it is looked at
        if type(e) is not kind:
            raise AssertionError(f"raised {type(e).__name__} ({e}), want {kind.__name__}") from e
        return e
    raise AssertionError(f"returned {got!r}, want {kind.__name__}")


async def araises(kind, awaitable):
    """Like raises, for what is awaited."""
    try:
        got = await awaitable
    except Exception as e:  # whatever it is, it is looked at
        if type(e) is not kind:
            raise AssertionError(f"raised {type(e).__name__} ({e}), want {kind.__name__}") from e
        return e
    raise AssertionError(f"returned {got!r}, want {kind.__name__}")


def run(clean_up=lambda: None):
    """Runs the checks in order, all in one event loop, then clean_up."""
    only = re.compile(os.environ.get("HUTCH_CHECKS", "."))
    done = 0
    loop = asyncio.new_event_loop()
    for name, fn, seconds in _checks:
        if not only.search(name):
            continue
        began = time.monotonic()
        error = ""
        try:
            if inspect.iscoroutinefunction(fn):
                loop.run_until_complete(asyncio.wait_for(fn(), seconds))
            else:
                fn()
                if time.monotonic() - began > seconds:
                    raise AssertionError(f"it took longer than {seconds} s")
        except Exception:  # every failure is a report
            error = traceback.format_exc()
        _report({"check": name, "error": error, "ms": int((time.monotonic() - began) * 1000)})
        done += 1
    if inspect.iscoroutinefunction(clean_up):
        loop.run_until_complete(clean_up())
    else:
        clean_up()
    _report({"done": done})
