"""Images with boxes in files, in KITTI's format, as DIGITS reads it, or COCO's.

The whole image is resized to the network's square, so boxes are stretched as it is; in training it
is mirrored half of the time. Boxes are cut at the edges of the image.

As of photographs in folders of classes, an image that cannot be used is replaced by the next one,
and left out of an evaluation.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch, Box, Pixels
from cubemesh.data.boxes.annotations import Annotations, class_names, labelled
from cubemesh.data.boxes.coco import ANNOTATIONS, find_file, read_coco
from cubemesh.data.boxes.kitti import IMAGES, LABELS, read_kitti
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.images.decode import FORMATS, Augmentation, Decoder, load_decoder, reasons
from cubemesh.data.images.files import identity_of, read_whole, readable
from cubemesh.data.images.image_folder import split_folder
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.data.page_cache import Extent
from cubemesh.data.source import Indices, Shape, Split, check_classes
from cubemesh.detection.labels import Grid, LabelledBoxes, Labels, encode, no_labels
from cubemesh.errors import DataError, UsageError

NAME = "boxes"
LAYOUT = (
    "The layout is images/NAME.png and labels/NAME.txt, below train and val or alone, or COCO's "
    "annotations/instances_train2017.json and train2017 (docs/data.md)."
)


class BoxFolder:
    """The image files of one split, which have boxes; see `EncodedImages`."""

    def __init__(self, root: Path, split: Split) -> None:
        """DataError as in `read_kitti` and `read_coco`."""
        found = read_annotations(root, split)
        train = found if split == "train" else read_annotations(root, "train")
        self.classes = class_names(root, train)
        if not self.classes:
            raise DataError(f"The training images of {root} have no box of any class. {LAYOUT}")
        self.ignored: Counter[str] = Counter()
        self._root = root
        self._paths = list(found.boxes)
        self._boxes = [labelled(boxes, self.classes) for boxes in found.boxes.values()]
        self.labels: NDArray[np.int64] = np.zeros(len(self._paths), np.int64)

    def boxes(self, number: int) -> LabelledBoxes:
        """Those of image `number`, in pixels of its file."""
        return self._boxes[number]

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        return read_whole(self._paths[number])

    def name(self, number: int) -> str:
        """The file."""
        return readable(str(self._paths[number].relative_to(self._root)))

    def order(self, generator: np.random.Generator) -> Iterable[int]:
        """A random order."""
        return generator.permutation(len(self._paths))

    def extent(self, number: int) -> Extent:
        """The whole image file; empty if it is missing."""
        path = self._paths[number]
        try:
            return Extent(path, 0, path.stat().st_size)
        except OSError:
            return Extent(path, 0, 0)

    def identity(self) -> str:
        """By the names, and by when the folders of the images changed."""
        names = (str(path) for path in self._paths)
        return identity_of(names, sorted({path.parent for path in self._paths}))


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
    refused = {
        "cache_decoded": options.cache_decoded,
        "drop_page_cache": options.drop_page_cache,
        "stage_folder": options.stage_folder is not None,
        "decode_location=device": options.stays_encoded,
    }
    for name, given in refused.items():
        if given:
            raise UsageError(f"data={NAME} does not support {name}. Leave it out.")
    folder = BoxFolder(path, split)
    check_classes(f"data={NAME}", len(folder.classes), grid.classes)
    return BoxedImages(folder, shape, split, grid, options.max_pixels)


def check_files(path: Path) -> None:
    """DataError if there are no folders of images and labels; opens no image."""
    if (path / ANNOTATIONS).is_dir():
        find_file(path, "train")
        find_file(path, "validation")
        return
    train = split_folder(path, "train")
    root = train or path
    for name in (IMAGES, LABELS):
        if not (root / name).is_dir():
            raise DataError(f"{root} has no folder {name}. {LAYOUT}")
    if train is not None and split_folder(path, "validation") is None:
        raise DataError(
            f"{path} has train and neither val nor validation. Name the folder above both, or one "
            "that holds images and labels themselves."
        )


def names_of(path: Path) -> tuple[str, ...]:
    """The names of the classes below `path`, in the order of their numbers."""
    return class_names(path, read_annotations(path, "train"))
