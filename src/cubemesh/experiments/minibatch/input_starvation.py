"""Does the device wait for its data? The same steps, fed from the host and from the device.

Document 001 copies every batch from the host to the GPU and finds that at small minibatches this
copy starves it. A device *starves* where steps fed from the host are slower, beyond the intervals,
than steps whose one batch lies on the device already, and the device has work for less than the
80 % of the time that document 001 counts as full. Where it has more, the copy has a price and
nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.ratios import ratio, significance
from cubemesh.schema import Cell, Column, Finding, ProgramSettings, RunRecord
from cubemesh.units import format_list

DataLocations = Literal["host", "device", "both"]
BUSY_PERCENT = 80.0
"""Percent of the time with work that count as full (document 001)."""
UTILISATION_NOTE = (
    "Utilisation is the percent of the measured time in which the GPU had work (NVML); on a CPU, "
    "the processor time of the run over the cores it may use."
)
SPEED_COLUMNS = (
    Column(name="samples/s"),
    Column(name="step", unit="ms"),
    Column(name="utilisation", unit="%"),
)
"""What tables of studies of how a device is fed end with; `speed_cells` fills them."""
LocationPair = tuple[str, Group[Any], Group[Any]]
"""(where, fed from the host, fed from the device)."""


def programs_by_location(fed: DataLocations) -> tuple[ProgramSettings, ...]:
    """The programs a run goes through, the host's first."""
    if fed == "both":
        return ProgramSettings(data_location="host"), ProgramSettings(data_location="device")
    return (ProgramSettings(data_location=fed),)


def data_location(record: RunRecord) -> str:
    """`host` or `device`."""
    return record.spec.program.data_location


def device_utilisation(group: Group[Any]) -> tuple[str, float] | None:
    """The device that trained ("GPU", "CPU") and the percent of the measured time it had work, the
    median over the runs; None where it was not sampled."""
    for kind in ("gpu", "cpu"):
        percent = group.median_of(f"{kind}_utilisation_percent")
        if percent is not None:
            return kind.upper(), percent
    return None


def utilisation_cell(group: Group[Any]) -> Cell:
    """The same in a table."""
    found = device_utilisation(group)
    if group.throughput is None:
        return group.cell(None)
    if found is None:
        return Cell(reason="not sampled")
    return Cell(value=round(found[1], 1), run_id=group.run_id)


def speed_cells(group: Group[Any]) -> tuple[Cell, ...]:
    """How fast a point trained and how busy it kept the device, for `SPEED_COLUMNS`."""
    return group.cell(group.throughput), group.cell(group.step_ms), utilisation_cell(group)


def device_kind(groups: Iterable[Group[Any]]) -> str:
    """ "GPU" or "CPU", whichever the groups ran on; "device" where neither was sampled."""
    kinds = [found[0] for group in groups if (found := device_utilisation(group)) is not None]
    return kinds[0] if kinds else "device"


def input_bound_findings(network: str, pairs: Sequence[LocationPair]) -> Iterator[Finding]:
    """What feeding from the host costs `network`: where the device starves, where only the copy
    has a price, and where there is no difference; with the utilisation when fed from the host.
    Disturbed runs are not compared: they look just the same."""
    told: dict[str, list[tuple[str, LocationPair]]] = {
        "starves": [],
        "pays": [],
        "level": [],
        "disturbed": [],
    }
    for where, host, device in pairs:
        a, b = host.throughput, device.throughput
        if a is None or b is None:
            continue
        if caveats(host, device):
            told["disturbed"].append((where, (where, host, device)))
            continue
        found = ratio(b, a)
        word = "level" if significance(found) <= 0 else "starves" if _waits(host) else "pays"
        text = f"{found.value:.2f}× as fast at {where}{_percent(host)}"
        told[word].append((text, (where, host, device)))
    if not any(told.values()):
        return
    kind = device_kind(host for _, host, _ in pairs)
    leads = {
        "starves": (
            f"The {kind} starves when fed from the host",
            "Raise the minibatch, or keep data on the device.",
        ),
        "pays": ("Copying batches from the host has a price", ""),
    }
    for word, (lead, remedy) in leads.items():
        if told[word]:
            places = format_list(text for text, _ in told[word])
            yield Finding(
                text=f"{lead}: with its data on the device, {network} trains {places}.",
                remedy=remedy,
            )
    if told["level"] and not (told["starves"] or told["pays"]):
        yield Finding(
            text=f"{network} trains no slower fed from the host than with its data on the device, "
            "as far as the intervals can tell.",
        )
    if told["disturbed"]:
        yield Finding(
            text=f"{network} fed from the host was not held against data on the device at "
            f"{format_list(text for text, _ in told['disturbed'])}: a run of the two was noisy.",
            caveats=_doubts(told["disturbed"]),
        )


def _waits(host: Group[Any]) -> bool:
    found = device_utilisation(host)
    return found is not None and found[1] < BUSY_PERCENT


def _percent(host: Group[Any]) -> str:
    found = device_utilisation(host)
    return f" ({found[1]:.0f} % utilisation)" if found else ""


def _doubts(told: Iterable[tuple[str, LocationPair]]) -> tuple[str, ...]:
    return caveats(*(group for _, (_, host, device) in told for group in (host, device)))
