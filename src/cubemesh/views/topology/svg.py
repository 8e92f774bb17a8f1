"""SVG elements with escaped text.

Colours are names of `theme.py`: CSS variables in a page, their light values in a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from cubemesh.untrusted import clean
from cubemesh.views.theme import FONT, LIGHT, variable

Point = tuple[float, float]


class Drawing:
    """An SVG under construction; later elements are on top."""

    def __init__(self, width: float, height: float, *, in_page: bool) -> None:
        self.width, self.height, self.in_page = width, height, in_page
        self.parts: list[str] = []

    def colour(self, name: str) -> str:
        """A colour of the tables."""
        return variable(name) if self.in_page else LIGHT[name]

    def path(
        self,
        d: str,
        colour: str,
        width: float,
        *,
        halo: float = 0,
        opacity: float = 1,
        dash: str = "",
    ) -> None:
        """A line; `halo` is the width of paper on either side where it crosses others."""
        if halo:
            self._line(d, "paper", width + 2 * halo, 1, "")
        self._line(d, colour, width, opacity, dash)

    def _line(self, d: str, colour: str, width: float, opacity: float, dash: str) -> None:
        extra = f' opacity="{number(opacity)}"' if opacity < 1 else ""
        extra += f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{d}" fill="none" style="stroke:{self.colour(colour)}" '
            f'stroke-width="{number(width)}" stroke-linecap="round" '
            f'stroke-linejoin="round"{extra}/>'
        )

    def arrow(self, tip: Point, angle: float, colour: str, size: float = 5) -> None:
        """A filled arrowhead whose tip points along `angle` (radians)."""
        corners = [
            tip,
            *(
                (tip[0] + size * 1.5 * math.cos(a), tip[1] + size * 1.5 * math.sin(a))
                for a in (angle + math.pi - 0.45, angle + math.pi + 0.45)
            ),
        ]
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        self.parts.append(f'<polygon points="{points}" style="fill:{self.colour(colour)}"/>')

    def box(
        self,
        middle: Point,
        size: tuple[float, float],
        *,
        fill: str,
        stroke: str,
        round_by: float = 7,
        title: str = "",
    ) -> None:
        """A rounded rectangle; `title` shows when the pointer rests on it."""
        (x, y), (width, height) = middle, size
        tooltip = f"<title>{escape(clean(title))}</title>" if title else ""
        self.parts.append(
            f'<rect x="{number(x - width / 2)}" y="{number(y - height / 2)}" '
            f'width="{number(width)}" height="{number(height)}" rx="{number(round_by)}" '
            f'style="fill:{self.colour(fill)};stroke:{self.colour(stroke)}" '
            f'stroke-width="1.5">{tooltip}</rect>'
        )

    def text(
        self,
        at: Point,
        words: str,
        *,
        colour: str = "ink",
        size: float = 12.5,
        weight: int = 400,
        anchor: str = "middle",
    ) -> None:
        """A line of text, its middle height at `at`."""
        self.parts.append(
            f'<text x="{number(at[0])}" y="{number(at[1])}" dy=".35em" '
            f'text-anchor="{anchor}" font-size="{number(size)}" font-weight="{weight}" '
            f'style="fill:{self.colour(colour)}">{escape(clean(words))}</text>'
        )

    def svg(self, label: str) -> str:
        """The whole SVG, with `label` for screen readers."""
        width, height = number(self.width), number(self.height)
        ground = (
            "" if self.in_page else f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label={quoteattr(clean(label))} '
            f'font-family="{escape(FONT)}">{ground}{"".join(self.parts)}</svg>\n'
        )


def number(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def line(points: Sequence[Point]) -> str:
    """Straight from point to point."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def shifted(start: Point, end: Point, offset: float) -> tuple[Point, Point]:
    """The line from `start` to `end` moved by `offset` to its right, as it goes."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    x, y = -dy / length * offset, dx / length * offset
    return (start[0] + x, start[1] + y), (end[0] + x, end[1] + y)


def rounded(points: Sequence[Point], radius: float = 10) -> str:
    """From point to point with rounded corners."""
    d = f"M{number(points[0][0])} {number(points[0][1])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _towards(corner, before, radius), _towards(corner, after, radius)
        d += f"L{number(into[0])} {number(into[1])}Q{number(corner[0])} {number(corner[1])} "
        d += f"{number(out[0])} {number(out[1])}"
    return d + f"L{number(points[-1][0])} {number(points[-1][1])}"


def _towards(start: Point, end: Point, by: float) -> Point:
    length = math.hypot(end[0] - start[0], end[1] - start[1]) or 1.0
    part = min(by / length, 0.5)
    return (start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1]))
