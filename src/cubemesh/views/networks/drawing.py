"""Drawing of a network, as wide as a telephone: a row for each layer, a lane for each value that is
still read, as in the graph of a version control system.

A row has the name, type and settings of a layer, the shape of one sample of its result and its
parameters. Blocks that repeat are drawn once, with their number (blocks.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from cubemesh.api.catalogue import NetworkLayers
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.layers import Shape
from cubemesh.units import format_count, format_quantity
from cubemesh.untrusted import clean
from cubemesh.views.networks.blocks import DrawnRow, folded_rows, grouped
from cubemesh.views.topology.svg import Drawing, Point, line, number

WIDTH, ROW, HEADER, EDGE = 390.0, 40.0, 76.0, 14.0
LANE, MOST_FOR_LANES = 13.0, 110.0
"""Distance of two lanes, and the width of all, above which they move together."""
_RIGHT = 92.0
"""Width of the column of shapes and parameters."""
_BOLD, _PLAIN = 6.9, 5.5
"""Estimated width of a letter of a name, and of the text below it."""
_ABBREVIATIONS = {
    "convolution": "conv",
    "padding": "pad",
    "batch-norm": "BN",
    "local-response-norm": "LRN",
    "relu": "ReLU",
    ", no bias": "",
}
"""As papers write them, so that a line has room; a tooltip has the words in full."""
_COLOURS = ("c1", "c5", "c2", "c3", "c4", "c6", "c7", "c8")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A row with the lanes that reach it."""

    row: DrawnRow
    lane: int
    arriving: tuple[int, ...]
    """Lanes of the values that it reads."""
    passing: tuple[int, ...]
    """Lanes that lead past it."""
    begins: int = 0
    """Rows of the repeated group that begins here; 0 for none."""
    times: int = 1


def draw_network(found: NetworkLayers) -> str:
    """The SVG of a network layer by layer."""
    lines = _lines(found)
    lanes = 1 + max(max((line.lane, *line.arriving, *line.passing)) for line in lines)
    step = min(LANE, MOST_FOR_LANES / lanes)
    summary = found.summary
    drawing = Drawing(WIDTH, HEADER + ROW * len(lines) + EDGE, in_page=False)
    drawing.text((EDGE, 24), _short(summary.name, 38), size=16, weight=600, anchor="start")
    caption = (
        f"{format_count(summary.parameters)} parameters, "
        f"{format_quantity(summary.forward_flops, 'FLOP')} forward per sample"
    )
    drawing.text((EDGE, 44), caption, colour="soft", size=11.5, anchor="start")
    hint = "right: values of one sample, parameters"
    drawing.text((EDGE, 60), hint, colour="soft", size=10.5, anchor="start")
    painter = _Painter(drawing, step, EDGE + step * lanes + 6)
    for place, one in enumerate(lines):
        if one.begins:
            painter.frame(place, one.begins)
    for place, one in enumerate(lines):
        painter.edges(place, one)
    for place, one in enumerate(lines):
        painter.row(place, one)
    return drawing.svg(f"{summary.name}: {caption}, {format_count(summary.layers)} layers")


@dataclass(frozen=True)
class _Painter:
    """Draws rows at their places."""

    drawing: Drawing
    step: float
    """Distance of two lanes."""
    text_x: float

    def at(self, lane: int, place: int) -> Point:
        """The point of a lane in a row."""
        return EDGE + self.step * lane, HEADER + ROW * place + ROW / 2

    def frame(self, place: int, rows: int) -> None:
        """The background of a group that repeats."""
        middle = WIDTH / 2, HEADER + ROW * place + ROW * rows / 2
        size = WIDTH - 8, ROW * rows - 3
        self.drawing.box(middle, size, fill="wash", stroke="line")

    def edges(self, place: int, one: _Line) -> None:
        """What leads from the row above to this one, and past it."""
        if place == 0:
            return
        for lane in one.passing:
            ends = [self.at(lane, place - 1), self.at(lane, place)]
            self.drawing.path(line(ends), _colour(lane), 1.8)
        end = self.at(one.lane, place)
        for lane in one.arriving:
            begin = self.at(lane, place - 1)
            half = (begin[1] + end[1]) / 2
            curve = (
                f"M{number(begin[0])} {number(begin[1])}C{number(begin[0])} {number(half)} "
                f"{number(end[0])} {number(half)} {number(end[0])} {number(end[1])}"
            )
            self.drawing.path(curve, _colour(lane), 1.8)

    def row(self, place: int, one: _Line) -> None:
        """The dot and the texts of a row; all of them show when the pointer rests on it."""
        row, (x, y) = one.row, self.at(one.lane, place)
        words = " + ".join((" ".join(filter(None, (row.layer, row.settings))), *row.followed_by))
        shape, count = _shape(row.shape), format_count(row.parameters) if row.parameters else ""
        self.drawing.box((x, y), (9, 9), fill=_colour(one.lane), stroke="paper", round_by=4.5)
        room = WIDTH - EDGE - _RIGHT - self.text_x
        times = f"{one.times} × " if one.begins else ""
        first = _short(times + row.name, int(room / _BOLD))
        self.drawing.text((self.text_x, y - 8), first, size=12, weight=600, anchor="start")
        wide = WIDTH - EDGE - self.text_x - _PLAIN * (len(count) + 2)
        second = _short(_abbreviated(words), int(wide / _PLAIN))
        self.drawing.text((self.text_x, y + 8), second, colour="soft", size=11, anchor="start")
        right = WIDTH - EDGE
        self.drawing.text((right, y - 8), shape, size=11, anchor="end")
        self.drawing.text((right, y + 8), count, colour="soft", size=11, anchor="end")
        whole = escape(clean(f"{times}{row.name}: {words}; {shape}; {count or 'no'} parameters"))
        self.drawing.parts.append(
            f'<rect x="0" y="{number(y - ROW / 2)}" width="{number(WIDTH)}" '
            f'height="{number(ROW)}" fill-opacity="0"><title>{whole}</title></rect>'
        )


