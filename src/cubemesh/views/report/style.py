"""Style of the report, with its colours; the workbench has the same."""

from __future__ import annotations

import functools
from importlib import resources

from cubemesh.views.theme import DARK, LIGHT, css_variables


def report_style() -> str:
    """The style sheet: colours of light and dark pages, then the rules."""
    light, dark = css_variables(LIGHT), css_variables(DARK)
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
        # Paper is white, also under a dark scheme.
        f"@media print{{:root{{color-scheme:light;{light}}}}}\n"
        # So are saved charts.
        f".paper{{{light}}}\n" + template_file("report.css")
    )


@functools.cache
def template_file(name: str) -> str:
    """The text of a file next to the templates of the report."""
    return resources.files("cubemesh.views").joinpath("templates", name).read_text("utf-8")
