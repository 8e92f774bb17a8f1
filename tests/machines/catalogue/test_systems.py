"""The catalogue's systems, and a user's own: what they hold, and what is wrong with one."""

import contextlib
import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import CubemeshError, DataError, UsageError
from cubemesh.machines.catalogue.load import datasheets
from cubemesh.machines.catalogue.system_file import read_system
from cubemesh.machines.catalogue.systems import OTHER_NAMES, load_system, system, system_names
from cubemesh.machines.topology import find_rings, hops, lay_out

OWN = """\
name = "four"
title = "Four H100"
sources = ["its maker's manual"]

[gpus]
device = "h100-pcie-80gb"
count = 4

[cpus]
count = 2
link = "upi-16"

[pcie]
generation = 5
gpu_to_switch = [0, 0, 1, 1]
switch_to_cpu = [0, 1]

[nvlink]
generation = 4
pairs = [[0, 1, 6], [2, 3, 6]]

[network]
technology = "ndr"
ports = 2
port_to_switch = [0, 1]
"""


@pytest.mark.parametrize("name", system_names())
def test_every_system_of_the_catalogue(name: str):
    """It is read, its device is known, and its ring search ends within its steps."""
    found = system(name)
    assert found.name == name
    assert found.title
    assert all(found.sources)
    assert {n.device for n in found.topology.devices} == {found.device}
    assert found.device in {"", *datasheets()}
    rings = find_rings(found.topology)
    assert rings.complete
    assert bool(rings.rings) == (found.devices > 1)
    if found.cluster is not None:
        assert lay_out(found.cluster.systems, found.cluster).switches >= 1


@pytest.mark.parametrize(
    ("name", "rings", "gb_per_s"),
    [
        ("dgx1-p100", 4, 80),
        ("dgx1-v100", 6, 150),
        ("dgx-a100", 12, 300),
        ("hgx-h100", 18, 450),
        ("hgx-h200", 18, 450),
        ("hgx-b200", 18, 900),
        ("c4130-g", 1, 15.75),
        ("c4130-b", 1, 15.75),
        ("dual-root-pcie", 1, 15.75),
    ],
)
def test_bandwidth_of_the_rings(name: str, rings: int, gb_per_s: float):
    found = find_rings(system(name).topology)
    assert len(found.rings) == rings
    assert found.bandwidth_bytes_per_s / 1e9 == pytest.approx(gb_per_s, rel=1e-3)


def test_links_are_those_of_the_datasheets():
    for name in ("dgx1-p100", "dgx1-v100", "dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200"):
        found = system(name)
        stated = datasheets()[found.device].value("link_bytes_per_s")
        for gpu in found.topology.gpus:
            links = found.topology.links_of(gpu.name, "nvlink")
            assert sum(x.bandwidth_bytes_per_s for x in links) == stated


@pytest.mark.parametrize(("other", "name"), OTHER_NAMES.items())
def test_other_names(other: str, name: str):
    assert load_system(other) == load_system(name)


def test_clusters_know_their_systems():
    found = system("dgx1-v100-edr")
    assert found.cluster is not None
    assert (found.cluster.systems, found.devices) == (124, 8)
    assert found.network_bytes_per_s == 50e9
    assert system("knl-aries").network_bytes_per_s == 8e9
    assert system("knl-omni-path").network_bytes_per_s == 12.5e9
    assert system("pcie-tree-4").network_bytes_per_s is None


