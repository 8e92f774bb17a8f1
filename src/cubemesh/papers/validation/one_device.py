"""Published rates of one device compared with forecasts from its datasheet, by models that have not
seen their source, or their device.

Leave-one-out as in `fitting.py`: the shares of `forecast/attained.py` are fitted to the rows of all
other sources (devices), and judged on those left out. The fit minimizes the absolute logarithm of
forecast over published (iteratively reweighted Gauss-Newton steps), each device of a source with
the square root of its number of rows; factors are drawn weakly to `PRIOR`, where a fold has no row
that shows them.

A row is corrected by one row of another network of the same source, system, framework and precision
(`attained.correction`): by each that there is, and by the one that leaves the least uncertainty.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cubemesh.forecast.attained import (
    FACTORS,
    LAUNCH,
    SHARES,
    IdealStep,
    Software,
    correction,
    ideal_step,
)
from cubemesh.machines.catalogue import datasheets, find, forms
from cubemesh.machines.catalogue.datasheet import Datasheet
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.papers.published import figures, stock_figures
from cubemesh.papers.published.names import precision_of
from cubemesh.papers.validation.fitting import LeftOut
from cubemesh.papers.validation.rows import built, machine
from cubemesh.schema import PublishedFigure
from cubemesh.schema.spec import Precision

Array = NDArray[np.float64]

PRIOR: dict[str, float] = {
    **dict.fromkeys(SHARES, 0.7),
    "winograd_share": 1.5,
    "first_tensor_share": 0.3,
    "few_channels_share": 0.3,
    "tensor_few_channels_share": 0.3,
    "fused_share": 1.0,
    "transpose_share": 0.7,
    "kernel_s": 5e-6,
    "old_kernel_s": 10e-6,
    "kepler_share": 0.5,
    "wide_conv_share": 0.7,
    "wide_winograd_share": 1.2,
    "kepler_winograd_share": 0.8,
    "depth_s": 3e-9,
    "tensor_depth_s": 1e-9,
    LAUNCH: 100e-6,
}
MOST: dict[str, float] = dict.fromkeys(SHARES, 1.0) | {
    "winograd_share": 2.25,
    "kepler_winograd_share": 2.25,
    "wide_winograd_share": 2.25,
    "fused_share": 3.0,
}
"""Largest plausible values; the others have none."""
ROUNDS = 60
LEAST_ERROR = 0.1
"""Errors below this count by their square."""
DRAW = 0.3
"""How strongly a factor is drawn to `PRIOR`, as a row with an error of 1 that only it changes."""
LONGEST_STEP = 0.3
"""Of the logarithm of a factor in a round."""

OTHER_LIBRARIES = re.compile(
    r"no cuDNN|native|CL-nn|GreenTea|Chainer|Nervana|cudaconvnet|fbfft|^Caffe$|CuDNN\[R2\]"
)
"""Convolutions by other libraries than the vendor's, or by one from before 2016."""
FUSED = re.compile(r"(?<!no_)compile|XLA|JAX|fusion commit")
CAPTURED = re.compile(r"captured|CUDA graph")
YEARS = (
    (r"cuDNN 4|CuDNN\[R4\]", 2015),
    (r"cuDNN 5\.0", 2016),
    (r"cuDNN 5|Caffe2 0\.8|PyTorch 0\.3|[Ff]low 1\.[45]\.", 2017),
    (r"cuDNN 7\.0\.[45]|PyTorch 1\.0|Flow 1\.12", 2018),
)
"""Framework of a source → year of the libraries; 2020 for others."""
NHWC = ("NVIDIA DeepLearningExamples", "PaddlePaddle")
"""Sources whose scripts train in NHWC, though their tables do not say so."""
STEPS = {"forward+backward time", "step time", "throughput"}


@dataclass(frozen=True, kw_only=True)
class OneDeviceRow:
    """A published step of one device."""

    figure: PublishedFigure
    sheet: Datasheet
    precision: Precision
    software: Software
    seconds: float
    """Published, of a step."""
    ideal: IdealStep

    @property
    def rate(self) -> float:
        """Published samples/s."""
        return (self.figure.batch_per_device or 0) / self.seconds

    @property
    def source(self) -> str:
        """Its source; copies of one table, and figures of one document, are one."""
        name = self.figure.source
        for form in ("cnn-benchmarks", "milabench", "convnet-benchmarks", "Dell", "PaddlePaddle"):
            if form in name:
                return form
        return name

    @property
    def conditions(self) -> tuple[object, ...]:
        """What it has in common with a row of another network that calibrates it."""
        f, note = self.figure, re.sub(r"\d+", "", self.figure.note)
        return (
            *(self.source, f.system, self.sheet.id, f.framework, self.precision),
            *(self.software, f.metric, "" if "images" in note else note),
        )


