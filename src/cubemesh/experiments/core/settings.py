"""Settings of a run: from the text of `--set key=value` to experiment settings and spec fields.

A key is looked up in the settings of the experiment, then in the fields of its works, and of the
placement, the program and the budget. pydantic checks the value against the type of the field; a
single value of a list field is a list of one. An unknown key is an error that names the nearest, a
field that the experiment sets one that names the setting to use.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cubemesh.data import own as own_data
from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.networks import canonical_name, own_networks
from cubemesh.schema import (
    Against,
    Budget,
    Collective,
    NetworkWork,
    Placement,
    ProgramSettings,
    RunSpec,
    Training,
)
from cubemesh.schema.serialization import field_types
from cubemesh.units import parse_duration, parse_size
from cubemesh.untrusted import MOST_INTEGER
from cubemesh.worker.launch.ssh import connection_command

TUNED = "tuned"
"""The key that applies a tuning (tune/apply.py); not a field of a spec."""
INPUT_SHAPE = "input_shape"
"""The key of an own network's input (runs/own_networks.py); not a field of a spec."""
NOT_SET = ("kind", "own_network", "own_data")
"""Fields of works that no setting has."""
_PARTS = {"placement": Placement, "program": ProgramSettings, "budget": Budget}


@dataclasses.dataclass(frozen=True)
class Request:
    """The settings of an experiment, and the overrides of its specs."""

    settings: Any
    overrides: Mapping[str, Any]
    against: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The overrides of a second program, interleaved with each run; empty without one."""


def split(pairs: Iterable[str], option: str = "--set") -> dict[str, str]:
    """`["a=1", "b=x"]` as a dict; UsageError for text without an equals sign, or a repeated key."""
    texts: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UsageError(
                f"{option} {pair}: write it as key=value, as in {option} batch_per_device=32."
            )
        if key in texts:
            raise UsageError(f"{option} {key} is given twice: '{texts[key]}' and '{value}'.")
        texts[key] = value
    return texts


def spec_fields(experiment: Experiment) -> dict[str, Any]:
    """Every spec field that can be set in this experiment, with its type."""
    fields: dict[str, Any] = {}
    for part in (*experiment.works, *_PARTS.values()):
        fields |= {k: t for k, t in field_types(part).items() if k not in NOT_SET}
    if any(issubclass(work, NetworkWork) for work in experiment.works):
        fields[INPUT_SHAPE] = str
    if experiment.tunes and any(issubclass(work, NetworkWork) for work in experiment.works):
        fields[TUNED] = bool
    return fields


def request(experiment: Experiment, texts: Mapping[str, str]) -> Request:
    """The request of `texts` (key → value as typed); UsageError for an unknown key or a wrong
    value."""
    own, fields = field_types(experiment.settings), spec_fields(experiment)
    given, overrides = {}, {}
    for key, text in texts.items():
        if key in own:
            value = parse_value(key, text, own[key])
            given[key] = canonical(key, value)
        elif key in experiment.varies:
            raise UsageError(
                f"{key} is set by {experiment.name}. Use --set {experiment.varies[key]}=… instead."
            )
        elif key in fields:
            overrides[key] = canonical(key, parse_value(key, text, fields[key]))
        else:
            known = settable(experiment)
            hint = f"`cubemesh experiments {experiment.name}` lists them."
            raise unknown_name(f"setting of {experiment.name}", key, known, hint, "settings")
    if INPUT_SHAPE in overrides and not any(map(own_networks.is_own, network_names(texts))):
        raise UsageError(
            f"{INPUT_SHAPE}={overrides[INPUT_SHAPE]} is the input of a network of your own, such "
            "as networks=model.py:Net. Leave it out, or set image_size."
        )
    if overrides.get("hosts"):
        connection_command(os.environ)  # refuses an invalid one
    return Request(experiment.settings(**given), overrides)


def network_names(texts: Mapping[str, str]) -> list[str]:
    """The networks that settings name."""
    texts = {key: texts[key] for key in ("networks", "network") if key in texts}
    return [name.strip() for text in texts.values() for name in text.split(",") if name.strip()]


def data_names(texts: Mapping[str, str]) -> list[str]:
    """The data sets that settings name."""
    return [texts["data"].strip()] if "data" in texts else []


def canonical(key: str, value: Any) -> Any:
    """`value` with canonical names of networks and of data of one's own."""
    if key == "data" and value is not None and own_data.is_own(value):
        return own_data.get(value).name
    if key == "networks":
        return tuple(map(canonical_name, value))
    return canonical_name(value) if key == "network" else value


