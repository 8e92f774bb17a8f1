"""Which setting trains a network fastest here, and what does each step towards it gain?

Framework, precision, layout, compiling, exchange, buckets, threads and their places are turned one
after the other (tune_search.py), within a budget of time. The network, its input, the optimizer and
the minibatch stay, so that what is trained stays; a setting whose losses depart from the stock
setting's in the first steps is refused by name (tune_curves.py). The stock setting is the first of
each list: PyTorch, eager, fp32, nchw, a thread for each usable core.

Every trial is a run like any other and stays in the store, so that a tuning broken off has its
answer as far as it came, and the same command goes on from there. `tuned=true` reads the winner
from the store (tuned.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.tune.budget import TrialBudget
from cubemesh.experiments.tune.report import charts, findings, notes, tables, timed
from cubemesh.experiments.tune.search import Search, Trial
from cubemesh.experiments.tune.search_space import (
    Configuration,
    SearchRequest,
    configuration_of,
    usual_frameworks,
)
from cubemesh.frameworks import entry
from cubemesh.schema import Against, Answer, Budget, Placement, RunRecord, RunSpec, TrainSteps
from cubemesh.schema.spec import CompileBy, Layout, Pinning, Precision

MINUTES_ON_CPU, MINUTES_ON_GPU = 3.0, 5.0
BUDGETS = {
    Scale.QUICK: Budget(steps=2, seconds=0.4, windows=8, warmup_seconds=1.0),
    Scale.DEFAULT: Budget(steps=3, seconds=0.8, windows=8, warmup_seconds=2.0),
    Scale.FULL: Budget(steps=10, seconds=3.0, windows=20, warmup_seconds=10.0),
}
"""Of a configuration's first run; each further one measures half as long again."""
LEAST_LOSSES = 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `tune` besides the fields of its specs."""

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
    """Gradient synchronisation strategies of several devices to choose from, the baseline first;
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
            raise UsageError(f"minutes={self.minutes} must be more than 0.")
        if self.losses < LEAST_LOSSES:
            raise UsageError(
                f"losses={self.losses} are too few to judge a setting by: set {LEAST_LOSSES} or "
                "more."
            )
        for name in ("batch_sizes", "layouts", "compile_by"):
            if not getattr(self, name):
                raise UsageError(f"{name} must name one at least.")
        for name in ("threads", "buckets_mib", "batch_sizes", "devices"):
            if min(getattr(self, name), default=1) < 1:
                raise UsageError(f"{name} must be 1 or more.")

    @property
    def network(self) -> str:
        """The network to train."""
        return self.networks[0]

    @property
    def batch_per_device(self) -> int:
        """The batch size of the baseline."""
        return self.batch_sizes[0]

    def request(self) -> SearchRequest:
        """As the search reads them."""
        return SearchRequest(
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
        """The budget."""
        usual = MINUTES_ON_GPU if on_gpu else MINUTES_ON_CPU
        return 60.0 * (usual if self.minutes is None else self.minutes)


def plan(settings: Settings, context: Context) -> Plan:
    """One trial after the other, as the search asks for them and as time allows."""
    time_left = TrialBudget(settings.seconds(context.has_gpu), context.clock)
    search = Search(request=settings.request())
    walk = search.walk()
    came: RunRecord | None = None
    while True:
        try:
            trial = walk.send(came)  # None begins a generator, as it must
        except StopIteration:
            return
        came, framework = None, trial.configuration.framework
        other = () if trial.against is None else (trial.against.framework,)
        if time_left.affords(framework, *other):
            began = context.clock()
            limit_s = time_left.limit_s(whole=search.stock is None)
            (record,) = yield [_spec(settings, trial, BUDGETS[context.scale], limit_s)]
            took_s = context.clock() - began
            time_left.took(framework, min(took_s, record.elapsed_s))  # without a framework's import
            came = record


def _spec(settings: Settings, trial: Trial, budget: Budget, limit_s: float) -> RunSpec:
    """The run of a trial. Its effort differs from that of the runs before it: what is stored is not
    run again, and this is to be."""
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
        alone = replace(spec.budget, steps=1, seconds=0.0, windows=1, warmup_seconds=0.0)
        return replace(spec, budget=alone)
    if trial.against is None:
        return spec
    other = trial.against.of(stock)
    against = Against(work=other.work, placement=other.placement, program=other.program)
    return replace(spec, against=against)


def found(settings: Settings, records: Sequence[RunRecord]) -> Search:
    """The search that these records came from, as far as they go."""
    stored: dict[object, list[RunRecord]] = defaultdict(list)
    for record in records:
        stored[_kind(settings, record.spec)].append(record)
    search = Search(request=settings.request())
    walk = search.walk()
    came: RunRecord | None = None
    while True:
        try:
            trial = walk.send(came)
        except StopIteration:
            return search
        own = stored[trial.configuration, trial.seed, trial.against]
        came = own.pop(0) if own else None


def _kind(settings: Settings, spec: RunSpec) -> tuple[Configuration, int, Configuration | None]:
    """Which trial asked for a run, but for how many came before it."""
    assert isinstance(spec.work, TrainSteps), "nothing else is asked for"
    other = spec.other
    against = None if other is None else configuration_of(other)
    return configuration_of(spec), spec.work.seed - settings.seed, against


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """The ladder from the records of one `tune`."""
    search = found(settings, records)
    devices = "" if settings.devices == (1,) else f" on {settings.devices[0]} devices"
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=f"{settings.network}, minibatch {settings.batch_per_device}{devices}: the fastest "
        "setting",
        findings=tuple(findings(settings.network, search)),
        tables=tuple(tables(search)),
        charts=tuple(charts(settings.network, search)),
        warnings=tuple(dict.fromkeys(w for r in timed(search) for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=notes(search, settings.losses),
    )


EXPERIMENT = Experiment(
    name="tune",
    question="Which setting trains this network fastest here?",
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
    answer=answer,
    alternates=False,
    tunes=False,
)
