"""Which published rates of several devices can be forecast, and from what?

A rate of several devices is held against a forecast that knows the rate of one device of the same
source, system, network, framework, precision and minibatch, and nothing else. Rows that cannot be
forecast are kept with the reason. What is fitted is fitted on every second family of systems, in
the order of their names, and judged on the others; a family is one machine, under all names that it
has in the tables (validation_sources.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from cubemesh import networks
from cubemesh.forecast.calibration import Calibration, defaults
from cubemesh.forecast.launch_overhead import stall_s
from cubemesh.forecast.other_networks import GNMT_TOKENS, OTHERS
from cubemesh.forecast.passes import DeviceSpeed, passes
from cubemesh.forecast.step import ForecastRequest, Point, predict
from cubemesh.machines.catalogue import find
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.graph import Network
from cubemesh.papers.published import figures, stock_figures
from cubemesh.papers.validation.sources import (
    family,
    host_device,
    machine,
    peer_access,
    precision_of,
    without_count,
)
from cubemesh.schema import PublishedFigure
from cubemesh.schema.spec import Precision

SOURCES = ("TensorFlow benchmarks", "Dell", "Lambda", "NVIDIA DeepLearningExamples", "stock")
OTHER_NAMES = {"bert_base_squad": "bert-base", "gnmt": "gnmt", "GNMT v2": "gnmt"}
CLASSES = {"bert-base": "transformer", "gnmt": "recurrent"}
"""Of networks; all others are convolutional."""
MOST_EFFICIENT = 1.03
"""More than as many single devices by this is no scaling but another state of the one device."""
DEFAULT_BATCH = 64
"""Where a source states none; it changes how much of an exchange is hidden."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published rate of several devices, and that of one; in samples per second."""

    figure: PublishedFigure
    network: str
    rate: float
    alone: float
    machine: str
    precision: Precision
    sync: str

    @property
    def devices(self) -> int:
        """How many."""
        return self.figure.devices or 1

    @property
    def efficiency(self) -> float:
        """What was published."""
        return self.rate / self.alone / self.devices

    @property
    def family(self) -> str:
        """Its machine."""
        return family(self.figure.system)

    @property
    def kind(self) -> str:
        """The class of its network."""
        return CLASSES.get(self.network, "convolutional")

    @property
    def peer_access(self) -> bool:
        """Whether its GPUs reached one another's memory."""
        return peer_access(self.figure)

    @property
    def way(self) -> str:
        """Its exchange, and where that went, in words."""
        return self.sync if self.peer_access else f"{self.sync} through the host's memory"

    @property
    def one_machine(self) -> bool:
        """Whether its devices fill one machine at most."""
        return self.devices <= load_system(self.machine).devices

    @property
    def system(self) -> System:
        """What it ran on, with the processor that is known of it."""
        system, host = load_system(self.machine), host_device(self.figure)
        return system if host is None else replace(system, host_device=host)

    def request(self) -> ForecastRequest:
        """What is asked of the model."""
        return ForecastRequest(
            network=built(self.network),
            system=self.system,
            batch_per_device=self.figure.batch_per_device or DEFAULT_BATCH,
            precision=self.precision,
            sync=self.sync,
            peer_access=self.peer_access,
        )


@dataclass(frozen=True, kw_only=True)
class RowForecast:
    """A row with the efficiency that was forecast."""

    row: Row
    forecast: float
    band: float
    """By which factor the forecast says that it may be off, up or down."""
    fitted: bool
    """Whether factors were fitted on its system."""

    @property
    def error(self) -> float:
        """Of the forecast, over what was published."""
        return self.forecast / self.row.efficiency - 1

    @property
    def within(self) -> bool:
        """Whether what was published lies in the band."""
        return 1 / self.band <= self.forecast / self.row.efficiency <= self.band


@dataclass(frozen=True, kw_only=True)
class SingleForecast:
    """A published rate of one device, with the forecast from its datasheet alone."""

    figure: PublishedFigure
    forecast: float


@cache
def built(name: str) -> Network:
    """The network at its own size."""
    return OTHERS[name]() if name in OTHERS else networks.build(name)


