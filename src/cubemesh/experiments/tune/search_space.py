"""What can be changed to train the same network faster? The levers of `tune`, in their order.

A lever turns a few fields of a spec together, where they only pay together: a precision of 16 bits
and channels-last images, say. What it offers depends on the stock run alone (on a CPU or a GPU, and
with how many threads), so that a later reader finds the same levers in the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from cubemesh.experiments.analysis.groups import setting_label
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.parallel import strategies
from cubemesh.schema import NetworkWork, RunRecord, RunSpec
from cubemesh.schema.spec import CompileBy, Layout, LossScale, Pinning, Precision
from cubemesh.units import format_bytes

IN_BUCKETS = strategies.SAME_WEIGHTS
"""Exchanges under which `bucket_bytes` counts."""


STOCK_EXCHANGE = "all-reduce"
"""What several devices begin with."""

LOSS_SCALE = 1024.0
"""Of fp16: JAX's and TensorFlow's here too. It stays, so that a step can be captured; a dynamic one
begins by leaving steps out. With ResNet-50 the first steps then learn as in fp32."""

TRIED_FIRST = ("pytorch", "pytorch-captured")
"""The stock framework, and the fastest on an H200 and on the cores of benchmarks/LOG.md."""

SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One setting of every lever."""

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
        """`spec` in this configuration."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {}
        for name in ("work", "placement", "program"):
            part = getattr(spec, name)
            own = {f.name: values[f.name] for f in fields(part) if f.name in values}
            changed[name] = replace(part, **own)
        return replace(spec, **changed)

    def changes(self, before: Configuration) -> tuple[str, ...]:
        """What must be set to come here from `before`, as `key=value`."""
        return tuple(
            f"{f.name}={'none' if value is None else value}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != getattr(before, f.name)
        )

    def words(self, stock: Configuration) -> str:
        """What is not as in `stock`, in words: `bf16, nhwc, 1 thread`; `stock` where nothing is. A
        loss scale goes without saying with the precision that has it."""
        other = [f.name for f in fields(self) if getattr(self, f.name) != getattr(stock, f.name)]
        if "loss_scale" in other and ("precision" in other or self.loss_scale is None):
            other.remove("loss_scale")
        return ", ".join(_spoken(name, getattr(self, name)) for name in other) or "stock"

    def counts_as(self, other: Configuration) -> bool:
        """Whether it computes with as many digits as `other`."""
        same_steps = strategies.same_steps(self.sync, other.sync)
        return self.precision == other.precision and same_steps


def _spoken(name: str, value: object) -> str:
    if name == "bucket_bytes" and isinstance(value, int):
        return f"buckets of {format_bytes(value)}"
    words = {"compile_by": f"compiled by {value}", "batch_per_device": f"minibatch {value}"}
    return words.get(name) or setting_label(name, value)


FIELDS = tuple(f.name for f in fields(Configuration))
"""The fields that a tuning may choose."""


def configuration_of(spec: RunSpec) -> Configuration:
    """The configuration a spec has."""
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
class SearchRequest:
    """What a tuning was asked for; an empty list is what is usual on the device."""

    batch_per_device: int
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


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """How far the levers go: what was asked for, and what the stock run told of the device."""

    frameworks: Sequence[str]
    precisions: Sequence[Precision]
    layouts: Sequence[Layout]
    compile_by: Sequence[CompileBy]
    strategies: Sequence[str]
    """None on one device."""
    buckets: Sequence[int]
    threads: Sequence[int]
    """None where threads are not to be set."""
    pinnings: Sequence[Pinning]
    batch_sizes: Sequence[int]
    on_gpu: bool
    usable_threads: int | None
    """What no setting of threads is; None where nothing told."""


Options = Callable[[Configuration, SearchSpace], list[Configuration]]


@dataclass(frozen=True)
class Knob:
    """One line of the table: what it turns, and where to from a configuration."""

    name: str
    options: Options
    first: Options | None = None
    """In the first pass, where some of them promise more than the others."""


def _frameworks(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Another framework, with images as its users lay them out where it has an order of its own."""
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
    """Whether a framework's users lay images out so, and it is one of the asked `layouts`."""
    return entry(framework).layout == "nhwc" and "nhwc" in layouts


def _numbers(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Every precision with every layout, those that promise most first."""
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
    """Those alone; all where none of them is asked for."""
    every = _numbers(now, space)
    return [option for option in every if _promises(option, space)] or every


def _promises(option: Configuration, space: SearchSpace) -> bool:
    """On a GPU 16 bits, with images as its tensor cores read them: cuDNN takes up to a minute to
    find its algorithms for wide numbers, and they are slower then."""
    fits = option.layout == "nhwc" or "nhwc" not in space.layouts
    return not space.on_gpu or (option.precision in SIXTEEN_BITS and fits)


def loss_scale_of(framework: str, precision: Precision) -> LossScale | None:
    """What a framework's loss is multiplied by; None where that is its own affair."""
    return LOSS_SCALE if precision == "fp16" and entry(framework).static_scale else None


def _compiling(now: Configuration, space: SearchSpace) -> list[Configuration]:
    if entry(now.framework).compiles is None:
        return []
    return [replace(now, compile_by=by) for by in space.compile_by]


def _strategy(now: Configuration, space: SearchSpace) -> list[Configuration]:
    return [replace(now, sync=name) for name in space.strategies]


def _buckets(now: Configuration, space: SearchSpace) -> list[Configuration]:
    if now.sync not in IN_BUCKETS:
        return []
    return [replace(now, bucket_bytes=size) for size in (None, *space.buckets)]


def _threads(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """Another number of threads; as many as there are usable cores is what `None` is."""
    own = [n for n in space.threads if n != space.usable_threads]
    return [replace(now, threads=n, pinning="none") for n in (None, *own)]


def _pinning(now: Configuration, space: SearchSpace) -> list[Configuration]:
    """As many threads as cores, bound to all of them, are as free as before."""
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
"""In the order they are turned: those that gain most for the time they take come first."""
BATCH_SIZE = Knob("batch size", _batches)
"""Turned last, and only where it may vary: with another minibatch another curve is trained."""


def usual_frameworks() -> tuple[str, ...]:
    """All that compute: those that promise most, then the others in the order of their table."""
    computing = [name for name, line in FRAMEWORKS.items() if line.read_script is None]
    return tuple(dict.fromkeys((*TRIED_FIRST, *computing)))


def usual_precisions(on_gpu: bool) -> tuple[Precision, ...]:
    """Those that may train as well as fp32 does."""
    return ("fp32", "tf32", "bf16", "fp16") if on_gpu else ("fp32", "bf16")


def usual_strategies(on_gpu: bool) -> tuple[str, ...]:
    """Those after each step of which all devices have the same weights, and where none updates for
    the others."""
    by_copies = ("all-reduce-copied", "all-reduce-copied-16") if on_gpu else ()
    return (STOCK_EXCHANGE, "all-reduce-16", *by_copies)


def device_of(stock: RunRecord) -> tuple[bool, int | None]:
    """Whether a run was on a GPU, and with how many threads it ran on a CPU; nothing is known of
    one that never began."""
    if not stock.ranks:
        return False, None
    rank = stock.ranks[0]
    on_gpu = rank.device != "cpu"
    return on_gpu, None if on_gpu else rank.threads


def usual_threads(usable: int | None) -> tuple[int, ...]:
    """One, half of the usable cores; all of them is the default."""
    return () if usable is None else tuple(sorted({1, max(1, usable // 2)} - {usable}))
