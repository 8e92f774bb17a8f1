"""Fixtures of all tests: data and cache folders of their own, never the user's."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # in_memory_log
from golden import Golden, make_golden
from record_fixtures import *  # noqa: F403 - fixtures

# No test depends on time: on a busy machine an example may take long.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes golden files instead of comparing with them."""
    parser.addoption(
        "--update-golden", action="store_true", help="Write the golden files; read the diff."
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden.check(name, text)` compares a whole output with the test module's golden file."""
    return make_golden(request)


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of C++ that tests have compiled."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def own_folders(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, _compiled: Path
) -> Iterator[Path]:
    """Point the XDG folders to a temporary folder. Compiled libraries, named by a digest of their
    source, are linked into it from earlier tests."""
    home: Path = tmp_path_factory.mktemp("xdg")
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        folder = home / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))
    libraries = home / "xdg_cache_home" / "cubemesh" / "compile"
    libraries.mkdir(parents=True)
    for made in _compiled.glob("*.so"):
        (libraries / made.name).hardlink_to(made)
    yield home
    for made in libraries.glob("*.so"):
        if not (_compiled / made.name).exists():
            (_compiled / made.name).hardlink_to(made)


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


@pytest.fixture(autouse=True)
def _keep_denormals() -> None:
    """PyTorch programs flush denormal numbers in the process, and hypothesis draws such numbers."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


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
        with pytest.raises(SystemExit) as ended:
            main()
    signal.signal(signal.SIGTERM, before)
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
