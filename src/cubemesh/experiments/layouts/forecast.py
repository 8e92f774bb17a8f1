"""Forecasts of `layouts`: throughput and memory of a run, to compare with the measured ones.

Throughput from the rate of one device and nothing measured on several: `predict` for strategies
that it prices, the bubble and the largest stage for pipelines. Of transformers on GPUs also the
forecast from the datasheet (`predict --search`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cubemesh.errors import CubemeshError
from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.scaling.forecast import forecast_for, system_of
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.transformers.groups import Groups
from cubemesh.forecast.transformers.layout import Layout, TrainingPlan, check_plan
from cubemesh.forecast.transformers.search import search_layouts
from cubemesh.forecast.transformers.step import LayoutForecast, forecast_layout
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.cost import costs
from cubemesh.networks.graph import Network
from cubemesh.networks.transformer_sizes import is_transformer, transformer
from cubemesh.parallel import pipeline
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.parallel.model_parallel import parts
from cubemesh.parallel.strategies import strategy
from cubemesh.parallel.tensor_layouts import divide
from cubemesh.parallel.tensor_parallel import TensorParallel, parameters_of_a_device
from cubemesh.schema import RunRecord, TrainSteps
from cubemesh.schema.forecast import MemoryForecast

KINDS = ("weights", "gradients", "optimizer", "activations")
"""Kinds of memory: a run measures `memory_…_bytes` of each."""


def ranks_per_sample(record: RunRecord) -> int:
    """How many devices of a run work on the same samples; 1 where its layout is not possible."""
    program, devices = record.spec.program, record.spec.placement.devices
    try:
        return strategy(program.sync).ranks_per_sample(devices, program)
    except Unsupported:
        return 1


def memory_forecast(record: RunRecord, network: Network) -> MemoryForecast | None:
    """Of one device of a run; None where its layout is not possible."""
    device = record.ranks[0].device if record.ranks else record.spec.placement.device
    try:
        return strategy(record.spec.program.sync).memory(record.spec, network, device)
    except Unsupported:
        return None


def rate_forecast(record: RunRecord, one: Group[Any] | None, network: Network) -> float | None:
    """Samples/s of a run on several devices from the rate of `one`; None where there is no
    forecast."""
    spec = record.spec
    devices, kind = spec.placement.devices, strategy(spec.program.sync)
    if one is None or not one.throughput or devices == 1:
        return None
    rate = one.throughput.value
    if not issubclass(kind, pipeline.Pipeline):
        found = forecast_for(record, one.records[0], rate)
        return None if isinstance(found, str) else found.samples_per_s
    stages = ranks_per_sample(record)
    samples = stages * (spec.batch_per_device or 1)
    asked = spec.program.micro_batches or pipeline.MICRO_BATCHES_PER_STAGE * stages
    share = _largest_part(network, stages)
    if share is None:
        return None
    return devices * rate * (1 - pipeline.bubble(stages, min(asked, samples))) / (share * stages)


def _largest_part(network: Network, stages: int) -> float | None:
    """Of the operations, in the largest stage; None where the network cannot be cut so often."""
    try:
        cut = parts(network, stages)
    except Unsupported:
        return None
    counted = costs(network)
    each = [sum(counted[node.name].total.flops for node in part.nodes) for part in cut]
    return max(each) / sum(each)


def datasheet_forecast(record: RunRecord) -> LayoutForecast | None:
    """The forecast of `predict` with a layout; None but for transformers on GPUs of the
    catalogue."""
    work, spec = record.spec.work, record.spec
    if not isinstance(work, TrainSteps) or not record.ranks or work.own_network is not None:
        return None
    if not is_transformer(work.network):
        return None
    if record.ranks[0].device == "cpu" or spec.program.precision not in ("bf16", "fp16"):
        return None
    kind, together = strategy(spec.program.sync), ranks_per_sample(record)
    groups, samples = spec.placement.devices // together, together * work.batch_per_device
    if issubclass(kind, TensorParallel):
        layout = Layout(tp=together, dp=groups, zero=kind.zero_stage)
        return _forecast(*_training(record), layout, samples)
    if issubclass(kind, ContextParallel):
        layout = Layout(cp=together, dp=groups, zero=kind.zero_stage)
        return _forecast(*_training(record), layout, samples)
    if kind.same_samples and not issubclass(kind, pipeline.Pipeline):
        return None
    layout = Layout(pp=together, dp=groups, zero=kind.zero_stage)
    asked = spec.program.micro_batches or pipeline.MICRO_BATCHES_PER_STAGE * together
    micro = samples if together == 1 else max(1, samples // min(asked, samples))
    return _forecast(*_training(record), layout, micro)


def searched_layout(record: RunRecord) -> LayoutForecast | None:
    """The fastest layout by `predict --search` of a run's network on its devices; None where there
    is no forecast."""
    if datasheet_forecast(record) is None:
        return None
    return _forecast(*_training(record), None, 1)


Training = tuple[str, str, int, int, int | None, str]
"""(network, name of the device, devices, global batch, sequence length, precision)."""


def _training(record: RunRecord) -> Training:
    work, spec = record.spec.work, record.spec
    assert isinstance(work, TrainSteps)
    devices, batch = spec.placement.devices, work.batch_per_device * spec.placement.devices
    name, precision = record.ranks[0].device_name, spec.program.precision
    return work.network, name, devices, batch, work.sequence_length, precision


@lru_cache(maxsize=64)
def _forecast(
    network: str,
    device_name: str,
    devices: int,
    global_batch: int,
    sequence_length: int | None,
    precision: str,
    layout: Layout | None,
    micro_batch: int,
) -> LayoutForecast | None:
    """Of a layout, or of the fastest where none is given; None where there is no forecast."""
    system = system_of("cuda", device_name, devices)
    if isinstance(system, str):
        return None
    sizes = transformer(network)
    plan = TrainingPlan(
        network=sizes,
        system=system,
        layout=layout or Layout(),
        micro_batch=micro_batch,
        global_batch=global_batch,
        sequence_length=sequence_length or sizes.sequence_length,
        precision=precision,
        style="fsdp",
    )
    groups = Groups(system, defaults())
    try:
        if layout is None:
            return search_layouts(plan, devices, groups, any_recompute=False).fastest
        check_plan(plan, devices)
        return forecast_layout(plan, groups)
    except CubemeshError:
        return None


def memory_by_kind(record: RunRecord, network: Network, found: MemoryForecast) -> tuple[float, ...]:
    """A forecast in the order of KINDS, as a run measures it: what exists between steps, gradients
    when all are there, and what else exists at the peak."""
    spec, together = record.spec, ranks_per_sample(record)
    parameters: float = network.parameter_count
    if issubclass(strategy(spec.program.sync), TensorParallel):
        divided = divide(network, together, spec.program.sequence_parallel)
        parameters = parameters_of_a_device(divided)
    elif together > 1 and not issubclass(strategy(spec.program.sync), ContextParallel):
        parameters = max(part.parameter_count for part in parts(network, together))
    own = float(parameters * (8 if spec.program.precision == "fp64" else 4))
    sharding = strategy(spec.program.sync).sharding(spec)
    weights = gradients = own
    if sharding is not None:
        weights = gradients = sharding.part(own, 2)
    rest = found.total_bytes - weights - found.optimizer_bytes
    return weights, gradients, found.optimizer_bytes, rest
