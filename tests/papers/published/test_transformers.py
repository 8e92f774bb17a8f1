"""Published rates of transformers: read strictly, each with its source."""

import pytest

from cubemesh.errors import DataError
from cubemesh.papers.published.transformers import (
    COLUMNS,
    read_transformer_rates,
    transformer_rates,
)

ROW = {
    "source": "a paper",
    "url": "https://example.org table 1",
    "system": "selene",
    "device": "a100-sxm4-80gb",
    "network_gbit_per_s": "",
    "devices": "8",
    "style": "fsdp",
    "network": "llama2-7b",
    "sequence_length": "4096",
    "precision": "bf16",
    "layout": "dp=8,zero=3",
    "micro_batch": "1",
    "global_batch": "8",
    "recompute": "none",
    "attention": "flash",
    "metric": "tokens/s/device",
    "value": "4000",
    "memory_gib": "",
    "note": "",
}


def text(**changes: str) -> str:
    line = {**ROW, **changes}
    fields = (f'"{line[name]}"' for name in COLUMNS)
    return ",".join(COLUMNS) + "\n" + ",".join(fields) + "\n"


def test_a_row_is_read():
    (found,) = read_transformer_rates(text(memory_gib="61.5", network_gbit_per_s="400"), "t.csv")
    assert (found.devices, found.value, found.memory_gib) == (8, 4000.0, 61.5)
    assert found.network_gbit_per_s == 400


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": ""}, "field source: '' must not be empty"),
        ({"devices": "0"}, "field devices: '0' must be an integer of at least 1"),
        ({"micro_batch": ""}, "field micro_batch: '' must not be empty"),
        ({"value": "fast"}, "field value: 'fast' is not a number"),
        ({"value": "-1"}, "field value: '-1' must be above 0"),
        ({"metric": "tokens"}, "field metric: 'tokens' must be one of"),
    ],
)
def test_a_row_that_does_not_fit_is_named(changes, says):
    with pytest.raises(DataError, match=says):
        read_transformer_rates(text(**changes), "t.csv")


def test_every_carried_row_has_a_source_with_an_address():
    rows = transformer_rates()
    assert len(rows) > 300
    assert len({row.source for row in rows}) > 10
    assert all(row.url.startswith("https://") for row in rows)
