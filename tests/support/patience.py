"""Waiting for what must happen: bounded against hangs, whatever the speed of the machine."""

import time
from collections.abc import Callable

PATIENCE_S = 1200
"""Below the time limit of a test, so that the failure names what did not happen."""


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Return when the condition holds; AssertionError after `PATIENCE_S`."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"never happened: {what or condition}"
        time.sleep(0.005)
