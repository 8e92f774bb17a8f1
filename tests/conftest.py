"""Fixtures of all tests: data and cache folders of their own, never the user's."""

import gc
import io
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

# Of tests and of hypothesis with rewritten assertions: seconds at every start.
sys.dont_write_bytecode = False
gc.disable()  # until the tests are collected: nothing of them and of the modules is released
# Two threads of a small network would wait for each other in a loop, here and in all processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from hypothesis import HealthCheck, settings

import command_tree
import script_server
from chromium import browser  # noqa: F401 - a fixture
from cli_forkserver import Forkserver
from forked_servers import Templates, patched
from golden import Golden, make_golden
from record_fixtures import *  # noqa: F403 - fixtures
from slurm_cluster import slurm  # noqa: F401 - a fixture

command_tree.build_once()

# No test depends on time: on a busy machine an example may take long. Nor on chance: the examples
# are the same in each run, unless others are asked for.
ANY_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same-examples", ANY_TIME, derandomize=True, database=None)
settings.register_profile("random-examples", ANY_TIME, derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes golden files instead of comparing with them; `--random-examples`
    lets hypothesis draw other examples in each run."""
    parser.addoption(
        "--update-golden", action="store_true", help="Write the golden files; read the diff."
    )
    parser.addoption(
        "--random-examples",
        action="store_true",
        help="Hypothesis draws other examples in each run, and keeps those that fail.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Examples of hypothesis: the same in each run, or random ones. `--hypothesis-profile` names
    another profile."""
    if not config.getoption("--hypothesis-profile", None):
        chosen = "random-examples" if config.getoption("--random-examples") else "same-examples"
        settings.load_profile(chosen)


LONGEST = (
    *("test_install.py", "runs/test_hosts.py", "web/test_browser.py", "views/test_browser.py"),
    *("frameworks/pytorch/test_compiled.py", "runs/test_interruption.py"),
    *("frameworks/test_contract.py", "cli/test_cli.py", "cli/test_surroundings.py"),
    *("runs/test_training_faults.py", "runs/test_stopped.py", "cli/test_faults.py"),
    *("experiments/sequential_equivalence/test_experiment.py", "cli/test_tune.py"),
    *("papers/validation/test_fitting.py", "papers/validation/test_experiment.py"),
)
"""Files that take longest, so that the processes of pytest-xdist begin with them."""


PROCESS_BYTES = 2 << 30
"""Memory for a process with tests, with the processes that they start."""
TOGETHER = ("papers/validation",)
"""Folders whose files one process tests, since the modules keep what takes long to compute."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to the processes, so that fixtures of modules are made once; pytest-xdist
    has `--dist loadfile` for that, which begins with the files of most tests."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((folder for folder in TOGETHER if f"{folder}/" in file), file)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto`: two processes for each core, as tests wait for half of their time, and no more
    than fit into memory."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    fitting = psutil.virtual_memory().total // PROCESS_BYTES
    return max(1, min(2 * len(os.sched_getaffinity(0)), fitting))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In processes of pytest-xdist the longest files come first."""
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Modules and tests stay until the end: the garbage collector need not look at them."""
    gc.freeze()
    script_server.start()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """The server of scripts ends, and its processor time is counted with that of the tests."""
    script_server.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden.check(name, text)` compares a whole output with the test module's golden file."""
    return make_golden(request)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test session have in common."""
    base: Path = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _compiled(shared: Path) -> Iterator[Path]:
    """The libraries of C++ that tests have compiled, in the cache folder of fixtures that several
    tests share."""
    folder = shared / "cache" / "cubemesh" / "compile"
    folder.mkdir(parents=True, exist_ok=True)
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    yield folder
    patch.undo()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders for one test each. `mktemp` would search all earlier ones for the next number."""
    folder: Path = tmp_path_factory.mktemp("xdg")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_folders(
    _homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch, _compiled: Path
) -> Iterator[Path]:
    """Point the XDG folders to a temporary folder. Compiled libraries, named by a digest of their
    source, are linked into it from earlier tests."""
    home = next(_homes)
    home.mkdir()
    for kind in ("DATA_HOME", "CACHE_HOME", "STATE_HOME", "RUNTIME_DIR", "CONFIG_HOME"):
        name = f"XDG_{kind}"
        folder = home / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))
    libraries = home / "xdg_cache_home" / "cubemesh" / "compile"
    libraries.mkdir(parents=True)
    for made in _compiled.glob("*.so"):
        (libraries / made.name).hardlink_to(made)
    yield home
    for made in libraries.glob("*.so"):
        with suppress(FileExistsError):
            (_compiled / made.name).hardlink_to(made)


