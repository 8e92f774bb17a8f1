"""The executor with real stores, processes and signals, on the null framework."""

import dataclasses
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing

import pytest

from cubemesh.errors import BusyError, StoreWarning, UsageError
from cubemesh.frameworks import FRAMEWORKS, FrameworkEntry
from cubemesh.runs import Executor, Silent, watch
from cubemesh.runs import executor as executor_module
from cubemesh.schema import CheckpointSettings, Placement, Status, Train
from cubemesh.store import Store
from cubemesh.training.tensorboard import event_files
from patience import PATIENCE_S


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "results.db")) as opened:
        yield opened


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    """Where the runs of `suite` are."""
    return tmp_path_factory.mktemp("suite") / "runs"


@pytest.fixture(scope="module")
def suite(runs_folder, small_machine):
    """One executor for many tests, as in a suite: each must leave it usable for the next."""
    with (
        Store.open(str(runs_folder.parent / "results.db")) as opened,
        Executor(opened, machine=small_machine, runs_folder=runs_folder) as executor,
    ):
        yield executor


@pytest.fixture
def make(store, tmp_path, machine):
    """Executors on one store, closed at the end."""
    made = []

    def one(**settings):
        settings = {"machine": machine, "runs_folder": tmp_path / "runs"} | settings
        made.append(Executor(store, **settings))
        return made[-1]

    yield one
    for executor in made:
        executor.close()


@pytest.fixture
def make_quick(make, on_null_server):
    """As `make`, with workers of a server that runs already, where that is another test's."""
    return lambda **settings: on_null_server(make(**settings))


@pytest.fixture
def run_once(make_quick):
    """Runs specs in an executor of their own, as one command would."""

    def run(specs, **settings):
        with make_quick(**settings) as executor:
            return executor.run(specs)

    return run


class Watching(Silent):
    """Records the calls of the executor; `act` is called at each progress."""

    def __init__(self, act=lambda progress: None):
        self.calls = []
        self.act = act

    def plan(self, specs):
        self.calls.append(("plan", len(specs)))

    def start(self, spec):
        self.calls.append(("start", spec.work.batch_per_device))

    def progress(self, progress):
        self.calls.append(("progress", progress.phase))
        self.act(progress)

    def finish(self, record, *, reused):
        self.calls.append(("finish", record.outcome.status, reused))


