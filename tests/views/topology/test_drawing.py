"""Drawings of topologies: sound SVG, everything in it, nothing on top of anything else."""

import re
from xml.etree import ElementTree

import pytest

from cubemesh.machines.catalogue.systems import system, system_names
from cubemesh.machines.topology import Node, Topology, find_rings
from cubemesh.machines.topology.speeds import nvlink
from cubemesh.views.topology.drawing import draw_topology
from cubemesh.views.topology.layout import Layout, cube_corners, lay_out

SVG = "{http://www.w3.org/2000/svg}"
SINGLE = [name for name in system_names() if system(name).cluster is None]


def overlaps(layout: Layout) -> list[tuple[str, str]]:
    places = sorted(layout.places.items())
    return [
        (a, b)
        for i, (a, p) in enumerate(places)
        for b, q in places[i + 1 :]
        if abs(p.x - q.x) < (p.width + q.width) / 2 and abs(p.y - q.y) < (p.height + q.height) / 2
    ]


@pytest.mark.parametrize("name", SINGLE)
def test_every_node_has_a_place_of_its_own(name: str):
    topology = system(name).topology
    layout = lay_out(topology)
    assert set(layout.places) == {node.name for node in topology.nodes}
    assert overlaps(layout) == []
    for place in layout.places.values():
        assert place.width / 2 <= place.x <= layout.width - place.width / 2
        assert place.height / 2 <= place.y <= layout.height - place.height / 2


@pytest.mark.parametrize("name", SINGLE)
def test_every_system_is_drawn_whole(name: str):
    found = system(name)
    svg = draw_topology(found.topology, find_rings(found.topology), title=found.title)
    root = ElementTree.fromstring(svg)
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert found.title in texts
    assert {f"GPU {n.index}" for n in found.topology.gpus} <= set(texts)
    assert "var(--" not in svg
    assert svg == draw_topology(found.topology, find_rings(found.topology), title=found.title)


def test_a_cube_mesh_is_a_cube():
    """Faces are meshed, corners face their partners, GPUs of one switch share an edge."""
    corners = cube_corners(system("dgx1-v100").topology)
    assert corners == (("gpu0", "gpu1", "gpu2", "gpu3"), ("gpu4", "gpu5", "gpu6", "gpu7"))
    layout = lay_out(system("dgx1-p100").topology)
    assert layout.shape == "cube"
    across = {round(layout.places[f"gpu{i + 4}"].x - layout.places[f"gpu{i}"].x) for i in range(4)}
    assert len(across) == 1
    assert all(layout.places[f"gpu{i + 4}"].y == layout.places[f"gpu{i}"].y for i in range(4))
    assert cube_corners(system("hgx-h200").topology) is None
    assert cube_corners(system("dgx1-v100").topology.subset(range(7))) is None


def test_three_rings_colour_every_link_of_the_v100_mesh():
    topology = system("dgx1-v100").topology
    svg = draw_topology(topology, find_rings(topology))
    colours = re.findall(r'style="stroke:(#\w+)" stroke-width="3"', svg)
    rings = {c: colours.count(c) for c in set(colours)}
    assert sorted(rings.values())[-3:] == [9, 9, 9]  # eight links of each, and its legend
    assert "ring 0–1–2–3–7–5–6–4, both ways" in svg


def test_a_ring_goes_around_a_tree():
    topology = system("pcie-tree-4").topology
    svg = draw_topology(topology, find_rings(topology))
    assert svg.count("<polygon") == 2 * len(topology.links)  # an arrow each way on every link
    assert "ring 0–1–2–3, one way" in svg


def test_in_a_page_colours_are_the_pages():
    topology = system("hgx-h200").topology
    svg = draw_topology(topology, find_rings(topology), in_page=True)
    assert "var(--accent)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)
    assert "9 rings 0–1–2–3–4–5–6–7, both ways" in svg


def test_names_from_outside_stay_text():
    nodes = (
        Node(name="gpu0", kind="gpu"),
        Node(name="gpu1", kind="gpu", index=1, label='<script>"&\x1b'),
    )
    topology = Topology(name="<b>", nodes=nodes, links=(nvlink("gpu0", "gpu1", 2, 3),))
    svg = draw_topology(topology, find_rings(topology), title='"><script>')
    root = ElementTree.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in svg


def test_without_rings_links_are_plain():
    svg = draw_topology(system("dgx1-v100").topology)
    assert "ring" not in svg
    assert "NVLink 2: 25 GB/s" in svg
