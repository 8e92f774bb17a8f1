"""What cannot be meant when a spec says how a training's learning rate goes and when it is done."""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.errors import UsageError


def check_schedule(schedule: str, drops: Sequence[int], epochs: int) -> None:
    """UsageError for drops that are not in rising order within the epochs, or are given to a
    schedule that has none."""
    if not drops:
        return
    text = ",".join(map(str, drops))
    if schedule != "step":
        raise UsageError(
            f"rate_drops={text} goes with schedule=step, and the schedule is {schedule}. Leave "
            "rate_drops out, or set schedule=step."
        )
    if list(drops) != sorted(set(drops)) or not 0 < drops[0] <= drops[-1] < epochs:
        raise UsageError(
            f"rate_drops={text} does not fit epochs={epochs}: the epochs after which the rate "
            f"falls are 1 to {epochs - 1}, in rising order. Example: rate_drops=30,60,80 of 90."
        )


def check_target(accuracy: float | None) -> None:
    """UsageError where an accuracy to stop at is none."""
    if accuracy is not None and not 0 < accuracy <= 1:
        raise UsageError(
            f"target_accuracy={accuracy:g} is no share of right answers: it must be above 0 and "
            "at most 1. target_accuracy=0.9 stops at 90 %."
        )
