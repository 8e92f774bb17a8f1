"""Ranks that share an evaluation: threads of this process, joined by the store that forked ranks
use. Counts, losses and answers have the bits of a single rank."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from cubemesh.batches import Batch
from cubemesh.data.feed import in_order, share_of
from cubemesh.data.images.arrays import FloatImages
from cubemesh.data.text.parallel_text import SentencePairs
from cubemesh.data.text.vocabulary import END, PAD, SPECIAL, Vocabulary
from cubemesh.detection.labels import Grid, as_detected, no_labels
from cubemesh.frameworks.contract.kv_store import StoreClient, serve_store
from cubemesh.frameworks.contract.rendezvous import StoreGroup
from cubemesh.training.detection import DetectionScorer
from cubemesh.training.evaluation import EvaluationResult, auc_figure, score_all, total_of
from cubemesh.training.scored_samples import SampleRecorder, right_samples
from cubemesh.training.translation import beam_search, translate_all
from in_memory_log import InMemoryLog
from patience import PATIENCE_S
from random_boxes import random_boxes

BATCH, CLASSES = 4, 10


@pytest.fixture
def together():
    """Calls a function with the group of each of several ranks, at the same time."""
    ends, before = [], set(threading.enumerate())

    def call(ranks, of_rank):
        pairs = [socket.socketpair() for _ in range(ranks)]
        ends.extend(end for pair in pairs for end in pair)
        serve_store([here for here, _ in pairs])
        groups = [
            StoreGroup(rank, ranks, StoreClient(there), PATIENCE_S)
            for rank, (_, there) in enumerate(pairs)
        ]
        with ThreadPoolExecutor(ranks) as threads:
            return list(threads.map(of_rank, groups))

    yield call
    for end in ends:
        end.shutdown(socket.SHUT_RDWR)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "store":  # it reads a descriptor that another test could get
            thread.join(PATIENCE_S)
    for end in ends:
        end.close()


class Linear:
    """Scores are a product of the image with fixed weights, times `scale`."""

    def __init__(self, scale=1.0):
        self._weights = scale * np.random.default_rng(3).normal(size=(4, CLASSES))
        self._now = threading.local()

    def place(self, batch):
        return batch.images.copy()

    def evaluate(self, placed):
        with np.errstate(invalid="ignore"):
            return placed.reshape(len(placed), -1).astype(np.float64) @ self._weights

    def clock(self):
        self._now.s = getattr(self._now, "s", 0.0) + 1.0
        return self._now.s


def source(samples):
    rng = np.random.default_rng(samples)
    images = 9 * rng.random((samples, 1, 2, 2), dtype=np.float32)
    return FloatImages("noise", images, rng.integers(0, CLASSES, samples), CLASSES)


def evaluated(samples, group=None, program=None):
    """What one rank finds: the result, the stored answers, and its windows."""
    log, recorder = InMemoryLog(), SampleRecorder(contents=True)
    share = SimpleNamespace(rank=0, size=1) if group is None else group
    batches = in_order(source(samples), BATCH, rank=share.rank, ranks=share.size)
    result = score_all(program or Linear(), batches, log, "epoch-1", recorder, group)
    return result, recorder.result(group), log.windows


@pytest.mark.parametrize(
    ("samples", "ranks"),
    [(1, 3), (3, 2), (4, 2), (16, 4), (17, 3), (41, 2), (41, 5), (9, 8)],
)
def test_every_rank_gets_the_bits_of_a_single_one(together, samples, ranks):
    alone, answers, (window,) = evaluated(samples)
    found = together(ranks, lambda group: evaluated(samples, group))
    for result, stored, _ in found:
        assert result == alone
        assert stored == answers
    windows = [w for _, _, own in found for w in own]
    assert sum(w.samples for w in windows) == window.samples == samples
    assert sum(w.steps for w in windows) == window.steps
    assert len(windows) == min(ranks, window.steps)
    assert alone.top1 == right_samples(answers).sum()


def test_the_shares_are_all_samples_once():
    shares = np.stack([share_of(source(41), BATCH, rank, 3) for rank in range(3)])
    assert (shares.sum(axis=0) == 1).all()
    assert shares.sum(axis=1).tolist() == [16, 13, 12]


def test_the_sum_of_losses_does_not_depend_on_the_order():
    losses = [0.1, 1e16, -1e16, 1e-9, 0.7]
    results = [EvaluationResult(samples=1, loss_sum=loss) for loss in losses]
    assert total_of(results) == total_of(reversed(results))
    assert total_of(results).loss_sum == 0.800000001


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_reaches_every_rank(together, scale):
    found = together(2, lambda group: evaluated(12, group, Linear(scale))[0])
    assert not any(np.isfinite(result.loss) for result in found)


class Segmenting:
    """Finds a class for each of four pixels."""

    def place(self, batch):
        return batch.images.copy()

    def evaluate(self, placed):
        return np.eye(3)[(placed.reshape(len(placed), -1) * 3).astype(np.int64)]

    def clock(self):
        return 0.0


def test_overlaps_of_all_ranks_are_added(together):
    rng = np.random.default_rng(1)
    images, labels = rng.random((21, 1, 2, 2), dtype=np.float32), rng.integers(0, 3, (21, 4))
    batches = [Batch(images=images[n : n + 4], labels=labels[n : n + 4]) for n in range(0, 21, 4)]

    def of_rank(group):
        own = batches[group.rank :: group.size]
        return score_all(Segmenting(), own, InMemoryLog(), "epoch-1", group=group, mask_classes=3)

    whole = score_all(Segmenting(), batches, InMemoryLog(), "epoch-1", mask_classes=3)
    assert sum(whole.unions) > sum(whole.intersections) > 0
    assert together(3, of_rank) == [whole] * 3


class Ranking:
    """Scores of two classes that differ by the mean of the image."""

    def place(self, batch):
        return batch.images.copy()

    def evaluate(self, placed):
        return np.stack([np.zeros(len(placed)), placed.mean((1, 2, 3))], 1)

    def clock(self):
        return 0.0


class Detecting:
    """Detects what the labels say, for most images."""

    def __init__(self, grid):
        self.grid = grid

    def place(self, batch):
        return batch.labels.copy()

    def evaluate(self, placed):
        scores = np.stack([as_detected(self.grid, labels) for labels in placed])
        return scores * 0.9 * (placed.sum(axis=(1, 2)) % 3 > 0)[:, None, None]

    def clock(self):
        return 0.0


def test_the_area_under_the_roc_curve_is_that_of_all_ranks(together):
    """Ranks without a batch, or of one class, included; whatever order they come in."""
    rng = np.random.default_rng(1)
    images, labels = rng.random((9, 1, 2, 2), dtype=np.float32), np.arange(9) % 2
    batches = [Batch(images=images[n : n + 3], labels=labels[n : n + 3]) for n in range(0, 9, 3)]

    def of_rank(group):
        own = batches[group.rank :: group.size]
        return score_all(Ranking(), own, InMemoryLog(), "epoch-1", group=group, with_auc=True)

    whole = score_all(Ranking(), batches, InMemoryLog(), "epoch-1", with_auc=True)
    means = images.mean((1, 2, 3))
    above = np.sign(means[labels == 1][:, None] - means[labels == 0])
    assert whole.auc == pytest.approx((above.mean() + 1) / 2)
    figure = auc_figure(whole)
    assert (figure.value, figure.n) == (whole.auc, 9)
    assert 0 < figure.low < figure.value < figure.high < 1
    assert together(4, of_rank) == [whole] * 4
    assert score_all(Ranking(), batches, InMemoryLog(), "epoch-1").auc is None


def test_padding_has_no_part_in_the_area_under_the_curve():
    images = np.random.default_rng(1).random((6, 1, 2, 2), dtype=np.float32)
    labels = np.array([0, 1, -1, 1, 0, -1])

    def found(rows):
        batch = Batch(images=images[rows], labels=labels[rows])
        return score_all(Ranking(), [batch], InMemoryLog(), "epoch-1", with_auc=True)

    assert found(np.arange(6)) == found(np.flatnonzero(labels >= 0))


@pytest.mark.parametrize("ranks", [2, 3])
def test_detections_of_all_ranks_have_the_order_of_one(together, ranks):
    grid = Grid(64, 4, 3)
    labels = random_boxes(grid, 21, np.random.default_rng(1))
    labels[5] = no_labels(grid)
    images = np.zeros((21, 1, 1, 1), np.float32)
    batches = [Batch(images=images[n : n + 4], labels=labels[n : n + 4]) for n in range(0, 21, 4)]

    def evaluated(own, group=None):
        scorer, log = DetectionScorer(grid), InMemoryLog()
        found = score_all(Detecting(grid), own, log, "epoch-1", group=group, detector=scorer)
        return found, scorer.images, scorer.intervals()

    whole = evaluated(batches)
    assert whole[0].samples == len(whole[1]) == 20, "an image of padding does not count"
    assert 0 < whole[0].accuracy == whole[0].detection.mean_ap < 1
    assert whole[0].loss > 0
    assert together(ranks, lambda g: evaluated(batches[g.rank :: g.size], g)) == [whole] * ranks


def test_without_answers_of_one_rank_there_are_none(together):
    """Positions of a sequence are no samples."""

    def of_rank(group):
        recorder = SampleRecorder(contents=False)
        labels = np.zeros((2, 3) if group.rank else 2, np.int64)
        recorder.add(labels, np.ones(2, bool))
        return recorder.result(group)

    assert together(2, of_rank) == [None, None]


class Copying:
    """Translates a sentence as its own words, each second one without its first word."""

    def __init__(self):
        self.seen = []

    def clock(self):
        return 0.0

    def translate(self, sources, search):
        self.seen.append(len(sources))
        return [
            [token for token in row[i % 2 :].tolist() if token not in (PAD, search.end)]
            for i, row in enumerate(sources)
        ]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_sentences_that_they_translate(together, ranks):
    rows = np.array([[4, 5, 6, 7, END], [5, 6, 7, 4, END], [7, 7, 4, 5, END]] * 3)
    words = Vocabulary("words", (*SPECIAL, "a", "b", "c", "d"))
    texts = [words.decode(row) for row in rows]
    pairs = SentencePairs("pairs", (rows, rows), rows, words, 8, texts)
    programs = [Copying() for _ in range(ranks)]
    search = beam_search(1, 0.6)
    found = together(
        ranks, lambda group: translate_all(programs[group.rank], pairs, search, 4, group)
    )
    assert all(one == found[0] for one in found)
    assert found[0].sentences == 9
    assert sum(sum(program.seen) for program in programs) == 9
    # 9 sentences in batches of 4, 4 and 1: 4 of them lack a word
    assert found[0].counts.matches == (32, 23, 14, 5)
    assert (found[0].counts.translated, found[0].counts.reference) == (32, 36)
