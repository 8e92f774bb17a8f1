"""Outcome of a worker that reported none, from its exit status, and of a run, from its ranks.

| exit status | outcome |
|---|---|
| ended by the runner at the time limit | timed_out, with the stack of every thread |
| ended by the runner: a rank had no heartbeat for `heartbeat_timeout_s` | timed_out, the same |
| ended by the runner: its server or agent was stopped so long | timed_out, the same |
| SIGKILL, and the kernel's count of out-of-memory kills has risen | oom |
| abort with `std::bad_alloc` as the C++ runtime's last message | oom |
| SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS: its own faults | crashed |
| SIGINT from OpenBLAS, which could not start its threads | crashed, with the limit |
| any other signal | killed |
| `NO_ROOM`: the disk of the run's folder is full | crashed, with the folder |
| any other exit code | crashed |

Every outcome names the phase, the steps done in it and the last lines of output.

On several devices each rank has an outcome: the one it reported, else from its exit status where
the agent saw it fail, else killed, because the agent ended it after another rank failed. The run is
ok when every rank is; otherwise its outcome is that of one rank, by priority:

    1  reported out of memory, diverged or unsupported
    2  ended without an outcome
    3  reported a crash, the earliest: losing another rank in the middle of an operation crashes the
       rest too (`LOST_S` in worker/launch/ranks.py gives the agent time to end them first)
"""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.schema.outcome import Outcome, Status
from cubemesh.termination import NO_THREAD, PROCESS_LIMIT
from cubemesh.units import format_seconds
from cubemesh.worker.report.events import NO_ROOM

FAULTS: dict[int, str] = {
    signal.SIGSEGV: "a memory access violation",
    signal.SIGBUS: "a bus error",
    signal.SIGFPE: "an arithmetic error",
    signal.SIGILL: "an instruction this processor does not have",
    signal.SIGABRT: "an abort",
    signal.SIGTRAP: "a trap",
    signal.SIGSYS: "a forbidden system call",
}
"""Signals that a process causes itself."""

OUTPUT_LINES = 15
STACK_LINES = 60


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How a worker ended, as its runner sees it."""

    exit_code: int
    """Negative: the number of the signal."""
    elapsed_s: float
    time_limit_s: float | None = None
    """The limit it had exceeded when the runner ended it; None when it ended by itself."""
    stacks: str = ""
    """Stacks of its threads at that moment."""
    oom_kills: int = 0
    """Processes ended by the kernel's out-of-memory killer during the run."""
    output: str = ""
    """Its stdout and stderr."""
    phase: str = "start"
    """The last phase it began."""
    steps: int = 0
    """Steps logged in that phase."""
    server_died: bool = False
    """Its server died; `exit_code` is the server's."""
    failed_ranks: Mapping[int, int] = field(default_factory=dict)
    """On several devices: rank → exit code, of the ranks that failed by themselves."""
    rank_outputs: Mapping[int, str] = field(default_factory=dict)
    """Rank → output, of the same."""
    silent: Mapping[int, float] = field(default_factory=dict)
    """Rank → seconds without a heartbeat, of the ranks for which the runner ended the run."""
    stopped: str = ""
    """The process for which the runner ended the run because it was stopped (SIGSTOP)."""
    stopped_s: float = 0.0
    """How long it had been stopped."""
    folder: str = ""
    """The folder of the run."""
    rank_stacks: Mapping[int, str] = field(default_factory=dict)
    """Rank → stacks of its threads, of the ranks that could still write them."""


def outcome_from_exit(worker: WorkerExit) -> Outcome:
    """The outcome of a worker that reported none."""
    printed, stacks = worker.output, worker.stacks
    if not stacks:
        # At a fatal signal faulthandler prints into the output.
        printed, _, dump = worker.output.partition("Fatal Python error: ")
        stacks, _, _ = dump.partition("\nExtension modules:")
    facts: dict[str, object] = {"phase": worker.phase, "steps": worker.steps}
    if printed.strip():
        facts["output"] = "\n".join(printed.rstrip().splitlines()[-OUTPUT_LINES:])
    if stacks.strip():
        facts["stacks"] = _first_lines(stacks)
    if worker.exit_code >= 0:
        facts["exit_code"] = worker.exit_code
    elif worker.stopped:
        facts["heartbeat_timeout_s"] = worker.stopped_s
        facts["stopped"] = worker.stopped
    elif worker.silent:
        facts["heartbeat_timeout_s"] = max(worker.silent.values())
    elif worker.time_limit_s is None:  # else the signal was the runner's own
        facts["signal"] = signal_name(-worker.exit_code)
    status, message = _status(worker, _where(worker, stacks))
    return Outcome(status=status, message=message, origin="runner", facts=facts)


def _where(worker: WorkerExit, stacks: str) -> str:
    where = f"during {worker.phase}"
    if worker.steps:
        where += f", after {worker.steps:,d} steps"
    at = innermost(stacks)
    return f"{where}, at {at}" if at else where


