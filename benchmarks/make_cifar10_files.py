"""Files in CIFAR-10's two formats, made from the handwritten digits.

They are NOT CIFAR-10: the digits are enlarged to 32×32 and repeated until every file has its 10,000
records. They have the published sizes and shapes, to test the readers and the cost of input where
CIFAR-10 is not available. A note in the folder marks them.

    python benchmarks/make_cifar10_files.py FOLDER
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np

from cubemesh.data.images.cifar10 import CHILD, FILES, PYTHON_CHILD, RECORDS
from cubemesh.data.images.digits import open_digits

NOTE = "Not CIFAR-10: handwritten digits (UCI, 1998), enlarged and repeated, in its format.\n"


def make(folder: Path) -> None:
    """Write both folders below `folder`."""
    for split, names in FILES.items():
        source = open_digits(split, (3, 32, 32), 10)
        for number, name in enumerate(names):
            chosen = (np.arange(RECORDS) + number * RECORDS) % source.samples
            batch = source.batch(chosen)
            images = np.round(batch.images * 255).astype(np.uint8).reshape(RECORDS, -1)
            labels = batch.labels.astype(np.uint8)
            for child in (CHILD, PYTHON_CHILD):
                (folder / child).mkdir(parents=True, exist_ok=True)
                (folder / child / "NOT-CIFAR-10.txt").write_text(NOTE)
            np.hstack([labels[:, None], images]).tofile(folder / CHILD / name)
            content = {b"data": images, b"labels": labels.tolist(), b"batch_label": NOTE.encode()}
            with open(folder / PYTHON_CHILD / name.removesuffix(".bin"), "wb") as file:
                pickle.dump(content, file, protocol=2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the folder to make them in: make_cifar10_files.py FOLDER")
    make(Path(sys.argv[1]))
