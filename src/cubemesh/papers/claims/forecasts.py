"""Forecasts of the papers' claims about machines that are not at hand.

Each follows from links, datasheets and the model alone; none is calibrated with a figure of the
paper. Speed-ups and efficiencies are of the paper's network, devices and batch size (64 if none is
given); "NVLink over PCIe" is `--what-if link=pcie`. A figure has the nine-in-ten band of its
forecast. A bandwidth that is attained is from what NCCL attains of the links up to their peak. Only
what the design of a machine decides, such as a bisection, has no band.

A value holds if the band comes within 10 % of the paper's, and is not wider than `MOST_BAND`; a
bound holds, or does not, if the whole band is on one side of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, hypot, log

from cubemesh import networks
from cubemesh.forecast.attained import Software
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import Forecast, ForecastRequest, Point, ScalingMode
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.system_file import read_system
from cubemesh.machines.catalogue.systems import load_system, system
from cubemesh.machines.topology import NETWORKS, Design, fat_tree, find_rings, hops, shared_rates
from cubemesh.networks.graph import Network
from cubemesh.networks.memory import forecast as memory_forecast
from cubemesh.papers.claims.evidence import CLOSE
from cubemesh.papers.published import claims
from cubemesh.schema import Basis, Claim, ClaimState, Figure, Verdict
from cubemesh.schema.spec import Precision
from cubemesh.units import format_interval

GB, US, DAY_S = 1e9, 1e-6, 86400.0
IMAGENET, EPOCHS = 1.2e6, 90
"""Images and epochs of the training in Dell EMC 2016 [003]."""
MOST_BAND = 1.6
"""The band of a forecast that confirms a value is at most this factor on each side."""
COMPARABLE = 2.0
"""Largest ratio of two devices that are "comparable"."""
BEFORE_2018 = Software(year=2017)
"""The libraries of the papers."""
CPU_PAIR = """
name = "two-xeon-e5-2690-v4"
title = "The processors of a Dell PowerEdge C4130"
sources = ["Dell EMC 2016 [003]"]
[cpus]
device = "xeon-e5-2690-v4"
count = 2
link = "qpi-9.6"
links = 2
"""
ONE_GPU = """
name = "one-{device}"
title = "One GPU"
sources = ["Addfor 2016 [000]"]
[gpus]
device = "{device}"
count = 1
[cpus]
device = "xeon-e5-2690-v4"
count = 1
[pcie]
generation = 3
gpu_to_switch = [0]
switch_to_cpu = [0]
"""


@dataclass(frozen=True, kw_only=True)
class ClaimForecast:
    """A claim with the forecasts of its values, or of what it bounds, in its unit."""

    claim: Claim
    figures: tuple[Figure, ...]

    @property
    def forecasts(self) -> tuple[float, ...]:
        """The values alone."""
        return tuple(figure.value for figure in self.figures)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How forecasts settle a claim."""

    figures: Callable[[], tuple[Figure, ...]]
    limits: tuple[tuple[float, float], ...] = ()
    """(lowest, highest) value of each figure with which the claim holds; empty where the claim has
    a value for each."""
    what: str = ""
    """What was forecast, if not the claim's quantity."""


def checked_claims() -> tuple[ClaimForecast, ...]:
    """Every claim with a value and a forecast of it, in the order of the papers."""
    return tuple(
        ClaimForecast(claim=claim, figures=_figures(claim))
        for claim in claims()
        if claim.id in FORECASTS and not FORECASTS[claim.id].limits
    )


