"""Sources of own data: a map-style data set, an iterable, or a DataLoader of PyTorch.

    map-style   has `__getitem__` and `__len__`: the feed decides the order, any number of threads
    iterable    samples in their own order, through at most one thread
    DataLoader  batches in its own order, by its own workers; no thread

The object is imported, or made by calling the function or class that was named; that may take
`split` ("train" or "validation") and `path` (of `data_path`). Without `split`, every tenth sample
of a map-style data set is for validation.

User code runs here, so whatever it does ends this run alone: what it raises is a UserCodeError with
the sample and the line, and a process that it forks ends where it returns from user code.
"""

from __future__ import annotations

import inspect
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING, Batch
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.own.samples import SampleFormat
from cubemesh.data.source import VALIDATION_EVERY, Epoch, Indices, Split
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.graph import Network
from cubemesh.schema.own_network import OwnData
from cubemesh.user_code import UserCodeError, UserObject, attempt, load

ENDLESS = 1 << 20
"""Samples that an iterable without a length has for the feed, which repeats it."""


class OwnCode:
    """The user's code of own data in this process."""

    def __init__(self, own: OwnData) -> None:
        self.name = own.name
        self._named = UserObject(name=own.source, folder=own.folder)
        self._pid = os.getpid()
        self._returned = mmap.mmap(-1, 1)
        """Memory shared with forked processes: 1 after one returned from user code."""

    def call(self, ask: Callable[[], Any], doing: str) -> Any:
        """The result of user code. UserCodeError for what it raises while `doing` something."""
        try:
            found = attempt(self._named, doing, ask)
        finally:
            if os.getpid() != self._pid:
                self._returned[0] = 1
                os._exit(0)
        if self._returned[0]:
            raise UserCodeError(
                f"{self.name} forked a process that returned from the data set; a forked process "
                "must end itself, with os._exit."
            )
        return found

    def load(self) -> Any:
        """The object that was named."""
        return self.call(lambda: load(self._named), "importing it")


class Own:
    """What all sources of own data have in common."""

    converts = True
    """Whether what is taken is checked and becomes arrays."""

    def __init__(self, code: OwnCode, network: Network, samples: int) -> None:
        self.name = code.name
        self.samples = samples
        self.classes = network.targets[0].classes or 1
        self.code = code
        self.form = SampleFormat(code.name, network)
        self._has_positions = bool(network.targets[0].shape)
        self._lock = threading.Lock()
        self._seen = self._counted = 0

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return self.form.empty(samples)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        raise NotImplementedError

    @property
    def tokens_per_sample(self) -> float | None:
        """Mean positions that count of the samples so far; None where labels have none."""
        return self._counted / self._seen if self._has_positions and self._seen else None

    def count_tokens(self, batch: Batch) -> None:
        """Count the positions of a batch for `tokens_per_sample`."""
        if self._has_positions and self.converts:
            counted = int((batch.labels != PADDING).sum())
            with self._lock:
                self._seen += batch.samples
                self._counted += counted


class OwnSamples(Own):
    """A map-style data set: samples `numbers` of it. Threads may call it at the same time."""

    def __init__(
        self, code: OwnCode, network: Network, data: Any, numbers: NDArray[np.int64]
    ) -> None:
        super().__init__(code, network, len(numbers))
        self.data = data
        self.numbers = numbers

    def item(self, index: int) -> tuple[Any, int]:
        """A sample as the user's code returns it, and its number in the user's data."""
        number = int(self.numbers[index])
        return self.code.call(lambda: self.data[number], f"sample {number:,}"), number

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for row, index in enumerate(indices.tolist()):
            sample, number = self.item(index)
            self.form.put(sample, number, into, row)
        self.count_tokens(into)
        return into


