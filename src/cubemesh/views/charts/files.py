"""Charts as SVG, PNG and CSV files, or as part of a page, rendered by vl-convert without a browser.

Files have the light colours on white; charts in a page keep CSS variables.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.metadata
import io
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cubemesh.durable_files import replace_file
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.schema import Answer, Chart
from cubemesh.termination import PROCESS_LIMIT, can_start_threads
from cubemesh.units import format_bytes
from cubemesh.untrusted import clean
from cubemesh.user_folders import cache_folder
from cubemesh.views.charts.axes import gap_reason
from cubemesh.views.charts.vega import vega_lite
from cubemesh.views.theme import LIGHT, resolved

FORMATS = ("svg", "png", "csv")
_CSV_COLUMNS = ("line", "x", "y", "low", "high", "unit", "kind", "missing", "run")
_PIXELS_PER_UNIT = 2.0
_THREADS = 16
"""Threads that vl-convert may start, of its runtime and of its JavaScript engine."""
_CHILD = """
import json, sys, vl_convert
function, arguments, options = json.load(sys.stdin)
drawn = getattr(vl_convert, function)(*arguments, **options)
sys.stdout.buffer.write(drawn.encode() if isinstance(drawn, str) else drawn)
"""


def write_charts(
    directory: Path,
    answers: Sequence[Answer],
    formats: Sequence[str] = FORMATS,
    *,
    caption: Callable[[Answer, Chart], str] | None = None,
) -> list[Path]:
    """Write every chart of the answers into `directory` (made where it is missing).

    A file has the name of its chart; where two charts have one name, the second is prefixed by its
    experiment's. `caption` is the line below the title: machine, precision and date.
    Returns the paths in the order they were written. UsageError for a format not in `FORMATS`.
    """
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"'{name}' is not a format of charts. Known: {', '.join(FORMATS)}.")
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for stem, answer, chart in _stems(answers):
        line = caption(answer, chart) if caption else ""
        for name in formats:
            path = directory / f"{stem}.{name}"
            path.write_bytes(_encoded(chart, name, line))
            paths.append(path)
    return paths


def inline_svg(spec: dict[str, Any]) -> str:
    """The drawing of a specification as an SVG element for a page; colours stay variables."""
    return _call("vegalite_to_svg", spec).decode()


def svg_as_png(svg: str) -> bytes:
    """A drawing as a PNG image."""
    return _call("svg_to_png", svg, scale=_PIXELS_PER_UNIT)


def browser_bundle() -> str:
    """The JavaScript that draws specifications in a page: Vega, Vega-Lite, Vega-Embed. It is made
    once for each version of vl-convert, and kept in the cache folder where that can be written."""
    try:
        path = (
            cache_folder() / "views" / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
        )
    except UsageError:  # there is no home folder
        return _new_bundle()
    with suppress(OSError, ValueError):
        digest, _, known = path.read_text("utf-8").partition("\n")
        if digest == _digest(known):
            return known
    bundle = _new_bundle()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{_digest(bundle)}\n{bundle}".encode())
    return bundle


def _new_bundle() -> str:
    return _call("javascript_bundle", "window.vegaEmbed = vegaEmbed;").decode()


@functools.cache
def _check_threads() -> None:
    """CubemeshError where vl-convert could not start its threads: it panics, or aborts the
    process."""
    if not can_start_threads(_THREADS):
        raise CubemeshError(
            f"Charts cannot be drawn: their renderer, vl-convert, needs up to {_THREADS} threads. "
            f"{PROCESS_LIMIT}"
        )


def _call(function: str, *arguments: Any, **options: Any) -> bytes:
    """What a function of vl-convert returns. Where the address space is limited it is called in a
    process of its own: without room its JavaScript engine aborts the process. CubemeshError then.
    """
    _check_threads()
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes == resource.RLIM_INFINITY:
        import vl_convert  # here: it takes 30 MiB

        drawn: str | bytes = getattr(vl_convert, function)(*arguments, **options)
        return drawn.encode() if isinstance(drawn, str) else drawn
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=json.dumps((function, arguments, options)).encode(),
            capture_output=True,
            check=False,
        )
    except (OSError, MemoryError):
        child = None
    if child is None or child.returncode:
        raise CubemeshError(
            f"Charts cannot be drawn: the address space of a process is limited to "
            f"{format_bytes(limit_bytes)} (ulimit -v), and their renderer, vl-convert, reserves "
            "far more than it uses. Lift the limit with `ulimit -v unlimited`, or limit the "
            "memory by a control group."
        )
    return child.stdout


def _digest(text: str) -> str:
    return f"// {hashlib.sha256(text.encode()).hexdigest()}"


def chart_csv(chart: Chart) -> str:
    """The points of a chart as CSV: one row each, a missing one with its reason."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for line in chart.lines:
        for p in line.points:
            reason = gap_reason(chart, p) or ""
            y, low, high = (None, None, None) if reason else (p.y, p.low, p.high)
            row = (clean(line.name), p.x, y, low, high, chart.y.unit, line.role, reason, p.run_id)
            writer.writerow([clean(v) if isinstance(v, str) else v for v in row])
    return text.getvalue()


def file_stem(chart: Chart) -> str:
    """The name of a chart as a file name without its ending."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", chart.name).strip("-") or "chart"


def _encoded(chart: Chart, name: str, caption: str) -> bytes:
    if name == "csv":
        return chart_csv(chart).encode("utf-8", errors="backslashreplace")
    spec = resolved(vega_lite(chart, caption=caption))
    spec["config"] = spec["config"] | {"background": LIGHT["paper"], "padding": 16}
    if name == "svg":
        return _call("vegalite_to_svg", spec)
    return _call("vegalite_to_png", spec, scale=_PIXELS_PER_UNIT)


def _stems(answers: Sequence[Answer]) -> list[tuple[str, Answer, Chart]]:
    stems: dict[str, tuple[Answer, Chart]] = {}
    for answer in answers:
        for chart in answer.charts:
            stem = file_stem(chart)
            if stem in stems:
                experiment = re.sub(r"[^A-Za-z0-9-]+", "-", answer.experiment)
                stem = f"{experiment}-{stem}"
            plain, count = stem, 1
            while stem in stems:
                count += 1
                stem = f"{plain}-{count}"
            stems[stem] = answer, chart
    return [(stem, answer, chart) for stem, (answer, chart) in stems.items()]
