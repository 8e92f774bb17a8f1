"""Segmentation masks: photographs, each with a PNG file that has the class of every pixel.

`train/images/NAME.jpg` and `train/masks/NAME.png`, and the same below `val`; or `images` and
`masks` alone, with every tenth image for validation. A mask is grey, or of a palette whose indices
are the classes (as those of PASCAL VOC are), as large as its image; pixels of 255 do not count. It
is cropped and mirrored as its image is, and takes the nearest pixel where that is interpolated.

As of photographs in folders of classes, a pair that cannot be used is replaced by the next one, and
left out of an evaluation.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING, Batch, Box, Pixels
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.images.decode import Augmentation, Skipped, load_decoder, reasons
from cubemesh.data.images.files import read_whole
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.data.labelled_images import (
    LabelledImages,
    check_folders,
    check_options,
    label_files,
)
from cubemesh.data.source import Indices, Shape, Split
from cubemesh.errors import DataError

NAME = "masks"
MASKS = "masks"
UNCOUNTED = 255
"""Value of pixels that do not count, such as the outlines in PASCAL VOC."""
MODES = ("1", "L", "P", "I", "I;16", "I;16B")
"""Pillow's modes of one number a pixel."""
LAYOUT = (
    "The layout is images/NAME.jpg and masks/NAME.png, below train and val or alone (docs/data.md)."
)


class MaskFolder(LabelledImages):
    """The image files of one split, which have masks."""

    def __init__(self, root: Path, split: Split, classes: int) -> None:
        """DataError as in `label_files`."""
        found = label_files(root, split, MASKS, ".png")
        names = tuple(str(number) for number in range(classes))
        super().__init__(found.root, tuple(found.files), names, found.ignored)
        self._masks = tuple(found.files.values())

    def read_mask(self, number: int) -> bytes:
        """The file of the mask of image `number`."""
        return read_whole(self._masks[number])


@dataclass(frozen=True)
class Masked:
    """An image and its mask, of the network's size."""

    pixels: Pixels
    mask: NDArray[np.int64]
    """Height × width, `PADDING` where a pixel does not count."""


class MaskedImages(ImageSource):
    """A `Source` of images with masks; `HasEpochs`: in training each epoch crops them anew."""

    def __init__(self, folder: MaskFolder, shape: Shape, split: Split, max_pixels: int) -> None:
        super().__init__(folder, shape, split, max_pixels)
        self.name = NAME
        self._folder = folder
        self._image = load_decoder()

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`: a label for each pixel."""
        _, height, width = self.shape
        images = np.empty((samples, *self.shape), np.float32)
        return Batch(images=images, labels=np.empty((samples, height * width), np.int64))

    def drawn(self, indices: Indices, into: Batch | None, draw: Augmentation | None) -> Batch:
        """See `ImageSource.drawn`. DataError for a mask with a class that the network does not
        have."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for row, number in enumerate(indices.tolist()):
            _, found = self.usable(number, lambda n: self.masked(n, draw))
            self.put(None if found is None else found.pixels, into, row)
            into.labels[row] = PADDING if found is None else found.mask.ravel()
        return into

    def masked(self, number: int, draw: Augmentation | None) -> Masked | None:
        """Image `number` with its mask; None if it is skipped."""
        return self.made_from(
            number, draw, lambda data, pixels: Masked(pixels, self._mask(data, number, draw))
        )

    def _mask(self, data: bytes, number: int, draw: Augmentation | None) -> NDArray[np.int64]:
        """The mask of image `number`, whose file is `data`, cropped as the image is."""
        with reasons(), self._image.open(io.BytesIO(data)) as image:
            size = image.size
        file = io.BytesIO(self._folder.read_mask(number))
        with reasons(), self._image.open(file, formats=("PNG",)) as image:
            if image.size != size:
                raise Skipped("a mask of another size than its image")
            if image.mode not in MODES:
                raise Skipped("a mask in colours, not in class numbers")
            classes = np.asarray(image)
        width, height = size
        box, mirrored = self.decoder.crop(number, width, height, draw)
        found = nearest(classes, box, self.shape[1], self.shape[2]).astype(np.int64)
        most = found.max(initial=0, where=found != UNCOUNTED)
        if most >= self.classes:
            raise DataError(
                f"The mask of {self._folder.name(number)} has class {most}, and the network has "
                f"{self.classes} classes, from 0. Set classes={most + 1} or more."
            )
        found[found == UNCOUNTED] = PADDING
        return found[:, ::-1] if mirrored else found


def nearest(classes: NDArray[Any], box: Box, height: int, width: int) -> NDArray[Any]:
    """What `box` cuts out of `classes` (height, width), at `height` × `width` pixels, each the one
    at its middle, in the same type."""
    left, top, right, bottom = box
    columns = left + (np.arange(width) + 0.5) * (right - left) / width
    rows = top + (np.arange(height) + 0.5) * (bottom - top) / height
    across = columns.astype(np.int64).clip(0, classes.shape[1] - 1)
    down = rows.astype(np.int64).clip(0, classes.shape[0] - 1)
    found: NDArray[Any] = classes[np.ix_(down, across)]
    return found


def open_masks(
    path: Path, split: Split, shape: Shape, classes: int, options: ImageOptions
) -> MaskedImages:
    """The images and masks of `split` below `path`. UsageError for an option that they do not
    have."""
    check_options(NAME, options)
    return MaskedImages(MaskFolder(path, split, classes), shape, split, options.max_pixels)


def check_files(path: Path) -> None:
    """DataError if there are no folders of images and masks; opens no file."""
    check_folders(path, MASKS, LAYOUT)
