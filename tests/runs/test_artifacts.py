"""Files of a run that are stored with its record. A trace: test_pytorch_runs.py."""

import pytest

from cubemesh.errors import StoreError
from cubemesh.store import Store


def test_a_file_that_cannot_be_stored_is_a_store_error(tmp_path):
    (tmp_path / "mine-files").write_text("in the way")
    file = tmp_path / "trace.json"
    file.write_text("{}")
    with (
        Store.open(str(tmp_path / "mine.sqlite")) as store,
        pytest.raises(StoreError),
    ):
        store.attach("abc", file)
