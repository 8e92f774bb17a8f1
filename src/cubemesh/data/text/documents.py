"""Documents of tokens for language models, from a file or generated, in rows of fixed length.

A file has one document a line: its tokens as numbers, separated by spaces. Generated documents have
random tokens and log-normal lengths with a median of a quarter of the network's length; they are
for speed only. In a document each position is judged by the token that follows; its last position
has no label. A document that is longer than the network's length is divided into pieces.

    padded   each piece has a row of its own, the rest of which is padding
    packed   a row has as many pieces as fit, one after another (best fit, longest first), and the
             place of each position in its piece as a second input, from which the network knows
             where one begins (`of_documents` of networks/assembly.py)

Positions of padding have token 0 and no label. Every tenth document is for validation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING
from cubemesh.data.source import CACHE_BYTES, Split, in_split
from cubemesh.data.text.sequences import Sequences
from cubemesh.errors import DataError
from cubemesh.networks.graph import Network
from cubemesh.units import format_bytes
from cubemesh.untrusted import quoted

NAME = "documents"
GENERATED = "generated-documents"
DOCUMENTS = {"train": 4096, "validation": 256}
"""Generated ones."""
MOST_LINE = 1 << 22
"""Most characters of a line."""
MOST_BYTES = 4 << 30
"""Most memory for the rows of a file."""
_SIGMA = 1.0
"""Of the logarithm of a generated length."""
_FEWEST = 2
"""Tokens of a document that has a label."""

Document = NDArray[np.int64]


class DocumentRows(Sequences):
    """Rows of documents."""

    def __init__(
        self,
        name: str,
        inputs: tuple[NDArray[np.int64], ...],
        labels: NDArray[np.int64],
        vocabulary: int,
        tokens: int,
    ) -> None:
        super().__init__(name, inputs, labels, vocabulary)
        self.padding = 1 - tokens / labels.size
        """Part of all positions that no document has."""


def check_file(path: Path) -> None:
    """Check that the file is there and begins with tokens; DataError if not."""
    next(_read(path, None), None)


def open_documents(path: Path, split: Split, network: Network) -> DocumentRows:
    """The documents of `split` in the file at `path`.

    DataError for a file that is missing or no text, for what is not a token of the network's
    vocabulary, where no document is left, and where the rows take more than `MOST_BYTES`.
    """
    vocabulary = _vocabulary(network)
    own = [
        document
        for number, document in enumerate(_read(path, vocabulary), start=1)
        if in_split(split, number)
    ]
    return _rows(NAME, own, network, f"{path} has no document for {split}")


def open_generated(split: Split, network: Network, seed: int, samples_needed: int) -> DocumentRows:
    """Generated documents, the same for the same seed and network, in at least `samples_needed`
    rows; fewer than 4,096 (256 for validation) if they exceed `CACHE_BYTES`."""
    (length,) = network.targets[0].shape
    vocabulary = _vocabulary(network)
    most = max(1, min(DOCUMENTS[split], CACHE_BYTES // (32 * length)))
    generator = np.random.default_rng((seed, DOCUMENTS[split]))
    made: list[Document] = []
    while True:
        sizes = np.exp(generator.normal(np.log(length / 4), _SIGMA, most))
        lengths = np.clip(sizes, _FEWEST, 4 * length).astype(int)
        made += [generator.integers(vocabulary, size=n) for n in lengths]
        rows = _rows(GENERATED, made, network, "")
        if rows.samples >= samples_needed:
            return rows


def pack(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Numbers of the pieces of each row of `size` positions: longest first, each into the row with
    the least room that it fits into."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        found = bisect_left(room, (lengths[number], -1))
        left, row = room.pop(found) if found < len(room) else (size, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        if left > lengths[number]:
            insort(room, (left - lengths[number], row))
    return rows


def _rows(name: str, documents: Iterable[Document], network: Network, empty: str) -> DocumentRows:
    (size,) = network.targets[0].shape
    pieces, labels = [], []
    for document in documents:
        following = np.append(document[1:], PADDING)
        for begin in range(0, len(document), size):
            of_piece = following[begin : begin + size]
            if (of_piece != PADDING).any():
                pieces.append(document[begin : begin + size])
                labels.append(of_piece)
    if not pieces:
        raise DataError(
            f"{empty}. A document needs {_FEWEST} tokens or more, and every tenth one "
            "is for validation."
        )
    lengths = [len(piece) for piece in pieces]
    packed = len(network.inputs) > 1
    of_rows = pack(lengths, size) if packed else [[n] for n in range(len(pieces))]
    if name == NAME and 3 * 8 * len(of_rows) * size > MOST_BYTES:
        remedy = "Divide the file." if packed else "Set packing=documents, or divide the file."
        raise DataError(
            f"data={name}: {len(of_rows):,} rows of {size:,} tokens take more than "
            f"{format_bytes(MOST_BYTES)} of memory. {remedy}"
        )
    tokens, places, wanted = (np.zeros((len(of_rows), size), np.int64) for _ in range(3))
    wanted[:] = PADDING
    for row, numbers in enumerate(of_rows):
        begin = 0
        for number in numbers:
            end = begin + lengths[number]
            tokens[row, begin:end] = pieces[number]
            wanted[row, begin:end] = labels[number]
            places[row, begin:end] = np.arange(lengths[number])
            begin = end
        places[row, begin:] = np.arange(size - begin)  # padding is a document that has no label
    inputs = (tokens, places) if packed else (tokens,)
    return DocumentRows(name, inputs, wanted, _vocabulary(network), sum(lengths))


def _vocabulary(network: Network) -> int:
    return network.inputs[0].classes or 1


def _read(path: Path, vocabulary: int | None) -> Iterator[Document]:
    """The documents of a file, one by one; without a `vocabulary` its tokens have no limit."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path} is not a file.")
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(MOST_LINE):
                number += 1
                if len(line) == MOST_LINE:
                    raise DataError(
                        f"{path}, line {number}: a document has at most {MOST_LINE:,} characters. "
                        "Divide it."
                    )
                yield _tokens(line, vocabulary, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is no text. A file of documents has numbers of tokens, one document a line."
        ) from None


def _tokens(line: str, vocabulary: int | None, where: str) -> Document:
    words = line.split()
    wrong = next((w for w in words if not (w.isascii() and w.isdecimal()) or len(w) > 9), None)
    if wrong is not None:
        raise DataError(
            f"{where}: {quoted(wrong[:40])} is not the number of a token. A document is a line "
            "of whole numbers, separated by spaces."
        )
    found = np.array(words, dtype=np.int64)
    if vocabulary is not None and found.size and found.max() >= vocabulary:
        raise DataError(
            f"{where} has token {found.max()}, and the network's vocabulary has {vocabulary:,} "
            f"tokens, from 0. Set vocabulary={found.max() + 1} or more."
        )
    return found
