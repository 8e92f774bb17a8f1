"""What is the largest minibatch that fits, found without hurting the machine?

`batch_sizes=auto`: the batch size is doubled from 8 on; the first refused memory is the upper
end, the last that fitted the lower one, and the gap is halved until it is an eighth of the power of
two below it. Where the refused run forecast what should fit (outcomes.py), that is tried
first. Each one is tried in a worker under its memory limit, so a refusal is an outcome. A doubling
whose forecast is over twice what the machine has is taken as refused and not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from cubemesh.networks import build_for
from cubemesh.networks.memory import forecast, memory_settings
from cubemesh.schema import Finding, Machine, NetworkWork, RunRecord, RunSpec, Status
from cubemesh.units import format_bytes

FIRST = 8
_PARTS = 8
"""The search ends within this part of the power of two below the answer."""
_HOPELESS = 2
"""A forecast over this many times the memory there is needs no trial."""
_FITS = (Status.OK, Status.DIVERGED)
"""What diverged was computed to the end all the same."""

Search = Generator[Sequence[RunSpec], Sequence[RunRecord], None]


def search(
    specs_of: Callable[[int], Sequence[RunSpec]],
    machine: Machine,
    *,
    most: int | None = None,
    goes_on: Callable[[RunRecord], bool] = lambda record: True,
    also: Sequence[RunSpec] = (),
) -> Search:
    """Part of a plan: the runs that find the largest minibatch that fits.

    `most` is the largest that may be asked for (the samples there are). `goes_on` says, from the
    last record, whether a run of twice the minibatch may be afforded. `also` is asked for together
    with the first minibatch, so that a slip in the settings is found before anything is measured.
    """
    low, high, batch = 0, None, min(FIRST, most or FIRST)
    advice: object = None
    while high is None:
        got = yield [*also, *specs_of(batch)]
        records = [r for r in got if r.spec.batch_per_device == batch]
        also = ()
        if any(r.outcome.status is Status.OOM for r in records):
            high = batch
            advice = records[-1].outcome.facts.get("largest_batch_that_fits")
            break
        if not all(r.outcome.status in _FITS for r in records):
            return
        low, batch = batch, min(2 * batch, most or 2 * batch)
        if batch == low or not goes_on(records[-1]):
            return
        if _is_hopeless(records[-1], batch, machine):
            high = batch
    while high - low > _grain(low):
        middle = (low + high) // 2
        if isinstance(advice, int) and low < advice < high:
            middle = max(low + 1, advice - advice % _grain(advice))
            advice = None
        last = yield specs_of(middle)
        if any(r.outcome.status is Status.OOM for r in last):
            high = middle
        elif all(r.outcome.status in _FITS for r in last):
            low = middle
        else:
            return


def _grain(batch: int) -> int:
    return max(1, (1 << max(0, batch.bit_length() - 1)) // _PARTS)


def _is_hopeless(record: RunRecord, batch: int, machine: Machine) -> bool:
    """Whether twice what `record` had would not hold `batch`."""
    limit_bytes = record.spec.budget.memory_limit_bytes
    device = device_of(record)
    if limit_bytes is None and record.ranks:
        gpu = device.startswith("cuda")
        limit_bytes = machine.gpus[0].memory_bytes if gpu else machine.memory.usable_bytes
    needs_bytes = forecast_bytes(record.spec, batch, device)
    return limit_bytes is not None and needs_bytes > _HOPELESS * limit_bytes


def device_of(record: RunRecord) -> str:
    """What the run was on; `cpu` where it did not come so far."""
    return record.ranks[0].device if record.ranks else "cpu"


def forecast_bytes(spec: RunSpec, batch: int, device: str) -> int:
    """The memory forecast of `spec`'s network and program at another minibatch, on `device`."""
    work = spec.work
    assert isinstance(work, NetworkWork)
    return forecast(build_for(work), batch, **memory_settings(spec, device)).total_bytes


@dataclass(frozen=True, kw_only=True)
class MaxBatch:
    """What the records of a search say."""

    fits: int | None
    """The largest minibatch that ran."""
    refused: int | None
    """The smallest one that was refused memory."""
    spec: RunSpec
    device: str

    def finding(self) -> Finding:
        """What fits, what was forecast for it, and what was refused."""
        if self.fits is None and self.refused is None:
            return Finding(text="No minibatch ran, and none was refused memory.")
        if self.fits is None:
            text = "No minibatch fits"
        else:
            needs = format_bytes(forecast_bytes(self.spec, self.fits, self.device))
            text = f"The largest minibatch that fits is {self.fits} (forecast {needs})"
        if self.refused is None:
            text = text.replace("that fits is", "measured is")
            return Finding(text=f"{text}; none was refused memory.", value=self.fits)
        needs = format_bytes(forecast_bytes(self.spec, self.refused, self.device))
        text += f"; of those tried, {self.refused} was refused memory (forecast {needs})."
        return Finding(text=text, value=self.fits, unit="samples")


def max_batch(records: Sequence[RunRecord]) -> list[MaxBatch]:
    """What a search over minibatches found, from its records; nothing where there are none."""
    tried: dict[int, list[RunRecord]] = {}
    for record in records:
        if record.spec.batch_per_device is not None:
            tried.setdefault(record.spec.batch_per_device, []).append(record)
    if not tried:
        return []
    refused = [b for b, own in tried.items() if any(r.outcome.status is Status.OOM for r in own)]
    fits = [b for b, own in tried.items() if all(r.outcome.status in _FITS for r in own)]
    found = MaxBatch(
        fits=max(fits, default=None),
        refused=min(refused, default=None),
        spec=records[-1].spec,
        device=device_of(records[-1]),
    )
    return [found]
