"""A command of cubemesh in a fork of this process, and what it leaves behind.

`prepare` imports what commands import and becomes the parent of every orphan, so that a process
that outlives its command is found. Writes outside a command's folder are found by an audit hook, in
the fork and, through a `sitecustomize`, in the processes that it starts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

MOST_CPU_S = 30
DOCUMENTED = {0, 1, 2, 75, 98, 99, 129, 130, 143}
"""Exit codes of docs/cli.md."""
HIDDEN = ("torch", "tensorflow", "jax", "onnxruntime", "openvino")
"""Frameworks and engines that no command finds."""
IDLE_S = {True: 2.0, False: 60.0}
"""A command that uses no processor for so long gets a SIGTERM: where waiting is its work, and where
it is a failure."""
END_S = 120.0
"""After a SIGTERM, or after its command, a process ends within so long."""
_PR_SET_CHILD_SUBREAPER = 36
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PARTIAL = re.compile(r"\..+\.[A-Za-z0-9_]{6,}|\..+\.\d+")
_MODULES = (
    *(
        "altair",
        "rich.table",
        "sqlalchemy",
        "PIL.Image",
        "uvicorn",
        "xml.sax",
        "encodings.utf_8_sig",
    ),
    *("pydantic.types", "pydantic._internal._validators", "typer._adapters", "rich._emoji_codes"),
    *("cubemesh.cli.main", "cubemesh.experiments.registry", "cubemesh.inference.build"),
)
_PACKAGES = ("api", "views", "exports", "jobs", "store")
"""Packages of cubemesh of which every module is imported."""
_AUDIT = '''
import os, sys
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FIRST = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime")
_SECOND = ("os.rename", "os.link", "os.symlink")


def watch_writes(folder, log):
    """Append each path outside `folder` that is written to the file `log`."""

    def note(path):
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, (str, os.PathLike)):
            return
        try:
            whole = os.path.abspath(path)
        except (OSError, ValueError):
            return
        if not whole.startswith((folder, "/dev/", "/proc/")):
            file = os.open(log, os.O_WRONLY | os.O_APPEND)
            os.write(file, os.fsencode(whole) + b"\\n")
            os.close(file)

    def hook(event, arguments):
        if event == "open":
            path, mode, flags = arguments
            if path != log and isinstance(flags, int) and flags & _WRITES:
                note(path)
        elif event in _FIRST:
            note(arguments[0])
        elif event in _SECOND:
            note(arguments[1])
        elif event == "sqlite3.connect" and "mode=ro" not in str(arguments[0]):
            text = str(arguments[0])
            note(text if not text.startswith("file:") else text[5:].partition("?")[0])

    sys.addaudithook(hook)


class Hide:
    """A finder that hides modules."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(names):
    """As if these packages were not installed."""
    import importlib.util

    original = importlib.util.find_spec

    def find_spec(name, package=None):
        return None if name.partition(".")[0] in names else original(name, package)

    importlib.util.find_spec = find_spec
    sys.meta_path.insert(0, Hide(names))
