"""What a run is fed as its spec asks, and what it has to say of that.

How long the step waited for its minibatches; of images, how many were set aside and converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data import ImageOptions, Source, input_threads, open_for
from cubemesh.data.feed import Feed
from cubemesh.data.images.encoded_source import EncodedSource
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.local_cache import LocalCache
from cubemesh.data.images.open_images import CachedImages
from cubemesh.data.images.skipped_images import ImageCounts
from cubemesh.data.source import Split
from cubemesh.data.stage_benchmark import ReadOnly, decode_only
from cubemesh.frameworks.api.group import Group, SingleProcessGroup
from cubemesh.frameworks.api.program import Program, SupportsDecoding, Unsupported, monotonic_s
from cubemesh.measure.log import Log
from cubemesh.measure.timing.timer import Measured
from cubemesh.measure.validity import page_cache
from cubemesh.networks.graph import Network
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.record import Figure
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning, warn
from cubemesh.schema.work import Input, NetworkWork
from cubemesh.units import format_count

STILL_THERE = 0.25
"""Files with a larger fraction in memory were not read from the disk; read-ahead leaves some."""


def open_split(spec: RunSpec, network: Network, split: Split) -> Source:
    """The samples of `split` that the spec's work names, in the form `network` takes. Unsupported
    where a script is to play on images that take real time to decode."""
    work = spec.work
    assert isinstance(work, NetworkWork), "only networks are fed"
    program, usual = spec.program, ImageOptions()
    stays_encoded = program.decode_location == "device"
    folder, limit_bytes = program.stage_folder, program.stage_limit_bytes
    options = ImageOptions(
        max_pixels=usual.max_pixels if work.max_image_pixels is None else work.max_image_pixels,
        cache_decoded=program.cache_decoded,
        drop_page_cache=program.drop_page_cache,
        stage_folder=None if folder is None else Path(folder).expanduser(),
        stage_limit_bytes=usual.stage_limit_bytes if limit_bytes is None else limit_bytes,
        stays_encoded=stays_encoded,
    )
    return open_for(
        network,
        work.data,
        work.data_path,
        split,
        seed=work.seed,
        samples_needed=work.batch_per_device * spec.placement.devices,
        options=options,
    )


def open_stage(spec: RunSpec, network: Network) -> Source:
    """What a stage of the input is measured on; Unsupported where the data have no such stage."""
    work = spec.work
    assert isinstance(work, Input), "asked of an input's stage alone"
    source = open_split(spec, network, "train")
    if work.stage == "copy":
        return source
    if not isinstance(source, ImageSource):
        raise Unsupported(
            f"data={work.data} is neither read nor decoded in the step. Set data=images, without "
            "cache_decoded, or stage=copy."
        )
    return ReadOnly(source) if work.stage == "read" else decode_only(source)


@dataclass(frozen=True)
class Host:
    """Where a stage runs: on the host's own clock, whatever a scripted program's says."""

    synchronize: Callable[[], None] = lambda: None
    """A minibatch that was taken is there; one that was copied must be waited for."""

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()


def discard(made: object) -> None:
    """What a stage makes is wanted by nobody."""


def log_files(log: Log, source: Source, threads: int) -> None:
    """The threads that make minibatches; of images read from files, the mean size of one, and how
    much of them is in memory before anything is timed."""
    if threads:
        log.figure("input_threads", Figure(value=threads, unit=""))
    if isinstance(source, ImageSource | ReadOnly):
        log.figure("image_file_bytes", Figure(value=source.mean_bytes(), unit="B"))
        share = source.in_page_cache()
        if (warning := page_cache(share)) is not None:
            log.warning(warning)
        if share is not None:
            method = "middle pages looked for in the page cache before the first step"
            log.figure("page_cache_share", Figure(value=share, unit="", method=method))


def warn_if_still_cached(spec: RunSpec, log: Log, source: Source) -> None:
    """A warning where files that were to be dropped from memory are there all the same."""
    if not spec.program.drop_page_cache or not isinstance(source, ImageSource | ReadOnly):
        return
    share = source.in_page_cache()
    if share is not None and share <= STILL_THERE:
        return
    how_many = "nobody can tell whether they went" if share is None else f"{share:.0%} are there"
    cause = f"Image files were dropped from memory after each reading, and {how_many}."
    remedy = "Keep them on a local disk, where no other process reads them at the same time."
    log.warning(warn("page-cache", cause, remedy))


def feed(
    spec: RunSpec,
    source: Source,
    usable_cores: float,
    epochs: int | None = None,
    group: Group | None = None,
    start: int = 0,
) -> Feed:
    """Minibatches of `source` for this rank of `group`, after the first `start`, or global ones
    where all ranks work on the same samples; where one is to lie on the device for good, made
    without threads."""
    work, program = spec.work, spec.program
    assert isinstance(work, NetworkWork), "only networks are fed"
    threads = input_threads(work.data, program.input_threads, usable_cores, program.decode_location)
    if program.data_location == "device":
        threads = 0
    group = group or SingleProcessGroup()
    whole = strategy(program.sync).same_samples
    devices = 1 if isinstance(work, Input) else spec.placement.devices
    return Feed(
        source,
        # what this process's devices take: one of them, or all where one process drives them all
        work.batch_per_device * (devices if whole else devices // group.size),
        work.seed,
        threads=threads,
        epochs=epochs,
        rank=0 if whole else group.rank,
        ranks=1 if whole else group.size,
        taken_by=group.size if whole else 1,
        start=start,
    )


@contextmanager
def decoded(spec: RunSpec, feed: Feed, program: Program) -> Iterator[None]:
    """Within it `program` decodes what the feed makes, where the spec says so. The feed is closed
    at the end, before the program is."""
    if spec.program.decode_location == "device":
        assert isinstance(program, SupportsDecoding), "check_supported has seen to it"
        feed.decode_by(program)
    try:
        yield
    finally:
        feed.close()


def wait(measured: Measured, fed: Feed) -> Figure:
    """What a step waited for its minibatch, in the mean; without threads, what making it took."""
    steps = sum(w.steps for w in measured.windows)
    waited_s = fed.waited_s(measured.started, measured.ended)
    method = f"by {fed.threads} threads ahead of the step" if fed.threads else "made in the step"
    return Figure(value=waited_s / steps, unit="s", n=steps, method=method)


def log_images(log: Log, *read: tuple[Source, NDArray[np.bool_] | None]) -> None:
    """The figures `images_set_aside` and `images_converted` over all that was read, pairs of a
    source and the samples that were tried (None: all); `images_decoded_by_host` where that was the
    device's part; and a warning where any was set aside. Nothing for data that are not decoded."""
    tallies = [
        source.tally(np.ones(source.samples, np.bool_) if tried is None else tried)
        for source, tried in read
        if isinstance(source, ImageSource | CachedImages | ReadOnly)
    ]
    if not tallies:
        return
    _say_staged(log, [s for s, _ in read if isinstance(s, ImageSource)])
    tally = sum(tallies, ImageCounts(tried=0))
    log.figure(
        "images_set_aside",
        Figure(value=tally.aside, unit="", n=tally.tried, method=by_kind(tally.set_aside)),
    )
    log.figure(
        "images_converted",
        Figure(value=tally.converted, unit="", n=tally.tried, method=by_kind(tally.conversions)),
    )
    if any(isinstance(source, EncodedSource) for source, _ in read):
        by_host = sum(tally.by_host.values())
        log.figure(
            "images_decoded_by_host",
            Figure(value=by_host, unit="", n=tally.tried, method=by_kind(tally.by_host)),
        )
    if warning := set_aside(tally):
        log.warning(warning)


def _say_staged(log: Log, read: Sequence[ImageSource]) -> None:
    """How much lies in the packs on the local disk, which are ended here."""
    packs = [s.encoded for s in read if isinstance(s.encoded, LocalCache)]
    for pack in packs:
        pack.close()
    if packs:
        log.figure(
            "staged_bytes",
            Figure(
                value=sum(p.staged_bytes for p in packs),
                unit="B",
                n=sum(p.staged for p in packs),
                method="; ".join(dict.fromkeys(p.stopped for p in packs if p.stopped)),
            ),
        )


def set_aside(tally: ImageCounts) -> Warning | None:
    """The warning `images-skipped`, with each reason, its count and some names; None where every
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
    return warn("images-skipped", cause, remedy)


def by_kind(counts: Mapping[str, int]) -> str:
    """`12 truncated, 3 empty file`: the most frequent first."""
    return ", ".join(f"{format_count(n)} {kind}" for kind, n in _most_first(counts))


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
