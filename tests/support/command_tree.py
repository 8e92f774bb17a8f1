"""The tree of commands, built once in a process: typer builds all of them again for each call, for
a tenth of a second, and an invocation changes none of them."""

import functools
import sys
import typing

import typer.main


def build_once() -> None:
    """Let all further calls in this process, and in its forks, share the commands."""
    if not hasattr(typer.main.get_command, "cache_info"):
        get_command: typing.Any = functools.cache(typer.main.get_command)
        typer.main.get_command = get_command
        if testing := sys.modules.get("typer.testing"):
            testing._get_command = get_command  # type: ignore[attr-defined]


def forget() -> None:
    """Build them again at the next call."""
    getattr(typer.main.get_command, "cache_clear", lambda: None)()
