"""Real small files of every format that cubemesh reads, and damage to them by chance.

Stores are made by the commands themselves. A file reaches a command as it is, or with bits flipped,
parts removed, repeated or moved, numbers and words replaced, or values of a database's rows.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import sqlite3
import tarfile
import zlib
from pathlib import Path

import numpy as np

import fuzz_fork

LOG = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on left device  0 [0x00] NVIDIA H200
#  Rank  1 Group  0 Pid 2 on right device  0 [0x00] NVIDIA H200
#   size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
  1048576  262144  float  sum  -1  40.00  26.21  26.21  0  39.00  26.89  26.89  0
  2097152  524288  float  sum  -1  70.00  29.96  29.96  0  71.00  29.54  29.54  0
"""
SWEEP = """{"schema": 1, "runs": [{"run_id": "a", "operation": "all-reduce", "library": "nccl",
"ranks": [{"host": "h", "device": "cuda:0"}, {"host": "h", "device": "cuda:1"}]}],
"rows": [{"run_id": "a", "size": 1024, "count": 256, "type": "float", "redop": "sum",
"out_of_place": {"time_us": 9.0, "wrong": 0}, "in_place": null}]}
"""
SYSTEM = """name = "x"
title = "a machine"
sources = ["me"]
[gpus]
device = "p100-pcie-16gb"
count = 2
[cpus]
device = "xeon-e5-2690-v4"
count = 1
[pcie]
generation = 3
gpu_to_switch = [0, 0]
switch_to_cpu = [0]
"""
KITTI = "Car 0.00 0 -1.57 5.0 4.0 30.0 25.0 1.5\nDontCare 0 0 0 0 0 9 9 0\n"
COCO = """{"images": [{"id": 7, "file_name": "0.jpg"}], "categories": [{"id": 5, "name": "dog"}],
"annotations": [{"image_id": 7, "category_id": 5, "bbox": [1, 2.5, 20, 20], "iscrowd": 0}]}
"""
TRAINING_LOG = "".join(
    f"Epoch: [0][{step:3d}/400]\tTime  0.250 ( 0.250)\tData  0.001 ( 0.008)\n"
    for step in range(1, 400, 10)
)
MLLOG = "".join(
    f':::MLLOG {{"namespace": "", "time_ms": {time_ms}, "key": "{key}", "value": {value}}}\n'
    for time_ms, key, value in (
        *((1, "global_batch_size", 32), (1, "train_samples", 320)),
        *((1000, "epoch_start", "null"), (9000, "epoch_stop", "null")),
    )
)
XML = """<system version="1"><cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel"
familyid="6" modelid="79"><pci busid="0000:05:00.0" class="0x030200" link_speed="8 GT/s"
link_width="16"><gpu dev="0" sm="60" rank="0" gdr="0"><nvlink target="0000:06:00.0" count="1"
tclass="0x030200"/></gpu></pci><pci busid="0000:06:00.0" class="0x030200" link_speed="8 GT/s"
link_width="16"><gpu dev="1" sm="60" rank="1" gdr="0"/></pci></cpu></system>
"""
MATRIX = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV1\t0-7\t0
GPU1\tNV1\t X \t0-7\t0
"""
CSV = """operation,devices,bytes,seconds
all-reduce,2,8,0.00001
all-reduce,2,1048576,0.0002
all-reduce,4,1048576,0.0003
"""
TEXTS = {
    "a.log": LOG,
    "sweep.json": SWEEP,
    "train.log": TRAINING_LOG,
    "mlperf.log": MLLOG,
    "system.toml": SYSTEM,
    "topology.xml": XML,
    "matrix.txt": MATRIX,
    "rates.csv": CSV,
    "pairs.txt": "a dog\tein Hund\na cat\teine Katze\n" * 40,
    "key.pem": "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n",
    "timing.json": '{"schema": 1, "latencies": {}}\n',
}
EMPTY_PAGE = "<!doctype html>\n<html><body>\n</body>\n</html>\n"
NULL = ("--set", "framework=null", "--set", "ceiling=false", "--set", "steps=2")
MADE_BY: dict[str, list[tuple[str, ...]]] = {
    "runs.sqlite": [("run", "minibatch", *NULL, "--set", "batch_sizes=1,2", "--quick")],
    "queue.sqlite": [
        ("submit", "minibatch", *NULL, "--sweep", "batch_sizes=1,2"),
        ("submit", "minibatch", *NULL, "--priority", "3"),
    ],
}
"""Store → the commands that make it."""
HOSTILE = (
    *("", " ", "0", "-1", "1", "2", "3", "65536", "1e308", "1e-320", "nan", "inf", "-inf", "-0"),
    *("9" * 400, "9" * 5000, "0x" + "f" * 2000, "18446744073709551616", "null", "true", "[]"),
    *("{}", "a=b", "=", ",", "..", "../x", "/dev/full", "/dev/null/x", "\x1b[31m", "\x9b31m"),
    *("\u202e", "\ud800", "é", "名", "😀", "x" * 3000, "[" * 5000, "%s%n", "$(id)", "; id", "'"),
    *('"', "\\", "\n", "\r", "\t", "#", "<!DOCTYPE x>", "<script>", "&#0;", "NaN", "-", "--"),
)
_TOKEN = re.compile(rb"-?[0-9][0-9.e+-]*|[A-Za-z_][A-Za-z0-9_-]*")


class Files:
    """The originals, in a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, text in TEXTS.items():
            (folder / name).write_text(text, encoding="utf-8")
        self._make_arrays()
        self._make_images()
        self._run(0, "export", "little-cnn", "--output", str(folder / "model.onnx"))
        self._make_plan()
        number = 0
        for name, commands in MADE_BY.items():
            for words in commands:
                number += 1
                self._run(number, *words, "--store", str(folder / name))
        with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as database:
            self.run_ids = [run_id for (run_id,) in database.execute("select run_id from records")]
        self._make_bundle()
        self.names = sorted(path.name for path in folder.iterdir() if path.name[0] != ".")

    def place(self, chance: random.Random, work: Path) -> Placed:
        """The files of a command, that appear in its folder as it takes them."""
        return Placed(self, chance, work)

    def _make_arrays(self) -> None:
        from cubemesh.frameworks.contract.program import Snapshot
        from cubemesh.training.checkpoint import Checkpoint, save
        from cubemesh.training.history import History

        images = np.zeros((4, 3, 32, 32), np.float32)
        np.savez(self.folder / "samples.npz", input=images, labels=np.zeros(4, np.int64))
        snapshot = Snapshot(weights={"w": np.zeros(8, np.float32)}, arrays={}, plain={})
        made = Checkpoint(step=3, snapshot=snapshot, history=History(done=3, losses={3: 0.5}))
        (self.folder / "checkpoints").mkdir()
        save(self.folder / "checkpoints", 0, 1, made)
        cifar = self.folder / "cifar-10-batches-bin"
        cifar.mkdir()
        for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
            (cifar / name).write_bytes(bytes(3073 * 2))

    def _make_images(self) -> None:
        try:
            from PIL import Image
        except ImportError:
            return
        file = io.BytesIO()
        Image.new("RGB", (40, 30), (200, 100, 50)).save(file, "JPEG")
        for split in ("train", "val"):
            for label in ("cat", "dog"):
                place = self.folder / "images" / split / label
                place.mkdir(parents=True)
                for number in range(3):
                    (place / f"{number}.jpg").write_bytes(file.getvalue())
            for format_, place in (
                ("kitti", f"{split}/images"),
                ("coco", f"{split}2017"),
            ):
                (self.folder / format_ / place).mkdir(parents=True)
                (self.folder / format_ / place / "0.jpg").write_bytes(file.getvalue())
            (self.folder / "kitti" / split / "labels").mkdir()
            (self.folder / "kitti" / split / "labels" / "0.txt").write_text(KITTI)
            (self.folder / "coco" / "annotations").mkdir(exist_ok=True)
            (self.folder / "coco" / "annotations" / f"{split}2017.json").write_text(COCO)
        with tarfile.open(self.folder / "shard.tar", "w") as tar:
            tar.add(self.folder / "images" / "train", arcname="train")

    def _make_plan(self) -> None:
        """A plan with an invented latency."""
        from cubemesh.inference import plan_file as plans
        from cubemesh.onnx.graph import BATCH, Value

        model = (self.folder / "model.onnx").read_bytes()
        trial = plans.Trial(
            batch=1, model="fp32", precision="fp32", engine="onnxruntime", version="1", seconds=1e-3
        )
        document = plans.PlanDocument(
            format=plans.FORMAT,
            network="little-cnn",
            source="a test",
            source_digest="",
            inputs=(Value(name="input", dtype="float32", shape=(BATCH, 3, 32, 32)),),
            outputs=("scores",),
            device=plans.PlanDevice(cpu="x", instruction_sets=(), threads=1),
            steps=1,
            passes=(),
            models=(plans.ModelNote(name="fp32"),),
            proofs=(),
            trials=(trial,),
            chosen=(0,),
        )
        plans.write_plan(self.folder / "model.plan", document, {"fp32": model})

    def _make_bundle(self) -> None:
        """A share bundle of `runs.sqlite`, with a page without content."""
        from cubemesh.store import Store
        from cubemesh.store.bundles import bundle_file
        from cubemesh.store.bundles.contents import to_parts

        with Store.open(str(self.folder / "runs.sqlite"), read_only=True) as store:
            parts = to_parts(store, self.run_ids, store.machines(), store.experiment_runs())
        bundle_file.write(
            self.folder / "bundle.html", EMPTY_PAGE, parts, version="0", made_utc="2026-01-01"
        )

    def _run(self, number: int, *words: str) -> None:
        home = self.folder.parent / f"home-{number}"
        ended = fuzz_fork.run([*words], self.folder, home, waits=False)
        shutil.rmtree(home)
        if ended.failures or ended.code:
            raise RuntimeError(f"{' '.join(words)}: {ended.failures} {ended.output}")

    def __len__(self) -> int:
        return len(self.names)


