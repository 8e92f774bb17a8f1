"""Input-bound training: steps with batches copied from the host against data on the device.

Training is *input-bound* if steps fed from the host are significantly slower than steps whose one
batch is resident on the device, and device utilization is below 80 %, which the DGX-1 best
practices white paper [001] counts as full. At higher utilization the copy has a cost, but the
device does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from cubemesh.experiments.analysis.groups import Group, caveats, throughput_unit
from cubemesh.experiments.analysis.ratios import ratio, verdicts
from cubemesh.schema import Cell, Column, Finding, ProgramSettings
from cubemesh.units import format_list

DataLocations = Literal["host", "device", "both"]
BUSY_PERCENT = 80.0
"""Utilization in percent from which on a device counts as busy (paper 001)."""
UTILIZATION_NOTE = (
    "Utilization is the percentage of measured time in which the GPU was busy (NVML); on a CPU, "
    "the CPU time of the run over its available cores."
)
LocationPair = tuple[str, Group[Any], Group[Any]]
"""(where, data on the host, data on the device)."""


def programs_by_location(fed: DataLocations) -> tuple[ProgramSettings, ...]:
    """One program for each location, the host first."""
    if fed == "both":
        return ProgramSettings(data_location="host"), ProgramSettings(data_location="device")
    return (ProgramSettings(data_location=fed),)


def device_utilization(group: Group[Any]) -> tuple[str, float] | None:
    """The kind of device ("GPU", "CPU") and its utilization in percent, the median over the runs;
    None if it was not sampled."""
    for kind in ("gpu", "cpu"):
        percent = group.median_of(f"{kind}_utilization_percent")
        if percent is not None:
            return kind.upper(), percent
    return None


def utilization_cell(group: Group[Any]) -> Cell:
    """Device utilization as a table cell."""
    found = device_utilization(group)
    if group.throughput is None:
        return group.cell(None)
    if found is None:
        return Cell(reason="not sampled")
    return Cell(value=round(found[1], 1), run_id=group.run_id)


def speed_columns(groups: Iterable[Group[Any]]) -> tuple[Column, ...]:
    """The last columns of tables about input; `speed_cells` fills them."""
    return (
        Column(name=throughput_unit(r for g in groups for r in g.records)),
        Column(name="step", unit="ms"),
        Column(name="utilization", unit="%"),
    )


def speed_cells(group: Group[Any]) -> tuple[Cell, ...]:
    """Throughput, step time and utilization of a group, for `speed_columns`."""
    return group.cell(group.throughput), group.cell(group.step_ms), utilization_cell(group)


def device_kind(groups: Iterable[Group[Any]]) -> str:
    """ "GPU" or "CPU"; "device" if utilization was not sampled."""
    kinds = [found[0] for group in groups if (found := device_utilization(group)) is not None]
    return kinds[0] if kinds else "device"


def input_bound_findings(network: str, pairs: Sequence[LocationPair]) -> Iterator[Finding]:
    """Where training `network` is input-bound, where the copy from the host has a cost, and where
    there is no significant difference. Noisy runs are not compared."""
    slower: dict[str, list[str]] = {"input-bound": [], "copy-cost": []}
    noisy, compared = [], []
    for where, host, device in pairs:
        a, b = host.throughput, device.throughput
        if a is None or b is None:
            continue
        if caveats(host, device):
            noisy.append((where, host, device))
            continue
        compared.append((where, host, ratio(b, a)))
    judged = verdicts([found for *_, found in compared])
    for (where, host, found), verdict in zip(compared, judged, strict=True):
        if verdict.sign <= 0:
            continue
        busy = device_utilization(host)
        code = "input-bound" if busy is not None and busy[1] < BUSY_PERCENT else "copy-cost"
        percent = f" ({busy[1]:.0f} % utilization)" if busy else ""
        slower[code].append(f"{found.value:.2f}× as fast at {where}{percent}")
    kind = device_kind(host for _, host, _ in pairs)
    leads = {
        "input-bound": (
            f"Input-bound: host data loading is slower than the {kind}",
            "Increase the batch size, or keep data on the device.",
        ),
        "copy-cost": ("Copying batches from the host has a cost", ""),
    }
    for code, (lead, remedy) in leads.items():
        if slower[code]:
            yield Finding(
                code=code,
                text=f"{lead}. With data on the device, {network} trains "
                f"{format_list(slower[code])}.",
                remedy=remedy,
            )
    if judged and not any(slower.values()):
        yield Finding(
            code="no-input-cost",
            text=f"{network}: no significant difference between data on the host and on the "
            f"device; {max(judged, key=lambda v: v.least).unseen}.",
        )
    if noisy:
        yield Finding(
            code="input-not-compared",
            text=f"{network} at {format_list(where for where, *_ in noisy)} has no valid baseline "
            "with data on the device: one of the two runs was noisy.",
            caveats=caveats(*(group for _, *groups in noisy for group in groups)),
        )
