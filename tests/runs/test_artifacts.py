"""Files that a run names are kept beside the store. A trace that is: test_pytorch_runs.py."""

import pytest

from cubemesh.errors import StoreError
from cubemesh.store import Store


def test_a_file_that_cannot_be_kept_is_an_error_of_the_store(tmp_path):
    (tmp_path / "mine-files").write_text("in the way")
    file = tmp_path / "trace.json"
    file.write_text("{}")
    with (
        Store.open(str(tmp_path / "mine.sqlite")) as store,
        pytest.raises(StoreError),
    ):
        store.attach("abc", file)
