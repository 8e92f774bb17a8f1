import pytest

from cubemesh.forecast.other_networks import BATCH_IN_TOKENS, CLASSES, OTHERS, TOKENS
from cubemesh.networks.cost import totals

STATED = {  # millions of parameters, as the paper or the example that was trained says
    "bert-base": (110, 0.02),
    "bert-large": (340, 0.02),
    "transformer-big": (213, 0.02),
    "transformer-xl-base": (192, 0.03),
    "transformer-xl-large": (247, 0.07),
    "gnmt": (160.67, 0.001),
    "resnext-101": (44.18, 0.001),
    "ssd300": (22.9, 0.05),
    "jasper": (333, 0.04),
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_has_as_many_parameters_as_its_source_says(name: str) -> None:
    millions, within = STATED[name]
    assert OTHERS[name]().parameter_count / 1e6 == pytest.approx(millions, rel=within)
    assert OTHERS[name]() is OTHERS[name]()


def test_every_table_names_networks_that_exist() -> None:
    assert OTHERS.keys() >= CLASSES.keys() | TOKENS.keys() | BATCH_IN_TOKENS


def test_operations_of_a_transformer() -> None:
    # Six operations a parameter and token that is multiplied, and attention.
    bert = OTHERS["bert-base"]()
    flops = totals(bert, 1).total.matrix_flops
    assert 0.9 < flops / (6 * bert.parameter_count * 384) < 1.3
