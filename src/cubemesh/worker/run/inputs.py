"""Inputs of a run: the data source and feed that its spec asks for, and figures about them.

Figures: the time that a step waited for its batches; for images, how many were skipped and
converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data import ImageOptions, Source, input_threads, open_for, synthetic
from cubemesh.data.feed import Feed
from cubemesh.data.images.encoded_source import EncodedSource
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.local_cache import LocalCache
from cubemesh.data.images.open_images import CachedImages
from cubemesh.data.images.skipped_images import ImageCounts
from cubemesh.data.own.source import Own, OwnStream
from cubemesh.data.own.stages import collate, items
from cubemesh.data.source import Split
from cubemesh.data.stage_benchmark import ReadOnly, decode_only
from cubemesh.data.text.documents import DocumentRows
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import Unsupported, monotonic_s
from cubemesh.measure.log import Log
from cubemesh.measure.timing.timer import Measured
from cubemesh.measure.validity import page_cache
from cubemesh.networks.graph import Network
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.record import Figure
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning, warn
from cubemesh.schema.work import InferPrecision, Input, NetworkWork, Stage, Train
from cubemesh.units import format_count
from cubemesh.untrusted import clean
from cubemesh.worker.launch.ranks import rank_from_env
from cubemesh.worker.report.memory import available_bytes

OWN_STAGES: tuple[Stage, ...] = ("item", "collate")
OTHER_STAGES: tuple[Stage, ...] = ("read", "decode", "copy")
GENERATED = 1 / 8
"""Part of the available memory that generated images may fill."""
STILL_THERE = 0.25
"""Files with a larger fraction in memory were not read from the disk; read-ahead leaves some."""


def open_split(spec: RunSpec, network: Network, split: Split) -> Source:
    """The samples of `split` for the spec's work, in the form `network` takes."""
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
    source = open_for(
        network,
        work.data,
        work.data_path,
        split,
        seed=work.seed,
        samples_needed=work.batch_per_device * spec.placement.devices,
        options=options,
        generated_bytes=memory_for_generated(spec),
        tokenizer=work.tokenizer,
        own_data=work.own_data,
    )
    epochs = split == "validation" or isinstance(work, Train | InferPrecision)
    if isinstance(source, OwnStream) and epochs and not source.has_length:
        raise Unsupported(
            f"{source.name} is an iterable without a length, and an epoch is a pass over all of "
            "its samples. Give it __len__, or measure single steps (run minibatch)."
        )
    if isinstance(source, OwnStream) and spec.placement.devices > 1:
        raise Unsupported(
            f"devices={spec.placement.devices}: {source.name} gives samples in its own order, so "
            "each device would train on the same ones. Give a map-style data set, or set devices=1."
        )
    return source


def memory_for_generated(spec: RunSpec) -> int:
    """Bytes that a rank may fill with generated images: a part of the memory that is available to
    it, or of the limit of its budget."""
    own = available_bytes() // rank_from_env().local_ranks
    limit = spec.budget.memory_limit_bytes
    return int(GENERATED * (own if limit is None else min(own, limit)))


def open_stage(spec: RunSpec, network: Network) -> Source:
    """The source on which a stage of the input pipeline is measured; Unsupported where the data
    have no such stage."""
    work = spec.work
    assert isinstance(work, Input), "only for a stage of the input"
    source = open_split(spec, network, "train")
    if work.stage == "copy":
        return source
    if isinstance(source, Own) and work.stage in OWN_STAGES:
        if work.stage == "collate":
            return collate(source, network, work.batch_per_device)
        return items(source, network, one=spec.program.input_threads == 1)
    if isinstance(source, Own) or work.stage in OWN_STAGES:
        stages = ", ".join((*OWN_STAGES, "copy") if isinstance(source, Own) else OTHER_STAGES)
        raise Unsupported(f"data={work.data} has no stage={work.stage}. Choose from {stages}.")
    if not isinstance(source, ImageSource):
        raise Unsupported(
            f"data={work.data} is neither read nor decoded in the step. Set data=images, without "
            "cache_decoded, or stage=copy."
        )
    return ReadOnly(source) if work.stage == "read" else decode_only(source)


@dataclass(frozen=True)
class HostClock:
    """Clock and synchronization of a stage on the host, also for a simulated program."""

    synchronize: Callable[[], None] = lambda: None
    """Waits for a copy to the device; nothing to wait for otherwise."""
    clock: Callable[[], float] = monotonic_s


def log_padding(log: Log, source: Source) -> None:
    """Log the part of all positions that are padding, of documents."""
    if isinstance(source, DocumentRows):
        method = f"of the positions of {source.samples} rows"
        log.figure("padding_percent", Figure(value=100 * source.padding, unit="%", method=method))


def log_files(log: Log, source: Source, threads: int) -> None:
    """Log the threads that prepare batches; for image files, their mean size and the fraction of
    them in the page cache before anything is timed; for generated images their number, where it is
    not the usual one."""
    log_generated(log, source)
    log_padding(log, source)
    if threads:
        log.figure("input_threads", Figure(value=threads, unit=""))
    if isinstance(source, OwnStream) and source.workers:
        log.figure("input_workers", Figure(value=source.workers, unit=""))
    if isinstance(source, ImageSource):
        log.figure(
            "image_file_bytes",
            Figure(value=source.mean_bytes(), unit="B", method=clean(source.storage(), 300)),
        )
        share = source.in_page_cache()
        if (warning := page_cache(share)) is not None:
            log.warning(warning)
        if share is not None:
            method = (
                "whether the middle page of each file is in the page cache before the first step"
            )
            log.figure("page_cache_share", Figure(value=share, unit="", method=method))


