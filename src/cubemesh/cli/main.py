"""The command line `cubemesh`: its verbs, its error messages and its exit codes.

stdout carries data, stderr carries progress and messages. A verb imports what it needs when it
runs, so that `cubemesh --help` is instant.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from typing import Annotated, NoReturn, TextIO

import typer

from cubemesh import __version__
from cubemesh.cli.audit import audit
from cubemesh.cli.catalogue import experiments, networks, published
from cubemesh.cli.collectives import collectives
from cubemesh.cli.compare import compare
from cubemesh.cli.completion import join_assignments
from cubemesh.cli.import_ import bundle, import_
from cubemesh.cli.inference import build, export, infer
from cubemesh.cli.jobs import agent, jobs, submit, watch
from cubemesh.cli.launch import launch
from cubemesh.cli.machine import accept, doctor, probe
from cubemesh.cli.options import INTERRUPTED, tell
from cubemesh.cli.predict import predict
from cubemesh.cli.report import report
from cubemesh.cli.results import results
from cubemesh.cli.run import run
from cubemesh.cli.serve import serve, users
from cubemesh.cli.train import prepare, train
from cubemesh.cli.tune import tune
from cubemesh.errors import CubemeshError, StoreWarning
from cubemesh.termination import (
    NO_THREAD,
    PROCESS_LIMIT,
    Terminated,
    can_start_threads,
    handle_signals,
)
from cubemesh.untrusted import clean
from cubemesh.views import output_streams
from cubemesh.views.ascii import make_encodable

_SURROUNDINGS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EFBIG),
)
"""Errors of the machine that any system call may have: no room, no permission, no process."""
_SAVED = "Finished runs are saved; re-run the same command to continue."
_PROCESS_LIMIT = f"{NO_THREAD.capitalize()}. {PROCESS_LIMIT} {_SAVED}"
_HELP = {"help_option_names": ["-h", "--help"]}
"""Also of every command, which `launch` and tests parse without the others."""

app = typer.Typer(
    name="cubemesh",
    help="Measure how fast a machine trains neural networks, where the time goes, and how it "
    "scales.",
    epilog="Start with: cubemesh run quick && cubemesh report",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
for verb in (
    *(doctor, probe, accept, networks, experiments, published),
    *(run, train, prepare, tune, compare, collectives, predict),
    *(launch, results, report, bundle, serve, audit),
    *(submit, jobs, watch, agent, users),
    *(export, build, infer),
):
    app.command(context_settings=_HELP)(verb)
app.command("import", context_settings=_HELP)(import_)


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
    handle_signals()
    closed = sys.stdout is None
    output_streams.prepare()
    _show_store_warnings()
    join_assignments()
    make_encodable()
    try:
        code = app(standalone_mode=False)
    except CubemeshError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        tell(f"Terminated. {_SAVED}")
        raise
    except typer.Exit as stop:
        code = stop.exit_code
    except Exception as error:
        code = _click_error(error)
    if code == INTERRUPTED:  # typer's code for a KeyboardInterrupt
        if not can_start_threads():
            _end(_PROCESS_LIMIT, 1)
        _end(f"Interrupted. {_SAVED}", code)
    failed = output_streams.failure()
    if closed or failed is not None:
        _end(_unwritten(failed), code or 1)
    sys.exit(code or 0)


def _unwritten(failed: OSError | None) -> str:
    """The message about a stdout that could not be written; none about a pipe without a reader."""
    if isinstance(failed, BrokenPipeError):
        return ""
    why = "it is closed" if failed is None else failed.strerror
    return (
        f"The output cannot be written to stdout: {why}. Nothing that was measured is lost: "
        "`cubemesh results` lists it."
    )


def _show_store_warnings() -> None:
    """Print what is to know about the store as one line on stderr, every time."""
    others = warnings.showwarning
    warnings.simplefilter("always", StoreWarning)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, StoreWarning):
            tell(str(message))
        else:
            others(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def _end(message: str, code: int) -> NoReturn:
    if message:
        tell(message)
    sys.exit(code)


def _click_error(error: Exception) -> int:
    """Print an error of click's about options; another error is a bug and keeps its traceback."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):
        if isinstance(message := getattr(error, "message", None), str):
            error.message = clean(message)  # type: ignore[attr-defined]
        show()
        return code
    if isinstance(error, OSError) and (failed := output_streams.failure()) is not None:
        _end(_unwritten(failed), 1)
    if isinstance(error, BrokenPipeError):
        return 1
    if (message := _surroundings(error)) is not None:
        _end(message, 1)
    raise error


def _surroundings(error: Exception) -> str | None:
    """The message about an error of the machine; None for one of the program."""
    if isinstance(error, MemoryError):
        return "There is not enough memory. A limit (ulimit -v) or other programs may be the cause."
    if isinstance(error, RuntimeError) and not can_start_threads():
        return _PROCESS_LIMIT
    if not isinstance(error, OSError):
        return None
    try:
        os.getcwd()
    except OSError:
        return "The working folder no longer exists. Change to another one, or name whole paths."
    if error.errno not in _SURROUNDINGS:
        return None
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror or error}. {_SAVED}"
