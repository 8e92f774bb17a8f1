"""Runs command lines of cubemesh in this process, with a stdout that lacks characters.

As a script, in another environment for tests/test_install.py, it reads a JSON list of command lines
from stdin and writes a list of [exit code, output] to the file that is its only argument. An
exception is the exit code -1.
"""

import io
import json
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


if __name__ == "__main__":
    command_tree.build_once()
    found = [run(words) for words in json.load(sys.stdin)]
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
