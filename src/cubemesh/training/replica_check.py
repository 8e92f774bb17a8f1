"""Do all ranks have the same weights? Each tells a number made from its own, and they are compared.

Where an exchange gives every rank the same gradients or the same weights, one that differs was
changed by something else: a flipped bit in memory, a rank that skipped an update. Training on would
give a network that nobody trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cubemesh.frameworks.api.group import Group
from cubemesh.frameworks.api.program import ReplicasDiffer, SupportsWeightInspection


def check(program: object, group: Group, step: int, agreed_at: int) -> None:
    """ReplicasDiffer, on every rank, where the weights after `step` differ between them; they
    agreed after `agreed_at`. A program that cannot look at its weights is believed."""
    if group.size == 1 or not isinstance(program, SupportsWeightInspection):
        return
    told = group.all_gather_object(program.fingerprint())
    if len(set(told)) > 1:
        raise ReplicasDiffer(
            f"The ranks' weights differ after step {step}, and were the same after step "
            f"{agreed_at}: {who_differs(told)}. All ranks got the same gradients, so a bit flipped "
            "in memory, or an update was left out there. Go on from the last checkpoint "
            "(--resume); where it comes again, test that device's memory."
        )


def who_differs(told: Sequence[int]) -> str:
    """Which ranks are alone with their weights; of two, nobody can tell which is right."""
    (usual, times), *_ = Counter(told).most_common()
    odd = [rank for rank, number in enumerate(told) if number != usual]
    if 2 * times <= len(told):
        odd = [rank for rank, number in enumerate(told) if number != told[0]]
        return f"{_ranks(odd)} {_has(odd)} others than rank 0, and no majority says which are right"
    return f"{_ranks(odd)} {_has(odd)} others than the {times} ranks that agree"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _has(ranks: Sequence[int]) -> str:
    return "have" if len(ranks) > 1 else "has"
