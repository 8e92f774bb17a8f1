"""What became of each rank, and of the run? The one that failed first is the reason for the others.

| a rank | its outcome |
|---|---|
| told one | that |
| ended without, and the agent saw it fail | judged from its exit code (endings.py) |
| gave no sign of life any more | timed_out, with where the others stood |
| neither: the agent ended it because of another | killed, with the run |

The run is ok when every rank is. Else its outcome is that of one rank, the first there is of:

    1  told that it cannot go on: out of memory, diverged, unsupported
    2  died without a word
    3  told a crash, the earliest: who loses another rank in the middle of an operation crashes too
       (`LOST_S` in worker/launch/ranks.py gives the agent time to end it before it tells)
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping

from cubemesh.runs.exit_status import STACK_LINES, WorkerExit, innermost, outcome_from_exit
from cubemesh.schema.outcome import Outcome, Status


def of_ranks(told: Mapping[int, Outcome], ending: WorkerExit, ranks: int) -> list[Outcome]:
    """The outcome of each rank: `told` has those that the ranks told themselves."""
    if ranks == 1:
        return [told.get(0) or outcome_from_exit(ending)]
    return [told.get(rank) or _judged(rank, ending) for rank in range(ranks)]


def of_run(outcomes: list[Outcome], told: Mapping[int, Outcome]) -> Outcome:
    """The outcome of the run whose ranks had `outcomes`, of which `told` were told by the ranks
    themselves; it holds them in the order of time."""
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome.status is not Status.OK]
    if len(outcomes) == 1 or not failed:
        return outcomes[0]
    said = [rank for rank in told if rank in failed]
    crashed = [rank for rank in said if told[rank].status is Status.CRASHED]
    gave_up = [rank for rank in said if rank not in crashed]
    died = [r for r in failed if r not in told and "ended_with" not in outcomes[r].facts]
    rank = [*gave_up, *died, *crashed, *failed][0]
    reason = outcomes[rank]
    if reason.status is Status.UNSUPPORTED:  # what the spec asks for, not what one of them did
        return reason
    message = f"rank {rank} of {len(outcomes)}: {reason.message}"
    return dataclasses.replace(reason, message=message, facts={**reason.facts, "rank": rank})


def _judged(rank: int, ending: WorkerExit) -> Outcome:
    failed = _failed(ending)
    if ending.silent:
        return _silent(rank, ending)
    if rank in failed:
        own = dataclasses.replace(
            ending, exit_code=failed[rank], output=ending.rank_outputs.get(rank, "")
        )
        return outcome_from_exit(own)
    if not failed:  # the agent itself was ended
        return outcome_from_exit(ending)
    others = ", ".join(map(str, sorted(failed)))
    return Outcome(
        status=Status.KILLED,
        message=f"ended with the run, because rank {others} failed.",
        origin="runner",
        facts={"ended_with": sorted(failed)},
    )


def _silent(rank: int, ending: WorkerExit) -> Outcome:
    """Of a rank whose run was ended because this rank, or another, fell silent."""
    stacks = ending.rank_stacks
    if rank not in ending.silent:
        facts: dict[str, object] = {"ended_with": sorted(ending.silent)}
        if rank in stacks:
            facts["stacks"] = "\n".join(stacks[rank].strip().splitlines()[:STACK_LINES])
        others = ", ".join(map(str, sorted(ending.silent)))
        message = f"ended with the run, because rank {others} gave no sign of life."
        return Outcome(status=Status.KILLED, message=message, origin="runner", facts=facts)
    own = {rank: ending.silent[rank]}
    judged = outcome_from_exit(dataclasses.replace(ending, silent=own, stacks=stacks.get(rank, "")))
    waiting = {r: text for r, text in stacks.items() if r not in ending.silent}
    if not waiting:
        return judged
    stood = "; ".join(f"rank {r} stood at {innermost(text)}" for r, text in waiting.items())
    shown = {str(r): "\n".join(t.strip().splitlines()[:STACK_LINES]) for r, t in waiting.items()}
    message = f"{judged.message} Meanwhile {stood}."
    return dataclasses.replace(
        judged, message=message, facts={**judged.facts, "stacks_of_others": shown}
    )


def _failed(ending: WorkerExit) -> dict[int, int]:
    """The ranks that failed by themselves, and their exit codes: the agent ends the others with
    SIGTERM."""
    ended = -signal.SIGTERM
    by_themselves = {r: code for r, code in ending.failed_ranks.items() if code != ended}
    return by_themselves or dict(ending.failed_ranks)
