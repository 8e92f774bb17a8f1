"""Parallel text: sentence pairs for translation, from files of the user.

Either a folder with `source.txt` and `target.txt`, one sentence a line in the same order, or one
file with a tab between the two. Words are separated by white space; one vocabulary serves both
languages: `<pad>`, `<unk>`, `<s>`, `</s>`, then the most frequent words of the training
pairs, as many as the network has tokens (ties in the order of the alphabet). The translator reads
the source and its `</s>`, and `<s>` and the target; the labels are the target and its `</s>`. Pairs
with a side that is empty or longer than the network's length are dropped; shorter ones are padded.
Every tenth pair is for validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from cubemesh.batches import PADDING
from cubemesh.data.source import VALIDATION_EVERY, Split, in_split
from cubemesh.data.text.sequences import Sequences
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.graph import Network
from cubemesh.units import format_count

NAME = "parallel-text"
MOST_LINE = 1 << 20
"""Most characters of a line."""
FILES = ("source.txt", "target.txt")
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNKNOWN, BEGIN, END = range(len(SPECIAL))

Words = list[str]
Pair = tuple[Words, Words]


def check_files(path: Path) -> None:
    """Check names, sizes, numbers of lines and the first line only.

    DataError for files that are missing or empty, for two files with different numbers of lines,
    and for one file without a tab in its first line.
    """
    files = _files(path)
    for file in files:
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty. Put one sentence on each of its lines.")
    next(_pairs(path), None)
    lines = [_line_count(file) for file in files]
    if len(set(lines)) > 1:
        raise DataError(
            f"{files[0]} has {format_count(lines[0])} lines and {files[1]} "
            f"{format_count(lines[1])}. Line for line one must be the translation of the other."
        )


def open_parallel_text(path: Path, split: Split, network: Network) -> Sequences:
    """The pairs of `split` that fit `network`, as sequences of its length.

    UsageError for a vocabulary that has no room for a word; DataError as in `check_files`, for text
    that is not UTF-8 or has no tab, and where no pair is left.
    """
    check_files(path)
    size = network.inputs[0].classes or 0
    if size <= len(SPECIAL):
        raise UsageError(
            f"vocabulary={size} has no room for a word: {len(SPECIAL)} tokens are "
            f"{', '.join(SPECIAL)}. Set it to {len(SPECIAL) + 1} or more."
        )
    vocabulary = build_vocabulary(path, size)
    (length,) = network.targets[0].shape
    seen = 0
    sources, targets = [], []
    for source, target in _pairs_of(path, split):
        seen += 1
        if source and target and max(len(source), len(target)) < length:
            sources.append([vocabulary.get(word, UNKNOWN) for word in source])
            targets.append([vocabulary.get(word, UNKNOWN) for word in target])
    if not sources:
        raise DataError(
            f"No pair of {format_count(seen)} in {path} to {_PURPOSE[split]} on has 1 to "
            f"{length - 1} words on both sides. {_REMEDY[split]}"
        )
    return _padded(sources, targets, length, size)


_PURPOSE = {"train": "train", "validation": "validate"}
_REMEDY = {
    "train": "Set sequence_length to more than the words of a sentence.",
    "validation": f"Every {VALIDATION_EVERY}th pair is one: give more pairs, or a longer "
    "sequence_length.",
}


def build_vocabulary(path: Path, size: int) -> dict[str, int]:
    """The token of each word: the most frequent of the training pairs, up to `size` tokens with
    the four special ones."""
    counts: Counter[str] = Counter()
    for source, target in _pairs_of(path, "train"):
        counts.update(source)
        counts.update(target)
    for word in SPECIAL:  # a text that spells one out has no word there
        counts.pop(word, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: token for token, word in enumerate(ranked[: size - len(SPECIAL)], len(SPECIAL))}


def _padded(
    sources: list[list[int]], targets: list[list[int]], length: int, vocabulary: int
) -> Sequences:
    source = np.full((len(sources), length), PAD, np.int64)
    target, labels = source.copy(), np.full_like(source, PADDING)
    for row, (words, own) in enumerate(zip(sources, targets, strict=True)):
        source[row, : len(words) + 1] = [*words, END]
        target[row, : len(own) + 1] = [BEGIN, *own]
        labels[row, : len(own) + 1] = [*own, END]
    return Sequences(NAME, (source, target), labels, vocabulary)


def _files(path: Path) -> tuple[Path, ...]:
    """One file with tabs, or the two of a folder."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise DataError(
            f"data_path={path} does not exist. Give a folder with {' and '.join(FILES)}, or "
            "one file with a tab between source and target."
        )
    for name in FILES:
        if not (path / name).is_file():
            raise DataError(
                f"{NAME} needs {path / name}, which does not exist. The folder must contain "
                f"{' and '.join(FILES)}, one sentence a line."
            )
    return tuple(path / name for name in FILES)


def _line_count(file: Path) -> int:
    """Lines, the last one also where nothing ends it."""
    lines, last = 0, b"\n"
    with file.open("rb") as data:
        while block := data.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _pairs_of(path: Path, split: Split) -> Iterator[Pair]:
    for number, pair in enumerate(_pairs(path), 1):
        if in_split(split, number):
            yield pair


def _pairs(path: Path) -> Iterator[Pair]:
    """The words of each pair, in the files' order. Of a file with tabs the first two columns."""
    files = _files(path)
    if len(files) == 2:
        for source, target in zip(*map(_lines, files), strict=False):
            yield source.split(), target.split()
        return
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            yield [], []
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(
                f"Line {number} of {path} has no tab. Put a tab between source and target, or give "
                f"a folder with {' and '.join(FILES)}."
            )
        yield columns[0].split(), columns[1].split()


def _lines(file: Path) -> Iterator[str]:
    """Lines end at a newline only: a lone carriage return is white space."""
    with file.open(encoding="utf-8-sig", newline="\n") as text:
        try:
            for number in count(1):
                line = text.readline(MOST_LINE + 1)
                if len(line) > MOST_LINE:
                    raise DataError(
                        f"Line {number} of {file} is longer than {MOST_LINE:,} characters. Put one "
                        "sentence on each line."
                    )
                if not line:
                    return
                yield line
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not text in UTF-8: {error.reason}. Convert it.") from None
