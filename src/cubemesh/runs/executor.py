"""Executor: turns specs into stored records, one run at a time, reusing what is stored already.

    for each spec, for each of its repeats:
        the store has a reusable record for (spec, machine, software, code version, repeat)?  → it
        the framework is not installed?                               → a record that says so
        else: lock the device, fork a worker, follow it, assemble and enrich its record,
              store it, and only then go on to the next

An interrupted suite loses the current run and nothing else; the same command continues it.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from cubemesh import termination
from cubemesh.cgroups import oom_kills
from cubemesh.data import own as own_data
from cubemesh.data.data_digest import data_digest
from cubemesh.errors import BusyError, StoreError, UsageError
from cubemesh.frameworks import entry
from cubemesh.measure.telemetry.gpu_set import visible
from cubemesh.networks import own_networks
from cubemesh.runs.artifacts import store_artifacts
from cubemesh.runs.assemble import assemble
from cubemesh.runs.code_version import code_version
from cubemesh.runs.devices import gpus_of, lock_names
from cubemesh.runs.enrich import Host, enrich
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.runs.forkserver_client import Forkserver, ServerDied
from cubemesh.runs.locks import DeviceLocks
from cubemesh.runs.nccl_dumps import read_dumps
from cubemesh.runs.progress import Observer, Silent
from cubemesh.runs.reuse import is_reusable
from cubemesh.runs.run_dirs import RunFolders, default_runs_folder, remove
from cubemesh.runs.watch import server_name, watch
from cubemesh.schema.machine import Machine
from cubemesh.schema.own_network import OwnData
from cubemesh.schema.record import Environment, RunKey, RunRecord, new_run_id
from cubemesh.schema.serialization import digest
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.work import OwnStep
from cubemesh.user_code import UserObject
from cubemesh.user_code import digest as digest_of_code
from cubemesh.worker.report.outcomes import not_installed
from cubemesh.worker.run.job_file import Job

if TYPE_CHECKING:
    from cubemesh.store import Store

T = TypeVar("T")
START_S = 300.0
"""Shortest time allowed for importing a framework, which takes minutes from a cold network file
system."""
MOST_START_S = 3600.0
"""Longest time allowed, however long the run itself may take."""
HOSTS_PRELOAD = "null"
"""Preloaded for a run on several hosts: its agents import the framework, and its worker here only
connects to them."""


class RunPaused(Exception):
    """The runs ended on request and can be resumed: the last one was not stored."""


class Executor:
    """Runs specs on this machine and stores their records. A context manager: leaving it ends the
    workers and unlocks the devices.

    `no_cache` measures stored specs again, each once per executor. `wait_s` is how long to
    wait for a device that another runner uses. `environments` has the frameworks whose workers run
    in another Python (runs/interpreters.py). Once `pause_file` exists, a training with checkpoints
    ends after one, other runs end before the next, and RunPaused is raised. Raises BusyError when a
    device stays in use, or when a run found its folder of checkpoints in use, which is not stored;
    UsageError for an unknown framework. Another error of a run is its record's outcome. A record
    that the store does not take waits in the spool, and the next run begins
    (`Store.save_or_spool`).
    """

    def __init__(
        self,
        store: Store,
        *,
        machine: Machine,
        observer: Observer | None = None,
        no_cache: bool = False,
        runs_folder: Path | None = None,
        wait_s: float = 0.0,
        environments: Mapping[str, Environment] = MappingProxyType({}),
        pause_file: Path | None = None,
    ) -> None:
        self._store = store
        self._machine = machine
        self._observer = observer or Silent()
        self._no_cache = no_cache
        self._runs_folder = runs_folder
        self._wait_s = wait_s
        self._pause_file = pause_file
        self.environments = environments
        """Framework → environment, where its workers run in another Python."""
        self.waited_s = 0.0
        """Time for which it has waited for devices."""
        self._locks = DeviceLocks()
        self._folders: RunFolders | None = None
        self._servers: dict[tuple[str, str | None], Forkserver] = {}
        """By the framework that they preload and their Python, None for the runner's."""
        self._measured: set[RunKey] = set()
        self._machine_saved = False
        self._data_ids: dict[str, str] = {}

    def run(self, specs: Sequence[RunSpec]) -> list[RunRecord]:
        """A record for each repeat of each spec, in their order."""
        return list(self.each(specs))

    def each(
        self,
        specs: Sequence[RunSpec],
        asked: Counter[str] | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[RunRecord]:
        """As `run`, each record as soon as it is stored. With `asked`, the repeats of each spec id
        so far, a spec that was asked before is measured again, as its next repeats. Once `is_over`,
        no run starts, and only stored records follow."""
        for spec in specs:
            entry(spec.program.framework)
            _check_own_code(spec)
        self._observer.plan(specs)
        try:
            for spec in specs:
                first = 0 if asked is None else asked[spec.spec_id]
                for repeat in range(first, first + spec.budget.repeats):
                    termination.check()
                    if self._pause_file is not None and self._pause_file.exists():
                        raise RunPaused("It paused between two runs.")
                    key = self.key(spec, repeat)
                    if is_over() and self._reusable(spec, key) is None:
                        continue
                    if asked is not None:
                        asked[spec.spec_id] = repeat + 1
                    yield self._record(spec, key)
        except BaseException:  # Ctrl-C above all: no worker may go on measuring
            self.close()
            raise

    def close(self) -> None:
        """End the workers, unlock the devices, remove the runs' files. The executor can be used
        again."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        if self._folders is not None:
            self._folders.close()
            self._folders = None
        self._locks.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def key(self, spec: RunSpec, repeat: int = 0) -> RunKey:
        """The key under which a run of `spec` is stored and reused."""
        framework = spec.program.framework
        identify, other = entry(framework).software_id, self.environments.get(framework)
        if other is None:
            software_id = identify(self._machine.software)
        else:
            software_id = digest((other.python, identify(other.software)))
        return RunKey(
            spec_id=spec.spec_id,
            machine_id=self._machine.machine_id,
            software_id=software_id,
            code_version=code_version(),
            repeat=repeat,
            data_id=self._data_id(spec),
        )

    def _data_id(self, spec: RunSpec) -> str:
        """Digest of the files at the `data_path` of a spec and of the code of its own data, and of
        the other side's, or of the code of a step of one's own; computed again after each run."""
        if isinstance(spec.work, OwnStep):
            return digest_of_code(UserObject(name=spec.work.step, folder=spec.work.import_from))
        codes = (UserObject(name=own.source, folder=own.folder) for own in _own_data(spec))
        digests = [*map(self._data_digest, _data_paths(spec)), *map(digest_of_code, codes)]
        return "-".join(dict.fromkeys(digests))

    def _data_digest(self, path: str) -> str:
        if path not in self._data_ids:
            self._data_ids[path] = data_digest(path)
        return self._data_ids[path]

    def stored_count(self, spec: RunSpec) -> int:
        """Number of repeats of `spec` whose records are stored and would be reused."""
        keys = (self.key(spec, repeat) for repeat in range(spec.budget.repeats))
        return sum(self._reusable(spec, key) is not None for key in keys)

    def _knows_data(self, spec: RunSpec) -> bool:
        """False where only other hosts have the data, which may have changed."""
        return not spec.placement.hosts or all(map(self._data_digest, _data_paths(spec)))

    def _reusable(self, spec: RunSpec, key: RunKey) -> RunRecord | None:
        """The stored record that would be reused for the key of a spec."""
        may_reuse = (not self._no_cache and self._knows_data(spec)) or key in self._measured
        stored = self._asked(lambda: self._store.find(key), None) if may_reuse else None
        valid = stored is not None and is_reusable(stored, self._machine, self._installed)
        return stored if valid else None

    def _record(self, spec: RunSpec, key: RunKey) -> RunRecord:
        stored = self._reusable(spec, key)
        if stored is not None:
            self._observer.finish(stored, reused=True)
            return stored
        if not self._machine_saved:
            self._store.save_machine(self._machine)
            self._machine_saved = True
        installed = self._installed(spec.program.framework)
        if installed:
            self._lock_devices(spec)
        self._observer.start(spec)
        record = self._measure(spec, key) if installed else self._not_installed(spec, key)
        self._measured.add(key)
        self._data_ids.clear()
        self._observer.finish(record, reused=False)
        return record

    def _installed(self, framework: str) -> bool:
        """A framework in another Python was checked when that Python was chosen."""
        return framework in self.environments or entry(framework).installed

    def _lock_devices(self, spec: RunSpec) -> None:
        """Lock the devices of a run until `close`."""
        waited_s = 0.0
        for device in lock_names(spec, self._machine, os.environ):
            began = time.monotonic()
            self._locks.take(device, max(0.0, self._wait_s - waited_s), self._observer.message)
            waited_s += time.monotonic() - began
        self.waited_s += waited_s

    def _measure(self, spec: RunSpec, key: RunKey) -> RunRecord:
        self._folders = self._folders or RunFolders(self._runs_folder or default_runs_folder())
        folder = self._folders.new_run()
        attempt = self._asked(lambda: self._store.attempts(key), 0) + 1
        started_utc = _now_utc()
        try:
            events, ending = self._run_worker(spec, folder, self._folders.path)
        except OSError as error:  # the disk is full, or no process can be started
            raise self._folders.error(error) from error
        gpus = visible(self._machine.gpus, os.environ)
        record, series = assemble(
            spec,
            key,
            events,
            ending,
            started_utc=started_utc,
            attempt=attempt,
            gpus=gpus,
            processor=self._machine.cpu.model or "",
        )
        if record.outcome.facts.get("in_use"):  # another run was faster by a moment
            remove(folder)
            raise BusyError(record.outcome.message)
        if record.outcome.facts.get("paused"):
            remove(folder)
            raise RunPaused(record.outcome.message)
        other = self.environments.get(spec.program.framework)
        stored, refused = store_artifacts(self._store, record.run_id, folder, events)
        record = dataclasses.replace(
            record,
            environment=other,
            software=self._machine.software,
            artifacts=stored,
            nccl=read_dumps(folder),
            warnings=(*record.warnings, *refused),
        )
        host = Host(
            machine=self._machine,
            gpus=gpus,
            ceilings=lambda machine_id: self._asked(
                lambda: self._store.records(machine_id=machine_id, work="ceiling", outcome="ok"),
                [],
            ),
        )
        record = enrich(record, host)
        self._store.save_or_spool(record, series)
        remove(folder)
        return record

    def _asked(self, ask: Callable[[], T], otherwise: T) -> T:
        """What the store answers; `otherwise` where it does not answer: the run goes on, and its
        record waits until it does."""
        try:
            return ask()
        except (StoreError, BusyError):
            return otherwise

    def _not_installed(self, spec: RunSpec, key: RunKey) -> RunRecord:
        """Stored as well, so that a report can give the reason for a missing figure."""
        attempt = self._asked(lambda: self._store.attempts(key), 0) + 1
        started_utc = _now_utc()
        outcome = dataclasses.replace(not_installed(spec.program.framework), origin="runner")
        record = RunRecord(
            run_id=new_run_id(key, started_utc, attempt),
            spec=spec,
            key=key,
            started_utc=started_utc,
            elapsed_s=0.0,
            outcome=outcome,
            attempt=attempt,
        )
        self._store.save_or_spool(record)
        return record

    def _run_worker(
        self, spec: RunSpec, folder: Path, own_folder: Path
    ) -> tuple[list[dict[str, Any]], WorkerExit]:
        """Run `spec` in a worker; its events and exit status. The run begins when its server is
        ready: importing a framework is paid once a suite and is not part of a run."""
        other = self.environments.get(spec.program.framework)
        framework = entry(spec.program.framework).preloads or spec.program.framework
        if spec.placement.hosts:
            framework = HOSTS_PRELOAD
        kind = framework, None if other is None else other.python
        start, kills_before = time.perf_counter(), oom_kills() or 0
        server = self._servers.get(kind)
        try:
            if server is not None and not server.alive:
                server.close()
                server = None
            if server is None:
                server = self._servers[kind] = Forkserver(framework, own_folder, kind[1])
            limit_s = min(max(START_S, spec.budget.time_limit_s), MOST_START_S)
            server.start(limit_s, spec.budget.heartbeat_timeout_s)
        except ServerDied as death:
            ending = WorkerExit(
                exit_code=death.exit_code,
                elapsed_s=time.perf_counter() - start,
                time_limit_s=death.limit_s,
                stopped=server_name(server) if server is not None and death.stopped_s else "",
                stopped_s=death.stopped_s,
                output=death.log,
                phase="import",
                oom_kills=(oom_kills() or 0) - kills_before,
                server_died=True,
            )
            return [], ending
        gpus = gpus_of(spec, self._machine, os.environ)
        job = Job(
            spec=spec,
            folder=str(folder),
            origin=time.perf_counter(),
            usable_cores=self._machine.cpu.usable_cores,
            gpu_memory_bytes=gpus[0].memory_bytes if gpus else None,
            gpu_uuid=gpus[0].uuid if gpus else None,
            pause_file=None if self._pause_file is None else str(self._pause_file),
            gpu_uuids=tuple(gpu.uuid for gpu in gpus),
        )
        return watch(server, job, self._observer)


def _check_own_code(spec: RunSpec) -> None:
    """UsageError for a network or data of the user's own that this command did not name: no code
    runs because a store has it."""
    for side in (spec, spec.other):
        own = None if side is None else getattr(side.work, "own_network", None)
        if own is not None and not own_networks.is_named(own):
            own_networks.get(own.source)
            raise UsageError(f"{own.source} is not as this command described it. Run it again.")
    for data in _own_data(spec):
        if not own_data.is_named(data):
            own_data.get(data.source)
            raise UsageError(f"{data.source} is not what this command named. Run it again.")


def _now_utc() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _data_paths(spec: RunSpec) -> list[str]:
    """The `data_path` of a spec, and of the other side."""
    works = [spec.work] if spec.against is None else [spec.work, spec.against.work]
    return [path for work in works if (path := getattr(work, "data_path", None))]


def _own_data(spec: RunSpec) -> list[OwnData]:
    """The data of the user's own of a spec, and of the other side."""
    works = [spec.work] if spec.against is None else [spec.work, spec.against.work]
    return [own for work in works if (own := getattr(work, "own_data", None)) is not None]
