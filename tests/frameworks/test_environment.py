"""An environment variable that is set for a while."""

import os

import pytest

from cubemesh.frameworks.environment import environment_variable


def import_with_variable():
    with environment_variable("OF_A_TEST", "1"):
        raise ImportError(os.environ["OF_A_TEST"])


@pytest.mark.parametrize("before", [None, "2"])
def test_a_variable_is_restored_after_an_error_too(before, monkeypatch):
    monkeypatch.delenv("OF_A_TEST", raising=False)
    if before is not None:
        monkeypatch.setenv("OF_A_TEST", before)
    with pytest.raises(ImportError, match=r"^1$"):
        import_with_variable()
    assert os.environ.get("OF_A_TEST") == before
