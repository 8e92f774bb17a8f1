"""Audit log: who did what to which job, newest first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cubemesh.team.audit_log import AuditEntry, entries
from cubemesh.untrusted import clean
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter

PARAMETERS = (
    Parameter(name="who", summary="Only what this person did."),
    Parameter(name="job", summary="Only what was done to this job, by its number."),
    Parameter(name="before", summary="Cursor of the page before: its `next`."),
    Parameter(name="limit", summary="Entries a page, 1 to 1000; default: 100."),
)
_LIMIT, _MOST = 100, 1000
_MOST_NUMBER = 10**9 - 1


def _page(asked: Asked) -> tuple[list[AuditEntry], int | None]:
    limit = asked.number("limit", _LIMIT, _MOST)
    found = entries(
        asked.store.database,
        limit=limit + 1,
        before=asked.number("before", 1, _MOST_NUMBER) if asked.one("before") else None,
        who=asked.one("who") or None,
        job_id=asked.number("job", 1, _MOST_NUMBER) if asked.one("job") else None,
    )
    return found[:limit], found[limit - 1].number if len(found) > limit else None


def document(asked: Asked) -> dict[str, Any]:
    """One page of entries; `next` is the `before` of the following one."""
    found, following = _page(asked)
    return envelope("audit_log", entries=[asdict(entry) for entry in found], next=following)


def view(asked: Asked) -> dict[str, Any]:
    """The entries as a table."""
    found, following = _page(asked)
    given = {one.name: asked.all(one.name) for one in PARAMETERS}
    return {
        "rows": [
            {
                "said_utc": entry.said_utc,
                "who": clean(entry.who, 200),
                "person": entry.who,
                "action": clean(entry.action, 40),
                "job_id": entry.job_id,
                "detail": clean(entry.detail, 300),
            }
            for entry in found
        ],
        "filters": [text for name in ("who", "job") for text in given[name]],
        "next": {**given, "before": following} if following else None,
    }
