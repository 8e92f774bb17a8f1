"""Trainings, questions, jobs and reports under random faults; then what must hold is checked.

    python benchmarks/chaos.py --minutes 60
    python benchmarks/chaos.py --minutes 5 --seed 7 --json chaos.json
    python benchmarks/chaos.py --actions 40 --kinds question,report      # seconds

Some activities run at a time, each a real command in a process of its own. At random moments,
every half of `--pause` on average, there is a fault: SIGKILL of a command, a worker's server, a
rank or an agent; SIGSTOP of one, and SIGCONT later; a full disk below the store and the folder of
runs (a small tmpfs); SIGQUIT for a PostgreSQL server, and its restart. The seed decides which. Then
the faults end, waiting activities complete, and it is checked that

    every record that a command acknowledged is in its store exactly once
    every training, resumed to its end, has the weights of an undisturbed one, bit for bit
    every job was done exactly once, or failed and names the full disk; every page is whole
    no process, lock, folder of a run, spooled record or listening socket is left

Without PostgreSQL, PyTorch or the permission to mount, that part is left out, and printed. The exit
code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import importlib.util
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import psutil

import cubemesh
from cubemesh.cli.main import main as command_line
from cubemesh.errors import CubemeshError
from cubemesh.jobs.feed import events_after
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import ENDED, State
from cubemesh.runs.progress import Silent
from cubemesh.schema import RunRecord
from cubemesh.store import Store
from cubemesh.store.run_list import RunFilter
from cubemesh.training.checkpoint import load, steps_in

SLOTS = 3
"""Activities at the same time."""
KINDS = ("question", "training", "job", "report")
PATIENCE_S = 900.0
"""Within so long after the last fault everything ends."""
DISK_BYTES = 48 << 20
FULL = (os.strerror(errno.ENOSPC), "the disk of the run's folder")
"""What a job says that failed on a full disk."""
NULL = {"framework": "null", "ceiling": False, "script": "real=1,step=0.001", "seconds": 0.05}
TRAINING = (
    *("train", "little-cnn", "--epochs", "4", "--restarts", "1000000", "--wait", "1h", "--resume"),
    *("--checkpoint-every", "9", "--keep", "2", "--set", "image_size=8", "--set", "device=cpu"),
    *("--set", "threads=1", "--optimizer", "adam", "--learning-rate", "0.001"),
)
_PR_SET_CHILD_SUBREAPER = 36


class Acknowledging(Silent):
    """Prints the id of each run when it is stored, at once."""

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """See `Observer`."""
        os.write(1, f"{record.run_id}\n".encode())


@dataclass
class Activity:
    """A command that runs, and what it printed."""

    kind: str
    pid: int
    output: Path
    store: str

    def acknowledged(self) -> list[str]:
        """Ids of the records that a question has acknowledged."""
        lines = self.output.read_text(errors="replace").splitlines(keepends=True)
        return [line.strip() for line in lines if self.kind == "question" and line.endswith("\n")]


@dataclass
class World:
    """The folders, stores and activities, and the faults that are going on."""

    folder: Path
    draw: random.Random
    kinds: Sequence[str]
    stores: list[str]
    disk: Path | None
    postgresql: Any = None
    running: list[Activity] = field(default_factory=list)
    ended: list[Activity] = field(default_factory=list)
    stopped: list[psutil.Process] = field(default_factory=list)
    trainings: list[Path] = field(default_factory=list)
    jobs: dict[str, list[int]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    """Activities and faults by name."""
    number: int = 0

    def start(self, kind: str, work: Callable[[], object], store: str) -> Activity:
        """Run `work` in a fork; its output goes to a file."""
        self.number += 1
        output = self.folder / f"{self.number}-{kind}.txt"
        pid = os.fork()
        if pid == 0:
            _become(work, output)
        self.done[kind] += 1
        return Activity(kind, pid, output, store)

    def start_any(self) -> None:
        """Start an activity of a random kind."""
        kind, store = self.draw.choice(self.kinds), self.draw.choice(self.stores)
        seed = self.draw.getrandbits(31)
        work: Callable[[], object]
        if kind == "question":
            work = lambda: question(store, seed)  # noqa: E731
        elif kind == "report":
            page = self.folder / f"page-{self.stores.index(store)}.html"
            work = lambda: verb("report", "--store", store, "--output", str(page))  # noqa: E731
        elif kind == "job":
            self.submit(store, seed)
            work = lambda: cubemesh.agent(store=store, until_idle=True)  # noqa: E731
        else:
            folder = self.folder / f"training-{len(self.trainings)}"
            self.trainings.append(folder)
            work = lambda: train(folder, store)  # noqa: E731
        self.running.append(self.start(kind, work, store))

    def submit(self, store: str, seed: int) -> None:
        """Queue a job, unless the store is away: then it was not acknowledged."""
        settings = {**NULL, "batch_sizes": "8", "seed": seed}
        # In a fork, so that this process keeps no connection.
        submitted = self.start(
            "submission",
            lambda: os.write(1, f"{_submitted(store, settings)}\n".encode()),
            store,
        )
        os.waitpid(submitted.pid, 0)
        text = submitted.output.read_text()
        if text.splitlines()[-1:] and text.splitlines()[-1].isdecimal():
            self.jobs.setdefault(store, []).append(int(text.splitlines()[-1]))
            self.done["acknowledged job"] += 1

    def reap(self) -> None:
        """Move activities that have ended to `ended`, and reap orphans that came here."""
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                over = [one for one in self.running if one.pid == pid]
                self.ended += over
                self.running = [one for one in self.running if one not in over]

    def fault(self) -> None:
        """One fault at random, or the end of one."""
        faults: dict[str, Callable[[], None]] = {"kill": self.kill, "stop": self.stop}
        if self.disk is not None:
            faults["full disk"] = self.fill
        if self.postgresql is not None:
            faults["killed PostgreSQL"] = self.restart_database
        name = self.draw.choice(["kill", *sorted(faults)])  # kills twice as often
        if self.disk is not None and name != "full disk":  # so the disk is full until the next one
            (self.disk / "filling").unlink(missing_ok=True)
        faults[name]()
        self.done[name] += 1
        for process in self.stopped[:-1]:
            _send(process, signal.SIGCONT)
        self.stopped = self.stopped[-1:]

    def victim(self) -> psutil.Process | None:
        """A process of an activity: the command itself, or what it started."""
        if not self.running:
            return None
        try:
            command = psutil.Process(self.draw.choice(self.running).pid)
            return self.draw.choice([command, *command.children(recursive=True)])
        except psutil.Error:
            return None

    def kill(self) -> None:
        """SIGKILL to a process."""
        if (process := self.victim()) is not None:
            _send(process, signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP to a process, until the next fault but one."""
        if (process := self.victim()) is not None:
            _send(process, signal.SIGSTOP)
            self.stopped.append(process)

    def fill(self) -> None:
        """Take all room of the small disk, until another kind of fault."""
        assert self.disk is not None
        with open(self.disk / "filling", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    def restart_database(self) -> None:
        """Kill the server of PostgreSQL and start it again."""
        self.postgresql.kill()
        self.postgresql.start()

    def calm(self) -> None:
        """End every fault, and wait until every activity has ended."""
        for process in self.stopped:
            _send(process, signal.SIGCONT)
        if self.disk is not None:
            (self.disk / "filling").unlink(missing_ok=True)
        end = time.monotonic() + PATIENCE_S
        while self.running and time.monotonic() < end:
            self.reap()
            time.sleep(0.02)

    def complete(self, work: Callable[[], object], kind: str, store: str) -> int:
        """Run an activity without faults to its end; its exit code."""
        one = self.start(kind, work, store)
        code = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
        self.ended.append(one)
        return code


def _become(work: Callable[[], object], output: Path) -> None:
    """Do the work of an activity in the forked child; does not return."""
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, 1)
        os.dup2(os.open(f"{output}.err", os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        work()
        code = 0
    except CubemeshError as error:
        os.write(2, f"cubemesh: {error}\n".encode())
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def question(store: str, seed: int) -> object:
    """Two runs of the null framework."""
    return cubemesh.run(
        "minibatch",
        store=store,
        wait="1h",
        observer=Acknowledging(),
        batch_sizes="8,16",
        seed=seed,
        **NULL,
    )


def verb(*words: str) -> None:
    """A command of the command line."""
    sys.argv = ["cubemesh", *words]
    command_line()


def train(folder: Path, store: str) -> None:
    """A training with its checkpoints in `folder`."""
    verb(*TRAINING, "--checkpoints", str(folder), "--store", store)


def _submitted(store: str, settings: dict[str, Any]) -> int:
    return cubemesh.submit("minibatch", store=store, settings=settings, restarts=100).job_id


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def broken(world: World, reference: Path | None) -> list[str]:
    """What does not hold after the faults have ended."""
    found = [f"{one.kind} {one.pid} does not end" for one in world.running]
    for one in world.running:
        _send(psutil.Process(one.pid), signal.SIGKILL)
    for number, store in enumerate(world.stores):
        code = world.complete(lambda s=store, n=number: question(s, n), "question", store)  # type: ignore[misc]
        if code:
            found.append(f"a question without faults ended with {code}")
        world.complete(lambda s=store: verb("results", "--recover", "--store", s), "recover", store)  # type: ignore[misc]
    if reference is not None:
        found += _trainings(world, reference)
    for store in world.stores:
        found += _jobs(world, store)
    found += [line for store in world.stores for line in _records(world, store)]
    for page in world.folder.glob("page-*.html"):
        if not page.read_text(errors="replace").rstrip().endswith("</html>"):
            found.append(f"{page.name} is not whole")
    tracebacks = [
        e for e in world.folder.glob("*.err") if "Traceback" in e.read_text("utf-8", "replace")
    ]
    found += [f"{error.name}: {error.read_text('utf-8', 'replace')[-800:]}" for error in tracebacks]
    return [*found, *_left(world)]


def _records(world: World, store: str) -> Iterator[str]:
    """Acknowledged records that are not in the store exactly once."""
    with Store.open(store) as opened:
        counts = Counter(row.run_id for row in opened.each_run(RunFilter()))
        waiting = opened.unsaved
    if waiting is not None:
        yield f"records wait in the spool: {waiting}"
    asked = [one for one in world.ended if one.store == store]
    ids = [run_id for one in asked for run_id in one.acknowledged()]
    world.done["acknowledged record"] += len(ids)
    for run_id in ids:
        if counts[run_id] != 1:
            yield f"record {run_id} is {counts[run_id]} times in {store}"


def _trainings(world: World, reference: Path) -> Iterator[str]:
    """Trainings whose weights are not those of the undisturbed one, each resumed to its end."""
    expected = _weights(reference)
    for folder in world.trainings:
        code = world.complete(
            lambda f=folder: train(f, world.stores[0]), "resumption", world.stores[0]
        )  # type: ignore[misc]
        if code:
            yield f"{folder.name} ended with {code} when it was resumed"
        elif _weights(folder) != expected:
            yield f"{folder.name} has other weights than the undisturbed training"


def _weights(folder: Path) -> tuple[int, dict[str, bytes]]:
    """The newest checkpoint: its step, and the bits of weights and optimizer state."""
    step = max(steps_in(folder))
    snapshot = load(folder, step, 0, 1).snapshot
    arrays = {**snapshot.weights, **snapshot.arrays}
    return step, {name: array.tobytes() for name, array in arrays.items()}


def _jobs(world: World, store: str) -> Iterator[str]:
    """Jobs that were not done exactly once, the rest having been done by an agent."""
    jobs, end = world.jobs.get(store, []), time.monotonic() + PATIENCE_S
    if not jobs:
        return
    while time.monotonic() < end:
        world.complete(lambda: cubemesh.agent(store=store, until_idle=True), "agent", store)
        with Store.open(store) as opened:
            queue = JobQueue(opened.database)
            if all(queue.get(job).state in ENDED for job in jobs):
                break
        time.sleep(1.0)  # until the lease of a killed agent expires
    with Store.open(store) as opened:
        queue = JobQueue(opened.database)
        for job in jobs:
            events, _ = events_after(queue, job, limit=1_000_000)
            states = [event.value["state"] for event in events if event.kind == "state"]
            found = queue.get(job)
            full = any(words in found.why for words in FULL)
            if found.state is State.FAILED and full:
                world.done["job failed on a full disk"] += 1
            elif states.count("done") != 1 or found.state is not State.DONE:
                yield f"job {job} of {store}: {', '.join(states)}; {found.why}"


def _left(world: World) -> Iterator[str]:
    """Processes, locks, folders of runs and sockets that are left."""
    own, end = psutil.Process(), time.monotonic() + PATIENCE_S
    apart = {world.postgresql.pid} if world.postgresql is not None else set()

    def others() -> list[psutil.Process]:
        world.reap()
        servers = [p for p in own.children() if p.pid in apart]
        beside = {q.pid for p in servers for q in (p, *p.children(recursive=True))}
        return [p for p in own.children(recursive=True) if p.pid not in beside]

    while others() and time.monotonic() < end:
        time.sleep(0.05)
    for process in others():
        with contextlib.suppress(psutil.Error):
            yield f"process {process.pid} is left: {' '.join(process.cmdline())[:200]}"
            yield from (
                f"it listens: {c.laddr}" for c in process.net_connections() if c.status == "LISTEN"
            )
    locks = [*world.folder.glob("runtime/cubemesh/*.lock"), *world.folder.glob("*/training.lock")]
    for path in locks:
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield f"{path} is locked"
    cache = Path(os.environ["XDG_CACHE_HOME"], "cubemesh", "runs")
    yield from (f"{path} is left" for path in cache.glob("*") if path.is_dir())


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of `DISK_BYTES`; None where it cannot be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class PostgreSQL:
    """A server on a Unix socket that is killed and started again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        folder.mkdir(mode=0o700)
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self._folder, self._programs = folder, programs
        self._user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "postgres", "postgres")
        self._call("initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "trust")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._process is not None
        return self._process.pid

    def _call(self, program: str, *words: str) -> int:
        command = [str(self._programs / program), *words]
        done = subprocess.run(command, capture_output=True, cwd="/", **self._user)  # type: ignore[call-overload]
        return int(done.returncode)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        command += ["-k", str(self._folder), "-c", "listen_addresses="]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd="/", **self._user)  # type: ignore[call-overload]
        while self._call("pg_isready", "-q", "-h", str(self._folder)):
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()


def postgresql(folder: Path) -> PostgreSQL | None:
    """A server; None where there is none, or no driver."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found or importlib.util.find_spec("psycopg") is None:
        return None
    try:
        return PostgreSQL(folder, found[-1])
    except (OSError, LookupError):
        return None


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--actions", type=int, help="so many faults, in place of --minutes")
    parser.add_argument(
        "--pause", type=float, default=3.0, help="longest time between two faults, in seconds"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--no-postgresql", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Start, inject faults and check; 1 if something does not hold."""
    given = arguments(words)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans come to this process
    kinds = [kind for kind in given.kinds.split(",") if kind]
    if "training" in kinds and importlib.util.find_spec("torch") is None:
        kinds.remove("training")
        print("without trainings: PyTorch is not installed")
    folder = Path(tempfile.mkdtemp(prefix="cubemesh-chaos-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    before = dict(os.environ)
    server = None
    try:
        with small_disk(folder / "disk") as disk:
            if disk is None:
                print("without full disks: a file system cannot be mounted here")
            own = {
                name: folder / name.lower() for name in ("DATA_HOME", "STATE_HOME", "RUNTIME_DIR")
            }
            own["RUNTIME_DIR"], own["CACHE_HOME"] = folder / "runtime", folder / "disk" / "cache"
            for name, path in own.items():
                path.mkdir(mode=0o700)
                os.environ[f"XDG_{name}"] = str(path)
            stores = [str(folder / "disk" / "results.sqlite")]
            server = None if given.no_postgresql else postgresql(folder / "postgresql")
            if server is not None:
                stores.append(server.url)
            elif not given.no_postgresql:
                print("without PostgreSQL: it is not installed")
            world = World(folder, random.Random(given.seed), kinds, stores, disk, server)
            return run(world, given)
    finally:
        if server is not None:
            server.kill()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def run(world: World, given: argparse.Namespace) -> int:
    """Inject faults and check."""
    reference = None
    if "training" in world.kinds:
        reference = world.folder / "undisturbed"
        if world.complete(lambda: train(reference, world.stores[0]), "training", world.stores[0]):
            error = (world.folder / "1-training.txt.err").read_text("utf-8", "replace")
            raise SystemExit(f"the undisturbed training did not complete: {error[-2000:]}")
    began = time.monotonic()
    faults = 0
    while (
        faults < given.actions if given.actions else time.monotonic() < began + 60 * given.minutes
    ):
        world.reap()
        while len(world.running) < SLOTS:
            world.start_any()
        time.sleep(world.draw.uniform(0.0, given.pause))
        world.fault()
        faults += 1
    elapsed_s = time.monotonic() - began
    world.calm()
    wrong = broken(world, reference)
    counts = ", ".join(f"{count} × {name}" for name, count in sorted(world.done.items()))
    when = f"{platform.node()}, {datetime.now(UTC):%Y-%m-%d %H:%M}"
    print(f"{when}, seed {given.seed}, {elapsed_s:.0f} s: {counts}")
    print("\n".join(wrong) if wrong else "everything holds")
    if given.json:
        result = {"schema": 1, "seed": given.seed, "elapsed_s": elapsed_s}
        given.json.write_text(json.dumps({**result, "done": world.done, "wrong": wrong}) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
