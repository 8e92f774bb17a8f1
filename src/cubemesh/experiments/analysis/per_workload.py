"""Answers of several workloads joined into one: an experiment that compares within a network and a
batch size answers each separately, and the parts follow one another, labelled by workload."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cubemesh.experiments.analysis.groups import setting_label
from cubemesh.schema import Answer, NetworkWork, RunRecord

Workload = tuple[str, ...]
"""Such as `("resnet-18", "batch size 64")`."""


def per_workload(
    records: Sequence[RunRecord],
    workload: Callable[[RunRecord], Workload | None],
    answer: Callable[[Sequence[RunRecord]], Answer],
) -> Answer:
    """`answer` of the records of each `workload`, joined, each part labelled by what differs.
    Records without a workload, such as ceilings, belong to every part."""
    keys = [workload(record) for record in records]
    workloads = list(dict.fromkeys(key for key in keys if key is not None))
    if len(workloads) < 2:
        return answer(records)
    differs = [len(set(column)) > 1 for column in zip(*workloads, strict=True)]
    return _joined(
        {
            ", ".join(p for p, shown in zip(own, differs, strict=True) if shown): answer(
                [r for r, key in zip(records, keys, strict=True) if key in (None, own)]
            )
            for own in workloads
        }
    )


def training_workload(record: RunRecord) -> Workload:
    """Network, batch size per device, and threads per device where they are set."""
    work, threads = record.spec.work, record.spec.placement.threads
    assert isinstance(work, NetworkWork)
    cores = () if threads is None else (setting_label("threads", threads),)
    return work.network, f"batch size {work.batch_per_device}", *cores


def batch_size(record: RunRecord) -> Workload:
    """The batch size per device as a workload."""
    return (f"batch size {record.spec.batch_per_device}",)


def _joined(answers: Mapping[str, Answer]) -> Answer:
    """One answer from several, by label; only findings of the first keep their questions."""
    first, *_ = answers.values()
    return replace(
        first,
        title="; ".join(dict.fromkeys(a.title for a in answers.values())),
        findings=tuple(
            replace(f, text=_labelled(label, f.text), question=f.question if a is first else None)
            for label, a in answers.items()
            for f in a.findings
        ),
        tables=tuple(
            replace(t, title=_labelled(label, t.title))
            for label, a in answers.items()
            for t in a.tables
        ),
        charts=tuple(
            replace(c, name=_file_name(label, c.name), title=_labelled(label, c.title))
            for label, a in answers.items()
            for c in a.charts
        ),
        warnings=tuple(dict.fromkeys(w for a in answers.values() for w in a.warnings)),
        run_ids=tuple(dict.fromkeys(run for a in answers.values() for run in a.run_ids)),
        notes=tuple(dict.fromkeys(note for a in answers.values() for note in a.notes)),
    )


def _labelled(label: str, text: str) -> str:
    return text if label in text else f"{label}: {text}".rstrip(": ")


def _file_name(label: str, name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return name if slug in name else f"{name}-{slug}"
