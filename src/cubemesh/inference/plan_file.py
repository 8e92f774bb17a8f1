"""Plan file: models, choices and their evidence, as one safetensors file without code.

The arrays are serialized ONNX models: that in fp32, and those in 8 bits that the accuracy test
accepted. The JSON in the metadata says what was measured on which device. A model is the same on
every device; which is the fastest, in which engine, is not: `cubemesh build --from FILE` measures
that again, and needs no data.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from cubemesh.durable_files import replace_file
from cubemesh.errors import DataError, UsageError
from cubemesh.onnx.graph import Value
from cubemesh.onnx.structure import ModelStructure, check_models, with_weights_in
from cubemesh.schema.serialization import canonical_json, from_plain
from cubemesh.untrusted import clean, parse_json, shown_path

FORMAT = 1
"""Version of the file."""
_DOCUMENT, CHECKSUM = "cubemesh.plan", "sha256"
_MODEL = "model."
MOST_BATCH = 4096
MOST_ELEMENTS = 1 << 31
"""Most numbers of an input at the largest batch size."""
MOST_DOCUMENT = 16 << 20
"""Most bytes of the JSON."""
WEIGHTS_SUFFIX = ".weights"
"""Of the files of an unpacked plan that have the whole content of its models."""
PART_BYTES = 1 << 20
"""What is read at a time for the checksum."""


@dataclass(frozen=True, kw_only=True)
class PlanDevice:
    """What a measurement of latencies depends on."""

    cpu: str
    instruction_sets: tuple[str, ...]
    threads: int
    gpu: str = ""
    """Its name, where the plan runs on one."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One model in one engine at one batch size, interleaved with the others of this batch size.
    Seconds are the median over windows, with its 95 % interval; the ratio is to the fastest."""

    batch: int
    model: str
    """Name of one of the plan's models."""
    precision: str
    engine: str
    version: str
    """Of the engine."""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    error: str = ""
    """Why it was not measured."""


@dataclass(frozen=True, kw_only=True)
class PassNote:
    """What a pass of the optimizer did: operators before and after."""

    name: str
    before: int
    after: int


@dataclass(frozen=True, kw_only=True)
class ModelNote:
    """A model of a plan."""

    name: str
    quantized: int = 0
    """Operators in 8-bit integers."""
    method: str = ""
    """How the ranges of 8-bit integers were chosen."""
    full_precision: tuple[str, ...] = ()
    """Operators that went back to fp32, since in 8 bits they cost too much accuracy."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A model in one engine, compared with fp32 on the same held-out samples."""

    model: str
    precision: str
    engine: str
    accepted: bool
    verdict: str
    """`keeps`, `loses` or `cannot tell`; without labels `agrees` or `differs`."""
    samples: int
    bound: float
    reference_right: int = 0
    """Samples that fp32 answers correctly, and below those that the model does."""
    right: int = 0
    lost: int = 0
    gained: int = 0
    low: float | None = None
    high: float | None = None
    """95 % interval of the ratio of right answers."""
    samples_needed: int | None = None
    """About how many samples could tell."""
    changed: int = 0
    """Decisions that differ from those of fp32."""
    divergence: float | None = None
    """Mean Kullback-Leibler divergence, in nats."""

    @property
    def ratio(self) -> float | None:
        """Right answers over those of fp32."""
        return self.right / self.reference_right if self.reference_right else None


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """A candidate's time and accuracy at a batch size."""

    batch: int
    model: str
    precision: str
    engine: str
    seconds: float
    accuracy: float
    """Right answers over those of fp32; without labels the share of equal decisions."""
    accepted: bool
    dominated: bool
    """Whether another candidate is as fast and as accurate, and better in one of the two."""


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """Everything of a plan but its models."""

    format: int
    network: str
    source: str
    """What was built, in words."""
    source_digest: str
    inputs: tuple[Value, ...]
    """The first axis of each is the batch."""
    outputs: tuple[str, ...]
    device: PlanDevice
    steps: int
    """Fused operators."""
    passes: tuple[PassNote, ...]
    models: tuple[ModelNote, ...]
    proofs: tuple[Proof, ...]
    trials: tuple[Trial, ...]
    chosen: tuple[int, ...]
    """Index into `trials`, for each batch size in ascending order."""
    calibration_samples: int = 0
    samples: str = ""
    """Where samples are from, in words."""
    front: tuple[FrontPoint, ...] = ()
    """Time and accuracy of every candidate that was measured in both, the fastest first."""
    kernels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of own kernels: description of a convolution → the numbers of its tiling."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the scores; none where they are not known."""

    @property
    def choices(self) -> tuple[Trial, ...]:
        """The chosen trial of each batch size, in ascending order."""
        return tuple(self.trials[index] for index in self.chosen)


