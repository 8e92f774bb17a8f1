import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.base import OutOfMemory, monotonic_s  # noqa: E402
from cubemesh.frameworks.pytorch import build_ceiling  # noqa: E402
from cubemesh.frameworks.pytorch.ceiling import Copy, MatrixProduct, _fastest  # noqa: E402
from cubemesh.model.spec import Ceiling, ProgramSettings  # noqa: E402


class Simulated:
    """An operation on a device whose rate at each size is given."""

    unit = "FLOP/s"
    now = 0.0

    def __init__(self, size, rates):
        if rates[size] is None:
            raise OutOfMemory
        self.size, self.rate, self.work_per_call = size, rates[size], float(size)

    def call(self):
        Simulated.now += self.work_per_call / self.rate

    def synchronize(self):
        pass

    def clock(self):
        return Simulated.now


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1: 100, 2: 200, 4: 300, 8: 310, 16: 900}, 8),
        ({1: 100, 2: 90}, 1),
        ({1: 100, 2: 200, 4: None}, 2),
        ({1: 100, 2: 200, 4: 400, 8: 800, 16: 1600}, 16),
        ({1: 5, 2: 900}, 1),
    ],
    ids=["stops growing", "falls", "out of memory", "largest allowed", "too slow to go on"],
)
def test_the_size_is_doubled_until_the_rate_stops_growing(rates, expected):
    assert _fastest(lambda size: Simulated(size, rates), 1, 16).size == expected


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
