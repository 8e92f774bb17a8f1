"""Waiting for what must happen: bounded against hangs, whatever the speed of the machine."""

import time
from collections.abc import Callable

PATIENCE_S = 1200
"""Below the time limit of a test, so that the failure names what did not happen."""


SHORTEST_S, LONGEST_S = 0.005, 0.1
"""Intervals of looking: what takes long to look at, or to happen, is looked at less often."""


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Return when the condition holds; AssertionError after `PATIENCE_S`."""
    end_s, interval_s = time.monotonic() + PATIENCE_S, SHORTEST_S
    while not condition():
        assert time.monotonic() < end_s, f"never happened: {what or condition}"
        time.sleep(interval_s)
        interval_s = min(1.2 * interval_s, LONGEST_S)
