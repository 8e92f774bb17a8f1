"""Answers to single samples: packed and unpacked, and a digest of the samples and their order."""

import numpy as np
import pytest

from cubemesh.batches import PADDING, Batch
from cubemesh.schema.record import ScoredSamples
from cubemesh.training import scored_samples
from cubemesh.training.scored_samples import SampleRecorder, right_samples

CHANCE = np.random.default_rng(1)
IMAGES = CHANCE.random((21, 3, 8, 8)).astype(np.float32)
LABELS = CHANCE.integers(0, 10, 21)
RIGHT = CHANCE.random(21) < 0.5


def recorded(images=IMAGES, labels=LABELS, right=RIGHT, sizes=(8, 8, 5), *, contents=True):
    recorder, start = SampleRecorder(contents=contents), 0
    for size in sizes:
        part = slice(start, start + size)
        recorder.see(Batch(images=images[part], labels=labels[part]))
        recorder.add(labels[part], right[part])
        start += size
    return recorder.result()


def test_answers_are_read_back_in_their_order() -> None:
    found = recorded()
    assert found.count == 21
    assert right_samples(found).tolist() == RIGHT.tolist()
    assert len(found.right) == 4


def test_the_digest_is_of_the_samples_not_of_the_answers() -> None:
    assert recorded(right=~RIGHT).samples_id == recorded().samples_id


@pytest.mark.parametrize("what", ["order", "labels", "contents"])
def test_other_samples_have_another_digest(what) -> None:
    images, labels = IMAGES.copy(), LABELS.copy()
    if what == "order":
        images, labels = images[::-1].copy(), labels[::-1].copy()
    elif what == "labels":
        labels[3] = (labels[3] + 1) % 10
    else:
        images[3] += 1
    assert recorded(images, labels).samples_id != recorded().samples_id


def test_without_contents_only_the_labels_count() -> None:
    """As for networks of other image sizes on the same files."""
    other = recorded(IMAGES[:, :, :4, :4], contents=False)
    assert other.samples_id == recorded(contents=False).samples_id


def test_positions_of_a_sequence_are_not_recorded() -> None:
    labels = np.array([[1, 2, PADDING]])
    recorder = SampleRecorder(contents=True)
    recorder.see(Batch(labels, labels=labels))
    recorder.add(labels, np.array([True, False]))
    assert recorder.result() is None


def test_too_many_samples_are_not_recorded(monkeypatch) -> None:
    monkeypatch.setattr(scored_samples, "MAX_SAMPLES", 20)
    assert recorded() is None
    assert SampleRecorder(contents=True).result() is None


@pytest.mark.parametrize(("count", "right"), [(9, "gA=="), (0, ""), (8, "!"), (8, "gAA=")])
def test_damaged_answers_are_refused(count, right) -> None:
    with pytest.raises(ValueError, match=r"answers|base64|padding"):
        right_samples(ScoredSamples(samples_id="a", count=count, right=right))
