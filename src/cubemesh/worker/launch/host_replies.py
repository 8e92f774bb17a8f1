"""Replies of a host's agent: what the launcher of a run on several hosts accepts from each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.schema.serialization import from_plain
from cubemesh.untrusted import parse_json

MOST_BYTES = 64 << 20
"""Most bytes of a reply; an event is smaller (event_schema.py)."""
OUTPUT_CHARACTERS = 4000
"""Characters of a rank's last output."""

MOST_TRACE_BYTES = 256 << 20
"""Most bytes of a rank's trace that is fetched from another host."""
TRACE_PART_BYTES = 1 << 20
"""Bytes of a trace in a reply."""


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """Name and software of a host."""

    host: str
    software: Mapping[str, str]
    """Name → version: python, cubemesh, the framework's packages."""


@dataclass(frozen=True, kw_only=True)
class HostReply:
    """One reply; the fields that are not of its kind are None."""

    here: Greeting | None = None
    fault: str | None = None
    """Why the host cannot run the job."""
    clock: float | None = None
    rank: int | None = None
    """The rank of `event`, `stacks` or `trace`."""
    event: Mapping[str, Any] | None = None
    stacks: str | None = None
    trace: str | None = None
    """The next part of its profiler's trace, in base64."""
    store: Mapping[str, Any] | None = None
    """A request to the ranks' store (kv_store.py)."""
    exits: Mapping[str, int] | None = None
    """Exit codes of the host's failed ranks: its last reply, with `outputs`."""
    outputs: Mapping[str, str] | None = None


def parse_reply(line: bytes) -> HostReply:
    """The reply in a line of JSON. ValueError with the reason where it is none."""
    reply = from_plain(HostReply, parse_json(line))
    parts = [part is not None for part in (reply.event, reply.stacks, reply.trace)]
    of_rank = reply.rank is not None and sum(parts) == 1
    last = reply.exits is not None and reply.outputs is not None
    clock = reply.clock is not None and math.isfinite(reply.clock)
    alone = [field is not None for field in (reply.here, reply.fault, reply.store)]
    if sum((of_rank, last, clock, *alone)) != 1:
        raise ValueError("HostReply: it is not a reply of one kind")
    return reply
