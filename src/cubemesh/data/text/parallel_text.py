"""Parallel text: sentence pairs for translation, from files of the user or generated.

Files are either a folder with `source.txt` and `target.txt`, one sentence a line in the same order,
or one file with a tab between the two. Words are separated by white space; one vocabulary serves
both languages (vocabulary.py), of the training pairs, with as many tokens as the network has. The
translator reads the source and its `</s>`, and `<s>` and the target; the labels are the target and
its `</s>`. Pairs with a side that is empty or has more tokens than the network's length are
dropped; shorter ones are padded. Every tenth pair is for validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy as np

from cubemesh.batches import PADDING
from cubemesh.data.source import VALIDATION_EVERY, Indices, Split, in_split
from cubemesh.data.text import generated_sentences
from cubemesh.data.text.sequences import Sequences, Tokens
from cubemesh.data.text.vocabulary import (
    BEGIN,
    END,
    PAD,
    SPECIAL,
    Vocabulary,
    learn_vocabulary,
)
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.graph import Network
from cubemesh.schema.work import Tokenizer
from cubemesh.units import format_count

NAME = "parallel-text"
MOST_LINE = 1 << 20
"""Most characters of a line."""
FILES = ("source.txt", "target.txt")

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


class SentencePairs(Sequences):
    """Sentence pairs as sequences of tokens, with their vocabulary and reference translations."""

    tokens_per_sample: float

    def __init__(
        self,
        name: str,
        inputs: tuple[Tokens, Tokens],
        labels: Tokens,
        vocabulary: Vocabulary,
        size: int,
        targets: list[str],
    ) -> None:
        super().__init__(name, inputs, labels, size)
        self.vocabulary = vocabulary
        self._targets = targets

    def references(self, indices: Indices) -> list[str]:
        """The translations in the text, of the samples numbered `indices`."""
        return [self._targets[i] for i in indices]


def open_parallel_text(
    path: Path, split: Split, network: Network, tokenizer: Tokenizer = "words"
) -> SentencePairs:
    """The pairs of `split` that fit `network`, as sequences of its length.

    UsageError for a vocabulary that has no room for a word; DataError as in `check_files`, for text
    that is not UTF-8 or has no tab, and where no pair is left.
    """
    check_files(path)
    size = _size(network)
    vocabulary = build_vocabulary(path, size, tokenizer)
    return _encoded(NAME, f" in {path}", lambda: _pairs(path), split, network, vocabulary)


def open_generated(split: Split, network: Network, tokenizer: Tokenizer) -> SentencePairs:
    """The generated pairs of `split`; otherwise as `open_parallel_text`."""
    made = generated_sentences
    vocabulary = _learn(made.words, _size(network), tokenizer)
    return _encoded(made.NAME, "", made.words, split, network, vocabulary)


def _size(network: Network) -> int:
    """Tokens of a network's vocabulary."""
    size = network.inputs[0].classes or 0
    if size <= len(SPECIAL):
        raise UsageError(
            f"vocabulary={size} has no room for a word: {len(SPECIAL)} tokens are "
            f"{', '.join(SPECIAL)}. Set it to {len(SPECIAL) + 1} or more."
        )
    return size


def _encoded(
    name: str,
    where: str,
    pairs: Callable[[], Iterable[Pair]],
    split: Split,
    network: Network,
    vocabulary: Vocabulary,
) -> SentencePairs:
    (length,) = network.targets[0].shape
    seen = 0
    sources, targets, texts = [], [], []
    for source, target in _of_split(pairs(), split):
        seen += 1
        if not (source and target):
            continue
        encoded = vocabulary.encode(source), vocabulary.encode(target)
        if max(map(len, encoded)) < length:
            sources.append(encoded[0])
            targets.append(encoded[1])
            texts.append(" ".join(target))
    if not sources:
        unit = "words" if vocabulary.tokenizer == "words" else "sub-words"
        raise DataError(
            f"No pair of {format_count(seen)}{where} to {_PURPOSE[split]} on has 1 to "
            f"{length - 1} {unit} on both sides. {_REMEDY[split]}"
        )
    source_rows, target_rows, labels = _padded(sources, targets, length)
    return SentencePairs(
        name, (source_rows, target_rows), labels, vocabulary, _size(network), texts
    )


_PURPOSE = {"train": "train", "validation": "validate"}
_REMEDY = {
    "train": "Set sequence_length to more than the tokens of a sentence.",
    "validation": f"Every {VALIDATION_EVERY}th pair is one: give more pairs, or a longer "
    "sequence_length.",
}


def build_vocabulary(path: Path, size: int, tokenizer: Tokenizer = "words") -> Vocabulary:
    """The vocabulary of the training pairs, of at most `size` tokens. It is learned once for files
    that are the same."""
    stamps = tuple((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in _files(path))
    return _learned(path, stamps, size, tokenizer)


@lru_cache(maxsize=2)
def _learned(
    path: Path, stamps: tuple[tuple[str, int, int], ...], size: int, tokenizer: Tokenizer
) -> Vocabulary:
    return _learn(lambda: _pairs(path), size, tokenizer)


def _learn(pairs: Callable[[], Iterable[Pair]], size: int, tokenizer: Tokenizer) -> Vocabulary:
    texts = (side for pair in _of_split(pairs(), "train") for side in pair)
    return learn_vocabulary(texts, size, tokenizer)


def _padded(
    sources: list[list[int]], targets: list[list[int]], length: int
) -> tuple[Tokens, Tokens, Tokens]:
    """Source, target and labels."""
    source = padded_sources(sources, length)
    target, labels = np.full_like(source, PAD), np.full_like(source, PADDING)
    for row, own in enumerate(targets):
        target[row, : len(own) + 1] = [BEGIN, *own]
        labels[row, : len(own) + 1] = [*own, END]
    return source, target, labels


def padded_sources(sources: list[list[int]], length: int) -> Tokens:
    """Sentences as a translator reads them: (sentences, length), each with its end, padded."""
    rows = np.full((len(sources), length), PAD, np.int64)
    for row, tokens in enumerate(sources):
        rows[row, : len(tokens) + 1] = [*tokens, END]
    return rows


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


def _of_split(pairs: Iterable[Pair], split: Split) -> Iterator[Pair]:
    for number, pair in enumerate(pairs, 1):
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
