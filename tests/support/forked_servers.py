"""Servers of workers, and describing processes, that are forked instead of started.

    tests ──command, variables, streams──▶ template of a framework ──fork, fork──▶ server ──▶ worker

A template (`forks`) is an interpreter that has imported what a server of its framework imports
(`cubemesh.worker.forkserver`), and computed nothing. A server is a process of its own, and a child
of the tests as it is if they start it: the process between the two ends at once, and the tests
adopt what it leaves. Modules use it by `pytestmark = pytest.mark.usefixtures("forked_servers")`.

Processes of the command line (`cli_forkserver`) have their servers as forks of themselves.

What has another interpreter, or other variables than there were at first, is started as usual.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forks import (
    FILES,
    Template,
    answer,
    become,
    connection_of_script,
    end_after,
    process_request,
    requests,
)

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
WORKER = ["-P", "-m", "cubemesh.worker"]
OWN = (
    *("XDG_", "CUBEMESH_", "PYTEST_", "PY_COLORS", "COLUMNS"),
    *("HOME", "USERPROFILE", "PWD", "OLDPWD"),
)
"""Variables, or their beginnings, that no import reads: they may differ from test to test."""

Popen = Callable[..., "subprocess.Popen[bytes]"]


class Templates:
    """A template of each framework, made when its first process is asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._made = stack, dict[str, Template]()
        self._variables = read_by_imports(os.environ)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """As `subprocess.Popen` for the command line of a server or a describing process."""
        if not is_forkable(command, options["env"], self._variables):
            return subprocess.Popen(command, **options)
        framework = self._framework_of(command)
        if framework not in self._made:
            self._made[framework] = template = Template.start(__file__, framework)
            self._stack.callback(template.close)

        def fork(request: dict[str, Any], files: list[int]) -> int:
            _adopt(True)
            try:
                pid: int = self._made[framework].ask(request, files)
            finally:
                _adopt(False)
            return pid

        return _forked(fork, command, options)

    def _framework_of(self, command: list[str]) -> str:
        """The framework that a process imports. What is described decides that itself; most is
        for PyTorch."""
        if "--framework" in command:
            return command[command.index("--framework") + 1]
        return "pytorch" if "pytorch" in self._made else "null"


def patched(popen: Popen) -> Iterator[tuple[Any, str, Any]]:
    """What to set so that servers and describing processes are started by `popen`: object, name
    of an attribute, value."""
    from cubemesh.runs import forkserver_client, own_networks

    own = SimpleNamespace(**{name: getattr(subprocess, name) for name in subprocess.__all__})
    own.Popen = popen
    for module in (forkserver_client, own_networks):
        yield module, "subprocess", own


def fork_from_this_process(framework: str = "null") -> None:
    """Servers that this process, or a fork of it, starts from now on are forks of it: it imports
    what a server of this framework imports. Other frameworks they import themselves."""
    from cubemesh.worker.__main__ import main

    _preload(framework)
    variables = read_by_imports(os.environ)

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if not is_forkable(command, options["env"], variables):
            return subprocess.Popen(command, **options)

        def fork(request: dict[str, Any], files: list[int]) -> int:
            leads, session = os.pipe()
            if (pid := os.fork()) == 0:
                os.setsid()
                _be_worker(request, _close_others(files), main)
            os.close(session)
            os.read(leads, 1)  # until it leads its session, and has no file of this process
            os.close(leads)
            return pid

        return _forked(fork, command, options)

    for module, name, value in patched(popen):
        setattr(module, name, value)


def is_forkable(
    command: list[str], environment: Mapping[str, str], variables: Mapping[str, str]
) -> bool:
    """Whether it runs in this interpreter, with the variables that templates were started with."""
    same = command[: 1 + len(WORKER)] == [sys.executable, *WORKER]
    return same and read_by_imports(environment) == variables


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that imports may read, with what cubemesh adds for each server."""
    import cubemesh
    from cubemesh.runs.devices import CUDA_ORDER

    source = str(Path(cubemesh.__file__).parent.parent)
    found = {k: v for k, v in {**CUDA_ORDER, **environment}.items() if not k.startswith(OWN)}
    path = found.get("PYTHONPATH", "").split(os.pathsep)
    return found | {"PYTHONPATH": os.pathsep.join(one for one in path if one != source)}


def _adopt(adopting: bool) -> None:
    """Whether this process becomes the parent of processes whose parent ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(SUBREAPER, int(adopting), 0, 0, 0) == 0


