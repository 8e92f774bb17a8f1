"""Text of `nvidia-smi topo -m`, as machines print it, and as it must not be."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import CubemeshError, DataError
from cubemesh.machines.topology import find_rings, route
from cubemesh.machines.topology.smi_matrix import read_smi_matrix

DGX1 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_2\tmlx5_1\tmlx5_3\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\tSYS\tPIX\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\tSYS\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tPHB\tSYS\t
mlx5_2\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X \tSYS\tPHB\t
mlx5_1\tPHB\tPHB\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tPHB\tSYS\t X \tSYS\t
mlx5_3\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tPIX\tPIX\tSYS\tPHB\tSYS\t X \t

Legend:

  X    = Self
"""


def hopper(gpus: int = 8) -> str:
    """An HGX board with a network adapter for each GPU, with terminal colours."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(gpus)]
    lines = ["\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for a, name in enumerate(names):
        row = [name]
        for b in range(2 * gpus):
            near = (a % gpus) // 4 == (b % gpus) // 4
            label = "NODE" if near else "SYS"
            if a == b:
                label = " X "
            elif a < gpus and b < gpus:
                label = "NV18"
            elif a % gpus == b % gpus:
                label = "PIX"
            row.append(label)
        if a < gpus:
            row += ["0-47,96-143" if a < 4 else "48-95,144-191", str(a // 4), "N/A"]
        lines.append("\t".join(row))
    return "\n".join([*lines, "", "NIC Legend:", "", "  NIC0: mlx5_0", "  NIC1: mlx5_3"])


def test_a_dgx1_is_read_whole():
    topology = read_smi_matrix(DGX1, "dgx1.txt")
    assert len(topology.of_kind("pcie-switch")) == 4
    assert len(topology.of_kind("cpu")) == 2
    assert [n.label for n in topology.of_kind("nic")] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    found = find_rings(topology)
    assert [len(found.rings), found.bandwidth_bytes_per_s] == [6, 150e9]
    far = route(topology, "gpu0", "gpu7")
    assert far.reach == "system"
    assert far.nodes[1] != far.nodes[-2]
    assert any("PCIe 3 x16" in note for note in topology.notes)
    assert any("NVLink" in note and "25 GB/s" in note for note in topology.notes)


def test_a_board_with_switches_and_host_bridges():
    topology = read_smi_matrix(hopper())
    assert [n.kind for n in topology.nodes].count("nvswitch") == 1
    assert {x.count for x in topology.links_of("nvswitch")} == {18}
    assert len(topology.of_kind("host-bridge")) == 8
    assert topology.of_kind("nic")[1].label == "mlx5_3"
    assert topology.of_kind("nic")[2].label == "NIC2"
    assert len(find_rings(topology).rings) == 18
    assert route(topology, "nic0", "nic1").reach == "numa-node"
    assert route(topology, "nic0", "nic7").reach == "system"


def test_two_gpus_without_anything_else():
    topology = read_smi_matrix("\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n")
    assert len(find_rings(topology).rings) == 4
    assert len(topology.of_kind("cpu")) == 1
    assert any("as few processors" in note for note in topology.notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU0\t X \tNV1", "GPU0\t X \tNVX", "line 2, field GPU1: 'NVX' is not"),
        ("GPU0\t X \tNV1", "GPU0\t X \tNV2", "line 3, field GPU0: 'NV1' differs from the line"),
        ("GPU1\tNV1\t X \t", "GPU1\tNV1\tPIX\t", "line 3, field GPU1: 'PIX'; X"),
        ("GPU3\tNV2", "GPU2\tNV2", "line 5: GPU2 has a line already"),
        ("GPU7\tSYS", "GPUX\tSYS", "GPU7 is in the heading and has no line"),
        ("\tGPU7\tmlx5_0\t", "\tGPU6\tmlx5_0\t", "line 1: GPU6 "),
        ("\tPHB\tSYS\tPIX\t20-39,60-79\nGPU7", "\nGPU7", "line 8, GPU6: 9 fields"),
        ("\tGPU0\tGPU1", "\tCPU0\tCPU1", "no line has the heading GPU0"),
        ("\tGPU7\tmlx5_0\tmlx5_2", "\tmlx5_9\tGPU7\tmlx5_2", "GPUs must"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(old: str, new: str, message: str):
    assert old in DGX1
    with pytest.raises(DataError, match=message):
        read_smi_matrix(DGX1.replace(old, new), "dgx1.txt")


LABEL = st.sampled_from(["X", "NV1", "NV12", "NV99", "PIX", "PHB", "NODE", "SYS", "", "?"])


@settings(max_examples=40, deadline=None)
@given(
    st.one_of(
        st.text(max_size=200),
        st.lists(st.lists(LABEL, max_size=4), max_size=4).map(
            lambda rows: (
                "\tGPU0\tGPU1\tGPU2\n"
                + "\n".join(f"GPU{i}\t" + "\t".join(r) for i, r in enumerate(rows))
            )
        ),
        st.tuples(st.integers(0, len(DGX1)), st.text(max_size=3)).map(
            lambda cut: DGX1[: cut[0]] + cut[1] + DGX1[cut[0] + 1 :]
        ),
    )
)
def test_any_text_is_a_topology_or_an_error_with_a_reason(text: str):
    with contextlib.suppress(CubemeshError):  # any other kind of error fails the test
        assert read_smi_matrix(text).gpus