def with_forecast(claim: Claim, untested: Verdict) -> Verdict:
    """The verdict of a claim that no record settles: by forecast where there is one, with a band
    that decides; else as it is, with the forecast as information."""
    if claim.id not in FORECASTS:
        return untested
    rule, figures = FORECASTS[claim.id], _figures(claim)
    bands = [(f.value if f.low is None else f.low, f.value if f.high is None else f.high)
             for f in figures]  # fmt: skip
    shown = "; ".join(format_interval(f.value, f.low, f.high) for f in figures)
    text = f"forecast of {rule.what or claim.quantity}: {shown} {claim.unit}".rstrip()
    if rule.limits:
        pairs = list(zip(bands, rule.limits, strict=True))
        inside = [low >= least and high <= most for (low, high), (least, most) in pairs]
        outside = [high < least or low > most for (low, high), (least, most) in pairs]
    else:
        inside = [
            low <= value * (1 + CLOSE) and high >= value * (1 - CLOSE)
            for (low, high), value in zip(bands, claim.values, strict=True)
        ]
        wide = [high > MOST_BAND**2 * low for low, high in bands]
        outside = [not holds for holds in inside]
        inside = [holds and not uncertain for holds, uncertain in zip(inside, wide, strict=True)]
    if any(outside) or all(inside):
        decisive = next((f for f, off in zip(figures, outside, strict=True) if off), figures[0])
        return replace(
            untested,
            state=ClaimState.DOES_NOT_HOLD if any(outside) else ClaimState.HOLDS,
            code="forecast",
            reason=f"{text}; not settled by measurement: {untested.reason}"
            if untested.measured
            else text,
            forecast=decisive,
            basis=Basis.FORECAST,
            caveats=(),
        )
    reason = f"{untested.reason}; {text}, too uncertain to decide"
    return replace(untested, reason=reason, forecast=figures[0])


def _figures(claim: Claim) -> tuple[Figure, ...]:
    return tuple(replace(f, unit=claim.unit) for f in FORECASTS[claim.id].figures())


def _predict(
    network: str | Network,
    machine: str | System,
    devices: tuple[int, ...],
    batch: int = 64,
    precision: Precision = "fp32",
    /,
    *,
    mode: ScalingMode = "weak",
    sync: str = "all-reduce",
    style: str = "",
    measured: dict[int, float] | None = None,
    **changes: str,
) -> Forecast:
    request = ForecastRequest(
        network=networks.build(network) if isinstance(network, str) else network,
        system=load_system(machine) if isinstance(machine, str) else machine,
        batch_per_device=batch,
        precision=precision,
        mode=mode,
        sync=sync,
        style=style,
        software=BEFORE_2018,
    )
    return predict(request, devices, defaults(), measured, changes)


def _one(network: str | Network, machine: str | System, batch: int = 64, /,
         precision: Precision = "fp32") -> Point:  # fmt: skip
    """One device, from its datasheet."""
    return _predict(network, machine, (1,), batch, precision).points[0]


def _several(
    network: str,
    machine: str,
    devices: tuple[int, ...],
    batch: int = 64,
    /,
    *,
    mode: ScalingMode = "weak",
    sync: str = "all-reduce",
    style: str = "",
) -> tuple[Point, ...]:
    """Several devices, their band without that of one device's speed."""
    own = _one(network, machine, batch)
    return _predict(
        *(network, machine, devices, batch),
        mode=mode,
        sync=sync,
        style=style,
        measured={1: own.samples_per_s},
    ).points


def _banded(value: float, band: float) -> Figure:
    return Figure(unit="", value=value, low=value / band, high=value * band)


def _band(point: Point) -> float:
    """The factor of a point's band."""
    return point.high / point.samples_per_s


def _ratio(over: Point, under: Point) -> Figure:
    """Throughput over throughput of two devices with independent bands."""
    band = exp(hypot(log(_band(over)), log(_band(under))))
    return _banded(over.samples_per_s / under.samples_per_s, band)


def _efficiency(point: Point, times: float = 100.0) -> Figure:
    """Efficiency in percent (or times another factor) with the band of what several devices
    lose."""
    return _banded(times * point.efficiency, _band(point))


def _speed_up(network: str, machine: str, devices: int, batch: int = 64,
              style: str = "") -> Figure:  # fmt: skip
    (point,) = _several(network, machine, (devices,), batch, style=style)
    return _efficiency(point, float(devices))


def _rate(network: str, machine: str | System, batch: int, side: int = 0) -> Figure:
    found = _one(_at(network, side), machine, batch)
    return Figure(unit="", value=found.samples_per_s, low=found.low, high=found.high)


def _step_ms(network: str, machine: System, batch: int) -> Figure:
    rate = _rate(network, machine, batch)
    return _banded(1e3 * batch / rate.value, (rate.high or rate.value) / rate.value)


