"""What there is: networks, experiments, suites and frameworks, and published figures."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args

from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core.settings import NOT_SET
from cubemesh.experiments.registry import EXPERIMENTS, SUITES, entry
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.networks import NETWORKS, build, canonical_name
from cubemesh.networks.describe import LayerRow, NetworkSummary, layer_rows, summary
from cubemesh.papers.published import PeakShare, figures, peak_share
from cubemesh.papers.published.generations import Generation, generations
from cubemesh.papers.published.names import precision_of
from cubemesh.runs.own_networks import described
from cubemesh.schema import Budget, Placement, ProgramSettings, PublishedFigure
from cubemesh.schema.serialization import field_types, to_plain
from cubemesh.schema.spec import Precision


@dataclass(frozen=True, kw_only=True)
class ExperimentSummary:
    """A line of the list of experiments."""

    name: str
    question: str
    papers: str
    """Where the papers run it."""


@dataclass(frozen=True, kw_only=True)
class SuiteExperiment:
    """One experiment of a suite."""

    experiment: str
    reproduces: str
    """The figure or table of a paper; empty for none."""
    settings: Mapping[str, str]
    """As on the command line."""
    quick: bool
    """Whether --quick includes it."""


@dataclass(frozen=True, kw_only=True)
class SuiteSummary:
    """A suite and its experiments, in order."""

    name: str
    summary: str
    experiments: tuple[SuiteExperiment, ...]


@dataclass(frozen=True, kw_only=True)
class FrameworkSummary:
    """A line of the list of frameworks."""

    name: str
    summary: str
    installed: bool
    install: str
    """The command that installs it."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Everything that can be run, and with what."""

    frameworks: tuple[FrameworkSummary, ...]
    experiments: tuple[ExperimentSummary, ...]
    suites: tuple[SuiteSummary, ...]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting, with the text under its field in the code."""

    name: str
    type: str
    """As its values are typed: `cpu | cuda`, `integer,integer,…`, `(fp32 | bf16),…`."""
    default: Any
    """As plain data; null without one."""
    means: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of which a value, or each value of a list, is one; empty for other types."""
        words = tuple(self.type.removesuffix(",…").strip("()").split(" | "))
        return () if len(words) < 2 or {"integer", "number", "text"} & set(words) else words


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Everything that can be set in an experiment."""

    name: str
    question: str
    settings: tuple[Setting, ...]
    """The experiment's own."""
    fields: tuple[Setting, ...]
    """Fields of the specs it runs."""


def list_experiments() -> Catalogue:
    """Every experiment, suite and framework."""
    return Catalogue(
        frameworks=tuple(
            FrameworkSummary(name=n, summary=f.summary, installed=f.installed, install=f.install)
            for n, f in FRAMEWORKS.items()
        ),
        experiments=tuple(
            ExperimentSummary(name=e.name, question=e.question, papers=e.papers)
            for e in EXPERIMENTS.values()
        ),
        suites=tuple(
            SuiteSummary(
                name=n,
                summary=s.summary,
                experiments=tuple(SuiteExperiment(**e._asdict()) for e in s.entries),
            )
            for n, s in SUITES.items()
        ),
    )


def experiment_settings(name: str) -> ExperimentSettings:
    """The settings of one experiment; UsageError naming the nearest for an unknown one."""
    found = entry(name)
    own = fields_of(found.settings)
    others: dict[str, Setting] = {}
    for part in (*found.works, Placement, ProgramSettings, Budget):
        others |= fields_of(part)
    others = {n: f for n, f in others.items() if n not in own and n not in found.varies}
    return ExperimentSettings(
        name=found.name,
        question=found.question,
        settings=tuple(own.values()),
        fields=tuple(others.values()),
    )