def write_plan(path: Path, document: PlanDocument, models: Mapping[str, bytes]) -> int:
    """Write a plan, whole or not at all; its size in bytes. `models` by name. UsageError where it
    cannot be written."""
    from cubemesh.training.checkpoint import write_arrays  # imports more than a runtime needs

    arrays = {_MODEL + name: np.frombuffer(content, np.uint8) for name, content in models.items()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "plan")
            write_arrays(file, arrays, {_DOCUMENT: canonical_json(document)})
            content = _with_sorted_metadata(file.read_bytes())
        replace_file(path, content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return len(content)


def read_plan(path: Path) -> tuple[PlanDocument, dict[str, bytes]]:
    """The document and the models of a plan; UsageError where there is no file, DataError where it
    is damaged, no plan, or of another version."""
    with _opened(path) as plan:
        models = {name: plan.model(name) for name in plan.models}
        plan.check(models[name] for name in plan.models)
        _check_models(models, plan)
        return plan.document, models


def describe_plan(path: Path) -> tuple[PlanDocument, str]:
    """The document of a plan, and the checksum that it states of its content, which is not read.
    Errors as of `read_plan`."""
    with _opened(path) as plan:
        return plan.document, plan.checksum


@contextmanager
def unpacked_plan(
    path: Path, meanwhile: Callable[[PlanDocument], object] = lambda document: None
) -> Iterator[tuple[PlanDocument, dict[str, Path]]]:
    """The document of a plan, and its models as files of a folder that lasts as long as the
    context. Their weights are in another file of it, which engines map into memory: they are then
    in memory once, and only as long as an engine needs them. `meanwhile` is called while another
    thread computes the checksum. Errors as of `read_plan`; UsageError where the folder for
    temporary files has no space."""
    with _opened(path) as plan, ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cubemesh-")))
            files = {name: plan.unpack(name, folder) for name in plan.models}
        except OSError as error:
            raise UsageError(
                f"The models of {plan.shown} need {plan.size_bytes:,} bytes in "
                f"{tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to a folder with space."
            ) from error
        with ThreadPoolExecutor(1) as threads:
            checked = threads.submit(
                plan.check, (part for name in plan.models for part in _parts(files[name]))
            )
            meanwhile(plan.document)
            checked.result()
        contents = {name: _mapped(file) for name, file in files.items()}
        structures = _check_models(contents, plan)
        found = {name: file.with_suffix(".onnx") for name, file in files.items()}
        for name, file in found.items():
            file.write_bytes(with_weights_in(files[name].name, contents[name], structures[name]))
        del contents  # no longer mapped here
        yield plan.document, found


class _PlanFile:
    """An open plan: its header is read, its models are not."""

    def __init__(self, file: FileIO, shown: str) -> None:
        self._file = file
        self.shown = shown
        self.size_bytes = os.fstat(file.fileno()).st_size
        begin = 8 + int.from_bytes(file.read(8), "little")
        if not 8 < begin <= min(self.size_bytes, 2 * MOST_DOCUMENT):
            raise ValueError("its header is longer than the file, or than any plan's")
        header = parse_json(file.read(begin - 8))
        if not isinstance(header, dict):
            raise ValueError("its header is no table")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or _DOCUMENT not in metadata:
            raise DataError(f"{shown} is a safetensors file and not a plan of cubemesh.")
        self.checksum = str(metadata.pop(CHECKSUM, ""))
        self._metadata = metadata
        self.models: dict[str, tuple[int, int]] = {}
        """Name → place and size in bytes, in the order of the checksum."""
        end = begin
        for name, place in sorted(header.items(), key=lambda item: _begin(item[1])):
            first, last = place["data_offsets"]
            if (
                not type(first) is type(last) is int
                or not name.startswith(_MODEL)
                or place["dtype"] != "U8"
                or place["shape"] != [last - first]
                or begin + first != end
                or not last >= first
            ):
                raise ValueError("it has other arrays than models")
            end = begin + last
            self.models[name.removeprefix(_MODEL)] = (begin + first, last - first)
        if end != self.size_bytes:
            raise ValueError("it is truncated, or longer than its header says")
        self.models = dict(sorted(self.models.items()))
        self.document = _document(metadata[_DOCUMENT], shown)

    def model(self, name: str) -> bytes:
        """The content of a model."""
        place, size = self.models[name]
        self._file.seek(place)
        content = self._file.read(size)
        while 0 < len(content) < size:  # a system reads at most 2 GiB at a time
            more = self._file.read(size - len(content))
            content = content + more if more else b""
        return content

    def unpack(self, name: str, folder: Path) -> Path:
        """A model as a file, copied by the system."""
        place, size = self.models[name]
        file = folder / f"{list(self.models).index(name)}{WEIGHTS_SUFFIX}"
        with file.open("wb") as target:
            while size:
                copied = os.sendfile(target.fileno(), self._file.fileno(), place, size)
                if not copied:
                    break
                place, size = place + copied, size - copied
        return file

    def check(self, parts: Iterable[bytes | memoryview]) -> None:
        """DataError unless the models, here in parts, have the checksum of the file."""
        index = [[_MODEL + name, "|u1", [size]] for name, (_, size) in self.models.items()]
        digest = hashlib.sha256(json.dumps([self._metadata, index], sort_keys=True).encode())
        for part in parts:
            digest.update(part)
        if digest.hexdigest() != self.checksum:
            raise DataError(f"{self.shown} is damaged: its content does not match its checksum.")


def _begin(place: Any) -> int:
    """Where an array begins, to sort by."""
    first: int = place["data_offsets"][0]
    return first


@contextmanager
def _opened(path: Path) -> Iterator[_PlanFile]:
    shown = shown_path(path)
    if not path.is_file():
        raise UsageError(f"{shown} is not a file. `cubemesh build NETWORK` makes a plan.")
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}.") from error
    with file:
        try:
            plan = _PlanFile(file, shown)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{shown} is not a valid plan: {clean(str(error), 300)}.") from error
        yield plan


