"""Comparability: both sides of a comparison did the same work, or the text says what differs.

Published figures are of a network at its own image size. A ratio's sides are the runs that the
finding names (`Finding.sides`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.audit.evidence import Evidence, Row, name_of
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.networks.own_input import at_own_size, is_imagenet
from cubemesh.papers.published import figures, same_device
from cubemesh.papers.published.names import CANONICAL
from cubemesh.schema import Column, Finding, NetworkWork, RunRecord

SETTINGS = ("precision", "layout", "framework")
"""Fields of a program that must be named where the sides of a ratio differ in them."""


def published_rows(evidence: Evidence) -> Iterator[Inconsistency]:
    """Published figures next to measurements of another image size, or of a farther device than
    necessary."""
    answer = evidence.answer
    measured = [r for r in evidence.records if r.ok and isinstance(r.spec.work, NetworkWork)]
    published = [t for t in (answer.tables if answer else ()) if _is_published(t.columns)]
    for table in published:
        rows = [Row(table, cells) for cells in table.rows]
        networks = {name for row in rows if (name := _canonical(row))}
        units = {column.unit for column in table.columns}
        for record in measured:
            network = getattr(record.spec.work, "network", "")
            if network not in networks:
                continue
            if not at_own_size(record.spec.work):
                yield inconsistency(
                    "different-image-size",
                    f"{name_of(record)} is next to published figures of {network} at its own "
                    "image size.",
                    evidence.place(record.run_id, table=table.title),
                    "Measure at the network's own image size, or leave the published rows out.",
                )
            device = device_of(record)
            shown = [_text(r, "device") for r in rows if _canonical(r) == network]
            if device and not same_device(device, shown[0]):
                known = _of_device(network, device, "time" if "ms" in units else "throughput")
                if known:
                    yield inconsistency(
                        "farther-device",
                        f"{shown[0]} is shown as nearest to {device}, of which {known} rows of "
                        f"{network} are published.",
                        evidence.place(record.run_id, table=table.title),
                        "Order published rows by the device that was measured.",
                    )


def _is_published(columns: Sequence[Column]) -> bool:
    names = [column.name for column in columns]
    return {"device", "source", "network"} <= set(names)


def _canonical(row: Row) -> str:
    name = _text(row, "network")
    return CANONICAL.get(name, name)


def _text(row: Row, name: str) -> str:
    """The text in a column."""
    return row.cells[[c.name for c in row.table.columns].index(name)].text


def _of_device(network: str, device: str, metric: str) -> int:
    """The number of published rows of a network on a device."""
    return sum(
        f.canonical == network and f.metric.endswith(metric) and same_device(device, f.device)
        for f in figures()
    )


def sides(evidence: Evidence) -> Iterator[Inconsistency]:
    """Ratios whose sides differ in what the text does not name."""
    for finding in evidence.findings:
        if finding.sides is None:
            continue
        found = [evidence.by_id.get(run) for run in finding.sides]
        if found[0] is None or found[1] is None:
            continue
        for what, first, second in _differences(found[0], found[1]):
            if not (_names(finding, first) and _names(finding, second)):
                yield inconsistency(
                    "not-comparable",
                    f"{finding.value:.2f}{finding.unit[:1] or '×'} compares {what} {first} with "
                    f"{what} {second}, and the text does not name both.",
                    evidence.place(*finding.sides, finding=finding),
                    "Compare with a run that differs only in what is named, or name both.",
                )


def device_of(record: RunRecord) -> str:
    """The name of the device that a run used; empty if unknown."""
    return record.ranks[0].device_name if record.ranks else ""


def _names(finding: Finding, value: str) -> bool:
    return value in finding.text or value in finding.unit


def _differences(a: RunRecord, b: RunRecord) -> Iterator[tuple[str, str, str]]:
    one, other = a.spec.work, b.spec.work
    if isinstance(one, NetworkWork) and isinstance(other, NetworkWork):
        for name in ("network", "image_size", "batch_per_device", "sequence_length"):
            first, second = getattr(one, name), getattr(other, name)
            if first != second:
                yield name.replace("_", " "), str(first or "default"), str(second or "default")
    for name in SETTINGS:
        first, second = getattr(a.spec.program, name), getattr(b.spec.program, name)
        if first != second:
            yield name, first, second
    if device_of(a) and device_of(b) and not same_device(device_of(a), device_of(b)):
        yield "device", device_of(a), device_of(b)


def projections(evidence: Evidence) -> Iterator[Inconsistency]:
    """Projections to 90 ImageNet epochs from work on other images."""
    for row in evidence.rows:
        record = evidence.by_id.get(row.run_id)
        days = row.value("90 epochs")
        if record is not None and days is not None and not is_imagenet(record.spec.work):
            yield inconsistency(
                "projection-of-other-data",
                f"{days:.3g} days for 90 epochs of ImageNet, projected from {name_of(record)}.",
                evidence.place(row.run_id, table=row.table.title),
                "Project from a network for ImageNet at its own image size only.",
            )
