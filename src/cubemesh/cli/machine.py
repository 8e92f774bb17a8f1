"""`cubemesh probe`, `cubemesh doctor` and `cubemesh accept`: this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import (
    AsJson,
    Pythons,
    Settings,
    StoreAt,
    Wait,
    show,
    tell,
    whole_numbers,
)
from cubemesh.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

DRAWING = Path("cubemesh-topology.svg")


def probe(
    file: Annotated[
        Path | None, typer.Argument(help="File that --draw writes.", show_default=str(DRAWING))
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="NAME|FILE",
            help="A system of the catalogue, or a .toml, .xml (NCCL) or .txt (topo -m) file.",
            autocompletion=completion.systems,
        ),
    ] = None,
    draw: Annotated[
        bool,
        typer.Option(
            "--draw", help="Draw the topology and its rings; FILE ends in .svg, .png or .txt."
        ),
    ] = False,
    gpus: Annotated[
        str | None, typer.Option(metavar="0,1,…", help="Only these GPUs of the topology.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="PATH|URL",
            help="Show what differs from a recorded software stack: a store, or a file of "
            "`cubemesh probe --json`.",
        ),
    ] = None,
    machine_id: Annotated[
        str,
        typer.Option(
            "--machine-id",
            metavar="ID",
            help="With --against a store: machine id or unique prefix; default: this machine.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the hardware of this machine. With --machine or --draw, the topology of a system."""
    from cubemesh.api.probe import compare_stacks, topology
    from cubemesh.api.probe import probe as probe_machine
    from cubemesh.views import systems, terminal
    from cubemesh.views.json_output import machine_json, stack_comparison_json
    from cubemesh.views.topology.files import check_path, write_topology

    if against is not None:
        if machine is not None or draw or gpus is not None or file is not None:
            raise UsageError("--against compares software: leave out --machine, --draw and --gpus.")
        compared = compare_stacks(against, machine_id=machine_id)
        show(
            stack_comparison_json(compared),
            as_json,
            lambda c: terminal.print_stack_comparison(c, compared),
        )
        return
    if machine_id:
        raise UsageError("--machine-id chooses a machine of a store: add --against PATH.")
    if file is not None and not draw:
        raise UsageError(f"{file}: a file is only written with --draw; to read one use --machine.")
    if file is not None:
        check_path(file)
    if machine is None and not draw:
        if gpus is not None:
            raise UsageError("--gpus selects GPUs of a topology: add --draw or --machine.")
        found = probe_machine(sensors=True)
        show(machine_json(found), as_json, lambda c: terminal.print_machine(c, found))
        return
    system = topology(machine, gpus=None if gpus is None else whole_numbers("--gpus", gpus))
    drawing = (file or DRAWING) if draw else None
    if drawing is not None:
        write_topology(drawing, system)
    show(
        systems.document(system, drawing),
        as_json,
        lambda console: systems.print_system(console, system, drawing),
    )


def doctor(as_json: AsJson = False) -> None:
    """Check the installation and this machine. Each problem has the command that mends it."""
    from cubemesh.api.doctor import doctor as diagnose
    from cubemesh.views import doctor as view

    found = diagnose()
    show(view.document(found), as_json, lambda console: view.print_diagnosis(console, found))


def accept(
    burn_in: Annotated[
        float | None,
        typer.Option(
            "--burn-in",
            min=0.0,
            metavar="MINUTES",
            help="Length of the burn-in; default: 10, with --quick 1, with --full 60.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder on the disk to test; default: $XDG_CACHE_HOME/cubemesh."
        ),
    ] = None,
    fleet: Annotated[
        list[str] | None,
        typer.Option(
            "--fleet",
            metavar="PATH|URL",
            help="Store of machines of the same model to compare with; may be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Longer runs.")] = False,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Also write the results as an HTML page."),
    ] = None,
    badge: Annotated[
        Path | None,
        typer.Option("--badge", metavar="FILE", help="Also write the verdict as an SVG image."),
    ] = None,
    store: StoreAt = None,
    wait: Wait = "0",
    wait_quiet: Annotated[
        str,
        typer.Option(
            "--wait-quiet",
            metavar="DURATION",
            help="Wait up to this long (10m) for other programs to end.",
        ),
    ] = "0",
    pythons: Pythons = None,
    as_json: AsJson = False,
) -> None:
    """Run an acceptance test of this machine. It measures speed, links, disk, repeatable results
    and a burn-in, and judges each figure. Exit code: 0 passed, 99 failed, 1 not judged."""
    from cubemesh.api.doctor import doctor as diagnose
    from cubemesh.api.run import accept as run_acceptance
    from cubemesh.cli.report import write_page
    from cubemesh.views import doctor as doctor_view
    from cubemesh.views import summary, terminal
    from cubemesh.views.facts.acceptance import badge_svg
    from cubemesh.views.json_output import acceptance_json
    from cubemesh.views.progress import TerminalProgress

    problems = diagnose(watch_load=False).problems
    found = run_acceptance(
        burn_in=burn_in,
        folder=None if folder is None else folder.absolute(),
        stores=fleet or (),
        settings=settings or (),
        quick=quick,
        full=full,
        store=store,
        wait=wait,
        wait_quiet=wait_quiet,
        pythons=pythons or (),
        observer=TerminalProgress(terminal.stderr_console()),
    )

    def draw(console: Console) -> None:
        summary.print_run(console, found)
        doctor_view.print_problems(console, problems)

    show(acceptance_json(found, problems), as_json, draw)
    tell(found.answer.findings[0].text)
    if page is not None:
        write_page(page, "acceptance", store=store)
        if not as_json:
            summary.print_page(terminal.stdout_console(), page)
    if badge is not None:
        when = found.experiments[0].experiment_run.started_utc
        try:
            badge.write_text(badge_svg(found.verdict, when), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{badge} cannot be written: {error.strerror}. Choose another path for --badge."
            ) from None
    raise typer.Exit(found.exit_code)