def test_a_system_and_a_cluster_from_files(tmp_path):
    path = tmp_path / "four.toml"
    path.write_text(OWN)
    found = load_system(str(path))
    assert (found.title, found.devices, found.device) == ("Four H100", 4, "h100-pcie-80gb")
    assert hops(found.topology, "gpu0", "gpu1") == 1
    assert hops(found.topology, "gpu0", "gpu2") is None
    pair = tmp_path / "pair.toml"
    pair.write_text(
        'name = "pair"\ntitle = "Two"\nsources = ["mine"]\nsystem = "four.toml"\n'
        '[cluster]\nsystems = 2\ntechnology = "10gbe"\nports = 1\n'
    )
    assert load_system(str(pair)).device == "h100-pcie-80gb"
    path.write_text(pair.read_text())
    with pytest.raises(DataError, match=r"four.toml, line 4, system: "):
        load_system(str(pair))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"h100-pcie-80gb"', '"h100-pcie-81gb"', "line 6, gpus.device: is 'h100-pcie-81gb'; known"),
        ("count = 4", "count = 0", r"line 7, gpus.count: is 0 .*\b1\b"),
        ("count = 4", "", "line 5, gpus.count: is missing"),
        ("[gpus]", "[gpuz]", "line 5, gpuz: unknown field; nearest: gpus"),
        ('link = "upi-16"', 'link = "upi"', "line 11, cpus.link: is 'upi'; known"),
        ("generation = 5", "generation = 9", "line 14, pcie.generation: is 9; known"),
        ("[0, 0, 1, 1]", "[0, 0, 1, 2]", r"line 15, pcie.gpu_to_switch\[3\]: is 2; switches"),
        ("[0, 0, 1, 1]", "[0, 0, 1]", r"line 15, pcie.gpu_to_switch: is .*\b4\b"),
        ("[2, 3, 6]", "[2, 4, 6]", r"line 20, nvlink.pairs\[1\]: .*\b4\b.*\b0 to 3\b"),
        ("[2, 3, 6]", "[2, 3, 0]", r"line 20, nvlink.pairs\[1\]: has 0 links"),
        ("[2, 3, 6]", "[1, 0, 6]", r"nvlink.pairs\[1\]: .*\b1 and 0\b"),
        ("[2, 3, 6]", "[2, 2, 6]", r"nvlink.pairs\[1\]: is \[2, 2, 6\]"),
        ('"ndr"', '"ndrr"', "line 23, network.technology: is 'ndrr'; .* Nearest: ndr"),
        ('title = "Four H100"', "", "line 1, title: is missing"),
        ('sources = ["its maker\'s manual"]', "sources = []", "line 3, sources: is"),
        ("[network]", "[network", "line 22"),
        (
            "generation = 4",
            "generation = 4\ngb_per_s = 0",
            "line 20, nvlink.gb_per_s: is 0 and must",
        ),
        ("generation = 5", "generation = 5\nlatency_us = -1", "line 15, pcie.latency_us: is -1"),
        ("generation = 5", "generation = 5\ngb_per_s = nan", "line 15, pcie.gb_per_s: is nan"),
        ("[pcie]\ngeneration = 5", "[pcie]\ngpu_to_cpu = [0]\ngeneration = 5", "gpu_to_cpu"),
    ],
)
def test_what_does_not_fit_is_named_with_line_and_field(old: str, new: str, message: str):
    assert old in OWN
    with pytest.raises(DataError, match=message):
        read_system(OWN.replace(old, new), "own.toml", system)


def test_own_figures_replace_those_of_the_kind():
    text = OWN.replace("generation = 4", "generation = 4\ngb_per_s = 50\nlatency_us = 2")
    (link,) = read_system(text, "own.toml", system).topology.links_of("gpu0", "nvlink")
    assert (link.bandwidth_bytes_per_s, link.latency_s) == (6 * 50e9, pytest.approx(2e-6))
    assert link.sustained_bytes_per_s is None
    cluster = (
        'name = "c"\ntitle = "C"\nsources = ["x"]\nsystem = "dgx1-v100"\n[cluster]\n'
        'systems = 2\ntechnology = "10gbe"\nports = 1\ngbit_per_s = 25\nlatency_us = 3\n'
    )
    found = read_system(cluster, "c.toml", system)
    assert found.network_bytes_per_s == 25e9 / 8
    assert found.cluster is not None
    assert found.cluster.network.latency_s == pytest.approx(3e-6)


def test_a_disconnected_system_is_refused():
    text = OWN.partition("[cpus]")[0] + "[nvlink]\ngeneration = 4\npairs = [[0, 1, 6], [2, 3, 6]]\n"
    with pytest.raises(DataError, match=r"own.toml: four .* gpu0 to gpu2, gpu3\."):
        read_system(text, "own.toml", system)
    with pytest.raises(DataError, match=r"gpus: .*\[cpus\]"):
        read_system('name = "none"\n', "own.toml", system)


def test_invalid_files(tmp_path):
    with pytest.raises(UsageError, match="Nearest: dgx1-"):
        load_system("dgx1-v10")
    with pytest.raises(DataError, match=f"none.toml.*{os.strerror(errno.ENOENT)}"):
        load_system(str(tmp_path / "none.toml"))
    (tmp_path / "binary.xml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary.xml.* byte 0\b.*UTF-8"):
        load_system(str(tmp_path / "binary.xml"))
    (tmp_path / "large.txt").write_bytes(b" " * (5 << 20))
    with pytest.raises(DataError, match="larger than 4 MiB"):
        load_system(str(tmp_path / "large.txt"))


WRONG = ["0", "1", "-1", "9", "true", "nan", "1e400", '"x"', "[]", "[0]", "[[0, 1]]", "{}"]
VALUES = st.one_of(st.sampled_from(WRONG), st.lists(st.integers(-1, 4), max_size=5).map(str))
LINES = [i for i, line in enumerate(OWN.splitlines()) if "=" in line]


def with_line(number: int, value: str) -> str:
    """The file with another value in one of its lines."""
    lines = OWN.splitlines()
    lines[number] = lines[number].partition("=")[0] + "= " + value
    return "\n".join(lines)


@given(
    st.one_of(
        st.text(max_size=80),
        st.builds(with_line, st.sampled_from(LINES), VALUES),
        st.tuples(st.integers(0, len(OWN)), st.text(max_size=3)).map(
            lambda cut: OWN[: cut[0]] + cut[1] + OWN[cut[0] + 1 :]
        ),
    )
)
def test_any_text_is_a_system_or_an_error_with_a_reason(text: str):
    with contextlib.suppress(CubemeshError):  # any other kind of error fails the test
        assert read_system(text, "own.toml", system).devices >= 1
