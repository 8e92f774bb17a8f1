"""Data sets: the table of sources, validation of a choice, and opening.

`SOURCES` lists all of them; `check` and `check_feeds` find errors before anything runs, `open_for`
opens one for a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cubemesh.data import generated_images, hdf5, own, synthetic
from cubemesh.data.boxes import generated_boxes
from cubemesh.data.boxes import source as boxes
from cubemesh.data.images import cifar10, cifar10_python, digits, generated_jpegs, open_images
from cubemesh.data.images.image_source import NAME as IMAGES
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.data.masks import generated_shapes, takes_masks
from cubemesh.data.masks import source as masks
from cubemesh.data.own.source import open_own
from cubemesh.data.records import generated_clicks, takes_records
from cubemesh.data.remote.folder import check_url, is_url
from cubemesh.data.source import Shape, Source, Split
from cubemesh.data.text import documents, generated_sentences, parallel_text, sequences
from cubemesh.data.text.sequences import takes_sequences, takes_tokens
from cubemesh.detection import detects
from cubemesh.detection.labels import grid_of
from cubemesh.errors import UsageError, unknown_name
from cubemesh.networks.assembly import takes_documents
from cubemesh.networks.graph import Network
from cubemesh.schema.own_network import OwnData
from cubemesh.schema.spec import DataLocation
from cubemesh.schema.work import Tokenizer
from cubemesh.units import format_count

__all__ = [
    "SOURCES",
    "ImageOptions",
    "Source",
    "SourceEntry",
    "check",
    "check_feeds",
    "entry",
    "input_threads",
    "open_for",
]


READERS = 2
"""Threads where a device decodes and they mostly read: more contend for the GIL
(benchmarks/LOG.md)."""


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """Arguments for opening a source."""

    path: Path | str | None
    """A folder or file; a URL as text."""
    split: Split
    network: Network
    seed: int
    samples_needed: int
    options: ImageOptions
    """Of images that are decoded."""
    generated_bytes: int = 0
    """Most memory for generated images; at least `CACHE_BYTES` in any case."""
    tokenizer: Tokenizer = "words"
    """Of sentence pairs."""
    own: OwnData | None = None
    """Code of data of the user's own."""

    @property
    def given_path(self) -> Path:
        """The path of a source that needs one; `check` has made sure of it."""
        assert isinstance(self.path, Path)
        return self.path

    @property
    def given_place(self) -> Path | str:
        """The path or URL of a source that takes both."""
        assert self.path is not None
        return self.path

    @property
    def shape(self) -> Shape:
        """Channels, height and width of the network's images."""
        channels, height, width = self.network.inputs[0].shape
        return channels, height, width

    @property
    def classes(self) -> int:
        """Classes of the network."""
        return self.network.targets[0].classes or 1


@dataclass(frozen=True, kw_only=True)
class SourceEntry:
    """A line of `SOURCES`."""

    about: str
    open: Callable[[OpenRequest], Source] | None = None
    """Opens it as images; None: it has none."""
    classes: int | None = None
    """Its classes; None: as many as the network's."""
    train_samples: int | None = None
    """Number of training samples; None: as many as requested."""
    check_path: Callable[[Path], object] | None = None
    """Raises DataError if the data at a path are incomplete; None: takes no path."""
    takes_urls: bool = False
    """Whether its path may be a URL."""
    open_sequences: Callable[[OpenRequest], Source] | None = None
    """Opens it as token sequences; None: images only."""
    open_masks: Callable[[OpenRequest], Source] | None = None
    """Opens it as images with a class for each pixel; None: it has none."""
    open_records: Callable[[OpenRequest], Source] | None = None
    """Opens it as records of numbers and categories; None: it has none."""
    open_boxes: Callable[[OpenRequest], Source] | None = None
    """Opens it as images with boxes of objects; None: it has none."""
    is_slow: bool = False
    """Whether samples are read and decoded on access, so that threads prefetch them by default."""
    is_parallel: bool = False
    """Whether it has pairs of source and target sequences, for translators only."""
    has_documents: bool = False
    """Whether it has documents, which can be packed."""


