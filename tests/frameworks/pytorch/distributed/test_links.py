"""What NCCL and gloo say of the way that they took."""

import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cubemesh.frameworks.contract.group import Link
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.distributed.links import (
    NcclLog,
    gloo_link,
    link_environment,
    nccl_link,
    tcp_link,
)

START = "host:71:71 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0> [1]eth1:192.0.2.3<0>"
IB = "host:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.2<0>"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"], Link(transport="NCCL P2P/CUMEM")),
        (
            [START, "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"],
            Link(transport="NCCL SHM/direct"),
        ),
        (
            [START, "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"],
            Link(transport="NCCL NET/Socket", interface="eth0, eth1"),
        ),
        (
            [
                IB,
                "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
                "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA",
            ],
            Link(transport="NCCL NET/IB/GDRDMA, P2P/IPC", interface="mlx5_0"),
        ),
        ([START], None),
    ],
)
def test_nccl_s_log_names_the_transport(lines, expected):
    assert nccl_link([f"host:71:99 [0] NCCL INFO {line}" for line in lines]) == expected


def test_nccl_s_log_is_enabled_unless_the_environment_sets_it(monkeypatch):
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
        monkeypatch.delenv(name, raising=False)
    log = NcclLog()
    path = Path(os.environ["NCCL_DEBUG_FILE"])
    assert os.environ["NCCL_DEBUG"] == "INFO"
    assert log.link() is None
    path.write_text("x NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n")
    assert log.link() == Link(transport="NCCL P2P/CUMEM")
    log.close()
    assert not path.exists()
    assert "NCCL_DEBUG" not in os.environ
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    theirs = NcclLog()
    assert theirs.link() is None
    theirs.close()
    assert os.environ["NCCL_DEBUG"] == "WARN"


def test_a_link_is_chosen_by_the_library_s_settings():
    names = ["eth0", "lo"]
    assert link_environment("auto", "cuda", names) == {}
    assert link_environment("shared-memory", "cuda", names) == {"NCCL_P2P_DISABLE": "1"}
    network = link_environment("network", "cuda", names)
    assert network == {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert link_environment("lo", "cpu", names) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert link_environment("eth0", "cuda", names)["NCCL_SOCKET_IFNAME"] == "=eth0"
    with pytest.raises(Unsupported, match="gloo"):
        link_environment("shared-memory", "cpu", names)
    with pytest.raises(Unsupported, match="eth0, lo"):
        link_environment("ib0", "cuda", names)


def test_a_connection_is_named_by_the_interface_of_its_own_end():
    interfaces = {"127.0.0.1": "lo", "192.0.2.2": "eth0"}
    assert tcp_link(["192.0.2.2", "192.0.2.2"], interfaces).interface == "eth0"
    assert tcp_link(["::ffff:127.0.0.1"], interfaces).interface == "lo"
    assert tcp_link([], interfaces) is None


def test_the_connections_of_this_process_are_read(monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0],
    ):
        found = gloo_link()
    assert found is not None
    assert "lo" in found.interface.split(", ")
