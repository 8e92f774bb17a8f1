"""Calibration: the factors that a forecast uses, each with its source.

A `Calibration` has factors, each measured, fitted or assumed, with its source, and measured sweeps
of collectives. The default has only assumed and fitted factors; measured ones replace them one by
one. NCCL's are the constants of its own tuning model for the Simple
protocol (`nccl_constants.json`); that model is off by 6 to 40 % against measurement.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import accumulate, pairwise
from typing import Literal, get_args

from cubemesh.errors import DataError, unknown_name
from cubemesh.forecast import attained

Origin = Literal["measured", "fitted", "assumed"]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

SWEEP_COLUMNS = ("operation", "devices", "bytes", "seconds")


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One number of the model."""

    value: float
    unit: str
    """Empty for a plain ratio."""
    origin: Origin
    source: str
    low: float | None = None
    high: float | None = None
    """Of a factor fitted to a rate: its values if that rate is off by `band_one_device`."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Measured times of one collective on a number of devices, of two or more rising sizes;
    DataError for anything else."""

    operation: Operation
    devices: int
    size_bytes: tuple[float, ...]
    """Sizes as in nccl-tests: of the whole array; for all-gather of the gathered one."""
    seconds: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        where = f"{self.source}: {self.operation} on {self.devices} devices"
        if self.devices < 2:
            raise DataError(f"{where}: a collective needs at least 2 devices.")
        if len(self.size_bytes) != len(self.seconds) or len(self.size_bytes) < 2:
            raise DataError(f"{where} needs at least two sizes, each with a time.")
        if not all(math.isfinite(v) and v > 0 for v in (*self.size_bytes, *self.seconds)):
            raise DataError(f"{where}: every size and every time must be above 0.")
        if any(b <= a for a, b in pairwise(self.size_bytes)):
            raise DataError(f"{where}: the sizes must rise, each given once.")

    def at(self, size_bytes: float) -> float:
        """Seconds for this size, by linear interpolation of logarithms. Below the smallest size
        its time is used (latency), above the largest its bandwidth. A time that falls with
        growing size is noise: the longest time of the smaller sizes is used."""
        sizes, times = self.size_bytes, tuple(accumulate(self.seconds, max))
        if size_bytes <= sizes[0]:
            return times[0]
        if size_bytes >= sizes[-1]:
            return times[-1] * size_bytes / sizes[-1]
        i = next(i for i, size in enumerate(sizes) if size > size_bytes)
        part = math.log(size_bytes / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
        return float(times[i - 1] * (times[i] / times[i - 1]) ** part)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The factors by name, and the sweeps."""

    factors: Mapping[str, Factor]
    sweeps: tuple[Sweep, ...] = ()

    def __getitem__(self, name: str) -> float:
        """The value of a factor; UsageError for an unknown one."""
        if name not in self.factors:
            raise unknown_name("factor of a calibration", name, self.factors, plural="factors")
        return self.factors[name].value

    def with_factor(
        self,
        name: str,
        value: float,
        origin: Origin,
        source: str,
        within: tuple[float | None, float | None] = (None, None),
    ) -> Calibration:
        """The same with another value for a known factor, and its (low, high) if known."""
        _ = self[name]
        low, high = within
        changed = replace(
            self.factors[name], value=value, origin=origin, source=source, low=low, high=high
        )
        return replace(self, factors={**self.factors, name: changed})

    def launched_at_once(self) -> Calibration:
        """The same for a step that is one launch, as a captured one."""
        return self.with_factor("launch_layer_s", 0.0, "assumed", "the step is one launch")

    def with_sweeps(self, *sweeps: Sweep) -> Calibration:
        """The same with these sweeps; each replaces one of its operation and device count."""
        by_key = {(s.operation, s.devices): s for s in (*self.sweeps, *sweeps)}
        return replace(self, sweeps=tuple(by_key.values()))

    def sweep(self, operation: Operation, devices: int) -> Sweep | None:
        """The measured times of this collective on so many devices; None where there are none."""
        key = operation, devices
        return next((s for s in self.sweeps if (s.operation, s.devices) == key), None)


@cache
def defaults() -> Calibration:
    """The default factors, fitted to published rates or assumed, each with its source."""
    text = resources.files(__package__).joinpath("nccl_constants.json").read_text("utf-8")
    nccl = json.loads(text)
    found = {
        f"{shape}_base_s": _assumed(us * 1e-6, "s", nccl["source"])
        for shape, us in nccl["base_latency_us"].items()
    }
    for over, shapes in nccl["hop_latency_us"].items():
        for shape, us in shapes.items():
            found[f"{shape}_hop_{over}_s"] = _assumed(us * 1e-6, "s", nccl["source"])
    found["tree_efficiency"] = _assumed(nccl["tree_efficiency"], "", nccl["source"])
    found["ring_fill_steps"] = _assumed(
        1 / nccl["slices_per_chunk"],
        "",
        f"{nccl['source']}: a chunk moves in {nccl['slices_per_chunk']} slices, so the last "
        "receive of a ring overlaps all but one of them",
    )
    for name, value, unit, source in (*_GLOO, *_STEP):
        found[name] = _assumed(value, unit, source)
    for mesh, (rows, values) in _ALL_REDUCE.items():
        for (name, unit, what), value in zip(_ALL_REDUCE_FACTORS, values, strict=True):
            source = f"{what}; {rows} (benchmarks/all_reduce_fit.py)"
            found[f"{mesh}_{name}"] = Factor(value=value, unit=unit, origin="fitted", source=source)
    for name, value, what in _HOST:
        found[name] = _assumed(value, "s", f"processor time of {what}; {_HOST_ON}")
    for factors, rows in (
        (_FITTED, _FITTED_TO),
        (_COPIED, _COPIED_ON),
        (_LAUNCHED, _LAUNCHED_ON),
    ):
        for name, value, unit, what in factors:
            source = f"{what}; {rows}"
            found[name] = Factor(value=value, unit=unit, origin="fitted", source=source)
    found[attained.CEILING_SHARE] = Factor(
        value=0.59,
        unit="",
        origin="fitted",
        source="operations and bytes of a step on a processor, over its measured ceilings; 15 "
        "workloads of PyTorch in benchmarks/records (benchmarks/cpu_ceiling_forecasts.py)",
    )
    for name, (value, what) in attained.FITTED.items():
        source = f"{what}; {attained.FITTED_TO}"
        unit = "s" if name.endswith("_s") else ""
        found[name] = Factor(value=value, unit=unit, origin="fitted", source=source)
    return Calibration(factors=found)


def read_sweeps(text: str, file: str) -> tuple[Sweep, ...]:
    """The sweeps of a CSV text with the columns `SWEEP_COLUMNS`, a line a size; DataError naming
    line and field for what does not fit."""
    lines = _csv_lines(text, file)
    if tuple(next(lines, (1, []))[1]) != SWEEP_COLUMNS:
        raise DataError(f"{file}, line 1: the columns must be {','.join(SWEEP_COLUMNS)}.")
    points: dict[tuple[Operation, int], dict[float, float]] = {}
    for number, line in lines:
        where = f"{file}, line {number}"
        if len(line) != len(SWEEP_COLUMNS):
            raise DataError(f"{where}: {len(line)} fields instead of {len(SWEEP_COLUMNS)}.")
        operation = next((o for o in OPERATIONS if o == line[0]), None)
        if operation is None:
            known = ", ".join(OPERATIONS)
            raise DataError(f"{where}, field operation: {line[0]!r} is not one of {known}.")
        devices = _number(where, "devices", line[1])
        if devices != int(devices) or devices < 2:
            raise DataError(f"{where}, field devices: {line[1]!r} is not an integer above 1.")
        at = points.setdefault((operation, int(devices)), {})
        size = _number(where, "bytes", line[2])
        if size in at:
            raise DataError(f"{where}, field bytes: {line[2]} is given twice.")
        at[size] = _number(where, "seconds", line[3])
    if not points:
        raise DataError(f"{file} has no lines after its heading.")
    return tuple(
        Sweep(
            operation=operation,
            devices=devices,
            size_bytes=tuple(sorted(at)),
            seconds=tuple(at[size] for size in sorted(at)),
            source=file,
        )
        for (operation, devices), at in points.items()
    )


def _csv_lines(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for line in reader:
            if line:
                yield reader.line_num, line
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: {error}.") from None


_GLOO = (
    (
        "gloo_step_s",
        50e-6,
        "s",
        "assumed round trip over TCP between two processes; measure it",
    ),
    (
        "gloo_local_bytes_per_s",
        2e9,
        "B/s",
        "assumed rate of TCP inside one machine, two copies by a core; measure it",
    ),
    (
        "server_tcp_bytes_per_s",
        2.5e9,
        "B/s",
        "assumed rate at which a parameter server receives over TCP on several cores; measure it",
    ),
    (
        "server_sum_bytes_per_s",
        3e9,
        "B/s",
        "assumed rate at which a parameter server adds gradients to its sum; measure it",
    ),
    (
        "host_memory_bytes_per_s",
        307.2e9,
        "B/s",
        "bandwidth of a processor of the host where neither its datasheet nor a copy is known: "
        "Sapphire Rapids, eight channels of DDR5-4800 (simmtester.com/News/IndustryArticle/25024)",
    ),
    (
        "tcp_efficiency",
        1448 / 1538,
        "",
        "IEEE 802.3, RFC 7323: 1,448 bytes of data in 1,538 on the wire, frames of 1,500",
    ),
)
_BAND = "factor within which nine of ten published rates are,"
_LEFT_OUT = "by models that have not seen their source"
_STEP = (
    ("attained_flops", 0.4, "", "assumed fraction of the peak that training attains"),
    ("attained_bytes", 0.7, "", "assumed fraction of the bandwidth that training attains"),
    ("overhead_scale", 1.0, "", "assumed loss of several devices, over the forecast loss"),
    (
        "overhead_between",
        1.0,
        "",
        "assumed further factor on what several systems exchange more than one of them",
    ),
    ("gradient_scale", 1.0, "", "a gradient has four bytes; 0.5 for two"),
    ("average_every", 8, "", "cubemesh's local-sgd: steps between two averages"),
    ("idle_power_share", 0.2, "", "assumed power of a waiting device, over its power limit"),
    ("device_speed", 1.0, "", "speed of a device, over its measured or datasheet speed"),
    ("straggler", 1.0, "", "step time of the slowest device over that of the others"),
    ("first_bucket_bytes", 1 << 20, "B", "PyTorch, DistributedDataParallel: 1 MiB"),
    ("bucket_bytes", 25 << 20, "B", "PyTorch, DistributedDataParallel: 25 MiB"),
    ("band_uncalibrated", 2.5, "", f"{_BAND} of one device, without a measured step"),
    (
        "band_datasheet",
        1.5,
        "",
        f"{_BAND} of one GPU, from its datasheet, by models that have not seen their source",
    ),
    ("band_one_system", 1.15, "", f"{_BAND} of several devices of a system, {_LEFT_OUT}"),
    ("band_systems", 1.19, "", f"{_BAND} of several systems, {_LEFT_OUT}"),
    (
        "band_unknown_one_system",
        1.03,
        "",
        "what not knowing style and input multiplies the band of several devices of a system by",
    ),
    ("band_unknown_systems", 1.15, "", "the same of several systems"),
    (
        "band_ceilings",
        2.0,
        "",
        "factor within which 14 of 15 stored rates of processors are, forecast from ceilings "
        "without their network",
    ),
    (
        "band_unpublished",
        1.3,
        "",
        "factor within which 13 rates measured on H100 and H200 are, of strategies that no "
        "published row has (benchmarks/LOG.md, 2026-11-26)",
    ),
    ("band_one_device", 1.03, "", f"{_BAND} of one device, with a measured step"),
)

_THROUGH_HOST = "bus bandwidth of NCCL through the host's memory, without peer access"
_FITTED = (
    (
        "overlap_slowdown",
        0.5,
        "",
        "slow-down of the backward pass by overlapped synchronization, over its time",
    ),
    ("copy_slowdown", 0.2, "", "the same by copies, fitted to those of parameter servers"),
    ("pcie_share", 1.0, "", "rate that NCCL attains over PCIe, over the one it expects"),
    ("host_exchange_bytes_per_s", 7e9, "B/s", _THROUGH_HOST),
    ("host_exchange_zen2_bytes_per_s", 3e9, "B/s", f"{_THROUGH_HOST}, AMD's Zen 2"),
    ("step_spread", 0.02, "", "standard deviation of a device's step, over its mean"),
    (
        "length_spread",
        20.0,
        "",
        "the same of a batch of sentences in recurrent networks, times their number",
    ),
    ("one_ring_bytes_per_s", 20e9, "B/s", "bus bandwidth of NCCL 1 over NVLink: one ring"),
    ("board_share", 0.04, "", "growth of a step where two GPUs share a K80's board and power"),
)
_COPIED = (
    ("peer_copy_share", 0.79, "", "rate of copy engines between GPUs, over that of their links"),
)
_COPIED_ON = (
    "AlexNet and VGG-16 on two H200, 358 and 352 GB/s each way of 450 (benchmarks/LOG.md, "
    "2026-11-22)"
)
_FITTED_TO = "835 published rates of two to eight devices (benchmarks/prediction_accuracy.py)"
_LAUNCHED = (
    ("launch_layer_s", 100e-6, "s", "host time to launch a layer in a step"),
    ("launch_several", 2.0, "", "the same, relative, on several devices"),
)
_LAUNCHED_ON = (
    "read from one system, ResNet-50 at batch size 32 in bf16 by torch.compile on H200: 19.4 ms a "
    "step on one device where the captured step takes 6.8, 36.7 ms on eight; 175 layers"
)
_HOST = (
    ("sharded_gather_unit_s", 350e-6, "FSDP2's forward hooks of a unit"),
    ("sharded_gather_parameter_s", 18e-6, "the same, of each parameter"),
    ("sharded_gather_again_unit_s", 210e-6, "gathering a unit again before its backward pass"),
    ("sharded_gather_again_parameter_s", 13e-6, "the same, of each parameter"),
    ("sharded_reduce_unit_s", 230e-6, "FSDP2's hook after a unit's backward pass"),
    ("sharded_reduce_parameter_s", 21e-6, "the same, of each parameter"),
    ("sharded_read_parameter_s", 7e-6, "reading the own rows of a gradient"),
    ("dtensor_forward_s", 36e-6, "an operation on a DTensor"),
    ("dtensor_backward_s", 130e-6, "its gradient"),
    ("dtensor_move_forward_s", 200e-6, "a change of a DTensor's layout"),
    ("dtensor_move_backward_s", 190e-6, "its gradient"),
)
_HOST_ON = (
    "AMD EPYC, PyTorch 2.13 without a GPU, so without its launches "
    "(benchmarks/sharding_host_time.py)"
)


_ALL_REDUCE_FACTORS = (
    ("start_s", "s", "time of an all-reduce in one system before its first step"),
    ("hop_s", "s", "latency of one of its 2 (n - 1) steps"),
    ("share", "", "rate of its rings, over that of their NVLinks by specification"),
    ("fill", "", "its time that no step overlaps, over that of the array at the links' rate"),
)
_ALL_REDUCE = {
    "nvlink2": ("sweeps of 2 to 8 V100 of two machines", (32.5e-6, 3.12e-6, 0.904, 0.0)),
    "nvlink3": ("sweeps of 2 to 8 A100 of three machines", (32.5e-6, 3.12e-6, 1.0, 0.567)),
    "nvlink4": ("sweeps of 2 and 4 H200 of two machines", (23.1e-6, 0.0, 0.980, 0.391)),
}
"""Links → (rows, values in the order of the factors)."""


def _assumed(value: float, unit: str, source: str) -> Factor:
    return Factor(value=value, unit=unit, origin="assumed", source=source)


_LEAST, _MOST = 1e-12, 1e18
"""Smallest and largest time, size or number of devices of a sweep."""


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}, field {name}: {text!r} is not a number.") from None
    if not _LEAST <= value <= _MOST:
        raise DataError(f"{where}, field {name}: {text} is not from {_LEAST:g} to {_MOST:g}.")
    return value