SOURCES: dict[str, SourceEntry] = {
    "synthetic": SourceEntry(
        about="1,024 random images (DGX-1 best practices [001]) or sequences, 65,536 records; for "
        "speed only",
        open=lambda r: synthetic.open_synthetic(
            r.split, r.shape, r.classes, r.seed, r.samples_needed, r.generated_bytes
        ),
        open_sequences=lambda r: sequences.open_synthetic(
            r.split, r.network, r.seed, r.samples_needed
        ),
        open_masks=lambda r: sequences.open_synthetic(r.split, r.network, r.seed, r.samples_needed),
        open_records=lambda r: generated_clicks.open_synthetic(
            r.split, r.network, r.seed, r.samples_needed
        ),
        open_boxes=lambda r: generated_boxes.open_synthetic(
            r.split, r.shape, grid_of(r.network), r.seed, r.samples_needed
        ),
    ),
    "digits": SourceEntry(
        about="1,797 real handwritten digits, 8×8, part of cubemesh (UCI, 1998)",
        open=lambda r: digits.open_digits(r.split, r.shape, r.classes),
        classes=digits.CLASSES,
        train_samples=digits.TRAIN_SAMPLES,
    ),
    "cifar-10": SourceEntry(
        about="60,000 colour images, 32×32, from the folder data_path names (Krizhevsky, 2009)",
        open=lambda r: cifar10.open_cifar10(r.given_path, r.split, r.shape, r.classes),
        classes=cifar10_python.CLASSES,
        train_samples=cifar10.TRAIN_SAMPLES,
        check_path=cifar10.check_files,
    ),
    IMAGES: SourceEntry(
        about="photographs, from the folders of classes or the tar shards that data_path names",
        open=lambda r: open_images.open_images(
            r.given_place, r.split, r.shape, r.classes, r.options
        ),
        check_path=open_images.check_files,
        takes_urls=True,
        is_slow=True,
    ),
    hdf5.NAME: SourceEntry(
        about="images and labels from the HDF5 or NetCDF-4 file that data_path names",
        open=lambda r: hdf5.open_hdf5(r.given_path, r.split, r.shape, r.classes),
        check_path=hdf5.check_file,
        is_slow=True,
    ),
    generated_jpegs.NAME: SourceEntry(
        about="1,024 generated JPEG photographs in the cache folder; for speed only",
        open=lambda r: generated_jpegs.open_generated(r.split, r.shape, r.classes, r.options),
        classes=generated_jpegs.CLASSES,
        is_slow=True,
    ),
    masks.NAME: SourceEntry(
        about="photographs and the class of each pixel, from data_path's folders images and masks",
        open_masks=lambda r: masks.open_masks(r.given_path, r.split, r.shape, r.classes, r.options),
        check_path=masks.check_files,
        is_slow=True,
    ),
    generated_shapes.NAME: SourceEntry(
        about="576 generated images of shapes, with the class of each pixel",
        open_masks=lambda r: generated_shapes.GeneratedShapes(r.split, r.shape, r.classes, r.seed),
        train_samples=generated_images.SAMPLES["train"],
    ),
    boxes.NAME: SourceEntry(
        about="photographs with boxes of objects, in KITTI's or COCO's format, from data_path",
        open_boxes=lambda r: boxes.open_boxes(
            r.given_path, r.split, r.shape, grid_of(r.network), r.options
        ),
        check_path=boxes.check_files,
        is_slow=True,
    ),
    generated_boxes.NAME: SourceEntry(
        about="576 generated images of shapes, with their boxes",
        open_boxes=lambda r: generated_boxes.GeneratedBoxes(
            r.split, r.shape, grid_of(r.network), r.seed
        ),
        train_samples=generated_images.SAMPLES["train"],
    ),
    parallel_text.NAME: SourceEntry(
        about="sentences and their translations, from the folder or file data_path names",
        open_sequences=lambda r: parallel_text.open_parallel_text(
            r.given_path, r.split, r.network, r.tokenizer
        ),
        is_parallel=True,
        check_path=parallel_text.check_files,
    ),
    generated_sentences.NAME: SourceEntry(
        about="6,000 generated German–English sentence pairs, for the translators",
        open_sequences=lambda r: parallel_text.open_generated(r.split, r.network, r.tokenizer),
        is_parallel=True,
    ),
    documents.NAME: SourceEntry(
        about="documents of tokens, from the file data_path names, for language models",
        open_sequences=lambda r: documents.open_documents(r.given_path, r.split, r.network),
        check_path=documents.check_file,
        has_documents=True,
    ),
    documents.GENERATED: SourceEntry(
        about="4,096 generated documents of different lengths, for speed only",
        open_sequences=lambda r: documents.open_generated(
            r.split, r.network, r.seed, r.samples_needed
        ),
        has_documents=True,
    ),
    generated_clicks.NAME: SourceEntry(
        about="65,536 generated click records with a rule that can be learned, for DLRM",
        open_records=lambda r: generated_clicks.open_generated(
            r.split, r.network, r.seed, r.samples_needed
        ),
    ),
}


