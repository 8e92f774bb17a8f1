"""The script language of the null framework.

A script is settings and events, separated by commas:

    step=0.002, per_sample=1e-5, jitter=0.05, loss=2.3:0.5, segfault@40

| setting | meaning | default |
|---|---|---|
| step=0.002 | seconds of a step | 0.001 |
| per_sample=1e-5 | additional seconds for each sample of the batch | 0 |
| jitter=0.05 | relative standard deviation of a step's time, seeded | 0 |
| drift=0.01 | relative change of a step's time over 100 steps | 0 |
| warmup=20:3 | the first 20 steps take 3 times as long | none |
| loss=2.3:0.5 | exponential from 2.3 to 0.5, by a factor e every 100 steps | 2.3:0.5 |
| accuracy=0.1:0.9 | linear from the first evaluation to that of the last epoch | 0.1:0.9 |
| memory=2e9 | bytes reported as peak | unknown |
| real=1 | sleep, instead of advancing the simulated clock | 0 |

A setting applies to one precision, layout, number of threads or kind of pass only, with that as a
prefix and a dot: `bf16.step=0.001, nhwc.per_sample=1e-6, 1-threads.loss=2.3:2.3,
forward-backward.step=0.002`. Kinds of pass are infer, forward, forward-backward and train-steps.

An event is `kind@step`, steps counted from 1: it happens when that step starts.

| event | real effect |
|---|---|
| segfault@5 | SIGSEGV |
| kill@5 | SIGKILL, as the kernel does when memory runs out |
| exit@5, exit:3@5 | the process exits at once, with code 1, or 3 |
| hang@5 | the step hangs |
| allocate@5 | memory is filled until an allocation fails |
| error@5 | an exception |
| nan@5 | the loss is NaN from then on |
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import get_args

from cubemesh.errors import UsageError, unknown_name
from cubemesh.schema.spec import Layout, Precision

EVENTS = ("segfault", "kill", "exit", "hang", "allocate", "error", "nan")
PASSES = ("infer", "forward", "forward-backward", "train-steps")
"""Kinds of pass that a setting may apply to."""
EXAMPLE = "Example: step=0.002,jitter=0.05,segfault@40"

_LOSS_STEPS = 100
_DRIFT_STEPS = 100
_SHORTEST = 0.1
"""Smallest factor by which jitter changes a step's time."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A failure at the start of a step."""

    kind: str
    step: int
    value: int = 1


