"""What a run is fed as its spec asks, and what it has to say of that.

How long the step waited for its minibatches; of images, how many were set aside and converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cubemesh.data import Reading, Source, input_threads, open_for
from cubemesh.data.base import Split
from cubemesh.data.feed import Feed
from cubemesh.data.images import Images, Kept
from cubemesh.data.ledger import Tally
from cubemesh.frameworks.exchange import Group
from cubemesh.measure.base import Log
from cubemesh.measure.timer import Measured
from cubemesh.model.record import Figure
from cubemesh.model.spec import NetworkWork, RunSpec
from cubemesh.model.warning import Warning, warn
from cubemesh.networks.graph import Network
from cubemesh.units import format_count


def open_split(spec: RunSpec, network: Network, split: Split) -> Source:
    """The samples of `split` that the spec's work names, in the form `network` takes."""
    work = spec.work
    assert isinstance(work, NetworkWork), "only networks are fed"
    reading = Reading(keep_decoded=spec.program.keep_decoded)
    if work.max_image_pixels is not None:
        reading = replace(reading, max_pixels=work.max_image_pixels)
    return open_for(
        network,
        work.data,
        work.data_path,
        split,
        seed=work.seed,
        samples_needed=work.batch_per_device,
        reading=reading,
    )


def feed(
    spec: RunSpec,
    source: Source,
    usable_cores: float,
    epochs: int | None = None,
    group: Group | None = None,
) -> Feed:
    """Minibatches of `source` for this rank of `group`; where one is to lie on the device for good,
    made without threads."""
    work, program = spec.work, spec.program
    assert isinstance(work, NetworkWork), "only networks are fed"
    threads = input_threads(work.data, program.input_threads, usable_cores)
    if program.data_on == "device":
        threads = 0
    return Feed(
        source,
        work.batch_per_device,
        work.seed,
        threads=threads,
        epochs=epochs,
        rank=group.rank if group else 0,
        ranks=group.size if group else 1,
    )


def wait(measured: Measured, fed: Feed) -> Figure:
    """What a step waited for its minibatch, in the mean; without threads, what making it took."""
    steps = sum(w.steps for w in measured.windows)
    waited_s = fed.waited_s(measured.started, measured.ended)
    method = f"by {fed.threads} threads ahead of the step" if fed.threads else "made in the step"
    return Figure(value=waited_s / steps, unit="s", n=steps, method=method)


def say(log: Log, *read: tuple[Source, NDArray[np.bool_] | None]) -> None:
    """The figures `images_set_aside` and `images_converted` over all that was read, pairs of a
    source and the samples that were tried (None: all); and a warning where there are any of the
    first. Nothing for data that are not decoded."""
    tallies = [
        source.tally(np.ones(source.samples, np.bool_) if tried is None else tried)
        for source, tried in read
        if isinstance(source, Images | Kept)
    ]
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
