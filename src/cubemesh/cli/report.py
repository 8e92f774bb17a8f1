"""`cubemesh report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, StoreAt, show
from cubemesh.errors import UsageError

if TYPE_CHECKING:
    from cubemesh.api.report import Report


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Only these experiments or papers; default: all.",
            autocompletion=completion.experiments_and_suites,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path(
        "cubemesh-report.html"
    ),
    charts: Annotated[
        Path | None,
        typer.Option("--charts", metavar="DIR", help="Also write each chart as SVG, PNG and CSV."),
    ] = None,
    machine_id: Annotated[
        str,
        typer.Option(
            "--machine-id",
            metavar="ID",
            help="Machine id or unique prefix; default: the machine measured last.",
        ),
    ] = "",
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="STORE",
            help="Store of another machine: its latest answers next to these, with the ratios.",
        ),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Write the latest results as one HTML page. It is self-contained and readable offline."""
    from cubemesh.views.report import render

    found, drawn = write_page(
        output, *(names or ()), charts=charts, machine_id=machine_id, store=store, against=against
    )
    show(
        render.document(found, output, drawn),
        as_json,
        lambda console: render.print_files(console, found, output, drawn),
    )


def write_page(
    output: Path,
    *names: str,
    charts: Path | None = None,
    machine_id: str = "",
    store: str | None = None,
    against: str | None = None,
) -> tuple[Report, list[Path]]:
    """Write the latest results as a page, and the charts as files; return both. UsageError where a
    file cannot be written."""
    from cubemesh.api.report import report as latest_answers
    from cubemesh.views.report import render

    found = latest_answers(*names, machine_id=machine_id, store=store, against=against)
    try:
        render.write_report(output, found)
        return found, [] if charts is None else render.write_charts_of(charts, found)
    except OSError as error:
        raise UsageError(
            f"{error.filename or output} cannot be written: {error.strerror}. Choose another path."
        ) from None
