"""Autotuning: search for the fastest settings of a network on this machine, with the gain of each
step.

Framework, precision, layout, compilation, synchronization strategy, bucket size, threads and
pinning are changed one after the other (search.py) within a time limit. Network, input, optimizer
and batch size are fixed; a setting whose losses diverge from the baseline's in the first steps is
rejected (convergence_check.py). The baseline ("stock") is the first value of each: PyTorch eager,
fp32, nchw, one thread per usable core.

Every trial is a stored run, so an interrupted search has an answer, and the same command continues
it. `tuned=true` uses the result (apply.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.tune.report import charts, findings, notes, tables, timed
from cubemesh.experiments.tune.search import Search, Trial
from cubemesh.experiments.tune.search_space import (
    Configuration,
    SearchSpace,
    configuration_of,
    usual_frameworks,
)
from cubemesh.frameworks import entry
from cubemesh.schema import Against, Answer, Budget, Placement, RunRecord, RunSpec, TrainSteps
from cubemesh.schema.spec import CompileBy, Layout, Pinning, Precision
from cubemesh.units import format_seconds

MINUTES_ON_CPU, MINUTES_ON_GPU = 3.0, 5.0
BUDGETS = {
    Scale.QUICK: Budget(steps=2, seconds=0.4, windows=8, warmup_seconds=1.0),
    Scale.DEFAULT: Budget(steps=3, seconds=0.8, windows=8, warmup_seconds=2.0),
    Scale.FULL: Budget(steps=10, seconds=3.0, windows=20, warmup_seconds=10.0),
}
"""Of the first run of a configuration; each further run measures half as long again."""
MIN_LOSSES = 8
MIN_TRIAL_S = 1.0
"""Shortest time limit of a trial."""
MAX_FRACTION = 1 / 3
"""Largest fraction of the budget for one trial."""
INSTANCES = Budget().instances
_STEP_S = 0.5
"""Time limits at the end are rounded down to a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `tune` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """The network to train; one."""
    batch_sizes: tuple[int, ...] = (64,)
    """Batch sizes per device: the first is the baseline; the others are tried last."""
    devices: tuple[int, ...] = (1,)
    """Number of devices that train together; one number."""
    minutes: float | None = None
    """Time limit in minutes; default: 3 on a CPU, 5 on a GPU."""
    frameworks: tuple[str, ...] = ()
    """Frameworks to choose from, the baseline first; default: all that compute."""
    precisions: tuple[Precision, ...] = ()
    """Precisions to choose from, the baseline first; default: fp32 and bf16, on a GPU also tf32
    and fp16."""
    layouts: tuple[Layout, ...] = ("nchw", "nhwc")
    """Memory layouts of images to choose from, the baseline first."""
    threads: tuple[int, ...] = ()
    """Numbers of CPU threads to try besides one per usable core; default: 1 and half of the
    cores."""
    pinnings: tuple[Pinning, ...] = ("none", "compact")
    """Thread pinnings to choose from, where there are fewer threads than cores."""
    compile_by: tuple[CompileBy, ...] = ("network", "segment")
    """Units of compilation to choose from."""
    strategies: tuple[str, ...] = ()
    """Gradient synchronization strategies of several devices to choose from, the baseline first;
    default: all-reduce and all-reduce-16, between GPUs also by copies."""
    buckets_mib: tuple[int, ...] = (1, 4, 100)
    """Gradient bucket sizes of several devices in MiB, besides 25."""
    losses: int = 12
    """Number of first steps whose losses are compared with the baseline."""
    seed: int = 0
    """Random seed of weights and sample order; the run-to-run spread uses the seeds after it."""

    def __post_init__(self) -> None:
        for name, unit in (("networks", "network"), ("devices", "number of devices")):
            if len(getattr(self, name)) != 1:
                values = ",".join(map(str, getattr(self, name)))
                raise UsageError(
                    f"{name}={values}: tune searches for one {unit}. Run it once for each."
                )
        for name in self.frameworks:
            entry(name)
        if self.minutes is not None and not self.minutes > 0:
            raise UsageError(f"minutes={self.minutes} must be greater than 0.")
        if self.losses < MIN_LOSSES:
            raise UsageError(
                f"losses={self.losses} is too few to compare with the baseline: set at least "
                f"{MIN_LOSSES}."
            )
        for name in ("batch_sizes", "layouts", "compile_by"):
            if not getattr(self, name):
                raise UsageError(f"{name} must have at least one value.")
        for name in ("threads", "buckets_mib", "batch_sizes", "devices"):
            if min(getattr(self, name), default=1) < 1:
                raise UsageError(f"{name} must be at least 1.")

    @property
    def network(self) -> str:
        """The network to train."""
        return self.networks[0]

    @property
    def batch_per_device(self) -> int:
        """The batch size of the baseline."""
        return self.batch_sizes[0]

    def request(self) -> SearchSpace:
        """The request of a search."""
        return SearchSpace(
            batch_per_device=self.batch_per_device,
            devices=self.devices[0],
            frameworks=self.frameworks or usual_frameworks(),
            precisions=self.precisions,
            layouts=self.layouts,
            threads=self.threads,
            pinnings=self.pinnings,
            compile_by=self.compile_by,
            strategies=self.strategies,
            buckets=tuple(mib << 20 for mib in self.buckets_mib),
            batch_sizes=self.batch_sizes[1:] and self.batch_sizes,
        )

    def seconds(self, on_gpu: bool) -> float:
        """The time limit in seconds."""
        usual = MINUTES_ON_GPU if on_gpu else MINUTES_ON_CPU
        return 60.0 * (usual if self.minutes is None else self.minutes)


