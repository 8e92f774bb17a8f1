"""What a run has to say of the images it was fed: how many were set aside, how many converted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.base import Source
from cubemesh.data.images import Images, Kept
from cubemesh.data.ledger import Tally
from cubemesh.measure.base import Log
from cubemesh.model.record import Figure
from cubemesh.model.warning import Warning, warn
from cubemesh.units import format_count


def say(log: Log, *read: tuple[Source, NDArray[np.bool_]]) -> None:
    """The figures `images_set_aside` and `images_converted` over all that was read, pairs of a
    source and the samples that were tried; and a warning where there are any of the first.
    Nothing for data that are not decoded."""
    tallies = [s.tally(tried) for s, tried in read if isinstance(s, Images | Kept)]
    if not tallies:
        return
    tally = sum(tallies, Tally(tried=0))
    log.figure(
        "images_set_aside",
        Figure(value=tally.aside, unit="", n=tally.tried, method=by_kind(tally.set_aside)),
    )
    log.figure(
        "images_converted",
        Figure(value=tally.converted, unit="", n=tally.tried, method=by_kind(tally.conversions)),
    )
    if warning := set_aside(tally):
        log.warning(warning)


def set_aside(tally: Tally) -> Warning | None:
    """The warning `images-set-aside`, with each reason, its count and some names; None where every
    image could be used and nothing else lay among them."""
    if not tally.aside and not tally.ignored:
        return None
    told = [
        f"{format_count(count)} {reason} ({', '.join(tally.examples[reason])}"
        f"{', …' if count > len(tally.examples[reason]) else ''})"
        for reason, count in _most_first(tally.set_aside)
    ]
    cause = (
        f"{format_count(tally.aside)} of {format_count(tally.tried)} images tried could not be "
        f"used: {'; '.join(told)}."
        if told
        else f"All {format_count(tally.tried)} images tried could be used."
    )
    if tally.ignored:
        cause += f" Left alone: {by_kind(tally.ignored)}."
    remedy = (
        "Others took their places. Replace or delete these files; `max_image_pixels` admits larger "
        "images."
        if told
        else "Nothing, where this was meant; docs/data.md says what is taken for an image."
    )
    return warn("images-set-aside", cause, remedy)


def by_kind(counts: Mapping[str, int]) -> str:
    """`12 truncated, 3 empty file`: the most frequent first."""
    return ", ".join(f"{format_count(n)} {kind}" for kind, n in _most_first(counts))


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