def _status(worker: WorkerExit, where: str) -> tuple[Status, str]:
    whose = "the worker's server" if worker.server_died else "the worker"
    if worker.stopped:
        return Status.TIMED_OUT, (
            f"{worker.stopped} was stopped (SIGSTOP, or a debugger) for "
            f"{format_seconds(worker.stopped_s)} {where}; terminated. Nothing would have reported "
            "the end of the run."
        )
    if worker.silent:
        for_s = format_seconds(max(worker.silent.values()))
        return Status.TIMED_OUT, (
            f"no heartbeat for {for_s} {where}; terminated. The process was stopped (SIGSTOP), its "
            "host is down, or native code never returned."
        )
    if worker.time_limit_s is not None:
        limit = format_seconds(worker.time_limit_s)
        return Status.TIMED_OUT, (
            f"time limit of {limit} exceeded; terminated {where}. Raise time_limit_s if the run "
            "needs longer."
        )
    if worker.exit_code == -signal.SIGKILL and worker.oom_kills > 0:
        return Status.OOM, (
            f"the kernel's out-of-memory killer ended {whose} {where}. Try a smaller batch size, "
            "or set memory_limit_bytes, so that an allocation fails first."
        )
    if worker.exit_code == -signal.SIGABRT and "std::bad_alloc" in worker.output:
        return Status.OOM, (
            f"an allocation failed {where} where the framework could not report it "
            "(std::bad_alloc). Try a smaller batch size."
        )
    if worker.exit_code == NO_ROOM:
        return Status.CRASHED, (
            f"the disk of the run's folder, {worker.folder}, is full {where}: the results have no "
            "room. Make room, or set XDG_CACHE_HOME to a folder on another disk."
        )
    if worker.exit_code >= 0:
        return Status.CRASHED, f"{whose} exited with code {worker.exit_code} {where}."
    if worker.exit_code == -signal.SIGINT and "pthread_create failed" in worker.output:
        return Status.CRASHED, f"{whose} ended {where}, because {NO_THREAD}. {PROCESS_LIMIT}"
    name = signal_name(-worker.exit_code)
    fault = FAULTS.get(-worker.exit_code)
    if fault is not None:
        return Status.CRASHED, f"{whose} crashed with {name} ({fault}) {where}."
    return Status.KILLED, f"{whose} was killed from outside with {name} {where}."


def innermost(stacks: str) -> str:
    """The innermost frame of the main thread in faulthandler's dump: `file.py:77 in function`.

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


def rank_outcomes(reported: Mapping[int, Outcome], worker: WorkerExit, ranks: int) -> list[Outcome]:
    """The outcome of each rank; `reported` has those that the ranks reported themselves."""
    if ranks == 1:
        return [reported.get(0) or outcome_from_exit(worker)]
    return [reported.get(rank) or _rank_outcome(rank, worker) for rank in range(ranks)]


def run_outcome(outcomes: list[Outcome], reported: Mapping[int, Outcome]) -> Outcome:
    """The outcome of a run from those of its ranks; `reported` holds, in the order of time, those
    that the ranks reported themselves."""
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome.status is not Status.OK]
    if len(outcomes) == 1 or not failed:
        return outcomes[0]
    own = [rank for rank in reported if rank in failed]
    crashed = [rank for rank in own if reported[rank].status is Status.CRASHED]
    reported_limits = [rank for rank in own if rank not in crashed]
    died = [r for r in failed if r not in reported and "ended_with" not in outcomes[r].facts]
    rank = [*reported_limits, *died, *crashed, *failed][0]
    reason = outcomes[rank]
    if reason.status is Status.UNSUPPORTED or "stopped" in reason.facts:  # not what one of them did
        return reason
    message = f"rank {rank} of {len(outcomes)}: {reason.message}"
    return dataclasses.replace(reason, message=message, facts={**reason.facts, "rank": rank})


def _rank_outcome(rank: int, worker: WorkerExit) -> Outcome:
    """Of a rank that reported none."""
    if worker.stopped:
        stacks = worker.rank_stacks.get(rank, "")
        return outcome_from_exit(dataclasses.replace(worker, stacks=stacks))
    if worker.silent:
        return _timed_out(rank, worker)
    failed = worker.failed_ranks
    if rank in failed:
        output = worker.rank_outputs.get(rank, "")
        own = dataclasses.replace(worker, exit_code=failed[rank], output=output)
        return outcome_from_exit(own)
    if not failed:  # the agent itself was ended
        return outcome_from_exit(worker)
    others = ", ".join(map(str, sorted(failed)))
    return Outcome(
        status=Status.KILLED,
        message=f"ended with the run, because rank {others} failed.",
        origin="runner",
        facts={"ended_with": sorted(failed)},
    )


def _timed_out(rank: int, worker: WorkerExit) -> Outcome:
    """Of a rank whose run was ended because this rank, or another, had no heartbeat."""
    stacks = worker.rank_stacks
    if rank not in worker.silent:
        facts: dict[str, object] = {"ended_with": sorted(worker.silent)}
        if rank in stacks:
            facts["stacks"] = _first_lines(stacks[rank])
        others = ", ".join(map(str, sorted(worker.silent)))
        message = f"ended with the run, because rank {others} had no heartbeat."
        return Outcome(status=Status.KILLED, message=message, origin="runner", facts=facts)
    own = {rank: worker.silent[rank]}
    outcome = outcome_from_exit(
        dataclasses.replace(worker, silent=own, stacks=stacks.get(rank, ""))
    )
    waiting = {r: text for r, text in stacks.items() if r not in worker.silent}
    if not waiting:
        return outcome
    at = "; ".join(f"rank {r} was at {innermost(text)}" for r, text in waiting.items())
    shown = {str(r): _first_lines(text) for r, text in waiting.items()}
    return dataclasses.replace(
        outcome,
        message=f"{outcome.message} Meanwhile {at}.",
        facts={**outcome.facts, "stacks_of_others": shown},
    )


def _first_lines(stacks: str) -> str:
    return "\n".join(stacks.strip().splitlines()[:STACK_LINES])
