"""Another Python for a framework's workers: real environments, made here."""

import json
import os
import sys
import venv
from pathlib import Path

import numpy
import psutil
import pytest

from cubemesh.errors import UsageError
from cubemesh.runs import Executor
from cubemesh.runs.interpreters import VARIABLE, chosen, environments
from cubemesh.store import Store


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The python of an environment with nothing in it."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The python of an environment that has NumPy and psutil, and no cubemesh of its own."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for module in (numpy, psutil):
        own = Path(module.__file__).parent
        for neighbour in own.parent.glob(f"{own.name}[-.]*"):  # metadata and libraries
            (packages / neighbour.name).symlink_to(neighbour)
        (packages / own.name).symlink_to(own)
    return folder / "bin" / "python"


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_an_option_takes_precedence_over_the_variable():
    environ = {VARIABLE: "jax=/a/python, null=/b/python"}
    assert chosen([], environ) == {"jax": "/a/python", "null": "/b/python"}
    assert chosen(["jax=/c/python"], environ) == {"jax": "/c/python", "null": "/b/python"}
    assert chosen([], {}) == {}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["jax"], "FRAMEWORK=PATH"),
        (["=python"], "FRAMEWORK=PATH"),
        (["jxa=/a"], "jax"),
        (["jax=/a", "jax=/b"], "/a.* /b"),
    ],
)
def test_invalid_options_are_refused(lines, words):
    with pytest.raises(UsageError, match=words):
        chosen(lines, {})


def test_a_path_without_a_python_is_refused(tmp_path, machine):
    with pytest.raises(UsageError):
        environments([f"null={tmp_path}/python"], {}, machine.software)
    blank = script(tmp_path / "blank", "#!/bin/sh\necho\n")
    for path in ("/bin/true", blank):
        with pytest.raises(UsageError, match="exit code 0"):
            environments([f"null={path}"], {}, machine.software)


def test_an_old_python_is_refused(tmp_path, machine):
    answer = json.dumps({"version": [3, 9, 2]})
    old = script(tmp_path / "python", f"#!/bin/sh\necho '{answer}'\n")
    with pytest.raises(UsageError, match=r"3\.9\.2"):
        environments([f"null={old}"], {}, machine.software)


def test_a_python_without_the_framework_is_refused_with_the_command_to_install_it(bare, machine):
    with pytest.raises(UsageError, match=r"-m pip install jax"):
        environments([f"jax={bare}"], {}, machine.software)


def test_its_software_is_its_own_and_its_driver_the_machines(other, machine):
    (found,) = environments([f"null={other}"], {}, machine.software).values()
    assert found.python == str(other)
    assert found.software.packages == {
        "numpy": numpy.__version__,
        "psutil": psutil.__version__,
    }
    assert found.software.python == ".".join(map(str, sys.version_info[:3]))
    assert found.software.driver == machine.software.driver


def test_a_run_in_another_python_is_stored_with_its_environment(
    other, machine, null_spec, tmp_path
):
    given = environments([f"null={other}"], {}, machine.software)

    def run(environments, look=lambda executor: None):
        with (
            Store.open(str(tmp_path / "store.sqlite")) as store,
            Executor(
                store,
                machine=machine,
                runs_folder=tmp_path / "runs",
                environments=environments,
            ) as executor,
        ):
            (record,) = executor.run([null_spec()])
            look(executor)
        return record

    def served_by_it(executor):
        pid = executor._servers["null", str(other)]._process.pid
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert os.fsdecode(command[0]) == str(other)

    own = run({})
    separate = run(given, served_by_it)
    assert separate.ok, separate.outcome.message
    assert separate.run_id != own.run_id
    assert (own.environment, separate.environment) == (None, given["null"])
    assert run(given) == separate
    assert run({}) == own
