"""Form of an experiment: a field for each of its settings, checked one by one and queued as a job.

A field takes what `--set` takes. Several values between commas, as in `0.1, 0.01`, make a sweep
where a setting takes one value. Settings that name a file, a folder, a host or a program are not
in the form: a page does not choose what a host reads, writes or executes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.api.arguments import value_text
from cubemesh.api.catalogue import Setting, experiment_settings
from cubemesh.errors import BusyError, CubemeshError, StoreError, UsageError
from cubemesh.experiments.core.settings import parse_value, spec_fields
from cubemesh.experiments.registry import EXPERIMENTS, Context, Scale
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.submission import submit_question
from cubemesh.jobs.values import Question, QueuedJob
from cubemesh.machines import probe
from cubemesh.schema.serialization import field_types, to_plain
from cubemesh.store import Store
from cubemesh.untrusted import clean
from cubemesh.web.forms import Form, check_fields, one
from cubemesh.web.page import RefusedFormError

NOT_FROM_PAGES = frozenset(
    {
        *(
            "checkpoints",
            "data_path",
            "folder",
            "other_folders",
            "plan",
            "plan_file",
            "plan_checksum",
            "script",
        ),
        *("stage_folder", "stores", "system", "tensorboard", "hosts", "resume", "reshard"),
        *("drop_page_cache", "step", "import_from", "input_shape", "own_network", "own_data"),
    }
)
"""Settings that a form does not have."""
COMMON = (
    *("data", "epochs", "batch_per_device", "learning_rate", "schedule", "seed"),
    *("framework", "precision", "device", "devices"),
)
"""Settings of runs that a form shows at once."""
OPTIONS = ("scale", "on_devices", "job_priority")
"""Fields of a form that are not settings."""
_SCALES = ("quick", "default", "full")


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A setting in a form."""

    name: str
    type: str
    """As its values are typed: `cpu | cuda`."""
    choices: tuple[str, ...]
    """The values that it, or each of several, can have, where they are few words."""
    means: str
    default: str
    value: str = ""
    problem: str = ""


def form_of(experiment: str, values: Mapping[str, str], problems: Mapping[str, str]) -> Any:
    """What the template of a form shows: its own settings, and those of its runs."""
    found = experiment_settings(experiment)
    planned = _planned(experiment)

    def fields(settings: tuple[Setting, ...]) -> list[FormField]:
        return [
            _field(one, planned.get(one.name), values, problems)
            for one in settings
            if one.name not in NOT_FROM_PAGES
        ]

    of_runs = fields(found.fields)
    others = [field for field in of_runs if field.name not in COMMON]
    return {
        "own": fields(found.settings),
        "common": [field for field in of_runs if field.name in COMMON],
        "others": others,
        "others_open": any(field.value or field.problem for field in others),
        "scales": _SCALES,
        "options": {name: values.get(name, "") for name in OPTIONS},
        "problems": {name: problems.get(name, "") for name in OPTIONS},
    }


def _field(
    setting: Setting, planned: Any, values: Mapping[str, str], problems: Mapping[str, str]
) -> FormField:
    default = setting.default if planned is None else planned
    return FormField(
        name=setting.name,
        type=setting.type,
        choices=setting.choices,
        means=setting.means,
        default="" if default is None else clean(value_text(default), 200),
        value=values.get(setting.name, ""),
        problem=problems.get(setting.name, ""),
    )


@functools.cache
def _planned(experiment: str) -> Mapping[str, Any]:
    """The fields that all first runs of an experiment have in common: the defaults of its plan."""
    entry = EXPERIMENTS[experiment]
    try:
        specs = next(entry.plan(entry.settings(), Context(machine=probe())), ())
    except (CubemeshError, TypeError):  # a setting without a default
        return {}
    each = [
        {**to_plain(spec.budget), **to_plain(spec.program), **to_plain(spec.placement)}
        | to_plain(spec.work)
        for spec in specs
    ]
    own = field_types(entry.settings)
    first = each[0] if each else {}
    return {
        name: value
        for name, value in first.items()
        if name not in own and all(one.get(name) == value for one in each)
    }


def submit_form(
    queue: JobQueue, store: Store, experiment: str, form: Form, *, who: str
) -> QueuedJob:
    """Queue the question of a form, which `who` sends. RefusedFormError names what is wrong, by
    field."""
    kinds = {
        **spec_fields(EXPERIMENTS[experiment]),
        **field_types(EXPERIMENTS[experiment].settings),
    }
    for name in EXPERIMENTS[experiment].varies:
        kinds.pop(name, None)
    allowed = {name: kind for name, kind in kinds.items() if name not in NOT_FROM_PAGES}
    check_fields(form, (*allowed, *OPTIONS))
    texts = {name: one(form, name) for name in form if name not in OPTIONS}
    settings, sweep, problems = list[str](), list[str](), dict[str, str]()
    for name, text in texts.items():
        is_text = "," in text and _is_text(kinds[name])
        (sweep if is_text else settings).append(f"{name}={text}")
        for value in _values(name, text, kinds[name]):
            try:
                parse_value(name, value, kinds[name])
            except UsageError as error:
                problems[name] = str(error)
    scale, priority = one(form, "scale", "default"), _priority(form, problems)
    if scale not in _SCALES:
        problems["scale"] = f"Give one of {', '.join(_SCALES)}."
    if problems:
        raise RefusedFormError(text=_summary(problems), fields=problems)
    question = Question(
        names=(experiment,),
        settings=tuple(settings),
        scale=None if scale == Scale.DEFAULT else scale,
    )
    devices = one(form, "on_devices", "auto")
    try:
        return submit_question(
            queue, store, question, sweep=sweep, devices=devices, priority=priority, who=who
        )
    except (BusyError, StoreError):
        raise
    except CubemeshError as error:
        problems = _blamed(str(error), [*texts, *allowed])
        raise RefusedFormError(text=str(error), fields=problems) from None


def _priority(form: Form, problems: dict[str, str]) -> int:
    text = one(form, "job_priority", "0")
    if re.fullmatch(r"-?\d{1,6}", text) is None:
        problems["job_priority"] = "Give a whole number of at most six digits."
        return 0
    return int(text)


def _values(name: str, text: str, kind: Any) -> list[str]:
    """The values of a field that are checked by themselves: of a sweep each."""
    try:
        parse_value(name, text, kind)
    except UsageError:
        return [part for part in text.split(",") if part.strip()] or [text]
    return [text]


def _is_text(kind: Any) -> bool:
    return kind is str or kind == (str | None)


def _summary(problems: Mapping[str, str]) -> str:
    if len(problems) == 1:
        return next(iter(problems.values()))
    return f"{len(problems)} fields are not valid: {', '.join(problems)}."


def _blamed(text: str, names: list[str]) -> dict[str, str]:
    """The field that a sentence is about: the first of the names that it has."""
    if "--devices" in text:
        return {"on_devices": text}
    for name in names:
        if re.search(rf"\b{re.escape(name)}\b", text) or (
            name.endswith("s") and re.search(rf"\b{re.escape(name[:-1])}\b", text)
        ):
            return {name: text}
    return {}
