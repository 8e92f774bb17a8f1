"""Which settings of precision go together? What a program's settings are refused for."""

from __future__ import annotations

from cubemesh.errors import UsageError


def check_loss_scale(scale: str | float, precision: str) -> None:
    """UsageError where the loss is to be scaled in another precision than fp16, or by nothing that
    scales."""
    if precision != "fp16":
        raise UsageError(
            f"loss_scale={scale} goes with precision=fp16, and precision is {precision}: "
            "only gradients in float16 become zero for being small. Leave loss_scale out, or "
            "set precision=fp16."
        )
    if isinstance(scale, float | int) and not 0 < scale < float("inf"):
        raise UsageError(
            f"loss_scale={scale} does not fit: a finite number above 0 is needed, or 'dynamic'."
        )


def check_precision_of(lines: tuple[str, ...], precision: str) -> None:
    """UsageError where `lines` are no `name=precision` that goes with `precision`."""
    if precision not in ("bf16", "fp16"):
        raise UsageError(
            f"precision_of goes with precision=bf16 or fp16, and precision is "
            f"{precision}. Set precision=bf16; precision_of='*=fp32,conv1=bf16' leaves "
            "all but conv1 in fp32."
        )
    allowed = ["fp32", "bf16"] + (["fp16"] if precision == "fp16" else [])
    for line in lines:
        name, equals, own = line.partition("=")
        if not name or not equals:
            raise UsageError(
                f"precision_of={line} is not understood: write name=precision, as in "
                "precision_of=classifier=fp32,conv1=fp32."
            )
        if own not in allowed:
            raise UsageError(
                f"precision_of={line}: under precision={precision} a layer can be "
                f"computed in {', '.join(allowed)}."
            )
