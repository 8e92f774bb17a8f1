"""Over what do the ranks of a run really exchange? Read from what is there, not what was asked.

gloo talks TCP: the local addresses of this process's connections say through which interface, but
for those to the launcher's store. NCCL says which transport it took for each pair of ranks when it
connects them, in the lines of NCCL_DEBUG=INFO (NCCL User Guide, environment variables):

    … Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM            another GPU's memory (NVLink, PCIe)
    … Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct    the host's memory between them
    … Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0  a network: TCP, or NET/IB
    … NET/Socket : Using [0]eth0:192.0.2.2<0>               and its interface
    … NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.2<0>

They go to a file of their own, unless whoever started the run has set NCCL_DEBUG, whose output it
then is.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import psutil

from cubemesh.frameworks.api.group import Link
from cubemesh.frameworks.api.program import Unsupported

_VIA = re.compile(r" via (P2P|SHM|NET)/([\w-]+)")
_USING = re.compile(r"NET/(?:Socket|IB) ?: Using (.+)")
_NAMED = re.compile(r"\[\d+\]([\w.-]+):")


def chosen(link: str, kind: str, interfaces: Collection[str]) -> dict[str, str]:
    """The environment that makes the ranks of a `kind` of device exchange over `link` (see
    `Placement.link`); Unsupported for what they cannot. They are the libraries' own settings (NCCL
    User Guide, environment variables; gloo as PyTorch's documentation of torch.distributed)."""
    if link == "auto":
        return {}
    if link in ("shared-memory", "network"):
        if kind != "cuda":
            raise Unsupported(
                f"link={link}: CPUs exchange by gloo, which takes TCP whatever lies between them. "
                f"Leave link out, or name an interface: {', '.join(interfaces)}."
            )
        no_peers = {"NCCL_P2P_DISABLE": "1"}
        return no_peers if link == "shared-memory" else no_peers | {"NCCL_SHM_DISABLE": "1"}
    if link not in interfaces:
        raise Unsupported(
            f"link={link}: it is auto, shared-memory, network or an interface of this host: "
            f"{', '.join(interfaces)}."
        )
    if kind != "cuda":
        return {"GLOO_SOCKET_IFNAME": link}
    # With = NCCL takes the name as it is, not as the beginning of one.
    return {"NCCL_SOCKET_IFNAME": f"={link}", "NCCL_IB_DISABLE": "1"}


def interface_names() -> list[str]:
    """The network interfaces of this host that are up."""
    return sorted(name for name, found in psutil.net_if_stats().items() if found.isup)


class NcclLog:
    """What NCCL says of itself in this process; to be made before it starts."""

    def __init__(self) -> None:
        self._path: Path | None = None
        if "NCCL_DEBUG" not in os.environ:
            handle, name = tempfile.mkstemp(prefix="cubemesh-nccl-")
            os.close(handle)
            self._path = Path(name)
            os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": name}

    def link(self) -> Link | None:
        """What it connected its ranks by so far; None where it said nothing."""
        if self._path is None:
            return None
        return nccl_link(self._path.read_text(errors="replace").splitlines())

    def close(self) -> None:
        """Remove the file, and ask for no more of it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            del os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"]


def nccl_link(lines: Iterable[str]) -> Link | None:
    """The transports in NCCL's own words, `NCCL P2P/CUMEM`, those of several joined by a comma, and
    the interface where one of them is a network."""
    ways: dict[str, None] = {}
    interfaces: dict[str, None] = {}
    for line in lines:
        if found := _VIA.search(line):
            ways[f"{found[1]}/{found[2]}"] = None
        if using := _USING.search(line):
            interfaces |= dict.fromkeys(_NAMED.findall(using[1]))
    if not ways:
        return None
    network = any(way.startswith("NET/") for way in ways)
    named = ", ".join(sorted(interfaces)) if network else ""
    return Link(transport=f"NCCL {', '.join(sorted(ways))}", interface=named)


def gloo_link() -> Link | None:
    """The interface that gloo's connections to the other ranks go through; None where there are
    none."""
    store = os.environ.get("MASTER_PORT", "")
    addresses = [
        c.laddr.ip
        for c in psutil.Process().net_connections(kind="tcp")
        if c.status == psutil.CONN_ESTABLISHED and c.raddr and str(c.raddr.port) != store
    ]
    return tcp_link(addresses, _interfaces())


def tcp_link(addresses: Iterable[str], interfaces: Mapping[str, str]) -> Link | None:
    """The link of connections with these local `addresses`; `interfaces` is address → name. An
    address of this host's own reaches another process of it through its memory, whatever interface
    the address belongs to; a network is named by its interface."""
    named = {interfaces.get(address.removeprefix("::ffff:"), "") for address in addresses}
    known = sorted(filter(None, named))
    return Link(transport="gloo TCP", interface=", ".join(known)) if known else None


def _interfaces() -> dict[str, str]:
    return {
        address.address.partition("%")[0]: name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
    }
