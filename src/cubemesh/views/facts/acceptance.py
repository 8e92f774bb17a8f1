"""Acceptance of a machine: its badge, and the verdict in words."""

from __future__ import annotations

from html import escape

from cubemesh.experiments.acceptance.checks import AcceptanceVerdict
from cubemesh.views.formatting import day

COLOURS = {
    AcceptanceVerdict.PASS: "#0b6e4f",
    AcceptanceVerdict.FAIL: "#b3261e",
    AcceptanceVerdict.NOT_JUDGED: "#5c6670",
}
"""Behind the verdict; white text on each has a contrast of 5.5 or more."""
LABEL = "acceptance"
_LETTER, _MARGIN, _HEIGHT = 6.6, 8, 20


def badge_svg(verdict: AcceptanceVerdict | None, started_utc: str = "") -> str:
    """An SVG image that says the verdict and the date of the test; `none` for no test."""
    text = "none" if verdict is None else f"{verdict.value} · {day(started_utc)}"
    colour = COLOURS[verdict or AcceptanceVerdict.NOT_JUDGED]
    left, right = (round(_LETTER * len(words)) + 2 * _MARGIN for words in (LABEL, text))
    label = escape(f"{LABEL}: {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" '
        f'viewBox="0 0 {left + right} {_HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{label}</title>"
        f'<rect width="{left}" height="{_HEIGHT}" fill="#30363d"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14">{LABEL}</text>'
        f'<text x="{left + right / 2:g}" y="14">{escape(text)}</text>'
        "</g></svg>\n"
    )
