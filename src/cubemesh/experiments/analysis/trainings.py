"""Trainings over epochs: number of updates, seconds and curves of a record."""

from __future__ import annotations

from cubemesh.schema import Curve, Line, Point, RunRecord, Train

ACCURACY_NOTE = (
    "Accuracy is top-1 on samples held out from training; ± is its 95 % binomial (Wilson) "
    "interval, which does not include the variation over seeds."
)
DETECTION_NOTE = (
    "mAP is COCO's mean average precision on images held out from training, and so is accuracy; ± "
    "is its 95 % interval from 100 resamples of these images, which does not include the variation "
    "over seeds."
)


def training_of(record: RunRecord) -> Train:
    """The work of a training."""
    assert isinstance(record.spec.work, Train)
    return record.spec.work


def update_count(record: RunRecord) -> int:
    """Steps of the first rank, since all ranks make one update together; with the first step, which
    is timed separately. (A step in fp16 with overflowing gradients counts, although it updates
    nothing.)"""
    return sum(w.steps for w in record.windows if w.rank == 0 and w.phase != "evaluate")


def training_s(record: RunRecord) -> float:
    """Seconds from the first rank's first step to the end of its last evaluation."""
    own = [w for w in record.windows if w.rank == 0]
    return max(w.start_s + w.elapsed_s for w in own) - min(w.start_s for w in own)


def curve_line(name: str, record: RunRecord, curve: Curve, factor: float = 1) -> Line:
    """A curve of a record as a line of a chart, its values times `factor`."""
    pairs = zip(curve.x, curve.y, strict=True)
    points = tuple(Point(x=x, y=factor * y, run_id=record.run_id) for x, y in pairs)
    return Line(name=name, points=points)
