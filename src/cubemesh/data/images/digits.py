"""Digits: 1,797 real handwritten digits, carried by cubemesh for offline training.

8×8 grey images with values 0 to 16: the test set of "Optical Recognition of Handwritten Digits"
(E. Alpaydin, C. Kaynak, UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, CC BY 4.0), as
scikit-learn (BSD-3-Clause) ships it. docs/data.md describes how digits.npz was made from it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.arrays import RawImages, prepared
from cubemesh.data.source import Shape, Source, Split, check_classes

CLASSES = 10
WHITE = 16
TRAIN_SHARE = 0.8
TRAIN_SAMPLES = 1438
_SPLIT_SEED = 0
"""Part of what the data set is: another seed would make accuracies incomparable."""


def open_digits(split: Split, shape: Shape, classes: int) -> Source:
    """The digits of `split` in `shape`, for a network of `classes` classes (10 or more).

    1,438 for training, 359 for validation: four fifths of each class and the rest, drawn once and
    the same for every run.
    """
    check_classes("digits", CLASSES, classes)
    images, labels = read()
    chosen = split_indices(labels)[split]
    raw = RawImages(
        "digits",
        [images[chosen]],
        labels[chosen],
        raw_shape=(1, 8, 8),
        white=WHITE,
        classes=CLASSES,
        shape=shape,
    )
    return prepared(raw)


@cache
def read() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images (1797, 8, 8), 0 to 16, and their labels (1797,), in the data set's order."""
    with (
        resources.files("cubemesh.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return arrays["images"], arrays["labels"].astype(np.int64)


def split_indices(labels: NDArray[np.int64]) -> dict[Split, NDArray[np.int64]]:
    """Numbers of the training and validation samples, in rising order, stratified by class."""
    generator = np.random.default_rng(_SPLIT_SEED)
    train, validation = [], []
    for label in range(CLASSES):
        members = generator.permutation(np.flatnonzero(labels == label))
        cut = round(TRAIN_SHARE * len(members))
        train.append(members[:cut])
        validation.append(members[cut:])
    return {
        "train": np.sort(np.concatenate(train)),
        "validation": np.sort(np.concatenate(validation)),
    }
