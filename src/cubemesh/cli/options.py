"""Options that several verbs share, and the output of every verb."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cubemesh.cli import completion
from cubemesh.errors import UsageError
from cubemesh.untrusted import clean

if TYPE_CHECKING:
    from rich.console import Console

    from cubemesh.api.export import ExportedFile

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
MOST_MESSAGE = 4000
"""Most characters of a message."""
_MOST_NUMBERS, _MOST_LETTERS = 1000, 12

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with its schema.")]
StoreAt = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="Result store; default: $XDG_DATA_HOME/cubemesh.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; may be repeated.",
        autocompletion=completion.settings,
    ),
]
InputShape = Annotated[
    str,
    typer.Option(
        "--input-shape",
        metavar="3x224x224",
        help="Input of a network of your own: CHANNELSxHEIGHTxWIDTH, or LENGTH:VOCABULARY of "
        "tokens.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Measure again what is stored.")]
Wait = Annotated[
    str,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Wait up to this long, such as 10m, for a device that another run uses.",
    ),
]
Pythons = Annotated[
    list[str] | None,
    typer.Option(
        "--python",
        metavar="FRAMEWORK=PATH",
        help="Python interpreter for the workers of this framework; may be repeated.",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Distribute the devices over these hosts (ssh or srun)."),
]
FailBelow = Annotated[
    float | None,
    typer.Option(
        "--fail-below",
        min=0.0,
        metavar="RATIO",
        help="Exit with 99 if the whole 95 % interval of the throughput ratio (B over A, or this "
        "over the baseline) is below RATIO.",
    ),
]

ExportTo = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="FILE",
        help="Write the runs into a file for other tools; - is standard output.",
    ),
]
ExportFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Format of --export; default: by the end of the file's name.",
        autocompletion=completion.formats,
    ),
]


def check_export(file: str | None, name: str | None, as_json: bool) -> None:
    """UsageError, before anything is measured, for a file or format that cannot be exported."""
    from cubemesh.exports import STDOUT, format_of

    if file is None:
        if name is not None:
            raise UsageError(f"--format {name} needs a file: add --export FILE.")
        return
    if as_json and file == STDOUT:
        raise UsageError(
            "--json and --export - both write to standard output: give --export a file."
        )
    format_of(file, name)


def write_export(
    runs: Any, file: str, name: str | None, store: str | None, store_b: str | None = None
) -> ExportedFile:
    """Write the file of `--export`; its name goes to stderr."""
    from cubemesh.api.export import export

    done = export(runs, file, format=name, store=store, store_b=store_b)
    count = f"{done.runs} run{'' if done.runs == 1 else 's'}"
    tell(f"wrote {count} to {file} ({done.format})")
    return done


def tell(message: str) -> None:
    """A message on stderr, sanitized: it may quote a file, a host or another program."""
    print(f"cubemesh: {clean(message, MOST_MESSAGE)}", file=sys.stderr)


def show(document: Any, as_json: bool, draw: Callable[[Console], None]) -> None:
    """Print the document as one JSON object, or draw the page."""
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from cubemesh.views.terminal import stdout_console

    draw(stdout_console())


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers of an option such as "0,1,4" or "0-3"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > _MOST_LETTERS:
            raise UsageError(
                f"{option} {text}: give numbers, as in {option} 1,2,4 or {option} 0-3."
            )
        end = int(last) if dash else int(first)
        if not 0 <= end - int(first) < _MOST_NUMBERS:
            raise UsageError(f"{option} {text}: {part} is not a range of at most {_MOST_NUMBERS}.")
        numbers += range(int(first), end + 1)
    return numbers