@pytest.fixture(scope="session", autouse=True)
def _compiled_by_torch(shared: Path) -> Iterator[None]:
    """TorchInductor first compiles PyTorch's headers, for 10 s and more in a new cache folder: this
    one is of all tests. It need not compile and load a library for each of the processor's vector
    extensions, in every process, to learn that the compiler has them: any that knows C++20 does."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def _no_colour() -> Iterator[None]:
    """Messages are compared as text."""
    patch = pytest.MonkeyPatch()
    patch.setenv("NO_COLOR", "1")
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def _restore_sigint() -> Iterator[None]:
    """Tests send SIGINT to processes they start. A shell that starts tests in the background makes
    them, and their children, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


KEPT = {".sqlite", ".json", ".gz"}


@pytest.fixture(scope="module", autouse=True)
def _keep_stored_benchmarks() -> Iterator[None]:
    """Stores in benchmarks/records stay as they were measured: opening one upgrades it, so copies
    are opened."""
    before = _stored_benchmarks()
    yield
    assert _stored_benchmarks() == before, "a file of benchmarks/records was changed: open a copy"


def _stored_benchmarks() -> dict[str, tuple[int, int]]:
    """When each file in benchmarks/records was last changed, and its bytes."""
    folder = Path(__file__).parents[1] / "benchmarks" / "records"
    files = {path.name: path.stat() for path in folder.iterdir() if path.suffix in KEPT}
    return {name: (found.st_mtime_ns, found.st_size) for name, found in files.items()}


@pytest.fixture(autouse=True)
def _setup_torch() -> None:
    """PyTorch programs flush denormal numbers in the process, and hypothesis draws such numbers.
    Networks of tests are small: a second thread would wait for work in a loop most of the time."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _write_bytecode() -> Iterator[None]:
    """Hundreds of processes are started, and each would compile cubemesh again without bytecode."""
    patch = pytest.MonkeyPatch()
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def cubemesh() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in this process, where its libraries are imported once; returns its exit
    code and output. Its workers are processes as usual."""
    return _cubemesh


def _cubemesh(*words: str) -> subprocess.CompletedProcess[str]:
    from cubemesh.cli import main

    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["cubemesh", *words])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # not that of `-m pytest`
        with pytest.raises(SystemExit) as ended:
            main()
    signal.signal(signal.SIGTERM, before)
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    """Starts processes of the command: for signals and streams, which `cubemesh` has not."""
    with closing(Forkserver()) as server:
        yield server


@pytest.fixture(scope="session")
def pytorch_forkserver() -> Iterator[Forkserver]:
    """As `forkserver`, for commands that train with PyTorch."""
    with closing(Forkserver("pytorch")) as server:
        yield server


@pytest.fixture(scope="session")
def _templates() -> Iterator[Templates]:
    with ExitStack() as stack:
        yield Templates(stack)


@pytest.fixture(scope="module")
def forked_servers(_templates: Templates) -> Iterator[None]:
    """Servers and describing processes that this module's tests start in their own process are
    forks of templates."""
    with pytest.MonkeyPatch.context() as patch:
        for changed in patched(_templates.popen):
            patch.setattr(*changed)
        yield


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of its own; only root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
