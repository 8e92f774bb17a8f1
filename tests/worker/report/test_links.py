"""Was a faster network interface idle while ranks of several hosts exchanged?"""

import pytest

from cubemesh.frameworks.contract.group import Link
from cubemesh.worker.report.links import idle_interface, infiniband

GLOO = Link(transport="gloo TCP", interface="eth0")


@pytest.mark.parametrize(
    ("link", "speeds", "ports", "cause"),
    [
        (GLOO, {"eth0": 1e9, "eth1": 1e10}, {}, "eth1 (10 Gb/s)"),
        (GLOO, {"eth0": 1e9, "eth1": 1e9}, {}, ""),
        (GLOO, {"eth0": 1e10, "eth1": 1e9}, {}, ""),
        (GLOO, {"eth1": 1e10}, {}, ""),
        (GLOO, {"eth0": 1e10}, {"mlx5_0/1": 1e11}, "mlx5_0/1 (100 Gb/s)"),
        (
            Link(transport="NCCL NET/IB", interface="mlx5_0"),
            {"eth0": 1e9},
            {"mlx5_0/1": 1e11},
            "",
        ),
    ],
)
def test_a_faster_interface_that_was_up_is_a_warning(link, speeds, ports, cause):
    found = idle_interface(link, speeds, ports)
    if cause:
        assert found.code == "faster-link-unused"
        assert cause in found.cause
        assert found.remedy
    else:
        assert found is None


def test_active_infiniband_ports_are_read_with_their_rate(tmp_path):
    for port, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        folder = tmp_path / "mlx5_0" / "ports" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text("100 Gb/sec (4X EDR)\n")
    assert infiniband(tmp_path) == {"mlx5_0/1": 1e11}
    assert infiniband(tmp_path / "none") == {}
