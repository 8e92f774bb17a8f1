"""A PostgreSQL server of the test's own: real, on a Unix socket, without a network."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patience import wait_until

USER = "postgres"


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.url = f"postgresql+psycopg://{USER}@/{USER}?host={folder}"
        self._programs, self._folder = programs, folder
        # It refuses to run as root.
        self._user = {"user": USER, "group": USER} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(folder / "data"), "-U", USER, "-A", "trust", "-N")

    def url_of(self, database: str) -> str:
        """The URL of a database of this server."""
        return self.url.replace(f"/{USER}?", f"/{database}?")

    def database_of(self, url: str) -> str:
        """The database of a URL of `url_of`."""
        before, after = self.url.split(f"/{USER}?")
        return url.removeprefix(f"{before}/").removesuffix(f"?{after}")

    def execute(self, statement: str) -> None:
        """Run a statement outside of a transaction."""
        import psycopg

        address = self.url.replace("+psycopg", "")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement)

    def start(self) -> None:
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        options = ["-k", str(self._folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*command, *options], stderr=log, stdout=log, cwd="/", **self._user
            )
        wait_until(self._answers, "PostgreSQL answers")

    def kill(self) -> None:
        """End it at once, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder)]
        return subprocess.run(ready, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._user)


@contextmanager
def running() -> Iterator[Server]:
    """A server; skips the test where PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr/pgsql").glob("*/bin")]
    if not found and (on_path := shutil.which("initdb")) is not None:
        found.append(Path(on_path).resolve().parent)
    if not found:
        pytest.skip("PostgreSQL is not installed (package postgresql)")
    with tempfile.TemporaryDirectory(prefix="cubemesh-postgresql-") as folder:
        if os.geteuid() == 0:
            try:
                owner = pwd.getpwnam(USER)
            except KeyError:
                pytest.skip(f"PostgreSQL does not run as root, and there is no user {USER}")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        server = Server(found[-1], Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()
