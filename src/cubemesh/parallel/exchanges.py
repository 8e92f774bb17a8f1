"""How several devices come to the same gradients: the table of exchanges.

One device needs none: its gradients are the mean already. An exchange is told of each bucket as it
becomes ready and waits in `finish`; see `Exchange` in frameworks/base.py.
"""

from __future__ import annotations

from collections.abc import Callable

from cubemesh.errors import unknown_name
from cubemesh.frameworks.base import Bucket, Exchange


class NoExchange:
    """For a single device: every gradient stays as it is."""

    name = "none"
    capturable = True

    def ready(self, bucket: Bucket) -> None:
        """Leave the bucket as it is."""

    def finish(self) -> None:
        """Nothing is under way, so there is nothing to wait for."""


EXCHANGES: dict[str, Callable[[], Exchange]] = {"none": NoExchange}


def make(name: str) -> Exchange:
    """The exchange called `name`; UsageError naming the nearest when there is none."""
    if name not in EXCHANGES:
        raise unknown_name("exchange", name, EXCHANGES)
    return EXCHANGES[name]()
