"""Inconsistencies of an audit, for the terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from cubemesh.audit.inconsistency import INCONSISTENCIES, Inconsistency
from cubemesh.schema.serialization import to_plain
from cubemesh.untrusted import clean
from cubemesh.views.json_output import envelope
from cubemesh.views.terminal import ACCENT, CAUTION, SOFT

if TYPE_CHECKING:
    from cubemesh.api.audit import AuditResult


def audit_json(found: AuditResult) -> dict[str, Any]:
    """The document of `cubemesh audit`."""
    return envelope(
        "audit",
        records=found.records,
        answers=found.answers,
        inconsistencies=[
            {**to_plain(one), "meaning": INCONSISTENCIES[one.code]} for one in found.inconsistencies
        ],
    )


def print_audit(console: Console, found: AuditResult) -> None:
    """Each inconsistency: code, both figures, where it is shown, remedy. One that two answers show
    alike is printed once."""
    different = {(one.code, one.text, _place(one)): one for one in found.inconsistencies}.values()
    for one in different:
        text = Text(f"{one.code}  ", style=f"bold {CAUTION}")
        text.append(clean(one.text), style="default")
        console.print(text, soft_wrap=True)
        console.print(Text(f"  {clean(_place(one))}", style=SOFT), soft_wrap=True)
        console.print(Text(f"  {clean(one.remedy)}", style=ACCENT), soft_wrap=True)
    number = len(different)
    checked = f"{found.records} runs and {found.answers} answers checked"
    result = "nothing inconsistent" if not number else f"{number} inconsistent"
    console.print(Text(f"{checked}: {result}"), soft_wrap=True)


def _place(one: Inconsistency) -> str:
    where = one.where
    parts = [
        where.answer,
        f"table “{where.table}”" if where.table else "",
        f"finding “{where.finding}”" if where.finding else "",
        f"run{'s' if len(where.run_ids) > 1 else ''} {', '.join(where.run_ids)}"
        if where.run_ids
        else "",
    ]
    return ", ".join(filter(None, parts))