def log_generated(log: Log, source: Source) -> None:
    """Log how many samples were generated, where memory or the batch made it another number than
    the usual one."""
    if source.name == synthetic.NAME and source.samples != synthetic.SAMPLES["train"]:
        method = (
            f"{format_count(synthetic.SAMPLES['train'])}, fewer where they need more than an "
            "eighth of the available memory, and at least a global batch"
        )
        log.figure("generated_samples", Figure(value=source.samples, unit="", method=method))


def warn_if_still_cached(spec: RunSpec, log: Log, source: Source) -> None:
    """Log a warning where files are still in the page cache in spite of drop_page_cache=true."""
    if not spec.program.drop_page_cache or not isinstance(source, ImageSource):
        return
    if source.is_remote:
        return
    share = source.in_page_cache()
    if share is not None and share <= STILL_THERE:
        return
    how_many = "how many remain is unknown" if share is None else f"{share:.0%} remain"
    cause = f"Image files were dropped from the page cache after each read; {how_many}."
    remedy = "Store them on a local disk, where no other process reads them meanwhile."
    log.warning(warn("page-cache", cause, remedy))


def feed(
    spec: RunSpec,
    source: Source,
    usable_cores: float,
    epochs: int | None = None,
    group: Group | None = None,
    start: int = 0,
) -> Feed:
    """Feed of batches of `source` for this rank of `group`, after the first `start`; of global
    batches where all ranks work on the same samples. Without threads where one batch is resident on
    the device."""
    work, program = spec.work, spec.program
    assert isinstance(work, NetworkWork), "only networks are fed"
    threads = input_threads(work.data, program.input_threads, usable_cores, program.decode_location)
    if isinstance(source, OwnStream):
        threads = source.threads(program.input_threads)
    if program.data_location == "device":
        threads = 0
    group = group or SingleProcessGroup()
    together = strategy(program.sync).ranks_per_sample(group.size, program)
    devices = 1 if isinstance(work, Input) else spec.placement.devices
    return Feed(
        source,
        # for this process's devices: one of them, or all where one process drives them all
        work.batch_per_device * (devices // group.size) * together,
        work.seed,
        threads=threads,
        epochs=epochs,
        rank=group.rank // together,
        ranks=group.size // together,
        shared_by=together,
        start=start,
    )


def wait(measured: Measured, fed: Feed) -> Figure:
    """Mean wait of a step for its batch; without threads, the time to prepare it."""
    steps = sum(w.steps for w in measured.windows)
    waited_s = fed.waited_s(measured.started, measured.ended)
    method = f"prepared by {fed.threads} threads" if fed.threads else "prepared in the step"
    return Figure(value=waited_s / steps, unit="s", n=steps, method=method)


class InputWaitMeter:
    """A meter of the telemetry: how long the training thread has waited for batches. A wait counts
    when it ends."""

    device = "host"

    def __init__(self, fed: Feed) -> None:
        self.missing: dict[str, str] = {}
        self._fed = fed

    def read(self) -> dict[str, float]:
        """Percent × seconds so far, a counter whose rate is in percent."""
        return {"input_wait_percent_seconds": 100 * self._fed.wait_so_far_s}

    def needs(self) -> None:
        """None: it is no power sensor."""


def log_images(log: Log, *read: tuple[Source, NDArray[np.bool_] | None]) -> None:
    """Log `images_skipped` (skipped) and `images_converted` over all reads, pairs of a source and
    the samples that were tried (None: all); `images_decoded_by_host` where the device decodes; and
    a warning where any was skipped. Nothing for data that are not decoded."""
    tallies = [
        source.tally(np.ones(source.samples, np.bool_) if tried is None else tried)
        for source, tried in read
        if isinstance(source, ImageSource | CachedImages)
    ]
    if not tallies:
        return
    _log_local_cache(log, [s for s, _ in read if isinstance(s, ImageSource)])
    tally = sum(tallies, ImageCounts(tried=0))
    log.figure(
        "images_skipped",
        Figure(value=tally.skipped_images, unit="", n=tally.tried, method=by_kind(tally.skipped)),
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
    if warning := skipped_warning(tally):
        log.warning(warning)


def _log_local_cache(log: Log, read: Sequence[ImageSource]) -> None:
    """Close the packs of the local cache and log their bytes."""
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


def skipped_warning(tally: ImageCounts) -> Warning | None:
    """The warning `images-skipped`, with each reason, its count and some names; None where every
    file is a usable image."""
    if not tally.skipped_images and not tally.ignored:
        return None
    reasons = [
        f"{format_count(count)} {reason} ({', '.join(tally.examples[reason])}"
        f"{', …' if count > len(tally.examples[reason]) else ''})"
        for reason, count in _most_first(tally.skipped)
    ]
    cause = (
        f"{format_count(tally.skipped_images)} of {format_count(tally.tried)} images tried could "
        f"not be used: {'; '.join(reasons)}."
        if reasons
        else f"All {format_count(tally.tried)} images tried could be used."
    )
    if tally.ignored:
        cause += f" Ignored files: {by_kind(tally.ignored)}."
    remedy = (
        "Other images replaced them. Replace or delete these files; `max_image_pixels` admits "
        "larger images."
        if reasons
        else "Nothing, if that is intended; docs/data.md lists which files are images."
    )
    return warn("images-skipped", cause, remedy)


def by_kind(counts: Mapping[str, int]) -> str:
    """`12 truncated, 3 empty file`, most frequent first."""
    return ", ".join(f"{format_count(n)} {kind}" for kind, n in _most_first(counts))


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