def settable(experiment: Experiment) -> list[str]:
    """Every key that can be set in this experiment, its own settings first."""
    own, fields = field_types(experiment.settings), spec_fields(experiment)
    return [*own, *(f for f in fields if f not in own and f not in experiment.varies)]


def parse_value(key: str, text: str, kind: Any) -> Any:
    """`text` as a value of the type a field has; lists are separated by commas.

    Fields in bytes take "2G" and "512MiB", fields in seconds "90" and "5m".
    """
    value: Any = text.strip()
    try:
        if _takes_list(kind) and value not in _words(kind):
            items = [v.strip() for v in value.split(",") if v.strip()]
            if value and not items:
                raise UsageError("there is no value between the commas. Give one, or leave it out.")
            value = items
        elif value.lower() == "none" and type(None) in typing.get_args(kind):
            return None
        elif key.endswith("_bytes"):
            value = parse_size(value)
        elif key.endswith("_s") or key in ("seconds", "warmup_seconds"):
            value = parse_duration(value)
        value = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        why = error.errors()[0]["msg"].replace("Input should be", "it must be")
        raise UsageError(f"{key}={text} is not valid: {why}.") from None
    except UsageError as error:
        raise UsageError(f"{key}={text}: {error}") from None
    values = value if isinstance(value, tuple) else (value,)
    if any(isinstance(v, int) and abs(v) >= MOST_INTEGER for v in values):
        raise UsageError(f"{key} is not valid: it must be an integer of at most 64 bits.")
    if any(isinstance(v, float) and not math.isfinite(v) for v in values):
        raise UsageError(f"{key}={text} is not valid: it must be finite.")
    return value


def _members(kind: Any) -> tuple[Any, ...]:
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


def _takes_list(kind: Any) -> bool:
    return any(typing.get_origin(member) is tuple for member in _members(kind))


def _words(kind: Any) -> tuple[Any, ...]:
    """The words that are values of a field, such as `auto`."""
    literals = (m for m in _members(kind) if typing.get_origin(m) is typing.Literal)
    return tuple(word for literal in literals for word in typing.get_args(literal))


def apply(spec: RunSpec, overrides: Mapping[str, Any], *, plans_devices: bool = False) -> RunSpec:
    """`spec` with `overrides` in the parts that have the fields.

    Training on several devices uses `sync=all-reduce` unless another is set; each of several hosts
    has at least one device. If the experiment `plans_devices`, its devices and strategies are
    unchanged, and runs with fewer devices than hosts stay on this host. A program to interleave
    with gets the same overrides. The work on an own network or own data gets its description.
    """
    if (other := spec.other) is not None:
        other = apply(other, overrides, plans_devices=plans_devices)
        against = Against(work=other.work, placement=other.placement, program=other.program)
        single = dataclasses.replace(spec, against=None)
        single = apply(single, overrides, plans_devices=plans_devices)
        return dataclasses.replace(single, against=against)
    if isinstance(spec.work, NetworkWork) and (described := own_networks.find(spec.work.network)):
        spec = dataclasses.replace(spec, work=dataclasses.replace(spec.work, own_network=described))
    changed: dict[str, Any] = {}
    collective = isinstance(spec.work, Collective)  # which needs several devices
    for part in ("work", *_PARTS):
        before = getattr(spec, part)
        names = {f.name for f in dataclasses.fields(before)}
        own = {k: v for k, v in overrides.items() if k in names}
        if own.get("hosts") and "devices" not in own:
            if before.devices < len(own["hosts"]) and plans_devices and not collective:
                del own["hosts"]
            else:
                own["devices"] = max(before.devices, len(own["hosts"]))
        if own:
            changed[part] = dataclasses.replace(before, **own)
    spec = dataclasses.replace(spec, **changed) if changed else spec
    if isinstance(spec.work, NetworkWork) and (code := own_data.find(spec.work.data)):
        work = dataclasses.replace(spec.work, data=code.name, own_data=code)
        spec = dataclasses.replace(spec, work=work)
    requested = not {"devices", "hosts"}.isdisjoint(overrides) and "sync" not in overrides
    several = spec.placement.devices > 1 and isinstance(spec.work, Training)
    if requested and several and not plans_devices:
        program = dataclasses.replace(spec.program, sync="all-reduce")
        spec = dataclasses.replace(spec, program=program)
    return spec
