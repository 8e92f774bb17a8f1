"""A curve of a panel as an attribute of an SVG path: its points, or letters that a script reads."""

from __future__ import annotations

import string

import numpy as np

from cubemesh.views.charts.thinning import Floats, Indices, seen_points

HEIGHTS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""A letter for each height in letters, in pixels below `top`."""
_CODES = np.frombuffer(HEIGHTS.encode(), dtype=np.uint8)
_NEXT, _GAP = ord(" "), ord("|")


def curve(x: Floats, y: Floats, *, top: int, letters: bool = False) -> str:
    """` d="M…"` with the points of a curve in pixels that can be seen; of a thinned one to whole
    pixels.

    With `letters` a thinned one is ` data-curve="…"`, a quarter as long when compressed: a letter
    for each point, a space for the next column of pixels, and a bar for the first column after a
    gap. The script of the page makes a path of it.
    """
    seen = seen_points(x, y)
    x, y = x[seen.index], y[seen.index]
    if not seen.thinned:
        points = [f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        return f' d="{_path(points, seen.begins)}"'
    column, height = np.floor(x).astype(np.int64), np.rint(y).astype(np.int64)
    if letters:
        return f' data-curve="{_letters(column, height - top, seen.begins)}"'
    points = [f"{a} {b}" for a, b in zip(column.tolist(), height.tolist(), strict=True)]
    return f' d="{_path(points, seen.begins)}"'


def _path(points: list[str], begins: tuple[int, ...]) -> str:
    """The points joined by lines; one between two gaps is a dash."""
    ends = (*begins[1:], len(points))
    return "".join(
        f"M{'L'.join(points[a:b])}{'h1' if b - a == 1 else ''}"
        for a, b in zip(begins, ends, strict=True)
    )


def _letters(column: Indices, below: Indices, begins: tuple[int, ...]) -> str:
    at = column + np.arange(column.size)
    text = np.full(int(at[-1]) + 1, _NEXT, dtype=np.uint8)
    text[at] = _CODES[np.clip(below, 0, len(HEIGHTS) - 1)]
    text[at[list(begins[1:])] - 1] = _GAP
    return text.tobytes().decode("ascii")