class Placed:
    """Files of one command."""

    def __init__(self, files: Files, chance: random.Random, work: Path) -> None:
        self._files, self._chance, self._work = files, chance, work
        self.run_ids = files.run_ids

    def take(self, *hints: str) -> str:
        """A file whose kind fits the words of the first hint that has any, or another; its name in
        the folder of the command."""
        chance, names = self._chance, self._files.names
        fits = ([name for name in names if _fits(name, hint.lower())] for hint in hints)
        fitting = next(filter(None, fits), [])
        name = chance.choice(fitting if fitting and chance.random() < 0.85 else names)
        original, copy = self._files.folder / name, self._work / name
        if not os.path.lexists(copy):
            if original.is_dir():
                shutil.copytree(original, copy)
            else:
                shutil.copy(original, copy)
            if chance.random() < 0.5:
                self._damage(copy)
        if chance.random() < 0.04:
            name = self._replaced(copy)
        return name

    def _damage(self, path: Path) -> None:
        if path.is_dir():
            path = self._chance.choice(sorted(p for p in path.rglob("*") if p.is_file()))
        aware = self._chance.random() < 0.7
        if aware and path.suffix == ".sqlite":
            damage_rows(self._chance, path)
        elif aware and path.suffix == ".html":
            damage_part(self._chance, path)
        elif aware and path.suffix in (".plan", ".safetensors"):
            damage_metadata(self._chance, path)
        else:
            path.write_bytes(damaged(self._chance, path.read_bytes()))

    def _replaced(self, path: Path) -> str:
        """Something else under the name of a file."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        make = self._chance.choice(
            (os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p), lambda p: None)
        )
        make(path)
        return path.name


def _fits(name: str, hint: str) -> bool:
    kind = Path(name).suffix.removeprefix(".")
    if kind == "sqlite":
        return any(word in hint for word in ("store", "baseline", "against"))
    if kind in ("toml", "xml") or name == "matrix.txt":
        return "machine" in hint or "topology" in hint
    if kind == "":
        return "data" in hint if name != "checkpoints" else "checkpoint" in hint
    if kind in ("tar", "txt"):
        return "data" in hint
    words = {
        "html": "bundle",
        "log": "nccl",
        "npz": "npz",
        "onnx": "onnx",
        "csv": "csv",
        "plan": "plan",
        "pem": "pem",
    }
    if kind == "json":
        return ("timing" if name == "timing.json" else "nccl") in hint
    return words.get(kind, "?") in hint


def damaged(chance: random.Random, content: bytes) -> bytes:
    """`content` with one to four faults."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = chance.choice(_FAULTS)(chance, content)
    return content


