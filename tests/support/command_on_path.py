"""The command `cubemesh` for a shell: each call is a fork of the forkserver of the command line.

    shell ──▶ bin/cubemesh ──arguments, environment, folder, streams──▶ tests ──▶ forkserver

What is on the PATH is a client without imports; it waits for the fork and ends with its exit code.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli_forkserver import Forkserver

CLIENT = """#!{python} -ISE
import json, os, socket, sys
tests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
tests.connect({address!r})
request = dict(words=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd())
socket.send_fds(tests, [json.dumps(request).encode()], [1, 2])
sys.exit(int(tests.recv(100)))
"""


@contextmanager
def command_on_path(folder: Path, forkserver: Forkserver) -> Iterator[None]:
    """Write `cubemesh` into a folder for the PATH."""
    address = folder / "calls"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener:
        listener.bind(str(address))
        listener.listen()
        command = folder / "cubemesh"
        command.write_text(CLIENT.format(python=sys.executable, address=str(address)))
        command.chmod(0o755)
        answering = threading.Thread(target=_answer, args=(listener, forkserver))
        answering.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        answering.join()


def _answer(listener: socket.socket, forkserver: Forkserver) -> None:
    """Answer calls, one after the other, until the listener is shut down."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            text, (stdout, stderr), _, _ = socket.recv_fds(client, 1 << 20, 2)
            request = json.loads(text)
            with open(stdout, "wb"), open(stderr, "wb"):
                process = forkserver.start(
                    *request["words"],
                    stdout=stdout,
                    stderr=stderr,
                    environment=request["environment"],
                    folder=request["folder"],
                )
            process.communicate()
            client.send(str(process.wait() % 256).encode())
