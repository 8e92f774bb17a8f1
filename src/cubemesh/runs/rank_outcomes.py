"""What became of each rank, and of the run? The one that failed first is the reason for the others.

| a rank | its outcome |
|---|---|
| told one | that |
| ended without, and the agent saw it fail | judged from its exit code (endings.py) |
| neither: the agent ended it because of another | killed, with the run |

The run is ok when every rank is; else its outcome is that of the first rank that failed by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cubemesh.model.outcome import Outcome, Status
from cubemesh.runs.endings import Ending, judge


def of_ranks(told: Mapping[int, Outcome], ending: Ending, ranks: int) -> list[Outcome]:
    """The outcome of each rank: `told` has those that the ranks told themselves."""
    if ranks == 1:
        return [told.get(0) or judge(ending)]
    return [told.get(rank) or _judged(rank, ending) for rank in range(ranks)]


def of_run(outcomes: list[Outcome]) -> Outcome:
    """The outcome of the run whose ranks had `outcomes`."""
    if len(outcomes) == 1:
        return outcomes[0]
    failed = [(n, o) for n, o in enumerate(outcomes) if o.status is not Status.OK]
    if not failed:
        return outcomes[0]
    rank, reason = next(((n, o) for n, o in failed if "ended_with" not in o.facts), failed[0])
    if reason.status is Status.UNSUPPORTED:  # what the spec asks for, not what one of them did
        return reason
    message = f"rank {rank} of {len(outcomes)}: {reason.message}"
    return dataclasses.replace(reason, message=message, facts={**reason.facts, "rank": rank})


def _judged(rank: int, ending: Ending) -> Outcome:
    if rank in ending.failed_ranks:
        own = dataclasses.replace(
            ending,
            exit_code=ending.failed_ranks[rank],
            output=ending.rank_outputs.get(rank, ""),
        )
        return judge(own)
    if not ending.failed_ranks:  # the agent itself was ended
        return judge(ending)
    others = ", ".join(map(str, sorted(ending.failed_ranks)))
    return Outcome(
        status=Status.KILLED,
        message=f"ended with the run, because rank {others} failed.",
        origin="runner",
        facts={"ended_with": sorted(ending.failed_ranks)},
    )
