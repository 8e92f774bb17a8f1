"""JSON documents of `--json`.

Every document is an `envelope`: `{"schema": 1, "kind": …}` and its own fields. JSON has no NaN and
no infinity: such a value (the loss of a run that diverged) becomes null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cubemesh.experiments.tune.report import words
from cubemesh.experiments.tune.search import Search
from cubemesh.experiments.tune.search_space import FIELDS, Configuration
from cubemesh.exports.record_json import SCHEMA, finite, ratio_json, record_json
from cubemesh.machines.system_checks import Check
from cubemesh.schema import Answer, Figure, Machine
from cubemesh.schema.serialization import to_plain
from cubemesh.views.facts.machine import gpu_topology

if TYPE_CHECKING:
    from cubemesh.api.compare import Comparison
    from cubemesh.api.probe import StackComparison
    from cubemesh.api.run import AcceptResult, RunResult
    from cubemesh.api.tune import TuneResult
    from cubemesh.store.imports.import_training import ImportedTraining


def envelope(kind: str, **fields: Any) -> dict[str, Any]:
    """The document of one command: its schema version, its kind, and its fields."""
    return {"schema": SCHEMA, "kind": kind, **{name: finite(v) for name, v in fields.items()}}


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer: findings, tables, charts, warnings, notes."""
    return {name: finite(value) for name, value in to_plain(answer).items()}


def machine_json(machine: Machine) -> dict[str, Any]:
    """The document of a machine, with its id, its usable memory, and the topology of several GPUs
    (null where it is not known)."""
    return envelope(
        "machine",
        machine_id=machine.machine_id,
        usable_memory_bytes=machine.memory.usable_bytes,
        topology=_topology(machine),
        **to_plain(machine),
    )


def stack_comparison_json(found: StackComparison) -> dict[str, Any]:
    """The document of `cubemesh probe --against`."""
    return envelope(
        "stack_comparison",
        source=found.source,
        machine_id=found.own.machine_id,
        recorded_machine_id=found.recorded.machine_id,
        recorded_hostname=found.recorded.hostname,
        same_hardware=found.same_hardware,
        differences=to_plain(found.differences),
    )


def imported_training_json(found: ImportedTraining) -> dict[str, Any]:
    """The document of `cubemesh import` of a training log; `new` as for sweeps."""
    return envelope(
        "imported_training",
        format=found.format,
        new=[found.record.run_id] if found.new else [],
        records=[record_json(found.record)],
    )


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The document of `cubemesh compare`."""
    gate, compared = found.gate, found.compared
    sides = {
        name: {
            "asked": side.text,
            "run_ids": [r.run_id for r in side.records],
            "records": [record_json(r) for r in side.records],
        }
        for name, side in (("a", compared.first), ("b", compared.second))
    }
    return envelope(
        "comparison",
        ratio=ratio_json(found.ratio),
        fail_below=None if gate is None else gate.below,
        breached=None if gate is None else gate.breached[0],
        differences=[to_plain(d) for d in compared.differences],
        answer=answer_json(found.answer),
        **sides,
    )


def _topology(machine: Machine) -> dict[str, Any] | None:
    found = gpu_topology(machine)
    if found is None:
        return None
    from cubemesh.views.facts.topology import topology_json  # loads networkx

    return topology_json(found)


def run_json(found: RunResult) -> dict[str, Any]:
    """The document of `cubemesh run`: every record once, every answer, and the first by itself."""
    answers = [answer_json(answer) for answer in found.answers]
    return envelope(
        "run",
        records=[record_json(record) for record in found.records],
        answer=answers[0] if answers else None,
        answers=answers,
        comparisons=[
            {
                "workload_id": one.second.records[0].spec.workload_id,
                "baseline_run_ids": [r.run_id for r in one.first.records],
                "run_ids": [r.run_id for r in one.second.records],
                "ratio": ratio_json(one.ratio),
                "differences": [to_plain(d) for d in one.differences],
            }
            for one in found.comparisons
        ],
        fail_below=None if found.gate is None else found.gate.below,
    )


def acceptance_json(found: AcceptResult, problems: Sequence[Check]) -> dict[str, Any]:
    """The document of `cubemesh accept`: the verdict, every record, the answer, and what distorts
    measurements here."""
    one = found.experiments[0]
    return envelope(
        "acceptance",
        verdict=found.verdict.value,
        experiment_run_id=one.experiment_run.experiment_run_id,
        machine_id=one.experiment_run.machine_id,
        records=[record_json(record) for record in found.records],
        answer=answer_json(found.answer),
        problems=[to_plain(problem) for problem in problems],
    )


def tuning_json(found: TuneResult) -> dict[str, Any]:
    """The document of `cubemesh tune`: the best setting, the steps to it, and every trial."""
    search, settings = found.search, found.settings
    return envelope(
        "tuning",
        experiment_run_id=found.answered.experiment_run.experiment_run_id,
        network=settings.network,
        devices=settings.devices[0],
        batch_per_device=settings.batch_per_device,
        complete=found.complete,
        best=None if search.best is None else _configuration(search, search.best),
        to_stock=_figure(found.speedup),
        steps=[
            {
                "set": list(step.changes),
                "throughput_per_s": _figure(step.rate),
                "to_before": _figure(step.to_before),
                "to_stock": _figure(step.to_stock),
                "run_ids": [r.run_id for r in step.group.records],
            }
            for step in found.steps
        ],
        tried=[_tried(search, configuration) for configuration in search.tried],
        untried=[_configuration(search, configuration) for configuration in search.untried],
        answer=answer_json(found.answer),
    )


def _configuration(search: Search, configuration: Configuration) -> dict[str, Any]:
    return {
        "name": words(search, configuration),
        "settings": {name: getattr(configuration, name) for name in FIELDS},
    }


def _tried(search: Search, configuration: Configuration) -> dict[str, Any]:
    group, rejected = search.group(configuration), search.rejected.get(configuration)
    return {
        **_configuration(search, configuration),
        "outcome": group.records[0].outcome.status.value,
        "message": group.records[0].outcome.message,
        "throughput_per_s": _figure(group.throughput),
        "rejected": to_plain(rejected) if rejected else None,
        "run_ids": [r.run_id for r in group.records],
    }


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else to_plain(figure)