def _document(text: Any, shown: str) -> PlanDocument:
    if not isinstance(text, str) or len(text) > MOST_DOCUMENT:
        raise ValueError("its description is longer than any plan's")
    plain = parse_json(text)
    version = plain.get("format") if isinstance(plain, dict) else None
    if version != FORMAT:
        raise DataError(
            f"{shown} is a plan of format {clean(str(version), 20)}, and this cubemesh reads "
            f"format {FORMAT}. Build it again: cubemesh build."
        )
    document = from_plain(PlanDocument, plain)
    _check(document)
    return document


def _check_models(models: Mapping[str, bytes | mmap], plan: _PlanFile) -> dict[str, ModelStructure]:
    """The structure of each model; DataError where one is missing or has another form."""
    document = plan.document
    missing = {choice.model for choice in document.choices} - models.keys()
    if missing:
        raise DataError(
            f"{plan.shown} is not a valid plan: it lacks the model {', '.join(sorted(missing))}."
        )
    try:
        return check_models(models, document.inputs, document.outputs)
    except ValueError as error:
        raise DataError(f"{plan.shown} is not a valid plan: {clean(str(error), 300)}.") from error


def _parts(file: Path) -> Iterator[memoryview]:
    """The content of a file, a part at a time."""
    buffer = memoryview(bytearray(PART_BYTES))
    with file.open("rb", buffering=0) as opened:
        while count := opened.readinto(buffer):
            yield buffer[:count]


def _mapped(file: Path) -> bytes | mmap:
    """The content of a file of this process, of which only what is looked at is in memory."""
    with file.open("rb") as opened:
        return mmap(opened.fileno(), 0, access=ACCESS_READ) if file.stat().st_size else b""


def mapped_model(path: Path) -> bytes | mmap:
    """The whole content of a model, given its file or the one that `unpacked_plan` made."""
    weights = path.with_suffix(WEIGHTS_SUFFIX)
    return _mapped(weights if weights.is_file() else path)


def _with_sorted_metadata(content: bytes) -> bytes:
    """A safetensors file with its metadata in alphabetical order: the library's is random."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the arrays
    return b"".join((len(text).to_bytes(8, "little"), text, content[end:]))


def _check(document: PlanDocument) -> None:
    """ValueError for what no builder writes."""
    if not document.chosen or not document.inputs:
        raise ValueError("it has no choice or no input")
    if not all(0 <= index < len(document.trials) for index in document.chosen):
        raise ValueError("a choice refers to no trial")
    batches = [choice.batch for choice in document.choices]
    if batches != sorted(set(batches)) or not 1 <= batches[0] <= batches[-1] <= MOST_BATCH:
        raise ValueError(f"its batch sizes are not in ascending order from 1 to {MOST_BATCH:,}")
    if any(choice.seconds is None for choice in document.choices):
        raise ValueError("a choice was not measured")
    if any(not value.shape for value in document.inputs):
        raise ValueError("an input has no batch axis")
    for value in document.inputs:
        lengths = [length for length in value.shape[1:] if isinstance(length, int)]
        if len(lengths) < len(value.shape) - 1 or min(lengths, default=1) < 1:
            raise ValueError("an input has a length that is not positive")
        if batches[-1] * math.prod(lengths) > MOST_ELEMENTS:
            raise ValueError(f"an input has more than {MOST_ELEMENTS:,} numbers")