@cache
def one_device_rows() -> tuple[tuple[OneDeviceRow, ...], dict[str, tuple[PublishedFigure, ...]]]:
    """Rows of one GPU that can be forecast, and the other figures by reason; copies of a row
    once."""
    found: dict[tuple[object, ...], OneDeviceRow] = {}
    left: dict[str, list[PublishedFigure]] = defaultdict(list)
    steps: dict[tuple[object, ...], IdealStep | None] = {}
    for f in (*figures(), *stock_figures()):
        if f.devices != 1 or f.metric not in STEPS or f.unit not in ("images/s", "ms"):
            continue
        sheet = datasheet(f)
        why = _why_not(f, sheet)
        if why or sheet is None:
            left[why].append(f)
            continue
        precision = _precision(f, sheet)
        assert f.canonical
        assert f.batch_per_device
        update = f.metric != "forward+backward time"
        key = f.canonical, f.batch_per_device, precision, sheet.id, software(f), update
        if key not in steps:
            network = built(f.canonical)
            steps[key] = ideal_step(
                network, f.batch_per_device, precision, sheet, software(f), update=update
            )
        ideal = steps[key]
        if ideal is None:
            left["no datasheet with peak and bandwidth"].append(f)
            continue
        row = OneDeviceRow(
            figure=f,
            sheet=sheet,
            precision=precision,
            software=software(f),
            seconds=f.value / 1e3 if f.unit == "ms" else f.batch_per_device / f.value,
            ideal=ideal,
        )
        copy = (
            row.source,
            sheet.id,
            f.framework,
            precision,
            f.canonical,
            f.batch_per_device,
            f.value,
        )
        if copy in found:
            left["a copy of another row"].append(f)
        found.setdefault(copy, row)
    return tuple(found.values()), {why: tuple(those) for why, those in left.items()}


def _why_not(f: PublishedFigure, sheet: Datasheet | None) -> str:
    if f.canonical is None:
        return "cubemesh has no such network"
    if not f.batch_per_device:
        return "the batch size is not stated"
    if "real" in f.note.casefold() or "pytorch dataloader" in f.note:
        return "trained on real data, whose input pipeline is not modelled"
    if f.source.startswith("pytorch/benchmark"):
        return "how many steps a latency covers is not stated"
    if OTHER_LIBRARIES.search(f.framework):
        return "convolutions are not the vendor's library's, or from before 2016"
    return "" if sheet else "no datasheet with peak and bandwidth"


def datasheet(f: PublishedFigure) -> Datasheet | None:
    """The datasheet of a figure's device. Where several forms of a model are possible: that of its
    system, else the one with its memory, else the fastest."""
    sheet = find(f.device)
    if sheet:
        return sheet
    possible = forms(f.device)
    where = machine(f)
    of_system = datasheets().get(load_system(where).device) if where else None
    if of_system in possible:
        return of_system
    size = re.search(r"(\d+) ?GB", f.device)
    alike = [s for s in possible if size and s.value("memory_bytes") == float(size[1]) * 1e9]
    return max(alike or possible, key=lambda s: s.value("memory_bytes_per_s") or 0, default=None)


def software(f: PublishedFigure) -> Software:
    """What a figure's framework, precision and note say of its program."""
    text = f"{f.framework} {f.precision} {f.note}".casefold()
    nhwc = re.search("nhwc|channels?_last", text) or f.source.startswith(NHWC)
    return Software(
        layout="nhwc" if nhwc else "nchw",
        fused=FUSED.search(f.framework) is not None,
        captured=CAPTURED.search(f.framework) is not None,
        year=next((year for form, year in YEARS if re.search(form, f.framework)), 2020),
    )


def _precision(f: PublishedFigure, sheet: Datasheet) -> Precision:
    """ "fp32/TF32" is the latter where the device has it."""
    found = precision_of(f.precision) or "fp32"
    return "tf32" if "TF32" in f.precision and sheet.value("tf32") else found


