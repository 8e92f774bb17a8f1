"""Why a run is slow: the parts that sum to its step, the largest loss, and its remedy as a form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cubemesh.api.arguments import value_text
from cubemesh.experiments.time_breakdown.remedies import breakdown_settings, remedy_settings
from cubemesh.measure.attribution.bottlenecks import (
    excess_of,
    largest_bottleneck,
    step_parts,
)
from cubemesh.schema import RunRecord, RunSpec
from cubemesh.schema.work import NetworkWork
from cubemesh.store import Store
from cubemesh.store.run_list import RunFilter
from cubemesh.untrusted import clean
from cubemesh.views.facts.run import part_shares
from cubemesh.views.formatting import quantity, words
from cubemesh.web.question_form import NOT_FROM_PAGES

EXPERIMENT = "time-breakdown"
"""What measures a step with attribution."""
_MOST_RUNS = 20
_NAMES = {"batch_sizes": "batch size"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """The step of a run, which may still be measured."""

    spec: RunSpec
    machine_id: str
    record: RunRecord | None = None
    """None of a run that is not stored yet."""


def step_of(record: RunRecord) -> Step:
    """The step of a stored run."""
    return Step(spec=record.spec, machine_id=record.key.machine_id, record=record)


def why_slow(store: Store, step: Step) -> dict[str, Any] | None:
    """What takes the time of a step; None for work without steps that can be attributed.
    `measured` is the run that was attributed: this one, or another of the same step on the same
    machine; null where none was. `ask` are the fields of the form that measures the step, those of
    `changes` among them; null where no page can queue it."""
    record = step.record
    if not isinstance(step.spec.work, NetworkWork) or (record is not None and not record.ok):
        return None
    fields = breakdown_settings(step.spec)
    own_parts = record is not None and record.parts
    attributed = record if own_parts else _attributed(store, step, fields)
    if attributed is None:
        if fields is None:
            return None
        return {"measured": None, "parts": [], "step_s": None, "loss": None, **_form(fields, {})}
    loss = largest_bottleneck(attributed)
    changes = {} if loss is None else dict(remedy_settings(attributed, loss.name))
    own = breakdown_settings(attributed.spec)
    return {
        "measured": attributed.run_id,
        "step_s": math.fsum(part.seconds for part in step_parts(attributed)),
        "parts": [
            {"name": part.name, "seconds": part.seconds, "method": clean(part.method)}
            for part in step_parts(attributed)
        ],
        "loss": None
        if loss is None
        else {
            "name": loss.name,
            "share": loss.share,
            "text": loss.text,
            "remedy": loss.remedy,
            "faster_at_most": _faster(attributed, loss.share) if loss.name else None,
        },
        **_form(own, changes),
    }


def _attributed(store: Store, step: Step, fields: dict[str, Any] | None) -> RunRecord | None:
    """The newest run on the same machine that attributed the same step."""
    spec, work = step.spec, step.spec.work
    if fields is None or not isinstance(work, NetworkWork):
        return None
    alike = RunFilter(
        network=work.network,
        work="train_steps",
        framework=spec.program.framework,
        precision=spec.program.precision,
        devices=spec.placement.devices,
        batch_per_device=work.batch_per_device,
        machine=step.machine_id,
        outcome="ok",
    )
    wanted = _of_speed(fields)
    rows = store.list_runs(alike, limit=_MOST_RUNS).rows
    for row in rows:
        other = store.record(row.run_id)
        own = breakdown_settings(other.spec) if other.parts else None
        if own is not None and _of_speed(own) == wanted:
            return other
    return None


def _of_speed(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in ("learning_rate", "seed")}


def _faster(record: RunRecord, share: float) -> float | None:
    """How many times as fast the step would be without a loss."""
    return 1 / (1 - share) if share < 1 and excess_of(record) is None else None


def _form(fields: dict[str, Any] | None, changes: dict[str, Any]) -> dict[str, Any]:
    if fields is None or set(fields) & NOT_FROM_PAGES:
        return {"experiment": EXPERIMENT, "ask": None, "changes": {}}
    whole = {**fields, **changes}
    return {
        "experiment": EXPERIMENT,
        "ask": {name: value_text(value) for name, value in whole.items()},
        "changes": {name: value_text(value) for name, value in changes.items()},
    }


def why_view(store: Store, step: Step) -> dict[str, Any] | None:
    """`why_slow` in words."""
    found = why_slow(store, step)
    if found is None:
        return None
    loss, own = found["loss"], "" if step.record is None else step.record.run_id
    shown = step.record if found["measured"] in (None, own) else store.record(found["measured"])
    text = remedy = gain = ""
    if loss is not None:
        text = clean(f"{loss['text']}.")
        remedy = (
            clean(f"{loss['remedy'][:1].upper()}{loss['remedy'][1:]}.") if loss["remedy"] else ""
        )
        faster = loss["faster_at_most"]
        if faster is not None and loss["share"] > 0:
            gain = f"Without this loss a step would be at most {100 * (faster - 1):.0f} % faster."
    parts, left = [], 0.0
    shares = [] if shown is None else part_shares(shown)
    for part, share in zip(found["parts"], shares, strict=True):
        width = 100 * max(0.0, min(1 - left, share.share))
        parts.append((part["name"], share, f"{100 * left:.3f}", f"{width:.3f}"))
        left += max(0.0, share.share)
    changes = ", ".join(
        f"{_NAMES.get(name) or words(name)} {value}" for name, value in found["changes"].items()
    )
    return {
        **found,
        "parts": parts,
        "step": "" if found["step_s"] is None else quantity(found["step_s"], "s"),
        "text": text,
        "remedy": remedy,
        "gain": gain,
        "change_text": clean(changes),
        "settings": [f"{name}={value}" for name, value in (found["ask"] or {}).items()],
        "not_attributed": "is not attributed" if step.record is None else "was not attributed",
        "other": found["measured"] not in (None, own),
    }