'''
_SITE = """
import os
if os.environ.get("CUBEMESH_FUZZ_LOG"):
    hide({hidden!r})
    watch_writes(os.environ["CUBEMESH_FUZZ_FOLDER"], os.environ["CUBEMESH_FUZZ_LOG"])
"""

_audit: dict[str, Any] = {}
exec(compile(_AUDIT, "fuzz_audit", "exec"), _audit)


@dataclass
class Ended:
    """How a command ended."""

    code: int
    cpu_s: float
    output: str
    failures: list[str] = field(default_factory=list)


def prepare() -> None:
    """Hide the frameworks; import once what commands import; take over orphans."""
    _audit["hide"](HIDDEN)
    from cubemesh.errors import CubemeshError

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    source = Path(importlib.import_module("cubemesh").__file__ or "").parent
    own = sorted(path for name in _PACKAGES for path in (source / name).rglob("[a-z]*.py"))
    names = (".".join(path.relative_to(source.parent).with_suffix("").parts) for path in own)
    for name in (*_MODULES, *names):
        with contextlib.suppress(ImportError, CubemeshError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    if threading.active_count() > 1:
        raise RuntimeError(f"threads do not survive a fork: {threading.enumerate()}")


def build_commands() -> None:
    """Build the commands for all forks; typer builds all of them again for each call."""
    import typer.main

    from cubemesh.cli import app

    get_command: Any = functools.cache(typer.main.get_command)
    typer.main.get_command = get_command
    get_command(app)


def run(words: list[str], work: Path, home: Path, *, waits: bool) -> Ended:
    """Run `cubemesh WORDS` in the folder `work`, its own folders in `home`, and check what it left.
    `waits`: waiting without an end is its work, so it is ended by SIGTERM."""
    environment = _environment(home, work.parent)
    out, err = home / "stdout", home / "stderr"
    before = set(work.rglob("*"))
    pid = os.fork()
    if pid == 0:
        _become(words, work, environment, out, err)
    status, used, failures = _wait(pid, waits)
    left = _processes_left()
    code = os.waitstatus_to_exitcode(status)
    printed, said = (path.read_text("utf-8", "surrogateescape") for path in (out, err))
    if left:
        failures.append(f"left processes: {', '.join(left)}")
    failures += _check_end(code, printed, said, words, terminated="idle" in failures)
    failures += _check_files(work, home, before, words)
    return Ended(code, used, f"{printed}{said}", [f for f in failures if f != "idle"])


def _environment(home: Path, folder: Path) -> dict[str, str]:
    names = ("DATA_HOME", "CACHE_HOME", "STATE_HOME", "CONFIG_HOME", "RUNTIME_DIR")
    own = {f"XDG_{name}": str(home / name.lower()) for name in names}
    own |= {"HOME": str(home), "TMPDIR": str(home / "tmp"), "CUBEMESH_SSH": "false"}
    own |= {"BROWSER": "false", "NO_COLOR": "1", "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    for path in (*(own[f"XDG_{name}"] for name in names), own["TMPDIR"], str(home / "site")):
        os.makedirs(path, mode=0o700)
    (home / "site" / "sitecustomize.py").write_text(_AUDIT + _SITE.format(hidden=HIDDEN))
    (home / "outside").touch()
    paths = [str(home / "site"), os.environ.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    own |= {"CUBEMESH_FUZZ_FOLDER": str(folder), "CUBEMESH_FUZZ_LOG": str(home / "outside")}
    return own


def _become(
    words: list[str], work: Path, environment: dict[str, str], out: Path, err: Path
) -> NoReturn:
    """The command, in the fork."""
    code = 1
    try:
        os.setsid()
        for descriptor, path in ((0, Path(os.devnull)), (1, out), (2, err)):
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.environ.update(environment)
        tempfile.tempdir = None
        os.chdir(work)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S + 1, MOST_CPU_S + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _audit["watch_writes"](
            environment["CUBEMESH_FUZZ_FOLDER"], environment["CUBEMESH_FUZZ_LOG"]
        )
        from cubemesh.cli import main

        sys.argv = ["cubemesh", *words]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _wait(pid: int, waits: bool) -> tuple[int, float, list[str]]:
    """Wait for the end; its status, its processor time with that of its workers, and failures.
    An idle command is ended."""
    descriptor = os.pidfd_open(pid)
    failures: list[str] = []
    idle_since, before = time.monotonic(), -1.0
    while not select.select([descriptor], [], [], 0.25)[0]:
        now, used = time.monotonic(), _cpu_s(pid)
        if used is None or used != before:  # None: a process is ready to run
            idle_since, before = now, -1.0 if used is None else used
        if failures and now - idle_since > END_S:
            failures.append("does not end at SIGTERM")
            os.killpg(pid, signal.SIGKILL)
        elif not failures and now - idle_since > IDLE_S[waits]:
            failures.append("idle" if waits else f"waits for {IDLE_S[waits]:.0f} s, idly")
            os.kill(pid, signal.SIGTERM)
            idle_since = now
    os.close(descriptor)
    _, status, usage = os.wait4(pid, 0)
    used_s = usage.ru_utime + usage.ru_stime
    if used_s > MOST_CPU_S:
        failures.append(f"uses {used_s:.0f} s of processor time")
    return status, used_s, failures


def _cpu_s(pid: int) -> float | None:
    """Processor time of a process and its descendants; None where one is ready to run."""
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "R":
                return None
            total += int(fields[11]) + int(fields[12])
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                waiting += map(int, children.read_text().split())
    return total


def _processes_left() -> list[str]:
    """Names of orphans of a command that do not end; they are killed."""
    found: list[str] = []
    deadline = time.monotonic() + END_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid:
            continue
        if time.monotonic() > deadline:
            for child in Path("/proc/self/task").glob("*/children"):
                for one in child.read_text().split():
                    found.append(Path(f"/proc/{one}/comm").read_text().strip())
                    os.kill(int(one), signal.SIGKILL)
            deadline += END_S
        time.sleep(0.02)


def _check_end(
    code: int, printed: str, said: str, words: list[str], *, terminated: bool
) -> list[str]:
    failures = []
    if code not in DOCUMENTED:
        failures.append(f"exit code {code} is not documented")
    elif code in (143, 129, 130) and not terminated:
        failures.append(f"exit code {code} without a signal")
    if "Traceback (most recent call last)" in said:
        failures.append("a traceback")
    if _CONTROL.search(printed.replace("\x0c", "") if "--export" in words else printed):
        failures.append("control characters on stdout")
    if _CONTROL.search(said):
        failures.append("control characters on stderr")
    if code in (1, 2) and not said.strip() and not printed.strip():
        failures.append("a failure without a word")
    if "--json" in words and code == 0 and not {"-h", "--help", "--version"} & set(words):
        failures += _check_json(printed)
    return failures


def _check_json(printed: str) -> list[str]:
    try:
        for line in [printed] if printed.startswith("{\n") else printed.splitlines():
            json.loads(line, parse_constant=lambda name: float(f"invalid {name}"))
    except ValueError as error:
        return [f"invalid JSON: {error}"]
    return []


def _check_files(work: Path, home: Path, before: set[Path], words: list[str]) -> list[str]:
    failures = []
    named = " ".join(words)
    outside = {
        line
        for line in (home / "outside").read_text(errors="replace").splitlines()
        if "__pycache__" not in line and line not in named
    }
    if outside:
        failures.append(f"writes outside its folder: {', '.join(sorted(outside)[:5])}")
    runs = home / "cache_home" / "cubemesh" / "runs"
    if left := [path.name for path in runs.glob("*") if path.is_dir()]:
        failures.append(f"left folders of runs: {left}")
    new = {path for folder in (work, home / "data_home") for path in folder.rglob("*")} - before
    if partial := sorted(path.name for path in new if _PARTIAL.fullmatch(path.name)):
        failures.append(f"left half a file: {partial}")
    if left := sorted(path.name for path in (home / "tmp").iterdir()):
        failures.append(f"left temporary files: {left}")
    for path in (home / "runtime_dir").rglob("*.lock"):
        with open(path) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                failures.append(f"left a lock: {path.name}")
    return failures
