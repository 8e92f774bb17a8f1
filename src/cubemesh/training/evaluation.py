"""Evaluation: accuracy and loss on samples that were not trained on.

Top-1 accuracy is the fraction of samples whose class has the highest score, top-5 that whose class
is among the five highest; the loss is the mean softmax cross-entropy. A sample whose class
ties with others counts as if the others came first, so a network that scores all classes alike gets
nothing for it.

Of a segmentation each pixel is a sample, and the intersection over union of a class is the number
of pixels that have it as label and as prediction, over those that have it as either; the mean is
over the classes that occur in either (M. Everingham et al., The PASCAL Visual Object Classes
Challenge, 2015).

Of two classes the area under the ROC curve (AUC) is that of the differences of the two scores
(statistics/roc.py).

Of a detection each image is a sample, the loss is its own, and the accuracy is the mean average
precision of its boxes (`detection/average_precision.py`).

Several ranks with the same weights share the samples: each scores every N-th batch of those that
one rank would score, so every batch has the same scores wherever it is computed. Counts are added,
and the losses of the batches by an exact sum, which is rounded once and so does not depend on their
order (J. R. Shewchuk, Discrete & Computational Geometry 18, 1997); the area is of the score
differences of all ranks. Accuracy, loss and area have the bits of one rank. The 95 % interval of an
accuracy is Wilson's score interval, which stays within 0 and 1 and holds for small counts (E. B.
Wilson, Journal of the American Statistical Association 22, 1927).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING, Batch
from cubemesh.detection.average_precision import DetectionScores
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import Program
from cubemesh.measure.log import Log
from cubemesh.schema.record import Figure, Window
from cubemesh.statistics import Interval
from cubemesh.statistics.roc import RocArea, roc_area
from cubemesh.training.detection import DetectionScorer
from cubemesh.training.scored_samples import SampleRecorder


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Sums over scored samples. They add up, batch by batch."""

    samples: int = 0
    top1: int = 0
    top5: int = 0
    loss_sum: float = 0.0
    intersections: tuple[int, ...] = ()
    """Of a segmentation, by class: pixels with this label and this prediction."""
    unions: tuple[int, ...] = ()
    """Pixels with this label or this prediction."""
    auc: float | None = None
    """Of all samples of an evaluation with two classes; a sum of two has none."""
    auc_error: float | None = None
    """Its standard error."""
    detection: DetectionScores | None = None
    """Of a detection, over all samples."""

    def __add__(self, other: EvaluationResult) -> EvaluationResult:
        return EvaluationResult(
            samples=self.samples + other.samples,
            top1=self.top1 + other.top1,
            top5=self.top5 + other.top5,
            loss_sum=self.loss_sum + other.loss_sum,
            intersections=_added(self.intersections, other.intersections),
            unions=_added(self.unions, other.unions),
        )

    @property
    def loss(self) -> float:
        """Mean loss of a sample."""
        return self.loss_sum / self.samples

    @property
    def accuracy(self) -> float:
        """Top-1, 0 to 1; of a detection the mean average precision."""
        if self.detection is not None:
            return self.detection.mean_ap
        return self.top1 / self.samples

    @property
    def class_iou(self) -> tuple[float | None, ...]:
        """Of a segmentation, the intersection over union of each class; None for one that is
        neither a label nor a prediction of any pixel."""
        pairs = zip(self.intersections, self.unions, strict=True)
        return tuple(both / either if either else None for both, either in pairs)

    @property
    def mean_iou(self) -> float | None:
        """The mean over the classes that are labels or predictions; None of anything but a
        segmentation."""
        found = [iou for iou in self.class_iou if iou is not None]
        return math.fsum(found) / len(found) if found else None


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def overlaps(
    scores: NDArray[Any], labels: NDArray[np.int64], classes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Intersections and unions by class, of scores (batch, pixels, classes) and labels (batch,
    pixels); of classes with equal scores the first is the prediction."""
    counted = labels != PADDING
    predicted, labels = scores[counted].argmax(axis=1), labels[counted]

    def by_class(found: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(found, minlength=classes)[:classes]

    both = by_class(labels[predicted == labels])
    either = by_class(labels) + by_class(predicted) - both
    return tuple(both.tolist()), tuple(either.tolist())


def score(scores: NDArray[Any], labels: NDArray[np.int64]) -> EvaluationResult:
    """Score (batch, classes) of one batch with its labels (batch,).

    Where each position has a label, (batch, positions, classes) and (batch, positions), a position
    is a sample, and those of padding are left out.
    """
    return score_samples(scores, labels)[0]


def score_samples(
    scores: NDArray[Any], labels: NDArray[np.int64]
) -> tuple[EvaluationResult, NDArray[np.bool_]]:
    """As `score`, and which of the samples were answered correctly."""
    counted = labels != PADDING
    scores, labels = scores[counted].astype(np.float64), labels[counted]
    own = scores[np.arange(len(labels)), labels]
    # Not-a-number compares false with everything, and so must not count as "none is higher".
    rank = scores.shape[1] - 1 - (scores < own[:, None]).sum(axis=1)
    with np.errstate(invalid="ignore"):  # scores that are infinite give a loss that says so
        highest = scores.max(axis=1)
        log_sum = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    right = rank == 0
    result = EvaluationResult(
        samples=len(labels),
        top1=int(right.sum()),
        top5=int((rank < 5).sum()),
        loss_sum=float((log_sum - own).sum()),
    )
    return result, right


def total_of(results: Iterable[EvaluationResult]) -> EvaluationResult:
    """The sum of the results of batches, with the same bits in any order."""
    found = list(results)
    total = sum(found, EvaluationResult())
    return replace(total, loss_sum=_exact_sum([r.loss_sum for r in found]))


def _exact_sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        return sum(values)


def score_all(
    program: Program,
    batches: Iterable[Batch],
    log: Log,
    mark: str,
    recorder: SampleRecorder | None = None,
    group: Group | None = None,
    mask_classes: int = 0,
    with_auc: bool = False,
    detector: DetectionScorer | None = None,
) -> EvaluationResult:
    """Score every sample of `batches`. Scores are copied to the host, so each batch is a
    synchronous step, and all together are one window of phase `evaluate`, marked `mark`. The
    answers go to a `recorder`. Of masks with `mask_classes` classes the overlaps are counted, too;
    with `with_auc` also the area under the ROC curve of two classes. A `detector` scores boxes.

    With `group`, `batches` are this rank's share, and the result is that of all ranks; every rank
    calls this. The window then has this rank's samples and ends when all ranks are done; a rank
    without samples has none.
    """
    start = program.clock()
    scored: list[EvaluationResult] = []
    differences = [np.empty((2, 0))]
    steps = samples = 0
    for batch in batches:
        if recorder is not None:
            recorder.see(batch)
        scores = program.evaluate(program.place(batch))
        if detector is not None:
            images, loss = detector.add(scores, batch.labels)
            result, right = EvaluationResult(samples=images, loss_sum=loss), np.zeros(0, np.bool_)
        else:
            result, right = score_samples(scores, batch.labels)
        if mask_classes:
            both, either = overlaps(scores, batch.labels, mask_classes)
            result = replace(result, intersections=both, unions=either)
        if with_auc and scores.shape[1:] == (2,):
            pairs = np.stack([scores[:, 1] - scores[:, 0], batch.labels])
            differences.append(pairs[:, batch.labels != PADDING])
        if recorder is not None:
            recorder.add(batch.labels, right)
        scored.append(result)
        steps += 1
        samples += batch.samples
    ranks = group or SingleProcessGroup()
    total = total_of(_of_all_ranks(scored, ranks))
    if with_auc:
        total = _with_area(total, np.concatenate(differences, axis=1), ranks)
    if detector is not None:
        total = replace(total, detection=detector.gather(ranks))
    if not steps:
        return total
    log.window(
        Window(
            phase="evaluate",
            start_s=start,
            elapsed_s=program.clock() - start,
            steps=steps,
            samples=samples,
            marks=(mark,),
        )
    )
    return total


def _with_area(
    total: EvaluationResult, differences: NDArray[np.float64], group: Group
) -> EvaluationResult:
    """With the area under the ROC curve of the differences of two scores and labels (2, samples) of
    every rank."""
    own = np.ascontiguousarray(differences, dtype="<f8").tobytes().hex()
    texts = group.all_gather_object(own)
    parts = [np.frombuffer(bytes.fromhex(text), "<f8").reshape(2, -1) for text in texts]
    scores, labels = np.concatenate(parts, axis=1)
    found = roc_area(scores, labels == 1)
    return total if found is None else replace(total, auc=found.area, auc_error=found.error)


def _of_all_ranks(scored: list[EvaluationResult], group: Group) -> list[EvaluationResult]:
    """One result for the counts of each rank, and one for the loss of each batch. Losses are sent
    as hexadecimal text, which is exact and has a form for what is not finite."""
    own = total_of(scored)
    counts = [own.samples, own.top1, own.top5, own.intersections, own.unions]
    found = []
    for (samples, top1, top5, both, either), losses in group.all_gather_object(
        [counts, [r.loss_sum.hex() for r in scored]]
    ):
        found.append(
            EvaluationResult(
                samples=samples,
                top1=top1,
                top5=top5,
                intersections=tuple(both),
                unions=tuple(either),
            )
        )
        found += [EvaluationResult(loss_sum=float.fromhex(loss)) for loss in losses]
    return found


def wilson_interval(hits: int, n: int) -> Interval:
    """Wilson's 95 % interval of the fraction `hits` / `n`; ValueError for n = 0.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), with p = hits / n.
    """
    if n < 1:
        raise ValueError("no samples, so no fraction")
    z = NormalDist().inv_cdf(0.975)
    p = hits / n
    middle = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low, high = (middle - half) / scale, (middle + half) / scale
    # Rounding may leave p = 0 or 1 outside by a bit.
    return Interval(low=min(p, max(0.0, low)), high=max(p, min(1.0, high)))


def accuracy_figure(hits: int, n: int) -> Figure:
    """The fraction of right answers with its interval."""
    interval = wilson_interval(hits, n)
    return Figure(value=hits / n, unit="", low=interval.low, high=interval.high, n=n)


def auc_figure(result: EvaluationResult) -> Figure | None:
    """The area under the ROC curve with its interval; None where there is none."""
    if result.auc is None or result.auc_error is None:
        return None
    interval = RocArea(area=result.auc, error=result.auc_error).interval()
    ends = {} if interval is None else {"low": interval.low, "high": interval.high}
    return Figure(value=result.auc, unit="", n=result.samples, method="DeLong", **ends)
