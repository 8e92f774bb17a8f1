"""Workloads of a performance check: their throughput, speed-ups, and measured losses.

A workload has one throughput: the windows of all runs of its fastest program are pooled, those of
an interleaved run included. A gain is a ratio from one interleaved process where the two programs
can share one, and a ratio of two runs for programs that read files, whose threads cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cubemesh.experiments.analysis.caveats import noise_codes
from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.experiments.analysis.groups import (
    Group,
    caveats,
    group_by,
    pooled,
    window_pairs,
)
from cubemesh.experiments.analysis.ratios import ratio, reciprocal, significance
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.attribution.attribution import GAPS
from cubemesh.measure.attribution.bottlenecks import excess_of, losses
from cubemesh.measure.timing.interleaved_ab import SECOND_PROGRAM, ratio_of
from cubemesh.networks import NETWORKS, rate_unit
from cubemesh.networks.own_input import at_own_size
from cubemesh.papers.published import figures as published_figures
from cubemesh.papers.published import stock_figures
from cubemesh.papers.published.nearest import precision_distance, same_device
from cubemesh.schema import (
    Ceiling,
    Figure,
    ProgramSettings,
    PublishedFigure,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
    warn,
)
from cubemesh.schema.comparison import Ratio
from cubemesh.schema.record import AGAINST
from cubemesh.statistics import Spread, spread_of
from cubemesh.statistics.process_spread import pooled as pooled_spread
from cubemesh.store.run_statistics import run_windows
from cubemesh.store.spread_prior import prior_spread
from cubemesh.units import format_list

STOCK, DOUBLED, FILES, GPU_DECODED, CACHED, PROFILE, SINGLE = (
    *("stock", "batch size", "files", "files, decoded on the GPU", "files, decoded once"),
    *("profile", "single"),
)
"""What a run was made for."""
WORKLOADS_GPU = {"resnet-50": 256, "gpt2": 8}
WORKLOADS_CPU = {"little-cnn": 64, "resnet-18": 4}
"""Network → batch size, where the settings name no network."""
DECODING = {
    GPU_DECODED: "decode_location=device",
    CACHED: "cache_decoded=true",
}
"""Run with a remedy for slow input → its setting."""
MIN_LOSS = 0.02
"""Smallest fraction of throughput that is reported as a loss."""
WIDE_INTERVAL = 0.1
"""Half of an interval, relative to the throughput, from which it is marked as wide."""


def role_of(record: RunRecord) -> str:
    """What a training run of this experiment was made for."""
    spec, other = record.spec, record.spec.other
    assert isinstance(spec.work, TrainSteps)
    if other is not None:
        return DOUBLED if other.batch_per_device != spec.batch_per_device else STOCK
    if spec.budget.attribution:
        return PROFILE
    if spec.work.data == "synthetic":
        return SINGLE
    if spec.program.cache_decoded:
        return CACHED
    return GPU_DECODED if spec.program.decode_location == "device" else FILES


def title_of(framework: str) -> str:
    """The name of a framework's programs in a sentence."""
    known = FRAMEWORKS.get(framework)
    return known.title if known is not None else framework


