"""Search space of `tune`: its knobs, in the order they are varied.

A knob changes a few fields of a spec together where they only pay together, such as a 16-bit
precision and channels-last images. Its options depend on the baseline run alone (CPU or GPU, and
number of threads), so that the same records give the same options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from cubemesh.experiments.analysis.groups import setting_label
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.parallel.strategies import STRATEGIES, same_steps, strategy
from cubemesh.schema import NetworkWork, RunRecord, RunSpec
from cubemesh.schema.spec import CompileBy, Layout, LossScale, Pinning, Precision

STOCK_STRATEGY = "all-reduce"
"""The baseline's, on several devices."""

LOSS_SCALE = 1024.0
"""Static loss scale of fp16, as in JAX and TensorFlow here: a static scale allows capturing the
step, and skips no first steps. With ResNet-50 the first losses then agree with fp32."""

TRIED_FIRST = ("pytorch", "pytorch-captured")
"""The baseline framework, and the fastest on an H200 and on the CPUs of benchmarks/LOG.md."""

SIXTEEN_BITS = ("bf16", "fp16")
CPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
GPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
"""Precisions that may train as well as fp32."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One value for every knob."""

    framework: str
    precision: Precision = "fp32"
    loss_scale: LossScale | None = None
    layout: Layout = "nchw"
    compile_by: CompileBy = "network"
    sync: str = "none"
    bucket_bytes: int | None = None
    threads: int | None = None
    pinning: Pinning = "none"
    batch_per_device: int

    def of(self, spec: RunSpec) -> RunSpec:
        """`spec` with this configuration."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {}
        for name in ("work", "placement", "program"):
            part = getattr(spec, name)
            own = {f.name: values[f.name] for f in fields(part) if f.name in values}
            changed[name] = replace(part, **own)
        return replace(spec, **changed)

    def changes(self, before: Configuration) -> tuple[str, ...]:
        """The settings that differ from `before`, as `key=value`."""
        return tuple(
            f"{f.name}={'none' if value is None else value}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != getattr(before, f.name)
        )

    def words(self, stock: Configuration) -> str:
        """The differences from `stock` in words, such as `bf16, nhwc, 1 thread`, or `stock`. A loss
        scale is implied by its precision."""
        other = [f.name for f in fields(self) if getattr(self, f.name) != getattr(stock, f.name)]
        if "loss_scale" in other and ("precision" in other or self.loss_scale is None):
            other.remove("loss_scale")
        return ", ".join(setting_label(name, getattr(self, name)) for name in other) or "stock"

    def same_precision(self, other: Configuration) -> bool:
        """Whether it computes and communicates in the same precision as `other`."""
        return self.precision == other.precision and same_steps(self.sync, other.sync)


FIELDS = tuple(f.name for f in fields(Configuration))
"""Fields that tuning can set."""


def configuration_of(spec: RunSpec) -> Configuration:
    """The configuration of a spec."""
    work, place, program = spec.work, spec.placement, spec.program
    assert isinstance(work, NetworkWork), "only networks are tuned"
    return Configuration(
        framework=program.framework,
        precision=program.precision,
        loss_scale=program.loss_scale,
        layout=program.layout,
        compile_by=program.compile_by,
        sync=program.sync,
        bucket_bytes=program.bucket_bytes,
        threads=place.threads,
        pinning=place.pinning,
        batch_per_device=work.batch_per_device,
    )


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Values to choose from. As requested, an empty list is the default of the device, which is
    unknown until the baseline has run; `on_device` fills it in."""

    batch_per_device: int
    """Of the baseline."""
    devices: int
    frameworks: Sequence[str]
    precisions: Sequence[Precision]
    layouts: Sequence[Layout]
    threads: Sequence[int]
    pinnings: Sequence[Pinning]
    compile_by: Sequence[CompileBy]
    strategies: Sequence[str]
    buckets: Sequence[int]
    """Bytes."""
    batch_sizes: Sequence[int]
    on_gpu: bool = False
    usable_threads: int | None = None
    """Number of threads by default; None if unknown."""

    def on_device(self, stock: RunRecord) -> SearchSpace:
        """The space with the defaults of the device of the baseline run. Strategies are only varied
        on several devices, and threads only on one device of a CPU."""
        rank = stock.ranks[0] if stock.ranks else None
        on_gpu = rank is not None and rank.device != "cpu"
        usable = None if rank is None or on_gpu else rank.threads
        precisions = GPU_PRECISIONS if on_gpu else CPU_PRECISIONS
        fewer = () if usable is None else tuple(sorted({1, max(1, usable // 2)} - {usable}))
        several = self.devices > 1
        return replace(
            self,
            precisions=self.precisions or precisions,
            strategies=(self.strategies or usual_strategies(on_gpu)) if several else (),
            threads=() if on_gpu or several else self.threads or fewer,
            on_gpu=on_gpu,
            usable_threads=usable,
        )


Options = Callable[[Configuration, SearchSpace], list[Configuration]]


@dataclass(frozen=True)
class Knob:
    """A knob: its name, and its options from a configuration."""

    name: str
    options: Options
    first: Options | None = None
    """Options of the first pass, where some are more promising."""


def _frameworks(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Another framework, with its usual image layout."""
    return [
        replace(
            now,
            framework=name,
            loss_scale=loss_scale_of(name, now.precision),
            layout="nhwc" if prefers_nhwc(name, space.layouts) else now.layout,
            compile_by="network",
        )
        for name in space.frameworks
    ]


def prefers_nhwc(framework: str, layouts: Sequence[Layout]) -> bool:
    """Whether nhwc is a framework's usual layout, and one of `layouts`."""
    return entry(framework).layout == "nhwc" and "nhwc" in layouts


def _numbers(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Every precision with every layout, the most promising first."""
    every = [
        replace(
            now,
            precision=precision,
            loss_scale=loss_scale_of(now.framework, precision),
            layout=layout,
        )
        for precision, layout in product(space.precisions, space.layouts)
    ]
    return sorted(every, key=lambda option: not _promises(option, space))


def _promising_numbers(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """The promising ones only; all if there are none among them."""
    every = _numbers(now, space)
    return [option for option in every if _promises(option, space)] or every


def _promises(option: Configuration, space: SearchSpace) -> bool:
    """On a GPU: 16 bits in nhwc, the layout of tensor cores. In fp32 cuDNN takes up to a minute to
    search algorithms, which are slower."""
    fits = option.layout == "nhwc" or "nhwc" not in space.layouts
    return not space.on_gpu or (option.precision in SIXTEEN_BITS and fits)


def loss_scale_of(framework: str, precision: Precision) -> LossScale | None:
    """Static loss scale of a framework; None where it sets its own."""
    return LOSS_SCALE if precision == "fp16" and entry(framework).static_scale else None


def _compiling(now: Configuration, space: SearchSpace) -> list[Configuration]:
    if entry(now.framework).compiles is None:
        return []
    return [replace(now, compile_by=by) for by in space.compile_by]


def _strategy(now: Configuration, space: SearchSpace) -> list[Configuration]:
    return [replace(now, sync=name) for name in space.strategies]


def _buckets(now: Configuration, space: SearchSpace) -> list[Configuration]:
    if not strategy(now.sync).same_weights:
        return []
    return [replace(now, bucket_bytes=size) for size in (None, *space.buckets)]


def _threads(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Another number of threads; None is one per usable core."""
    own = [n for n in space.threads if n != space.usable_threads]
    return [replace(now, threads=n, pinning="none") for n in (None, *own)]


def _pinning(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Pinning has no effect with one thread per core."""
    if now.threads is None:
        return []
    return [replace(now, pinning=pinning) for pinning in space.pinnings]


def _batches(now: Configuration, space: SearchSpace) -> list[Configuration]:
    return [replace(now, batch_per_device=batch) for batch in space.batch_sizes]


KNOBS = (
    Knob("precision and layout", _numbers, first=_promising_numbers),
    Knob("framework", _frameworks),
    Knob("compile_by", _compiling),
    Knob("sync", _strategy),
    Knob("buckets", _buckets),
    Knob("threads", _threads),
    Knob("pinning", _pinning),
)
"""In the order they are varied: largest gain per search time first."""
BATCH_SIZE = Knob("batch size", _batches)
"""Varied last, and only if requested: another batch size is another training."""


def usual_frameworks() -> tuple[str, ...]:
    """All that compute, the most promising first."""
    computing = [n for n, line in FRAMEWORKS.items() if line.read_script is None and line.trains]
    return tuple(dict.fromkeys((*TRIED_FIRST, *computing)))


def usual_strategies(on_gpu: bool) -> tuple[str, ...]:
    """Strategies after which all devices have the same weights, without a parameter server."""
    return tuple(
        name for name, s in STRATEGIES.items() if s.tuned and (on_gpu or not s.needs_peer_access)
    )