def halves(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The families that factors are fitted on, and those they are judged on."""
    families = sorted({row.family for row in rows})
    return families[::2], families[1::2]


@cache
def rows() -> tuple[tuple[Row, ...], dict[str, tuple[PublishedFigure, ...]]]:
    """Those that can be forecast, and the others by their reason."""
    chosen = [
        f
        for f in (*figures(), *stock_figures())
        if f.metric == "throughput" and f.source.startswith(SOURCES)
    ]
    alone = {_key(f): f.value for f in chosen if f.devices == 1}
    found, left = [], defaultdict(list)
    for f in chosen:
        if (f.devices or 0) < 2:
            continue
        why = _why_not(f, alone.get(_key(f)))
        if why:
            left[why].append(f)
        else:
            found.append(_row(f, alone[_key(f)]))
    return tuple(found), {reason: tuple(those) for reason, those in left.items()}


def forecasts(found: Sequence[Row], known: Calibration) -> dict[Row, Point]:
    """The step on so many devices of every row; those that differ in that alone at once."""
    alike = defaultdict(list)
    for row in found:
        f = row.figure
        program = f.source, f.framework, row.network, row.precision, f.batch_per_device
        where = row.family, row.machine, row.peer_access, row.sync
        alike[program, where, row.alone].append(row)
    points: dict[Row, Point] = {}
    for group in alike.values():
        first = group[0]
        counts = [row.devices for row in group]
        forecast = predict(first.request(), counts, known, {1: first.alone})
        points.update(zip(group, forecast.points, strict=True))
    return points


def forecast_alone(f: PublishedFigure, known: Calibration) -> float | None:
    """Samples per second of one device from its datasheet alone; None where its datasheet, its
    minibatch or its network is not known, or the figure is none of training images."""
    sheet, precision = find(f.device), precision_of(f.precision)
    if f.metric != "throughput" or f.devices != 1 or f.unit != "images/s" or sheet is None:
        return None
    peak, bandwidth = sheet.peak(precision), sheet.value("memory_bytes_per_s")
    if f.canonical is None or not f.batch_per_device or peak is None or bandwidth is None:
        return None
    at = DeviceSpeed(
        flops_per_s=peak.flops_per_s * known["attained_flops"],
        bytes_per_s=bandwidth * known["attained_bytes"],
        source=sheet.name,
    )
    own = passes(built(f.canonical), f.batch_per_device, precision, at)
    return f.batch_per_device / (own.step_s + stall_s(own, known["launch_layer_s"]))


def mean_and_ninth(errors: Iterable[float]) -> tuple[float, float]:
    """(mean, 90th percentile) of the sizes of errors; of one at least."""
    sizes = sorted(abs(error) for error in errors)
    return fmean(sizes), sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]


@cache
def published_several() -> tuple[RowForecast, ...]:
    """Every row with its forecast by the factors as they are."""
    found = rows()[0]
    fitted_on = halves(found)[0]
    return tuple(
        RowForecast(
            row=row,
            forecast=point.efficiency,
            band=point.high / point.samples_per_s,
            fitted=row.family in fitted_on,
        )
        for row, point in forecasts(found, defaults()).items()
    )


@cache
def published_alone() -> tuple[SingleForecast, ...]:
    """Every published rate of one device whose datasheet is known."""
    known = defaults()
    pairs = [(f, forecast_alone(f, known)) for f in (*figures(), *stock_figures())]
    return tuple(SingleForecast(figure=f, forecast=rate) for f, rate in pairs if rate is not None)


def _why_not(f: PublishedFigure, one: float | None) -> str:
    if _network(f) is None:
        return f"{f.network} is no network that cubemesh can cost"
    if "real" in f.note.casefold():
        return "fed with real data, whose reading is not modelled"
    where = machine(f)
    if where is None:
        return f"{f.system} is in no catalogue"
    if one is None:
        return "no rate of one device was published beside it"
    if f.value > MOST_EFFICIENT * one * (f.devices or 1):
        return "faster than as many of one device: a broken run, or another clock"
    system = load_system(where)
    most = system.devices * (system.cluster.systems if system.cluster else 1)
    return f"{where} has not so many devices" if (f.devices or 0) > most else ""


def _row(f: PublishedFigure, one: float) -> Row:
    network, where = _network(f), machine(f)
    assert network
    assert where
    tokens = GNMT_TOKENS if f.unit == "tokens/s" else 1
    return Row(
        figure=f,
        network=network,
        rate=f.value / tokens,
        alone=one / tokens,
        machine=where,
        precision=precision_of(f.precision),
        sync=_exchange(f, network),
    )


def _network(f: PublishedFigure) -> str | None:
    if f.canonical:
        return f.canonical
    return next((name for form, name in OTHER_NAMES.items() if f.network.startswith(form)), None)


def _exchange(f: PublishedFigure, network: str) -> str:
    """As the source says; NVIDIA's mixed BERT and GNMT hold gradients in two bytes."""
    if "distributed_replicated" in f.note:
        return "parameter-server-spread"
    if "parameter_server/cpu" in f.note:
        return "parameter-server-cpu"
    if "parameter_server/gpu" in f.note:
        return "parameter-server-spread"
    narrow = network in OTHERS and "16" in f.precision
    return "all-reduce-16" if narrow else "all-reduce"


def _key(f: PublishedFigure) -> tuple[object, ...]:
    """What the rates of one and of several devices share."""
    sync = re.sub(
        r"parameter_server/\w+|replicated.*|independent|distributed_replicated.*", "", f.note
    )
    note = "" if f.source.startswith("stock") else sync
    framework = f.framework.replace("DDP + ", "")
    system, batch = without_count(f.system), f.batch_per_device
    return f.source, system, f.device, framework, f.network, f.precision, batch, note
