"""Answers of several workloads joined into one: an experiment that compares within a network and a
batch size answers each on its own, and this puts the parts behind one another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cubemesh.experiments.analysis.groups import setting_label
from cubemesh.schema import Answer, NetworkWork, RunRecord


def per_workload(
    records: Sequence[RunRecord],
    workload: Callable[[RunRecord], tuple[str, ...]],
    answer: Callable[[Sequence[RunRecord]], Answer],
) -> Answer:
    """`answer` of the records of each `workload` (such as `("resnet-18", "batch size 64")`),
    joined; parts are labelled by what differs between them."""
    own: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        own.setdefault(workload(record), []).append(record)
    if len(own) < 2:
        return answer(records)
    differs = [len(set(column)) > 1 for column in zip(*own, strict=True)]
    return joined(
        {
            ", ".join(p for p, shown in zip(parts, differs, strict=True) if shown): answer(found)
            for parts, found in own.items()
        }
    )


def batch_size(record: RunRecord) -> tuple[str, ...]:
    """The batch size per device as a workload."""
    return (f"batch size {record.spec.batch_per_device}",)


def training_workload(record: RunRecord) -> tuple[str, ...]:
    """Network, batch size per device, and threads per device where they are set."""
    work, threads = record.spec.work, record.spec.placement.threads
    assert isinstance(work, NetworkWork)
    cores = () if threads is None else (setting_label("threads", threads),)
    return work.network, f"batch size {work.batch_per_device}", *cores


def joined(answers: Mapping[str, Answer]) -> Answer:
    """One answer from several, by label; as it is when there is only one."""
    first, *others = answers.values()
    if not others:
        return first
    return replace(
        first,
        title="; ".join(dict.fromkeys(a.title for a in answers.values())),
        findings=tuple(
            replace(f, text=f"{label}: {f.text}", question=f.question if a is first else None)
            for label, a in answers.items()
            for f in a.findings
        ),
        tables=tuple(
            replace(t, title=f"{label}: {t.title}".rstrip(": "))
            for label, a in answers.items()
            for t in a.tables
        ),
        charts=tuple(
            replace(c, name=f"{c.name}-{_slug(label)}", title=f"{label}: {c.title}")
            for label, a in answers.items()
            for c in a.charts
        ),
        warnings=tuple(dict.fromkeys(w for a in answers.values() for w in a.warnings)),
        run_ids=tuple(dict.fromkeys(run for a in answers.values() for run in a.run_ids)),
        notes=tuple(dict.fromkeys(note for a in answers.values() for note in a.notes)),
    )


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