@dataclass(frozen=True, kw_only=True)
class Script:
    """A parsed script. Its settings are the fields above `events`."""

    step: float = 1e-3
    per_sample: float = 0.0
    jitter: float = 0.0
    drift: float = 0.0
    warmup: tuple[float, float] = (0.0, 1.0)
    loss: tuple[float, float] = (2.3, 0.5)
    accuracy: tuple[float, float] = (0.1, 0.9)
    memory: float | None = None
    real: bool = False
    events: tuple[Event, ...] = ()
    only: tuple[tuple[str, str, object], ...] = ()
    """Settings for one condition only: the condition, the setting, its value."""

    def under(self, *conditions: str) -> Script:
        """The script under these conditions: a precision, a layout, a number of threads, a kind of
        pass."""
        own = {name: value for where, name, value in self.only if where in conditions}
        return dataclasses.replace(self, **own)  # type: ignore[arg-type]

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory to report."""
        return None if self.memory is None else int(self.memory)

    def events_at(self, step: int) -> tuple[Event, ...]:
        """The failures at the start of step number `step` (from 1)."""
        return tuple(e for e in self.events if e.step == step)

    def step_s(self, step: int, samples: int, normal: float) -> float:
        """Seconds of step `step` (from 1) over `samples`; `normal` is a draw from N(0, 1)."""
        seconds = self.step + self.per_sample * samples
        seconds *= max(_SHORTEST, 1 + self.jitter * normal)
        seconds *= max(_SHORTEST, 1 + self.drift * step / _DRIFT_STEPS)
        return seconds * (self.warmup[1] if step <= self.warmup[0] else 1.0)

    def loss_after(self, steps: int) -> float:
        """The loss of step number `steps`; NaN from a `nan` event on."""
        if any(e.kind == "nan" and e.step <= steps for e in self.events):
            return math.nan
        first, last = self.loss
        return last + (first - last) * math.exp(-steps / _LOSS_STEPS)

    def accuracy_of(self, evaluation: int, epochs: int) -> float:
        """The accuracy of evaluation number `evaluation` (from 1) of `epochs`."""
        first, last = self.accuracy
        way = 1.0 if epochs == 1 else min(1.0, (evaluation - 1) / (epochs - 1))
        return first + (last - first) * way


def read_script(text: str | None) -> Script:
    """The parsed script, for None the defaults; UsageError names the part that is wrong."""
    settings: dict[str, object] = {}
    only: list[tuple[str, str, object]] = []
    events = []
    for part in (p.strip() for p in (text or "").split(",")):
        if "@" in part:
            events.append(_event(part))
        elif "=" in part:
            key, value = (x.strip() for x in part.split("=", 1))
            if key in settings or key in (f"{where}.{name}" for where, name, _ in only):
                raise UsageError(f"script: '{key}' is set twice. Set it once.")
            where, dot, name = key.rpartition(".")
            if dot:
                only.append((_condition(where), name, _setting(name, value)))
            else:
                settings[key] = _setting(key, value)
        elif part:
            raise UsageError(
                f"script: '{part}' is neither a setting (key=value) nor an event (kind@step). "
                f"{EXAMPLE}"
            )
    plain = Script(events=tuple(events), only=tuple(only))
    script = dataclasses.replace(plain, **settings)  # type: ignore[arg-type]
    variants = [script, *(script.under(where) for where, _, _ in only)]
    if not all(one.step + one.per_sample > 0 for one in variants):
        raise UsageError("script: step and per_sample are both 0; set one above 0.")
    return script


def _condition(text: str) -> str:
    """`text`, where it is a precision, a layout, a kind of pass, or a number of threads as in
    `2-threads`."""
    words = (*get_args(Precision), *get_args(Layout), *PASSES)
    if text not in words and re.fullmatch(r"\d+-threads", text) is None:
        raise unknown_name("script condition", text, (*words, "1-threads"), EXAMPLE)
    return text


def _event(part: str) -> Event:
    found = re.fullmatch(r"([a-z]+)(?::(\d+))?\s*@\s*(\d+)", part)
    if found is None or int(found[3]) < 1:
        raise UsageError(
            f"script: '{part}' is not an event; write kind@step with a step of 1 or more. {EXAMPLE}"
        )
    kind, value, step = found.groups()
    if kind not in EVENTS:
        raise unknown_name("script event", kind, EVENTS, EXAMPLE)
    if value is not None and (kind != "exit" or int(value) > 255):
        raise UsageError(f"script: '{part}': only exit takes a value, its code, 0 to 255.")
    return Event(kind=kind, step=int(step), value=1 if value is None else int(value))


_PAIRS = {"warmup": "steps:factor", "loss": "from:to", "accuracy": "from:to"}
_SINGLES = ("step", "per_sample", "jitter", "drift", "memory", "real")
_MAY_BE_NEGATIVE = ("drift",)


def _setting(key: str, value: str) -> object:
    if key not in (*_SINGLES, *_PAIRS):
        raise unknown_name("script setting", key, (*_SINGLES, *_PAIRS), EXAMPLE)
    try:
        numbers = tuple(float(number) for number in value.split(":"))
    except ValueError:
        numbers = ()
    if len(numbers) != (2 if key in _PAIRS else 1) or not all(map(math.isfinite, numbers)):
        form = _PAIRS.get(key, "a number")
        raise UsageError(f"script: {key}={value} is not valid; {key} takes {form}. {EXAMPLE}")
    if key not in _MAY_BE_NEGATIVE and min(numbers) < 0:
        raise UsageError(f"script: {key}={value} is below 0.")
    if key == "accuracy" and max(numbers) > 1:
        raise UsageError(f"script: accuracy={value} is above 1; it is a fraction.")
    if key == "real":
        if numbers[0] not in (0, 1):
            raise UsageError(f"script: real={value} must be 0 or 1.")
        return numbers[0] == 1
    return numbers if key in _PAIRS else numbers[0]