def fields_of(kind: type[Any]) -> dict[str, Setting]:
    """Every field of a dataclass that a setting has, in order, by name."""
    hints, texts = field_types(kind), _docstrings(kind)
    return {
        f.name: Setting(
            name=f.name,
            type=_type_text(hints[f.name]),
            default=None if f.default is MISSING else to_plain(f.default),
            means=texts.get(f.name, ""),
        )
        for f in fields(kind)
        if f.name not in NOT_SET
    }


def _type_text(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_text(a) for a in arguments if a is not type(None))
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        one = _type_text(arguments[0])
        return f"({one}),…" if " | " in one else f"{one},{one},…"
    names = {int: "integer", float: "number", str: "text", bool: "true | false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The string under each field, of the class and of those it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, line in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = line.value if isinstance(line, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[field.target.id] = " ".join(text.value.split())
    return found


@dataclass(frozen=True, kw_only=True)
class NetworkLayers:
    """A network with a row for each layer."""

    summary: NetworkSummary
    layers: tuple[LayerRow, ...]


def list_networks() -> tuple[NetworkSummary, ...]:
    """Every network that can be trained."""
    return tuple(map(summary, NETWORKS))


def network_layers(name: str, *, input_shape: str = "") -> NetworkLayers:
    """One network layer by layer; UsageError naming the nearest for an unknown one.

    A network of your own (docs/own_network.md), such as `model.py:Net`, is imported and described
    for `input_shape`, by default 3x224x224.
    """
    with described([name], input_shape):
        found = summary(name)
        return NetworkLayers(summary=found, layers=tuple(layer_rows(build(found.name))))


@dataclass(frozen=True, kw_only=True)
class PublishedFigures:
    """Published figures that match, the first `limit` of them."""

    matching: int
    with_peak: int
    """Of the matching ones, those whose device's peak is known."""
    above_peak: int
    """Of the matching ones, those above their device's peak."""
    figures: tuple[tuple[PublishedFigure, PeakShare], ...]


def published_figures(
    network: str | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
    above_peak: bool = False,
    limit: int | None = None,
) -> PublishedFigures:
    """Figures of a network (by cubemesh's name or the source's), on devices whose name contains
    `device`, only those in `precision`, only those above their device's peak, only the first
    `limit`.

    UsageError where no figure matches.
    """
    found = [(f, peak_share(f)) for f in _matching(network, device, precision)]
    if above_peak:
        found = [pair for pair in found if pair[1].warning is not None]
    return PublishedFigures(
        matching=len(found),
        with_peak=sum(use.share is not None for _, use in found),
        above_peak=sum(use.warning is not None for _, use in found),
        figures=tuple(found[:limit]),
    )


def published_generations(
    network: str, *, device: str | None = None, precision: str | None = None
) -> tuple[Generation, ...]:
    """The fastest published training rate of one GPU of each model, with peak and ratio to the
    first, oldest first (papers/published/generations.py).

    UsageError where no figure matches.
    """
    found = generations(_matching(network, device, precision), precision)
    if not found:
        raise UsageError(
            f"There is no published rate of one GPU that trains {network} among these figures. "
            f"`cubemesh published {network}` lists all of it."
        )
    return found


def _matching(
    network: str | None, device: str | None, precision: str | None
) -> list[PublishedFigure]:
    found = list(figures())
    if network is not None:
        names = {f.network for f in found} | {f.canonical for f in found if f.canonical}
        name = network if network in names else canonical_name(network)
        found = [f for f in found if name in (f.network, f.canonical)]
        if not found:
            raise UsageError(f"There are no published figures of {name} in cubemesh.")
    if device is not None:
        devices = sorted({f.device for f in found})
        found = [f for f in found if device.casefold() in f.device.casefold()]
        if not found:
            raise unknown_name("device of these figures", device, devices, plural="devices")
    if precision is not None:
        if precision not in get_args(Precision):
            raise unknown_name("precision", precision, get_args(Precision), "", "precisions")
        found = [f for f in found if precision_of(f.precision) == precision]
        if not found:
            raise UsageError(f"There are no such figures in {precision}. Leave out --precision.")
    return found
