import pytest

from cubemesh.errors import UsageError
from cubemesh.networks import build
from cubemesh.networks.precision import LayerPrecision, layer_precisions

FP32, BF16 = (LayerPrecision(p, p) for p in ("fp32", "bf16"))
ALEXNET, RESNET = build("alexnet"), build("resnet-18", 32, 10)


def test_a_layer_a_segment_and_the_part_before_a_dot_can_be_named():
    assert layer_precisions(ALEXNET, ("fc8=fp32",)) == {"fc8": FP32}
    assert set(layer_precisions(ALEXNET, ("classifier=fp32",))) == {"fc6", "fc7", "fc8"}
    inner = layer_precisions(RESNET, ("layer1.0=fp32",))
    assert set(inner) == {"layer1.0.conv1", "layer1.0.conv2"}


def test_the_last_line_that_fits_counts():
    found = layer_precisions(ALEXNET, ("*=fp32", "conv*=bf16", "conv5=fp32"))
    assert found.pop("conv5") == FP32
    assert {n for n, p in found.items() if p == BF16} == {"conv1", "conv2", "conv3", "conv4"}
    assert {n for n, p in found.items() if p == FP32} == {"fc6", "fc7", "fc8"}


def test_the_passes_of_a_layer_may_differ():
    found = layer_precisions(ALEXNET, ("fc8=bf16/fp32", "conv1=fp64"))
    assert found == {"fc8": LayerPrecision("bf16", "fp32"), "conv1": LayerPrecision("fp64", "fp64")}
    assert not found["fc8"].is_one
    assert found["conv1"].is_one


def test_without_lines_no_layer_is_special():
    assert layer_precisions(ALEXNET, ()) == {}


def test_a_name_that_fits_nothing_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"'clasifier'.*Nearest: classifier"):
        layer_precisions(ALEXNET, ("clasifier=fp32",))


def test_a_layer_without_a_product_has_no_precision_of_its_own():
    with pytest.raises(UsageError, match=r"relu1=fp32: 'relu1' of alexnet .*\bproduct"):
        layer_precisions(ALEXNET, ("relu1=fp32",))


def test_only_products_with_widths_of_sixteen_are_in_fp8():
    found = layer_precisions(ALEXNET, ("*=fp8",))
    fp8 = LayerPrecision("fp8", "fp8")
    assert found == {"fc6": fp8, "fc7": fp8}  # fc8 has 1,000 columns
    assert layer_precisions(ALEXNET, ("*=fp8", "fc6=bf16"))["fc6"] == BF16
    for name in ("fc8", "conv1"):
        with pytest.raises(UsageError, match=rf"{name}=fp8.*multiples of 16"):
            layer_precisions(ALEXNET, (f"{name}=fp8",))
