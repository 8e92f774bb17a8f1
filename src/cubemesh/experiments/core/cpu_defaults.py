"""CPU defaults: smaller images and batch sizes than the papers', which would take a CPU hours.

One rule for all experiments that train large networks at one batch size. Nothing is reduced on a
machine with a GPU, or with `--full`. Otherwise images have a third of their side (a ninth of the
operations), rounded up to a multiple of 16 and at least the network's smallest, and the batch size
is an eighth of the paper's: about 60 times fewer operations per step. Images up to 64 pixels are
not reduced, nor is anything that a setting names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.networks import entry
from cubemesh.schema import NetworkWork, RunRecord, Warning, warn

SIDE, BATCH = 3, 8
"""Divisors of the side of an image and of the batch size."""
SMALL_SIDE = 64
MULTIPLE = 16
"""The reduced side is a multiple of it, as networks with image patches need."""
RULE = (
    "On a CPU images have a third of their side and the batch size is an eighth of the paper's, "
    "unless --full is given or they are named."
)


def is_reduced(context: Context) -> bool:
    """Whether this machine and scale use the reduced settings."""
    return not context.has_gpu and context.scale is not Scale.FULL


def image_size(network: str, context: Context, published: int | None = None) -> int | None:
    """The side of the images in pixels; None is the network's own. `published` is the paper's if
    that is not the network's own."""
    line = entry(network)
    side = published or line.image_size
    if not is_reduced(context) or side <= SMALL_SIDE:
        return published
    return max(line.smallest_image_size, -(-side // (SIDE * MULTIPLE)) * MULTIPLE)


def batch(published: int, context: Context) -> int:
    """The batch size, at least two."""
    return max(2, published // BATCH) if is_reduced(context) else published


def reductions(
    records: Sequence[RunRecord],
    *,
    batch_per_device: int,
    steps: int,
    image_size: int | None = None,
    missing: Iterable[str] = (),
) -> tuple[Warning, ...]:
    """The warning `reduced` if records have less than a paper: `image_size` None is each network's
    own; `missing` are networks left out."""
    works = [r.spec.work for r in records if isinstance(r.spec.work, NetworkWork)]
    less = []
    if works and (least := min(w.batch_per_device for w in works)) < batch_per_device:
        less.append(f"batch size {least} instead of {batch_per_device}")
    sides = {
        (w.image_size, image_size or entry(w.network).image_size)
        for w in works
        if w.image_size is not None
    }
    smaller = sorted(pair for pair in sides if pair[0] < pair[1])
    if smaller:
        less.append("images of " + ", ".join(f"{a} instead of {b} pixels" for a, b in smaller))
    counts = [r.spec.budget.steps for r in records if isinstance(r.spec.work, NetworkWork)]
    if counts and min(counts) < steps:
        less.append(f"{min(counts)} steps instead of {steps}")
    if absent := list(missing):
        less.append(f"without {', '.join(absent)}")
    return reduced(less, rule_of(records))


def rule_of(records: Iterable[RunRecord], rule: str = RULE) -> str:
    """A rule for CPUs, if any of the records is of one."""
    return rule if any(rank.device == "cpu" for r in records for rank in r.ranks) else ""


def reduced(less: Sequence[str], rule: str = "") -> tuple[Warning, ...]:
    """The warning `reduced` with what is `less` than in a paper, and why; none for nothing."""
    if not less:
        return ()
    cause = f"Less than in the paper: {'; '.join(less)}. {rule}".rstrip()
    return (warn("reduced", cause, "Use --full, or name the settings."),)
