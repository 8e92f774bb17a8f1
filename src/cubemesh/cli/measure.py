"""The verbs that measure, and judge one measurement by another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cubemesh.cli.options import (
    AsJson,
    FailBelow,
    Fresh,
    Hosts,
    Pythons,
    Settings,
    StoreAt,
    on_hosts,
    open_store,
    show,
)
from cubemesh.errors import UsageError

if TYPE_CHECKING:
    from cubemesh.experiments.registry import Scale


def run(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="Experiments or suites; `cubemesh experiments` lists them."
        ),
    ],
    settings: Settings = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short look.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Everything the documents did.")] = False,
    store: StoreAt = None,
    fresh: Fresh = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="KEY=VALUE",
            help="Alternate with a program that differs in this; may be repeated.",
        ),
    ] = None,
    fail_below: FailBelow = None,
    pythons: Pythons = None,
    hosts: Hosts = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions, print the answers. What is stored already is not measured again."""
    from cubemesh.experiments.analysis.comparison import gate_of
    from cubemesh.experiments.session import replay_papers, run_names
    from cubemesh.views import json_output as plain
    from cubemesh.views import terminal
    from cubemesh.views.progress import TerminalProgress

    if quick and full:
        raise UsageError("--quick and --full exclude one another: give one of them, or neither.")
    if fail_below is not None and not against:
        raise UsageError(
            "--fail-below judges a comparison: add --against KEY=VALUE, or compare stored runs "
            "with `cubemesh compare A B --fail-below RATIO`."
        )
    with open_store(store) as opened:
        answered = run_names(
            names,
            [*(settings or []), *on_hosts(hosts)],
            scale=_scale(quick, full),
            store=opened,
            observer=TerminalProgress(terminal.stderr_console()),
            fresh=fresh,
            pythons=pythons or [],
            against=against or [],
        )
        answers = [*(a.answer for a in answered), *replay_papers(answered, opened)]
    show(
        plain.run_json(answered, answers),
        as_json,
        lambda console: terminal.print_answers(console, answers),
    )
    code = _run_exit_code(answered)
    if fail_below is not None:
        gate = gate_of(fail_below, (r for a in answered for r in a.records))
        print(f"cubemesh: {gate.sentence}", file=sys.stderr)
        code = code or gate.exit_code
    raise typer.Exit(code)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Runs: an id, or KEY=VALUE,KEY=VALUE.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The runs to hold against them.")],
    store: StoreAt = None,
    store_b: Annotated[
        str | None,
        typer.Option("--store-b", metavar="PATH|URL", help="Where B's are kept; default: as A's."),
    ] = None,
    fail_below: FailBelow = None,
    as_json: AsJson = False,
) -> None:
    """Is B faster than A? Stored runs side by side. What differs between them is named."""
    from cubemesh.views.comparison import compare_stored

    with open_store(store, reading=True) as a, open_store(store_b or store, reading=True) as b:
        shown = compare_stored(first, second, a, b, fail_below)
    show(shown.plain, as_json, shown.print)
    raise typer.Exit(shown.exit_code)


def _scale(quick: bool, full: bool) -> Scale | None:
    from cubemesh.experiments.registry import Scale

    if quick:
        return Scale.QUICK
    return Scale.FULL if full else None


def _run_exit_code(answered: Any) -> int:
    """0 when every run ended as an answer; 1 when one crashed, was killed or timed out, or when
    nothing at all could be measured."""
    from cubemesh.experiments.registry import EXPERIMENTS

    if not any(EXPERIMENTS[a.experiment_run.experiment].measures for a in answered):
        return 0  # computed, not measured
    records = [r for a in answered for r in a.records]
    faults = [r for r in records if not r.outcome.status.expected]
    return 1 if faults or not any(r.ok for r in records) else 0
