"""Files of a topology: the drawing as SVG or PNG, or its facts and tables as text, by the suffix of
the path."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from cubemesh.api.probe import SystemTopology
from cubemesh.errors import DataError, UsageError
from cubemesh.views.systems import print_system
from cubemesh.views.topology.drawing import draw_topology

_TEXT_WIDTH = 120


def check_path(path: Path) -> None:
    """UsageError for a suffix that is not one of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: give the drawing a name that ends in {', '.join(FORMATS)}.")


def write_topology(path: Path, found: SystemTopology) -> None:
    """Write the file. UsageError for another suffix, or for a PNG without the extra `views`;
    DataError where it cannot be written."""
    check_path(path)
    content = FORMATS[path.suffix.lower()](found)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _drawing(found: SystemTopology) -> str:
    return draw_topology(found.topology, found.analysis.rings, title=found.title)


def _svg(found: SystemTopology) -> bytes:
    return _drawing(found).encode()


def _png(found: SystemTopology) -> bytes:
    from cubemesh.views.charts.files import svg_as_png

    return svg_as_png(_drawing(found))


def _text(found: SystemTopology) -> bytes:
    file = io.StringIO()
    print_system(Console(file=file, width=_TEXT_WIDTH, color_system=None, highlight=False), found)
    return file.getvalue().encode()


FORMATS: Mapping[str, Callable[[SystemTopology], bytes]] = {
    ".svg": _svg,
    ".png": _png,
    ".txt": _text,
}
