"""A/B overrides: `--against KEY=VALUE` interleaves each run with a program that differs in it.

Settings that two programs of one process cannot differ in are refused before the first run, with
the way to compare them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.experiments.core.settings import apply, canonical, parse_value, spec_fields
from cubemesh.frameworks import entry
from cubemesh.schema import Against, Budget, Environment, NetworkWork, RunSpec, Train
from cubemesh.schema.serialization import field_types

SHARED: dict[str, str] = {
    "device": "interleaved windows on two devices do not have the same conditions",
    "devices": "both run on the same devices",
    "hosts": "both run on the same devices",
    "oversubscribe": "both run on the same devices",
    "pinning": "both use the CPUs that their process is pinned to",
    "numa_node": "both use the CPUs that their process is pinned to",
    "memory_policy": "both use the memory of one process",
    "huge_pages": "both use the memory of one process",
    "link": "both use the links that their process chose",
    "input_threads": "interleaved programs load batches within the step: threads of one would run "
    "in the windows of the other",
    "epochs": "training over epochs cannot be interleaved",
    "tuned": "both use the same tuning",
}
"""Field → why it cannot differ."""


def parse_against(experiment: Experiment, texts: Mapping[str, str]) -> dict[str, Any]:
    """The overrides of the other program from `texts` (key → value as typed); UsageError for
    unknown fields, and those that cannot differ in one process."""
    fields, budget = spec_fields(experiment), field_types(Budget)
    if texts and not experiment.alternates:
        raise UsageError(
            f"{experiment.name} cannot be interleaved with another program. Leave --against out."
        )
    changes = {}
    for key, text in texts.items():
        if key in budget and key in fields:
            raise UsageError(
                f"--against {key}={text}: the budget is the same for both programs. Use --set."
            )
        if key in SHARED:
            raise UsageError(
                f"--against {key}={text}: {SHARED[key]}. Measure both with `cubemesh run`, and "
                "compare the runs: cubemesh compare A B."
            )
        if key not in fields:
            known = [f for f in fields if f not in budget and f not in SHARED]
            hint = f"`cubemesh experiments {experiment.name}` lists them."
            raise unknown_name("field of a spec", key, known, hint, "fields")
        changes[key] = canonical(key, parse_value(key, text, fields[key]))
    return changes


def with_against(
    spec: RunSpec, changes: Mapping[str, Any], environments: Mapping[str, Environment]
) -> RunSpec:
    """`spec` interleaved with its program after `changes`; specs without steps, such as ceilings,
    are unchanged. `environments` are the frameworks with a separate Python. UsageError for programs
    that cannot share a process."""
    work = spec.work
    if not changes or not isinstance(work, NetworkWork):
        return spec
    if isinstance(work, Train):
        raise UsageError(
            "--against interleaves windows of steps, not training over epochs. Leave it out, or "
            "use minibatch, which measures steps."
        )
    if changes.get("precision", "fp16") != "fp16":
        changes = {"loss_scale": None, **changes}  # which only fp16 has
    other = apply(spec, changes)
    check_shared_process(spec.program.framework, other.program.framework, environments)
    against = Against(work=other.work, placement=other.placement, program=other.program)
    return dataclasses.replace(spec, against=against)


def check_shared_process(
    first: str, second: str, environments: Mapping[str, Environment] | None = None
) -> None:
    """UsageError for two frameworks that cannot run in one process; `environments` are those with a
    separate Python."""
    known = environments or {}
    pythons = {found.python if (found := known.get(f)) else "" for f in (first, second)}
    if entry(first).shares_process(entry(second)) and len(pythons) == 1:
        return
    raise UsageError(
        f"{first} and {second} cannot share a process: they would compete for threads and memory, "
        "or have separate Pythons. Measure both with --set repeats=3, and compare "
        f"the runs: cubemesh compare framework={first} framework={second}."
    )
