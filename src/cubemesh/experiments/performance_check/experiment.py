"""Performance check: training throughput of this machine, its largest loss, and measured remedies.

Each network trains with the fastest known program, interleaved in one process with stock PyTorch
(eager, then torch.compile) in the same precision and layout. The same throughput is used
everywhere: the windows of both runs are pooled. Then the candidates for the largest loss are
measured by trying their remedies: minibatches read from JPEG files, decoding them in other places,
larger batch sizes, and the attribution of an eager step. Comparisons with wide intervals are
repeated in fresh processes, the widest first: before the trials until none is wider than ± 10 %,
after them until none is wider than ± 3 %. All stop when the time is used up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cubemesh.data.images.generated_jpegs import NAME as JPEG_FILES
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.ratios import MIN_DIFFERENCE
from cubemesh.experiments.core.ab_overrides import check_shared_process
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.performance_check.analysis import (
    WORKLOADS_CPU,
    WORKLOADS_GPU,
    PerformanceCheck,
)
from cubemesh.experiments.performance_check.report import charts, findings, notes, tables
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.networks import build, build_for
from cubemesh.networks import entry as network_entry
from cubemesh.networks.memory import forecast
from cubemesh.schema import (
    Against,
    Answer,
    Budget,
    Ceiling,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
)
from cubemesh.schema.spec import Precision
from cubemesh.units import format_list, format_seconds

FASTEST = ("pytorch-captured", "jax", "tensorflow", "keras")
"""Frameworks in the order of preference: the first that is installed is the fastest known
(benchmarks/LOG.md)."""
STOCK = ("pytorch", "pytorch-compiled")
MEMORY_FRACTION = 0.8
"""Fraction of a GPU's memory that all programs of an interleaved run may need."""
INSTANCES = 3
COMPILED = "pytorch-compiled"
COMPILING_GPU_S, COMPILING_CPU_S = 0.25, 0.5
"""Seconds that torch.compile takes for an operator of a network: 37 s for ResNet-50 on an H200, 49
to 85 s on two cores (benchmarks/records)."""
UNCERTAIN, PRECISE = 0.1, MIN_DIFFERENCE
"""Relative half-widths of intervals: a wider figure is repeated before remedies are tried; a
narrower one is never, since no smaller difference is significant."""
MOST_REPEATS = 2
"""Repeats of a comparison."""
BUDGET = Budget(steps=3, seconds=1.0, windows=12, warmup_seconds=2.0, instances=INSTANCES)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `performance-check` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train; default: resnet-50 and gpt2 on a GPU, little-cnn and resnet-18 on a
    CPU."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: one for each network, less where GPU memory is short."""
    frameworks: tuple[str, ...] = ()
    """The fastest known framework, then those to compare it with; default: pytorch-captured, with
    pytorch and pytorch-compiled."""
    precision: Precision | None = None
    """Precision of all programs; default: bf16 on a GPU that has it, else fp16, fp32 on a CPU."""
    minutes: float | None = None
    """Minutes after which no further repeat or trial starts; default: 2.75 on a CPU, 3 on a GPU,
    where programs compile longer."""
    trials: bool = True
    """Whether to try remedies after the comparison."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise UsageError(f"minutes={self.minutes:g} is not valid: it must be more than 0.")


def plan(settings: Settings, context: Context) -> Plan:
    """The fastest matrix product; the fastest program against each stock program, while there is
    time; repeats of what is uncertain, trials, and repeats of what has the widest interval."""
    clock = _Clock(60 * _minutes(settings, context), context)
    specs = _base_specs(settings, context)
    program = specs[0].program
    product = ProgramSettings(framework=program.framework, precision=program.precision)
    clock.count((yield [RunSpec(work=Ceiling(), program=product, budget=BUDGET)]))
    ran: dict[RunSpec, list[RunRecord]] = {}
    compared: list[RunSpec] = []
    for spec in specs:
        first, *others = _stock(settings, spec, context) or [spec]
        asked = spec if first is spec else _interleaved(spec, first)
        ran[asked] = clock.count((yield [asked]))
        compared = [*(_interleaved(spec, other) for other in others), *compared]
    cached_s = {_network(spec): max(map(_cached_s, found)) for spec, found in ran.items() if found}
    longer_s = {
        spec: cached_s.get(_network(spec), 0.0) + _compile_s(spec, context) for spec in compared
    }
    surely = min(compared, key=longer_s.__getitem__, default=None)
    for spec in compared:  # the network with the longest steps first
        if spec is surely or clock.has(longer_s[spec]):
            ran[spec] = clock.count((yield [spec]))
    yield from _repeats(ran, UNCERTAIN, clock)
    if settings.trials:
        for spec in _trials(specs, context):
            # A trial starts like an interleaved run, and measures at most as long.
            if clock.has(cached_s.get(_network(spec), 0.0)):
                clock.count((yield [spec]))
    yield from _repeats(ran, PRECISE, clock)


class _Clock:
    """The time that a plan has left. Runs that were stored count as long as they took, so that the
    same command plans the same runs again."""

    def __init__(self, limit_s: float, context: Context) -> None:
        self._limit_s, self._now = limit_s, context.clock
        self._started_s, self._runs_s = self._now(), 0.0

    def count(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Count these runs, and return them."""
        self._runs_s += sum(record.elapsed_s for record in records)
        return list(records)

    def has(self, seconds: float) -> bool:
        """Whether a run of this length ends in time."""
        spent_s = max(self._now() - self._started_s, self._runs_s)
        return spent_s + seconds <= self._limit_s


