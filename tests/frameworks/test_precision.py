"""What loss scaling and precision by layer do to a step, in every framework that offers them."""

import numpy as np
import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import SupportsLossScaling, Unsupported
from loadable_frameworks import TRAINING

COMPUTING = [n for n in TRAINING if FRAMEWORKS[n].read_script is None]

pytestmark = pytest.mark.parametrize("name", COMPUTING)


@pytest.fixture
def start(name, tiny, make_request, monkeypatch):
    """A loaded program for `tiny`, its gradients as large as `gain` makes them."""
    framework = FRAMEWORKS[name].load()
    if hasattr(framework, "BACKEND"):
        monkeypatch.setattr(framework, "BACKEND", "aot_eager")
    able = framework.capabilities()

    def make(gain=1.0, **settings):
        lines = settings.get("precision_of", ())
        wanted = {p for line in lines for p in line.partition("=")[2].split("/")}
        if wanted - able.layer_precisions.get("cpu", frozenset()):
            pytest.skip(f"{name} has no layers in {wanted}")
        scale = settings.get("loss_scale")
        if (
            scale is not None
            and {"dynamic": "dynamic"}.get(scale, "static") not in able.loss_scales
        ):
            pytest.skip(f"{name} does not scale the loss so")
        program = framework.build(make_request(tiny, **settings))
        weights = tiny.draw(0)
        last = next(n.parameters["weight"] for n in tiny.nodes[::-1] if n.parameters)
        weights[last] = weights[last] * np.float32(gain)
        program.load(weights)
        return program

    return make


def stepped(program, tiny, make_batch, steps=1):
    batch = make_batch(tiny)
    for _ in range(steps):
        program.train_step(program.place(batch))
    return program.state()


def test_a_static_scale_does_not_change_the_step(start, tiny, make_batch):
    exact = stepped(start(), tiny, make_batch)
    scaled = start(precision="fp16", loss_scale=512.0)
    found, drawn = stepped(scaled, tiny, make_batch), tiny.draw(0)
    assert scaled.loss_scale() == (512.0, "static")
    for array in tiny.parameters:
        step, expected = found[array] - drawn[array], exact[array] - drawn[array]
        assert np.linalg.norm(step - expected) < 0.02 * np.linalg.norm(expected), array


def test_small_gradients_need_the_scale(start, tiny, make_batch):
    """The classifier's weights are so small that what it sends back is zero in float16."""
    small = {"gain": 2e-7, "precision": "fp16", "learning_rate": 1e4}
    before = stepped(start(loss_scale=1.0, **small), tiny, make_batch)
    after = stepped(start(loss_scale=2.0**15, **small), tiny, make_batch)
    first = next(iter(tiny.parameters))
    assert np.array_equal(before[first], tiny.draw(0)[first])
    assert not np.array_equal(after[first], tiny.draw(0)[first])


def test_a_dynamic_scale_skips_a_step_that_overflows_and_is_halved(start, tiny, make_batch):
    program = start(gain=200.0, precision="fp16", loss_scale="dynamic")
    assert program.loss_scale() == (65536.0, "dynamic")
    before = program.state()
    after = stepped(program, tiny, make_batch)
    assert program.loss_scale() == (32768.0, "dynamic")
    assert all(np.array_equal(before[n], after[n]) for n in before)
    moved = stepped(program, tiny, make_batch, steps=12)
    scale, _ = program.loss_scale()
    assert 1 < scale < 32768
    assert all(np.isfinite(array).all() for array in moved.values())
    assert not any(np.array_equal(before[n], moved[n]) for n in tiny.parameters)


def test_a_static_scale_too_large_reaches_the_weights(start, tiny, make_batch):
    after = stepped(start(gain=200.0, precision="fp16", loss_scale=65536.0), tiny, make_batch)
    assert not all(np.isfinite(array).all() for array in after.values())


def test_only_fp16_is_scaled(start):
    exact = start(precision="bf16")
    if not isinstance(exact, SupportsLossScaling):
        pytest.skip("its loss scale is a constant of the program")
    assert exact.loss_scale() is None
    assert start(precision="fp16").loss_scale() is not None


def test_all_layers_in_fp32_are_the_fp32_program(start, tiny, make_batch):
    wide, named = start(), start(precision="bf16", precision_of=("*=fp32",))
    exact, found = stepped(wide, tiny, make_batch, 3), stepped(named, tiny, make_batch, 3)
    assert named.loss() == pytest.approx(wide.loss(), rel=1e-6)
    for array in tiny.parameters:
        np.testing.assert_allclose(found[array], exact[array], rtol=1e-5, atol=1e-7)


def test_a_layer_in_fp32_returns_float32(start, tiny, make_batch):
    """A bfloat16 has 8 digits of significand, so a float32 that is no bfloat16 came from fp32."""

    def scores(**settings):
        program = start(precision="bf16", **settings)
        return program.evaluate(program.place(make_batch(tiny)))

    narrow, wide = scores(), scores(precision_of=("classifier=fp32",))
    assert not (narrow.view(np.uint32) & 0xFFFF).any()
    assert (wide.view(np.uint32) & 0xFFFF).any()
    assert np.abs(wide - scores(precision_of=("*=fp32",))).max() > 0  # the convolution is narrow


def by_pass(start, **settings):
    """The program; skipped where it has no precision by pass."""
    try:
        return start(learning_rate=1.0, momentum=0.0, **settings)
    except Unsupported as refused:
        pytest.skip(str(refused))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_layers_in_fp64_are_nearly_the_fp64_program(precision, start, tiny, make_batch):
    """But for the results, which are rounded to fp32."""
    named = by_pass(start, precision=precision, precision_of=("*=fp64",))
    found = stepped(named, tiny, make_batch)
    exact = stepped(by_pass(start, precision="fp64"), tiny, make_batch)
    for array in tiny.parameters:
        np.testing.assert_allclose(found[array], exact[array], rtol=1e-6, atol=1e-7)


def test_a_layer_may_compute_its_gradients_in_another_type(start, tiny, make_batch):
    """The product is that of bf16; the gradient is nearer to that of fp32, or as near where XLA
    leaves out roundings to bf16."""
    weight = tiny.nodes[-1].parameters["weight"]

    def run(*lines):
        program = by_pass(start, precision="bf16", precision_of=lines)
        scores = program.evaluate(program.place(make_batch(tiny)))
        return scores, tiny.draw(0)[weight] - stepped(program, tiny, make_batch)[weight]

    scores, rounded = run("classifier=bf16")
    mixed_scores, mixed = run("classifier=bf16/fp32")
    _, exact = run("*=fp32")
    assert np.array_equal(mixed_scores, scores)
    assert np.linalg.norm(mixed - exact) <= np.linalg.norm(rounded - exact)


def test_an_unknown_layer_is_refused(start):
    with pytest.raises(UsageError, match="classifier"):
        start(precision="bf16", precision_of=("clasifier=fp32",))
