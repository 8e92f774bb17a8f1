"""Plan file: models, choices and their evidence, as one safetensors file without code.

The arrays are serialized ONNX models: that in fp32, and those in 8 bits that the accuracy test
accepted. The JSON in the metadata says what was measured on which device. A model is the same on
every device; which is the fastest, in which engine, is not: `cubemesh build --from FILE` measures
that again, and needs no data.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cubemesh.durable_files import replace_file
from cubemesh.errors import DataError, UsageError
from cubemesh.onnx.graph import Value
from cubemesh.onnx.structure import check_models
from cubemesh.schema.serialization import canonical_json, from_plain
from cubemesh.training.checkpoint import read_arrays, write_arrays
from cubemesh.untrusted import clean, parse_json, shown_path

FORMAT = 1
"""Version of the file."""
_DOCUMENT = "cubemesh.plan"
_MODEL = "model."
MOST_BATCH = 4096
MOST_ELEMENTS = 1 << 31
"""Most numbers of an input at the largest batch size."""
MOST_DOCUMENT = 16 << 20
"""Most bytes of the JSON."""


@dataclass(frozen=True, kw_only=True)
class PlanDevice:
    """What a measurement of latencies depends on."""

    cpu: str
    instruction_sets: tuple[str, ...]
    threads: int


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

    @property
    def choices(self) -> tuple[Trial, ...]:
        """The chosen trial of each batch size, in ascending order."""
        return tuple(self.trials[index] for index in self.chosen)


def write_plan(path: Path, document: PlanDocument, models: Mapping[str, bytes]) -> int:
    """Write a plan, whole or not at all; its size in bytes. `models` by name. UsageError where it
    cannot be written."""
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
    shown = shown_path(path)
    if not path.is_file():
        raise UsageError(f"{shown} is not a file. `cubemesh build NETWORK` makes a plan.")
    try:
        arrays, metadata = read_arrays(path)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}.") from error
    text = metadata.get(_DOCUMENT, "")
    if not text:
        raise DataError(f"{shown} is a safetensors file and not a plan of cubemesh.")
    try:
        if len(text) > MOST_DOCUMENT:
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
    except (ValueError, json.JSONDecodeError) as error:
        raise DataError(f"{shown} is not a valid plan: {clean(str(error), 300)}.") from error
    models = {
        name.removeprefix(_MODEL): array.tobytes()
        for name, array in arrays.items()
        if name.startswith(_MODEL) and array.dtype == np.uint8
    }
    missing = {choice.model for choice in document.choices} - models.keys()
    if missing:
        raise DataError(
            f"{shown} is not a valid plan: it lacks the model {', '.join(sorted(missing))}."
        )
    try:
        check_models(models, document.inputs, document.outputs)
    except ValueError as error:
        raise DataError(f"{shown} is not a valid plan: {clean(str(error), 300)}.") from error
    return document, models


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
