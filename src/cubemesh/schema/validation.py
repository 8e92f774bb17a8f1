"""Validation of spec fields: UsageError for values that are out of range or contradict each other.

The message names the field, the given value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cubemesh.errors import UsageError

MAX_HOST_NAME = 253
"""Characters of a host name (RFC 1035, section 2.3.4)."""
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*")
"""Names that ssh accepts as a host and does not read as an option."""


def at_least(owner: object, low: float, *names: str) -> None:
    """UsageError if a field of `owner` is set and below `low`."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not value >= low:
            raise UsageError(f"{name}={value} is too small: {name} must be {low:g} or more.")


def check_loss_scale(scale: str | float, precision: str) -> None:
    """UsageError for a loss scale in a precision other than fp16, or one that is not positive and
    finite."""
    if precision != "fp16":
        raise UsageError(
            f"loss_scale={scale} needs precision=fp16, and precision is {precision}: only float16 "
            "gradients underflow to zero. Leave loss_scale out, or set precision=fp16."
        )
    if isinstance(scale, float | int) and not 0 < scale < float("inf"):
        raise UsageError(
            f"loss_scale={scale} is not valid: use a finite number above 0, or 'dynamic'."
        )


LAYER_PRECISIONS = {
    "fp32": ("fp64", "fp32"),
    "tf32": ("fp64", "tf32"),
    "bf16": ("fp64", "fp32", "bf16", "fp8"),
    "fp16": ("fp64", "fp32", "bf16", "fp16"),
}
"""Precision of a program → those that a layer of its own can have."""


def check_precision_of(lines: Sequence[str], precision: str) -> None:
    """UsageError unless each of `lines` is `name=precision` or `name=forward/backward`, with
    precisions allowed under `precision`."""
    if precision == "fp64":
        raise UsageError(
            "precision_of needs another precision than fp64, in which every layer is fp64 already. "
            "Set precision=fp32; precision_of='*=fp64,conv1=fp32' has all but conv1 in fp64."
        )
    allowed = LAYER_PRECISIONS[precision]
    for line in lines:
        name, equals, own = line.partition("=")
        if not name or not equals:
            raise UsageError(
                f"precision_of={line} is not valid: write name=precision or "
                "name=forward/backward, as in precision_of=classifier=fp32,conv1=bf16/fp32."
            )
        passes = own.split("/")
        mixed = len(passes) == 2 and "fp8" in passes
        if len(passes) > 2 or mixed or not set(passes) <= set(allowed):
            but = " (but for fp8)" if "fp8" in allowed else ""
            needs = " fp8 needs precision=bf16." if "fp8" in passes and not but else ""
            raise UsageError(
                f"precision_of={line}: under precision={precision} a layer can use "
                f"{', '.join(allowed)}, or two of them as forward/backward{but}.{needs}"
            )


def check_schedule(schedule: str, drops: Sequence[int], epochs: int) -> None:
    """UsageError for learning-rate drops that are not ascending within the epochs, or belong to a
    schedule without drops."""
    if not drops:
        return
    text = ",".join(map(str, drops))
    if schedule != "step":
        raise UsageError(
            f"rate_drops={text} needs schedule=step, and the schedule is {schedule}. Leave "
            "rate_drops out, or set schedule=step."
        )
    if list(drops) != sorted(set(drops)) or not 0 < drops[0] <= drops[-1] < epochs:
        raise UsageError(
            f"rate_drops={text} is not valid for epochs={epochs}: the epochs after which the rate "
            f"drops are 1 to {epochs - 1}, ascending. Example: rate_drops=30,60,80 of 90."
        )


def check_target(accuracy: float | None) -> None:
    """UsageError unless a target accuracy is above 0 and at most 1."""
    if accuracy is not None and not 0 < accuracy <= 1:
        raise UsageError(
            f"target_accuracy={accuracy:g} must be above 0 and at most 1. target_accuracy=0.9 "
            "stops at 90 %."
        )


def check_hosts(hosts: Sequence[str], devices: int) -> None:
    """UsageError for a single host, duplicates, invalid host names, or a number of devices that is
    not a multiple of the number of hosts."""
    listed = ",".join(hosts)
    for host in hosts:
        if len(host) > MAX_HOST_NAME:
            raise UsageError(
                f"hosts: '{host[:20]}…' has {len(host)} characters; a host name has at most "
                f"{MAX_HOST_NAME}."
            )
        if not _HOST_NAME.fullmatch(host):
            raise UsageError(f"hosts={listed}: '{host}' is not a valid host name.")
    if len(hosts) < 2 or len(set(hosts)) < len(hosts):
        raise UsageError(
            f"hosts={listed} is not valid: name two or more different hosts. Leave hosts out to "
            "use this host only."
        )
    if devices % len(hosts):
        raise UsageError(
            f"devices={devices} on {len(hosts)} hosts: every host has the same number of devices. "
            f"Set devices={len(hosts)} or a multiple of it."
        )
