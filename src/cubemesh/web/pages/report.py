"""Report: today's report of the store, the file that `cubemesh report` writes."""

from __future__ import annotations

import html
import threading
from typing import Any

from starlette.responses import HTMLResponse

from cubemesh.api.report import Report, answerable
from cubemesh.api.report import report as latest_answers
from cubemesh.errors import UsageError
from cubemesh.views.json_output import answer_json, envelope
from cubemesh.web.page import Asked, Parameter

PARAMETERS = (
    Parameter(
        name="machine", summary="Id or unique prefix of a machine; default: the one used last."
    ),
)
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEAD_BYTES = 2000
"""The policy is in so many bytes of the page."""
_made: dict[tuple[Any, ...], bytes] = {}
_lock = threading.Lock()


def _report(asked: Asked) -> Report | None:
    """None for a store without an answer."""
    if not answerable(asked.store.experiment_runs(), ()):
        return None
    return latest_answers(machine_id=asked.one("machine"), store=asked.store)


def document(asked: Asked) -> dict[str, Any]:
    """The answers of the report."""
    found = _report(asked)
    return envelope(
        "report",
        machine_id=None if found is None else found.machine.machine_id,
        answers=[] if found is None else [answer_json(answer) for answer in found.answers],
        other_machines=[] if found is None else [m.machine_id for m in found.other_machines],
    )


def view(asked: Asked) -> dict[str, Any]:
    """The page itself; made again when an experiment run has changed. One at a time, as a report
    of many runs takes much memory."""
    runs = asked.store.experiment_runs()
    state = tuple((one.experiment_run_id, len(one.run_ids), one.complete) for one in runs)
    key = asked.store.name, asked.one("machine"), state
    with _lock:
        if key not in _made:
            found = _report(asked)
            if found is None:
                return {"response": None}
            _made.clear()
            from cubemesh.views.report.render import render

            _made[key] = render(found).encode("utf-8", errors="backslashreplace")
        content = _made[key]
    return {
        "response": HTMLResponse(content, headers={"content-security-policy": _policy(content)})
    }


def _policy(page: bytes) -> str:
    """The policy that the page names, with what only a header can say."""
    head = html.unescape(page[:_HEAD_BYTES].decode("utf-8", errors="replace"))
    _, start, rest = head.partition("script-src ")
    scripts, end, _ = rest.partition(";")
    if not start or not end:
        raise UsageError("The report has no policy.")
    return _POLICY.format(scripts=scripts)
