"""What are a document's claims held against? The records of one experiment of one replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.networks import entry
from cubemesh.papers.published import same_device
from cubemesh.schema import Claim, Machine, NetworkWork, RunRecord, Train, TrainSteps, Verdict


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What claims are held against: the records of one replay, and where they were made."""

    records: tuple[RunRecord, ...]
    machine: Machine | None = None

    def steps(self, network: str, side: int | None = None) -> dict[int, Group[int]]:
        """The minibatches at which training steps of `network` were timed on images of `side`
        pixels (None: its own), with the program that came first: fed from the host, where both
        were measured."""
        found = [
            r
            for r in self.records
            if isinstance(r.spec.work, TrainSteps)
            and r.spec.work.network == network
            and _side(r.spec.work) == (side or entry(network).image_size)
        ]
        first = [r for r in found if r.spec.program == found[0].spec.program]
        groups = group_by(first, lambda r: r.spec.batch_per_device or 0)
        return {g.key: g for g in sorted(groups, key=lambda g: g.key) if g.throughput is not None}

    def sides(self, network: str) -> list[int]:
        """The sides of the images on which training steps of `network` were timed."""
        works = (r.spec.work for r in self.records)
        own = (w for w in works if isinstance(w, TrainSteps) and w.network == network)
        return sorted({_side(w) for w in own})

    def trainings(self, network: str, batch: int) -> list[RunRecord]:
        """The trainings over epochs at this minibatch that came to their end."""
        return [
            r
            for r in self.records
            if isinstance(r.spec.work, Train)
            and (r.spec.work.network, r.spec.work.batch_per_device) == (network, batch)
            and "accuracy" in r.figures
        ]

    def networks(self) -> list[str]:
        """The networks of which training steps were timed."""
        works = (r.spec.work for r in self.records)
        names = (w.network for w in works if isinstance(w, TrainSteps))
        return [n for n in dict.fromkeys(names) if self.steps(n)]

    def ran_on(self, device: str) -> bool:
        """Whether every run was on a GPU of this model."""
        gpus = self.machine.gpus if self.machine else ()
        on_gpu = all(rank.device != "cpu" for r in self.records for rank in r.ranks)
        return bool(gpus) and on_gpu and all(same_device(device, g.name) for g in gpus)


Check = Callable[[Claim, Evidence], Verdict]
"""What says whether a claim holds."""


def _side(work: NetworkWork) -> int:
    return work.image_size or entry(work.network).image_size
