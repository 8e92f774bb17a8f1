"""Forecast of training throughput on a number of devices, with its parts and its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from cubemesh import networks
from cubemesh.api.arguments import AnyStore, Settings, open_store, setting_lines
from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.attained import Software
from cubemesh.forecast.calibration import Calibration, defaults, read_sweeps
from cubemesh.forecast.energy import BusyPower, busy_power, device_watts, sample_joules
from cubemesh.forecast.from_records import measured_inputs
from cubemesh.forecast.gradient_sync import check_cost
from cubemesh.forecast.request import (
    Ceilings,
    Forecast,
    ForecastRequest,
    OtherRate,
    Point,
    ScalingMode,
)
from cubemesh.forecast.step import predict as forecast_steps
from cubemesh.forecast.styles import check_style
from cubemesh.forecast.training.cost import Prices, TrainingCost, cost_at, read_prices
from cubemesh.forecast.training.epochs import (
    IMAGENET_SAMPLES,
    EpochRule,
    TrainingTime,
    read_rule,
    training_time,
)
from cubemesh.forecast.what_if import apply_changes, read_changes
from cubemesh.frameworks import entry as framework_entry
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.files import read_text
from cubemesh.networks import NETWORKS, Network, rate_unit
from cubemesh.networks.memory import forecast as forecast_memory
from cubemesh.networks.memory_simulation import Sharding
from cubemesh.networks.own_input import IMAGENET_CLASSES
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.runs.own_networks import described
from cubemesh.schema import RunRecord
from cubemesh.schema.spec import Layout, Precision
from cubemesh.units import format_count
from cubemesh.untrusted import quoted

MAX_SWEEP_BYTES = 4 << 20
MOST_SAMPLES = 10**15


@dataclass(frozen=True, kw_only=True)
class PredictedPoint:
    """The forecast for one number of devices, with memory and power."""

    point: Point
    memory_bytes: int
    """Of one device."""
    fits: bool | None
    """Whether a device's memory is enough; None where its size is not known."""
    power_watts: float | None
    """Of all devices."""
    joules_per_sample: float | None
    cost: TrainingCost | None = None
    """Of the training of the prices that were given."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction:
    """A forecast, and what it is based on."""

    network: str
    request: ForecastRequest = field(repr=False)
    """What was predicted, with the changes of `what_if`."""
    machine: str
    """The system before any change."""
    forecast: Forecast
    points: tuple[PredictedPoint, ...]
    before: tuple[PredictedPoint, ...]
    """Without the changes of `what_if`; empty without changes."""
    changes: Mapping[str, str]
    measured: Mapping[int, float]
    """Devices → samples per second that the forecast was fitted to."""
    others: tuple[OtherRate, ...]
    """Measured rates of one device with other networks that corrected its datasheet."""
    power: BusyPower | None
    device_memory_bytes: float | None
    prices: Prices | None = None
    """None where no cost was asked for."""
    epochs: EpochRule | None = None
    """The assumption about the epochs of a training; None where none was given."""
    samples_per_epoch: int | None = None
    training: tuple[TrainingTime, ...] = ()
    """The time to train on each number of devices."""

    @property
    def priced_training(self) -> str | None:
        """The training that the cost is of, in words; None where no cost was asked for."""
        if self.prices is None:
            return None
        if self.epochs is None or self.samples_per_epoch is None:
            return self.prices.training
        each = format_count(self.samples_per_epoch)
        return f"the epochs of --epochs {self.epochs.name}, of {each} samples"

    def __repr__(self) -> str:
        lines = [f"Prediction({self.network} on {self.request.system.name})"]
        for one in self.points:
            p = one.point
            lines.append(
                f"  {p.devices} devices: {p.samples_per_s:,.0f} {rate_unit(self.network)} "
                f"({p.low:,.0f} to {p.high:,.0f}), {100 * p.efficiency:.0f} % efficiency, "
                f"limited by {p.limit}"
            )
        return "\n".join(lines)


def predict(
    network: str,
    machine: str,
    *,
    devices: Iterable[int] = (1, 2, 4, 8),
    batch_per_device: int = 64,
    precision: Precision = "fp32",
    framework: str = "pytorch",
    mode: ScalingMode = "weak",
    sync: str = "all-reduce",
    style: str = "",
    input_limit: float | None = None,
    measured: Mapping[int | str, float] | None = None,
    calibrate: Iterable[str | Path | RunRecord] = (),
    what_if: Settings = (),
    store: AnyStore = None,
    input_shape: str = "",
    cost: Settings = (),
    epochs: str | float | None = None,
    samples_per_epoch: int | None = None,
) -> Prediction:
    """Predict how fast `devices` of a machine train a network, and what limits them.

    `machine` is a system of the catalogue or a file (`topology`). `measured` maps a number of
    devices, or another network with its batch size on one device (`vgg16@64`), to samples per
    second. `framework` decides how fast a GPU is by its datasheet. `style` names how a framework
    sends gradients, instead of `sync` (docs/prediction.md); `input_limit` is how many samples/s a
    system reads, inf where it never waits. `calibrate` are stored runs (records, ids or prefixes)
    and CSV files of measured collectives; of two for one quantity the later counts. `what_if`
    changes the machine or the program after calibration. `network` may be one of your own
    (docs/own_network.md), described for `input_shape`. `cost` has prices, and the training that
    they are for (forecast/training/cost.py). `epochs` is an assumption about the epochs that a
    training needs by its global batch size (forecast/training/epochs.py), for a time to train;
    `samples_per_epoch` are by default those of ImageNet.

    UsageError for a value that is not possible, DataError for a file that cannot be read.
    """
    check_cost(sync)
    check_style(style)
    if style and sync != "all-reduce":
        raise UsageError(f"style={style} and sync={sync} both say how gradients travel; give one.")
    if input_limit is not None and not input_limit > 0:
        raise UsageError(
            f"input_limit={input_limit:g} must be samples/s above 0, or inf where input keeps up."
        )
    changes = read_changes(setting_lines(what_if))
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision), "", "precisions")
    if mode not in get_args(ScalingMode):
        raise unknown_name("mode", mode, get_args(ScalingMode))
    lines = setting_lines(cost)
    prices = read_prices(lines) if lines else None
    counts, software = list(devices), _software(framework)
    own = {n: rate for n, rate in (measured or {}).items() if isinstance(n, int)}
    _check_counts([*counts, *own], (measured or {}).values())
    typed = [
        _other(name, rate, software)
        for name, rate in (measured or {}).items()
        if isinstance(name, str)
    ]
    with described([network], input_shape):
        built = networks.build(network)
    request = ForecastRequest(
        network=built,
        system=load_system(machine),
        batch_per_device=batch_per_device,
        precision=precision,
        mode=mode,
        sync=sync,
        style=style,
        input_limit=input_limit,
        software=software,
    )
    rates, stored, ceilings, known, watts = _calibrated(
        _sources(calibrate, store), built.name, request
    )
    request = replace(request, ceilings=ceilings)
    rates, others = rates | own, (*stored, *typed)
    if rates and others:
        raise UsageError(
            f"{others[0].name}: rates of other networks correct a forecast from a datasheet, and "
            f"{network} itself was measured. Leave out the others."
        )
    rule, samples = _epochs(epochs, samples_per_epoch, built)
    if rule is not None:
        _check_one_training(rule, lines)
    found = forecast_steps(request, counts, known, rates, changes, others)
    asked = apply_changes(request, known, changes)[0]
    sheet = datasheets().get(asked.system.device)
    memory = None if sheet is None else sheet.value("memory_bytes")
    power_before = busy_power(request.system.device, watts)
    same = asked.system.device == request.system.device
    power = power_before if same else busy_power(asked.system.device)

    def of_point(point: Point) -> Prices | None:
        """The prices, and the training at this global batch size; None where its epochs are not
        known."""
        if prices is None or rule is None or samples is None:
            return prices
        needed = rule.at(point.devices * point.batch_per_device).epochs
        return None if needed is None else replace(prices, epochs=needed, samples=float(samples))

    return Prediction(
        network=built.name,
        request=asked,
        machine=request.system.name,
        forecast=found,
        points=tuple(
            _point(asked, p, memory, power, found.calibration, of_point(p)) for p in found.points
        ),
        before=tuple(
            _point(request, p, None, power_before, known, of_point(p)) for p in found.before
        ),
        changes=changes,
        measured=rates,
        others=others,
        power=power,
        device_memory_bytes=memory,
        prices=prices,
        epochs=rule,
        samples_per_epoch=samples,
        training=tuple(
            training_time(
                rule,
                devices=p.devices,
                global_batch=p.devices * p.batch_per_device,
                samples_per_epoch=samples,
                samples_per_s=p.samples_per_s,
                low=p.low,
                high=p.high,
            )
            for p in found.points
            if rule is not None and samples is not None
        ),
    )


def _sharding(sync: str, devices: int) -> Sharding | None:
    """How the devices divide weights, gradients and optimizer state; None where each has all."""
    stage = STRATEGIES[sync].zero_stage if sync in STRATEGIES else 0
    return Sharding(ranks=devices, zero_stage=stage) if stage and devices > 1 else None


def _epochs(
    given: str | float | None, samples: int | None, network: Network
) -> tuple[EpochRule | None, int | None]:
    """The rule and the samples of an epoch; UsageError where they do not fit."""
    if given is None:
        if samples is not None:
            raise UsageError(f"--samples-per-epoch {samples} needs --epochs.")
        return None, None
    if samples is not None and not 1 <= samples <= MOST_SAMPLES:
        raise UsageError(
            f"--samples-per-epoch is 1 to {MOST_SAMPLES:,}, not {quoted(samples)}: give the "
            "samples of the training set."
        )
    rule = read_rule(str(given), network.name)
    if samples is None:
        known = NETWORKS.get(network.name)
        if known is None or known.classes != IMAGENET_CLASSES:
            raise UsageError(
                f"--epochs {given}: the samples of an epoch of {network.name} are not known. Give "
                "--samples-per-epoch."
            )
        samples = IMAGENET_SAMPLES
    return rule, samples


def _check_one_training(rule: EpochRule, cost: Sequence[str]) -> None:
    """UsageError where the cost states a training too, which may be another one."""
    for line in cost:
        name = line.partition("=")[0].strip()
        if name in ("epochs", "samples", "tokens"):
            raise UsageError(
                f"--epochs {rule.name} and --cost {line} both say how long the training is. Leave "
                f"{name} out; --samples-per-epoch gives the samples."
            )


def _software(framework: str, layout: Layout | None = None) -> Software:
    """What of a framework decides how fast one device is; its usual layout by default."""
    entry = framework_entry(framework)
    return Software(layout=layout or entry.layout, fused=entry.fuses, captured=entry.one_launch)


def _other(name: str, rate: float, software: Software) -> OtherRate:
    """`vgg16@64`: another network on one device, or the same at another batch size."""
    network, _, batch = name.rpartition("@")
    if not (network and batch.isdecimal() and int(batch) > 0):
        raise UsageError(
            f"measured {name}: give a number of devices, or NETWORK@BATCH of one device, such as "
            "vgg16@64."
        )
    return OtherRate(
        name=name,
        network=networks.build(network),
        batch_per_device=int(batch),
        samples_per_s=rate,
        software=software,
    )


def _check_counts(counts: Iterable[int], rates: Iterable[float]) -> None:
    for count in counts:
        if count < 1:
            raise UsageError(f"devices: {count} is not a number of devices; give 1 or more.")
    for rate in rates:
        if not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"measured: {rate} is not a rate in samples/s; give one above 0.")


def _sources(given: Iterable[str | Path | RunRecord], store: AnyStore) -> list[RunRecord | Path]:
    """Records as they are, files as paths, ids looked up in the store."""
    found: list[RunRecord | Path] = []
    for one in given:
        if isinstance(one, (RunRecord, Path)):
            found.append(one)
        elif one.lower().endswith(".csv"):
            found.append(Path(one))
        else:
            with open_store(store, reading=True) as opened:
                found.append(opened.record(one))
    return found


def _calibrated(
    sources: Iterable[RunRecord | Path], network: str, request: ForecastRequest
) -> tuple[dict[int, float], list[OtherRate], Ceilings | None, Calibration, float | None]:
    """(rates by number of devices, those of other networks, ceilings of a processor, factors and
    sweeps, watts of one device) of all sources."""
    ceilings: dict[str, tuple[float, str]] = {}
    rates: dict[int, float] = {}
    others: list[OtherRate] = []
    known, watts = defaults(), None
    for source in sources:
        if isinstance(source, Path):
            known = known.with_sweeps(
                *read_sweeps(read_text(source, MAX_SWEEP_BYTES, "sweep"), str(source))
            )
            continue
        program = source.spec.program
        software = _software(program.framework, program.layout)
        measured = measured_inputs(source, network, request, software)
        rates |= measured.rates
        others += measured.others
        if measured.ceiling:
            operation, rate = measured.ceiling
            ceilings[operation] = rate, source.run_id
        known = known.with_sweeps(*measured.sweeps)
        if measured.host_copy:
            known = known.with_factor(
                "host_memory_bytes_per_s",
                measured.host_copy,
                "measured",
                f"a copy by the host's processors (run {source.run_id})",
            )
        if measured.rates and software.captured:
            known = known.launched_at_once()
        watts = measured.device_watts or watts
    return rates, others, _ceilings(ceilings), known, watts


def _ceilings(found: Mapping[str, tuple[float, str]]) -> Ceilings | None:
    """Of both runs; UsageError where one is missing."""
    if not found:
        return None
    missing = {"matrix_product", "copy"} - set(found)
    if missing:
        ((_, run),) = found.values()
        raise UsageError(
            f"--calibrate {run}: a step needs two ceilings; add a run of {missing.pop()} "
            "(`cubemesh run ceilings` measures both)."
        )
    (flops, product), (moved, copy) = found["matrix_product"], found["copy"]
    return Ceilings(
        flops_per_s=flops,
        bytes_per_s=moved,
        source=f"measured ceilings of the processor (runs {product} and {copy})",
    )


def _point(
    request: ForecastRequest,
    point: Point,
    device_memory: float | None,
    power: BusyPower | None,
    known: Calibration,
    prices: Prices | None,
) -> PredictedPoint:
    watts = None if power is None else point.devices * device_watts(point, power, known)
    needed = forecast_memory(
        request.network,
        point.batch_per_device,
        request.precision,
        device="cuda" if request.system.topology.gpus else "cpu",
        sharding=_sharding(request.sync, point.devices),
    ).total_bytes
    return PredictedPoint(
        point=point,
        memory_bytes=needed,
        fits=None if device_memory is None else needed <= device_memory,
        power_watts=watts,
        joules_per_sample=None if power is None else sample_joules(point, power, known),
        cost=None if prices is None else _cost(request, point, watts, prices),
    )


def _cost(
    request: ForecastRequest, point: Point, watts: float | None, prices: Prices
) -> TrainingCost:
    given = request.network.inputs[0]
    found = cost_at(
        prices,
        samples_per_s=point.samples_per_s,
        devices=point.devices,
        watts=watts,
        tokens_per_sample=given.shape[0] if given.dtype == "integer" else None,
    )
    if found is None:
        raise UsageError(
            f"cost=tokens={prices.tokens:g}: the input of {request.network.name} has no "
            "tokens. Set epochs and samples."
        )
    return found