def _flip(chance: random.Random, content: bytes) -> bytes:
    if not content:
        return b"\x00"
    found = bytearray(content)
    for _ in range(chance.choice((1, 8))):
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _remove(chance: random.Random, content: bytes) -> bytes:
    begin, end = sorted(chance.randrange(len(content) + 1) for _ in "ab")
    return content[:begin] + content[end:]


def _repeat(chance: random.Random, content: bytes) -> bytes:
    begin, end = sorted(chance.randrange(len(content) + 1) for _ in "ab")
    end = min(end, begin + 4096)
    return content[:end] + content[begin:end] * chance.choice((1, 3, 200)) + content[end:]


def _replace_token(chance: random.Random, content: bytes) -> bytes:
    """A number or word becomes a hostile one, or another of the file."""
    tokens = list(_TOKEN.finditer(content[:100_000]))
    if not tokens:
        return _insert(chance, content)
    token, other = chance.choice(tokens), chance.choice(tokens)[0]
    hostile = chance.choice(HOSTILE).encode("utf-8", "surrogatepass")
    new = other if chance.random() < 0.3 else hostile
    return content[: token.start()] + new + content[token.end() :]


def _insert(chance: random.Random, content: bytes) -> bytes:
    place = chance.randrange(len(content) + 1)
    hostile = chance.choice(HOSTILE).encode("utf-8", "surrogatepass")
    new = chance.choice((hostile, chance.randbytes(chance.choice((1, 16, 600)))))
    return content[:place] + new + content[place:]