class TrialBudget:
    """Time limit of a search, from its creation. A trial is expected to take as long as
    the longest of its framework so far, and one of a new framework as long as the shortest of all;
    a trial that is not expected to fit is not started. Each trial has a time limit: a third of the
    budget (so that one framework's compiler cannot use all of it), or what is left."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock, self._seconds = clock, seconds
        self._end = clock() + seconds
        self._longest_s: dict[str, float] = {}

    @property
    def left_s(self) -> float:
        """Remaining seconds; below 0 when the time is over."""
        return self._end - self._clock()

    def affords(self, *frameworks: str) -> bool:
        """Whether a trial of this framework is expected to end in time; two frameworks are an
        interleaved A/B trial, which builds each `INSTANCES` times."""
        shortest = min(self._longest_s.values(), default=0.0)
        known = [self._longest_s.get(framework, shortest) for framework in frameworks]
        expected_s = max(known) * (INSTANCES if len(known) > 1 else 1)
        return self.left_s >= max(MIN_TRIAL_S, expected_s)

    def limit_s(self, *, whole: bool) -> float:
        """Time limit of the next trial: a third of the budget, or with `whole` all of it, as far
        as that is left."""
        most = self._seconds if whole else max(MIN_TRIAL_S, MAX_FRACTION * self._seconds)
        return min(most, max(MIN_TRIAL_S, self.left_s // _STEP_S * _STEP_S))

    def add(self, framework: str, seconds: float) -> None:
        """Record how long a trial of this framework took."""
        self._longest_s[framework] = max(seconds, self._longest_s.get(framework, 0.0))


def plan(settings: Settings, context: Context) -> Plan:
    """One trial after the other, as the search requests them and as time allows."""
    time_left = TrialBudget(settings.seconds(context.has_gpu), context.clock)
    search = Search(request=settings.request())
    walk = search.walk()
    record: RunRecord | None = None
    while True:
        try:
            trial = walk.send(record)  # None starts the generator
        except StopIteration:
            return
        record, framework = None, trial.configuration.framework
        other = () if trial.against is None else (trial.against.framework,)
        if time_left.affords(framework, *other):
            began = context.clock()
            limit_s = time_left.limit_s(whole=search.stock is None)
            records = yield [_spec(settings, trial, BUDGETS[context.scale], limit_s)]
            record = records[0]  # of several with repeats=
            measured_s = sum(one.elapsed_s for one in records)
            elapsed_s = min(context.clock() - began, measured_s)  # without the import
            time_left.add(framework, elapsed_s)


def announce(settings: Settings, context: Context) -> str:
    """The time that a search takes."""
    limit = format_seconds(settings.seconds(context.has_gpu))
    return f"Searches for the fastest setting of {settings.network}: up to {limit}."


def _spec(settings: Settings, trial: Trial, budget: Budget, limit_s: float) -> RunSpec:
    """The run of a trial. Its budget differs from those of earlier runs of the configuration, so
    that it is not answered from the store."""
    first = trial.number == 0
    stock = RunSpec(
        work=TrainSteps(
            network=settings.network,
            batch_per_device=settings.batch_per_device,
            seed=settings.seed + trial.seed,
            losses=settings.losses if first and trial.against is None else 0,
        ),
        placement=Placement(devices=settings.devices[0]),
        budget=replace(
            budget, seconds=budget.seconds * (1 + trial.number / 2), time_limit_s=limit_s
        ),
    )
    spec = trial.configuration.of(stock)
    if trial.seed:
        losses_only = replace(spec.budget, steps=1, seconds=0.0, windows=1, warmup_seconds=0.0)
        return replace(spec, budget=losses_only)
    if trial.against is None:
        return spec
    other = trial.against.of(stock)
    against = Against(work=other.work, placement=other.placement, program=other.program)
    return replace(spec, against=against)


def found(settings: Settings, records: Sequence[RunRecord]) -> Search:
    """The search that made these records, as far as they go."""
    stored: dict[object, list[RunRecord]] = defaultdict(list)
    for run in records:
        stored[_kind(settings, run.spec)].append(run)
    search = Search(request=settings.request())
    walk = search.walk()
    record: RunRecord | None = None
    while True:
        try:
            trial = walk.send(record)
        except StopIteration:
            return search
        own = stored[trial.configuration, trial.seed, trial.against]
        record = own.pop(0) if own else None


def _kind(settings: Settings, spec: RunSpec) -> tuple[Configuration, int, Configuration | None]:
    """The trial of a run, without its number."""
    assert isinstance(spec.work, TrainSteps), "tune only trains"
    other = spec.other
    against = None if other is None else configuration_of(other)
    return configuration_of(spec), spec.work.seed - settings.seed, against


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart of one `tune`: the steps to the fastest settings."""
    search = found(settings, records)
    devices = "" if settings.devices == (1,) else f" on {settings.devices[0]} devices"
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=f"{settings.network}, batch size {settings.batch_per_device}{devices}: fastest "
        "settings",
        findings=tuple(findings(settings.network, search)),
        tables=tuple(tables(search)),
        charts=tuple(charts(settings.network, search)),
        warnings=tuple(dict.fromkeys(w for r in timed(search) for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=notes(search, settings.losses),
    )


EXPERIMENT = Experiment(
    name="tune",
    question="Which settings train this network fastest on this machine?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "framework": "frameworks",
        "precision": "precisions",
        "loss_scale": "precisions",
        "layout": "layouts",
        "pinning": "pinnings",
        "sync": "strategies",
        "bucket_bytes": "buckets_mib",
        "hosts": "devices",
    },
    plan=plan,
    grows=True,
    announce=announce,
    answer=answer,
    alternates=False,
    tunes=False,
)
