"""Runs without a C++ compiler: what they store, and that they are measured again with one."""

import dataclasses

import pytest

from cubemesh.cpp_compiler import compiler_version, missing_compiler
from cubemesh.runs import Executor
from cubemesh.schema import Placement, Status
from cubemesh.store import Store

pytest.importorskip("torch")


@pytest.fixture
def run(tmp_path, small_machine, null_spec):
    """Runs a framework on the CPU with the compiler of the environment."""

    def record(framework):
        software = dataclasses.replace(small_machine.software, cpp_compiler=compiler_version())
        spec = null_spec(framework=framework, steps=4)
        spec = dataclasses.replace(
            spec,
            placement=Placement(device="cpu", threads=1),
            program=dataclasses.replace(spec.program, layout="nhwc"),
        )
        with (
            Store.open(str(tmp_path / "results.db")) as store,
            Executor(
                store,
                machine=dataclasses.replace(small_machine, software=software),
                runs_folder=tmp_path / "runs",
            ) as executor,
        ):
            return executor.run([spec])[0]

    return record


def test_a_captured_run_without_fused_kernels_has_a_warning(run, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    without = run("pytorch-captured")
    assert without.ok, without.outcome
    (warning,) = (w for w in without.warnings if w.code == "missing-kernels")
    assert "no-such-compiler" in warning.cause
    assert "g++" in warning.remedy
    assert run("pytorch-captured").run_id == without.run_id
    monkeypatch.delenv("CXX")
    if missing_compiler():
        pytest.skip(missing_compiler())
    again = run("pytorch-captured")
    assert again.run_id != without.run_id
    assert "missing-kernels" not in {w.code for w in again.warnings}


def test_a_compiled_run_without_a_compiler_is_tried_again(run, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    first = run("pytorch-compiled")
    assert first.outcome.status is Status.NOT_INSTALLED
    assert "no-such-compiler" in first.outcome.message
    assert run("pytorch-compiled").run_id != first.run_id
