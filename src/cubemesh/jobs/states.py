"""States of a job, and the changes between them.

queued ─▶ starting ─▶ running ─▶ done
  ▲ │         │         │ └────▶ failed
  │ │         │         └──▶ pausing ─▶ paused ─▶ queued
  │ └─────────┴──────────────▶ stopped
  └── a holder that was lost, with restarts left; without: lost
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from cubemesh.errors import UsageError


class State(enum.StrEnum):
    """State of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def held(self) -> bool:
        """Whether an agent holds it, with a lease."""
        return self in HELD

    @property
    def ended(self) -> bool:
        """Whether it has ended; `resume` queues it again unless it is done."""
        return self in ENDED


_S = State
HELD = (_S.STARTING, _S.RUNNING, _S.PAUSING)
ENDED = (_S.DONE, _S.FAILED, _S.STOPPED, _S.LOST)
_ENDS = frozenset({_S.DONE, _S.FAILED, _S.STOPPED, _S.PAUSED, _S.QUEUED, _S.LOST})
TRANSITIONS: Mapping[State, frozenset[State]] = {
    _S.QUEUED: frozenset({_S.STARTING, _S.PAUSED, _S.STOPPED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.PAUSING}) | _ENDS,
    _S.RUNNING: frozenset({_S.PAUSING}) | _ENDS,
    _S.PAUSING: _ENDS,
    _S.PAUSED: frozenset({_S.QUEUED, _S.STOPPED}),
    _S.DONE: frozenset(),
    _S.FAILED: frozenset({_S.QUEUED}),
    _S.STOPPED: frozenset({_S.QUEUED}),
    _S.LOST: frozenset({_S.QUEUED}),
}
"""State → the states that may follow it."""


def stored_state(text: object) -> State:
    """The state in a row; `failed` for one that is damaged, so that `resume` can queue it again."""
    return State(text) if isinstance(text, str) and text in list(State) else State.FAILED


def check_transition(job_id: int, before: State, after: State) -> None:
    """UsageError where a job cannot change from one state to the other."""
    if after not in TRANSITIONS[before]:
        allowed = ", ".join(sorted(TRANSITIONS[before])) or "nothing"
        raise UsageError(
            f"Job {job_id} is {before} and cannot become {after}; it can become {allowed}. "
            "`cubemesh jobs` lists the jobs, and `cubemesh jobs clone` asks the same again."
        )


def state_of_sweep(states: list[State]) -> State:
    """The state of a sweep from those of its jobs."""
    for held in (_S.RUNNING, _S.STARTING, _S.PAUSING, _S.QUEUED, _S.PAUSED):
        if held in states:
            return held
    for ended in (_S.FAILED, _S.LOST, _S.STOPPED):
        if ended in states:
            return ended
    return _S.DONE
