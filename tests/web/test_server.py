"""The server as a process: start, ports, signals, exit codes, TLS, and what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from cli_forkserver import Forkserver
from cubemesh.errors import UsageError
from cubemesh.web.security.hosts import host_name, is_allowed_client, is_allowed_host, is_loopback
from cubemesh.web.server import Listening
from patience import PATIENCE_S
from served import COMMAND, Serving, ask, certificate, ready

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(forkserver: Forkserver) -> Run:
    """Runs servers that end by themselves."""
    return lambda *words, store: forkserver.run("serve", "--no-open", "--store", str(store), *words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server_in_order(serving: Serving, filled: Path, number: int) -> None:
    with serving("--port", "0", store=filled) as (process, started):
        assert ask(started, "/runs").status_code == 200
        assert httpx.get(started["login"], timeout=PATIENCE_S).status_code == 303
        process.send_signal(number)
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()


def test_a_second_server_takes_the_next_port(serving: Serving, filled: Path) -> None:
    with serving(store=filled) as (_, one), serving(store=filled) as (_, two):
        assert one["address"] != two["address"]
        assert ask(two, "/api/v1/runs").status_code == 200


def test_a_used_port_is_refused_with_a_sentence(run: Run, filled: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        done = run("--port", port, store=filled)
    assert done.returncode == 75
    assert port in done.stderr
    assert "--port" in done.stderr


def test_options_that_do_not_fit_are_refused(run: Run, filled: Path, tmp_path: Path) -> None:
    done = run("--host", "192.0.2.1", "--behind-proxy", "192.0.2.2", store=filled)
    assert done.returncode == 2
    assert "192.0.2.1" in done.stderr
    done = run("--host", "0.0.0.0", store=filled)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr
    bad = tmp_path / "cert.pem"
    bad.write_text("no certificate")
    done = run("--port", "0", "--tls-cert", str(bad), "--tls-key", str(bad), store=filled)
    assert done.returncode == 2
    assert "PEM" in done.stderr
    done = run("--port", "0", store=bad)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "lab.example.org", ""])
def test_listening_outside_needs_tls_or_a_proxy(host: str) -> None:
    with pytest.raises(UsageError, match="--tls-cert"):
        Listening(host=host).check()
    Listening(host=host, proxies=("10.0.0.1",)).check()
    Listening(host=host, tls_cert=Path("a"), tls_key=Path("b")).check()
    with pytest.raises(UsageError, match="belong together"):
        Listening(host=host, tls_cert=Path("a")).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    Listening(host=host).check()
    assert is_loopback(host)


def test_names_of_hosts() -> None:
    assert host_name("[::1]:8400") == "::1"
    assert host_name("LOCALHOST:1") == "localhost"
    assert is_allowed_host("127.0.0.1:1", (), "")
    assert is_allowed_host("Lab.example.org", ("lab.EXAMPLE.org",), "")
    assert is_allowed_host("10.0.0.5:8400", (), "10.0.0.5")
    assert not is_allowed_host("10.0.0.6", (), "10.0.0.5")
    assert not is_allowed_host("localhost.evil.org", (), "127.0.0.1")
    assert is_allowed_client("10.0.0.9", ())
    assert is_allowed_client("10.0.0.9", ("10.0.0.9",))
    assert not is_allowed_client("10.0.0.8", ("10.0.0.9",))
    assert is_allowed_client("127.0.0.1", ("10.0.0.9",))


def test_tls_with_a_cookie_that_needs_it(serving: Serving, filled: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(cert))
    options = ("--port", "0", "--tls-cert", str(cert), "--tls-key", str(key))
    with serving(*options, store=filled) as (_, started):
        assert started["address"].startswith("https://")
        found = httpx.get(started["login"], verify=context, timeout=PATIENCE_S)
        assert found.status_code == 303
        assert found.headers["set-cookie"].startswith("__Host-cubemesh-")
        assert "Secure" in found.headers["set-cookie"]


def test_a_store_that_does_not_exist_is_made_and_its_pages_say_what_to_do(
    serving: Serving, tmp_path: Path
) -> None:
    with serving("--port", "0", store=tmp_path / "new.sqlite") as (_, started):
        for path in ("/", "/runs", "/compare", "/answers", "/machines", "/report", "/search?q=x"):
            found = ask(started, path)
            assert found.status_code == 200
            assert "<h1" in found.text
        assert "cubemesh run quick" in ask(started, "/").text


def test_a_connection_without_a_request_ends(serving: Serving, filled: Path) -> None:
    with serving("--port", "0", store=filled) as (_, started):
        host, port = started["address"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: local")
            assert connection.recv(1) == b""


def test_the_server_writes_no_secret(filled: Path) -> None:
    words = [sys.executable, "-m", "cubemesh", *COMMAND, str(filled), "--port", "0", "--no-agent"]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as server,
        ready(server) as (process, started),
    ):
        token = Path(started["token_file"]).read_text().strip()
        assert token not in json.dumps(started)
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert token.encode() not in line
        found = ask(started, "/")
        assert token not in found.text
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert token not in process.stderr.read()
