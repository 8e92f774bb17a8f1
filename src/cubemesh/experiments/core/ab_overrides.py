"""`--against KEY=VALUE`: every run of an experiment alternates with a program that differs in that.

What cannot differ between two programs of one process is refused before anything runs, with the
way that compares it all the same.
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
    "device": "windows on two devices do not meet the same conditions by alternating",
    "devices": "both run on the same devices",
    "hosts": "both run on the same devices",
    "oversubscribe": "both run on the same devices",
    "pinning": "both have the processors that their process is bound to",
    "numa_node": "both have the processors that their process is bound to",
    "link": "both have the links that their process chose",
    "input_threads": "minibatches are made in the step where two programs alternate: threads would "
    "work for one of them in the windows of the other",
    "epochs": "training over epochs does not alternate",
    "tuned": "both take over the same tuning, and differ in what is given here",
}
"""Field → why it cannot differ."""


def parse_against(experiment: Experiment, texts: Mapping[str, str]) -> dict[str, Any]:
    """What `texts` (key → value as typed) change in the other program; UsageError for what cannot
    differ in one process, or is no field."""
    fields, budget = spec_fields(experiment), field_types(Budget)
    if texts and not experiment.alternates:
        raise UsageError(
            f"{experiment.name} compares programs by itself, and takes no --against. Leave it out."
        )
    changes = {}
    for key, text in texts.items():
        if key in budget and key in fields:
            raise UsageError(
                f"--against {key}={text}: the effort is the same for both programs. Use --set."
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


def alternating(
    spec: RunSpec, changes: Mapping[str, Any], environments: Mapping[str, Environment]
) -> RunSpec:
    """`spec` with the same program, changed, against it; what has no steps stays as it is: a
    ceiling. `environments` are the frameworks with a Python of their own. UsageError for two
    programs that cannot share a process."""
    work = spec.work
    if not changes or not isinstance(work, NetworkWork):
        return spec
    if isinstance(work, Train):
        raise UsageError(
            "--against alternates windows of steps, and training over epochs is compared by its "
            "end. Leave --against out here, or use minibatch, which measures steps."
        )
    if changes.get("precision", "fp16") != "fp16":
        changes = {"loss_scale": None, **changes}  # a scale is fp16's alone
    other = apply(spec, changes)
    _check_frameworks(spec.program.framework, other.program.framework, environments)
    against = Against(work=other.work, placement=other.placement, program=other.program)
    return dataclasses.replace(spec, against=against)


def _check_frameworks(first: str, second: str, environments: Mapping[str, Environment]) -> None:
    pythons = {found.python if (found := environments.get(f)) else "" for f in (first, second)}
    if entry(first).requires == entry(second).requires and len(pythons) == 1:
        return
    raise UsageError(
        f"{first} and {second} do not share a process: each would take the threads and the memory "
        "of the other, or has a Python of its own. Measure both with --set repeats=3, and compare "
        f"the runs: cubemesh compare framework={first} framework={second}."
    )
