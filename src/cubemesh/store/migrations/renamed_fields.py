"""Migration to version 2: new names of fields, settings, figures and warnings, and the table
`experiment_runs`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, text

from cubemesh.store.json_text import UNREADABLE

SPEC = {"effort": "budget", "keeping": "checkpointing"}
PARTS: dict[str, dict[str, str]] = {
    "placement": {"share_cores": "oversubscribe"},
    "program": {
        "exchange": "sync",
        "data_on": "data_location",
        "decode_on": "decode_location",
        "keep_decoded": "cache_decoded",
    },
    "budget": {
        "silent_s": "heartbeat_timeout_s",
        "most_seconds": "max_seconds",
        "interval": "target_ci",
    },
    "tuned": {"question_id": "experiment_run_id"},
}
FIELDS = {old: new for names in PARTS.values() for old, new in names.items()}
"""Renamed fields of a spec, whatever part they belong to."""
WARNINGS = {
    "images-set-aside": "images-skipped",
    "scripted": "simulated",
    "other-precision": "precision-mismatch",
    "tuned-for-another": "tuned-for-other-batch-size",
    "few-host-memory": "low-host-memory",
    "energy-disagrees": "energy-mismatch",
    "events-failed": "event-file-failed",
    "shared-cores": "oversubscribed",
    "idle-link": "faster-link-unused",
}
NAMES = {
    "cpu_utilisation_percent": "cpu_utilization_percent",
    "gpu_utilisation_percent": "gpu_utilization_percent",
    "images_set_aside": "images_skipped",
    "normalisation and elementwise": "normalization and elementwise",
    "synchronise": "synchronize",
}
"""Names of figures, series and categories, wherever they are in a record."""
EXPERIMENT_RUN = {
    "question_id": "experiment_run_id",
    "asked_utc": "started_utc",
    "place": "reproduces",
}
_ONE_NETWORK = {"network": "networks[]"}
_ONE_BATCH_SIZE = {"batch_per_device": "batch_sizes[]"}
_SCALING = {
    "exchanges": "strategies",
    "alone": "independent",
    "batches": "batch_sizes",
    "threads": "threads[]",
}
SETTINGS: dict[str, dict[str, str]] = {
    "batch-accuracy": {
        **_ONE_NETWORK,
        "batches": "batch_sizes",
        "learning_rate": "learning_rates[]",
    },
    "cluster": {
        "systems": "system_counts",
        "trained": "networks[]",
        "minibatch": "batch_sizes[]",
        "computed_in": "precisions[]",
        "most_devices": "max_devices",
    },
    "collectives": {"smallest_bytes": "min_bytes", "largest_bytes": "max_bytes"},
    "cpu-modes": {**_ONE_NETWORK, **_ONE_BATCH_SIZE},
    "frameworks": {**_ONE_BATCH_SIZE, "runs": "steps"},
    "image-size": {**_ONE_NETWORK, "sizes": "image_sizes", "batches": "batch_sizes"},
    "input-pipeline": {**_ONE_NETWORK, **_ONE_BATCH_SIZE},
    "interconnect": {**_SCALING, "alone": "", "widths": "hidden_sizes"},
    "lr-scaling": {**_ONE_NETWORK, **_ONE_BATCH_SIZE, "ranks": "devices", "threads": "threads[]"},
    "minibatch": {
        **_ONE_NETWORK,
        "batches": "batch_sizes",
        "smallest": "min_batch_size",
        "largest": "max_batch_size",
        "always": "min_largest_batch",
    },
    "model-size": _ONE_BATCH_SIZE,
    "power": {"batches": "batch_sizes"},
    "precision": _ONE_BATCH_SIZE,
    "seq2seq": {"attention": "attentions", "widths": "hidden_sizes", "batches": "batch_sizes"},
    "sequential-equivalence": {
        "ranks": "devices",
        "exchanges": "strategies",
        "global_batch": "global_batch_sizes[]",
    },
    "strategies": _SCALING,
    "strong-scaling": {
        "exchanges": "strategies",
        "alone": "independent",
        "global_batches": "global_batch_sizes",
        "threads": "threads[]",
    },
    "time-breakdown": {"batches": "batch_sizes"},
    "time-to-accuracy": {
        **_ONE_NETWORK,
        **_ONE_BATCH_SIZE,
        "ranks": "devices",
        "target": "target_accuracy",
        "threads": "threads[]",
    },
    "train": _ONE_NETWORK,
    "tune": {
        **_ONE_NETWORK,
        **_ONE_BATCH_SIZE,
        "batches": "batch_sizes",
        "devices": "devices[]",
        "compiling": "compile_by",
        "exchanges": "strategies",
    },
    "weak-scaling": {**_SCALING, "regime": "mode"},
}
"""Renamed settings of experiments. `name[]`: the single value becomes a list of one, and None an
empty list; two settings of one new name are joined; an empty name drops the setting."""


def rename_fields(connection: Connection) -> None:
    """Version 2: field names in records and experiment runs, and the table `experiment_runs`."""
    for statement in (
        "ALTER TABLE questions RENAME TO experiment_runs",
        "ALTER TABLE experiment_runs RENAME COLUMN question_id TO experiment_run_id",
        "ALTER TABLE experiment_runs RENAME COLUMN asked_utc TO started_utc",
        "ALTER TABLE experiment_runs RENAME COLUMN question TO experiment_run",
        "DROP INDEX ix_questions_asked_utc",
        "CREATE INDEX ix_experiment_runs_started_utc ON experiment_runs (started_utc)",
    ):
        connection.execute(text(statement))
    for old, new in NAMES.items():
        connection.execute(
            text("UPDATE series SET name = :new WHERE name = :old"), {"old": old, "new": new}
        )
    _rewrite(connection, "records", "run_id", "record", _record)
    _rewrite(connection, "experiment_runs", "experiment_run_id", "experiment_run", _experiment_run)


def _rewrite(
    connection: Connection,
    table: str,
    identity: str,
    column: str,
    rewritten: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """Apply `rewritten` to the JSON in `column` of every row; a damaged one stays as it is."""
    for (row,) in connection.execute(text(f"SELECT {identity} FROM {table}")).all():
        where = f"FROM {table} WHERE {identity} = :row"
        found = connection.execute(text(f"SELECT {column} {where}"), {"row": row}).scalar_one()
        try:
            plain = json.dumps(rewritten(json.loads(found)), separators=(",", ":"))
        except UNREADABLE:
            continue
        connection.execute(
            text(f"UPDATE {table} SET {column} = :plain WHERE {identity} = :row"),
            {"plain": plain, "row": row},
        )


def _renamed(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in table.items()}


def _named(value: Any) -> Any:
    """`value` with every key and string of `NAMES` replaced."""
    if isinstance(value, dict):
        return {NAMES.get(key, key): _named(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return NAMES.get(value, value) if isinstance(value, str) else value


def _record(record: dict[str, Any]) -> dict[str, Any]:
    record = _named(record)
    for warning in record["warnings"]:
        warning["code"] = WARNINGS.get(warning["code"], warning["code"])
    return record | {"spec": _spec(record["spec"]), "schema": 2}


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    found = _renamed(spec, SPEC)
    for part, names in PARTS.items():
        if found.get(part):
            found[part] = _renamed(found[part], names)
    if found.get("against"):
        found["against"] = _spec(found["against"])
    if found.get("tuned"):
        settings = (line.partition("=") for line in found["tuned"]["settings"])
        found["tuned"]["settings"] = [f"{FIELDS.get(k, k)}={value}" for k, _, value in settings]
    return found


def _experiment_run(run: dict[str, Any]) -> dict[str, Any]:
    overrides = _renamed(run["overrides"], FIELDS)
    if overrides.get("against"):
        overrides["against"] = _renamed(overrides["against"], FIELDS)
    settings = _settings(run["experiment"], run["settings"])
    return _renamed(run, EXPERIMENT_RUN) | {"settings": settings, "overrides": overrides}


def _settings(experiment: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    names = {"data_on": "data_location"} | SETTINGS.get(experiment, {})
    if settings.get("learning_rates"):  # which the single one had no effect beside
        names["learning_rate"] = ""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        new = names.get(key, key)
        name = new.removesuffix("[]")
        if new != name and not isinstance(value, list):
            value = [] if value is None else [value]
        if name in found:
            value = [*found[name], *(one for one in value if one not in found[name])]
        if name:
            found[name] = value
    return found
