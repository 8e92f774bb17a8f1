"""Runs command lines of cubemesh in one process of another environment, for tests/test_install.py.

Reads a JSON list of command lines from stdin, runs each with stdout in ASCII, and writes a list of
[exit code, output] to the file that is the only argument. An exception is the exit code -1.
"""

import io
import json
import sys
import traceback


def run(words: list[str]) -> tuple[int, str]:
    """Exit code, and stdout and stderr together."""
    from cubemesh.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
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
    return code, out.buffer.getvalue().decode("ascii")


if __name__ == "__main__":
    found = [run(words) for words in json.load(sys.stdin)]
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