def _lines(found: NetworkLayers) -> list[_Line]:
    """Every row with its lane: that of a value that is read no more, else the first free one."""
    rows, frames, names = _rows(found)
    readers = Counter(names.get(name, name) for row in rows for name in row.inputs)
    lanes: dict[int, str] = {}
    lines = []
    for place, row in enumerate(rows):
        reads = {names.get(name, name) for name in row.inputs}
        arriving = [lane for lane, value in lanes.items() if value in reads]
        readers.subtract(names.get(name, name) for name in row.inputs)
        left = [lane for lane in arriving if not readers[lanes[lane]]]
        for lane in left:
            del lanes[lane]
        passing = tuple(sorted(lanes))
        free = min(lane for lane in range(len(lanes) + 1) if lane not in lanes)
        lane = min(left, default=free)
        if readers[row.value]:
            lanes[lane] = row.value
        begins, times = frames.get(place, (0, 1))
        lines.append(
            _Line(
                row=row,
                lane=lane,
                arriving=tuple(sorted(arriving)),
                passing=passing,
                begins=begins,
                times=times,
            )
        )
    return lines


def _rows(
    found: NetworkLayers,
) -> tuple[list[DrawnRow], dict[int, tuple[int, int]], dict[str, str]]:
    """The rows with inputs and scores; (rows, times) of groups by their first row; and the drawn
    value for each value of a last repetition."""
    groups = grouped(folded_rows(found.layers))
    made = {layer.name for layer in found.layers}
    given = dict.fromkeys(n for layer in found.layers for n in layer.inputs if n not in made)
    shapes = (found.summary.input_shape,) if len(given) == 1 else ()
    rows = [_end(name, "input", (), shapes[0] if shapes else (), segment="input") for name in given]
    frames: dict[int, tuple[int, int]] = {}
    names: dict[str, str] = {}
    for group in groups:
        if group.times > 1:
            frames[len(rows)] = (len(group.rows), group.times)
            names[group.value] = group.rows[-1].value
        rows += group.rows
    scores = rows[-1].value
    classes = found.summary.classes
    what = "cross-entropy" if classes is None else f"cross-entropy of {classes:,} classes"
    rows.append(_end("loss", what, (scores,), ()))
    return rows, frames, names


def _end(
    name: str, layer: str, inputs: tuple[str, ...], shape: Shape, segment: str = ""
) -> DrawnRow:
    return DrawnRow(
        name=name,
        layer=layer,
        settings="",
        inputs=inputs,
        value=name,
        shape=shape,
        parameters=0,
        segment=segment,
    )


def _colour(lane: int) -> str:
    return _COLOURS[lane % len(_COLOURS)]


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _abbreviated(words: str) -> str:
    for word, short in _ABBREVIATIONS.items():
        words = words.replace(word, short)
    return words


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: max(1, letters - 1)]}…"


def check_path(path: Path) -> None:
    """UsageError for a suffix that is not one of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: give the drawing a name that ends in {', '.join(FORMATS)}.")


def write_drawing(path: Path, found: NetworkLayers) -> None:
    """Write the drawing of a network. UsageError for another suffix, or for a PNG without the extra
    `views`; DataError where it cannot be written."""
    check_path(path)
    content = FORMATS[path.suffix.lower()](draw_network(found))
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _png(svg: str) -> bytes:
    from cubemesh.views.charts.files import svg_as_png

    return svg_as_png(svg)


FORMATS: Mapping[str, Callable[[str], bytes]] = {".svg": str.encode, ".png": _png}
