"""Findings, tables and scatter charts of `validation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import throughput_unit
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import Point as Forecast
from cubemesh.papers.claims.forecasts import ClaimForecast
from cubemesh.papers.published import claims
from cubemesh.papers.validation.fitting import source
from cubemesh.papers.validation.one_device import OneDeviceForecast, OneDeviceRow, corrected
from cubemesh.papers.validation.rows import RowForecast, mean_and_ninth, rows
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Point, RunRecord, Table


@dataclass(frozen=True, kw_only=True)
class StoredForecast:
    """A stored run of several devices, and its forecast from that of one."""

    record: RunRecord
    rate: float
    point: Forecast

    @property
    def error(self) -> float:
        """Relative error of the forecast."""
        return self.point.samples_per_s / self.rate - 1


@dataclass(frozen=True, kw_only=True)
class ValidationData:
    """All results with their forecasts."""

    several: tuple[RowForecast, ...]
    """Each by a model that has not seen its source."""
    machines: tuple[RowForecast, ...]
    """The same rows, each by a model that has not seen its machine."""
    alone: tuple[OneDeviceForecast, ...]
    """Each from a datasheet, by a model that has not seen its source."""
    devices: tuple[OneDeviceForecast, ...]
    """The same rows, each by a model that has not seen its device."""
    unknown: tuple[RowForecast, ...]
    """These and the rows whose style or input is not known, each with nothing given and by a model
    that has not seen its source."""
    claims: tuple[ClaimForecast, ...]
    stored: tuple[StoredForecast, ...]
    worst: int


def findings(data: ValidationData) -> Iterator[Finding]:
    """Errors of each kind of forecast."""
    mean, ninth = mean_and_ninth([j.error for j in data.several])
    yield Finding(
        code="mean-error",
        text="Forecasts of several devices from the rate of one and the gradient style, by a model "
        f"that has not seen their source, have a mean error of {100 * mean:.1f} %, 90 % within "
        f"{100 * ninth:.1f} %.",
        value=100 * mean,
        unit="%",
    )
    kinds = dict.fromkeys(j.row.kind for j in data.several)
    by_kind = ", ".join(
        f"{_percent([j for j in data.several if j.row.kind == kind])} of {kind} networks"
        for kind in kinds
    )
    beyond = [j for j in data.several if not j.row.one_machine]
    yield Finding(
        code="error-by-class",
        text=f"That is {by_kind}, and {_percent(beyond)} beyond one machine ({len(beyond)} of "
        f"{len(data.several)} rates).",
    )
    within = _within(data.several)
    yield Finding(
        code="rates-within-band",
        text=f"{within:.0f} % of the rates are within the nine-in-ten band of their forecast, "
        "which was set without their source too.",
        value=within,
        unit="% within the band",
    )
    mean, ninth = mean_and_ninth([j.error for j in data.unknown])
    within = _within(data.unknown)
    yield Finding(
        code="nothing-given",
        text=f"With nothing given, neither style nor input, {len(data.unknown)} rates have a mean "
        f"error of {100 * mean:.1f} %, 90 % within {100 * ninth:.1f} %, and {within:.0f} % of them "
        "are within the band of such forecasts.",
        value=within,
        unit="% within the band",
    )
    mean, ninth = mean_and_ninth([j.error for j in data.machines])
    yield Finding(
        code="mean-error-new-machine",
        text="By a model that has seen their source on other machines, but not their machine, the "
        f"mean error is {100 * mean:.1f} %, 90 % within {100 * ninth:.1f} %, and "
        f"{_within(data.machines):.0f} % of the rates are within the band.",
        value=100 * mean,
        unit="%",
    )
    yield from _one_device(data)
    if data.stored:
        mean, ninth = mean_and_ninth([s.error for s in data.stored])
        yield Finding(
            code="stored-runs-error",
            text=f"Forecasts of {len(data.stored)} stored runs of several devices have a mean "
            f"error of {100 * mean:.1f} %, 90 % within {100 * ninth:.1f} %.",
            value=100 * mean,
            unit="%",
        )


def _one_device(data: ValidationData) -> Iterator[Finding]:
    mean, ninth = mean_and_ninth([a.error for a in data.alone])
    device = mean_and_ninth([a.error for a in data.devices])[0]
    band = defaults()["band_datasheet"]
    within = sum(1 / band <= 1 + a.error <= band for a in data.alone) / len(data.alone)
    yield Finding(
        code="datasheet-forecasts",
        text=f"From datasheets alone, {len(data.alone)} published rates of one GPU are forecast "
        f"with a mean error of {100 * mean:.1f} %, 90 % within {100 * ninth:.1f} %, by models that "
        f"have not seen their source ({100 * device:.1f} % by models that have not seen their "
        f"device); {100 * within:.0f} % are within the band, a factor of {band:g}.",
        value=100 * mean,
        unit="%",
    )
    found = corrected(data.alone)
    best, ninth = mean_and_ninth([each[0].error for each in found])
    each_mean = mean_and_ninth([one.error for each in found for one in each])[0]
    yield Finding(
        code="other-network-measured",
        text=f"With one published rate of the most alike other network on the same device the mean "
        f"error of {len(found)} of them is {100 * best:.1f} %, 90 % within {100 * ninth:.1f} %; "
        f"with any other network {100 * each_mean:.1f} %.",
        value=100 * best,
        unit="%",
    )


def tables(data: ValidationData) -> Iterator[Table]:
    """Errors by source, class, system, gradient style and number of devices, and with nothing
    given; the largest; claims; runs."""
    yield _by(data, "Errors by source", "source", lambda j: source(j.row))
    yield _by(data, "Errors by class of network", "networks", lambda j: j.row.kind)
    yield _by(data, "Errors by system", "system", lambda j: j.row.family)
    yield _by(data, "Errors by gradient style", "style", lambda j: j.row.way)
    yield _by(data, "Errors by number of devices", "devices", lambda j: j.row.devices)
    yield _nothing_given(data.unknown)
    yield _worst(data)
    yield _alone(data, "source", lambda row: row.source)
    yield _alone(data, "architecture", lambda row: f"{row.sheet.architecture}, {row.precision}")
    yield _claims(data.claims)
    if data.stored:
        yield _stored(data.stored)
    yield _not_forecast()


def _by(
    data: ValidationData, title: str, name: str, key: Callable[[RowForecast], str | int]
) -> Table:
    """A row for each value of `key`: with its source left out, and with its machine."""
    found = []
    for value in sorted({key(j) for j in data.several}):
        cells = [Cell(value=value) if isinstance(value, int) else Cell(text=value)]
        for judged in (data.several, data.machines):
            own = [j for j in judged if key(j) == value]
            mean, ninth = mean_and_ninth([j.error for j in own])
            cells += [Cell(value=100 * share) for share in (mean, ninth)]
            cells.append(Cell(value=_within(own)))
        found.append((*cells, Cell(value=len(own))))
    columns = [Column(name=name)]
    for left_out in ("source left out", "machine left out"):
        columns += [
            Column(name=f"{left_out}: mean", unit="%"),
            Column(name="90 % within", unit="%"),
            Column(name="within the band", unit="%"),
        ]
    columns.append(Column(name="rates"))
    return Table(title=title, columns=tuple(columns), rows=tuple(found))


def _alone(data: ValidationData, name: str, key: Callable[[OneDeviceRow], str]) -> Table:
    """Errors of one device from datasheets alone, a row for each value of `key`."""
    found = []
    for value in sorted({key(a.row) for a in data.alone}):
        cells = [Cell(text=value)]
        for judged in (data.alone, data.devices):
            mean, ninth = mean_and_ninth([a.error for a in judged if key(a.row) == value])
            cells += [Cell(value=100 * mean), Cell(value=100 * ninth)]
        cells.append(Cell(value=sum(key(a.row) == value for a in data.alone)))
        found.append(tuple(cells))
    columns = [Column(name=name)]
    for left_out in ("source left out", "device left out"):
        columns += [
            Column(name=f"{left_out}: mean", unit="%"),
            Column(name="90 % within", unit="%"),
        ]
    columns.append(Column(name="rates"))
    title = f"Errors of one device from its datasheet, by {name}"
    return Table(title=title, columns=tuple(columns), rows=tuple(found))


def _nothing_given(unknown: Sequence[RowForecast]) -> Table:
    """A row for each source: its rates of unknown style or input, and all of them."""
    lines = []
    for name in sorted({source(j.row) for j in unknown}):
        own = [j for j in unknown if source(j.row) == name]
        mean, ninth = mean_and_ninth([j.error for j in own])
        lines.append(
            (
                Cell(text=name),
                Cell(value=100 * mean),
                Cell(value=100 * ninth),
                Cell(value=_within(own)),
                Cell(value=sum(not j.row.given for j in own)),
                Cell(value=len(own)),
            )
        )
    columns = (
        Column(name="source"),
        *(Column(name=name, unit="%") for name in ("mean", "90 % within", "within the band")),
        *(Column(name=name) for name in ("of unknown style or input", "rates")),
    )
    return Table(title="Errors with nothing given", columns=columns, rows=tuple(lines))


def _worst(data: ValidationData) -> Table:
    names = ("system", "network", "precision", "devices", "style", "source")
    columns = (
        *(Column(name=name) for name in names),
        Column(name="published efficiency", unit="%"),
        Column(name="forecast", unit="%"),
        Column(name="error", unit="%"),
    )
    found = sorted(data.several, key=lambda j: -abs(j.error))[: data.worst]
    lines = tuple(
        (
            Cell(text=j.row.family),
            Cell(text=j.row.network),
            Cell(text=j.row.figure.precision),
            Cell(value=j.row.devices),
            Cell(text=j.row.style),
            Cell(text=source(j.row)),
            Cell(value=100 * j.row.efficiency),
            Cell(value=100 * j.forecast),
            Cell(value=100 * j.error),
        )
        for j in found
    )
    return Table(title=f"The {len(found)} largest errors", columns=columns, rows=lines)


def _claims(checked: Sequence[ClaimForecast]) -> Table:
    columns = (
        *(Column(name=name) for name in ("claim", "place", "conditions", "quantity")),
        Column(name="claimed"),
        Column(name="forecast"),
        Column(name="unit"),
        Column(name="error", unit="%"),
    )
    lines = []
    for one in checked:
        claim = one.claim
        of = ", ".join(filter(None, (claim.network, claim.system))) or claim.conditions
        for claimed, forecast in zip(claim.values, one.forecasts, strict=True):
            lines.append(
                (
                    *(Cell(text=text) for text in (claim.id, claim.place, of, claim.quantity)),
                    Cell(value=claimed),
                    Cell(value=forecast),
                    Cell(text=claim.unit or "–"),
                    Cell(value=100 * (forecast / claimed - 1)),
                )
            )
    title = f"Claims of the papers ({len(checked)} of {len(claims())} follow from the model)"
    return Table(title=title, columns=columns, rows=tuple(lines))


def _stored(stored: Sequence[StoredForecast]) -> Table:
    unit = throughput_unit(s.record for s in stored)
    columns = (
        *(Column(name=name) for name in ("network", "devices", "sync", "batch size")),
        Column(name="measured", unit=unit),
        Column(name="forecast", unit=unit),
        Column(name="error", unit="%"),
    )
    lines = tuple(
        (
            Cell(text=getattr(s.record.spec.work, "network", ""), run_id=s.record.run_id),
            Cell(value=s.point.devices),
            Cell(text=s.record.spec.program.sync),
            Cell(value=s.point.batch_per_device),
            Cell(value=s.rate, run_id=s.record.run_id),
            Cell(value=s.point.samples_per_s, low=s.point.low, high=s.point.high),
            Cell(value=100 * s.error),
        )
        for s in stored
    )
    return Table(title="Stored runs of several devices", columns=columns, rows=lines)


def _not_forecast() -> Table:
    """Published rates without a forecast, by reason."""
    lines = tuple(
        (
            Cell(text=reason),
            Cell(value=len(those)),
            Cell(text=", ".join(sorted({f.source for f in those}))),
        )
        for reason, those in sorted(rows()[1].items())
    )
    columns = (Column(name="reason"), Column(name="rates"), Column(name="sources"))
    return Table(title="Published rates without a forecast", columns=columns, rows=lines)


def charts(data: ValidationData) -> Iterator[Chart]:
    """Forecast over published, of several devices and of one, and over stored runs."""
    by_source: dict[str, list[Point]] = {}
    for j in data.several:
        point = Point(x=100 * j.row.efficiency, y=100 * j.forecast)
        by_source.setdefault(source(j.row), []).append(point)
    lines = [Line(name=name, points=tuple(points)) for name, points in sorted(by_source.items())]
    least = min(100 * min(j.row.efficiency, j.forecast) for j in data.several)
    yield _scatter("validation-several", "efficiency of several devices", "%", lines, least, 105)
    by_device: dict[str, list[Point]] = {}
    for a in data.alone:
        by_device.setdefault(a.row.sheet.name, []).append(Point(x=a.row.rate, y=a.rate))
    lines = [
        Line(name=device, points=tuple(points)) for device, points in sorted(by_device.items())
    ]
    rates = [rate for a in data.alone for rate in (a.row.rate, a.rate)]
    title = "throughput of one device, from its datasheet"
    yield _scatter("validation-alone", title, "images/s", lines, min(rates), max(rates), log=True)
    if data.stored:
        points = tuple(
            Point(x=s.rate, y=s.point.samples_per_s, run_id=s.record.run_id) for s in data.stored
        )
        unit = throughput_unit(s.record for s in data.stored)
        rates = [rate for s in data.stored for rate in (s.rate, s.point.samples_per_s)]
        lines = [Line(name="stored runs", points=points)]
        title = "throughput of stored runs of several devices"
        span = min(rates), max(rates)
        yield _scatter("validation-stored", title, unit, lines, *span, log=True)


def _scatter(
    name: str,
    what: str,
    unit: str,
    lines: Sequence[Line],
    low: float,
    high: float,
    *,
    log: bool = False,
) -> Chart:
    """Forecast over measured, with the line of equality."""
    ends = (Point(x=low, y=low), Point(x=high, y=high))
    equal = Line(name="forecast = measured", points=ends, role="reference")
    scale = "log10" if log else "linear"
    return Chart(
        name=name,
        title=f"Forecast and published or measured: {what}",
        kind="scatter",
        x=Axis(name="published or measured", unit=unit, scale=scale),  # type: ignore[arg-type]
        y=Axis(name="forecast", unit=unit, scale=scale),  # type: ignore[arg-type]
        lines=(*lines, equal),
    )


def notes(data: ValidationData) -> Iterator[str]:
    """Sources and definitions of the figures."""
    yield (
        "A forecast of several devices knows the published rate of one of the same source, system, "
        "network, framework, precision and batch size, and how that framework sends gradients. An "
        "error is forecast over published, minus 1."
    )
    yield (
        "Each rate is forecast twice: with factors and band fitted without its source, and without "
        "its machine. The factors of predict are fitted to all. What each was fitted to, and a "
        "baseline: benchmarks/prediction_accuracy.py."
    )
    hosted = sorted({j.row.family for j in data.several if not j.row.peer_access})
    yield (
        "Through host memory, because the script of their source set NCCL_P2P_DISABLE=1, or as "
        f"GeForce boards of 2020: {', '.join(hosted)} (of RTX 6000 Ada only two devices, of RTX "
        "A6000 those of 2022)."
    )
    yield (
        "A forecast from a datasheet is fitted without the source, or without the device, of the "
        "rate. What each factor was fitted to: benchmarks/one_device_accuracy.py."
    )
    yield "Claims are forecast from datasheets and links alone."


def _percent(forecasts: Sequence[RowForecast]) -> str:
    return f"{100 * mean_and_ninth([j.error for j in forecasts])[0]:.1f} %"


def _within(forecasts: Sequence[RowForecast]) -> float:
    """Per cent within the band of their forecast."""
    return 100 * sum(j.within for j in forecasts) / len(forecasts)
