"""Which layers benchmarks/winograd.py measures."""

import pytest

pytest.importorskip("torch")


def test_every_convolution_of_3x3_without_a_stride_is_a_case(script):
    cases = script("winograd").cases
    assert cases("resnet-50") == {
        (64, 56, 56, 64, 1): 3,
        (128, 28, 28, 128, 1): 3,
        (256, 14, 14, 256, 1): 5,
        (512, 7, 7, 512, 1): 2,
    }
    unpadded = cases("little-cnn-unpadded")
    assert unpadded[(32, 32, 32, 32, 0)] == 1
    assert not [case for case in unpadded if case[0] == 3]  # three channels are too few
