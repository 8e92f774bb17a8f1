"""Telemetry of stored runs, read when it is asked for."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cubemesh.errors import StoreWarning
from cubemesh.schema import Series
from cubemesh.store.series_chunks import Samples
from cubemesh.store.store import Store


class StoredSeries(Mapping[str, Sequence[Series]]):
    """Series by run id. Each access reads those of one run from the store and keeps nothing. A
    StoreWarning says which series are damaged, and left out."""

    def __init__(self, store: Store, run_ids: Iterable[str], *, closes: bool) -> None:
        """Of these runs of `store`, which connects again if it was closed; with `closes` its
        connections are closed when this is no longer used."""
        self._run_ids = dict.fromkeys(run_ids)
        self._store = store
        if closes:
            weakref.finalize(self, store.close)

    def __getitem__(self, run_id: str) -> Sequence[Series]:
        if run_id not in self._run_ids:
            raise KeyError(run_id)
        ((_, found),) = self._warned(self._store.each_samples([run_id]))
        return [one.as_series() for one in found]

    def each(self, run_ids: Iterable[str]) -> Iterator[tuple[str, Sequence[Samples]]]:
        """The series of these runs as arrays, in this order."""
        yield from self._warned(self._store.each_samples(run_ids))

    def _warned(
        self, found: Iterable[tuple[str, list[Samples]]]
    ) -> Iterator[tuple[str, Sequence[Samples]]]:
        known = len(self._store.damage)
        for one in found:
            for damage in self._store.damage[known:]:
                warnings.warn(damage.sentence, StoreWarning, stacklevel=2)
            known = len(self._store.damage)
            yield one

    def __iter__(self) -> Iterator[str]:
        return iter(self._run_ids)

    def __len__(self) -> int:
        return len(self._run_ids)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._run_ids


def each_samples(
    series: Mapping[str, Sequence[Series]], run_ids: Iterable[str]
) -> Iterator[tuple[str, Sequence[Series | Samples]]]:
    """The series of these runs in this order, as arrays where they come from a store; none of a run
    that has none."""
    if isinstance(series, StoredSeries):
        yield from series.each(run_ids)
    else:
        yield from ((run_id, series.get(run_id, ())) for run_id in run_ids)
