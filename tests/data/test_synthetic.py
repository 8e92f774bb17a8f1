import numpy as np
import pytest

from cubemesh.data import synthetic
from cubemesh.data.source import Shape
from cubemesh.data.synthetic import open_synthetic

SHAPE: Shape = (3, 8, 8)


def everything(seed: int = 0, split: str = "train", classes: int = 10):
    source = open_synthetic(split, SHAPE, classes, seed, 1)  # type: ignore[arg-type]
    return source.batch(np.arange(source.samples))


def test_as_document_001_made_them() -> None:
    batch = everything()
    assert batch.images.shape == (1024, *SHAPE)
    assert 0 <= batch.images.min() < 0.001
    assert 0.999 < batch.images.max() <= 1
    assert batch.images.mean() == pytest.approx(0.5, abs=0.01)
    assert set(batch.labels.tolist()) == set(range(10))


def test_the_seed_decides() -> None:
    assert np.array_equal(everything(3).images, everything(3).images)
    assert not np.array_equal(everything(3).images, everything(4).images)


def test_validation_images_are_others() -> None:
    validation = everything(split="validation")
    assert validation.samples == 256
    assert not np.array_equal(validation.images, everything().images[:256])


def test_labels_are_below_the_number_of_classes() -> None:
    assert everything(classes=1).labels.max() == 0


def test_fewer_when_they_would_not_fit_but_never_less_than_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(synthetic, "CACHE_BYTES", 100 * 4 * 3 * 8 * 8)
    assert open_synthetic("train", SHAPE, 10, 0, 8).samples == 100
    assert open_synthetic("train", SHAPE, 10, 0, 300).samples == 300
    assert open_synthetic("train", (3, 90, 90), 10, 0, 0).samples == 1


def test_as_many_as_the_memory_that_is_given_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CACHE_BYTES", 100 * 4 * 3 * 8 * 8)
    assert open_synthetic("train", SHAPE, 10, 0, 8, 300 * 4 * 3 * 8 * 8).samples == 300
    assert open_synthetic("train", SHAPE, 10, 0, 8, 1 << 30).samples == 1024
    assert open_synthetic("train", SHAPE, 10, 0, 8, 1).samples == 100


def test_more_when_a_batch_needs_more() -> None:
    assert open_synthetic("train", SHAPE, 10, 0, 2048).samples == 2048
