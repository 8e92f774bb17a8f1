"""Diagnosis of this environment and of planted faults."""

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from cubemesh.api import doctor as module
from cubemesh.api.doctor import EXTRAS, doctor
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.energy.rapl import READABLE, RaplReader

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_every_extra_of_the_package_is_a_component():
    commands = {entry.install for entry in FRAMEWORKS.values() if entry.install}
    offered = {command.partition("[")[2].partition("]")[0] for command in commands} | set(EXTRAS)
    assert offered == set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs", "inference"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_names_the_distributions_that_it_installs(extra):
    required = PROJECT["optional-dependencies"][extra]
    names = {line.partition(">")[0].partition("[")[0] for line in required}
    assert names - {"cubemesh"} == set(EXTRAS[extra][1])


def test_each_component_has_a_purpose_and_a_command():
    found = doctor(watch_load=False)
    assert {c.name for c in found.components} >= {"pytorch", "jax", "images", "C++ compiler"}
    assert all(c.purpose and c.install for c in found.components)
    (images,) = (c for c in found.components if c.name == "images")
    assert shlex.split(images.install) == [
        *(sys.executable, "-m", "pip", "install", "cubemesh[images]")
    ]


def test_a_missing_package_is_reported_with_what_it_is_for(monkeypatch):
    find = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda n: None if n == "vl_convert" else find(n))
    missing = {c.name: c for c in doctor(watch_load=False).missing}
    assert "report" in missing["views"].purpose


def test_every_problem_has_a_remedy():
    found = doctor()
    assert all(c.remedy for c in found.problems)
    assert {c.code for c in found.checks} >= {"virtual-machine", "cpu-energy", "busy-host"}


def test_a_compiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    (compiler,) = (c for c in doctor(watch_load=False).missing if c.name == "C++ compiler")
    assert "CXX" in compiler.install


def test_energy_counters_that_only_root_may_read():
    reader = RaplReader(Path("/nonexistent"))
    assert module._cpu_energy(reader).problem
    reader.missing["cpu_package_joules"] = "only root may read intel-rapl:0/energy_uj"
    assert module._cpu_energy(reader).remedy == READABLE
    reader.missing.clear()
    assert not module._cpu_energy(reader).problem
