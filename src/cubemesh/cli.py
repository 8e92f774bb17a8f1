"""The command line: one verb, one public function.

stdout carries data, stderr carries progress and messages. Nothing heavy is imported before the verb
that needs it, so that `cubemesh --help` is instant.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from cubemesh import __version__
from cubemesh.errors import CubemeshError, UsageError

if TYPE_CHECKING:
    from cubemesh.experiments import Scale
    from cubemesh.results import Store

INTERRUPTED = 130
FailBelow = Annotated[
    float | None,
    typer.Option(
        "--fail-below",
        min=0.0,
        metavar="RATIO",
        help="Exit with 99 where the whole 95 % interval of B's throughput over A's is lower.",
    ),
]

app = typer.Typer(
    name="cubemesh",
    help="How fast does this machine train neural networks, what does it lose the time to, and how "
    "far will it scale?",
    epilog="Start with: cubemesh run quick && cubemesh report",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with its schema.")]
StoreAt = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH|URL", help="Where results are kept; default: XDG data."),
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cubemesh {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def probe(as_json: AsJson = False) -> None:
    """What this machine is: processors, memory, GPUs and links, software."""
    from cubemesh.machines import probe as probe_machine
    from cubemesh.views import terminal
    from cubemesh.views.plain import machine_json

    machine = probe_machine()
    _show(machine_json(machine), as_json, lambda console: terminal.print_machine(console, machine))


@app.command()
def networks(
    name: Annotated[str | None, typer.Argument(help="Show this one layer by layer.")] = None,
    as_json: AsJson = False,
) -> None:
    """The networks cubemesh can train; with a name, its layers and what they cost."""
    from cubemesh.views import catalogue

    plain, table = catalogue.networks() if name is None else catalogue.network(name)
    _show(plain, as_json, table)


@app.command()
def experiments(
    name: Annotated[str | None, typer.Argument(help="Show this one's settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """The questions cubemesh can ask; with a name, everything that can be set in it."""
    from cubemesh.views import catalogue

    plain, table = catalogue.experiments() if name is None else catalogue.experiment(name)
    _show(plain, as_json, table)


@app.command()
def published(
    network: Annotated[str | None, typer.Argument(help="Only figures of this network.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Only devices whose name holds this text.")
    ] = None,
    above_peak: Annotated[
        bool, typer.Option("--above-peak", help="Only figures above their device's peak.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="How many, the first ones.")] = None,
    as_json: AsJson = False,
) -> None:
    """What others published, and how much of their devices' peaks they reached."""
    from cubemesh.views.published import published as shown

    plain, table = shown(network, device, above_peak=above_peak, limit=limit)
    _show(plain, as_json, table)


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Experiments or suites.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short look.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Everything the documents did.")] = False,
    store: StoreAt = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what is stored already.")
    ] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="KEY=VALUE",
            help="Alternate with a program that differs in this; may be repeated.",
        ),
    ] = None,
    fail_below: FailBelow = None,
    pythons: Annotated[
        list[str] | None,
        typer.Option(
            "--python",
            metavar="FRAMEWORK=PATH",
            help="The Python that runs this framework's workers; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask one or more questions: measure what is missing, keep it, and print the answer."""
    from cubemesh.experiments.comparison import Gate, ratio_of_record
    from cubemesh.experiments.session import replays, run_names
    from cubemesh.views import plain, terminal
    from cubemesh.views.progress import TerminalProgress

    if quick and full:
        raise UsageError("--quick and --full exclude one another: give one of them, or neither.")
    if fail_below is not None and not against:
        raise UsageError(
            "--fail-below judges a comparison: add --against KEY=VALUE, or compare stored runs "
            "with `cubemesh compare A B --fail-below RATIO`."
        )
    with _open(store) as opened:
        answered = run_names(
            names,
            settings or [],
            scale=_scale(quick, full),
            store=opened,
            observer=TerminalProgress(terminal.stderr_console()),
            fresh=fresh,
            pythons=pythons or [],
            against=against or [],
        )
        answers = [*(a.answer for a in answered), *replays(answered, opened)]
    _show(
        plain.run_json(answered, answers),
        as_json,
        lambda console: terminal.print_answers(console, answers),
    )
    code = _run_exit_code(answered)
    if fail_below is not None:
        ratios = [r for a in answered for one in a.records if (r := ratio_of_record(one))]
        gate = Gate(below=fail_below, ratios=tuple(ratios))
        print(f"cubemesh: {gate.sentence}", file=sys.stderr)
        code = code or gate.exit_code
    raise typer.Exit(code)


@app.command()
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
    """Is B faster than A? Stored runs side by side, with what differs between them."""
    from contextlib import nullcontext

    from cubemesh.experiments.comparison import Gate, comparison_answer
    from cubemesh.results.compare import compare_texts
    from cubemesh.views import plain, terminal

    with (
        _open(store, reading=True) as a,
        _open(store_b, reading=True) if store_b else nullcontext(a) as b,
    ):
        found = compare_texts(first, second, a, b)
    gate = None if fail_below is None else Gate(below=fail_below, ratios=(found.ratio,))
    answer = comparison_answer(found, gate)
    _show(
        plain.comparison_json(found, answer, gate),
        as_json,
        lambda console: terminal.print_answer(console, answer),
    )
    raise typer.Exit(gate.exit_code if gate else 0)


@app.command()
def results(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Show this run; its id or how it begins.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Only runs of this network.")] = None,
    framework: Annotated[str | None, typer.Option(help="Only runs of this framework.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only runs that ended so.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the latest runs.")] = 50,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """The runs that are kept; with a run's id, everything about it."""
    from cubemesh.frameworks import entry
    from cubemesh.networks import canonical_name
    from cubemesh.views import plain, terminal

    filtered = bool(network or framework or outcome)
    network = network and canonical_name(network)
    if framework is not None:
        entry(framework)  # says which is the nearest to a name that is none
    with _open(store, reading=True) as opened:
        if run_id is not None:
            record = opened.record(run_id)
            _show(
                plain.envelope("record", record=plain.record_json(record)),
                as_json,
                lambda console: terminal.print_record(console, record),
            )
            return
        records = opened.records(network=network, framework=framework, outcome=outcome, limit=limit)
    _show(
        plain.envelope("results", records=[plain.record_json(r) for r in records]),
        as_json,
        lambda console: terminal.print_results(console, records, filtered=filtered),
    )


@app.command()
def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these experiments or documents; default: all there are."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "cubemesh-report.html"
    ),
    charts: Annotated[
        Path | None,
        typer.Option("--charts", metavar="DIR", help="Also write each chart as SVG and PNG."),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """One self-contained page of the latest answers, readable offline."""
    from cubemesh.views import publish

    with _open(store, reading=True) as opened:
        written = publish.report(opened, names or [], output, charts)
    _show(written.plain(), as_json, written.print)


def main() -> NoReturn:
    """Run the command line; every deliberate error becomes a message and its exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(standalone_mode=False)
    except CubemeshError as error:
        _end(str(error), error.exit_code)
    except typer.Exit as stop:
        code = stop.exit_code
    except Exception as error:
        code = _click_error(error)
    if code == INTERRUPTED:  # typer's word for a KeyboardInterrupt
        _end("interrupted; what was finished is kept, and the same command goes on.", code)
    sys.stdout.flush()
    sys.exit(code or 0)


def _terminated(number: int, frame: object) -> NoReturn:
    """SIGTERM, as Slurm and systemd send it, ends like Ctrl-C: workers first, nothing lost."""
    _end("terminated; what was finished is kept, and the same command goes on.", 128 + number)


def _end(message: str, code: int) -> NoReturn:
    print(f"cubemesh: {message}", file=sys.stderr)
    sys.exit(code)


def _click_error(error: Exception) -> int:
    """Wrong options are click's to explain; anything else is a bug and keeps its traceback."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):
        show()
        return code
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    raise error


def _open(location: str | None, *, reading: bool = False) -> Store:
    from cubemesh.results import Store

    return Store.open(location, must_exist=reading, read_only=reading)


def _scale(quick: bool, full: bool) -> Scale | None:
    from cubemesh.experiments import Scale

    if quick:
        return Scale.QUICK
    return Scale.FULL if full else None


def _show(plain: Any, as_json: bool, draw: Any) -> None:
    """One JSON object on stdout, or the same for people."""
    if as_json:
        import json

        json.dump(plain, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from cubemesh.views import terminal

    draw(terminal.stdout_console())


def _run_exit_code(answered: Any) -> int:
    """0 when every run ended as an answer; 1 when one crashed, was killed or timed out, or when
    nothing at all could be measured."""
    records = [r for a in answered for r in a.records]
    faults = [r for r in records if not r.outcome.status.expected]
    return 1 if faults or not any(r.ok for r in records) else 0
