"""Keras's backends: one for a process, and each a framework of its own."""

import dataclasses

import numpy as np
import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.schema import ProgramSettings, RunSpec, Status, TrainSteps
from cubemesh.worker.report.outcomes import outcome_from_error
from loadable_frameworks import KERAS, LOADABLE

HERE = sorted(set(KERAS.values()) & set(LOADABLE))
"""The framework of this process's Keras, in a list; empty without Keras."""


@pytest.mark.parametrize("name", ["keras-jax", "keras-torch"])
def test_it_is_installed_where_keras_and_its_backend_are(name):
    line = entry(name)
    assert line.modules == ("keras", line.backend)
    for lacking in ({"requires": "no_such_module"}, {"backend": "no_such_module"}):
        assert not dataclasses.replace(line, **lacking).installed
    assert dataclasses.replace(line, requires="json", backend="math").installed


@pytest.mark.parametrize("missing", ["keras", "jax"])
def test_a_missing_package_of_either_is_not_installed(missing):
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=4),
        program=ProgramSettings(framework="keras-jax"),
    )
    error = ModuleNotFoundError(f"No module named '{missing}'", name=missing)
    outcome = outcome_from_error(error, spec, limit_bytes=None, is_out_of_memory=lambda e: False)
    assert outcome.status is Status.NOT_INSTALLED
    assert "cubemesh[keras-jax]" in outcome.message


def test_no_two_backends_share_a_process():
    lines = [FRAMEWORKS[name] for name in (*KERAS.values(), "jax", "pytorch")]
    sharing = [(a.title, b.title) for a in lines for b in lines if a.shares_process(b)]
    assert sharing == [(line.title, line.title) for line in lines]


@pytest.fixture(params=HERE)
def framework(request):
    return entry(request.param).load()


def test_another_backend_is_refused(framework):
    from cubemesh.frameworks.keras.backend import select_backend

    (used,) = [backend for backend in KERAS if KERAS[backend] in HERE]
    other = next(backend for backend in KERAS if backend != used)
    with pytest.raises(UsageError, match=f"already runs on {used}.*on {other} any more"):
        select_backend(other)
    select_backend(used)


def test_programs_of_two_precisions_take_turns(framework, tiny, make_request, make_batch):
    """The settings of Keras's process are those of the program that runs."""
    alone = []
    for precisions in (["fp64"], ["fp32"], ["fp64", "fp32"]):
        programs = [
            framework.build(make_request(tiny, precision=p, layout="nhwc", learning_rate=0.1))
            for p in precisions
        ]
        losses = {p: [] for p in precisions}
        for program in programs:
            program.load(tiny.draw(0))
        for _ in range(2):
            for precision, program in zip(precisions, programs, strict=True):
                program.train_step(program.place(make_batch(tiny)))
                losses[precision].append(program.loss())
        states = {p: one.state() for p, one in zip(precisions, programs, strict=True)}
        alone.append((losses, states))
        for program in programs:
            program.close()
    (fp64, states64), (fp32, states32), (both, states) = alone
    assert both == {**fp64, **fp32}
    for precision, found in {**states64, **states32}.items():
        for name, array in found.items():
            assert states[precision][name].dtype == array.dtype
            assert np.array_equal(states[precision][name], array), name


@pytest.mark.gpu
def test_three_steps_on_a_gpu_equal_pytorch_s_in_fp64(framework, tiny, make_request, make_batch):
    pytest.importorskip("torch")
    able = framework.capabilities()
    gpus = [device for device in able.devices if device != "cpu"]
    if not gpus:
        pytest.skip(f"no GPU that Keras can use here. {able.hint}")
    states = []
    for one, settings in (
        (framework, {"device": gpus[-1], "layout": "nhwc"}),
        (entry("pytorch").load(), {"device": "cpu"}),
    ):
        program = one.build(make_request(tiny, precision="fp64", momentum=0.9, **settings))
        program.load(tiny.draw(0))
        for seed in range(3):
            program.train_step(program.place(make_batch(tiny, 4, seed)))
        program.synchronize()
        assert (program.peak_memory_bytes() is None) == (program.device == "cpu")
        states.append(program.state())
        program.close()
    for name, array in states[1].items():
        assert np.abs(states[0][name] - array).max() <= 1e-9 * np.abs(array).max(), name