class OwnStream(Own):
    """An iterable of samples, or a DataLoader of batches: in their own order, one after another.

    `begin` gives a new iterator. `samples` is the length, None where it is not known: the iterator
    then begins again at its end."""

    def __init__(
        self,
        code: OwnCode,
        network: Network,
        begin: Callable[[], Iterator[Any]],
        samples: int | None,
        loader: Any = None,
    ) -> None:
        super().__init__(code, network, ENDLESS if samples is None else samples)
        self.loader = loader
        self.has_length = samples is not None
        self.begin = begin
        self._stream: Iterator[Any] | None = None
        self._at = 0
        """Index of the next sample."""
        self._taken = 0
        """Samples or batches of this iterator so far."""
        self._rest: tuple[Batch | None, int, int] = (None, 0, 0)
        """The loader's current batch, its next row and its rows."""
        self._turn = threading.Lock()

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs.epoch`: every epoch is a pass in the iterable's own order."""
        return Epoch(source=self, order=range(self.samples))

    def threads(self, asked: int | None) -> int:
        """Threads that prefetch; Unsupported for more than can help."""
        most = 1 if self.loader is None else 0
        if asked is not None and asked > most:
            raise Unsupported(
                f"input_threads={asked}: {self.name} is a DataLoader, whose num_workers prepare "
                "its batches. Leave input_threads out."
                if self.loader is not None
                else f"input_threads={asked}: {self.name} is an iterable, which gives one sample "
                "after another. Set 1 or 0, or give a map-style data set or a DataLoader."
            )
        return most if asked is None else asked

    @property
    def workers(self) -> int:
        """Worker processes of the DataLoader."""
        return int(getattr(self.loader, "num_workers", 0) or 0)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`. Indices ascend; one that is not the next is sought."""
        into = into or self.empty(len(indices))
        with self._turn:
            self._seek(int(indices[0]))
            self.fill(into, len(indices))
        self.count_tokens(into)
        return into

    def take(self) -> Any:
        """The next sample of an iterable."""
        if self._stream is None:
            self._restart()
        return self._next()

    def fill(self, into: Batch, wanted: int) -> None:
        """Write the next samples into rows."""
        if self.loader is None:
            for row in range(wanted):
                self.form.put(self._next(), self._taken - 1, into, row)
        else:
            done = 0
            while done < wanted:
                part, start, rows = self._part()
                assert part is not None, "it is converted"
                many = min(rows - start, wanted - done)
                for own, given in zip(part.inputs, into.inputs, strict=True):
                    given[done : done + many] = own[start : start + many]
                into.labels[done : done + many] = part.labels[start : start + many]
                self._rest = (part, start + many, rows)
                done += many
        self._at += wanted

    def skip(self, wanted: int) -> None:
        """Take the next samples and drop them."""
        if self.loader is None:
            for _ in range(wanted):
                self._next()
        else:
            done = 0
            while done < wanted:
                part, start, rows = self._part()
                many = min(rows - start, wanted - done)
                self._rest = (part, start + many, rows)
                done += many
        self._at += wanted

    def _part(self) -> tuple[Batch | None, int, int]:
        """The loader's current batch, or the next one if no row of that is left."""
        part, start, rows = self._rest
        if start < rows:
            return self._rest
        batch = self._next()
        number = self._taken - 1
        if self.converts:
            part = self.form.columns(batch, number)
            rows = part.samples
        else:
            part, rows = None, _rows(batch)
        if rows < 1:
            raise UserCodeError(f"{self.name}: batch {number:,} has no samples.")
        return part, 0, rows

    def _seek(self, index: int) -> None:
        if index < self._at or self._stream is None:
            self._restart()
        if index > self._at:
            self.skip(index - self._at)

    def _restart(self) -> None:
        self._stream = None  # the workers of the old one end first
        self._stream = self.code.call(self.begin, "iterating over it")
        self._at = self._taken = 0
        self._rest = (None, 0, 0)

    def _advance(self) -> Any:
        """What the iterator gives; this source at its end."""
        return next(cast(Iterator[Any], self._stream), self)

    def _next(self) -> Any:
        """The next sample, or batch of a loader."""
        what = "sample" if self.loader is None else "batch"
        for last in (False, True):
            found = self.code.call(self._advance, f"{what} {self._taken:,}")
            if found is not self:
                self._taken += 1
                return found
            if self.has_length and self._taken:
                raise UserCodeError(
                    f"{self.name} ended after {self._taken:,} of its {what}s; its length is "
                    f"{self.samples:,} samples."
                )
            if last or not self._taken:
                break
            at = self._at
            self._restart()
            self._at = at
        raise UserCodeError(
            f"{self.name} is empty, or does not begin again after its end. Name a list, a data "
            "set, or the function that makes the iterator."
        )


