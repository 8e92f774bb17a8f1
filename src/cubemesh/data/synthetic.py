"""Synthetic images, random values for measuring speed without a data set.

As DGX-1 best practices [001] made them: 1,024 images of values drawn evenly from [0, 1], each with
a label drawn at random. Nothing can be learned from them beyond learning them by heart. They are
drawn once, on the host, and then read like any other data, so that copying them to the device costs
what it costs.
"""

from __future__ import annotations

import numpy as np

from cubemesh.data.images.arrays import FloatImages
from cubemesh.data.source import CACHE_BYTES, Shape, Source, Split, image_bytes

SAMPLES = {"train": 1024, "validation": 256}


def open_synthetic(
    split: Split, shape: Shape, classes: int, seed: int, samples_needed: int
) -> Source:
    """The images of `split`, the same for the same seed, shape and classes.

    There are 1,024 (256 for validation), fewer where those would pass `CACHE_BYTES`, and never
    fewer than `samples_needed`, so that one batch can always be had.
    """
    fit = CACHE_BYTES // image_bytes(shape)
    samples = max(1, min(SAMPLES[split], fit), samples_needed)
    # The split is part of the seed, so that validation images are not the first training images.
    generator = np.random.default_rng((seed, SAMPLES[split]))
    labels = generator.integers(classes, size=samples)
    images = generator.random((samples, *shape), dtype=np.float32)
    return FloatImages("synthetic", images, labels, classes)
