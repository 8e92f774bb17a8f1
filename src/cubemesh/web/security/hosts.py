"""Names under which a server may be asked for, and addresses that may ask.

A page of another site can point its own name at this machine (DNS rebinding). Its requests then
carry that name in `Host`, which is not one of ours.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

_ALWAYS = frozenset({"localhost", "127.0.0.1", "::1"})


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port: `[::1]:80` is `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address, which may be a name."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def is_allowed_host(host: str, names: Iterable[str], own_address: str) -> bool:
    """Whether `Host` is this machine's: localhost, one of `names`, or the address that the
    connection was made to."""
    name = host_name(host)
    return name in _ALWAYS or name == own_address or name in {one.lower() for one in names}


def is_allowed_client(address: str, proxies: Iterable[str]) -> bool:
    """Whether this address may ask: any, or behind a proxy that alone and this machine."""
    listed = tuple(proxies)
    return not listed or address in listed or is_loopback(address)
