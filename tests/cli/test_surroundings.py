"""Disks that are full, folders that are gone, no home, no memory for a renderer: one sentence with
the cause, and a documented exit code."""

import contextlib
import errno
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cubemesh.store import Store
from patience import wait_until

pytestmark = pytest.mark.usefixtures("forked_servers")

RUN = (
    *("run", "minibatch", "--set", "framework=null", "--set", "ceiling=false"),
    *("--set", "batch_sizes=8"),
)
NO_HOME = """
import os, pwd, sys
del os.environ["HOME"]
def getpwuid(user):
    raise KeyError(user)
pwd.getpwuid = getpwuid  # as in a container with a user of no name
from cubemesh import cli
cli.main()
"""


def fill(folder: Path) -> None:
    """Take all room of a disk."""
    with open(folder / "filling", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1000))


def ended(words, **options) -> subprocess.CompletedProcess[str]:
    """The command, run to its end, without a traceback."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def forked(forkserver, *words: str, **options) -> subprocess.CompletedProcess[str]:
    """As `ended`, for a fork of a process that has imported the command."""
    done = forkserver.run(*words, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cubemesh", *words]


def test_a_full_cache_folder_is_named(forkserver, tmp_path, small_disk):
    fill(small_disk)
    full = {"XDG_CACHE_HOME": str(small_disk)}
    done = forked(forkserver, *RUN, "--store", str(tmp_path / "s.db"), environment=full)
    assert done.returncode == 1
    assert f"{small_disk}/cubemesh/runs" in done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr


FULL_BEFORE_THE_FIRST_STEP = """
from pathlib import Path
from cubemesh.frameworks.null.program import NullProgram

def fill_then_step(program, placed, step=NullProgram.train_step):
    with open(Path({disk!r}, "filling"), "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1000))
        except OSError:
            pass
    step(program, placed)

NullProgram.train_step = fill_then_step
"""


def test_a_cache_folder_that_becomes_full_is_the_outcome_of_the_run(
    forkserver, tmp_path, small_disk
):
    """The run goes on for want of a reason to end, and ends with the cause."""
    store = tmp_path / "s.db"
    code = FULL_BEFORE_THE_FIRST_STEP.format(disk=str(small_disk))
    (tmp_path / "sitecustomize.py").write_text(code)
    own = {"XDG_CACHE_HOME": str(small_disk)}
    own["PYTHONPATH"] = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = forked(forkserver, *RUN, "--store", str(store), environment=own)
    assert done.returncode == 1, done.stderr
    with Store.open(str(store), read_only=True) as opened:
        (record,) = opened.records()
    assert "the disk of the run's folder" in record.outcome.message
    assert f"{small_disk}/cubemesh/runs" in record.outcome.message


FILLS_ITS_DISK = """
import time
from pathlib import Path
from cubemesh.training import checkpoint_writer

save = checkpoint_writer.save

def save_on_a_full_disk(folder, rank, ranks, checkpoint):
    filling, enough = Path({disk!r}, "filling"), Path({folder!r}, "enough")
    if checkpoint.step == 10:
        with open(filling, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1000))
            except OSError:
                pass
        while not enough.exists():
            time.sleep(0.01)
    if checkpoint.step == 20:
        filling.unlink(missing_ok=True)
    return save(folder, rank, ranks, checkpoint)

