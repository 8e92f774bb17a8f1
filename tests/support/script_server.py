"""Scripts of tests in forks of a process that has imported what the tests import.

A new interpreter imports PyTorch and cubemesh for seconds. The template (`forks`) is forked from
the process of the tests after their collection and before the first of them, so it has their
modules and has computed nothing; each script is a fork of it, with memory, limits and exit code of
its own.

A fork cannot use a GPU that its parent has looked for, so on a machine with GPUs the scripts are
new interpreters.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forks import Template, answer, become, end_after, freeze, process_request, requests

_template: Template | None = None


def start() -> None:
    """Fork the template, which ends with this process or with `close`."""
    global _template
    _template = Template.fork(_serve)


def close() -> None:
    """End the template."""
    global _template
    if _template is not None:
        _template.close()
        _template = None


def run_script(
    script: str | Path, *arguments: object, code: str = "", imports: Sequence[str] = ()
) -> str:
    """Run a file as a script, or `code` in its place, and return what it prints. The template
    first imports `imports`, which other scripts find too. CalledProcessError unless the script
    exits with 0."""
    words = [str(script), *map(str, arguments)]
    with (
        open(os.devnull) as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
    ):
        if _template is None or _has_gpu():
            command = [sys.executable, *(["-c", code, *words[1:]] if code else words)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(
                command, stdin=given, stdout=out, stderr=errors, env=environment, check=False
            )
            exit_code = done.returncode
        else:
            request = process_request(words, own_session=False, code=code, imports=[*imports])
            exit_code = _template.ask(request, [file.fileno() for file in (given, out, errors)])
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


def _serve(connection: socket.socket) -> None:
    """Fork for each request and answer with the exit code, until the tests end."""
    for request, files in requests(connection):
        os.environ.clear()
        os.environ.update(request["environment"])
        for name in request["imports"]:
            importlib.import_module(name)
        freeze()
        if (pid := os.fork()) == 0:
            connection.close()
            become(request, files)
            end_after(_be_script, request)
        answer(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _be_script(request: dict[str, Any]) -> None:
    if request["code"]:
        exec(compile(request["code"], "<script>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(request["words"][0], run_name="__main__")
