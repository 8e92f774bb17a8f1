"""Which hosts can share the devices of a run?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cubemesh.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*")
"""What ssh takes for a host and is no option of it."""


def check_hosts(hosts: Sequence[str], devices: int) -> None:
    """UsageError for one host alone, the same twice, what is no name of a host, or devices that
    cannot be shared out evenly."""
    listed = ",".join(hosts)
    for host in hosts:
        if not _NAME.fullmatch(host):
            raise UsageError(f"hosts={listed}: '{host}' is no name of a host.")
    if len(hosts) < 2 or len(set(hosts)) < len(hosts):
        raise UsageError(
            f"hosts={listed} does not fit: name two hosts or more, each once. Leave hosts out for "
            "this one alone."
        )
    if devices % len(hosts):
        raise UsageError(
            f"devices={devices} on {len(hosts)} hosts: each has as many. Set devices={len(hosts)} "
            "or a multiple of it."
        )
