"""JPEG decoding rate (images/s) of each decoder: one CPU core, all cores, the GPU.

The images are `made-images`: 1,024 generated JPEG files of 500 x 375 pixels and about 110 kB, in
the cache folder, read into memory first. Each line decodes for about `--seconds` and prints
images/s, on a CPU also per thread or process.

    to the network    by cubemesh: decoded, a random crop, resized to --size
    whole             at their own size, by each installed library
    on the GPU        by nvJPEG, in minibatches of --batches: baseline and progressive files (which
                      its hardware does not support); then with cubemesh's crop in 16 bits

    python benchmarks/jpeg_decoding.py                                  # CPU
    python benchmarks/jpeg_decoding.py --device cuda:0 --json decoding.json

Libraries that are not installed are printed as absent.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from cubemesh.batches import EncodedBatch, EncodedImage
from cubemesh.data.images import generated_jpegs as made_images
from cubemesh.data.images.decode import PILLOW_PIXELS, Augmentation, Decoder
from cubemesh.data.images.jpeg_header import plain_header
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.data.stage_benchmark import decode_only

PIECE = 16
"""Images handed to a thread or process at once."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The rate of one decoder."""

    decoder: str
    workers: int = 1
    """Threads or processes."""
    images_per_s: float | None = None
    absent: str = ""


@cache
def files() -> list[bytes]:
    """The images, as bytes."""
    return [path.read_bytes() for path in sorted(made_images.folder().rglob("*.jpg"))]


def rate(decode: Callable[[Sequence[bytes]], object], size: int, seconds: float) -> float:
    """Images per second of calls with `size` images each, after a warm-up call."""
    images = files()
    pieces = [
        [images[(start + n) % len(images)] for n in range(size)]
        for start in range(0, len(images), size)
    ]
    decode(pieces[0])
    done, start = 0, time.perf_counter()
    while (spent_s := time.perf_counter() - start) < seconds:
        decode(pieces[done % len(pieces)])
        done += 1
    return done * size / spent_s


@cache
def decoder(size: int) -> Decoder:
    """Cubemesh's own, one per process."""
    return Decoder(3, size, size, PILLOW_PIXELS)


def to_network(images: Sequence[bytes], size: int) -> None:
    """As in training."""
    for number, data in enumerate(images):
        decoder(size).decode(data, "x.jpg", number, Augmentation(0, 0))


def pillow(images: Sequence[bytes]) -> None:
    """Whole images, as arrays."""
    image = importlib.import_module("PIL.Image")
    for data in images:
        np.asarray(image.open(io.BytesIO(data)).convert("RGB"))


def simplejpeg(images: Sequence[bytes]) -> None:
    """The same."""
    decode = importlib.import_module("simplejpeg").decode_jpeg
    for data in images:
        decode(data, "RGB")


def opencv(images: Sequence[bytes]) -> None:
    """The same, with the colours in another order."""
    cv2 = importlib.import_module("cv2")
    for data in images:
        cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def torchvision(images: Sequence[bytes]) -> None:
    """The same, as tensors."""
    torch, io_ = importlib.import_module("torch"), importlib.import_module("torchvision.io")
    for data in images:
        io_.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))


WHOLE = {"PIL": pillow, "simplejpeg": simplejpeg, "cv2": opencv, "torchvision": torchvision}
"""Module → function that decodes with it."""


def shared(
    decode: Callable[[Sequence[bytes]], None], pool: Executor, workers: int
) -> Callable[[Sequence[bytes]], None]:
    """`decode` of a call's images by all workers, a piece at a time."""

    def run(images: Sequence[bytes]) -> None:
        pieces = [images[n : n + PIECE] for n in range(0, len(images), PIECE)]
        for _ in pool.map(decode, pieces):
            pass

    return run


