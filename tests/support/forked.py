"""Functions in forks of the process that tests: processes of their own, for signals and for locks,
without the second in which an interpreter imports cubemesh."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


class Forked:
    """A process that calls a function, its prints in a pipe."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _become(write, function, *arguments)
        os.close(write)
        self.stdout = os.fdopen(read)

    def wait(self) -> int:
        """The exit code, negative for a signal, as soon as it ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def communicate(self) -> tuple[str, int]:
        """What it prints until its end, and its exit code."""
        with self.stdout:
            text = self.stdout.read()
        return text, self.wait()


def _become(output: int, function: Callable[..., object], *arguments: Any) -> None:
    """Call the function in the fork, and end."""
    code = 1
    try:
        os.dup2(output, 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        function(*arguments)
        sys.stdout.flush()
        code = 0
    except SystemExit as error:
        code = int(bool(error.code))
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)
