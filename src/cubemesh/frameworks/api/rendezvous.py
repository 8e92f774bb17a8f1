"""What a framework offers so that its programs run on several devices, of one host or several."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cubemesh.frameworks.api.gradient_sync import Group

LOOK_AGAIN_S = 0.01
"""How often a rank that waits for others looks, where it has something to check meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the agents of several hosts meet: what each must know to find the others."""

    name: str
    """The same on all hosts, and of this run alone."""
    hosts: int
    endpoint: str
    """`address:port` of the first host, where the others report."""
    is_first: bool
    """Whether this is that host."""
    address: str
    """By which the other hosts reach this one."""


@runtime_checkable
class Distributes(Protocol):
    """A framework whose programs train on several devices; others need not offer this."""

    def launch(
        self,
        run_rank: Callable[[str], None],
        job: str,
        ranks: int,
        meeting: Meeting | None = None,
    ) -> dict[int, int]:
        """Call `run_rank(job)` in `ranks` forked processes of this host, each knowing itself by its
        environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). The exit code of each
        that failed, negative for a signal; the others are ended then. With a `meeting` there are as
        many on each other host."""

    def join(self, device: str, timeout_s: float, link: str = "auto") -> Group:
        """Meet the other ranks, as the launcher's environment names them. A rank that does not come
        within `timeout_s`, or does not take part in an operation for so long, is an error.
        `link` is `Placement.link`; Unsupported where there is none of that name."""


def wait_and_check(there: Callable[[], bool], check: Callable[[], None]) -> None:
    """Return when `there` says so; what `check` raises ends the waiting."""
    while not there():
        check()
        time.sleep(LOOK_AGAIN_S)
