"""The loop on a program that learns in a way that can be worked out by hand."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.batches import Batch
from cubemesh.data.feed import Feed
from cubemesh.data.images.arrays import FloatImages
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Diverged
from cubemesh.schema.work import Train
from cubemesh.training.loop import Training, window_sizes
from cubemesh.training.scored_samples import right_samples
from in_memory_log import InMemoryLog

CLASSES = 10


class Pupil:
    """Answers right for labels below the number of steps it has taken; a step takes 10 ms of a
    clock of its own, and its loss is 1 / steps, or the one in `losses` for a step."""

    device = "cpu"
    buckets = ()

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        self.now = 0.0
        self.steps = 0
        self.seen: list[list[int]] = []
        self.evaluated: list[int] = []
        self._losses = losses or {}
        self._queued = 0

    def place(self, batch: Batch) -> Batch:
        return Batch(images=batch.images.copy(), labels=batch.labels.copy())

    def train_step(self, placed: Batch) -> None:
        self.seen.append(placed.labels.tolist())
        self._queued += 1

    def forward(self, placed: Batch) -> None:
        raise AssertionError("training does not call forward")

    forward_backward = forward

    def evaluate(self, placed: Batch) -> np.ndarray:
        assert self._queued == 0, "evaluated with steps in flight"
        self.evaluated.append(placed.samples)
        self.now += 0.001
        known = placed.labels < self.steps
        return np.eye(CLASSES)[np.where(known, placed.labels, (placed.labels + 1) % CLASSES)]

    def loss(self) -> float:
        assert self._queued == 0, "the loss was asked for inside a window"
        return self._losses.get(self.steps, 1 / self.steps)

    def synchronize(self) -> None:
        self.now += 0.010 * self._queued
        self.steps += self._queued
        self._queued = 0

    def load(self, weights: Mapping[str, Any]) -> None:
        raise AssertionError("weights are loaded before training")

    def state(self) -> dict[str, Any]:
        return {}

    def peak_memory_bytes(self) -> int | None:
        return None

    def clock(self) -> float:
        return self.now

    def close(self) -> None:
        pass


def source(samples: int, classes: int = CLASSES) -> FloatImages:
    labels = np.arange(samples) % classes
    return FloatImages("numbers", np.zeros((samples, 1, 2, 2), np.float32), labels, classes)


def feed(samples: int, work: Train) -> Feed:
    return Feed(source(samples), work.batch_per_device, work.seed, epochs=work.epochs)


def run(
    pupil: Pupil,
    *,
    epochs: int = 3,
    batch: int = 4,
    samples: int = 42,
    validation: Callable[[], FloatImages] = lambda: source(30),
) -> InMemoryLog:
    log = InMemoryLog()
    work = Train(network="little-cnn", batch_per_device=batch, epochs=epochs)
    train(pupil, feed(samples, work), validation(), work, log)
    return log


def train(pupil: Pupil, feed: Feed, validation: FloatImages, work: Train, log: InMemoryLog) -> None:
    Training(program=pupil, feed=feed, validation=validation, work=work, log=log).run()


def test_every_epoch_passes_through_the_data_in_full_batches() -> None:
    pupil = Pupil()
    log = run(pupil)
    assert len(pupil.seen) == 3 * 10
    assert {len(labels) for labels in pupil.seen} == {4}
    assert sum(w.steps for w in log.windows if "epoch-2" in w.marks and w.phase == "measure") == 10
    assert pupil.seen[:10] != pupil.seen[10:20]


def test_windows_phases_and_marks() -> None:
    log = run(Pupil())
    trained = [w for w in log.windows if w.phase != "evaluate"]
    assert [(w.phase, w.steps) for w in trained[:5]] == [
        ("warm-up", 1),
        *[("measure", n) for n in (3, 2, 2, 2)],
    ]
    assert [w.steps for w in trained[5:9]] == [3, 3, 2, 2]
    assert all(w.samples == 4 * w.steps for w in trained)
    assert all(w.step_s == pytest.approx(0.010) for w in trained)
    assert [p.name for p in log.phases] == ["warm-up", *["measure", "evaluate"] * 3]
    assert [w.marks for w in log.windows if w.phase == "evaluate"] == [
        ("epoch-1",),
        ("epoch-2",),
        ("epoch-3",),
    ]


def test_the_training_loss_is_read_at_the_end_of_each_window() -> None:
    curve = run(Pupil()).curves["training_loss"]
    assert curve.x_name == "step"
    assert curve.x[:6] == (1, 4, 6, 8, 10, 13)
    assert curve.y == tuple(1 / x for x in curve.x)


def test_every_validation_sample_is_scored_after_each_epoch() -> None:
    pupil = Pupil()
    log = run(pupil)
    assert pupil.evaluated == [4, 4, 4, 4, 4, 4, 4, 2] * 3
    assert [w.samples for w in log.windows if w.phase == "evaluate"] == [30, 30, 30]
    # It knows labels below the number of steps taken: after one epoch of ten steps, all.
    assert log.curves["validation_accuracy"].x == (1, 2, 3)
    assert log.curves["validation_accuracy"].y == (1.0, 1.0, 1.0)


def test_accuracy_is_the_last_epochs_with_its_interval() -> None:
    log = run(Pupil(), epochs=2, batch=14)  # six steps in all: labels 0 to 5 are known
    assert log.curves["validation_accuracy"].y == pytest.approx((0.3, 0.6))
    accuracy = log.figures["accuracy"]
    assert (accuracy.value, accuracy.n) == (0.6, 30)
    (scored,) = log.scored
    assert (scored.count, right_samples(scored).sum()) == (30, 18)
    assert accuracy.low == pytest.approx(0.4232, abs=1e-4)
    assert log.figures["top5_accuracy"].value == 0.6
    wrong, right = math.log(9 + math.e), math.log(9 + math.e) - 1
    assert log.figures["validation_loss"].value == pytest.approx(0.4 * wrong + 0.6 * right)


def test_top_five_needs_more_than_five_classes() -> None:
    log = run(Pupil(), validation=lambda: source(30, classes=5))
    assert "top5_accuracy" not in log.figures
    assert "accuracy" in log.figures


def test_progress_ends_at_one() -> None:
    fractions = run(Pupil()).fractions
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_divergence_names_the_step_and_the_previous_loss(loss: float) -> None:
    log = InMemoryLog()
    work = Train(network="little-cnn", batch_per_device=4, epochs=3, learning_rate=0.5)
    with pytest.raises(Diverged) as caught:
        train(Pupil({13: loss}), feed(42, work), source(30), work, log)
    message = str(caught.value)
    assert f"{loss} at step 13" in message
    assert "epoch 2 of 3" in message
    assert "0.1 at step 10" in message
    assert "learning_rate below 0.5" in message
    assert log.curves["training_loss"].x[-1] == 10


def test_divergence_at_the_first_step_names_no_previous_loss() -> None:
    with pytest.raises(Diverged, match=r"\bnan at step 1\b.*\bepoch 1 of 3\b") as caught:
        run(Pupil({1: math.nan}))
    assert str(caught.value).count("at step") == 1, "there is no loss before it to name"


def test_scores_that_are_nan_are_diverged() -> None:
    class Lost(Pupil):
        def evaluate(self, placed: Batch) -> np.ndarray:
            return np.full((placed.samples, CLASSES), np.nan)

    with pytest.raises(Diverged, match=r"validation .*\bnan .*\bepoch 1 of 3"):
        run(Lost())


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(UsageError, match=r"batch_per_device=43 .*\b42 samples"):
        run(Pupil(), batch=43)


def test_an_epoch_of_one_step() -> None:
    log = run(Pupil(), batch=42)
    assert [w.steps for w in log.windows if w.phase == "measure"] == [1, 1]
    assert [p.name for p in log.phases].count("measure") == 2


@given(st.integers(1, 500), st.integers(1, 50), st.booleans())
def test_windows_divide_the_steps_evenly(steps: int, epochs: int, first: bool) -> None:
    sizes = window_sizes(steps, epochs, first=first)
    assert sum(sizes) == steps
    assert min(sizes) >= 1
    rest = sizes[1:] if first else sizes
    assert not rest or max(rest) - min(rest) <= 1
    assert len(rest) >= min(sum(rest), 4)
    assert len(rest) * epochs >= min(12, sum(rest) * epochs)
