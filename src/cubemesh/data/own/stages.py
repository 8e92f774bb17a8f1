"""Stages of own data by themselves: taking samples, and putting them into a batch.

`items` calls the user's code and drops what it returns; `collate` puts samples that are already in
memory into a batch. Both have the order, threads and slots of a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cubemesh.batches import Batch
from cubemesh.data.own.source import Own, OwnCode, OwnSamples, OwnStream, samples_of_loader
from cubemesh.data.source import Indices
from cubemesh.networks.graph import Network


class Items(OwnSamples):
    """The samples of a map-style data set, taken and dropped."""

    def __init__(self, samples: OwnSamples, network: Network) -> None:
        super().__init__(samples.code, network, samples.data, samples.numbers)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """Arrays with any values."""
        for index in indices.tolist():
            self.item(index)
        return into or self.empty(len(indices))


class StreamItems(OwnStream):
    """The samples of an iterable, or the batches of a DataLoader, taken and dropped."""

    converts = False

    def __init__(self, stream: OwnStream, network: Network) -> None:
        samples = stream.samples if stream.has_length else None
        super().__init__(stream.code, network, stream.begin, samples, stream.loader)

    def fill(self, into: Batch, wanted: int) -> None:
        """Leaves any values in the arrays."""
        self.skip(wanted)


class Collate(Own):
    """Samples in memory, put into a batch: by the `collate_fn` of a DataLoader, where there is
    one."""

    def __init__(
        self,
        code: OwnCode,
        network: Network,
        held: list[tuple[Any, int]],
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(code, network, len(held))
        self._held = held
        self._collate_fn = collate_fn

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        into = into or self.empty(len(indices))
        held = [self._held[index] for index in indices.tolist()]
        collated = self._collate_fn
        if collated is None:
            for row, (sample, number) in enumerate(held):
                self.form.put(sample, number, into, row)
            return into
        samples = [sample for sample, _ in held]
        made = self.code.call(lambda: collated(samples), "collating a batch")
        columns = self.form.columns(made, 0)
        for own, given in zip(columns.inputs, into.inputs, strict=True):
            given[:] = own
        into.labels[:] = columns.labels
        return into


def items(source: Own, network: Network, *, one: bool) -> Own:
    """The stage `item`: with `one`, the data set of a DataLoader in this process, without its
    workers."""
    if isinstance(source, OwnStream):
        if source.loader is None or not one:
            return StreamItems(source, network)
        source = samples_of_loader(source, network)
    assert isinstance(source, OwnSamples), "it is no stream"
    return Items(source, network)


def collate(source: Own, network: Network, batch: int) -> Collate:
    """The stage `collate`, on as many samples as a batch has."""
    collate_fn = None
    if isinstance(source, OwnStream):
        if source.loader is None:
            held = [(source.take(), number) for number in range(batch)]
            return Collate(source.code, network, held)
        collate_fn = source.loader.collate_fn
        source = samples_of_loader(source, network)
    assert isinstance(source, OwnSamples), "it is no stream"
    held = [source.item(index) for index in range(min(batch, source.samples))]
    return Collate(source.code, network, held, collate_fn)
