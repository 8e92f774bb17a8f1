"""Scripts of tests in forks of a process that has imported what the tests import.

    tests ──script, arguments, environment, stdout, stderr──▶ server ──fork──▶ script

A new interpreter imports PyTorch and cubemesh for seconds. The server is forked from the process of
the tests after their collection and before the first of them, so it has their modules and has
computed nothing; each script is a fork of it, with memory, limits and exit code of its own.

A fork cannot use a GPU that its parent has looked for, so on a machine with GPUs the scripts are
new interpreters.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

REQUEST_BYTES = 1 << 20
_server: tuple[int, socket.socket] | None = None
"""Its number and the connection to it."""


def start() -> None:
    """Fork the server, which ends with this process or with `close`."""
    global _server
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) == 0:
        try:
            ours.close()
            _serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    _server = pid, ours


def close() -> None:
    """End the server."""
    global _server
    if _server is not None:
        pid, connection = _server
        _server = None
        connection.close()
        os.waitpid(pid, 0)


def run_script(
    script: str | Path, *arguments: object, code: str = "", imports: Sequence[str] = ()
) -> str:
    """Run a file as a script, or `code` in its place, and return what it prints. The server first
    imports `imports`, which other scripts find too. CalledProcessError unless the script exits
    with 0."""
    words = [str(script), *map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        if _server is None or _has_gpu():
            command = [sys.executable, *(["-c", code, *words[1:]] if code else words)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(command, stdout=out, stderr=errors, env=environment, check=False)
            exit_code = done.returncode
        else:
            request = {"words": words, "code": code, "imports": list(imports)}
            request |= {"environment": dict(os.environ), "folder": os.getcwd()}
            request["cores"] = sorted(os.sched_getaffinity(0))
            exit_code = _ask(request, [out.fileno(), errors.fileno()])
        texts = []
        for stream in (out, errors):
            stream.seek(0)
            texts.append(stream.read().decode())
    sys.stderr.write(texts[1])
    if exit_code:
        raise subprocess.CalledProcessError(exit_code, words, *texts)
    return texts[0]


def run_code(code: str, *arguments: object, imports: Sequence[str] = ()) -> str:
    """As `run_script`, of a text."""
    return run_script("-c", *arguments, code=code, imports=imports)


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.device_count() > 0


def _ask(request: dict, files: Sequence[int]) -> int:
    assert _server is not None
    socket.send_fds(_server[1], [json.dumps(request).encode()], list(files))
    answer = _server[1].recv(REQUEST_BYTES)
    assert answer, "the server of scripts ended"
    return int(answer)


def _serve(requests: socket.socket) -> None:
    """Fork for each request and answer with the exit code, until the tests end."""
    while True:
        text, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
        if not text:
            return
        request = json.loads(text)
        os.environ.clear()
        os.environ.update(request["environment"])
        for name in request["imports"]:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page it looks at
        if (pid := os.fork()) == 0:
            requests.close()
            _be_script(request, files)
        for number in files:
            os.close(number)
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _be_script(request: dict, files: Sequence[int]) -> None:
    """Be the script, as if a new interpreter ran it; does not return."""
    exit_code = 1
    try:
        faulthandler.disable()
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
            os.close(file)
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.chdir(request["folder"])
        os.sched_setaffinity(0, request["cores"])
        sys.argv = request["words"]
        if request["code"]:
            exec(compile(request["code"], "<script>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(request["words"][0], run_name="__main__")
        exit_code = 0
    except SystemExit as ended:
        exit_code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