def _repeats(ran: dict[RunSpec, list[RunRecord]], width: float, clock: _Clock) -> Plan:
    """Repeat the comparison of the figure with the widest interval in fresh processes, while there
    is time and one is wider than `width`, a relative half-width."""
    while True:
        check = PerformanceCheck.of([record for found in ran.values() for record in found])
        widths = {
            (workload.network, workload.batch, framework): half
            for workload in check.workloads
            for framework, half in workload.uncertainty.items()
        }
        open_s = {
            spec: _cached_s(found[-1])
            for spec, found in ran.items()
            if len(found) <= MOST_REPEATS and widths.get(_comparison(spec), 0.0) > width
        }
        in_time = [spec for spec, seconds in open_s.items() if clock.has(seconds)]
        if not in_time:
            return
        widest = max(in_time, key=lambda spec: widths[_comparison(spec)])
        ran[widest] += clock.count((yield [widest]))


def _comparison(spec: RunSpec) -> tuple[str, int, str]:
    """(network, batch size, the framework that is compared with)."""
    other = spec.other
    return _network(spec), spec.batch_per_device or 0, other.program.framework if other else ""


def _minutes(settings: Settings, context: Context) -> float:
    return settings.minutes or (3.0 if context.has_gpu else 2.75)


def _compile_s(spec: RunSpec, context: Context) -> float:
    """Seconds that the second program of an interleaved run takes to compile."""
    assert isinstance(spec.work, NetworkWork)
    if spec.other is None or spec.other.program.framework != COMPILED:
        return 0.0
    operators = len(build_for(spec.work).nodes)
    return operators * (COMPILING_GPU_S if context.has_gpu else COMPILING_CPU_S)


def _cached_s(record: RunRecord) -> float:
    """Seconds that a run takes when its programs are compiled already."""
    compiling = [phase.elapsed_s for phase in record.phases if phase.name == "compile"]
    return record.elapsed_s - max(compiling, default=0.0)


def announce(settings: Settings, context: Context) -> str:
    """The plan in a sentence."""
    specs = _base_specs(settings, context)
    workloads = format_list(
        f"{_network(spec)} (batch size {spec.batch_per_device}, {spec.program.precision})"
        for spec in specs
    )
    programs = format_list(
        dict.fromkeys(
            entry(one.program.framework).title
            for spec in specs
            for one in (spec, *_stock(settings, spec, context))
        )
    )
    tries = "tries what would make it faster and " if settings.trials else ""
    return (
        f"Trains {workloads} with {programs}, then {tries}repeats the figures with the widest "
        f"intervals while time remains: about {format_seconds(60 * _minutes(settings, context))}."
    )


def _network(spec: RunSpec) -> str:
    assert isinstance(spec.work, NetworkWork)
    return spec.work.network


def _base_specs(settings: Settings, context: Context) -> list[RunSpec]:
    """The fastest known program of each workload."""
    specs = []
    for network, batch in _workloads(settings, context):
        framework = _installed(settings)[0]
        program = ProgramSettings(
            framework=framework,
            precision=settings.precision or _precision(context),
            layout=entry(framework).layout if network_entry(network).image_size else "nchw",
            data_location="device",
        )
        if context.has_gpu and not settings.batch_sizes:
            batch = _fitting(network, batch, program, context)
        spec = RunSpec(
            work=TrainSteps(network=network, batch_per_device=batch), program=program, budget=BUDGET
        )
        specs.append(context.tuned(spec) if not settings.frameworks else spec)
    return specs


