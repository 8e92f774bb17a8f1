"""Published errors of networks for ImageNet, with conditions and a source."""

import pytest

from cubemesh.networks import NETWORKS
from cubemesh.networks.describe import summary
from cubemesh.networks.imagenet_errors import IMAGENET_ERRORS, published_errors


def test_networks_for_imagenet_have_a_top_5_error_and_no_other_has():
    assert set(IMAGENET_ERRORS) <= {n for n, e in NETWORKS.items() if e.classes == 1000}
    assert {"alexnet", "overfeat", "vgg16", "googlenet", "resnet-152"} <= set(IMAGENET_ERRORS)
    for errors in IMAGENET_ERRORS.values():
        assert any(error.top5 is not None for error in errors)
    assert published_errors("cifarnet") == ()


@pytest.mark.parametrize("network", IMAGENET_ERRORS)
def test_an_error_is_possible_and_has_its_conditions(network):
    for error in IMAGENET_ERRORS[network]:
        assert error.top5 is not None or error.top1 is not None
        if error.top5 is not None and error.top1 is not None:
            assert 3 < error.top5 < error.top1 < 50
        assert error.conditions
        assert "(20" in error.source or ".org" in error.source


def test_the_figures_that_the_paper_000_cites_are_there():
    cited = {e.top5 for errors in IMAGENET_ERRORS.values() for e in errors if "[000]" in e.source}
    assert cited == {15.3, 14.2, 7.3, 6.67, 3.57}


def test_deeper_residual_networks_err_less():
    depths = [f"resnet-{depth}" for depth in (34, 50, 101, 152)]
    found = [summary(name).imagenet_errors[0].top5 for name in depths]
    assert found == sorted(found, reverse=True)
