"""Run record: the result of a run, never changed after it is stored.

Times inside a record are seconds on a monotonic clock that starts with the run (`start_s`), not
dates; `started_utc` is the one date. A record keeps the raw windows, so every figure in it can be
computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.schema.collective import SweepPoint
from cubemesh.schema.first_steps_trace import RankTrace
from cubemesh.schema.machine import Software, Unknown
from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.serialization import digest
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning

SCHEMA = 2
"""Version of the record's plain form."""
AGAINST = "against"
"""Phase of the windows of the other program, where two alternate."""
FIRST_LOSSES = "first_losses"
"""Name of the curve of the losses in the first steps on one batch (`TrainSteps.losses`)."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of the run."""

    rank: int
    host: str
    device: str
    """What the work really ran on: `cpu`, `cuda:0`."""
    device_name: str = ""
    """What its maker calls it: "NVIDIA H200", the processor's model; empty where not known."""
    device_uuid: str | None = None
    outcome: Outcome
    threads: int | None = None
    devices: tuple[str, ...] = ()
    """All that it drives, where one process drives several; `device` is the first."""
    processors: tuple[int, ...] = ()
    """Those its threads were bound to; none where they were not."""
    interface: str = ""
    """The network interface it exchanged through: `eth0`; empty where none, or not known."""
    transport: str = ""
    """What it exchanged over, in the words of its library: `gloo TCP`, `NCCL P2P/CUMEM`."""
    clock_offset_s: float = 0.0
    """Seconds that were added to this host's clock to get the first host's."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A group of steps between two synchronisations. Within it the host may run ahead of the
    device, as it does in training: synchronising every step would measure something else."""

    rank: int = 0
    phase: str = "measure"
    start_s: float
    elapsed_s: float
    steps: int
    samples: int
    marks: tuple[str, ...] = ()
    """Labels of the group: the epoch it belongs to, or the program that ran in it."""

    @property
    def step_s(self) -> float:
        """Seconds a step took here, on average."""
        return self.elapsed_s / self.steps


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of the run: import, build, compile, warm-up, measure, evaluate."""

    name: str
    rank: int = 0
    start_s: float
    elapsed_s: float
    cached: bool | None = None
    """Whether a compilation came from a cache; None where nothing was compiled."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value with its 95 % interval and the number of windows (or runs) behind it."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    n: int = 1
    method: str = ""
    """How it was found, where there is more than one way."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A share of the step that was measured on its own, and how."""

    name: str
    seconds: float
    method: str


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """One line of a breakdown."""

    name: str
    seconds: float
    """Of a step, on average."""
    calls: float
    """How often in a step, on average."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the time of a step went by one way of sorting it: `category`, `layer`,
    `runtime call`. Rows may overlap in time, so they need not add up to the step."""

    name: str
    rows: tuple[TimeRow, ...]
    """The longest first."""
    method: str
    """What was timed, and how it was sorted."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity against another: loss against step, accuracy against epoch."""

    name: str
    x_name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """What decides whether a stored run may stand for a new one."""

    spec_id: str
    machine_id: str
    software_id: str
    code_version: str
    repeat: int = 0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A Python of its own that a framework's workers run in."""

    python: str
    """Path of the interpreter."""
    software: Software


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything kept of one run."""

    run_id: str
    spec: RunSpec
    key: RunKey
    started_utc: str
    """ISO 8601, UTC."""
    elapsed_s: float
    """Wall time of the whole run, process start to end."""
    outcome: Outcome
    attempt: int = 1
    ranks: tuple[Rank, ...] = ()
    windows: tuple[Window, ...] = ()
    phases: tuple[Phase, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    parts: tuple[Part, ...] = ()
    """The step as a sum: all parts with `other` are the mean step."""
    rank_parts: tuple[tuple[Part, ...], ...] = ()
    """The same of every rank, in their order, where several were taken apart; `parts` is the first
    one's."""
    breakdowns: tuple[Breakdown, ...] = ()
    replicas: tuple[RankTrace, ...] = ()
    """Of `first_steps`, what each rank was fed and made."""
    sweep: tuple[SweepPoint, ...] = ()
    """Of a collective: what it took at each size."""
    library: str = ""
    """What carried a collective: `nccl 2.27.5`, `gloo`; empty where nothing told."""
    series: tuple[str, ...] = ()
    """Names of the series kept beside the record."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Files kept beside the record, by name."""
    warnings: tuple[Warning, ...] = ()
    unmeasured: tuple[Unknown, ...] = ()
    """What was to be measured and could not be, and why: energy where no sensor can be read."""
    environment: Environment | None = None
    """Where the worker ran in another Python than the runner's; None is the machine's software."""
    schema: int = SCHEMA

    @property
    def ok(self) -> bool:
        """Whether the run came to its end."""
        return self.outcome.status is Status.OK

    @property
    def measured(self) -> tuple[Window, ...]:
        """The windows that count: those of the measure phase."""
        return tuple(w for w in self.windows if w.phase == "measure")

    def figure(self, name: str) -> float | None:
        """The value of a figure, or None where the run did not come to it."""
        return self.figures[name].value if name in self.figures else None


def new_run_id(key: RunKey, started_utc: str, attempt: int) -> str:
    """Twelve hexadecimal digits, different for every attempt at every moment."""
    return digest((key, started_utc, attempt), length=12)
