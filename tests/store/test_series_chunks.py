"""A series cut into chunks comes back whole, and takes little room."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.schema import Series
from cubemesh.store.series_chunks import CHUNK_SAMPLES, from_chunks, to_chunks

single = st.floats(width=32, allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 10), max_size=40),
    start=st.floats(-10, 1e6),
    values=st.lists(single, min_size=40, max_size=40),
    many=st.sampled_from([1, 20, 40]),
)
def test_what_comes_back_is_what_went_in_to_float32(gaps, start, values, many):
    times = np.cumsum([start, *gaps])[:-1].tolist() * many
    times.sort()
    kept = (values * many)[: len(times)]
    series = Series(name="watts", rank=3, device="cuda:1", times_s=tuple(times), values=tuple(kept))
    chunks = list(to_chunks(series))
    assert len(chunks) == max(1, -(-len(times) // CHUNK_SAMPLES))
    (back,), damaged = from_chunks(reversed(chunks))
    assert damaged == []
    assert (back.name, back.rank, back.device) == ("watts", 3, "cuda:1")
    assert back.values == tuple(kept)
    span = max(times) - min(times) if times else 0.0
    np.testing.assert_allclose(back.times_s, times, atol=span * 1e-7 + 1e-9)


def test_infinite_and_missing_values_are_kept():
    series = Series(name="w", times_s=(0.0, 1.0), values=(float("inf"), float("nan")))
    (back,), _ = from_chunks(to_chunks(series))
    assert back.values[0] == float("inf")
    assert np.isnan(back.values[1])


def test_series_are_kept_apart_by_name_rank_and_device():
    kept = [
        Series(name=name, rank=rank, device=device, times_s=(0.0,), values=(float(rank),))
        for name in ("a", "b")
        for rank in (0, 1)
        for device in ("cuda:0", "host")
    ]
    chunks = [chunk for series in reversed(kept) for chunk in to_chunks(series)]
    assert from_chunks(chunks) == (kept, [])


def test_a_long_series_takes_less_than_eight_bytes_a_sample():
    times = np.arange(384_000) * 0.1
    watts = 300 + 50 * np.round(np.sin(times), 1)
    series = Series(name="w", times_s=tuple(times.tolist()), values=tuple(watts.tolist()))
    assert sum(len(chunk.data) for chunk in to_chunks(series)) < 3_000_000
