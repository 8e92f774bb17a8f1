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
        """Of these runs of `store`, which connects again if it was closed; `closes` says that
        nobody else closes it after that."""
        self._run_ids = dict.fromkeys(run_ids)
        self._store = store
        if closes:
            weakref.finalize(self, store.close)

    def __getitem__(self, run_id: str) -> Sequence[Series]:
        return [one.as_series() for one in self.samples(run_id)]

    def samples(self, run_id: str) -> Sequence[Samples]:
        """The series of a run as arrays; KeyError for a run that is not one of these."""
        if run_id not in self._run_ids:
            raise KeyError(run_id)
        known = len(self._store.damage)
        found = self._store.samples(run_id)
        for damage in self._store.damage[known:]:
            warnings.warn(damage.sentence, StoreWarning, stacklevel=2)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._run_ids)

    def __len__(self) -> int:
        return len(self._run_ids)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._run_ids


def samples_of(series: Mapping[str, Sequence[Series]], run_id: str) -> Sequence[Series | Samples]:
    """The series of a run, as arrays where they come from a store; none for an unknown run."""
    if isinstance(series, StoredSeries):
        return series.samples(run_id) if run_id in series else ()
    return series.get(run_id, ())
