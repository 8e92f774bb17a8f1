"""Run record: the result of a run, never changed after it is stored.

Times inside a record are seconds on a monotonic clock that starts with the run (`start_s`), not
dates; `started_utc` is the one date. A record keeps the raw windows, so every figure in it can be
computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cubemesh.schema.collective import LinkRate, NcclTopology, SweepPoint
from cubemesh.schema.first_steps_trace import RankTrace
from cubemesh.schema.machine import Software, Unknown
from cubemesh.schema.outcome import Outcome
from cubemesh.schema.serialization import digest
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning

SCHEMA = 2
"""Version of the record's JSON form."""
AGAINST = "against"
"""Phase of the windows of the other side in an interleaved A/B run."""
LOAD_TEST_VALID = "load_test_valid"
"""Figure of a load test: 1 where the load generator says VALID, 0 where INVALID."""
FIRST_LOSSES = "first_losses"
"""Name of the curve of the losses in the first steps on one batch (`TrainSteps.losses`)."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of the run."""

    rank: int
    host: str
    device: str
    """The device that was used: `cpu`, `cuda:0`."""
    device_name: str = ""
    """The vendor's name: "NVIDIA H200", the CPU model; empty if unknown."""
    device_uuid: str | None = None
    outcome: Outcome
    threads: int | None = None
    devices: tuple[str, ...] = ()
    """All its devices, if one process drives several; `device` is the first."""
    processors: tuple[int, ...] = ()
    """Processors its threads were bound to; empty if unbound."""
    interface: str = ""
    """Network interface used between ranks: `eth0`; empty if none or unknown."""
    transport: str = ""
    """Transport between ranks as named by its library: `gloo TCP`, `NCCL P2P/CUMEM`."""
    clock_offset_s: float = 0.0
    """Seconds added to this host's clock to align it with the first host's."""
    private_cache_bytes: int | None = None
    """Of a rank on a CPU: bytes of the two last levels of caches that only its processors use; None
    where unknown, and in older records."""
    shared_cache_bytes: int | None = None
    """Bytes of those that other processors use too."""
    utilization: Figure | None = None
    """Mean utilization in percent, over the measured steps, of its GPU, or of the cores that a rank
    on a CPU was granted; None where it was not measured, and in older records."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A group of steps between two synchronizations. Within it the host may run ahead of the
    device, as it does in training: synchronizing every step would measure something else."""

    rank: int = 0
    phase: str = "measure"
    start_s: float
    elapsed_s: float
    steps: int
    samples: int
    marks: tuple[str, ...] = ()
    """Labels: the epoch, or the program that ran in it."""
    waited_s: float | None = None
    """Seconds of it in which this rank waited for others in collectives; None where unknown."""

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return self.elapsed_s / self.steps


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of the run: import, build, compile, warm-up, measure, evaluate."""

    name: str
    rank: int = 0
    start_s: float
    elapsed_s: float
    cached: bool | None = None
    """Whether a compilation came from a cache; None if nothing was compiled."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value with its 95 % confidence interval and the number of windows (or runs) behind it."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    n: int = 1
    method: str = ""
    """How it was measured or computed, if there are several ways."""

    def scaled(self, factor: float, unit: str, method: str = "") -> Figure:
        """Value and interval times `factor`, in another unit."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Figure(
            value=self.value * factor, unit=unit, low=low, high=high, n=self.n, method=method
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the step time that was measured separately, and how."""

    name: str
    seconds: float
    method: str

    def __post_init__(self) -> None:
        if self.name == "other":  # in stores of cubemesh 0.x
            object.__setattr__(self, "name", "unattributed")


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """One line of a breakdown."""

    name: str
    seconds: float
    """Per step, on average."""
    calls: float
    """Per step, on average."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Time of a step by one grouping: `category`, `layer`, `segment`, `runtime call`. Rows may
    overlap in time, so they need not add up to the step."""

    name: str
    rows: tuple[TimeRow, ...]
    """Longest first."""
    method: str
    """What was timed, and how it was grouped."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over another: loss over step, accuracy over epoch."""

    name: str
    x_name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ScoredSamples:
    """Which samples of the validation set were answered correctly at the end of a training."""

    samples_id: str
    """Digest of the samples and their order."""
    count: int
    right: str
    """A bit a sample, in their order, the most significant of a byte first; base64."""


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """The key by which a stored run is reused in place of a new one."""

    spec_id: str
    machine_id: str
    software_id: str
    code_version: str
    repeat: int = 0
    data_id: str = ""
    """Digest of the files at `data_path`; empty without any."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The Python environment of a framework's workers, if it is a separate one."""

    python: str
    """Path of the interpreter."""
    software: Software


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything stored of one run."""

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
    scored_samples: ScoredSamples | None = None
    """Of a training's last evaluation; None where samples are positions of a sequence, for more
    than `training.scored_samples.MAX_SAMPLES`, and in records of cubemesh before it."""
    parts: tuple[Part, ...] = ()
    """Breakdown of the mean step time; with `unattributed` the parts add up to it."""
    rank_parts: tuple[tuple[Part, ...], ...] = ()
    """The same for every rank, in order, if several were attributed; `parts` is the first one's."""
    breakdowns: tuple[Breakdown, ...] = ()
    replicas: tuple[RankTrace, ...] = ()
    """Of `first_steps`: the trace of each rank."""
    sweep: tuple[SweepPoint, ...] = ()
    """Of a collective: the results by size."""
    library: str = ""
    """Library of a collective: `nccl 2.27.5`, `gloo`; empty if not reported."""
    links: tuple[LinkRate, ...] = ()
    """Of `links`, `peer_access` and `page_migration`: the measurement of each pair."""
    nccl: NcclTopology | None = None
    """Channels and adapters that NCCL reported, of a run that communicates by it; None where it
    reported none."""
    series: tuple[str, ...] = ()
    """Names of the series stored with the record."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Files stored with the record, by name."""
    warnings: tuple[Warning, ...] = ()
    unmeasured: tuple[Unknown, ...] = ()
    """Quantities that could not be measured, and why: energy without a readable sensor."""
    environment: Environment | None = None
    """The worker's Python environment, if it differs from the runner's; None: `software`."""
    software: Software | None = None
    """The runner's software stack; None: unknown, as in stores of older versions."""
    source: str = ""
    """Of a record that was imported: the program and the file that it was read from."""
    schema: int = SCHEMA

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.outcome.ok

    @property
    def measured(self) -> tuple[Window, ...]:
        """The windows of the measure phase."""
        return tuple(w for w in self.windows if w.phase == "measure")

    @property
    def stack(self) -> Software | None:
        """The software stack that it ran on, with the runner's driver; None where it is unknown."""
        if self.environment is None:
            return self.software
        own, runner = self.environment.software, self.software
        if runner is None:
            return own
        return replace(own, driver=own.driver or runner.driver, cuda=own.cuda or runner.cuda)

    def figure(self, name: str) -> float | None:
        """The value of a figure, or None if it was not measured."""
        return self.figures[name].value if name in self.figures else None

    def curve(self, name: str) -> Curve | None:
        """The curve called `name`, or None if it was not logged."""
        return next((curve for curve in self.curves if curve.name == name), None)


def new_run_id(key: RunKey, started_utc: str, attempt: int) -> str:
    """Twelve hexadecimal digits, different for every attempt and time."""
    return digest((key, started_utc, attempt), length=12)
