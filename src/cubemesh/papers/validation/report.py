"""The findings, tables and scatters of `validation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import Point as Forecast
from cubemesh.papers.published import claims
from cubemesh.papers.validation.claims import ClaimForecast
from cubemesh.papers.validation.rows import RowForecast, SingleForecast, mean_and_ninth, rows
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Point, RunRecord, Table


@dataclass(frozen=True, kw_only=True)
class StoredForecast:
    """A stored run of several devices, and its forecast from that of one."""

    record: RunRecord
    rate: float
    point: Forecast

    @property
    def error(self) -> float:
        """Of the forecast, over what was measured."""
        return self.point.samples_per_s / self.rate - 1


@dataclass(frozen=True, kw_only=True)
class ValidationData:
    """All that was held against a forecast."""

    several: tuple[RowForecast, ...]
    alone: tuple[SingleForecast, ...]
    claims: tuple[ClaimForecast, ...]
    stored: tuple[StoredForecast, ...]
    worst: int

    @property
    def local(self) -> list[RowForecast]:
        """Two to eight devices in one machine."""
        return [j for j in self.several if j.row.one_machine and j.row.devices <= 8]


def findings(shown: ValidationData) -> Iterator[Finding]:
    """One sentence for each kind of forecast."""
    unseen = [j for j in shown.local if not j.fitted]
    kinds = dict.fromkeys(j.row.kind for j in unseen)
    told = ", ".join(
        f"{_percent([j for j in unseen if j.row.kind == kind])} of {kind} networks"
        for kind in kinds
    )
    mean, ninth = mean_and_ninth([j.error for j in unseen])
    yield Finding(
        text=f"Two to eight devices are forecast {100 * mean:.1f} % off in the mean, from the "
        "rate of one."
    )
    yield Finding(
        text=f"That is in one machine, on systems that nothing was fitted to ({len(unseen)} rates, "
        f"nine in ten within {100 * ninth:.1f} %): {told}."
    )
    beyond = [j for j in shown.several if not j.row.one_machine]
    others = [j for j in shown.several if not j.fitted]
    within = sum(j.within for j in others)
    yield Finding(
        text=f"Beyond one machine they are {_percent(beyond)} off in the mean. {within} of "
        f"{len(others)} published rates of systems that nothing was fitted to lie in the band of "
        "their forecast."
    )
    band = defaults()["band_uncalibrated"]
    within = sum(1 / band <= a.forecast / a.figure.value <= band for a in shown.alone)
    yield Finding(
        text=f"From datasheets alone, {within} of {len(shown.alone)} published rates of one "
        f"device are forecast within a factor of {band:g}."
    )
    if shown.stored:
        mean, ninth = mean_and_ninth([s.error for s in shown.stored])
        yield Finding(
            text=f"Stored runs of several devices are forecast {100 * mean:.1f} % off in the mean, "
            f"nine in ten within {100 * ninth:.1f} % ({len(shown.stored)} runs)."
        )


def tables(shown: ValidationData) -> Iterator[Table]:
    """Errors by class, system, exchange and number of devices; the worst; claims; runs."""
    yield _by(shown.local, "Errors by class of network", "networks", lambda j: j.row.kind)
    yield _by(shown.several, "Errors by system", "system", lambda j: j.row.family)
    yield _by(shown.several, "Errors by exchange", "sync", lambda j: j.row.way)
    yield _by(shown.several, "Errors by number of devices", "devices", lambda j: j.row.devices)
    yield _worst(shown)
    yield _claims(shown.claims)
    if shown.stored:
        yield _stored(shown.stored)
    yield _left()


def _by(
    judged: Sequence[RowForecast], title: str, name: str, key: Callable[[RowForecast], str | int]
) -> Table:
    """A row for each value of `key`, the fitted half beside the other."""
    found = []
    for value in sorted({key(j) for j in judged}):
        own = [j for j in judged if key(j) == value]
        head = Cell(value=value) if isinstance(value, int) else Cell(text=value)
        cells: list[Cell] = [head]
        for half in (True, False):
            errors = [j.error for j in own if j.fitted is half]
            if errors:
                mean, ninth = mean_and_ninth(errors)
                cells += [Cell(value=100 * mean), Cell(value=100 * ninth), Cell(value=len(errors))]
            else:
                cells += [Cell(text="–")] * 3
        found.append(tuple(cells))
    columns = [Column(name=name)]
    for title_of in ("fitted half", "other half"):
        columns += [
            Column(name=f"{title_of}: mean", unit="%"),
            Column(name="nine in ten within", unit="%"),
            Column(name="rates"),
        ]
    return Table(title=title, columns=tuple(columns), rows=tuple(found))


def _worst(shown: ValidationData) -> Table:
    columns = (
        *(Column(name=name) for name in ("system", "network", "precision", "devices", "half")),
        Column(name="published efficiency", unit="%"),
        Column(name="forecast", unit="%"),
        Column(name="off by", unit="%"),
    )
    found = sorted(shown.several, key=lambda j: -abs(j.error))[: shown.worst]
    lines = tuple(
        (
            Cell(text=j.row.family),
            Cell(text=j.row.network),
            Cell(text=j.row.figure.precision),
            Cell(value=j.row.devices),
            Cell(text="fitted" if j.fitted else "other"),
            Cell(value=100 * j.row.efficiency),
            Cell(value=100 * j.forecast),
            Cell(value=100 * j.error),
        )
        for j in found
    )
    return Table(title=f"The {len(found)} that are farthest off", columns=columns, rows=lines)


def _claims(checked: Sequence[ClaimForecast]) -> Table:
    columns = (
        *(Column(name=name) for name in ("claim", "place", "of", "what")),
        Column(name="claimed"),
        Column(name="forecast"),
        Column(name="unit"),
        Column(name="off by", unit="%"),
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
    title = f"Claims of the documents ({len(checked)} of {len(claims())} follow from the model)"
    return Table(title=title, columns=columns, rows=tuple(lines))


def _stored(stored: Sequence[StoredForecast]) -> Table:
    columns = (
        *(Column(name=name) for name in ("network", "devices", "sync", "minibatch")),
        Column(name="measured", unit="samples/s"),
        Column(name="forecast", unit="samples/s"),
        Column(name="off by", unit="%"),
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


def _left() -> Table:
    """Published rates that were not forecast, by their reason."""
    lines = tuple(
        (Cell(text=reason), Cell(value=len(those)), Cell(text=", ".join(_sources(those))))
        for reason, those in sorted(rows()[1].items())
    )
    columns = (Column(name="reason"), Column(name="rates"), Column(name="sources"))
    return Table(title="Published, but not forecast", columns=columns, rows=lines)


def _sources(figures: Sequence[object]) -> list[str]:
    return sorted({str(getattr(f, "source", "")) for f in figures})


def charts(shown: ValidationData) -> Iterator[Chart]:
    """Forecast against published, of several devices and of one; and against stored runs."""
    names = {True: "fitted half", False: "other half"}
    lines = []
    for half, name in names.items():
        points = tuple(
            Point(x=100 * j.row.efficiency, y=100 * j.forecast)
            for j in shown.several
            if j.fitted is half
        )
        lines.append(Line(name=f"published, {name}", points=points))
    least = min(100 * min(j.row.efficiency, j.forecast) for j in shown.several)
    yield _scatter("validation-several", "efficiency of several devices", "%", lines, least, 105)
    by_device: dict[str, list[Point]] = {}
    for a in shown.alone:
        point = Point(x=a.figure.value, y=a.forecast)
        by_device.setdefault(a.figure.device, []).append(point)
    lines = [
        Line(name=device, points=tuple(points)) for device, points in sorted(by_device.items())
    ]
    rates = [rate for a in shown.alone for rate in (a.figure.value, a.forecast)]
    title = "throughput of one device, from its datasheet"
    yield _scatter("validation-alone", title, "images/s", lines, min(rates), max(rates), log=True)
    if shown.stored:
        points = tuple(
            Point(x=s.rate, y=s.point.samples_per_s, run_id=s.record.run_id) for s in shown.stored
        )
        rates = [rate for s in shown.stored for rate in (s.rate, s.point.samples_per_s)]
        lines = [Line(name="stored runs", points=points)]
        title = "throughput of stored runs of several devices"
        span = min(rates), max(rates)
        yield _scatter("validation-stored", title, "samples/s", lines, *span, log=True)


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
    """Forecast over what it is held against, with the line on which they are equal."""
    ends = (Point(x=low, y=low), Point(x=high, y=high))
    equal = Line(name="as forecast", points=ends, role="reference")
    scale = "log10" if log else "linear"
    return Chart(
        name=name,
        title=f"Forecast against published or measured: {what}",
        kind="scatter",
        x=Axis(name="published or measured", unit=unit, scale=scale),  # type: ignore[arg-type]
        y=Axis(name="forecast", unit=unit, scale=scale),  # type: ignore[arg-type]
        lines=(*lines, equal),
    )


def notes(shown: ValidationData) -> Iterator[str]:
    """What the figures rest on."""
    yield (
        "A forecast of several devices knows the published rate of one of the same source, system, "
        "network, framework, precision and minibatch. An error is forecast over published, less 1."
    )
    fitted = [n for n, f in defaults().factors.items() if f.origin == "fitted"]
    yield (
        f"Fitted on every second system in the order of their names: {', '.join(fitted)}, the last "
        "two to one row of them. The others judge them (benchmarks/prediction_accuracy.py, which "
        "has a baseline beside them)."
    )
    hosted = sorted({j.row.family for j in shown.several if not j.row.peer_access})
    yield (
        "Through the host's memory, because their source's script set NCCL_P2P_DISABLE=1 when they "
        f"ran: {', '.join(hosted)} (of RTX 6000 Ada two devices alone)."
    )
    yield "Claims are forecast from datasheets and links alone."


def _percent(judged: Sequence[RowForecast]) -> str:
    return f"{100 * mean_and_ninth([j.error for j in judged])[0]:.1f} %"
