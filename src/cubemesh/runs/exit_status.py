"""Which outcome is a worker that ended without telling its own? Judged from outside.

| seen | outcome |
|---|---|
| the runner ended it at the time limit | timed_out, with where every thread stood |
| no heartbeat of a rank for `heartbeat_timeout_s`, and the runner ended it | timed_out, the same |
| SIGKILL, and the kernel's count of out-of-memory kills has risen | oom |
| it aborted, and the C++ runtime's last words are `std::bad_alloc` | oom |
| SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS: its own doing | crashed |
| any other signal: somebody's doing | killed |
| an exit code | crashed |

Every outcome says in which phase it came, after how many steps, and the last that was printed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.schema.outcome import Outcome, Status
from cubemesh.units import format_seconds

FAULTS: dict[int, str] = {
    signal.SIGSEGV: "a memory access violation",
    signal.SIGBUS: "a bus error",
    signal.SIGFPE: "an arithmetic error",
    signal.SIGILL: "an instruction this processor does not have",
    signal.SIGABRT: "an abort",
    signal.SIGTRAP: "a trap",
    signal.SIGSYS: "a forbidden system call",
}
"""Signals a process brings on itself."""

OUTPUT_LINES = 15
STACK_LINES = 60


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How a worker ended, as far as it can be seen from outside."""

    exit_code: int
    """Negative: the number of the signal."""
    elapsed_s: float
    time_limit_s: float | None = None
    """The limit it had passed when the runner ended it; None when it ended by itself."""
    stacks: str = ""
    """Where its threads stood at that moment."""
    oom_kills: int = 0
    """Processes that the kernel's out-of-memory killer ended meanwhile."""
    output: str = ""
    """What it printed."""
    phase: str = "start"
    """The last phase it began."""
    steps: int = 0
    """The steps it had told of in that phase."""
    server_died: bool = False
    """It went down with its server, whose end `exit_code` is."""
    failed_ranks: Mapping[int, int] = field(default_factory=dict)
    """Of a run on several devices: rank → exit code, of those that failed by themselves."""
    rank_outputs: Mapping[int, str] = field(default_factory=dict)
    """What those printed."""
    silent: Mapping[int, float] = field(default_factory=dict)
    """Rank → seconds, of those that gave no sign of life when the runner ended the run for it."""
    rank_stacks: Mapping[int, str] = field(default_factory=dict)
    """Where the threads of those ranks stood that could still tell."""


def outcome_from_exit(ending: WorkerExit) -> Outcome:
    """The outcome of a worker that told none."""
    printed, stacks = ending.output, ending.stacks
    if not stacks:
        # At a fatal signal faulthandler prints into the output.
        printed, _, dump = ending.output.partition("Fatal Python error: ")
        stacks, _, _ = dump.partition("\nExtension modules:")
    facts: dict[str, object] = {"phase": ending.phase, "steps": ending.steps}
    if printed.strip():
        facts["output"] = "\n".join(printed.rstrip().splitlines()[-OUTPUT_LINES:])
    if stacks.strip():
        facts["stacks"] = "\n".join(stacks.strip().splitlines()[:STACK_LINES])
    if ending.exit_code >= 0:
        facts["exit_code"] = ending.exit_code
    elif ending.silent:
        facts["heartbeat_timeout_s"] = max(ending.silent.values())
    elif ending.time_limit_s is None:  # else the signal was the runner's own
        facts["signal"] = signal_name(-ending.exit_code)
    status, message = _status(ending, _where(ending, stacks))
    return Outcome(status=status, message=message, origin="runner", facts=facts)


def _where(ending: WorkerExit, stacks: str) -> str:
    where = f"during {ending.phase}"
    if ending.steps:
        where += f", after {ending.steps:,d} steps"
    at = innermost(stacks)
    return f"{where}, at {at}" if at else where


def _status(ending: WorkerExit, where: str) -> tuple[Status, str]:
    whose = "the worker's server" if ending.server_died else "the worker"
    if ending.silent:
        for_s = format_seconds(max(ending.silent.values()))
        return Status.TIMED_OUT, (
            f"no sign of life for {for_s} {where}; it was ended. It was stopped (SIGSTOP), its "
            "host is gone, or native code never returned."
        )
    if ending.time_limit_s is not None:
        limit = format_seconds(ending.time_limit_s)
        return Status.TIMED_OUT, (
            f"not done within its time limit of {limit}; it was ended {where}. Raise time_limit_s "
            "if it only needs longer."
        )
    if ending.exit_code == -signal.SIGKILL and ending.oom_kills > 0:
        return Status.OOM, (
            f"the kernel ended {whose} {where} because memory ran out. Try a smaller batch, or set "
            "memory_limit_bytes so that it is refused memory in time."
        )
    if ending.exit_code == -signal.SIGABRT and "std::bad_alloc" in ending.output:
        return Status.OOM, (
            f"an allocation was refused {where}, where the framework could not report it "
            "(std::bad_alloc). Try a smaller batch."
        )
    if ending.exit_code >= 0:
        return Status.CRASHED, f"{whose} exited with code {ending.exit_code} {where}."
    name = signal_name(-ending.exit_code)
    fault = FAULTS.get(-ending.exit_code)
    if fault is not None:
        return Status.CRASHED, f"{whose} crashed with {name} ({fault}) {where}."
    return Status.KILLED, f"{whose} was killed from outside with {name} {where}."


def innermost(stacks: str) -> str:
    """Where the main thread stood, from faulthandler's dump: `file.py:77 in function`.

    The dump lists the most recent call first, and the main thread last; newer Pythons add the C
    stack after that.
    """
    python, _, _ = stacks.partition("Current thread's C stack trace")
    _, _, main = python.rpartition("(most recent call first):")
    match = re.search(r'File "(?:.*/)?([^"/]+)", line (\d+) in (\S+)', main)
    return f"{match[1]}:{match[2]} in {match[3]}" if match else ""


def signal_name(number: int) -> str:
    """`SIGSEGV`; `signal 40` where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
