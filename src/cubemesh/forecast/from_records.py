"""Calibration from a stored run: throughput, power, or a sweep of collectives.

A training run must match the request: precision, device, and the strategy on several devices. A run
of another network, input or batch size on one device corrects a forecast from a datasheet. Runs of
the ceilings of a processor, a matrix product and a copy, are what its step is forecast from. A run
of a collective becomes a measured sweep; if an operation was measured out of place and in place,
the faster is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.forecast.attained import Software
from cubemesh.forecast.calibration import OPERATIONS, Sweep
from cubemesh.forecast.request import ForecastRequest, OtherRate
from cubemesh.machines.catalogue import find
from cubemesh.networks.graph import Network
from cubemesh.schema import Collective, RunRecord
from cubemesh.schema.work import Ceiling, NetworkWork, TrainSteps


@dataclass(frozen=True, kw_only=True)
class MeasuredInputs:
    """Measured inputs of a forecast from one run."""

    rates: dict[int, float] = field(default_factory=dict)
    """Samples per second, by number of devices."""
    others: tuple[OtherRate, ...] = ()
    ceiling: tuple[str, float] | None = None
    """`matrix_product` or `copy` of a processor, and its rate."""
    host_copy: float | None = None
    """Bytes/s of a copy by the processors of the GPUs' host."""
    sweeps: tuple[Sweep, ...] = ()
    device_watts: float | None = None
    """Mean power of a device while it trained."""


def measured_inputs(
    record: RunRecord, network: str, request: ForecastRequest, software: Software
) -> MeasuredInputs:
    """Measured inputs for `request`, for the network called `network`, from a run with `software`;
    UsageError for a run of something else."""
    if isinstance(record.spec.work, Collective):
        return MeasuredInputs(sweeps=(_sweep(record, request),))
    if isinstance(record.spec.work, Ceiling):
        operation, rate = _ceiling(record, request)
        if request.system.topology.gpus:
            return MeasuredInputs(host_copy=rate)
        return MeasuredInputs(ceiling=(operation, rate))
    devices, rate, other = _rate(record, network, request)
    if other:
        return MeasuredInputs(others=(_other(record, rate, software),))
    watts = record.figure("mean_power_watts")
    return MeasuredInputs(rates={devices: rate}, device_watts=watts if devices == 1 else None)


def _where(record: RunRecord) -> str:
    return f"--calibrate {record.run_id}"


def _sweep(record: RunRecord, request: ForecastRequest) -> Sweep:
    work, where = record.spec.work, _where(record)
    assert isinstance(work, Collective)
    operation = next((o for o in OPERATIONS if o == work.collective), None)
    if operation is None:
        raise UsageError(
            f"{where}: {work.collective} is not used by a forecast. Name a run of one of "
            f"{', '.join(OPERATIONS)}."
        )
    _check(where, _device_of(record, request))
    times: dict[int, float] = {}
    for point in record.sweep:
        if point.pair is None and point.seconds:
            times[point.size_bytes] = min(point.time_s, times.get(point.size_bytes, float("inf")))
    if len(times) < 2:
        raise UsageError(f"{where}: it has fewer than two sizes. Name a sweep over sizes.")
    return Sweep(
        operation=operation,
        devices=len(record.ranks) or record.spec.placement.devices,
        size_bytes=tuple(sorted(times)),
        seconds=tuple(times[size] for size in sorted(times)),
        source=f"run {record.run_id}",
    )


def _ceiling(record: RunRecord, request: ForecastRequest) -> tuple[str, float]:
    work, where = record.spec.work, _where(record)
    assert isinstance(work, Ceiling)
    rates = {"matrix_product": "rate_flops_per_s", "copy": "rate_bytes_per_s"}
    rate = record.figure(rates.get(work.operation, ""))
    if rate is None:
        raise UsageError(
            f"{where}: {work.operation} is not what a step is forecast from. Name the runs of "
            "matrix_product and copy."
        )
    if request.system.topology.gpus:
        _check_host_copy(record, request)
        return work.operation, rate
    wanted: dict[str, tuple[object, object]] = {}
    if work.operation == "matrix_product":
        wanted = {"precision": (record.spec.program.precision, request.precision)}
    _check(where, wanted | _device_of(record, request))
    return work.operation, rate


def _check_host_copy(record: RunRecord, request: ForecastRequest) -> None:
    """UsageError unless the ceiling is a copy by the processors that a parameter server runs on."""
    work, where = record.spec.work, _where(record)
    assert isinstance(work, Ceiling)
    servers = ("parameter-server-cpu", "tensorflow-parameter-server")
    on_cpu = bool(record.ranks) and record.ranks[0].device.startswith("cpu")
    if work.operation != "copy" or not on_cpu or not {request.sync, request.style} & {*servers}:
        raise UsageError(
            f"{where}: ceilings are for processors; {request.system.name} has GPUs, which are "
            "forecast from their datasheet. Leave it out. Only a copy by the processors of their "
            f"host is used, for --sync {servers[0]} and --style {servers[1]}."
        )


def _other(record: RunRecord, rate: float, software: Software) -> OtherRate:
    work = record.spec.work
    assert isinstance(work, TrainSteps)
    return OtherRate(
        name=f"{work.network}@{work.batch_per_device}",
        network=networks.build_for(work),
        batch_per_device=work.batch_per_device,
        samples_per_s=rate,
        software=software,
    )


def _rate(record: RunRecord, network: str, request: ForecastRequest) -> tuple[int, float, bool]:
    """(devices, samples per second, whether of another workload) of a stored run of training."""
    work, rate, where = record.spec.work, record.figure("throughput_per_s"), _where(record)
    if not isinstance(work, TrainSteps) or rate is None or not isinstance(work, NetworkWork):
        raise UsageError(
            f"{where}: this run measured no training steps and no collective. Name one that did."
        )
    devices = len(record.ranks) or record.spec.placement.devices
    workload: dict[str, tuple[object, object]] = {
        "network": (work.network, network),
        "batch_per_device": (work.batch_per_device, request.batch(devices)),
        "input": (_inputs(networks.build_for(work)), _inputs(request.network)),
    }
    wanted: dict[str, tuple[object, object]] = {
        "precision": (record.spec.program.precision, request.precision),
        "accumulation_steps": (work.accumulation_steps, 1),
        "checkpoint_activations": (record.spec.program.checkpoint_activations, "none"),
    }
    other = devices == 1 and any(given != asked for given, asked in workload.values())
    if devices > 1:
        wanted |= workload | {"sync": (record.spec.program.sync, request.sync)}
    _check(where, wanted | _device_of(record, request))
    return devices, rate, other


def _check(where: str, wanted: dict[str, tuple[object, object]]) -> None:
    for name, (given, asked) in wanted.items():
        if given != asked:
            raise UsageError(f"{where}: its {name} is {given}, not {asked}.")


def _inputs(network: Network) -> str:
    return ", ".join(f"{i.name} {'×'.join(map(str, i.shape))}" for i in network.inputs)


def _device_of(record: RunRecord, request: ForecastRequest) -> dict[str, tuple[object, object]]:
    """The device where both are known: as the catalogue calls it, or as the run does."""
    name = record.ranks[0].device_name if record.ranks else ""
    sheet = find(name)
    given = name if sheet is None else sheet.id
    return {"device": (given, request.system.device)} if given and request.system.device else {}
