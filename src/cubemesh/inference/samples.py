"""Samples that a build looks at: for calibration, for choosing a method, and for the proof.

No sample serves two of these, since what was chosen on a sample looks better on it than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cubemesh.batches import PADDING, Array
from cubemesh.data import open_for
from cubemesh.data.source import Source
from cubemesh.detection.labels import counted
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.graph import BOX_COLUMNS, Network
from cubemesh.onnx.graph import Graph, Value
from cubemesh.schema.own_network import OwnData
from cubemesh.schema.work import Tokenizer
from cubemesh.untrusted import quoted, shown_path

CALIBRATION, SELECTION, PROOF = 256, 64, 10_000
"""Most samples of each kind."""
FEWEST = 8
LABELS = "labels"
"""Name of the labels in a file of samples."""
Inputs = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class SampleSets:
    """Samples by input, disjoint, and the labels of those of the proof."""

    about: str
    calibration: Inputs
    selection: Inputs
    proof: Inputs
    labels: Array | None


def from_data(
    network: Network,
    data: str,
    path: str | None,
    seed: int = 0,
    tokenizer: Tokenizer = "words",
    own_data: OwnData | None = None,
) -> SampleSets:
    """Calibration and selection from a data set's samples for training, the proof from those for
    validation; sentence pairs are divided by `tokenizer`. `own_data` is the code of data of the
    user's own. UsageError or DataError where the data do not fit."""
    train, validation = (
        open_for(
            network,
            data,
            path,
            split,
            seed=seed,
            samples_needed=CALIBRATION + SELECTION,
            tokenizer=tokenizer,
            own_data=own_data,
        )
        for split in ("train", "validation")
    )
    names = [value.name for value in network.inputs]
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(train.samples)[: CALIBRATION + SELECTION]
    cut = min(CALIBRATION, len(drawn) * 4 // 5)
    proof = rng.permutation(validation.samples)[:PROOF]
    inputs, labels = _take(validation, proof, names)
    return SampleSets(
        about=f"{data}: {cut} samples for calibration, {len(proof):,} of its validation samples "
        "for the proof",
        calibration=_take(train, drawn[:cut], names)[0],
        selection=_take(train, drawn[cut:], names)[0],
        proof=inputs,
        labels=labels,
    )


def from_file(path: str | Path, graph: Graph) -> SampleSets:
    """Samples of a `.npz` file: an array for each input, and `labels` if there are any. The first
    half, at most, is for calibration and selection. UsageError where the file cannot be read,
    DataError where it does not fit."""
    shown = shown_path(path)
    arrays = read_samples(path)
    labels = arrays.pop(LABELS, None)
    inputs = {value.name: _fitting(arrays, value, shown) for value in graph.inputs}
    counts = {len(array) for array in (*inputs.values(), *([labels] if labels is not None else []))}
    count = min(counts)
    if len(counts) > 1 or count < FEWEST:
        raise DataError(
            f"{shown} needs as many samples in each array, at least {FEWEST}; it has "
            f"{', '.join(map(str, sorted(counts)))}."
        )
    calibration = min(CALIBRATION, count * 3 // 8)
    selection = min(SELECTION, count // 8)
    parts = (
        slice(0, calibration),
        slice(calibration, calibration + selection),
        slice(calibration + selection, calibration + selection + PROOF),
    )
    first, second, third = ({n: a[part] for n, a in inputs.items()} for part in parts)
    return SampleSets(
        about=f"{Path(path).name}: {calibration} samples for calibration, "
        f"{len(next(iter(third.values()))):,} others for the proof",
        calibration=first,
        selection=second,
        proof=third,
        labels=None if labels is None else labels[parts[2]],
    )


def read_samples(path: str | Path) -> dict[str, Array]:
    """The arrays of a `.npz` file. UsageError where it cannot be read, DataError where it is not
    one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise UsageError(
            f"{shown_path(path)} cannot be read: {error.strerror or error}."
        ) from error
    except Exception as error:  # a damaged archive raises errors of many classes
        raise DataError(
            f"{shown_path(path)} is not a file of arrays (.npz of NumPy): {error}."
        ) from error


def random_inputs(values: Iterable[Value], samples: int, seed: int = 0) -> dict[str, Array]:
    """Inputs to measure speed with: uniform numbers of 0 to 1, whole numbers 0 or 1."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for value in values:
        shape = (samples, *(int(length) for length in value.shape[1:]))
        dtype = np.dtype(value.dtype)
        found[value.name] = (
            rng.random(shape).astype(dtype)
            if dtype.kind == "f"
            else rng.integers(0, 2, shape).astype(dtype)
        )
    return found


def batches(inputs: Inputs, size: int) -> Iterator[dict[str, Array]]:
    """`inputs` in parts of `size` samples; the last may have fewer."""
    count = len(next(iter(inputs.values())))
    for begin in range(0, count, size):
        yield {name: array[begin : begin + size] for name, array in inputs.items()}


def right_answers(scores: Array, labels: Array) -> Array:
    """Whether the largest score is that of the label, for each position that counts; of the labels
    of a detector whether a cell is covered by the class of its object at a threshold of 0.5, or by
    none."""
    if np.ndim(labels) == 3:
        return _right_cells(scores, labels)
    wanted = np.asarray(labels).reshape(-1)
    found = scores.reshape(-1, scores.shape[-1]).argmax(axis=-1)
    if found.size != wanted.size:
        raise DataError(f"There are {wanted.size:,} labels for {found.size:,} results.")
    right: Array = (found == wanted)[wanted != PADDING]
    return right


def _right_cells(scores: Array, labels: Array) -> Array:
    cells, (_, rows, columns) = scores.shape[1], labels.shape
    if scores.ndim != 3 or len(labels) != len(scores) or rows < cells or columns != BOX_COLUMNS:
        raise DataError(f"Labels of shape {labels.shape} are not those of scores {scores.shape}.")
    coverage = scores[..., :-4]
    classes = np.where(coverage.max(axis=-1) > 0.5, coverage.argmax(axis=-1), PADDING)
    right: Array = (classes == labels[:, :cells, 0])[counted(labels)].ravel()
    return right


def _take(source: Source, indices: Array, names: list[str]) -> tuple[dict[str, Array], Array]:
    parts = []
    for begin in range(0, len(indices), 256):
        batch = source.batch(np.asarray(indices[begin : begin + 256], np.int64))
        parts.append((*(np.array(array) for array in batch.inputs), np.array(batch.labels)))
    *inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return dict(zip(names, inputs, strict=True)), labels


def _fitting(arrays: Mapping[str, Array], value: Value, shown: str) -> Array:
    if value.name not in arrays:
        have = ", ".join(map(quoted, arrays)) or "no arrays"
        raise DataError(f"{shown} has no array {quoted(value.name)}; it has {have}.")
    array = arrays[value.name]
    if array.ndim != len(value.shape) or array.shape[1:] != value.shape[1:]:
        wanted = "×".join(map(str, ("n", *value.shape[1:])))
        raise DataError(
            f"{quoted(value.name)} in {shown} has the shape {'×'.join(map(str, array.shape))}, and "
            f"{wanted} is needed."
        )
    return np.ascontiguousarray(array, dtype=value.dtype)
