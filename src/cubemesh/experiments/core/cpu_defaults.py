"""What is left out where a document's settings would take a CPU hours?

One rule for every experiment that trains large networks at one minibatch. On a machine with a GPU,
and with `--full` anywhere, nothing is left out. Elsewhere images have a third of their side (a
ninth of the operations), rounded up to a multiple of 16 and no smaller than the network takes, and
the minibatch is an eighth of the document's: some 60 times fewer operations a step. Images of 64
pixels and less stay as they are. What was named in a setting is never reduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.networks import entry
from cubemesh.schema import NetworkWork, RunRecord, Warning, warn

SIDE, BATCH = 3, 8
"""By how much the side of an image and the minibatch are divided."""
SMALL_SIDE = 64
MULTIPLE = 16
"""Of the reduced side: networks that cut images into patches take it too."""
RULE = (
    "On a CPU images have a third of their side and the minibatch is an eighth of the document's, "
    "unless --full is given or they are named."
)


def is_reduced(context: Context) -> bool:
    """Whether this machine and scale take the reduced settings."""
    return not context.has_gpu and context.scale is not Scale.FULL


def image_size(network: str, context: Context, documented: int | None = None) -> int | None:
    """The side of the images in pixels; None is the network's own. `documented` is the document's
    where that is not the network's own."""
    line = entry(network)
    side = documented or line.image_size
    if not is_reduced(context) or side <= SMALL_SIDE:
        return documented
    return max(line.smallest_image_size, -(-side // (SIDE * MULTIPLE)) * MULTIPLE)


def batch(documented: int, context: Context) -> int:
    """The minibatch, two at least."""
    return max(2, documented // BATCH) if is_reduced(context) else documented


def reductions(
    records: Sequence[RunRecord],
    *,
    batch_per_device: int,
    steps: int,
    image_size: int | None = None,
    missing: Iterable[str] = (),
) -> tuple[Warning, ...]:
    """The warning `reduced` where records of networks ask for less than a document: `image_size`
    None is each network's own; `missing` are networks left out. Told from the records alone."""
    works = [r.spec.work for r in records if isinstance(r.spec.work, NetworkWork)]
    told = []
    if works and (least := min(w.batch_per_device for w in works)) < batch_per_device:
        told.append(f"minibatch {least} for {batch_per_device}")
    sides = {
        (w.image_size, image_size or entry(w.network).image_size)
        for w in works
        if w.image_size is not None
    }
    smaller = sorted(pair for pair in sides if pair[0] < pair[1])
    if smaller:
        told.append("images of " + ", ".join(f"{a} for {b} pixels" for a, b in smaller))
    runs = [r.spec.budget.steps for r in records if isinstance(r.spec.work, NetworkWork)]
    if runs and min(runs) < steps:
        told.append(f"{min(runs)} runs for {steps}")
    if absent := list(missing):
        told.append(f"without {', '.join(absent)}")
    if not told:
        return ()
    cause = f"Less than the document: {'; '.join(told)}. {RULE}"
    return (warn("reduced", cause, "Use --full, or name the settings."),)
