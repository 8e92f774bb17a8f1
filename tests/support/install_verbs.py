"""Runs command lines of cubemesh in this process, with a stdout that lacks characters.

As a script, in another environment for tests/test_install.py, it is a server: it reads one request
a line from stdin, runs it in a fork, which writes a list of [exit code, output] to a file, and
answers with a line. After a rehearsal, which is run in a fork as well, it has imported what those
command lines import, and computed nothing. An exception is the exit code -1.
"""

import importlib
import io
import json
import os
import site
import sys
import traceback
from collections.abc import Sequence

import command_tree


def run(words: Sequence[str], encoding: str = "ascii") -> tuple[int, str]:
    """Exit code, and stdout and stderr together."""
    from cubemesh.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["cubemesh", *words], out, out
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = -1
    finally:
        sys.argv, sys.stdout, sys.stderr = before
    return code, out.buffer.getvalue().decode(encoding)


def rehearse(request: dict) -> list[str]:
    """The names of the modules that `request`, run in a fork, imports."""
    reads, writes = os.pipe()
    if not (pid := os.fork()):
        os.close(reads)
        become(request)
        for words in request["lines"]:
            run(words)
        with os.fdopen(writes, "w") as file:
            json.dump([*sys.modules], file)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        names = json.load(file)
    os.waitpid(pid, 0)
    return names


def become(request: dict) -> None:
    """Be a process of the environment of `request`, in its folder."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable, sys.prefix = request["python"], request["prefix"]
    if request["packages"] not in sys.path:
        site.addsitedir(request["packages"])
    importlib.invalidate_caches()


def serve() -> None:
    """Fork for each request until the tests close stdin."""
    command_tree.build_once()
    for text in sys.stdin:
        request = json.loads(text)
        if request.get("rehearsal"):
            for name in rehearse(request):
                importlib.import_module(name)
            print("0", flush=True)
            continue
        if not (pid := os.fork()):
            become(request)
            found = [run(words) for words in request["lines"]]
            with open(request["found"], "w") as file:
                json.dump(found, file)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
