"""Remedies as settings: the step of a stored run as a question of `time-breakdown`, and what to
change in it against its largest loss.

The question has the settings of the run that differ from their defaults; a training is asked about
one of its steps. What a step computes is then measured with attribution, before and after a remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cubemesh.data import SOURCES
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.attribution.attribution import (
    COMMUNICATION,
    GAPS,
    HOST,
    INPUT,
    INPUT_CONTENTION,
)
from cubemesh.networks import NETWORKS
from cubemesh.schema import RunRecord, RunSpec
from cubemesh.schema.serialization import to_plain
from cubemesh.schema.work import Train, TrainSteps

_ELSEWHERE = frozenset({"kind", "network", "batch_per_device"})
"""Fields of the work that the question has under another name, or not at all."""


def breakdown_settings(spec: RunSpec) -> dict[str, Any] | None:
    """The settings of `time-breakdown` that measure the step of a spec with attribution; None for
    work without training steps, and for a framework whose profile is not read."""
    work, framework = spec.work, FRAMEWORKS.get(spec.program.framework)
    if not isinstance(work, Train | TrainSteps) or spec.against is not None:
        return None
    if framework is None or not framework.profiles or work.network not in NETWORKS:
        return None
    known = {field.name for field in fields(TrainSteps)} - _ELSEWHERE - {"losses"}
    plain = to_plain(spec, defaults=False)
    own = {k: v for k, v in plain.get("work", {}).items() if k in known}
    own |= {**plain.get("placement", {}), **plain.get("program", {})}
    if work.image_size is None and NETWORKS[work.network].image_size:
        own["image_size"] = NETWORKS[work.network].image_size
    return {
        "networks": work.network,
        "batch_sizes": work.batch_per_device,
        "ceiling": False,
        **own,
    }


def remedy_settings(record: RunRecord, loss: str) -> Mapping[str, Any]:
    """What to change in `breakdown_settings` against a loss of the step (`bottlenecks.py`); empty
    where no setting helps, as against other programs or a hot device."""
    work, program = record.spec.work, record.spec.program
    if not isinstance(work, Train | TrainSteps):
        return {}
    if work.own_data is not None and loss in (INPUT, INPUT_CONTENTION):
        return {}  # their code decides; `input-pipeline` finds which stage and how many workers
    slow = work.data in SOURCES and SOURCES[work.data].is_slow
    larger = {"batch_sizes": 2 * work.batch_per_device}
    if loss in (INPUT, INPUT_CONTENTION) and slow and not program.cache_decoded:
        return {"cache_decoded": True}
    if loss == INPUT and not slow:
        return {"input_threads": (program.input_threads or 0) + 2}
    if loss == GAPS and program.framework == "pytorch" and _on_gpu(record):
        return {"framework": "pytorch-compiled"}
    if loss in (GAPS, COMMUNICATION):
        return larger
    if loss == HOST and work.data == "synthetic" and program.data_location == "host":
        return {"data_location": "device"}
    return {}


def _on_gpu(record: RunRecord) -> bool:
    return any(rank.device.startswith("cuda") for rank in record.ranks)
