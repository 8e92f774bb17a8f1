"""The size at which an operation is fastest, on a device whose rates are given."""

import math

import pytest

from cubemesh.frameworks.ceiling_search import check_operation, fastest, fastest_product, try_out
from cubemesh.frameworks.contract.program import OutOfMemory, Unsupported
from cubemesh.schema.work import Ceiling


class Simulated:
    """An operation on a device whose rate at each size is given."""

    unit = "FLOP/s"
    now = 0.0

    what = "simulated"

    def __init__(self, size, rates):
        if rates[size] is None:
            raise OutOfMemory
        self.size, self.rate, self.work_per_call = size, rates[size], self.work(size)

    def work(self, size):
        return float(size)

    def call(self):
        Simulated.now += self.work_per_call / self.rate

    def synchronize(self):
        pass

    def clock(self):
        return Simulated.now


def is_refusal(error):
    return isinstance(error, OutOfMemory)


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
    found = fastest(lambda size: Simulated(size, rates), 1, 16, is_refusal)
    assert found.size == expected


def test_another_error_is_raised():
    with pytest.raises(OutOfMemory):
        fastest(lambda size: Simulated(size, {1: 100, 2: None}), 1, 2, lambda error: False)


class Product(Simulated):
    """A product whose rate is given by its shape, and otherwise by its side."""

    def work(self, shape):
        return 2.0 * math.prod(shape)


def test_a_shape_that_is_not_square_is_chosen_where_it_is_faster():
    rates = {(1, 1, 1): 1e3, (2, 2, 2): 4e3, (4, 4, 4): 4e3, (1, 8, 4): 6e3, (8, 1, 4): 5e3}
    shapes = [(8, 1, 4), (1, 8, 4)]
    found = fastest_product(lambda s: Product(s, rates), (1, 4), is_refusal, shapes)
    assert found.size == (1, 8, 4)


def test_shapes_that_take_too_long_or_too_much_memory_are_skipped():
    rates = {(1, 1, 1): 1e3, (2, 2, 2): 1e3, (9, 9, 9): 1e9, (1, 2, 1): None, (1, 1, 2): 2e3}
    shapes = [(9, 9, 9), (1, 2, 1), (1, 1, 2)]
    found = fastest_product(lambda s: Product(s, rates), (1, 2), is_refusal, shapes)
    assert found.size == (1, 1, 2)


def test_short_calls_are_timed_in_groups_of_some_milliseconds():
    waits = []

    class Waiting(Simulated):
        def synchronize(self):
            waits.append(Simulated.now)

    trial = try_out(Waiting(1, {1: 1e4}))  # 0.1 ms a call
    assert trial.rate_per_s == pytest.approx(1e4)
    assert trial.call_s == pytest.approx(1e-4)
    assert waits[-1] - waits[-2] == pytest.approx(5e-3)
    assert trial.groups >= 20


def test_an_unsupported_operation_is_refused_with_the_supported_ones():
    check_operation(Ceiling(), {"matrix_product"}, "jax")
    with pytest.raises(Unsupported, match=r"host_to_device.*copy, matrix"):
        check_operation(Ceiling(operation="host_to_device"), {"matrix_product", "copy"}, "jax")
