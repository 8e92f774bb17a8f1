"""Link between ranks: the transport and interface in use, and the setting that forces one.

gloo uses TCP: the local addresses of this process's connections (without those to the rendezvous
store) give the interface. NCCL logs the transport of each pair of ranks with NCCL_DEBUG=INFO (NCCL
User Guide, environment variables):

    … Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM            another GPU's memory (NVLink, PCIe)
    … Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct    the host's memory between them
    … Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0  a network: TCP, or NET/IB
    … Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA  the same by GPUDirect RDMA
    … NET/Socket : Using [0]eth0:192.0.2.2<0>               its interface
    … NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.2<0>

The log goes to a temporary file, unless the environment sets NCCL_DEBUG.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import psutil

from cubemesh.frameworks.contract.group import Link
from cubemesh.frameworks.contract.program import Unsupported

_VIA = re.compile(r" via (P2P|SHM|NET)/([\w-]+)(?:/\d+(/GDRDMA))?")
_USING = re.compile(r"NET/(?:Socket|IB) ?: Using (.+)")
_NAMED = re.compile(r"\[\d+\]([\w.-]+):")


def link_environment(link: str, kind: str, interfaces: Collection[str]) -> dict[str, str]:
    """The environment variables that make ranks on a `kind` of device use `link` (see
    `Placement.link`); Unsupported for an impossible one. (NCCL User Guide, environment variables;
    PyTorch's documentation of torch.distributed for gloo.)"""
    if link == "auto":
        return {}
    if link in ("shared-memory", "network"):
        if kind != "cuda":
            raise Unsupported(
                f"link={link}: CPUs use gloo, which supports TCP only. Leave link out, or set an "
                f"interface: {', '.join(interfaces)}."
            )
        no_peers = {"NCCL_P2P_DISABLE": "1"}
        return no_peers if link == "shared-memory" else no_peers | {"NCCL_SHM_DISABLE": "1"}
    if link not in interfaces:
        raise Unsupported(
            f"link={link} is unknown: set auto, shared-memory, network or an interface of this "
            f"host: {', '.join(interfaces)}."
        )
    if kind != "cuda":
        return {"GLOO_SOCKET_IFNAME": link}
    # With = NCCL takes an exact name, not a prefix.
    return {"NCCL_SOCKET_IFNAME": f"={link}", "NCCL_IB_DISABLE": "1"}


def interface_names() -> list[str]:
    """The network interfaces of this host that are up."""
    return sorted(name for name, found in psutil.net_if_stats().items() if found.isup)


class NcclLog:
    """NCCL's log of this process; create it before NCCL starts."""

    def __init__(self) -> None:
        self._path: Path | None = None
        if "NCCL_DEBUG" not in os.environ:
            handle, name = tempfile.mkstemp(prefix="cubemesh-nccl-")
            os.close(handle)
            self._path = Path(name)
            os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": name}

    def link(self) -> Link | None:
        """The transports logged so far; None without any."""
        if self._path is None:
            return None
        return nccl_link(self._path.read_text(errors="replace").splitlines())

    def close(self) -> None:
        """Remove the file and stop logging."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            del os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"]


def nccl_link(lines: Iterable[str]) -> Link | None:
    """The transports in NCCL's notation, `NCCL P2P/CUMEM`, joined by commas, and the interface if
    one of them is a network."""
    transports: dict[str, None] = {}
    interfaces: dict[str, None] = {}
    for line in lines:
        if found := _VIA.search(line):
            transports[f"{found[1]}/{found[2]}{found[3] or ''}"] = None
        if using := _USING.search(line):
            interfaces |= dict.fromkeys(_NAMED.findall(using[1]))
    if not transports:
        return None
    network = any(transport.startswith("NET/") for transport in transports)
    named = ", ".join(sorted(interfaces)) if network else ""
    return Link(transport=f"NCCL {', '.join(sorted(transports))}", interface=named)


def gloo_link() -> Link | None:
    """The interface of gloo's connections to other ranks; None without any."""
    store = os.environ.get("MASTER_PORT", "")
    addresses = [
        c.laddr.ip
        for c in psutil.Process().net_connections(kind="tcp")
        if c.status == psutil.CONN_ESTABLISHED and c.raddr and str(c.raddr.port) != store
    ]
    return tcp_link(addresses, _interfaces())


def tcp_link(addresses: Iterable[str], interfaces: Mapping[str, str]) -> Link | None:
    """The link of connections with these local `addresses`; `interfaces` is address → name.
    Connections within the host go through memory, not through the interface of the address."""
    named = {interfaces.get(address.removeprefix("::ffff:"), "") for address in addresses}
    known = sorted(filter(None, named))
    return Link(transport="gloo TCP", interface=", ".join(known)) if known else None


def _interfaces() -> dict[str, str]:
    return {
        address.address.partition("%")[0]: name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
    }
