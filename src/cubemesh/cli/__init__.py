"""The command line: one verb, one public function.

stdout carries data, stderr carries progress and messages. Nothing heavy is imported before the verb
that needs it, so that `cubemesh --help` is instant.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from cubemesh import __version__
from cubemesh.cli import exchange, expect, kept, launch, look, measure, training, tuning
from cubemesh.errors import CubemeshError

INTERRUPTED = 130

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
for verb in (
    *(look.probe, look.networks, look.experiments, look.published),
    *(measure.run, training.train, tuning.tune, measure.compare),
    *(exchange.collectives, expect.predict),
    *(launch.launch, kept.results, kept.report),
):
    app.command()(verb)
app.command("import")(exchange.import_)  # a word that Python keeps for itself


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
