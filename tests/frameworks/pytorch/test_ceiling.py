import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.base import monotonic_s  # noqa: E402
from cubemesh.frameworks.pytorch import build_ceiling  # noqa: E402
from cubemesh.frameworks.pytorch.ceiling import Copy, MatrixProduct  # noqa: E402
from cubemesh.model.spec import Ceiling, ProgramSettings  # noqa: E402


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp64", torch.float64),
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_a_product_is_computed_in_the_precision_asked_for(precision, dtype):
    program = build_ceiling(Ceiling(size=48), ProgramSettings(precision=precision), "cpu", 2)
    assert isinstance(program, MatrixProduct)
    program.call()
    assert program._c.dtype == dtype
    expected = (program._a.double() @ program._b.double()).numpy()
    assert program._c.double().numpy() == pytest.approx(expected, rel=0.02, abs=0.2)
    assert program._a.double().std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("size", [1, 1000, (3 << 20) + 7])
def test_a_copy_moves_every_byte(size):
    program = build_ceiling(Ceiling(operation="copy", size=size), ProgramSettings(), "cpu", 2)
    assert isinstance(program, Copy)
    program.call()
    assert torch.equal(program._source, program._target)
    assert program._source.numel() == size
    assert program.work_per_call == 2 * size


def test_without_a_size_one_is_found():
    start = monotonic_s()
    program = build_ceiling(Ceiling(), ProgramSettings(), "cpu", 2)
    assert program.work_per_call >= 2 * 512**3
    assert monotonic_s() - start < 30
