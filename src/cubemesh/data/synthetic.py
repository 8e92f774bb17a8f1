"""Synthetic images, random values for measuring speed without a data set.

As in DGX-1 best practices [001]: 1,024 images of values uniform in [0, 1], with random labels. They
are for speed only. They are drawn once, on the host, and then read like any other data, so copying
them to the device takes the usual time.
"""

from __future__ import annotations

import numpy as np

from cubemesh.data.images.arrays import FloatImages
from cubemesh.data.source import CACHE_BYTES, Shape, Source, Split, image_bytes

NAME = "synthetic"
SAMPLES = {"train": 1024, "validation": 256}


def open_synthetic(
    split: Split,
    shape: Shape,
    classes: int,
    seed: int,
    samples_needed: int,
    most_bytes: int = 0,
) -> Source:
    """The images of `split`, the same for the same seed, shape and classes.

    There are 1,024 (256 for validation), fewer if they exceed both `CACHE_BYTES` and `most_bytes`,
    and at least `samples_needed`, so that there is one full batch.
    """
    fit = max(CACHE_BYTES, most_bytes) // image_bytes(shape)
    samples = max(1, min(SAMPLES[split], fit), samples_needed)
    # The split is part of the seed, so that validation images are not the first training images.
    generator = np.random.default_rng((seed, SAMPLES[split]))
    labels = generator.integers(classes, size=samples)
    images = generator.random((samples, *shape), dtype=np.float32)
    return FloatImages(NAME, images, labels, classes)
