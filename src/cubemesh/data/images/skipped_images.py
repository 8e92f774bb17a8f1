"""Skipped images: what could not be used or had to be converted, with reasons.

Every image that is tried and found wanting is written down once, by its number, with the reason.
The tally is over the images whose turn had come, so that it does not depend on how far threads had
run ahead.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

EXAMPLES = 3
"""Names reported for each reason."""


@dataclass(frozen=True, kw_only=True)
class ImageCounts:
    """How many images were set aside and converted, of those that were tried."""

    tried: int
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Reason → images."""
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Reason → the first names, in the order of the data set."""
    converted: int = 0
    """Images that had to be converted in one way or another."""
    conversions: Mapping[str, int] = field(default_factory=dict)
    """Way → images; an image that needed two counts in both."""
    by_host: Mapping[str, int] = field(default_factory=dict)
    """Reason → images that the host decoded where the device was to."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """What lay among the images and is none by its name or kind → how many."""

    @property
    def aside(self) -> int:
        """Images set aside, for whatever reason."""
        return sum(self.set_aside.values())

    def __add__(self, other: ImageCounts) -> ImageCounts:
        return ImageCounts(
            tried=self.tried + other.tried,
            set_aside=_sum(self.set_aside, other.set_aside),
            examples={
                reason: (*self.examples.get(reason, ()), *other.examples.get(reason, ()))[:EXAMPLES]
                for reason in {**self.examples, **other.examples}
            },
            converted=self.converted + other.converted,
            conversions=_sum(self.conversions, other.conversions),
            by_host=_sum(self.by_host, other.by_host),
            ignored=_sum(self.ignored, other.ignored),
        )


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))


class SkippedImages:
    """What was found wrong, by image; threads may write at the same time."""

    def __init__(self) -> None:
        self._aside: dict[int, str] = {}
        self._converted: dict[int, tuple[str, ...]] = {}
        self._by_host: dict[int, str] = {}
        self._lock = threading.Lock()

    def set_aside(self, number: int, reason: str) -> None:
        """Image `number` cannot be used."""
        with self._lock:
            self._aside[number] = reason

    def convert(self, number: int, ways: tuple[str, ...]) -> None:
        """Image `number` was converted in these ways."""
        with self._lock:
            self._converted[number] = ways

    def leave_to_host(self, number: int, reason: str) -> None:
        """Image `number` cannot be decoded by the device."""
        with self._lock:
            self._by_host[number] = reason

    def is_left_to_host(self, number: int) -> bool:
        """Whether that was found out of image `number`."""
        return number in self._by_host

    def reason(self, number: int) -> str | None:
        """Why image `number` was set aside; None where it was not."""
        return self._aside.get(number)

    def reasons(self) -> dict[str, int]:
        """Reason → images, of all that were tried so far."""
        with self._lock:
            return dict(Counter(self._aside.values()))

    @property
    def aside(self) -> int:
        """Images set aside so far."""
        return len(self._aside)

    def tally(
        self,
        tried: NDArray[np.bool_],
        name_of: Callable[[int], str],
        ignored: Mapping[str, int] | None = None,
    ) -> ImageCounts:
        """What is known of the images marked in `tried` (samples,)."""
        with self._lock:
            aside = {n: r for n, r in sorted(self._aside.items()) if tried[n]}
            converted = [ways for n, ways in self._converted.items() if tried[n]]
            by_host = Counter(reason for n, reason in self._by_host.items() if tried[n])
        examples: dict[str, tuple[str, ...]] = {}
        for number, reason in aside.items():
            names = examples.get(reason, ())
            if len(names) < EXAMPLES:
                examples[reason] = (*names, name_of(number))
        return ImageCounts(
            tried=int(tried.sum()),
            set_aside=dict(Counter(aside.values())),
            examples=examples,
            converted=len(converted),
            conversions=dict(Counter(way for ways in converted for way in ways)),
            by_host=dict(by_host),
            ignored=ignored or {},
        )
