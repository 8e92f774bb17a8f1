"""`cubemesh serve` as a process, and requests to it; an application in a thread."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from patience import PATIENCE_S, wait_until

Ready = dict[str, Any]
"""What a server prints when it is ready."""
Serving = Callable[..., AbstractContextManager[tuple[Any, Ready]]]
"""(*options, store=…, agent=False): a server process, and what it printed."""
COMMAND = ("serve", "--json", "--no-open", "--store")


@contextmanager
def ready(process: Any) -> Iterator[tuple[Any, Ready]]:
    """A server process, and what it printed when it was ready."""
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == "}":
                break
        assert lines, process.communicate()[1]
        yield process, json.loads("".join(lines))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@contextmanager
def in_thread(
    app: Any,
    port: int = 0,
    prepare: Callable[[Any], object] = lambda config: None,
    **options: Any,
) -> Iterator[tuple[Any, int]]:
    """A server of an application, with more options of uvicorn, and its port; `prepare` gets the
    loaded configuration."""
    import uvicorn

    config = uvicorn.Config(
        app, port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=1, **options
    )
    config.load()
    prepare(config)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server starts")
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a certificate of 127.0.0.1 and of its key; skips where nothing makes one."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl that makes a certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    words = ["req", "-x509", *kind, "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words, *names, *files], capture_output=True, check=True)
    return cert, key


def ask(ready: Ready, path: str, **given: Any) -> httpx.Response:
    token = Path(ready["token_file"]).read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(ready["address"] + path, headers=headers, timeout=PATIENCE_S, **given)
