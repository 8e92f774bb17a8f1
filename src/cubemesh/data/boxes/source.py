"""Images with boxes in files, in KITTI's format, as DIGITS reads it, or COCO's.

The whole image is resized to the network's square, so boxes are stretched as it is; in training it
is mirrored half of the time. Boxes are cut at the edges of the image.

As of photographs in folders of classes, an image that cannot be used is replaced by the next one,
and left out of an evaluation.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cubemesh.batches import Batch, Box, Pixels
from cubemesh.data.boxes.annotations import Annotations, class_names, labelled
from cubemesh.data.boxes.coco import ANNOTATIONS, find_file, read_coco
from cubemesh.data.boxes.kitti import LABELS, read_kitti
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.images.decode import FORMATS, Augmentation, Decoder, load_decoder, reasons
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.data.labelled_images import LabelledImages, check_folders, check_options
from cubemesh.data.source import Indices, Shape, Split, check_classes
from cubemesh.detection.labels import Grid, LabelledBoxes, Labels, encode, no_labels
from cubemesh.errors import DataError

NAME = "boxes"
LAYOUT = (
    "The layout is images/NAME.png and labels/NAME.txt, below train and val or alone, or COCO's "
    "annotations/instances_train2017.json and train2017 (docs/data.md)."
)


class BoxFolder(LabelledImages):
    """The image files of one split, which have boxes."""

    def __init__(self, root: Path, split: Split) -> None:
        """DataError as in `read_kitti` and `read_coco`."""
        found = read_annotations(root, split)
        classes = class_names(
            root, lambda: found if split == "train" else read_annotations(root, "train")
        )
        if not classes:
            raise DataError(f"The training images of {root} have no box of any class. {LAYOUT}")
        super().__init__(root, tuple(found.boxes), classes, found.ignored)
        self._boxes = [labelled(boxes, classes) for boxes in found.boxes.values()]

    def boxes(self, number: int) -> LabelledBoxes:
        """Those of image `number`, in pixels of its file."""
        return self._boxes[number]


def read_annotations(root: Path, split: Split) -> Annotations:
    """The boxes of a split, in the format that the folder has."""
    return read_coco(root, split) if (root / ANNOTATIONS).is_dir() else read_kitti(root, split)


class WholeDecoder(Decoder):
    """Decodes whole images, mirrored half of the time in training."""

    def crop(
        self, number: int, width: int, height: int, draw: Augmentation | None
    ) -> tuple[Box, bool]:
        """See `Decoder.crop`."""
        mirrored = draw is not None and draw.box(number, width, height)[1]
        return (0, 0, width, height), mirrored


@dataclass(frozen=True)
class Boxed:
    """An image of the network's size, and its labels."""

    pixels: Pixels
    labels: Labels


class BoxedImages(ImageSource):
    """A `Source` of images with boxes; `HasEpochs`: in training each epoch mirrors them anew."""

    def __init__(
        self, folder: BoxFolder, shape: Shape, split: Split, grid: Grid, max_pixels: int
    ) -> None:
        super().__init__(folder, shape, split, max_pixels)
        self.name = NAME
        self.decoder = WholeDecoder(*shape, max_pixels)
        self._folder = folder
        self._grid = grid
        self._image = load_decoder()

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`: labels of cells and boxes."""
        images = np.empty((samples, *self.shape), np.float32)
        labels = np.empty((samples, *self._grid.label_shape), np.int64)
        return Batch(images=images, labels=labels)

    def drawn(self, indices: Indices, into: Batch | None, draw: Augmentation | None) -> Batch:
        """See `ImageSource.drawn`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for row, number in enumerate(indices.tolist()):
            _, found = self.usable(number, lambda n: self.boxed(n, draw))
            self.put(None if found is None else found.pixels, into, row)
            into.labels[row] = no_labels(self._grid) if found is None else found.labels
        return into

    def boxed(self, number: int, draw: Augmentation | None) -> Boxed | None:
        """Image `number` with its labels; None if it is skipped."""
        return self.made_from(
            number, draw, lambda data, pixels: Boxed(pixels, self._labels(data, number, draw))
        )

    def _labels(self, data: bytes, number: int, draw: Augmentation | None) -> Labels:
        """Those of image `number`, whose file is `data`, stretched and mirrored as it is."""
        with reasons(), self._image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
        found = self._folder.boxes(number)
        size = self._grid.size
        boxes = found.boxes * np.tile([size / width, size / height], 2)
        if self.decoder.crop(number, width, height, draw)[1]:
            boxes[:, [0, 2]] = size - boxes[:, [2, 0]]
        return encode(self._grid, LabelledBoxes(boxes, found.classes, found.ignored))


def open_boxes(
    path: Path, split: Split, shape: Shape, grid: Grid, options: ImageOptions
) -> BoxedImages:
    """The images and boxes of `split` below `path`. UsageError for an option that they do not have,
    or a network of fewer classes."""
    check_options(NAME, options)
    folder = BoxFolder(path, split)
    check_classes(f"data={NAME}", len(folder.classes), grid.classes)
    return BoxedImages(folder, shape, split, grid, options.max_pixels)


def check_files(path: Path) -> None:
    """DataError if there are no folders of images and labels; opens no image."""
    if (path / ANNOTATIONS).is_dir():
        find_file(path, "train")
        find_file(path, "validation")
    else:
        check_folders(path, LABELS, LAYOUT)


def names_of(path: Path) -> tuple[str, ...]:
    """The names of the classes below `path`, in the order of their numbers."""
    return class_names(path, lambda: read_annotations(path, "train"))
