"""Training history: losses, learning rates and evaluations so far."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cubemesh.measure.log import Log
from cubemesh.schema.record import Curve, Figure
from cubemesh.schema.serialization import from_plain
from cubemesh.training import detection
from cubemesh.training.detection import DetectionScorer
from cubemesh.training.evaluation import EvaluationResult, accuracy_figure, auc_figure

TOP5_CLASSES = 5
"""Up to so many classes, top-5 accuracy is always 1."""


@dataclass
class History:
    """Steps done, losses by step, and the evaluation of every epoch."""

    done: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    """By step, counted from 1."""
    validation: list[EvaluationResult] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)
    """Learning rate by step, if it changes."""
    bleu: dict[int, float] = field(default_factory=dict)
    """BLEU by epoch, of those whose evaluation translated."""

    def plain(self) -> dict[str, Any]:
        """As plain data, without the steps done."""
        return {
            "losses": [[step, loss] for step, loss in self.losses.items()],
            "validation": [asdict(scored) for scored in self.validation],
            "rates": [[step, rate] for step, rate in self.rates.items()],
            "bleu": [[epoch, score] for epoch, score in self.bleu.items()],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], done: int) -> History:
        """The history that `plain` describes; ValueError, TypeError, KeyError or ArithmeticError
        for anything else."""
        validation = [from_plain(EvaluationResult, scored) for scored in plain["validation"]]
        if not all(scored.samples > 0 for scored in validation):
            raise ValueError("an evaluation without samples")
        return cls(
            done=done,
            losses={int(step): float(loss) for step, loss in plain["losses"]},
            validation=validation,
            rates={int(step): float(rate) for step, rate in plain["rates"]},
            bleu={int(epoch): float(score) for epoch, score in plain.get("bleu", ())},
        )

    def log_curves(self, classes: int, log: Log) -> None:
        """Log the training loss, and the learning rate if it changes, by step; validation loss and
        accuracy by epoch; of two classes the area under the ROC curve; of a segmentation the mean
        intersection over union by epoch, and that of each class in the last; of a detection mAP and
        mAP50, and the average precision of each class."""
        log.curve(by_step("training_loss", self.losses))
        if self.rates:
            log.curve(by_step("learning_rate", self.rates))
        shown = [
            ("validation_loss", [scored.loss for scored in self.validation]),
            ("validation_accuracy", [scored.accuracy for scored in self.validation]),
        ]
        found = [scored.detection for scored in self.validation if scored.detection is not None]
        if found:
            shown.append(("validation_map", [one.mean_ap for one in found]))
            shown.append(("validation_map50", [one.mean_ap50 for one in found]))
            log.curve(detection.by_class(found[-1]))
        elif classes > TOP5_CLASSES:
            top5 = [scored.top5 / scored.samples for scored in self.validation]
            shown.append(("validation_top5_accuracy", top5))
        ious = [iou for scored in self.validation if (iou := scored.mean_iou) is not None]
        if len(ious) == len(self.validation):
            shown.append(("validation_mean_iou", ious))
        areas = [scored.auc for scored in self.validation if scored.auc is not None]
        if areas and len(areas) == len(self.validation):
            shown.append(("validation_auc", areas))
        epochs = tuple(float(n) for n in range(1, len(self.validation) + 1))
        for name, values in shown:
            log.curve(Curve(name=name, x_name="epoch", x=epochs, y=tuple(values)))
        if self.validation and (ious_found := self.validation[-1].class_iou):
            by_class = {float(n): iou for n, iou in enumerate(ious_found) if iou is not None}
            x, y = tuple(by_class), tuple(by_class.values())
            log.curve(Curve(name="class_iou", x_name="class", x=x, y=y))

    def log_figures(self, classes: int, log: Log, detector: DetectionScorer | None = None) -> None:
        """Log the figures of the last evaluation; `detector` has scored its boxes."""
        last = self.validation[-1]
        if last.detection is not None:
            detection.log_figures(last.detection, last.samples, detector, log)
        else:
            accuracy = accuracy_figure(last.top1, last.samples)
            if last.intersections:  # pixels of one image are not independent
                accuracy = replace(accuracy, low=None, high=None)
            log.figure("accuracy", accuracy)
            if classes > TOP5_CLASSES:
                log.figure("top5_accuracy", accuracy_figure(last.top5, last.samples))
        if (iou := last.mean_iou) is not None:
            classes_found = sum(one is not None for one in last.class_iou)
            log.figure("mean_iou", Figure(value=iou, unit="", n=classes_found))
        if (area := auc_figure(last)) is not None:
            log.figure("auc", area)
        log.figure("validation_loss", Figure(value=last.loss, unit="", n=last.samples))
        log.figure("epochs_trained", Figure(value=len(self.validation), unit=""))

    def log_translation_curves(self, log: Log) -> None:
        """Log the perplexity of a word or sub-word, e^loss, and BLEU by epoch."""
        epochs = range(1, len(self.validation) + 1)
        perplexities = tuple(perplexity(scored.loss) for scored in self.validation)
        for name, x, y in (
            ("perplexity", tuple(map(float, epochs)), perplexities),
            ("bleu", tuple(map(float, self.bleu)), tuple(self.bleu.values())),
        ):
            if y:
                log.curve(Curve(name=name, x_name="epoch", x=x, y=y))

    def log_translation_figures(self, log: Log) -> None:
        """Log the perplexity of the last evaluation, and its BLEU if it translated."""
        last = self.validation[-1]
        log.figure("perplexity", Figure(value=perplexity(last.loss), unit="", n=last.samples))
        score = self.bleu.get(len(self.validation))
        if score is not None:
            method = "BLEU-4 of the corpus, mteval-v13a tokens, one reference"
            log.figure("bleu", Figure(value=score, unit="", method=method))


def perplexity(loss: float) -> float:
    """e^loss, at most the largest finite number."""
    return math.exp(min(loss, 709.0))


def by_step(name: str, values: dict[int, float]) -> Curve:
    """A curve of values by step."""
    return Curve(
        name=name, x_name="step", x=tuple(map(float, values)), y=tuple(map(float, values.values()))
    )