def _open_own(request: OpenRequest) -> Source:
    return open_own(request.own, request.path, request.split, request.network)


OWN = SourceEntry(
    about="data of the user's own, which a command named",
    open=_open_own,
    open_sequences=_open_own,
    open_masks=_open_own,
    open_records=_open_own,
    is_slow=True,
)
"""The entry of every data set of the user's own."""


@dataclass(frozen=True, kw_only=True)
class SampleForm:
    """A form of samples other than images with one class each, and sequences."""

    name: str
    taken_by: Callable[[Network], bool]
    opener: Callable[[SourceEntry], Callable[[OpenRequest], Source] | None]
    """What opens a source in this form; None: it does not have it."""
    description: str
    networks: str
    """Networks to suggest."""


FORMS = (
    SampleForm(
        name="records",
        taken_by=takes_records,
        opener=lambda line: line.open_records,
        description="numbers and categories",
        networks="a recommendation model, such as network=dlrm-small",
    ),
    SampleForm(
        name="boxes",
        taken_by=detects,
        opener=lambda line: line.open_boxes,
        description="images with boxes of objects",
        networks="a network of detection, such as network=detectnet",
    ),
    SampleForm(
        name="masks",
        taken_by=takes_masks,
        opener=lambda line: line.open_masks,
        description="images with a class for each pixel",
        networks="a network of segmentation, such as network=unet",
    ),
)
"""The order in which a choice is checked."""


def entry(name: str) -> SourceEntry:
    """The entry of `name`; UsageError with the nearest name if there is none."""
    if own.is_own(name):
        return OWN
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    return SOURCES[name]


def input_threads(
    name: str, threads: int | None, usable_cores: float, decode_location: DataLocation = "host"
) -> int:
    """Threads that prefetch batches of `name`: `threads`, or by default one per core for slow
    sources, and a few if a device decodes."""
    if threads is not None:
        return threads
    cores = max(1, int(usable_cores))
    if decode_location == "device":
        cores = min(cores, READERS)
    return cores if entry(name).is_slow else 0


def check(name: str, path: str | None = None, batch_per_device: int | None = None) -> None:
    """Check what can be checked before anything runs.

    UsageError for an unknown data set, a path that is missing or not used, and a batch larger than
    the data; DataError for files that are missing or not of their published size.
    """
    line = entry(name)
    if line is OWN:  # whether its function takes a path is known when it is imported
        return
    if line.check_path is None and path is not None:
        from_files = ", ".join(n for n, e in SOURCES.items() if e.check_path is not None)
        raise UsageError(
            f"data_path={path} was given, and data={name} has no path. Leave data_path out, or "
            f"choose data that is read from files: {from_files}."
        )
    samples = line.train_samples
    if batch_per_device is not None and samples is not None and batch_per_device > samples:
        raise UsageError(
            f"batch_per_device={batch_per_device} is more than the {format_count(samples)} "
            f"training samples of {name}. Set it to {samples} or less, or use data=synthetic."
        )
    if line.check_path is not None:
        if path is None:
            raise UsageError(
                f"data={name} is read from files, and data_path is not set. Set it to their "
                "folder; docs/data.md lists the files."
            )
        if not is_url(path):
            try:
                place = Path(path).expanduser()
            except RuntimeError:
                raise UsageError(
                    f"data_path={path} begins with the home folder of a user who is not known "
                    "here. Write the path out."
                ) from None
            line.check_path(place)
        elif line.takes_urls:
            check_url(path)
        else:
            able = ", ".join(n for n, e in SOURCES.items() if e.takes_urls)
            raise UsageError(
                f"data={name} is read from files of this machine, and data_path={path} is a URL. "
                f"Name a folder or file; data={able} reads from URLs."
            )


