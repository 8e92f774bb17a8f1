"""What verbs share: options, the store they open, and how they show what they found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cubemesh.store import Store

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with its schema.")]
StoreAt = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH|URL", help="Where results are kept; default: XDG data."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what is stored already.")]
Pythons = Annotated[
    list[str] | None,
    typer.Option(
        "--python",
        metavar="FRAMEWORK=PATH",
        help="The Python that runs this framework's workers; may be repeated.",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…", help="Share the devices among these hosts, reached by ssh (or srun)."
    ),
]
FailBelow = Annotated[
    float | None,
    typer.Option(
        "--fail-below",
        min=0.0,
        metavar="RATIO",
        help="Exit with 99 where the whole 95 % interval of B's throughput over A's is lower.",
    ),
]


def open_store(location: str | None, *, reading: bool = False) -> Store:
    """The store at `location`; one that is only read must exist."""
    from cubemesh.store import Store

    return Store.open(location, must_exist=reading, read_only=reading)


def on_hosts(hosts: str | None) -> list[str]:
    """The setting that `--hosts` stands for."""
    return [] if hosts is None else [f"hosts={hosts}"]


def show(plain: Any, as_json: bool, draw: Any) -> None:
    """One JSON object on stdout, or the same for people."""
    if as_json:
        import json

        json.dump(plain, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from cubemesh.views import terminal

    draw(terminal.stdout_console())