def on_cpu(args: argparse.Namespace) -> Iterator[Line]:
    """Every decoder on one core; cubemesh's by threads and by processes too."""
    own = partial(to_network, size=args.size)
    yield Line(decoder="to the network", images_per_s=rate(own, PIECE, args.seconds))
    for kind, pool_of in (("threads", ThreadPoolExecutor), ("processes", ProcessPoolExecutor)):
        for workers in sorted({2, args.workers // 2, args.workers} - {0, 1}):
            with pool_of(workers) as pool:
                found = rate(shared(own, pool, workers), 4 * PIECE * workers, args.seconds)
            yield Line(decoder=f"to the network, {kind}", workers=workers, images_per_s=found)
    for module, decode in WHOLE.items():
        if importlib.util.find_spec(module) is None:
            yield Line(decoder=f"whole, {module}", absent="not installed")
        else:
            found = rate(decode, PIECE, args.seconds)
            yield Line(decoder=f"whole, {module}", images_per_s=found)


def encoded(images: Sequence[bytes]) -> list[EncodedImage]:
    """The input of a GPU's decoder, which ignores boxes."""
    return [
        EncodedImage(
            data=data,
            size=(made_images.WIDTH, made_images.HEIGHT),
            box=(0, 0, made_images.WIDTH, made_images.HEIGHT),
            mirrored=False,
            whole=_none,
            by_host=_refused,
            progressive=header is not None and header.progressive,
        )
        for data in images
        for header in (plain_header(data),)
    ]


def _none() -> None:
    """Nothing is decoded on the host."""


def _refused() -> Any:
    raise RuntimeError("the GPU's decoder refused a valid image")


def progressive(data: bytes) -> bytes:
    """The same image as a progressive file."""
    image, file = importlib.import_module("PIL.Image"), io.BytesIO()
    image.open(io.BytesIO(data)).save(file, "JPEG", quality=90, progressive=True)
    return file.getvalue()


def gpu_decoders(device: Any) -> Iterator[tuple[str, Callable[[], Any], bool]]:
    """(name, factory, whether it gets progressive files)."""
    jpeg = importlib.import_module("cubemesh.frameworks.pytorch.input.jpeg")
    yield "nvJPEG", lambda: jpeg.NvJpeg(device, 3), False
    yield "nvJPEG, progressive", lambda: jpeg.NvJpeg(device, 3), True


def on_gpu(args: argparse.Namespace) -> Iterator[Line]:
    """nvJPEG with every batch size, then cubemesh's decoding and cropping."""
    torch = importlib.import_module("torch")
    device = torch.device(args.device)
    slow = [progressive(data) for data in files()[: min(args.batches)]]

    def decode(found: Any, given: Sequence[bytes] | None, images: Sequence[bytes]) -> None:
        made = found.decode(encoded(given or images))
        torch.cuda.synchronize(device)
        if any(one is None for one in made):
            _refused()

    for name, make, is_progressive in gpu_decoders(device):
        try:
            found = make()
            for batch in args.batches[:1] if is_progressive else args.batches:
                run = partial(decode, found, slow if is_progressive else None)
                per_s = rate(run, batch, args.seconds)
                yield Line(decoder=f"{name}, {batch} a call", images_per_s=per_s)
        except (ImportError, RuntimeError) as error:
            yield Line(decoder=name, absent=str(error))
    yield from with_crop(args)


def with_crop(args: argparse.Namespace) -> Iterator[Line]:
    """Files in memory to 16-bit minibatches on the device."""
    placing = importlib.import_module("cubemesh.frameworks.pytorch.input.host_to_device")
    feeding = importlib.import_module("jpeg_feeding")
    images = open_images(
        made_images.folder(),
        "train",
        (3, args.size, args.size),
        10,
        ImageOptions(stays_encoded=True),
    )
    source = decode_only(images)
    for batch in args.batches:
        placer = placing.HostToDevice(feeding.request_for(args.device, args.size, batch))
        epoch = source.epoch(0, 0).source
        made = epoch.batch(np.arange(batch) % source.samples)
        assert isinstance(made, EncodedBatch)
        per_s = rate(lambda _: placer.decode(made), batch, args.seconds)  # noqa: B023
        yield Line(decoder=f"decoded and cropped, {batch} a call", images_per_s=per_s)


def text(line: Line) -> str:
    """A line of the table."""
    if line.images_per_s is None:
        return f"{line.decoder:36} absent: {line.absent}"
    each = line.images_per_s / line.workers
    return f"{line.decoder:36} {line.workers:5} {line.images_per_s:10,.0f} {each:10,.0f}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 for nvJPEG")
    parser.add_argument("--size", type=int, default=224, help="the network's, in pixels")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batches", type=int, nargs="*", default=[64, 256, 512])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each line")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    print(f"{'decoder':36} {'×':>5} {'images/s':>10} {'each':>10}")
    lines = []
    for line in on_cpu(args) if args.device == "cpu" else on_gpu(args):
        lines.append(line)
        print(text(line), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            settings = {k: v for k, v in vars(args).items() if k != "json"}
            json.dump(
                {"schema": 1, **settings, "lines": [asdict(line) for line in lines]}, file, indent=2
            )


if __name__ == "__main__":
    main()