def open_own(own: OwnData | None, path: str | Path | None, split: Split, network: Network) -> Own:
    """The own data of a split. UserCodeError where the code fails or returns no data set,
    Unsupported where it has no such split or takes no path."""
    assert own is not None, "`open_for` has made sure of it"
    code = OwnCode(own)
    found = code.load()
    make: Callable[[], Any] | None = None
    takes = frozenset[str]()
    if isinstance(found, type) or not _is_data(found):
        if not callable(found):
            raise UserCodeError(_no_data(own.name, found))
        takes = _parameters(found)
        given: dict[str, Any] = {"split": split} if "split" in takes else {}
        if path is not None and "path" in takes:
            given["path"] = str(path)
        make = lambda: found(**given)  # noqa: E731
        data = code.call(make, "making the data")
    else:
        data = found
    if path is not None and "path" not in takes:
        raise Unsupported(
            f"data_path={path} was given, and {own.name} takes no argument `path`. Leave data_path "
            "out, or give its function that argument."
        )
    if not _is_data(data):
        raise UserCodeError(_no_data(own.name, data))
    whole = "split" in takes
    if not _is_map_style(data):
        if split == "validation" and not whole:
            raise Unsupported(
                f"{own.name} is an iterable, and its function takes no argument `split`, so it has "
                'no samples for validation. Give it `split`, which is "train" or "validation".'
            )
        return _stream(code, network, data, make)
    total = _length(code, data)
    positions = np.arange(1, total + 1)
    if not whole:
        held_out = positions % VALIDATION_EVERY == 0
        positions = positions[held_out if split == "validation" else ~held_out]
    if not len(positions):
        raise UserCodeError(
            f"{own.name} has {total} samples, and none for {split}: every "
            f"{VALIDATION_EVERY}th is for validation unless its function takes `split`."
        )
    return OwnSamples(code, network, data, positions - 1)


def is_loader(data: Any) -> bool:
    """Whether it is a DataLoader of PyTorch; nothing is imported for that."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(data, module.DataLoader)


def samples_of_loader(stream: OwnStream, network: Network) -> OwnSamples:
    """The data set of a DataLoader. Unsupported where that is an iterable."""
    data = stream.loader.dataset
    if not _is_map_style(data):
        raise Unsupported(
            f"the data set of {stream.name} is an iterable, whose samples cannot be taken without "
            "its DataLoader. The stage that is measured is the DataLoader's."
        )
    return OwnSamples(stream.code, network, data, np.arange(_length(stream.code, data)))


def _stream(
    code: OwnCode, network: Network, data: Any, make: Callable[[], Any] | None
) -> OwnStream:
    loader = data if is_loader(data) else None
    samples: int | None = None
    if hasattr(data, "__len__"):
        try:
            samples = len(data)
        except (TypeError, NotImplementedError):  # of a DataLoader whose data set has no length
            samples = None
    if loader is not None and samples is not None:
        size = getattr(loader, "batch_size", None)
        if size is None or not _is_map_style(loader.dataset):
            samples = None
        else:
            whole = len(loader.sampler)
            samples = samples * size if loader.drop_last else whole
    one_pass = iter(data) is data if isinstance(data, Iterator) else False
    first = [data]

    def begin() -> Iterator[Any]:
        if not one_pass:
            return iter(data)
        if first:
            return cast(Iterator[Any], first.pop())
        return cast(Iterator[Any], iter(()) if make is None else make())

    return OwnStream(code, network, begin, samples, loader)


def _is_map_style(data: Any) -> bool:
    """Whether it has samples by number; an IterableDataset of PyTorch may look as if it had."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.IterableDataset):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not is_loader(data)


def _is_data(found: Any) -> bool:
    """Whether an object is data, and not what makes them."""
    if isinstance(found, (type, str, bytes, Mapping)):
        return False
    return _is_map_style(found) or isinstance(found, Iterable)


def _no_data(name: str, found: Any) -> str:
    return (
        f"{name} gives an object of type {type(found).__name__}; it must be a data set with "
        "__getitem__ and __len__, an iterable, a DataLoader, or a function that returns one."
    )


def _length(code: OwnCode, data: Any) -> int:
    return cast(int, code.call(lambda: len(data), "taking its length"))


def _rows(batch: Any) -> int:
    """Samples of a collated batch: of its last field."""
    last = batch[-1] if isinstance(batch, (tuple, list)) and batch else batch
    return len(last) if hasattr(last, "__len__") else 1


def _parameters(function: Any) -> frozenset[str]:
    """Names of the parameters of a function; empty where it does not say."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()
