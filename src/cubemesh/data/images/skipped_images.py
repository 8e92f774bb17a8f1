"""Skipped images: images that could not be used or were converted, with reasons.

They are listed by number. Counts are over the images of the batches that were used, so that they
do not depend on how far threads had run ahead.
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
    """How many images were skipped and converted, of those that were tried."""

    tried: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason → images."""
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Reason → the first names, in the order of the data set."""
    converted: int = 0
    """Images that were converted."""
    conversions: Mapping[str, int] = field(default_factory=dict)
    """Conversion → images; an image that needed two counts in both."""
    by_host: Mapping[str, int] = field(default_factory=dict)
    """Reason → images that the host decoded in place of the device."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Kind of file that is not an image → files."""

    @property
    def skipped_images(self) -> int:
        """Images that were skipped."""
        return sum(self.skipped.values())

    def __add__(self, other: ImageCounts) -> ImageCounts:
        return ImageCounts(
            tried=self.tried + other.tried,
            skipped=_sum(self.skipped, other.skipped),
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
    """Skipped and converted images; threads may add to it at the same time."""

    def __init__(self) -> None:
        self._skipped: dict[int, str] = {}
        self._converted: dict[int, tuple[str, ...]] = {}
        self._by_host: dict[int, str] = {}
        self._lock = threading.Lock()

    def skip(self, number: int, reason: str) -> None:
        """Image `number` cannot be used."""
        with self._lock:
            self._skipped[number] = reason

    def convert(self, number: int, ways: tuple[str, ...]) -> None:
        """Image `number` was converted in these ways."""
        with self._lock:
            self._converted[number] = ways

    def leave_to_host(self, number: int, reason: str) -> None:
        """Image `number` cannot be decoded by the device."""
        with self._lock:
            self._by_host[number] = reason

    def is_left_to_host(self, number: int) -> bool:
        """Whether the device cannot decode image `number`."""
        return number in self._by_host

    def reason(self, number: int) -> str | None:
        """Why image `number` was skipped; None if it was not."""
        return self._skipped.get(number)

    def reasons(self) -> dict[str, int]:
        """Reason → images, of all that were tried so far."""
        with self._lock:
            return dict(Counter(self._skipped.values()))

    @property
    def count(self) -> int:
        """Images skipped so far."""
        return len(self._skipped)

    def tally(
        self,
        tried: NDArray[np.bool_],
        name_of: Callable[[int], str],
        ignored: Mapping[str, int],
    ) -> ImageCounts:
        """The counts over the images marked in `tried` (samples,)."""
        with self._lock:
            skipped = {n: r for n, r in sorted(self._skipped.items()) if tried[n]}
            converted = [ways for n, ways in self._converted.items() if tried[n]]
            by_host = Counter(reason for n, reason in self._by_host.items() if tried[n])
        examples: dict[str, tuple[str, ...]] = {}
        for number, reason in skipped.items():
            names = examples.get(reason, ())
            if len(names) < EXAMPLES:
                examples[reason] = (*names, name_of(number))
        return ImageCounts(
            tried=int(tried.sum()),
            skipped=dict(Counter(skipped.values())),
            examples=examples,
            converted=len(converted),
            conversions=dict(Counter(way for ways in converted for way in ways)),
            by_host=dict(by_host),
            ignored=ignored,
        )
