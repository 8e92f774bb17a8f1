"""The decoder of images on the host."""

import pytest

features = pytest.importorskip("PIL.features")


def test_jpeg_is_decoded_by_libjpeg_turbo():
    assert features.check_feature("libjpeg_turbo")
