"""Runs without a C++ compiler: what they store, and that they are measured again with one."""

import dataclasses
from types import SimpleNamespace

import pytest

from cubemesh.cpp_compiler import compiler_version, missing_compiler
from cubemesh.runs import Executor
from cubemesh.schema import Placement, Status
from cubemesh.store import Store

pytest.importorskip("torch")


CAPTURED, COMPILED = "pytorch-captured", "pytorch-compiled"


@pytest.fixture(scope="module")
def records(tmp_path_factory, small_machine, null_spec):
    """Those of runs on the CPU: without a compiler each framework twice, of workers that are forked
    from the same process; with one, `again`."""
    folder = tmp_path_factory.mktemp("compiler")

    def run(*frameworks):
        software = dataclasses.replace(small_machine.software, cpp_compiler=compiler_version())
        specs = [null_spec(framework=framework, steps=4) for framework in frameworks]
        nhwc = [
            dataclasses.replace(
                spec,
                placement=Placement(device="cpu", threads=1),
                program=dataclasses.replace(spec.program, layout="nhwc"),
            )
            for spec in specs
        ]
        with (
            Store.open(str(folder / "results.db")) as store,
            Executor(
                store,
                machine=dataclasses.replace(small_machine, software=software),
                runs_folder=folder / "runs",
            ) as executor,
        ):
            return executor.run(nhwc)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # locks of its own
        patch.setenv("CXX", "no-such-compiler")
        captured, repeated, compiled, tried = run(CAPTURED, CAPTURED, COMPILED, COMPILED)
        patch.delenv("CXX")
        return SimpleNamespace(
            captured=captured,
            repeated=repeated,
            compiled=compiled,
            tried=tried,
            again=None if missing_compiler() else run(CAPTURED)[0],
        )


def test_a_captured_run_without_fused_kernels_has_a_warning(records):
    without = records.captured
    assert without.ok, without.outcome
    (warning,) = (w for w in without.warnings if w.code == "missing-kernels")
    assert "no-such-compiler" in warning.cause
    assert "g++" in warning.remedy
    assert records.repeated.run_id == without.run_id
    if records.again is None:
        pytest.skip(missing_compiler())
    assert records.again.run_id != without.run_id
    assert "missing-kernels" not in {w.code for w in records.again.warnings}


def test_a_compiled_run_without_a_compiler_is_tried_again(records):
    first = records.compiled
    assert first.outcome.status is Status.NOT_INSTALLED
    assert "no-such-compiler" in first.outcome.message
    assert records.tried.run_id != first.run_id