def train_command(spec: RunSpec, *, data: str = "", setting: str = "", batch: int = 0) -> str:
    """The command that trains the network of `spec` with its program, or another batch size, a
    `setting` more, and data of their own (options of `cubemesh train`)."""
    assert isinstance(spec.work, TrainSteps)
    network, program = NETWORKS.get(spec.work.network), spec.program
    if not data and network is not None and not network.image_size:
        data = "--data synthetic"  # the default has images
    usual = program.precision == ProgramSettings().precision
    parts = (
        f"cubemesh train {spec.work.network}",
        data,
        f"--batch-per-device {batch or spec.batch_per_device}",
        "" if usual else f"--precision {program.precision}",
        f"--set framework={program.framework}",
        f"--set {setting}" if setting else "",
    )
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A measured loss of throughput, and the remedy that was tried."""

    network: str
    cause: str
    """Empty where neither an attribution nor a tried remedy explains it."""
    baseline: str
    """The program that has the loss."""
    gain: Figure
    """Throughput with the remedy, as a multiple of the baseline's."""
    remedy: str
    command: str
    """Applies the remedy."""
    included: bool = False
    """Whether the figure of the machine has the remedy already."""
    caveats: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Fraction of the remedied throughput that the baseline lacks."""
        return _share(self.gain)

    @property
    def significant(self) -> bool:
        """Whether the gain is significant and large enough to report."""
        return significance(self.gain) > 0 and self.share >= MIN_LOSS


@dataclass(frozen=True)
class Workload:
    """The runs of one network and batch size."""

    network: str
    batch: int
    records: tuple[RunRecord, ...]
    lent: Spread | None = None
    """The spread between processes of the other workloads of the check."""

    def role(self, name: str) -> list[RunRecord]:
        """The runs made for `name`."""
        return [r for r in self.records if role_of(r) == name]

    @cached_property
    def group(self) -> Group[str]:
        """All runs of the fastest known program on resident data."""
        own = [r for r in self.records if role_of(r) in (STOCK, DOUBLED, SINGLE)]
        return Group(self.network, tuple(own or self.records))

    @property
    def spec(self) -> RunSpec:
        """The spec of the fastest known program."""
        return self.group.records[0].spec

    @property
    def unit(self) -> str:
        """Of its throughput: `images/s` or `sequences/s`."""
        return rate_unit(self.network)

    @property
    def sequence_length(self) -> int:
        """Tokens of a sequence; 0 for images, and for text, whose sequences differ in length."""
        work, known = self.spec.work, NETWORKS.get(self.network)
        if not isinstance(work, TrainSteps) or work.data != "synthetic" or known is None:
            return 0
        return work.sequence_length or known.sequence_length

    @property
    def known(self) -> str:
        """The framework that was expected to be the fastest, to which others are compared."""
        return self.spec.program.framework

    @cached_property
    def compared(self) -> dict[str, tuple[RunRecord, ...]]:
        """Stock framework → the interleaved runs of `known` and it."""
        found: dict[str, tuple[RunRecord, ...]] = {}
        for record in self.role(STOCK):
            if (other := record.spec.other) is not None:
                name = other.program.framework
                found[name] = (*found.get(name, ()), record)
        return found

    @cached_property
    def _inverse(self) -> dict[str, tuple[Figure, tuple[RunRecord, ...]]]:
        """Stock framework → throughput of `known` relative to it, with the interleaved runs."""
        return {
            name: (reciprocal(figure, 1.0, "×"), records)
            for name, records in self.compared.items()
            if (figure := _ratio(records)) is not None
        }

    @cached_property
    def fastest(self) -> str:
        """The framework that is fastest: `known`, unless a stock one is significantly faster."""
        slower = {
            name: figure.value
            for name, (figure, records) in self._inverse.items()
            if significance(figure) < 0 and other_throughput(records) is not None
        }
        return min(slower, key=lambda name: slower[name], default=self.known)

    @cached_property
    def throughput(self) -> Figure | None:
        """Samples per second of the fastest program, with the spread between processes where it is
        known; None where nothing ran."""
        return self._throughput_with(self.prior)

    def _throughput_with(self, prior: Spread | None) -> Figure | None:
        if self.fastest == self.known:
            return self.group.throughput_with(prior)
        return other_throughput(self._inverse[self.fastest][1], prior)

    @property
    def processes(self) -> int:
        """Processes that measured the fastest program."""
        own = self.group.ok if self.fastest == self.known else self._inverse[self.fastest][1]
        return len(own)

    @cached_property
    def prior(self) -> Spread | None:
        """The spread between processes in earlier measurements, otherwise that of the other
        workloads where this one ran in more than one process; None where there is none."""
        return prior_spread(self.group.ok) or (self.lent if self.processes > 1 else None)

    @property
    def spread(self) -> Spread | None:
        """The spread between the processes of the fastest known program; None for fewer than
        two."""
        runs = [window_pairs(run_windows(record)) for record in self.group.ok]
        logs = [math.log(sum(n for n, _ in run) / math.fsum(s for _, s in run)) for run in runs]
        return spread_of(logs, f"of {len(logs)} runs of {self.network} here")

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """Codes of the warnings about the fastest program, not about those it is compared with."""
        second = self.fastest != self.known
        records = self._inverse[self.fastest][1] if second else self.group.ok
        codes = noise_codes(
            replace(
                record,
                warnings=tuple(
                    w for w in record.warnings if w.cause.startswith(SECOND_PROGRAM) is second
                ),
            )
            for record in records
        )
        return (*codes, *(w.code for w in self.wide_interval))

    @cached_property
    def wide_interval(self) -> tuple[Warning, ...]:
        """A warning about an interval of more than 10 % of the throughput."""
        figure = self.throughput
        if figure is None or figure.low is None or figure.high is None:
            return ()
        half = max(figure.high - figure.value, figure.value - figure.low) / figure.value
        if half < WIDE_INTERVAL:
            return ()
        runs = f"{self.processes} process{'' if self.processes == 1 else 'es'}"
        return (
            warn(
                "wide-interval",
                f"The throughput of {self.network} is known to ± {100 * half:.0f} % from {runs}.",
                "Stop other programs and measure again, with more runs of each program: "
                f"--set repeats={self.more_repeats}.",
            ),
        )

    @property
    def more_repeats(self) -> int:
        """Runs of each program that narrow the interval: three times those that were made."""
        return 3 * max(self.processes, self.spec.budget.repeats)

    @cached_property
    def speedups(self) -> dict[str, Figure]:
        """Each other framework → throughput of the fastest program relative to it."""
        found = {self.known: Figure(value=1.0, unit="×")}
        found |= {name: figure for name, (figure, _) in self._inverse.items()}
        best = found.pop(self.fastest)
        return {name: ratio(figure, best) for name, figure in found.items()}

    @cached_property
    def uncertainty(self) -> dict[str, float]:
        """Stock framework → relative half-width of the interval of its ratio. The widest one has
        that of the throughput, without the other workloads' spread, if it is larger: a run of
        the two programs narrows both."""
        found = {
            name: _half_width(self._inverse[name][0] if name in self._inverse else None)
            for name, records in self.compared.items()
            if any(record.ok for record in records)
        }
        if found:
            widest = max(found, key=lambda name: found[name])
            own = self._throughput_with(prior_spread(self.group.ok))
            found[widest] = max(found[widest], _half_width(own))
        return found

    def record_of(self, framework: str) -> RunRecord:
        """The first run that compared a framework."""
        _, records = self._inverse.get(framework, (None, self.group.records))
        return records[0]

    @cached_property
    def use_percent(self) -> float | None:
        """Percent of the fastest matrix product that the fastest program uses; None if it is not
        known, or above 100 with a fast algorithm."""
        use = self.group.median_of("ceiling_mfu_percent") if self.fastest == self.known else None
        return use if use is not None and use <= 100 else None

    @property
    def matmul_rates(self) -> tuple[float, float] | None:
        """FLOP/s of the fastest program, and of the fastest matrix product of this device; None
        as `use_percent`."""
        rate, use = self.group.median_of("model_flops_per_s"), self.use_percent
        return None if rate is None or not use else (rate, 100 * rate / use)

    @property
    def synthetic(self) -> bool:
        """Whether the fastest program trained on made input."""
        work = self.spec.work
        return isinstance(work, TrainSteps) and work.data == "synthetic"

    @cached_property
    def eager_cause(self) -> str:
        """What eager PyTorch loses its throughput to, as far as it was measured: launch gaps by the
        attribution of an eager step, unfused kernels by the gain of a compiler that fuses them,
        which also launches less. Empty where they explain less than half of the loss."""
        least = max(MIN_LOSS, _share(self.speedups["pytorch"]) / 2)
        gaps, fused = self._gap_share, self._fusing_share
        if gaps is None:
            return "unfused kernels or launch gaps" if fused >= least else ""
        found = ["launch gaps"] if gaps >= MIN_LOSS else []
        found += ["unfused kernels"] if fused - gaps >= MIN_LOSS else []
        return format_list(found) if max(gaps, fused) >= least else ""

    @property
    def _gap_share(self) -> float | None:
        """The share of launch gaps in an eager step; None where none was attributed."""
        for record in self.role(PROFILE):
            if excess_of(record) is None and (found := losses(record)):
                return found.get(GAPS, 0.0)
        return None

    @property
    def _fusing_share(self) -> float:
        """The fraction of its throughput that eager PyTorch lacks to a program that fuses kernels
        and is otherwise the same; 0 without a significant gain."""
        eager = self.speedups["pytorch"]
        gains = [
            eager if name == self.fastest else ratio(eager, self.speedups[name])
            for name in (*self.speedups, self.fastest)
            if (known := FRAMEWORKS.get(name)) and known.fuses and known.compiles == "pytorch"
        ]
        return max((_share(gain) for gain in gains if significance(gain) > 0), default=0.0)

    def losses(self) -> Iterator[Loss]:
        """The losses for which a remedy was measured."""
        program = title_of(self.known)
        fastest = replace(self.spec, program=replace(self.spec.program, framework=self.fastest))
        if "pytorch" in self.speedups:
            yield Loss(
                network=self.network,
                cause=self.eager_cause,
                baseline=title_of("pytorch"),
                gain=self.speedups["pytorch"],
                remedy=title_of(self.fastest),
                command=train_command(fastest),
                included=True,
                caveats=noise_codes(self.compared.get("pytorch", self.group.records)),
            )
        by_role = {g.key: g for g in group_by(self.records, role_of)}
        files = by_role.get(FILES)
        tried = [
            (figure, name, group)
            for name in DECODING
            if (group := by_role.get(name)) is not None and (figure := group.throughput) is not None
        ]
        if tried and files is not None and files.throughput is not None:
            best, name, group = max(tried, key=lambda one: one[0].value)
            yield Loss(
                network=self.network,
                cause="reading and decoding JPEG files",
                baseline=f"{program} on JPEG files",
                gain=ratio(best, files.throughput),
                remedy=DECODING[name],
                command=train_command(
                    self.spec, data="--data images --data-path FOLDER", setting=DECODING[name]
                ),
                caveats=caveats(files, group),
            )
        if doubled := self.role(DOUBLED):
            gain = _ratio(doubled)
            if gain is not None:
                yield Loss(
                    network=self.network,
                    cause=f"batch size {self.batch}",
                    baseline=program,
                    gain=gain,
                    remedy=f"batch size {2 * self.batch}",
                    command=train_command(self.spec, batch=2 * self.batch),
                    caveats=noise_codes(doubled),
                )

    @cached_property
    def published(self) -> tuple[PublishedFigure, Figure] | None:
        """The fastest published result per device of this model in this class of precision, and the
        throughput here as a multiple of it. On a CPU: the fastest published of any."""
        measured, device = self.throughput, self.device
        if measured is None or not at_own_size(self.spec.work):
            return None
        precision = self.spec.program.precision
        rated = []
        for figure in (*published_figures(), *stock_figures()):
            if figure.canonical != self.network or not figure.precision:
                continue
            if precision_distance(precision, figure.precision):
                continue
            if self.on_cpu:
                rate = _cpu_rate(figure)
            else:
                alike = figure.devices and same_device(device, figure.device)
                rated_here = alike and figure.metric == "throughput"
                rate = figure.value / (figure.devices or 1) if rated_here else None
            if rate is not None:
                rated.append((rate, figure))
        if not rated:
            return None
        rate, figure = max(rated, key=lambda one: one[0])
        return figure, ratio(measured, Figure(value=rate, unit=self.unit))

    @property
    def rated(self) -> Figure | None:
        """The throughput as a multiple of a published result of this device; None without one."""
        if self.published is None:
            return None
        figure, times = self.published
        return times if not self.on_cpu or same_device(self.device, figure.device) else None

    @property
    def device(self) -> str:
        """Name of the device; empty if nothing ran."""
        return next((k.device_name for r in self.records for k in r.ranks if k.device_name), "")

    @property
    def threads(self) -> str:
        """`2 threads on 2 cores` of a CPU; empty on a GPU, and if nothing ran."""
        count = next((k.threads for r in self.records for k in r.ranks), None)
        if count is None or not self.on_cpu:
            return ""
        threads = f"{count} thread{'' if count == 1 else 's'}"
        place = self.spec.placement
        if place.threads is not None or place.pinning != "none":
            return threads
        return f"{threads} on {count} core{'' if count == 1 else 's'}"  # the default: one each

    @property
    def on_cpu(self) -> bool:
        """Whether it ran on the CPU."""
        return any(k.device == "cpu" for r in self.records for k in r.ranks)


def _share(gain: Figure) -> float:
    """The fraction of the faster throughput that the slower one lacks."""
    return 1 - 1 / gain.value


def _half_width(figure: Figure | None) -> float:
    """Relative half-width of an interval; infinite without one."""
    if figure is None or figure.low is None or figure.high is None:
        return math.inf
    return (figure.high - figure.low) / 2 / figure.value


def _ratio(records: Sequence[RunRecord]) -> Figure | None:
    """The ratio of interleaved runs of the same programs, over the pairs of instances of all; None
    without an interval."""
    found = ratio_of_record(records[0]) if len(records) == 1 else _pooled_ratio(records)
    if found is None or not found.low or not found.high:
        return None
    return Figure(value=found.value, unit="×", low=found.low, high=found.high)


def _pooled_ratio(records: Sequence[RunRecord]) -> Ratio | None:
    windows = [
        replace(window, marks=(f"{number} {window.marks[0]}", *window.marks[1:]))
        for number, record in enumerate(records)
        for window in record.windows
        if window.phase in ("measure", AGAINST)
    ]
    try:
        return ratio_of(windows)
    except ValueError:
        return None


def other_throughput(records: Sequence[RunRecord], prior: Spread | None = None) -> Figure | None:
    """Samples per second of the second program of interleaved runs."""
    ran = [r for r in records if "against_throughput_per_s" in r.figures]
    if not ran:
        return None
    if len(ran) == 1 and prior is None:
        return ran[0].figures["against_throughput_per_s"]
    return pooled([window_pairs(w for w in r.windows if w.phase == AGAINST) for r in ran], prior)


def _cpu_rate(figure: PublishedFigure) -> float | None:
    """Samples per second of a published result on CPUs: a throughput, or the time of forward and
    backward passes, which excludes the update."""
    if figure.devices != 0:
        return None
    if figure.metric == "throughput":
        return figure.value
    if figure.metric == "forward+backward time" and figure.batch_per_device:
        return 1e3 * figure.batch_per_device / figure.value
    return None


@dataclass(frozen=True)
class PerformanceCheck:
    """The workloads of one check, in the order they ran."""

    workloads: tuple[Workload, ...]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> PerformanceCheck:
        """From its records."""
        steps = [r for r in records if not isinstance(r.spec.work, Ceiling)]
        found = [Workload(g.key[0], g.key[1], g.records) for g in group_by(steps, _key)]
        spreads = [workload.spread for workload in found]
        return cls(
            tuple(
                replace(
                    workload, lent=pooled_spread([s for s in spreads[:i] + spreads[i + 1 :] if s])
                )
                for i, workload in enumerate(found)
            )
        )

    @cached_property
    def ranked(self) -> tuple[Workload, ...]:
        """The workloads, those with a published result first, then the last that ran."""
        latest = self.workloads[::-1]
        return tuple(sorted(latest, key=lambda w: w.published is None))

    @cached_property
    def tried(self) -> tuple[Loss, ...]:
        """Every measured loss."""
        return tuple(loss for workload in self.workloads for loss in workload.losses())

    @cached_property
    def untried(self) -> tuple[str, ...]:
        """Remedies for which there was no time."""
        roles = {role_of(record) for w in self.workloads for record in w.records}
        images = any(w.unit == "images/s" for w in self.workloads)
        sizes = () if DOUBLED in roles else ("larger batch sizes",)
        return (*sizes, *(("input from files",) if images and FILES not in roles else ()))

    @cached_property
    def losses(self) -> tuple[tuple[Loss, ...], ...]:
        """The significant losses, those of one program and one cause together; the largest
        first."""
        found = sorted((loss for loss in self.tried if loss.significant), key=lambda o: -o.share)
        groups: dict[tuple[str, str], list[Loss]] = {}
        for loss in found:
            groups.setdefault((loss.baseline, loss.cause), []).append(loss)
        return tuple(map(tuple, groups.values()))


def _key(record: RunRecord) -> tuple[str, int]:
    work = record.spec.work
    assert isinstance(work, TrainSteps)
    return work.network, work.batch_per_device
