"""Published rates of several devices compared with forecasts, and the machines of their sources.

A rate of several devices is compared with a forecast that knows the rate of one device of the same
source, system, network, framework, precision and batch size, and nothing else. Rows that cannot be
forecast have a reason. A family is one machine under all its names in the tables. `fitting.py`
judges each row by a model that has not seen its source, or its machine.

Lambda's rates come with the logs of their runs, whose names have dates, and with the script that
made them (github lambdal/deeplearning-benchmark, pytorch/scripts/benchmark_pytorch.sh). In October
and November 2022 the script set NCCL_P2P_DISABLE=1 (commits 0a684b6, 204fea2, 50f9467), so that
NCCL used host memory between GPUs, neither NVLink nor PCIe; in a later version the line is a
comment. The date of the change is unknown. Runs until January 2023 are taken to have had the
setting, the next ones, of 14 February, not. The date decides, not the rate, with one exception:
boards of H100 on PCIe 5 ran on 30 November 2022 and lost 4 % of GNMT's rate on two, where the same
boards on PCIe 4 lost 34 % on that day (two H100 in tf32: 310,658 and 215,851 tokens/s, one
162,431). They are taken to have used another script. Their host is also a generation younger (Xeon
8480+); which of the two is the cause is unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean

from cubemesh import networks
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.other_networks import BATCH_IN_TOKENS, CLASSES, OTHERS, TOKENS
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict_with
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.graph import Network
from cubemesh.papers.published import figures, scaling_figures, stock_figures
from cubemesh.papers.published.names import precision_of
from cubemesh.schema import PublishedFigure
from cubemesh.schema.spec import Precision

SOURCES = (
    *("TensorFlow benchmarks", "Dell", "Lambda", "NVIDIA DeepLearningExamples", "stock"),
    *("Oneflow DLPerf", "PaddlePaddle", "tensorpack"),
)
OTHER_NAMES = {
    "bert_base_squad": "bert-base",
    "BERT-base": "bert-base",
    "BERT-large": "bert-large",
    "gnmt": "gnmt",
    "GNMT": "gnmt",
    "Transformer (big)": "transformer-big",
    "Transformer-XL base": "transformer-xl-base",
    "Transformer-XL large": "transformer-xl-large",
    "ResNeXt101-32x4d": "resnext-101",
    "SE-ResNeXt101-32x4d": "resnext-101",
    "SSD300": "ssd300",
    "Jasper": "jasper",
}
"""How a source's name begins → a network of `OTHERS`."""
MOST_EFFICIENT = 1.03
"""Largest plausible efficiency; above it the run on one device was in another state."""
DEFAULT_BATCH = 64
"""If a source states none; it changes how much communication is hidden."""