def check_feeds(name: str, network: Network) -> None:
    """UsageError if the data set `name` does not have what `network` takes: images, masks or boxes
    of them, records, token sequences, or pairs of them."""
    line = entry(name)
    if line is not OWN:
        _check_documents(name, line, network)
    for form in FORMS:
        if form.taken_by(network):
            if form.opener(line) is None:
                able = ", ".join(n for n, e in SOURCES.items() if form.opener(e) is not None)
                raise UsageError(
                    f"data={name} has no {form.name} ({form.description}), and {network.name} "
                    f"needs them. Choose data that has them: {able}."
                )
            return
        if form.opener(line) is not None and line.open is None:
            raise UsageError(
                f"data={name} has {form.name} ({form.description}), and {network.name} does not "
                f"take them. Use {form.networks}."
            )
    if line is OWN:  # its samples are checked one by one
        return
    if not takes_sequences(network):
        if line.open is None:
            able = ", ".join(n for n, e in SOURCES.items() if e.open is not None)
            raise UsageError(
                f"data={name} has sentences, and {network.name} takes images. Choose data that "
                f"has them: {able}."
            )
    elif line.open_sequences is None:
        able = ", ".join(n for n, e in SOURCES.items() if e.open_sequences is not None)
        needed = "needs labels of positions"
        if any(i.dtype == "integer" for i in network.inputs):
            needed = "takes token sequences"
        raise UsageError(
            f"data={name} has images, and {network.name} {needed}. Choose data that has them: "
            f"{able}."
        )
    elif line.open is None and not takes_tokens(network):
        (given, *_) = (i.name for i in network.inputs if i.dtype == "float")
        raise UsageError(
            f"data={name} has sentences, and {network.name} takes the input '{given}', which is no "
            "sentence. Use data=synthetic."
        )
    elif line.is_parallel and len(network.inputs) != 2:
        raise UsageError(
            f"data={name} has sentences and their translations, and {network.name} takes one "
            "sequence. Use network=translator, translator-plain, translator-2x, or data=synthetic."
        )


def _check_documents(name: str, line: SourceEntry, network: Network) -> None:
    packed = takes_documents(network)
    if packed and not line.has_documents:
        able = ", ".join(n for n, e in SOURCES.items() if e.has_documents)
        raise UsageError(
            f"packing=documents needs data with documents, and data={name} has no documents. Leave "
            f"packing out, or choose data that has them: {able}."
        )
    predicts = len(network.inputs) == 1 and takes_sequences(network) and takes_tokens(network)
    if line.has_documents and not (packed or predicts):
        raise UsageError(
            f"data={name} has documents of tokens, and {network.name} does not predict a token at "
            "each position of one sequence. Choose a network such as gpt2, or data=synthetic."
        )


def open_for(
    network: Network,
    name: str,
    path: str | None,
    split: Split,
    *,
    seed: int,
    samples_needed: int = 1,
    options: ImageOptions | None = None,
    generated_bytes: int = 0,
    tokenizer: Tokenizer = "words",
    own_data: OwnData | None = None,
) -> Source:
    """The data set `name`, split `train` or `validation`, in the form that `network` takes.

    `seed` is that of generated data, `samples_needed` (a global batch) the minimum number of
    generated samples, `generated_bytes` the most memory for generated images where they need more
    than `CACHE_BYTES`, `options` how images are decoded, `tokenizer` how sentence pairs are divided
    into tokens, and `own_data` the code of data of the user's own. UsageError and DataError as in
    `check` and `check_feeds`, and if the network has fewer classes than the data.
    """
    check_feeds(name, network)
    check(name, path)
    line = entry(name)
    if line is OWN and own_data is None:
        own_data = own.get(name)
    opens = line.open_sequences if takes_sequences(network) else line.open
    for form in FORMS:
        if form.taken_by(network):
            opens = form.opener(line)
    assert opens is not None, "`check_feeds` has made sure of it"
    return opens(
        OpenRequest(
            path=path if path is None or is_url(path) else Path(path).expanduser(),
            split=split,
            network=network,
            seed=seed,
            samples_needed=samples_needed,
            options=options or ImageOptions(),
            generated_bytes=generated_bytes,
            tokenizer=tokenizer,
            own=own_data,
        )
    )