class OneDeviceFit:
    """The amounts of every row, and the fit of the factors to some of them."""

    def __init__(self, found: Sequence[OneDeviceRow]) -> None:
        self.rows = tuple(found)
        self.names = [name for name in FACTORS if name != LAUNCH]
        self.signs = np.array([-1.0 if name in SHARES else 1.0 for name in self.names])
        amounts = [[row.ideal.amounts.get(n, 0.0) for n in self.names] for row in self.rows]
        self.amounts = np.array(amounts)
        self.launches = np.array([row.ideal.launches for row in self.rows])
        self.seconds = np.array([row.seconds for row in self.rows])
        places = [(row.source, row.sheet.id) for row in self.rows]
        self.weights = np.array([places.count(place) ** -0.5 for place in places])

    def step_s(self, factors: Mapping[str, float]) -> Array:
        """Forecast step of every row."""
        values = np.array([factors[n] for n in self.names]) ** self.signs
        found: Array = np.maximum(self.amounts @ values, self.launches * factors[LAUNCH])
        return found

    def fit(self, seen: NDArray[np.bool_]) -> dict[str, float]:
        """The factors for the rows that are `seen`."""
        names = [*self.names, LAUNCH]
        start = np.log([PRIOR[n] for n in names])
        most = np.log([MOST.get(n, math.inf) for n in names])
        amounts, launches = self.amounts[seen], self.launches[seen]
        seconds, weights = self.seconds[seen], self.weights[seen]
        at = start.copy()
        for _ in range(ROUNDS):
            parts = amounts * np.exp(self.signs * at[:-1])
            device, host = parts.sum(axis=1), launches * math.exp(at[-1])
            slope = np.zeros((len(seconds), len(names)))
            hidden = host > device
            slope[~hidden, :-1] = (self.signs * parts / device[:, None])[~hidden]
            slope[hidden, -1] = 1.0
            error = np.log(np.where(hidden, host, device) / seconds)
            weight = weights / np.maximum(np.abs(error), LEAST_ERROR)
            normal = slope.T @ (slope * weight[:, None]) + np.diag([DRAW] * len(names))
            towards = slope.T @ (weight * error) + DRAW * (at - start)
            step = np.clip(np.linalg.solve(normal, towards), -LONGEST_STEP, LONGEST_STEP)
            at = np.minimum(at - step, most)
        return dict(zip(names, np.exp(at).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class OneDeviceForecast:
    """A row with the forecast of a model that has not seen its source, or its device."""

    row: OneDeviceRow
    factors: Mapping[str, float]
    step_s: float

    @property
    def rate(self) -> float:
        """Forecast samples/s."""
        return (self.row.figure.batch_per_device or 0) / self.step_s

    @property
    def error(self) -> float:
        """Relative error of the forecast rate."""
        return self.row.seconds / self.step_s - 1


@dataclass(frozen=True, kw_only=True)
class CorrectedForecast:
    """A forecast corrected by the published step of another network."""

    row: OneDeviceRow
    other: OneDeviceRow
    error: float
    spread: float
    """Standard deviation that the forecast states, of the logarithm."""


@dataclass(frozen=True, kw_only=True)
class OneDeviceFold:
    """What is left out, the factors, and the rows that each of them saw."""

    left_out: str
    values: Mapping[str, float]
    saw: Mapping[str, tuple[OneDeviceRow, ...]]
    judged: tuple[OneDeviceForecast, ...]


GROUPS: dict[LeftOut, Callable[[OneDeviceRow], str]] = {
    "source": lambda row: row.source,
    "machine": lambda row: row.sheet.name,
}


@cache
def one_device_folds(left_out: LeftOut) -> tuple[OneDeviceFold, ...]:
    """Every row, judged without its source, or without its device."""
    found, of = one_device_rows()[0], GROUPS[left_out]
    data = OneDeviceFit(found)
    names = np.array([of(row) for row in found])
    return tuple(_fold(data, name, names == name) for name in sorted(set(names.tolist())))


def one_device_judged(left_out: LeftOut) -> tuple[OneDeviceForecast, ...]:
    """The forecasts of all folds."""
    return tuple(one for fold in one_device_folds(left_out) for one in fold.judged)


def _fold(data: OneDeviceFit, name: str, aside: NDArray[np.bool_]) -> OneDeviceFold:
    values = data.fit(~aside)
    steps = data.step_s(values)
    seen = [row for row, out in zip(data.rows, aside, strict=True) if not out]
    return OneDeviceFold(
        left_out=name,
        values=values,
        saw={
            factor: tuple(row for row in seen if factor in row.ideal.composition(values))
            for factor in FACTORS
        },
        judged=tuple(
            OneDeviceForecast(row=data.rows[i], factors=values, step_s=float(steps[i]))
            for i in np.flatnonzero(aside)
        ),
    )


def corrected(judged: Sequence[OneDeviceForecast]) -> tuple[tuple[CorrectedForecast, ...], ...]:
    """For every row that has rows of other networks under its conditions: its forecast corrected by
    each, the one that leaves the least uncertainty first."""
    alike: dict[tuple[object, ...], list[OneDeviceForecast]] = defaultdict(list)
    for one in judged:
        alike[one.row.conditions].append(one)
    found = []
    for group in alike.values():
        for one in group:
            others = [o for o in group if o.row.figure.canonical != one.row.figure.canonical]
            if others:
                each = [_corrected(one, other.row) for other in others]
                found.append(tuple(sorted(each, key=lambda c: c.spread)))
    return tuple(found)


def _corrected(one: OneDeviceForecast, other: OneDeviceRow) -> CorrectedForecast:
    log_error, spread = correction(one.row.ideal, one.factors, [(other.ideal, other.seconds)])
    error = one.row.seconds / (one.step_s * math.exp(log_error)) - 1
    return CorrectedForecast(row=one.row, other=other, error=error, spread=spread)
