"""Forkserver of the command line: processes of `cubemesh` without a second of imports each.

    tests ──arguments, environment, three file descriptors──▶ template ──fork──▶ cubemesh …

The template (`forks`) has imported the command and computed nothing. Its forks are processes of
their own, with real signals, pipes and exit codes; their servers of workers are forks of them. A
closed stream is None in `sys`, as the interpreter sets it at its start.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from forks import (
    Template,
    answer,
    become,
    connection_of_script,
    freeze,
    process_request,
    requests,
)


class CommandProcess:
    """A process of the command; used as a `subprocess.Popen`."""

    def __init__(self, forkserver: Forkserver, pid: int, reads: Sequence[IO[str]]) -> None:
        self._forkserver = forkserver
        self.pid = pid
        self.stdout, self.stderr = reads

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._forkserver.exit_code(self.pid, wait=False)

    def wait(self) -> int:
        """The exit code, as soon as it ended."""
        code = self._forkserver.exit_code(self.pid, wait=True)
        assert code is not None
        return code

    @property
    def returncode(self) -> int | None:
        """As `poll`."""
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to it; its number stays its own until the server is asked for its end."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """What is left of stdout and of stderr; waits for its end."""
        texts = ["", ""]

        def read_errors() -> None:
            texts[1] = self.stderr.read()

        reader = threading.Thread(target=read_errors)
        reader.start()
        texts[0] = self.stdout.read()
        reader.join()
        self.wait()
        self.stdout.close()
        self.stderr.close()
        return texts[0], texts[1]


class Forkserver:
    """The template that has imported the command, and a framework for the servers that its
    processes start. `close` ends it."""

    def __init__(self, framework: str = "null") -> None:
        self._template = Template.start(__file__, framework)
        self._codes: dict[int, int] = {}

    def start(
        self,
        *words: str,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        environment: dict[str, str] | None = None,
        ignored: Sequence[int] = (),
        folder: str | None = None,
        limits: Mapping[int, int] | None = None,
    ) -> CommandProcess:
        """`cubemesh` with these arguments, in a session of its own, with `environment` added to
        that of the tests; it ignores the signals `ignored`. A stream is PIPE, a file descriptor,
        or None: it is closed. `limits` are soft ones of `resource`; `folder` is where it works,
        that of the tests if None."""
        given, reads, ours = [os.open(os.devnull, os.O_RDONLY)], [], []
        ours.append(given[0])
        for stream in (stdout, stderr):
            read, write = os.pipe()
            reads.append(os.fdopen(read, encoding="utf-8"))
            ours.append(write)
            given.append(write if stream in (subprocess.PIPE, None) else stream)
        request = process_request(
            ["cubemesh", *words],
            {**os.environ, **(environment or {})},
            folder,
            closed=[n for n, stream in ((1, stdout), (2, stderr)) if stream is None],
            ignored=[*map(int, ignored)],
            limits=[*(limits or {}).items()],
        )
        pid = self._template.ask(request, given)
        for number in ours:
            os.close(number)
        return CommandProcess(self, pid, reads)

    def run(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """As `start`; waits for its end."""
        process = self.start(*words, **options)
        out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.wait(), out, err)

    def exit_code(self, pid: int, wait: bool) -> int | None:
        """The exit code of a fork; None while it runs."""
        if pid not in self._codes:
            code = self._template.ask({"pid": pid, "wait": wait})
            if code is None:
                return None
            self._codes[pid] = code
        return self._codes[pid]

    def close(self) -> None:
        """End the template; its forks go on."""
        self._template.close()


def serve(framework: str) -> None:
    """Fork and reap until the tests close their end."""
    import typer.main

    import command_tree
    import cubemesh
    import forked_servers
    from cubemesh.cli import app, main

    for name in cubemesh.__all__:
        getattr(cubemesh, name)
    for module in ("cubemesh.views.summary", "cubemesh.web.server"):
        with suppress(ImportError):
            importlib.import_module(module)
    command_tree.build_once()
    typer.main.get_command(app)
    forked_servers.fork_from_this_process(framework)
    freeze()
    connection = connection_of_script()
    for request, files in requests(connection):
        if "pid" in request:
            ended, status = os.waitpid(request["pid"], 0 if request["wait"] else os.WNOHANG)
            answer(connection, os.waitstatus_to_exitcode(status) if ended else None)
            continue
        if (pid := os.fork()) == 0:
            connection.close()
            become(request, files)
            main()
        answer(connection, pid)


if __name__ == "__main__":
    serve(sys.argv[2])