def _remove_line(chance: random.Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    del lines[chance.randrange(len(lines))]
    return b"\n".join(lines)


_FAULTS = (_flip, _cut, _remove, _repeat, _replace_token, _replace_token, _insert, _remove_line)


def damage_metadata(chance: random.Random, path: Path) -> None:
    """Change the metadata or an array of a checkpoint or plan, whose checksum then fits."""
    from cubemesh.training.checkpoint import read_arrays, write_arrays

    arrays, metadata = read_arrays(path)
    if chance.random() < 0.8 and metadata:
        name = chance.choice(sorted(metadata))
        content = damaged(chance, metadata[name].encode())
        metadata[name] = content.decode(errors="replace")
    else:
        name = chance.choice(sorted(arrays))
        arrays[name] = np.frombuffer(damaged(chance, arrays[name].tobytes()), np.uint8)
    write_arrays(path, arrays, metadata)


def damage_part(chance: random.Random, path: Path) -> None:
    """Damage a part of a bundle, and compute its checksums again."""
    from cubemesh.errors import DataError
    from cubemesh.store.bundles import bundle_file
    from cubemesh.store.bundles.bundle_file import Part

    with contextlib.suppress(DataError):  # damaged already
        parts = {name: Part.of(data) for name, data in bundle_file.read(path).parts.items()}
        name = chance.choice(sorted(parts))
        parts[name] = Part.of(damaged(chance, zlib.decompress(parts[name].data)))
        bundle_file.write(path, EMPTY_PAGE, parts, version="0", made_utc="2026-01-01")


def damage_rows(chance: random.Random, path: Path) -> None:
    """Change, remove or repeat rows of a database, or remove a column or table."""
    with contextlib.closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.Error):
        database.execute("PRAGMA foreign_keys = off")
        for _ in range(chance.choice((1, 1, 2, 5))):
            query = "select name from sqlite_master where type = 'table'"
            tables = [name for (name,) in database.execute(query)]
            table = chance.choice(tables)
            columns = [row[1] for row in database.execute(f'pragma table_info("{table}")')]
            column = chance.choice(columns)
            rows = [row for (row,) in database.execute(f'select rowid from "{table}"')]
            what = chance.random()
            if what < 0.06:
                change = chance.choice(
                    (f'drop table "{table}"', f'alter table "{table}" drop "{column}"')
                )
                with contextlib.suppress(sqlite3.Error):
                    database.execute(change)
            elif rows and what < 0.12:
                database.execute(f'delete from "{table}" where rowid = ?', [chance.choice(rows)])
            elif rows:
                row = chance.choice(rows)
                query = f'select "{column}" from "{table}" where rowid = ?'
                (value,) = database.execute(query, [row]).fetchone()
                with contextlib.suppress(sqlite3.Error, UnicodeError, OverflowError):
                    database.execute(
                        f'update "{table}" set "{column}" = ? where rowid = ?',
                        [_other_value(chance, value), row],
                    )
        database.commit()


def _other_value(chance: random.Random, value: object) -> object:
    if chance.random() < 0.2:
        return chance.choice((None, -1, 2**62, 1e308, float("inf"), "", b"", "[" * 3000, b"\xff"))
    if isinstance(value, str):
        return damaged(chance, value.encode()).decode(errors="replace")
    if isinstance(value, bytes):
        with contextlib.suppress(zlib.error):
            if chance.random() < 0.5:
                return zlib.compress(damaged(chance, zlib.decompress(value)))
        return damaged(chance, value)
    return chance.choice((0, -1, 7, 1e-320, 2**62, "x", None))
