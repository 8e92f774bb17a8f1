"""The size at which an operation is fastest, on a device whose rates are given."""

import pytest

from cubemesh.frameworks.base import OutOfMemory
from cubemesh.frameworks.ceilings import fastest


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


def test_another_error_ends_more_than_the_search():
    with pytest.raises(OutOfMemory):
        fastest(lambda size: Simulated(size, {1: 100, 2: None}), 1, 2, lambda error: False)