checkpoint_writer.save = save_on_a_full_disk
"""


def test_a_training_goes_on_while_the_cache_folder_is_full(forkserver, tmp_path, small_disk):
    """Its worker fills the disk at step 10, until the command has told so, and frees it at 20."""
    pytest.importorskip("torch")
    store, code = (
        tmp_path / "s.db",
        FILLS_ITS_DISK.format(disk=str(small_disk), folder=str(tmp_path)),
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    own = {"XDG_CACHE_HOME": str(small_disk), "XDG_RUNTIME_DIR": str(tmp_path)}
    own["PYTHONPATH"] = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    words = (
        *("train", "little-cnn", "--epochs", "2", "--checkpoint-every", "10", "--restarts", "0"),
        *("--set", "device=cpu", "--set", "threads=1", "--set", "image_size=8"),
    )
    process = forkserver.start(
        *(*words, "--checkpoints", str(tmp_path / "checkpoints"), "--store", str(store)),
        environment=own,
        stdout=os.open(os.devnull, os.O_WRONLY),
    )
    told = [line for line in process.stderr if _told(line, tmp_path / "enough")]
    assert process.wait() == 0, told
    (message,) = told
    assert str(small_disk) in message
    with Store.open(str(store), read_only=True) as opened:
        (record,) = opened.records()
    assert record.figure("epochs_trained") == 2
    assert "event-refused" not in {warning.code for warning in record.warnings}


def _told(line: str, enough: Path) -> bool:
    if told := "The disk of the run's folder" in line:
        enough.touch()
    return told


@pytest.mark.parametrize("verb", [RUN, ("report",), ("results",)], ids=lambda words: words[0])
def test_a_working_folder_that_is_gone(tmp_path, verb):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = shlex.join(command(*verb, "--store", "s.db"))
    done = ended(["bash", "-c", f"rmdir {gone}; {words}"], cwd=gone)
    assert done.returncode == 1
    assert done.stderr.startswith("cubemesh: ")


@pytest.fixture(scope="module")
def store(tmp_path_factory, cubemesh):
    """A store with a run."""
    path = str(tmp_path_factory.mktemp("store") / "s.db")
    assert cubemesh(*RUN, "--store", path).returncode == 0
    return path


def test_a_report_needs_no_home(store, tmp_path):
    page = tmp_path / "page.html"
    words = ("report", "--store", store, "--output", str(page))
    done = ended([sys.executable, "-c", NO_HOME, *words])
    assert done.returncode == 0, done.stderr
    assert page.exists()


@pytest.mark.parametrize("limit_kib", [2_000_000, 6_000_000])
def test_a_renderer_without_room_is_named(forkserver, store, tmp_path, limit_kib):
    page = tmp_path / "page.html"
    page.write_text("earlier")
    words = ("report", "--store", store, "--output", str(page))
    done = forked(forkserver, *words, limits={resource.RLIMIT_AS: limit_kib << 10})
    assert done.returncode == 1
    assert "ulimit -v" in done.stderr
    assert done.stderr.count("\n") == 1
    assert page.read_text() == "earlier"


INTERRUPTED_IMPORT = """
import signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            del sys.argv[1]
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from cubemesh.cli import main
main()
"""


@pytest.mark.parametrize("module", ["cubemesh.cli.main", "typer", "cubemesh.untrusted"])
def test_ctrl_c_during_the_imports(module):
    done = ended([sys.executable, "-c", INTERRUPTED_IMPORT, module, "networks"])
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


TERMINATED_TWICE = """
import signal, sys

class Terminate:
    def find_spec(self, name, path=None, target=None):
        if name == "altair":
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, Terminate())
from cubemesh.cli import main
main()
"""


def test_a_second_sigterm_ends_a_report_at_once(tmp_path):
    store = str(tmp_path / "s.db")
    done = ended([sys.executable, "-c", TERMINATED_TWICE, "report", "--store", store])
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == ""


def test_too_few_open_files_are_named(forkserver, tmp_path):
    words = (*RUN, "--store", str(tmp_path / "s.db"))
    done = forked(forkserver, *words, limits={resource.RLIMIT_NOFILE: 10})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("cubemesh: ")
    assert os.strerror(errno.EMFILE) in done.stderr


@pytest.fixture
def few_processes():
    """A control group for processes; `limited(n)` is the `preexec_fn` of one that may have `n`
    threads with its children. Only root may make one."""
    parents = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
    parent = next((p for p in parents if (p / "cgroup.procs").exists()), None)
    group = None if parent is None else parent / f"cubemesh-test-{os.getpid()}"
    try:
        if group is None:
            raise OSError("there are none")
        group.mkdir()
        (group / "pids.max").read_text()
    except OSError as error:
        if group is not None and group.exists():
            group.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")

    def limited(processes):
        def join() -> None:
            (group / "pids.max").write_text(str(processes))
            (group / "cgroup.procs").write_text("0")

        return join

    yield limited
    wait_until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="OpenBLAS starts no thread on one core"
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_limit_of_processes_is_named(tmp_path, few_processes, processes):
    """OpenBLAS without its threads interrupts its own process, as Ctrl-C would: that of the command
    where it may have one, that of the worker's server where it may have two."""
    pytest.importorskip("numpy")
    words = command(*RUN, "--store", str(tmp_path / "s.db"))
    one_core = {"OPENBLAS_NUM_THREADS": "2"}  # else a machine with one core needs no thread
    done = ended(words, env=os.environ | one_core, preexec_fn=few_processes(processes))
    assert done.returncode == 1, done.stderr
    assert "no thread can be started" in (done.stdout + done.stderr).lower()
    assert "pids.max" in done.stdout + done.stderr


def test_a_renderer_without_threads_is_named(store, tmp_path, few_processes):
    page = tmp_path / "page.html"
    words = command("report", "--store", store, "--output", str(page))
    done = ended(words, preexec_fn=few_processes(3))
    assert done.returncode == 1
    assert "pids.max" in done.stderr
    assert not page.exists()
