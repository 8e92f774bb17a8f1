"""Checks of specifications: a paper's figure of a device, compared with the catalogue's from
another source, and a measurement that a paper quotes, compared with what its source published.

A figure that the catalogue has from the same paper settles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.papers.claims.evidence import Evidence, Untested, settled
from cubemesh.papers.published import figures, stock_figures
from cubemesh.schema import Basis, Claim, ClaimState, Figure, Verdict

SAME = 0.01
"""Largest relative difference of two statements of one specification."""
GB, TB = 1e9, 1e12


def datasheet(
    claim: Claim, evidence: Evidence, device: str, figure: str, scale: float, times: int = 1
) -> Verdict:
    """Whether a figure of a device, in units of `scale` and `times` over, is the catalogue's."""
    sheet = datasheets()[device]
    found = sheet.figures.get(figure)
    if found is None:
        raise Untested("not-stated", f"the catalogue has no {figure} of {sheet.name}")
    value = Figure(value=times * found.value / scale, unit=claim.unit)
    if f"[{claim.document}]" in found.source:
        reason = f"the catalogue has the figure of {sheet.name} from this paper alone"
        raise Untested("same-source", reason)
    return _specified(claim, value, f"{sheet.name}, {found.source}")


def peaks(claim: Claim, evidence: Evidence, device: str, tflops: Mapping[str, float]) -> Verdict:
    """Whether each of some peaks in TFLOP/s is the catalogue's; the first is the claim's value."""
    sheet = datasheets()[device]
    found = {name: peak for name in tflops if (peak := sheet.peak(name)) is not None}
    if found.keys() != tflops.keys():
        raise Untested("not-stated", f"the catalogue does not have all peaks of {sheet.name}")
    first = next(iter(tflops))
    off = [
        f"{name}: {found[name].flops_per_s / TB:g} instead of {value:g}"
        for name, value in tflops.items()
        if abs(found[name].flops_per_s / TB / value - 1) > SAME
    ]
    value = Figure(value=found[first].flops_per_s / TB, unit=claim.unit)
    verdict = _specified(claim, value, f"{sheet.name}, {found[first].source}")
    if not off:
        return verdict
    return replace(verdict, state=ClaimState.DOES_NOT_HOLD, reason="; ".join(off))


def host_memory(claim: Claim, evidence: Evidence, system: str) -> Verdict:
    """Whether the ratio of a system's memory to that of its GPUs is the claim's."""
    found = load_system(system)
    multiple = found.host_to_gpu_memory
    if multiple is None:
        raise Untested("not-stated", f"the catalogue does not have the memory of {found.title}")
    return _specified(claim, Figure(value=multiple, unit=claim.unit), found.title)


def quoted(
    claim: Claim, evidence: Evidence, networks: tuple[str, ...], source: str, batch: int
) -> Verdict:
    """Whether the claim's throughputs of one device are those of the source that it quotes."""
    rows = [
        row
        for row in (*figures(), *stock_figures())
        if source in row.source
        and (row.devices, row.metric, row.batch_per_device) == (1, "throughput", batch)
        and "synthetic" in row.note
    ]
    wanted = dict(zip(networks, claim.values, strict=True))
    pairs = [
        (network, row)
        for network, value in wanted.items()
        for row in rows
        if row.canonical == network and row.value == value
    ]
    devices = {network: {r.device for n, r in pairs if n == network} for network in networks}
    shared = set.intersection(*devices.values()) if devices else set()
    if not shared:
        raise Untested("not-published", f"{source} has no device with all these figures")
    row = pairs[0][1]
    reason = f"{row.source}: one {', '.join(sorted(shared))}, synthetic data"
    figure = Figure(value=row.value, unit=claim.unit)
    verdict = settled(claim, True, "as-quoted", reason, figure)
    return replace(verdict, measured=None, forecast=figure, basis=Basis.PUBLISHED)


def _specified(claim: Claim, figure: Figure, where: str) -> Verdict:
    value = claim.values[0]
    holds = abs(figure.value / value - 1) <= SAME
    verdict = settled(
        claim, holds, "as-specified" if holds else "other-specification", where, figure
    )
    return replace(verdict, measured=None, forecast=figure, basis=Basis.SPECIFICATION)
