"""What does a network learn in so many epochs, and how fast does it pass through them?

    epoch 1                                    epoch 2
    W W W W … (phase measure) │ evaluate       W W W W … │ evaluate       …
    ▲ the first step, a window of its own in phase warm-up

An epoch's steps are cut into a few windows; each ends with a wait, and only then, outside the
window, is the loss of its last step read. So the training loss is sampled, not averaged: a point a
window. After each epoch every validation sample is scored (`evaluation.py`).
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, field

from cubemesh.data.base import Source
from cubemesh.data.feed import Feed, in_order
from cubemesh.data.pipeline import Batches
from cubemesh.frameworks.base import Diverged, Program, Unsupported
from cubemesh.frameworks.exchange import settle
from cubemesh.measure.base import Log
from cubemesh.measure.timer import Stopwatch
from cubemesh.model.record import Curve, Figure, Window
from cubemesh.model.spec import DataOn, Train
from cubemesh.training.evaluation import Scored, accuracy_figure, score

WINDOWS_PER_EPOCH = 4
WINDOWS = 12
"""Windows of the whole training at least, where it has as many steps."""


def train(
    program: Program,
    feed: Feed,
    validation_source: Source,
    work: Train,
    log: Log,
    data_on: DataOn = "host",
) -> list[Window]:
    """Train `work.epochs` epochs of `feed`, which has as many at least, with an evaluation after
    each, and tell the log what came of it.

    Windows are marked `epoch-N`. Curves: training_loss by step, validation_loss and
    validation_accuracy by epoch. Figures, of the last epoch: accuracy, top5_accuracy where there
    are more than five classes, validation_loss. Samples to validate on are made as the feed's are.
    Diverged as soon as a loss that is read is not a finite number; Unsupported for
    `data_on="device"`. Returns the measured windows.
    """
    if data_on == "device":
        raise Unsupported(
            "Training over epochs feeds every sample, so its batches are copied from the host one "
            "by one. Set data_on=host, or measure single steps with train_steps."
        )
    training = _Training(program=program, feed=feed, work=work, log=log)
    validation: list[Scored] = []
    for epoch in range(1, work.epochs + 1):
        training.run_epoch(epoch)
        settle(program)
        with log.phase("evaluate"), closing(_in_order(validation_source, feed)) as batches:
            validation.append(_evaluate(program, batches, epoch, work, log))
        training.tell_curve()
        _tell_curves(validation, log)
    _tell_figures(validation[-1], validation_source.classes, log)
    return training.measured


@dataclass
class _Training:
    """Where the training stands: steps done, and the losses read on the way."""

    program: Program
    feed: Feed
    work: Train
    log: Log
    done: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    """By the number of the step they belong to, counted from 1."""
    measured: list[Window] = field(default_factory=list)

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.work.epochs * self.feed.steps_per_epoch

    def run_epoch(self, epoch: int) -> None:
        """One pass over the training data."""
        sizes = window_sizes(self.feed.steps_per_epoch, self.work.epochs, first=epoch == 1)
        if epoch == 1:
            with self.log.phase("warm-up"):
                self._run_windows("warm-up", epoch, sizes[:1])
            sizes = sizes[1:]
        if not sizes:
            return
        with self.log.phase("measure"):
            self._run_windows("measure", epoch, sizes)

    def tell_curve(self) -> None:
        """The training loss so far."""
        self.log.curve(
            Curve(
                name="training_loss",
                x_name="step",
                x=tuple(map(float, self.losses)),
                y=tuple(self.losses.values()),
            )
        )

    def _run_windows(self, phase: str, epoch: int, sizes: list[int]) -> None:
        program, feed = self.program, self.feed
        watch = Stopwatch(
            step=lambda: program.train_step(program.place(next(feed))),
            synchronize=program.synchronize,
            clock=program.clock,
            samples_per_step=self.feed.samples_per_step,
            log=self.log,
        )
        for steps in sizes:
            window = watch.window(phase, steps, (f"epoch-{epoch}",))
            if phase == "measure":
                self.measured.append(window)
            self.done += steps
            self._read_loss(epoch)
            fraction = self.done / self.total_steps
            self.log.progress(phase, self.done, window.step_s, fraction)

    def _read_loss(self, epoch: int) -> None:
        loss = self.program.loss()
        if not math.isfinite(loss):
            before = "no loss was read before"
            if self.losses:
                step, last = next(reversed(self.losses.items()))
                before = f"it was {last:.4g} at step {step}"
            raise Diverged(
                f"The training loss was {loss} at step {self.done}, in epoch {epoch} of "
                f"{self.work.epochs}; {before}. Set learning_rate below "
                f"{self.work.learning_rate:g}."
            )
        self.losses[self.done] = loss


def window_sizes(steps: int, epochs: int, *, first: bool = False) -> list[int]:
    """Steps of each window of an epoch of `steps` steps: as even as can be, longer ones first.

    Four windows, or more where all epochs together would have fewer than twelve. In the first
    epoch the first step stands alone and the rest is shared out.
    """
    if first:
        return [1, *(window_sizes(steps - 1, epochs) if steps > 1 else [])]
    count = min(steps, max(WINDOWS_PER_EPOCH, math.ceil(WINDOWS / epochs)))
    return [steps // count + (n < steps % count) for n in range(count)]


def _in_order(source: Source, feed: Feed) -> Batches:
    """All samples to validate on, made as those to train on are."""
    return in_order(source, feed.batch_per_device, feed.threads)


def _evaluate(program: Program, batches: Batches, epoch: int, work: Train, log: Log) -> Scored:
    """Score every sample. Scores come to the host, so each batch is a
    step that waits, and all together are one window."""
    start = program.clock()
    total, steps, samples = Scored(), 0, 0
    for batch in batches:
        total += score(program.evaluate(program.place(batch)), batch.labels)
        steps += 1
        samples += batch.samples
    elapsed_s = program.clock() - start
    log.window(
        phase="evaluate",
        start=start,
        elapsed_s=elapsed_s,
        steps=steps,
        samples=samples,
        marks=(f"epoch-{epoch}",),
    )
    if not math.isfinite(total.loss):
        raise Diverged(
            f"The validation loss was {total.loss} after epoch {epoch} of {work.epochs}. Set "
            f"learning_rate below {work.learning_rate:g}."
        )
    return total


def _tell_curves(validation: list[Scored], log: Log) -> None:
    epochs = tuple(float(n) for n in range(1, len(validation) + 1))
    for name, values in (
        ("validation_loss", tuple(v.loss for v in validation)),
        ("validation_accuracy", tuple(v.accuracy for v in validation)),
    ):
        log.curve(Curve(name=name, x_name="epoch", x=epochs, y=values))


def _tell_figures(last: Scored, classes: int, log: Log) -> None:
    log.figure("accuracy", accuracy_figure(last.top1, last.samples))
    if classes > 5:
        log.figure("top5_accuracy", accuracy_figure(last.top5, last.samples))
    log.figure("validation_loss", Figure(value=last.loss, unit="", n=last.samples))
