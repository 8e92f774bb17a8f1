"""Diagnosis of an installation and its machine, in a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.doctor import Component, Diagnosis
from cubemesh.machines.system_checks import Check
from cubemesh.schema.serialization import to_plain
from cubemesh.untrusted import clean
from cubemesh.views import terminal
from cubemesh.views.formatting import machine_line
from cubemesh.views.json_output import envelope


def document(found: Diagnosis) -> dict[str, Any]:
    """The JSON of `cubemesh doctor`."""
    return envelope(
        "diagnosis",
        version=found.version,
        python=found.python,
        executable=found.executable,
        machine_id=found.machine.machine_id,
        components=[to_plain(c) for c in found.components],
        checks=[to_plain(c) for c in found.checks],
    )


def print_diagnosis(console: Console, found: Diagnosis) -> None:
    """What is installed, what is missing with its command, and problems with their remedies."""
    title = f"cubemesh {found.version}, Python {found.python} ({found.executable})"
    console.print(Text(clean(title), style="bold"), soft_wrap=True)
    console.print(Text(machine_line(found.machine)), soft_wrap=True)
    here = [c for c in found.components if c.version is not None]
    terminal.print_section(console, "Installed", [_named(c) for c in here])
    _print_remedies(
        console,
        "Not installed",
        [(f"{c.name}: {c.purpose}.", c.install) for c in found.missing],
    )
    print_problems(console, found.problems)
    fine = [(c.code, clean(c.found)) for c in found.checks if not c.problem]
    terminal.print_section(console, "No problem", fine)


def print_problems(console: Console, problems: Sequence[Check]) -> None:
    """What distorts measurements here, each with its remedy; nothing without any."""
    _print_remedies(
        console,
        "Problems of this machine's measurements",
        [(f"! {c.found}", c.remedy) for c in problems],
    )


def _named(component: Component) -> tuple[str, str]:
    version = f" {component.version}" if component.version else ""
    return clean(component.name), clean(f"{version.strip() or 'yes'} ({component.purpose})")


def _print_remedies(console: Console, title: str, pairs: Sequence[tuple[str, str]]) -> None:
    if not pairs:
        return
    console.print()
    console.print(Text(title, style=terminal.CAUTION), soft_wrap=True)
    for text, remedy in pairs:
        console.print(Text(f"  {clean(text)}"), soft_wrap=True)
        console.print(Text(f"      {clean(remedy)}", style=terminal.ACCENT), soft_wrap=True)
