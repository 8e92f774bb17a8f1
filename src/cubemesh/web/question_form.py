"""Form of an experiment: a field for each of its settings, checked one by one and queued as a job,
now or every night.

A field takes what `--set` takes. Several values between commas, as in `0.1, 0.01`, make a sweep
where a setting takes one value, but not in a nightly schedule. Settings that name a file, a folder,
a host or a program are not in the form: a page does not choose what a host reads, writes or
executes. It may choose the host whose agent takes the job.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.api.arguments import value_text
from cubemesh.api.catalogue import Setting, experiment_settings
from cubemesh.errors import BusyError, CubemeshError, StoreError, UsageError
from cubemesh.experiments.core.settings import parse_value, spec_fields, split
from cubemesh.experiments.registry import EXPERIMENTS, Context, Scale
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import MOST_WITHIN_S, WITHIN_S, Schedule, Schedules, parse_hour
from cubemesh.jobs.submission import schedule_question, submit_question
from cubemesh.jobs.values import Question, QueuedJob
from cubemesh.machines import probe
from cubemesh.schema.serialization import field_types, to_plain
from cubemesh.store import Store
from cubemesh.units import parse_duration
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
NIGHTLY = ("nightly_at", "nightly_within", "nightly_load")
"""Fields of a form that a nightly schedule has."""
OPTIONS = ("scale", "on_devices", "on_host", "job_priority", "when", *NIGHTLY)
"""Fields of a form that are not settings."""
_WHEN = ("now", "nightly")
_LOADS = ("idle", "any")
_AT = "02:00"
_UNITS = ((3600, "h"), (60, "m"), (1, "s"))
_SCALES = ("quick", "default", "full")
_MOST_HOSTS = 20
"""Hosts that a message names."""
_ONE_VALUE = "Give one value: a schedule is one job a night. Or make a schedule for each value."
_NOT_NIGHTLY = "This belongs to 'every night'. Choose that, or leave this as it was."


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


@dataclass(frozen=True, kw_only=True)
class _Night:
    """When a nightly schedule queues its job."""

    at: str
    within_s: float
    when_idle: bool


def form_of(
    experiment: str, values: Mapping[str, str], problems: Mapping[str, str], hosts: Iterable[str]
) -> Any:
    """What the template of a form shows: its own settings, those of its runs, and which of the
    `hosts` may take the job."""
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
        "hosts": sorted({*hosts, values.get("on_host", "")} - {""}),
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


def experiment_with_form(question: Question) -> str:
    """The experiment whose form has all settings of a question; empty where none has."""
    keys = {line.partition("=")[0].strip().replace("-", "_") for line in question.settings}
    plain = not (question.against or question.pythons or keys & NOT_FROM_PAGES)
    single = len(question.names) == 1 and question.names[0] in EXPERIMENTS
    return question.names[0] if plain and single else ""


def values_of(question: Question) -> dict[str, str]:
    """The fields of a form that asks a question."""
    found = {k: v for k, v in split(question.settings).items() if k not in NOT_FROM_PAGES}
    return found | {"scale": question.scale or ""}


def values_of_schedule(schedule: Schedule) -> dict[str, str]:
    """The fields of a form that makes the same schedule."""
    wants, within_s = schedule.wants, schedule.within_s
    divisor, unit = next(one for one in _UNITS if within_s % one[0] == 0)
    return values_of(schedule.question) | {
        "on_devices": str(wants.devices) if wants.device == "gpu" else "",
        "on_host": wants.host or "",
        "job_priority": str(schedule.priority or ""),
        "when": "nightly",
        "nightly_at": schedule.at,
        "nightly_within": f"{within_s // divisor}{unit}",
        "nightly_load": "idle" if schedule.when_idle else "any",
    }


def hosts_of(queue: JobQueue) -> list[str]:
    """The hosts that have, or had, an agent."""
    return sorted({one.hostname for one in queue.agents()})


def submit_form(
    queue: JobQueue, store: Store, experiment: str, form: Form, *, who: str
) -> QueuedJob | Schedule:
    """Queue the question of a form, which `who` sends, or make a nightly schedule of it.
    RefusedFormError names what is wrong, by field."""
    kinds = {
        **spec_fields(EXPERIMENTS[experiment]),
        **field_types(EXPERIMENTS[experiment].settings),
    }
    for name in EXPERIMENTS[experiment].varies:
        kinds.pop(name, None)
    allowed = {name: kind for name, kind in kinds.items() if name not in NOT_FROM_PAGES}
    check_fields(form, (*allowed, *OPTIONS))
    texts = {name: one(form, name) for name in form if name not in OPTIONS}
    settings, sweep, swept = list[str](), list[str](), list[str]()
    problems = dict[str, str]()
    for name, text in texts.items():
        is_text = "," in text and _is_text(kinds[name])
        (sweep if is_text else settings).append(f"{name}={text}")
        for value in _values(name, text, kinds[name]):
            try:
                parse_value(name, value, kinds[name])
            except UsageError as error:
                problems[name] = str(error)
        if len(_values(name, text, kinds[name])) > 1 or is_text:
            swept.append(name)
    scale, priority = one(form, "scale", "default"), _priority(form, problems)
    host, night = _host(form, queue, problems), _night(form, problems)
    if night is not None:
        for name in swept:
            problems.setdefault(name, _ONE_VALUE)
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
    common: dict[str, Any] = {"devices": devices, "host": host, "priority": priority, "who": who}
    try:
        if night is None:
            return submit_question(queue, store, question, sweep=sweep, **common)
        return schedule_question(
            Schedules(queue),
            store,
            question,
            at=night.at,
            within_s=night.within_s,
            when_idle=night.when_idle,
            **common,
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


def _host(form: Form, queue: JobQueue, problems: dict[str, str]) -> str | None:
    """The host of the job; None for any."""
    name, known = one(form, "on_host"), hosts_of(queue)
    if name and name not in known:
        listed = ", ".join(known[:_MOST_HOSTS]) or "none"
        problems["on_host"] = (
            f"No agent ever ran on '{clean(name, 80)}'. Start `cubemesh agent` there, or choose "
            f"another host: {listed}."
        )
    return name or None


def _night(form: Form, problems: dict[str, str]) -> _Night | None:
    """When the job is queued every night; None for one that is queued now."""
    when, load = one(form, "when", "now"), one(form, "nightly_load", "idle")
    at, within = one(form, "nightly_at", _AT), one(form, "nightly_within", f"{WITHIN_S}s")
    if when not in _WHEN:
        problems["when"] = f"Give one of {', '.join(_WHEN)}."
    if load not in _LOADS:
        problems["nightly_load"] = f"Give one of {', '.join(_LOADS)}."
    if when != "nightly":
        given = [name for name in NIGHTLY if name in form]
        if load == "idle":  # what a page sends with every form
            given = [name for name in given if name != "nightly_load"]
        for name in given:
            problems.setdefault(name, _NOT_NIGHTLY)
        return None
    try:
        parse_hour(at)
    except UsageError:
        problems["nightly_at"] = "Give an hour of the day in UTC, as in 02:00."
    try:
        within_s = parse_duration(within)
    except UsageError:
        within_s = 0.0
    if not 60 <= within_s <= MOST_WITHIN_S:
        problems["nightly_within"] = (
            f"Give a duration of 1 minute to {MOST_WITHIN_S // 3600} hours, as in 4h or 90m."
        )
    return _Night(at=at, within_s=within_s, when_idle=load == "idle")


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
