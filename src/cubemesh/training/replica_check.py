"""Replica check: compares a fingerprint of the weights between the ranks.

Under strategies that keep the same weights on every rank, a difference means that something else
changed them: a bit flip in memory, or a rank that skipped an update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import ReplicasDiffer, SupportsWeightInspection


def check_weights(program: object, group: Group, step: int, agreed_at: int) -> None:
    """ReplicasDiffer, on every rank, if the weights after `step` differ between ranks; they agreed
    after `agreed_at`. Skipped for a program without weight inspection."""
    if group.size == 1 or not isinstance(program, SupportsWeightInspection):
        return
    fingerprints = group.all_gather_object(program.fingerprint())
    if len(set(fingerprints)) > 1:
        raise ReplicasDiffer(
            f"The ranks' weights differ after step {step}, and agreed after step {agreed_at}: "
            f"{who_differs(fingerprints)}. All ranks received the same gradients, so a bit flipped "
            "in memory or an update was skipped. Resume from the last checkpoint (--resume); if it "
            "happens again, test that device's memory."
        )


def who_differs(fingerprints: Sequence[int]) -> str:
    """Which ranks differ from the majority, or from rank 0 if there is no majority."""
    (usual, times), *_ = Counter(fingerprints).most_common()
    majority = 2 * times > len(fingerprints)
    reference = usual if majority else fingerprints[0]
    odd = [rank for rank, number in enumerate(fingerprints) if number != reference]
    ranks = f"rank{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))}"
    differ = "differ" if len(odd) > 1 else "differs"
    if majority:
        return f"{ranks} {differ} from the {times} ranks that agree"
    return f"{ranks} {differ} from rank 0 (no majority)"