def test_a_run_becomes_a_stored_record(make, store, null_spec, tmp_path, processes_of):
    observer = Watching()
    executor = make(observer=observer)
    (record,) = executor.run([null_spec("step=0.01,jitter=0.05", batch_per_device=4)])
    assert record.ok, record.outcome
    assert store.find(record.key) == record
    assert (record.attempt, record.key.repeat) == (1, 0)
    (rank,) = record.ranks
    assert (rank.device, rank.threads, rank.outcome.status) == ("cpu", 2, Status.OK)
    assert sum(w.steps for w in record.measured) >= 20
    assert [p.name for p in record.phases] == [
        *("import", "data", "build", "weights", "warm-up", "measure"),
    ]
    assert record.figures["step_s"].value == pytest.approx(0.01, rel=0.1)
    assert record.figures["throughput_per_s"].value == pytest.approx(400, rel=0.1)
    assert record.figures["peak_memory_bytes"].method
    assert set(record.series) == {s.name for s in store.series(record.run_id)} >= {"resident_bytes"}
    assert store.machine(executor._machine.machine_id) is not None
    assert observer.calls[:2] == [("plan", 1), ("start", 4)]
    assert ("progress", "measure") in observer.calls
    assert observer.calls[-1] == ("finish", Status.OK, False)
    (own,) = [p for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    assert [p.name for p in own.iterdir() if p.is_dir()] == []
    assert {name for _, name in processes_of(tmp_path / "runs")} == {"cubemesh-server"}
    executor.close()
    assert processes_of(tmp_path / "runs") == []
    assert not own.exists()


@pytest.mark.parametrize(
    ("script", "status", "words", "facts"),
    [
        ("segfault@5", Status.CRASHED, "SIGSEGV", {"signal": "SIGSEGV"}),
        ("exit:3@5", Status.CRASHED, "code 3", {"exit_code": 3}),
        ("exit:0@5", Status.CRASHED, "code 0", {"exit_code": 0}),
        ("kill@5", Status.KILLED, "SIGKILL", {"signal": "SIGKILL", "phase": "measure"}),
        ("error@5", Status.CRASHED, "RuntimeError: scripted error at step 5", {}),
        ("nan@5", Status.DIVERGED, "loss became nan", {}),
        ("step=oops", Status.UNSUPPORTED, "step=oops", {}),
    ],
)
def test_a_failed_run_has_an_outcome_and_the_suite_continues(
    suite, null_spec, script, status, words, facts
):
    # The first step and one more are the warm-up, then four windows of five.
    failed, after = suite.run([null_spec(script), null_spec(seed=len(script))])
    assert failed.outcome.status is status
    assert words in failed.outcome.message
    assert facts.items() <= failed.outcome.facts.items()
    assert failed.outcome.origin == ("runner" if facts else "worker")
    assert after.ok
    assert failed.ranks[0].outcome == failed.outcome or not failed.ranks


def test_a_segfault_is_recorded_with_its_stack(suite, null_spec):
    (record,) = suite.run([null_spec("segfault@4")])
    assert record.outcome.facts["stacks"].startswith("Segmentation fault")
    assert "program.py" in record.outcome.message
    assert "in train_step" in record.outcome.facts["stacks"]


def test_an_error_is_recorded_with_its_traceback(suite, null_spec):
    (record,) = suite.run([null_spec("error@4")])
    assert "in _error" in record.outcome.facts["traceback"]


def test_figures_of_the_windows_before_a_crash_are_stored(suite, null_spec):
    (record,) = suite.run([null_spec("step=0.01,segfault@15")])
    assert record.outcome.status is Status.CRASHED
    assert len(record.measured) == 2
    assert record.figure("step_s") == pytest.approx(0.01)
    assert record.outcome.facts["steps"] == 10


class LimitPassesInTheHang:
    """The `time` of the supervisor: the limit passes when the worker's stack shows the hang."""

    def __init__(self, folder, worker_of):
        self.folder, self.worker_of, self.hangs = folder, worker_of, False

    def __getattr__(self, name):
        return getattr(time, name)

    def text(self, name):
        return "".join(path.read_text() for path in self.folder.rglob(name))

    def perf_counter(self):
        if not self.hangs and '"name":"measure"' in self.text("events-0.jsonl").replace(" ", ""):
            os.kill(self.worker_of(self.folder), signal.SIGUSR1)
            self.hangs = "in _hang" in self.text("stacks-0.txt")
        return time.perf_counter() + (PATIENCE_S if self.hangs else 0)


def test_a_hang_is_ended_at_its_time_limit_with_its_location(
    suite, null_spec, monkeypatch, runs_folder, worker_of
):
    monkeypatch.setattr(watch, "STACKS_S", 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(watch, "time", LimitPassesInTheHang(runs_folder, worker_of))
        (hung,) = suite.run([null_spec("hang@5", time_limit_s=PATIENCE_S)])
    (after,) = suite.run([null_spec(seed=77)])
    assert hung.outcome.status is Status.TIMED_OUT
    assert hung.elapsed_s >= PATIENCE_S
    assert "program.py" in hung.outcome.message
    assert "in _hang" in hung.outcome.message
    assert "in train_step" in hung.outcome.facts["stacks"]
    assert hung.outcome.facts["phase"] == "measure"
    assert after.ok


def test_memory_over_the_limit_is_reported_by_the_worker(suite, null_spec):
    limited = null_spec("allocate@5", memory_limit_bytes=200 << 20, batch_per_device=1024)
    record, after = suite.run([limited, null_spec(seed=78)])
    assert (record.outcome.status, record.outcome.origin) == (Status.OOM, "worker")
    assert record.outcome.facts["limit_bytes"] == 200 << 20
    assert record.outcome.facts["forecast_bytes"] > 200 << 20
    assert 0 < record.outcome.facts["largest_batch_that_fits"] < 1024
    assert after.ok


def test_several_devices_are_refused_by_the_worker(suite, null_spec):
    spec = dataclasses.replace(null_spec(), placement=Placement(devices=2))
    (record,) = suite.run([spec])
    assert record.outcome.status is Status.UNSUPPORTED
    assert "devices=1" in record.outcome.message


def test_an_unknown_framework_is_an_error_before_anything_runs(suite, null_spec):
    with pytest.raises(UsageError, match="pytorhc"):
        suite.run([null_spec(), null_spec(framework="pytorhc")])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_killed_from_outside(
    suite, null_spec, runs_folder, worker_of, monkeypatch, number
):
    def strike(progress):
        if progress.phase == "measure":
            os.kill(worker_of(runs_folder), number)
            observer.act = lambda progress: None

    observer = Watching(strike)
    monkeypatch.setattr(suite, "_observer", observer)
    seed = 80 + number
    killed, after = suite.run(
        [null_spec("real=1,step=0.05", steps=2000, seed=seed), null_spec(seed=seed)]
    )
    assert killed.outcome.status is Status.KILLED
    assert killed.outcome.facts["signal"] == signal.Signals(number).name
    assert after.ok


def test_when_the_server_dies_its_worker_dies_and_another_server_starts(
    make, null_spec, tmp_path, processes_of, worker_of
):
    def strike(progress):
        if progress.phase == "measure":
            workers.append(worker_of(tmp_path / "runs"))
            (server,) = [
                p for p, name in processes_of(tmp_path / "runs") if name == "cubemesh-server"
            ]
            os.kill(server, signal.SIGKILL)
            observer.act = lambda progress: None

    workers = []
    observer = Watching(strike)
    killed, after = make(observer=observer).run(
        [null_spec("real=1,step=0.05", steps=2000), null_spec()]
    )
    assert killed.outcome.status is Status.KILLED
    assert "server" in killed.outcome.message
    assert after.ok
    assert workers[0] not in {pid for pid, _ in processes_of(tmp_path / "runs")}


def test_repeats_are_fresh_processes_in_order(make_quick, null_spec):
    records = make_quick().run([null_spec(repeats=2), null_spec(seed=1)])
    assert [r.key.repeat for r in records] == [0, 1, 0]
    assert [r.spec.work.seed for r in records] == [0, 0, 1]
    assert len({r.run_id for r in records}) == 3


def test_a_spec_that_is_asked_again_is_its_next_repeat(make_quick, null_spec):
    asked: Counter[str] = Counter()
    executor, spec = make_quick(), null_spec()
    (first,) = executor.each([spec], asked)
    second, other = executor.each([spec, null_spec(seed=1)], asked)
    assert [r.key.repeat for r in (first, second, other)] == [0, 1, 0]
    assert len({r.run_id for r in (first, second, other)}) == 3
    assert [r.run_id for r in executor.run([spec])] == [first.run_id]
    again = Counter()
    stored = [*executor.each([spec], again), *executor.each([spec], again)]
    assert [r.run_id for r in stored] == [first.run_id, second.run_id]


def test_frameworks_that_preload_the_same_share_a_server(make, null_spec, monkeypatch):
    other = dataclasses.replace(FRAMEWORKS["null"], preloads="null")
    monkeypatch.setitem(FRAMEWORKS, "other", other)
    executor = make()
    spec = null_spec()
    renamed = dataclasses.replace(
        spec, program=dataclasses.replace(spec.program, framework="other")
    )
    executor.run([spec, renamed])
    assert list(executor._servers) == [("null", None)]


def test_valid_records_are_reused_and_crashes_are_not(run_once, null_spec):
    specs = [null_spec(), null_spec("segfault@5"), null_spec("nan@5")]
    first = run_once(specs)
    second = run_once(specs, observer=(observer := Watching()))
    assert second[0] == first[0]
    assert second[2] == first[2]
    assert second[1].run_id != first[1].run_id
    assert [r.attempt for r in second] == [1, 2, 1]
    assert [s[2] for s in observer.calls if s[0] == "finish"] == [True, False, True]


def test_a_training_is_reused_while_its_files_exist(run_once, null_spec, tmp_path):
    folder = tmp_path / "board"
    spec = dataclasses.replace(
        null_spec(),
        work=Train(network="little-cnn", batch_per_device=64, data="digits"),
        checkpointing=CheckpointSettings(tensorboard=str(folder)),
    )
    folder.write_text("a file where the folder is to be")
    (refused,) = run_once([spec])
    assert refused.outcome.status is Status.UNSUPPORTED, refused.outcome
    folder.unlink()
    (first,) = run_once([spec])
    assert first.ok, first.outcome
    assert event_files(folder)
    assert run_once([spec]) == [first]
    shutil.rmtree(folder)
    (second,) = run_once([spec])
    assert second.ok
    assert second.attempt == 3
    assert event_files(folder)


def test_other_software_or_other_code_is_measured_again(run_once, null_spec, machine, monkeypatch):
    (first,) = run_once([null_spec()])

    def with_packages(**packages):
        software = dataclasses.replace(machine.software, packages=packages)
        return dataclasses.replace(machine, software=software)

    (same,) = run_once([null_spec()], machine=with_packages(numpy="2.0", torch="9.9"))
    assert same == first  # the null framework does not depend on torch
    (upgraded,) = run_once([null_spec()], machine=with_packages(numpy="2.1"))
    assert upgraded.run_id != first.run_id
    monkeypatch.setattr(executor_module, "code_version", lambda: "0+other")
    (recoded,) = run_once([null_spec()])
    assert recoded.run_id != first.run_id
    assert recoded.key.code_version == "0+other"


def test_no_cache_measures_each_spec_again_once(make_quick, run_once, null_spec):
    (first,) = run_once([null_spec()])
    executor = make_quick(no_cache=True)
    (second,) = executor.run([null_spec()])
    (third,) = executor.run([null_spec()])
    assert second.run_id != first.run_id
    assert second.attempt == 2
    assert third == second


def test_a_framework_that_is_not_installed(make_quick, store, null_spec, monkeypatch):
    absent = FrameworkEntry(
        module="cubemesh.frameworks.absent",
        title="absent",
        summary="",
        packages=("absent",),
        requires="no_such_module",
        install="pip install absent",
    )
    monkeypatch.setitem(FRAMEWORKS, "absent", absent)
    (record,) = make_quick().run([null_spec(framework="absent")])
    assert record.outcome.status is Status.NOT_INSTALLED
    assert "pip install absent" in record.outcome.message
    assert store.find(record.key) == record
    null = dataclasses.replace(FRAMEWORKS["null"], packages=("absent",))
    monkeypatch.setitem(FRAMEWORKS, "absent", null)
    (installed,) = make_quick().run([null_spec(framework="absent")])
    assert installed.key == record.key
    assert installed.outcome.status is not Status.NOT_INSTALLED


def replace_null_framework(folder, module, monkeypatch):
    """Have servers and workers import `module` from `folder` as the framework null."""
    (folder / "sitecustomize.py").write_text(
        "import cubemesh.frameworks as f, dataclasses\n"
        f"f.FRAMEWORKS['null'] = dataclasses.replace(f.FRAMEWORKS['null'], module='{module}')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")


def test_a_framework_that_cannot_be_imported_is_an_outcome(make, null_spec, tmp_path, monkeypatch):
    """A broken installation: found, but its import fails."""
    (tmp_path / "brokenlib.py").write_text("raise ImportError('libbroken.so: not found')\n")
    replace_null_framework(tmp_path, "brokenlib", monkeypatch)
    (record,) = make().run([null_spec()])
    assert (record.outcome.status, record.outcome.origin) == (Status.CRASHED, "worker")
    assert "ImportError: libbroken.so" in record.outcome.message


def test_a_framework_that_kills_its_server_as_it_is_imported(
    make, null_spec, tmp_path, monkeypatch
):
    (tmp_path / "deadlylib.py").write_text("import os; os.kill(os.getpid(), 11)\n")
    replace_null_framework(tmp_path, "deadlylib", monkeypatch)
    (record,) = make().run([null_spec()])
    assert (record.outcome.status, record.outcome.origin) == (Status.CRASHED, "runner")
    assert record.outcome.facts["signal"] == "SIGSEGV"
    assert record.outcome.facts["phase"] == "import"


def test_a_server_that_runs_out_of_memory_as_it_imports_is_out_of_memory(
    make, null_spec, tmp_path, monkeypatch
):
    """With a count of the kernel that rises by one: a memory control group is not ours to make."""
    (tmp_path / "largelib.py").write_text("import os; os.kill(os.getpid(), 9)\n")
    replace_null_framework(tmp_path, "largelib", monkeypatch)
    (killed,) = make().run([null_spec()])
    assert killed.outcome.status is Status.KILLED
    counts = iter([4, 5])
    monkeypatch.setattr("cubemesh.runs.executor.oom_kills", lambda: next(counts))
    (record,) = make().run([null_spec(seed=1)])
    assert (record.outcome.status, record.outcome.origin) == (Status.OOM, "runner")
    assert record.outcome.facts["phase"] == "import"


def test_the_output_of_a_process_that_drives_several_devices_is_recorded(
    make, null_spec, tmp_path, monkeypatch
):
    """A framework that starts no ranks, and aborts where memory is refused as C++ does."""
    (tmp_path / "abortinglib.py").write_text(
        "import os\n"
        "from cubemesh.frameworks.null.program import *\n"
        "def capabilities():\n"
        "    print(\"terminate called after throwing an instance of 'std::bad_alloc'\")\n"
        "    os.abort()\n"
    )
    replace_null_framework(tmp_path, "abortinglib", monkeypatch)
    spec = dataclasses.replace(null_spec(), placement=Placement(devices=2))
    (record,) = make().run([spec])
    assert record.outcome.status is Status.OOM, record.outcome
    assert "std::bad_alloc" in record.outcome.facts["output"]
    assert "in capabilities" in record.outcome.facts["stacks"]


def test_a_device_is_locked_for_one_runner(make_quick, null_spec, monkeypatch):
    """With a null framework that counts as computing."""
    monkeypatch.setattr("cubemesh.runs.devices.simulated", lambda spec: False)
    first = make_quick()
    first.run([null_spec()])
    second = make_quick()
    assert second.run([null_spec()])[0].ok  # stored already: needs no device
    with pytest.raises(BusyError, match=rf"process {os.getpid()} "):
        second.run([null_spec(seed=1)])
    with pytest.raises(BusyError, match="200 ms"):
        make_quick(wait_s=0.2).run([null_spec(seed=1)])
    first.close()
    assert second.run([null_spec(seed=1)])[0].ok


def test_a_suite_goes_on_while_the_store_is_locked(tmp_path, machine, null_spec, on_null_server):
    path = tmp_path / "locked.db"
    with (
        Store.open(str(path), busy_timeout_s=0.1) as store,
        Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        on_null_server(executor)
        (first,) = executor.run([null_spec()])
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(StoreWarning, match="locked"):
            later = executor.run([null_spec(seed=1), null_spec(seed=2), null_spec(seed=1)])
        assert all(record.ok for record in later)
        assert later[2] == later[0], "measured once"
        assert store.records() == [first]
        assert isinstance(store.unsaved, BusyError)
        other.execute("ROLLBACK")
        with pytest.warns(StoreWarning, match="from the spool"):
            assert store.settle() is None
        assert store.records() == [first, *later[:2]]
        assert store.series(later[1].run_id)


def test_other_data_under_the_same_path_are_measured_again(make, null_spec, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    executor = make()
    spec = null_spec(data="images", data_path=str(folder))
    (folder / "a.txt").write_text("a")
    one = executor.key(spec)
    assert make().key(spec) == one
    (folder / "a.txt").write_text("b")
    assert make().key(spec) != one
    assert executor.key(null_spec()).data_id == ""


def test_a_run_on_data_that_only_other_hosts_have_is_measured_again(
    make_quick, store, null_spec, tmp_path
):
    """This host cannot tell whether they are still the same."""
    folder = tmp_path / "data"
    hosts = Placement(device="cpu", devices=2, threads=1, hosts=("a", "b"))
    spec = dataclasses.replace(null_spec(data="images", data_path=str(folder)), placement=hosts)

    def measured():
        with make_quick() as executor:
            executor.run([spec])
        return len(store.records())

    assert [measured(), measured()] == [1, 2]
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    assert [measured(), measured()] == [3, 3]


def test_a_framework_is_imported_once_for_all_runs(make, null_spec, tmp_path, monkeypatch):
    (tmp_path / "countinglib.py").write_text(
        "from cubemesh.frameworks.null.program import *\n"
        f"open({str(tmp_path / 'imports')!r}, 'a').write('imported\\n')\n"
    )
    replace_null_framework(tmp_path, "countinglib", monkeypatch)
    assert all(r.ok for r in make().run([null_spec(seed=n) for n in range(3)]))
    assert (tmp_path / "imports").read_text() == "imported\n"
