"""Drawing of a topology: links as lines, rings as colours, as in figures 4 and 11 to 13 of
"NVIDIA DGX-1 with Tesla V100 System Architecture".

Every NVLink is a line, links of a pair are side by side. A ring colours the links it uses: in a
mesh the links themselves, both directions at once where it runs both ways; on a PCIe tree a line to
the right of each link for each direction; through NVSwitches one line from GPU to GPU for all rings
in that order.
"""

from __future__ import annotations

from cubemesh.machines.topology import Link, RingSet, Topology
from cubemesh.units import format_number, format_quantity
from cubemesh.views.topology.layout import lay_out
from cubemesh.views.topology.picture import PCIE, STRAND, Picture, cycled, plain_colour
from cubemesh.views.topology.svg import Drawing, line, number

HEADER, LEGEND_ROW = 58.0, 22.0
_LEGEND_COLUMN = 330.0

Entry = tuple[str, str, float, str]
"""A legend entry: text, colour, width and dashes of its line."""


def draw_topology(
    topology: Topology, rings: RingSet | None = None, *, title: str = "", in_page: bool = False
) -> str:
    """The SVG of a topology with its rings, if given; `title` is above it.

    In a page the colours are CSS variables; a file has a white background.
    """
    layout = lay_out(topology)
    caption = summary(topology, rings)
    links, marked = _link_legend(topology, rings), _ring_legend(topology, rings)
    # Text widths are estimates: a letter is about half as wide as its size.
    wanted = [layout.width, *(66 + 6.8 * len(words) for words, *_ in (*links, *marked))]
    width = max([*wanted, 48 + 8.6 * len(title), 48 + 6.6 * len(caption)] if title else wanted)
    columns = [links, marked] if width >= 2 * _LEGEND_COLUMN else [[*links, *marked]]
    top = HEADER if title else 0.0
    rows = max(map(len, columns))
    drawing = Drawing(width, layout.height + top + rows * LEGEND_ROW + 18, in_page=in_page)
    if title:
        drawing.text((24, 26), title, size=16, weight=600, anchor="start")
        drawing.text((24, 47), caption, colour="soft", anchor="start")
    left = (width - layout.width) / 2
    drawing.parts.append(f'<g transform="translate({number(left)} {number(top)})">')
    Picture(drawing, topology, layout, rings).draw()
    drawing.parts.append("</g>")
    for column, entries in enumerate(columns):
        for row, (words, colour, stroke, dash) in enumerate(entries):
            x, y = 24 + column * width / 2, top + layout.height + 12 + row * LEGEND_ROW
            drawing.path(line([(x, y), (x + 24, y)]), colour, stroke, dash=dash)
            drawing.text((x + 34, y), words, colour="soft", anchor="start")
    return drawing.svg(f"{title or topology.name}: {caption}")


def summary(topology: Topology, rings: RingSet | None) -> str:
    """A summary of the drawing."""
    count = len(topology.gpus)
    what = f"{count} GPU{'' if count == 1 else 's'}" if count else "no GPUs"
    if rings is None or not rings.rings:
        return what
    total = format_quantity(rings.bandwidth_bytes_per_s, "B/s")
    several = len(rings.rings) != 1
    return (
        f"{what}; {len(rings.rings)} directed ring{'s' if several else ''}, "
        f"{total}{' in total' if several else ''}"
    )


def _link_legend(topology: Topology, rings: RingSet | None) -> list[Entry]:
    """An entry for each kind of link."""
    kinds: dict[tuple[str, str], Link] = {}
    for link in topology.links:
        kinds.setdefault((link.kind, link.name), link)
    entries = []
    for (kind, name), link in sorted(kinds.items()):
        rate = format_quantity(link.one_bytes_per_s, "B/s")
        if kind == "smp":
            times = f"{link.count} × " if link.count > 1 else ""
            entries.append((f"{name}: {times}{rate} per direction", "soft", 2.0, "1 5"))
        elif kind == "pcie":
            entries.append((f"{name}: {rate} per direction", "published", PCIE, ""))
        else:
            colour = plain_colour(rings is not None and bool(rings.rings))
            entries.append((f"{name}: {rate} per link and direction", colour, STRAND, ""))
    return entries


def _ring_legend(topology: Topology, rings: RingSet | None) -> list[Entry]:
    """An entry for each ring with its reverse; rings in the same order are one entry."""
    if rings is None:
        return []
    count: dict[tuple[str, ...], int] = {}
    back: dict[tuple[str, ...], int] = {}
    for there, other in rings.pairs:
        count[there.order] = count.get(there.order, 0) + 1
        back[there.order] = back.get(there.order, 0) + (other is not None)
    entries = []
    for order, colour in zip(count, cycled(len(count)), strict=True):
        numbers = "–".join(str(topology.node(name).index) for name in order)
        times, ways = count[order], "both ways" if back[order] else "one way"
        words = f"ring {numbers}, {ways}" if times == 1 else f"{times} rings {numbers}, {ways}"
        entries.append((words, colour, STRAND, ""))
    return entries


def bandwidth_words(rings: RingSet) -> str:
    """The bandwidth of rings: `6 × 25 GB/s = 150 GB/s`."""
    if not rings.rings:
        return "no ring: a single GPU"
    one = format_quantity(rings.rings[0].bandwidth_bytes_per_s, "B/s")
    total = format_quantity(rings.bandwidth_bytes_per_s, "B/s")
    return f"{format_number(len(rings.rings))} × {one} = {total}"