def _installed(settings: Settings) -> list[str]:
    """The frameworks to run, the fastest known first; those not installed are left out."""
    if settings.frameworks:
        fastest, *others = dict.fromkeys(settings.frameworks)
        for other in others:
            check_shared_process(fastest, other)
        return [fastest, *others]
    fastest = next((name for name in FASTEST if FRAMEWORKS[name].installed), "")
    if not fastest:
        raise UsageError(
            "No framework that computes is installed. Install PyTorch: "
            f"{FRAMEWORKS['pytorch'].install}"
        )
    stock = [name for name in STOCK if FRAMEWORKS[name].installed]
    return list(dict.fromkeys((fastest, *stock)))


def _precision(context: Context) -> Precision:
    """The 16-bit precision of the GPU; fp32 on a CPU."""
    if not context.has_gpu:
        return "fp32"
    capability = context.machine.gpus[0].compute_capability
    return "bf16" if capability is None or int(capability.split(".")[0]) >= 8 else "fp16"


def _workloads(settings: Settings, context: Context) -> Iterator[tuple[str, int]]:
    """(network, batch size), by default one that suits the device."""
    usual = WORKLOADS_GPU if context.has_gpu else WORKLOADS_CPU
    networks = dict.fromkeys(settings.networks or usual)
    if settings.batch_sizes:
        yield from itertools.product(networks, dict.fromkeys(settings.batch_sizes))
        return
    for network in networks:
        yield network, usual.get(network, 32 if context.has_gpu else 8)


def _fitting(network: str, batch: int, program: ProgramSettings, context: Context) -> int:
    """`batch`, halved until all programs of an interleaved run fit into the memory of the GPU."""
    memory = context.machine.gpus[0].memory_bytes
    built = build(network)
    while memory is not None and batch > 1:
        one = forecast(built, batch, program.precision, device="cuda", layout=program.layout)
        if 2 * INSTANCES * one.total_bytes <= MEMORY_FRACTION * memory:
            break
        batch //= 2
    return batch


def _stock(settings: Settings, spec: RunSpec, context: Context) -> list[RunSpec]:
    """`spec` with each framework to compare with in one process."""
    own = spec.program.framework
    names = [
        name
        for name in _installed(settings)
        if name != own and entry(name).shares_process(entry(own))
    ]
    return [replace(spec, program=replace(spec.program, framework=name)) for name in names]


def _interleaved(spec: RunSpec, other: RunSpec) -> RunSpec:
    against = Against(work=other.work, placement=other.placement, program=other.program)
    return replace(spec, against=against)


def _trials(specs: Sequence[RunSpec], context: Context) -> Iterator[RunSpec]:
    """What to try, the most informative first."""
    sizes = {_network(spec): network_entry(_network(spec)).image_size for spec in specs}
    images = [spec for spec in specs if sizes[_network(spec)]]
    if images:
        spec = max(images, key=lambda one: sizes[_network(one)])
        for change in _input_changes(context):
            yield _with(spec, work={"data": JPEG_FILES}, program=change)
        if entry(spec.program.framework).requires == "torch":
            eager = _with(spec, program={"framework": "pytorch"})
            yield replace(eager, budget=replace(eager.budget, attribution=True))
    for spec in specs:
        doubled = 2 * (spec.batch_per_device or 1)
        yield _interleaved(spec, _with(spec, work={"batch_per_device": doubled}))


def _input_changes(context: Context) -> list[Mapping[str, object]]:
    """Program settings of a training on image files: decoded on the host, on the GPU, once."""
    host = {"data_location": "host"}
    decoded = [{**host, "decode_location": "device"}] if context.has_gpu else []
    return [host, *decoded, {**host, "cache_decoded": True}]


def _with(
    spec: RunSpec,
    *,
    work: Mapping[str, object] | None = None,
    program: Mapping[str, object] | None = None,
) -> RunSpec:
    return replace(
        spec,
        work=replace(spec.work, **(work or {})),  # type: ignore[arg-type]
        program=replace(spec.program, **(program or {})),  # type: ignore[arg-type]
    )


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `performance-check`."""
    check = PerformanceCheck.of(records)
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title="Performance check",
        findings=tuple(findings(check)),
        tables=tuple(tables(check)),
        charts=tuple(charts(check)),
        warnings=(
            *(w for r in records for w in r.warnings),
            *(w for workload in check.ranked for w in workload.wide_interval),
        ),
        run_ids=tuple(r.run_id for r in records),
        notes=tuple(notes(check)),
    )


EXPERIMENT = Experiment(
    name="performance-check",
    question="How fast does this machine train, is that good, and what would make it faster?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "framework": "frameworks",
        "data": "trials",
        "data_location": "trials",
        "decode_location": "trials",
        "cache_decoded": "trials",
    },
    plan=plan,
    grows=True,
    repeats=True,
    answer=answer,
    alternates=False,
    tunes=False,
    announce=announce,
)