def _at(network: str, side: int) -> Network:
    """A network on images of `side` pixels (0: its own)."""
    found = networks.entry(network)
    return found.make(side, found.classes) if side else networks.build(network)


def _busy(points: tuple[Point, ...]) -> tuple[Figure, ...]:
    """Percent of a step in which the device computes."""
    found = []
    for point in points:
        computes = sum(point.parts_s[name] for name in ("forward", "backward", "update"))
        busy = _banded(100 * computes / point.step_s, _band(point))
        found.append(replace(busy, high=min(100.0, busy.high or 100.0)))
    return tuple(found)


def _one_gpu(device: str) -> System:
    return read_system(ONE_GPU.format(device=device), f"one-{device}.toml", system)


def _cpu_pair() -> System:
    return read_system(CPU_PAIR, "two-xeon-e5-2690-v4.toml", system)


def _changed(network: str | Network, machine: str, devices: int, batch: int,
             precision: Precision = "fp32", /, **changes: str) -> Figure:  # fmt: skip
    """Throughput with a change over that without. A slower device hides more of the exchange: the
    band has the ratios at both ends of one device's, and what several devices are uncertain by."""
    own = _one(network, machine, batch, precision)
    ratios, band = [], 1.0
    for rate in (own.samples_per_s, own.low, own.high):
        found = _predict(
            *(network, machine, (devices,), batch, precision),
            mode="weak",
            sync="all-reduce",
            measured={1: rate},
            **changes,
        )
        (before,), (after,) = found.before, found.points
        ratios.append(after.samples_per_s / before.samples_per_s)
        band = max(band, exp(hypot(log(_band(before)), log(_band(after)))))
    return Figure(unit="", value=ratios[0], low=min(ratios) / band, high=max(ratios) * band)


def _over_pcie(network: str | Network, batch: int, precision: Precision = "fp32") -> Figure:
    slower = _changed(network, "dgx1-v100", 8, batch, precision, link="pcie")
    low, high = slower.low or slower.value, slower.high or slower.value
    return Figure(unit="", value=1 / slower.value, low=1 / high, high=1 / low)


def _gain(ratio: Figure) -> Figure:
    """A ratio as a gain in percent."""
    value, low, high = (
        100 * ((ratio.value if end is None else end) - 1)
        for end in (ratio.value, ratio.low, ratio.high)
    )
    return Figure(unit="", value=value, low=low, high=high)


def _translator(hidden: int, name: str = "translator") -> Network:
    return networks.entry(name).make(50, 32000, hidden)


def _design(name: str, ports: int) -> Design:
    network = NETWORKS[name]
    used = 32 if name == "edr" else None
    return Design(
        network=network,
        ports_per_system=ports,
        switch_ports=network.switch_ports,
        ports_used=used,
    )


def _contention() -> float:
    topology = load_system("pcie-tree-4").topology
    right = shared_rates(topology, [("gpu0", "gpu1"), ("gpu2", "gpu3")])[0]
    return right / shared_rates(topology, [("gpu0", "gpu2"), ("gpu1", "gpu3")])[0]


def _hops() -> float:
    topology = load_system("dgx1-p100").topology
    names = [gpu.name for gpu in topology.gpus]
    return float(max(hops(topology, a, b) or 0 for a, b in combinations(names, 2)))


def _rings(machine: str) -> float:
    return find_rings(load_system(machine).topology).bandwidth_bytes_per_s / GB


def _nvlink_rings() -> Figure:
    """Bandwidth of a DGX-1's rings: what NCCL attains of their links, up to their peak."""
    peak = _rings("dgx1-v100")
    attained = peak * defaults().factors["nvlink2_share"].value
    return Figure(unit="", value=(attained + peak) / 2, low=attained, high=peak)


def _pcie_ring() -> Figure:
    """Bandwidth of a ring over PCIe: what NCCL expects of its slowest link, which is that between
    the processors, and of PCIe, up to the peak."""
    links = load_system("dual-root-pcie").topology.links
    expected = {kind: min((link.sustained_bytes_per_s or link.bandwidth_bytes_per_s) / GB
                for link in links if link.kind == kind) for kind in ("smp", "pcie")}  # fmt: skip
    return Figure(
        unit="", value=expected["pcie"], low=min(expected.values()), high=_rings("dual-root-pcie")
    )


