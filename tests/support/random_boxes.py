"""Labels of random boxes, for networks that detect objects."""

import numpy as np

from cubemesh.detection.labels import LabelledBoxes, encode


def random_boxes(grid, samples, rng):
    """(samples, rows, columns): up to four boxes an image, none in the last."""
    labels = []
    for number in range(samples):
        count = 0 if number == samples - 1 else int(rng.integers(1, 5))
        low = rng.random((count, 2)) * grid.size * 0.6
        boxes = np.concatenate(
            [low, low + (0.1 + 0.4 * rng.random((count, 2))) * grid.size], axis=1
        )
        kinds = rng.integers(0, grid.classes, count)
        labels.append(encode(grid, LabelledBoxes(boxes, kinds, np.zeros(count, bool))))
    return np.stack(labels)
