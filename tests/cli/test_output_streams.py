"""stdout and stderr that are closed, full, or whose reader is gone; vanished terminals."""

import os
import pwd
import shlex
import signal
import subprocess
import sys

import pytest

from cubemesh.errors import UsageError
from cubemesh.store import Store
from cubemesh.user_folders import data_folder
from patience import wait_until

pytestmark = pytest.mark.usefixtures("forked_servers")

RUN = (
    *("run", "minibatch", "--set", "framework=null", "--set", "ceiling=false"),
    *("--set", "batch_sizes=8,16"),
)
ENDLESS = (*RUN, "--set", "script=real=1,step=0.01", "--set", "steps=1000000")
VERBS = {
    "help": ("--help",),
    "networks": ("networks",),
    "json": ("experiments", "--json"),
    "run": RUN,
}


def shell(redirections, *arguments, **environment):
    words = shlex.join([sys.executable, "-m", "cubemesh", *arguments])
    return subprocess.run(
        ["bash", "-c", f"{words} {redirections}"],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def outcomes(store):
    with Store.open(str(store), read_only=True) as opened:
        return [r.outcome.status.value for r in opened.records()]


FULL, CLOSED = "No space left on device", "it is closed"


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("why", [FULL, CLOSED])
def test_stdout_that_cannot_be_written(forkserver, words, why):
    with open("/dev/full", "w") as full:
        done = forkserver.run(*words, stdout=full.fileno() if why == FULL else None)
    assert done.returncode == 1
    assert f"cannot be written to stdout: {why}." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("redirection", "why"), [("> /dev/full", FULL), (">&-", CLOSED)])
def test_a_new_interpreter_has_such_a_stdout(redirection, why):
    done = shell(redirection, "--help")
    assert done.returncode == 1
    assert f"cannot be written to stdout: {why}." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stderr", ["full", "closed", "a pipe without a reader"])
def test_a_suite_goes_on_without_a_reader_of_its_progress(forkserver, tmp_path, stderr):
    store = tmp_path / "s.sqlite"
    read, pipe = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full, open(pipe, "w") as unread:
        streams = {"full": full.fileno(), "closed": None}
        number = streams.get(stderr, unread.fileno())
        done = forkserver.run(*RUN, "--store", str(store), stderr=number)
    assert done.returncode == 0
    assert "images/s" in done.stdout
    assert outcomes(store) == ["ok", "ok"]


def test_a_reader_that_has_enough_ends_the_output_silently():
    done = shell("| head -n 1", "networks")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_run(forkserver, tmp_path, number):
    process = forkserver.start(*ENDLESS, "--store", str(tmp_path / "s.sqlite"))
    wait_until(lambda: (tmp_path / "s.sqlite").exists() or process.poll() is not None)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    assert "Terminated. Finished runs are saved" in err
    assert "Traceback" not in err


SIGNAL_IN_A_FINALIZER = """
import os, signal, sys
from cubemesh import cli

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

def finalize(number, frame):
    Finalized()

signal.signal(signal.SIGALRM, finalize)
original = cli.main.__globals__["handle_signals"]

def handle_signals():
    original()
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)))

cli.main.__globals__["handle_signals"] = handle_signals
cli.main()
"""


@pytest.mark.parametrize("after_s", ["0.01", "0.5", "3"])
def test_a_signal_whose_exception_python_discards_ends_the_run(tmp_path, after_s):
    words = [*ENDLESS, "--store", str(tmp_path / "s.sqlite")]
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_IN_A_FINALIZER, after_s, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Exception ignored in: <function Finalized.__del__" in done.stderr
    assert done.returncode == 128 + signal.SIGTERM
    assert "Terminated. Finished runs are saved" in done.stderr


def test_nohup_is_respected(forkserver, tmp_path):
    words = (*RUN, "--store", str(tmp_path / "s.sqlite"))
    process = forkserver.start(*words, ignored=[signal.SIGHUP])
    wait_until(lambda: (tmp_path / "s.sqlite").exists() or process.poll() is not None)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate()
    assert process.returncode == 0, err


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "XDG_DATA_HOME"])
def test_a_folder_that_cannot_be_made_is_named(cubemesh, tmp_path, monkeypatch, variable):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    done = cubemesh(*RUN)
    assert done.returncode in (1, 2)
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_home_folder(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match=r"There is no home folder.*XDG_DATA_HOME"):
        data_folder()


def test_a_page_that_does_not_fit_leaves_the_earlier_one(cubemesh, tmp_path, small_disk):
    page = small_disk / "page.html"
    page.write_text("earlier")
    store = str(tmp_path / "s.sqlite")
    assert cubemesh(*RUN, "--store", store).returncode == 0
    done = cubemesh("report", "--store", store, "--output", str(page))
    assert done.returncode == 2, done.stderr
    assert f"{page} cannot be written: No space left on device" in done.stderr
    assert page.read_text() == "earlier"
    assert [path.name for path in small_disk.iterdir()] == ["page.html"]