def _mixed_over_fp32() -> Figure:
    """The largest gain of a V100 in mixed precision over a P100 in fp32, of three networks."""
    pairs = (
        _ratio(_one(name, "dgx1-v100", 128, "fp16"), _one(name, "dgx1-p100", 64))
        for name in ("resnet-50", "inception-v3", "vgg16")
    )
    return max(pairs, key=lambda figure: figure.value)


def _training_days(point: Point) -> Figure:
    return _banded(IMAGENET * EPOCHS / point.samples_per_s / DAY_S, _band(point))


def _pascal_over_knl() -> tuple[Figure, ...]:
    """One device against one, and eight against eight, at 32 and at 64."""
    found: list[Figure] = []
    for batch in (32, 64):
        for devices in (1, 8):
            pair = [
                _predict("resnet-50", machine, (devices,), batch).points[0]
                for machine in ("dgx1-p100", "knl-aries")
            ]
            found.append(_ratio(*pair))
    return tuple(found)


def _more_over_fewer(network: str) -> Figure:
    four, eight = _several(network, "dgx1-v100", (4, 8), 32, style=_CPU_SERVER)
    return _banded(eight.samples_per_s / four.samples_per_s, _band(eight))


def _plain(*values: float) -> tuple[Figure, ...]:
    return tuple(Figure(unit="", value=value) for value in values)


_CPU_SERVER = "tensorflow-parameter-server"
"""Keras's towers with the model on the CPU, in one process [001]."""
ANY = float("inf")