MACHINES = (  # system name of a source → system of the catalogue
    (r"DGX-1\b.*V100|LambdaCloud.*V100", "dgx1-v100"),
    (r"^NVIDIA DGX-1$", "dgx1-p100"),
    (r"DGX-2", "dgx-2"),
    (r"DGX A100|A100.*SXM4", "dgx-a100"),
    (r"H100.*SXM5", "hgx-h100"),
    (r"H200", "hgx-h200"),
    (r"C4130.*InfiniBand", "c4130-g-edr"),
    (r"C4130", "c4130-b"),
    (r"p2\.8xlarge x N", "p2-8xlarge-10gbe"),
    (r"p2\.8xlarge$|k80x8", "p2-8xlarge"),
    (r"Gen5", "dual-root-pcie5"),
    (r"PCIe|RTX", "dual-root-pcie4"),
)
WITHOUT_PEER_ACCESS = (  # Lambda's systems, the last day they ran, their processors by its logs
    (r"RTX 4090$", "2022-10-21", "AMD Ryzen Threadripper PRO 5995WX"),
    (r"RTX 3090$", "2022-10-25", "AMD Ryzen Threadripper PRO 5995WX"),
    (r"A100 80GB SXM4$", "2022-11-19", "AMD EPYC 7H12"),
    (r"A100 80GB PCIe$", "2022-12-15", "AMD EPYC 7502"),
    (r"RTX A6000$", "2022-12-15", "AMD EPYC-Rome"),
    (r"LambdaCloud.*V100 16GB$", "2022-12-16", "Intel Xeon, Cascade Lake"),
    (r"^2x RTX 6000 Ada$", "2023-01-12", ""),  # four and eight of them ran on 22 March 2023
)
GEFORCE = r"RTX (2080 ?Ti|3080|3090)$"
"""Boards of Lambda's tables of 2020 that do not reach one another over PCIe."""
STYLES_OF = (  # source, framework, network, note, each as it begins or contains → style
    ("TensorFlow benchmarks", "", "", "parameter_server/cpu", "tensorflow-parameter-server"),
    ("TensorFlow benchmarks", "", "", "parameter_server/gpu", "tensorflow-servers"),
    ("TensorFlow benchmarks", "", "", "distributed_replicated", "tensorflow-servers"),
    ("TensorFlow benchmarks", "", "", "replicated NCCL", "tensorflow-replicated-nccl"),
    ("TensorFlow benchmarks", "", "", "replicated", "tensorflow-replicated"),
    ("Dell", "MXNet", "", "", "mxnet-device"),
    ("Dell", "NV-Caffe", "", "", "caffe"),
    ("Lambda", "", "resnet50", "", "ddp"),
    ("Lambda", "", "", "", "apex"),
    ("NVIDIA DeepLearningExamples", "MXNet", "", "", "horovod-as-computed"),
    ("NVIDIA DeepLearningExamples", "TensorFlow", "", "", "horovod"),
    ("NVIDIA DeepLearningExamples", "PaddlePaddle", "", "", "paddle-nccl"),
    ("NVIDIA DeepLearningExamples", "PyTorch", "GNMT", "", "apex"),
    ("NVIDIA DeepLearningExamples", "PyTorch", "", "", "ddp"),
    ("stock", "PyTorch", "", "", "ddp"),
)
"""By the notes of the TensorFlow page, the frameworks of Dell's figures and the scripts of NVIDIA's
examples, which Lambda runs too: torch's DistributedDataParallel for ResNet-50, Apex's for BERT and
GNMT, whose 16-bit training has 16-bit weights. The first that fits counts."""
SPELLINGS = (  # spellings of one machine → one spelling
    (r"\b(\d+)G\b", r"\1GB"),  # V100 16G
    (r" \d+GB(?= \()", ""),  # DGX-1 16GB (V100 16GB)
    (r" x N \(8 GPUs/node\), distributed$", ""),
    (r", InfiniBand(?=\)$)", ""),
)
ZEN_2 = r"EPYC (7H12|7502)|EPYC-Rome"
"""Processors of the generation of `epyc-7742`, which is in the catalogue."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published rate of several devices, and that of one, in samples/s."""

    figure: PublishedFigure
    network: str
    rate: float
    alone: float
    machine: str
    precision: Precision
    style: str
    """Empty where the source does not say how gradients travel, or no style is like it."""

    @property
    def given(self) -> bool:
        """Whether style and input are known: no images that the host decodes, at a rate that
        the source does not state."""
        f = self.figure
        read = f.input in ("real", "limited") or "real" in f.note.casefold()
        return bool(self.style) and not read

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.figure.devices or 1

    @property
    def batch_per_device(self) -> int:
        """In samples."""
        batch = self.figure.batch_per_device or DEFAULT_BATCH
        return max(1, batch // TOKENS[self.network]) if self.network in BATCH_IN_TOKENS else batch

    @property
    def efficiency(self) -> float:
        """Published efficiency."""
        return self.rate / self.alone / self.devices

    @property
    def family(self) -> str:
        """The family of its machine."""
        return family(self.figure.system)

    @property
    def kind(self) -> str:
        """The class of its network."""
        return CLASSES.get(self.network, "convolutional")

    @property
    def peer_access(self) -> bool:
        """Whether its GPUs had peer access, as far as is known."""
        return self._host_without_peer_access is None

    @property
    def _host_without_peer_access(self) -> str | None:
        """The processor of a run without peer access; None for other runs."""
        system, source = self.figure.system, self.figure.source
        if source.startswith("Lambda deeplearning-benchmark v0"):
            return "" if re.search(GEFORCE, system) else None
        if not source.startswith("Lambda"):
            return None
        return next((cpu for form, _, cpu in WITHOUT_PEER_ACCESS if re.search(form, system)), None)

    @property
    def way(self) -> str:
        """Its gradient style, and its path."""
        style = self.style or "unknown"
        return style if self.peer_access else f"{style} through host memory"

    @cached_property
    def one_machine(self) -> bool:
        """Whether its devices are in one machine."""
        return self.devices <= load_system(self.machine).devices

    @property
    def system(self) -> System:
        """Its system. A processor that is known is replaced by one of its generation in the
        catalogue, or by none."""
        system, host = load_system(self.machine), self._host_without_peer_access
        if host is None:
            return system
        return replace(system, host_device="epyc-7742" if re.search(ZEN_2, host) else "")

    def request(self, given: bool = True) -> ForecastRequest:
        """Its forecast's request; with its style, or as where nothing is known of it."""
        return ForecastRequest(
            network=built(self.network),
            system=self.system,
            batch_per_device=self.batch_per_device,
            precision=self.precision,
            style=self.style if given else "",
            peer_access=self.peer_access,
        )


@dataclass(frozen=True, kw_only=True)
class RowForecast:
    """A row with its forecast efficiency."""

    row: Row
    forecast: float
    band: float
    """Factor of the forecast's uncertainty, up or down."""

    @property
    def error(self) -> float:
        """Relative error of the forecast."""
        return self.forecast / self.row.efficiency - 1

    @property
    def within(self) -> bool:
        """Whether the published value is within the band."""
        return 1 / self.band <= self.forecast / self.row.efficiency <= self.band


@cache
def built(name: str) -> Network:
    """The network at its own size."""
    return OTHERS[name]() if name in OTHERS else networks.build(name)


@cache
def rows() -> tuple[tuple[Row, ...], dict[str, tuple[PublishedFigure, ...]]]:
    """Rows that can be forecast, and the other figures by reason."""
    chosen = [
        f
        for f in (*figures(), *stock_figures(), *scaling_figures())
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


def forecasts(
    found: Sequence[Row], known: Sequence[Calibration], given: bool = True
) -> list[dict[Row, Point]]:
    """For each calibration, which differ in what devices exchange only, the forecast of every row;
    with its style, or as where nothing is known of it."""
    alike = defaultdict(list)
    for row in found:
        f = row.figure
        program = f.source, f.framework, row.network, row.precision, f.batch_per_device
        where = row.family, row.machine, row.peer_access, row.style if given else ""
        alike[program, where, row.alone].append(row)
    points: list[dict[Row, Point]] = [{} for _ in known]
    for group in alike.values():
        counts = [row.devices for row in group]
        each = predict_with(group[0].request(given), counts, known, {1: group[0].alone})
        for of_one, forecast in zip(points, each, strict=True):
            of_one.update(zip(group, forecast, strict=True))
    return points


def mean_and_ninth(errors: Iterable[float]) -> tuple[float, float]:
    """(mean, 90th percentile) of absolute errors; at least one."""
    sizes = sorted(abs(error) for error in errors)
    return fmean(sizes), sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]


def _why_not(f: PublishedFigure, one: float | None) -> str:
    if _network(f) is None:
        return f"cubemesh has no network {f.network}"
    if f.source.startswith("Lambda") and f.network.startswith("Transformer-XL"):
        return "gradients of an unstated number of steps are accumulated"
    where = machine(f)
    if where is None:
        return f"{f.system} is not in the catalogue"
    if one is None:
        return "no published rate of one device"
    if f.value > MOST_EFFICIENT * one * (f.devices or 1):
        return "efficiency above 1: an invalid run, or another clock"
    system = load_system(where)
    most = system.devices * (system.cluster.systems if system.cluster else 1)
    return f"{where} has fewer devices" if (f.devices or 0) > most else ""


def _row(f: PublishedFigure, one: float) -> Row:
    network, where = _network(f), machine(f)
    assert network
    assert where
    tokens = TOKENS[network] if f.unit == "tokens/s" else 1
    return Row(
        figure=f,
        network=network,
        rate=f.value / tokens,
        alone=one / tokens,
        machine=where,
        precision=precision_of(f.precision) or "fp32",
        style=f.style or style_of(f),
    )


def _network(f: PublishedFigure) -> str | None:
    if f.canonical:
        return f.canonical
    return next((name for form, name in OTHER_NAMES.items() if f.network.startswith(form)), None)


def style_of(f: PublishedFigure) -> str:
    """The gradient style of a figure of a table without that column; empty if unknown."""
    if f.machine:
        return ""
    return next(
        (
            style
            for source, framework, network, note, style in STYLES_OF
            if f.source.startswith(source)
            and f.framework.startswith(framework)
            and f.network.startswith(network)
            and note in f.note
        ),
        "",
    )


def _key(f: PublishedFigure) -> tuple[object, ...]:
    """What the rates of one and of several devices have in common."""
    sync = re.sub(
        r"parameter_server/\w+|replicated.*|independent|distributed_replicated.*", "", f.note
    )
    note = f.style or ("" if f.source.startswith("stock") else sync)
    framework = f.framework.replace("DDP + ", "")
    system, batch = without_count(f.system), f.batch_per_device
    return f.source, system, f.device, framework, f.network, f.precision, batch, note


def without_count(system: str) -> str:
    """A system's name without its number of devices: `2x RTX 3090` → `RTX 3090`."""
    return re.sub(r"\b\d+x ?(?=[A-Z])", "", system)


@cache
def family(system: str) -> str:
    """The machine of a system name in one spelling: with the memory of a device, without the
    number of devices and the network."""
    name = without_count(system)
    for spelled, once in SPELLINGS:
        name = re.sub(spelled, once, name)
    return name


def machine(figure: PublishedFigure) -> str | None:
    """The system of the catalogue of a figure; None if there is none."""
    if figure.machine:
        return figure.machine
    return next((name for form, name in MACHINES if re.search(form, figure.system)), None)