def _forked(
    fork: Callable[[dict[str, Any], list[int]], int], command: list[str], options: dict[str, Any]
) -> subprocess.Popen[bytes]:
    """The Popen of a process that `fork` makes of a request and the numbers of its streams."""
    words = ["cubemesh.worker", *command[1 + len(WORKER) :]]
    request = process_request(words, options["env"], parent=os.getpid(), own_session=False)
    with _streams(options) as (files, requests, replies):
        made: subprocess.Popen[bytes] = _as_popen(command, fork(request, files), requests, replies)
        return made


@contextmanager
def _streams(options: dict[str, Any]) -> Iterator[tuple[list[int], Any, Any]]:
    """stdin, stdout and stderr of a process with these options of Popen, and the tests' ends."""
    with ExitStack() as stack:

        def opened(number: int) -> int:
            stack.callback(os.close, number)
            return number

        requests = replies = None
        if options["stdin"] == subprocess.PIPE:
            stdin, end = os.pipe()
            requests = os.fdopen(end, "wb", buffering=0)
            opened(stdin)
        else:
            stdin = opened(os.open(os.devnull, os.O_RDONLY))
        if options["stdout"] == subprocess.PIPE:
            end, stdout = os.pipe()
            replies = os.fdopen(end, "rb", buffering=0)
            opened(stdout)
        else:
            stdout = options["stdout"].fileno()
        same = options["stderr"] == subprocess.STDOUT
        stderr = stdout if same else options["stderr"].fileno()
        yield [stdin, stdout, stderr], requests, replies


def _as_popen(command: list[str], pid: int, requests: Any, replies: Any) -> Any:
    """The child `pid` as a Popen."""
    process: Any = subprocess.Popen.__new__(subprocess.Popen)
    process.args, process.pid, process.returncode = command, pid, None
    process.stdin, process.stdout, process.stderr = requests, replies, None
    process._child_created, process._waitpid_lock = True, threading.Lock()
    process._sigint_wait_secs, process._input = 0.25, None
    process._communication_started, process.text_mode = False, False
    return process


def _close_others(files: list[int]) -> list[int]:
    """Close what a new interpreter would not inherit; `files` under other numbers, three of them
    and no streams, as one may be given twice and a stream may have been closed."""
    files = [fcntl.fcntl(file, fcntl.F_DUPFD, FILES) for file in files]
    for number in map(int, os.listdir("/proc/self/fd")):
        if number >= FILES and number not in files:
            with suppress(OSError):  # that of the list itself
                os.close(number)
    return files


def _be_worker(request: dict[str, Any], files: list[int], main: Callable[[list[str]], int]) -> None:
    """Be `python -m cubemesh.worker`; does not return."""
    become(request, files)
    source = request["environment"].get("PYTHONPATH", "").partition(os.pathsep)[0]
    if source and source not in sys.path:
        sys.path.insert(0, source)
    end_after(lambda: sys.exit(main(sys.argv[1:])))


def _preload(framework: str) -> None:
    from cubemesh.frameworks import entry
    from cubemesh.measure.telemetry import nvml
    from cubemesh.worker.forkserver import frozen_imports

    with frozen_imports(), suppress(Exception):  # a server imports it again, and reports it
        nvml.preload()
        entry(framework).load().preload()


def serve(framework: str) -> None:
    """Import what a server imports; then fork until the tests close their end."""
    from cubemesh.worker.__main__ import main

    _preload(framework)
    connection = connection_of_script()
    for request, files in requests(connection):
        if not (between := os.fork()):
            if os.fork():
                os._exit(0)
            while os.getppid() != request["parent"]:
                time.sleep(0)  # the process between the two ends
            os.setsid()
            answer(connection, os.getpid())
            connection.close()
            _be_worker(request, files, main)
        os.waitpid(between, 0)


if __name__ == "__main__":
    sys.path.pop(0)  # as with `-P`
    serve(sys.argv[2])