FORECASTS: dict[str, Rule] = {
    "000-1": Rule(figures=lambda: (_step_ms("vgg16", _one_gpu("gtx-1080"), 64),)),
    "000-2": Rule(figures=lambda: (_step_ms("vgg16", _one_gpu("gtx-1080"), 128),)),
    "001-1": Rule(figures=lambda: (_rate("little-cnn", "dgx1-v100", 16),)),
    "001-2": Rule(figures=lambda: (_rate("little-cnn", "dgx1-v100", 1024),)),
    "001-8": Rule(figures=lambda: (_rate("little-cnn", "dgx1-v100", 32, 224),)),
    "001-9": Rule(figures=lambda: (_rate("resnet-50", "dgx1-v100", 32),)),
    "001-10": Rule(figures=lambda: (_rate("vgg16", "dgx1-v100", 32),)),
    "001-15": Rule(figures=lambda: (_speed_up("vgg16", "dgx1-v100", 2, 32, _CPU_SERVER),)),
    "001-16": Rule(figures=lambda: (_speed_up("resnet-50", "dgx1-v100", 2, 32, _CPU_SERVER),)),
    "001-17": Rule(figures=lambda: (_speed_up("vgg16", "dgx1-v100", 4, 32, _CPU_SERVER),)),
    "001-18": Rule(
        figures=lambda: tuple(
            _speed_up(n, "dgx1-v100", 4, 32, _CPU_SERVER) for n in ("resnet-50", "little-cnn")
        ),
        limits=((0, 2), (0, 2)),
    ),
    "001-19": Rule(
        figures=lambda: tuple(_more_over_fewer(n) for n in ("little-cnn", "vgg16")),
        limits=((0, 1), (0, 1)),
        what="the throughput of 8 devices over 4",
    ),
    "001-20": Rule(
        figures=lambda: tuple(
            _efficiency(p)
            for p in _several("resnet-50", "dgx1-v100", (2, 4, 8), 32, sync="asynchronous")
        ),
        limits=((90, ANY),) * 3,
        what="the efficiency of 2, 4 and 8 devices, %",
    ),
    "002-1": Rule(figures=lambda: (_mixed_over_fp32(),)),
    "002-2": Rule(figures=lambda: (_gain(_over_pcie("inception-v3", 128, "fp16")),)),
    "002-3": Rule(figures=lambda: (_gain(_over_pcie(_translator(512), 256)),)),
    "002-4": Rule(figures=lambda: (_over_pcie(_translator(2048), 64),)),
    "002-5": Rule(
        figures=lambda: (
            max(
                (_over_pcie(_translator(512, n), 256) for n in ("translator", "translator-plain")),
                key=lambda figure: figure.value,
            ),
        )
    ),
    "002-6": Rule(figures=lambda: (_nvlink_rings(),), limits=((130, ANY),)),
    "002-7": Rule(figures=lambda: (_pcie_ring(),)),
    "002-8": Rule(
        figures=lambda: _plain(fat_tree(124, _design("10gbe", 2)).bisection_bytes_per_s / GB)
    ),
    "002-9": Rule(
        figures=lambda: _plain(fat_tree(124, _design("edr", 4)).bisection_bytes_per_s / GB)
    ),
    "002-10": Rule(figures=lambda: _plain(fat_tree(124, _design("edr", 4)).latency_s / US)),
    "002-11": Rule(figures=lambda: _plain(float(_design("edr", 4).most_systems(2)))),
    "002-16": Rule(figures=lambda: _plain(_contention())),
    "003-1": Rule(
        figures=lambda: (_ratio(_one("googlenet", "c4130-g"), _one("googlenet", _cpu_pair())),)
    ),
    "003-2": Rule(
        figures=lambda: (
            _ratio(
                _predict("googlenet", "c4130-g", (4,)).points[0], _one("googlenet", _cpu_pair())
            ),
        )
    ),
    "003-3": Rule(figures=lambda: (_speed_up("googlenet", "c4130-g", 4),)),
    "003-4": Rule(figures=lambda: (_speed_up("inception-v3", "c4130-g", 4),)),
    "003-5": Rule(figures=lambda: (_speed_up("googlenet", "c4130-g-edr", 16),)),
    "003-6": Rule(figures=lambda: (_speed_up("inception-bn", "c4130-g-edr", 16),)),
    "003-7": Rule(
        figures=lambda: (_efficiency(_several("inception-bn", "c4130-g-edr", (12,))[0]),)
    ),
    "003-8": Rule(figures=lambda: (_changed("googlenet", "c4130-g-edr", 16, 64, network="10gbe"),)),
    "003-10": Rule(
        figures=lambda: (
            _training_days(_predict("googlenet", "c4130-g", (4,)).points[0]),
            _training_days(_one("googlenet", _cpu_pair())),
        ),
        limits=((0, 1), (7, ANY)),
        what="days of 90 epochs of GoogLeNet on four P100 and on two Xeon E5-2690 v4",
    ),
    "004-1": Rule(
        figures=lambda: tuple(
            _efficiency(_several("resnet-50", "dgx1-p100", (8,), b)[0]) for b in (32, 64)
        )
    ),
    "004-2": Rule(
        figures=lambda: tuple(
            _efficiency(_several("resnet-50", "knl-aries", (8,), b)[0]) for b in (32, 64)
        )
    ),
    "004-3": Rule(figures=_pascal_over_knl),
    "004-4": Rule(
        figures=lambda: tuple(
            _ratio(_one(n, "dgx1-p100", b), _one(n, "knl-7250", b))
            for n, b in (("cifarnet", 192), ("alexnet", 256))
        ),
        limits=((1 / COMPARABLE, COMPARABLE),) * 2,
        what="a P100 over a KNL, CifarNet and AlexNet, comparable up to 2 times",
    ),
    "004-6": Rule(
        figures=lambda: _busy(_several("cifarnet", "dgx1-p100", (2, 4, 8), 192, mode="strong"))
    ),
    "004-8": Rule(figures=lambda: _busy(_several("resnet-50", "dgx1-p100", (1, 8), 32))),
    "004-9": Rule(figures=lambda: _busy(_several("resnet-50", "dgx1-p100", (1, 8), 64))),
    "004-10": Rule(figures=lambda: _plain(4 * networks.build("alexnet").parameter_count / 1e6)),
    "004-15": Rule(
        figures=lambda: _plain(
            memory_forecast(networks.build("googlenet"), 256, device="cuda").total_bytes / GB
        ),
        limits=((16, ANY),),
        what="the memory of GoogLeNet at 256 per device in GB, of 16",
    ),
    "004-18": Rule(figures=lambda: _plain(_hops())),
}
"""Claim id → its forecast."""
