"""Training loop over epochs, with an evaluation after each.

    epoch 1                                    epoch 2
    W W W W … (phase measure) │ evaluate       W W W W … │ evaluate       …
    ▲ the first step, a separate window in phase warm-up

An epoch's steps are divided into a few windows; each ends with a synchronization, after which,
outside the window, the loss of its last step is read. So the training loss is sampled, one point
per window, not averaged. After each epoch every validation sample is scored, by all ranks together
where they have the same weights (`evaluation.py`). Checkpoints are taken between windows.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.data.feed import Feed, in_order, share_of
from cubemesh.data.masks import has_masks
from cubemesh.data.pipeline import Batches
from cubemesh.data.source import Source
from cubemesh.data.text.parallel_text import SentencePairs
from cubemesh.detection.labels import Grid
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import (
    Diverged,
    Program,
    SupportsLearningRate,
    SupportsSharedEvaluation,
    SupportsSnapshots,
    SupportsWeightInspection,
    Unsupported,
    synchronize_replicas,
)
from cubemesh.frameworks.contract.translation import SupportsTranslation
from cubemesh.measure.log import Log
from cubemesh.measure.timing.timer import Stopwatch
from cubemesh.schema.record import Figure, Window
from cubemesh.schema.work import Train
from cubemesh.training import replica_check
from cubemesh.training.checkpoint_writer import TrainingWriter
from cubemesh.training.detection import DetectionScorer
from cubemesh.training.evaluation import EvaluationResult, score_all
from cubemesh.training.history import TOP5_CLASSES, History
from cubemesh.training.pausing import Paused, PauseRequest
from cubemesh.training.schedule import Schedule
from cubemesh.training.scored_samples import SampleRecorder
from cubemesh.training.translation import Translated, beam_search, translate_all

WINDOWS_PER_EPOCH = 4
WINDOWS = 12
"""Minimum number of windows of the whole training, if it has as many steps."""


@dataclass(kw_only=True)
class Training:
    """A training of `program` for up to `work.epochs` epochs of `feed`, with an evaluation after
    each.

    Windows are marked `epoch-N`. Curves: training_loss and, if it changes, learning_rate by step;
    validation_loss, validation_accuracy and, with more than five classes, validation_top5_accuracy
    by epoch; of two classes validation_auc; of sentence pairs perplexity and, if they are
    translated, bleu; of masks validation_mean_iou, and class_iou by class; of boxes validation_map,
    validation_map50, and class_ap by class. Figures, of the last epoch: accuracy, top5_accuracy,
    auc, validation_loss, epochs_trained; of sentence pairs perplexity, bleu, translated_per_s,
    epoch_s and tokens_per_s; of masks mean_iou; of boxes map and map50, and a warning where they
    are 0.
    """

    program: Program
    feed: Feed
    validation: Source
    """Its samples are prepared like the feed's."""
    work: Train
    log: Log
    group: Group = field(default_factory=SingleProcessGroup)
    devices: int | None = None
    """The number by which the learning rate may be scaled; None: one per rank."""
    waited: Callable[[], float | None] | None = None
    """Takes the seconds for which this rank waited for others; None where that is not measured."""
    writer: TrainingWriter = field(default_factory=TrainingWriter)
    history: History = field(default_factory=History)
    """That of the checkpoint from which `feed` and `program` resume."""
    same_weights: bool = False
    """Whether the weights of all ranks are compared before each checkpoint and after each epoch."""
    one_model: bool = False
    """Whether all ranks have the same weights at an evaluation, so that they share it."""
    grid: Grid | None = None
    """The cells of a network that detects objects."""
    pause: PauseRequest = field(default_factory=PauseRequest)
    _measured: list[Window] = field(default_factory=list)
    _batch: Batch | None = None
    _started: bool = False
    _recorder: SampleRecorder | None = None
    """Of the last evaluation."""
    _translated: Translated | None = None
    """In the last evaluation."""
    _detector: DetectionScorer | None = None
    """Of the last evaluation."""
    _same_at: int = 0
    """The last step after which the ranks' weights were equal."""

    def __post_init__(self) -> None:
        devices = self.devices or self.group.size
        self.schedule = Schedule(self.work, devices, self.feed.steps_per_epoch)
        shares = self.one_model and isinstance(self.program, SupportsSharedEvaluation)
        self._evaluating: Group = self.group if shares else SingleProcessGroup()
        """The ranks that share an evaluation."""

    def run(self) -> list[Window]:
        """Train and log the results; the measured windows.

        Diverged as soon as a loss is not finite; ReplicasDiffer; Unsupported for what the program
        does not support; Paused after a checkpoint, where a pause is requested.
        """
        self._check_supported()
        try:
            self._run()
        finally:
            self.writer.report(self.log)
        return self._measured

    def _check_supported(self) -> None:
        """Unsupported if the program lacks what the work or the writer needs."""
        if self.schedule.changes and not isinstance(self.program, SupportsLearningRate):
            raise Unsupported(
                "This framework has a constant learning rate. Leave rate_scaling, warmup_epochs "
                "and schedule out, or set framework=pytorch."
            )
        if self.writer.checkpoints is not None and not isinstance(self.program, SupportsSnapshots):
            raise Unsupported(
                "This framework does not support checkpoints. Leave them out, or set "
                "framework=pytorch."
            )

        if self.work.beam_width is None:
            return
        if not isinstance(self.validation, SentencePairs):
            raise Unsupported(
                f"beam_width={self.work.beam_width} translates sentences, and "
                f"{self.validation.name} has no sentence pairs. Leave it out, or set "
                "data=generated-sentences or data=parallel-text."
            )
        if not isinstance(self.program, SupportsTranslation):
            raise Unsupported(
                "This framework does not translate. Leave beam_width out, or set framework=pytorch."
            )

    def _run(self) -> None:
        """Run the remaining epochs."""
        each = self.feed.steps_per_epoch
        classes = self.validation.classes
        done = self._is_done()
        while not done:
            epoch = len(self.history.validation) + 1
            if self.history.done < epoch * each:
                self._run_epoch(epoch)
            synchronize_replicas(self.program)
            if self._evaluating.size > 1:
                cast(SupportsSharedEvaluation, self.program).share_statistics(self._evaluating)
            with self.log.phase("evaluate"), closing(self._in_order()) as batches:
                self.history.validation.append(self._evaluate(batches, epoch))
                self._translate()
            self._log_curves()
            done = self._is_done()
            if done or self.writer.due(self.history.done, ends_epoch=True):
                self._checkpoint(synchronized=True)
            else:
                self._compare()
            if not done:
                self._pause_if_requested()
        self._log_curves()
        self.writer.finish(self.group)
        self.history.log_figures(classes, self.log, self._detector)
        self._log_translation()
        self._log_scored_samples()
        self._log_target()

    def _log_scored_samples(self) -> None:
        """Log which samples were answered correctly in the last evaluation, if there was one: a
        training that resumes at its end evaluates nothing."""
        scored = None if self._recorder is None else self._recorder.result(self._evaluating)
        if scored is not None:
            self.log.scored_samples(scored)

    def evaluated_samples(self) -> NDArray[np.bool_] | None:
        """Which validation samples this rank scores in each evaluation; None for all."""
        group = self._evaluating
        if group.size == 1:
            return None
        return share_of(self.validation, self.feed.batch_per_device, group.rank, group.size)

    def _in_order(self) -> Batches:
        """This rank's share of the validation samples, prepared like the training samples."""
        group = self._evaluating
        return in_order(
            self.validation,
            self.feed.batch_per_device,
            self.feed.threads,
            rank=group.rank,
            ranks=group.size,
        )

    def _is_done(self) -> bool:
        """Whether all epochs are done or the target is reached; rank 0 decides, because evaluations
        of ranks may differ by batch normalization."""
        scored = self.history.validation
        if len(scored) >= self.work.epochs:
            return True
        target = self.work.target_accuracy
        if target is None or not scored:
            return False
        return bool(self.group.broadcast_object(scored[-1].accuracy >= target))

    def _log_target(self) -> None:
        target, scored = self.work.target_accuracy, self.history.validation
        reached = [
            n for n, s in enumerate(scored, 1) if target is not None and s.accuracy >= target
        ]
        if reached:
            self.log.figure("target_epoch", Figure(value=reached[0], unit=""))

    def _run_epoch(self, epoch: int) -> None:
        """The rest of one pass over the training data."""
        ends = self._window_ends(epoch)
        if not self._started:
            self._started = True
            with self.log.phase("warm-up"):
                self._run_windows("warm-up", epoch, ends[:1])
            if self.writer.checkpoints is not None:
                method = "from the start of the run to the end of its first step"
                self.log.figure("restart_s", Figure(value=self.log.now(), unit="s", method=method))
            ends = ends[1:]
        if ends:
            with self.log.phase("measure"):
                self._run_windows("measure", epoch, ends)

    def _window_ends(self, epoch: int) -> list[int]:
        """The steps, of those left, after which windows of an epoch end. The very first window has
        one step."""
        each, done = self.feed.steps_per_epoch, self.history.done
        begin = (epoch - 1) * each
        sizes = window_sizes(each, self.work.epochs, first=epoch == 1)
        ends = {*itertools.accumulate(sizes, initial=begin)} | self.writer.stops(
            begin, begin + each
        )
        if not self._started:
            ends.add(done + 1)
        return sorted(end for end in ends if end > done)

    def _run_windows(self, phase: str, epoch: int, ends: list[int]) -> None:
        program, history = self.program, self.history
        watch = Stopwatch(
            step=self._stepper(),
            synchronize=program.synchronize,
            clock=program.clock,
            samples_per_step=self.feed.samples_per_step,
            log=self.log,
            waited=self.waited,
        )
        waiting = list(ends)
        while waiting:
            end = self.writer.next_stop(history.done, waiting[0])
            if end == waiting[0]:
                del waiting[0]
            window = watch.window(phase, end - history.done, (f"epoch-{epoch}",))
            if phase == "measure":
                self._measured.append(window)
            history.done = end
            self._read_loss(epoch)
            fraction = end / (self.work.epochs * self.feed.steps_per_epoch)
            self.log.progress(phase, end, window.step_s, fraction, self._note(epoch))
            ends_epoch = end == epoch * self.feed.steps_per_epoch
            if phase == "measure":
                self.writer.saw_window(window.step_s)
            if not ends_epoch and self.writer.due(end, ends_epoch=False):
                self._checkpoint()
            if not ends_epoch:
                self._pause_if_requested()

    def _checkpoint(self, *, synchronized: bool = False) -> None:
        """Compare the ranks' weights and write a checkpoint; `synchronized` after an evaluation."""
        began = time.perf_counter()
        if not synchronized:
            synchronize_replicas(self.program)
        self._compare()
        if self.writer.save(self.program, self.history):
            self.writer.plan_next(self.history.done, time.perf_counter() - began, self.group)

    def _pause_if_requested(self) -> None:
        """Write a checkpoint and raise Paused, if that is requested and checkpoints are enabled."""
        if self.writer.checkpoints is None or not self.pause.received:
            return
        self._checkpoint()
        self.writer.finish(self.group)
        raise Paused(f"The training paused after step {self.history.done}.{self.writer.newest()}")

    def _stepper(self) -> Callable[[], None]:
        """A function that makes one step, and sets its learning rate if that changes."""
        program, feed, schedule = self.program, self.feed, self.schedule
        numbers = itertools.count(self.history.done)

        def step() -> None:
            self._batch = next(feed)
            program.train_step(program.place(self._batch))

        def rated_step() -> None:
            cast(SupportsLearningRate, program).set_learning_rate(schedule.rate(next(numbers)))
            step()

        return rated_step if schedule.changes else step

    def _read_loss(self, epoch: int) -> None:
        history, done = self.history, self.history.done
        loss = self.program.loss()
        if not math.isfinite(loss):
            raise Diverged(self._divergence(loss, epoch))
        history.losses[done] = loss
        self.log.loss(done, loss)
        shown = {"loss/training": loss}
        if self.schedule.changes:
            history.rates[done] = shown["learning_rate"] = self.schedule.rate(done - 1)
        self.writer.scalars(shown, done)

    def _divergence(self, loss: float, epoch: int) -> str:
        """The message for a loss that is not finite."""
        before = "no loss was read before"
        if self.history.losses:
            step, last = next(reversed(self.history.losses.items()))
            before = f"it was {last:.4g} at step {step}"
        where = ""
        if isinstance(self.program, SupportsWeightInspection) and self._batch is not None:
            layer = self.program.first_nonfinite(self.program.place(self._batch))
            where = f" The first layer with non-finite values is {layer}." if layer else ""
        return (
            f"The training loss was {loss} at step {self.history.done}, in epoch {epoch} of "
            f"{self.work.epochs}; {before}.{where} Set learning_rate below "
            f"{self.work.learning_rate:g}.{self.writer.newest()}"
        )

    def _evaluate(self, batches: Batches, epoch: int) -> EvaluationResult:
        """Score every sample, with the other ranks, and write the curves."""
        recorder = SampleRecorder(contents=self.work.data_path is None)
        self._detector = None if self.grid is None else DetectionScorer(self.grid)
        masks = has_masks(self.validation)
        total = score_all(
            self.program,
            batches,
            self.log,
            f"epoch-{epoch}",
            recorder,
            self._evaluating,
            self.validation.classes if masks else 0,
            with_auc=self.validation.classes == 2 and not masks and self.grid is None,
            detector=self._detector,
        )
        self._recorder = recorder
        if not math.isfinite(total.loss):
            raise Diverged(
                f"The validation loss was {total.loss} after epoch {epoch} of {self.work.epochs}. "
                f"Set learning_rate below {self.work.learning_rate:g}.{self.writer.newest()}"
            )
        shown = {"loss/validation": total.loss, "accuracy/top-1": total.accuracy}
        if total.detection is not None:
            shown = {
                "loss/validation": total.loss,
                "accuracy/mAP": total.detection.mean_ap,
                "accuracy/mAP50": total.detection.mean_ap50,
            }
        elif self.validation.classes > TOP5_CLASSES:
            shown["accuracy/top-5"] = total.top5 / total.samples
        if total.mean_iou is not None:
            shown["accuracy/mean IoU"] = total.mean_iou
        if total.auc is not None:
            shown["accuracy/AUC"] = total.auc
        self.writer.scalars(shown, self.history.done)
        return total

    def _translate(self) -> None:
        """Translate the validation sentences, if that is asked for, with the other ranks."""
        work = self.work
        if work.beam_width is None or not isinstance(self.validation, SentencePairs):
            return
        search = beam_search(work.beam_width, work.length_penalty)
        batch = self.feed.batch_per_device
        found = translate_all(self.program, self.validation, search, batch, self._evaluating)
        self._translated = found
        self.history.bleu[len(self.history.validation)] = found.counts.score
        self.writer.scalars({"accuracy/BLEU": found.counts.score}, self.history.done)

    def _log_curves(self) -> None:
        self.history.log_curves(self.validation.classes, self.log)
        if isinstance(self.validation, SentencePairs):
            self.history.log_translation_curves(self.log)

    def _log_translation(self) -> None:
        """Log perplexity, BLEU, and time and tokens/s of the last epoch, for sentence pairs."""
        if not isinstance(self.validation, SentencePairs):
            return
        self.history.log_translation_figures(self.log)
        if self._translated is not None:
            done = self._translated
            method = f"beam_width={self.work.beam_width}"
            rate = done.sentences / done.seconds if done.seconds else 0.0
            unit = "sentences/s"
            self.log.figure(
                "translated_per_s", Figure(value=rate, unit=unit, n=done.sentences, method=method)
            )
        last = f"epoch-{len(self.history.validation)}"
        own = [w for w in self._measured if last in w.marks]
        samples, seconds = sum(w.samples for w in own), sum(w.elapsed_s for w in own)
        source = self.feed.source
        if not samples or not seconds or not isinstance(source, SentencePairs):
            return  # it resumed at its end
        sentences = self.feed.steps_per_epoch * self.feed.samples_per_step * self.group.size
        rate = self.group.size * samples / seconds
        method = "of training, without the evaluation; from the rate of its measured steps"
        self.log.figure("epoch_s", Figure(value=sentences / rate, unit="s", method=method))
        tokens = Figure(
            value=rate * source.tokens_per_sample,
            unit="tokens/s",
            method="of the target with its end, without padding, in the last epoch",
        )
        self.log.figure("tokens_per_s", tokens)

    def _compare(self) -> None:
        if self.same_weights:
            replica_check.check_weights(self.program, self.group, self.history.done, self._same_at)
            self._same_at = self.history.done

    def _note(self, epoch: int) -> str:
        """`epoch 3 of 10, loss 0.41, accuracy 93.1 %`."""
        parts = [f"epoch {epoch} of {self.work.epochs}"]
        parts.append(f"loss {self.history.losses[self.history.done]:.3g}")
        if self.history.validation:
            last = self.history.validation[-1]
            what = "accuracy" if last.detection is None else "mAP"
            parts.append(f"{what} {100 * last.accuracy:.1f} %")
        return ", ".join(parts)


def window_sizes(steps: int, epochs: int, *, first: bool = False) -> list[int]:
    """Steps of each window of an epoch of `steps` steps, as equal as possible, longer ones first.

    Four windows, or more if all epochs together would have fewer than twelve. In the first epoch
    the first step is a window, and the others divide the rest.
    """
    if first:
        return [1, *(window_sizes(steps - 1, epochs) if steps > 1 else [])]
    count = min(steps, max(WINDOWS_PER_EPOCH, math.ceil(WINDOWS / epochs)))
    return [steps // count + (n < steps % count) for n in range(count)]
