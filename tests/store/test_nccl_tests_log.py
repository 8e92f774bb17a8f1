"""Logs of nccl-tests, of several versions; and what no log can say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import DataError
from cubemesh.store.imports.nccl_tests_log import read_log

RANKS = "\n".join(
    f"#  Rank  {n} Group  0 Pid   77{n} on      host{n // 2} device  {n % 2} [0x0{n}] NVIDIA H200"
    for n in range(4)
)
LATE = f"""# nccl-tests version 2.17.0 nccl-headers=22805 nccl-library=22805
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 1024 maxBytes 1048576 step: 1024(factor) warmup iters: 5 iters: 20
#
# Using devices
{RANKS}
#
#                                                              out-of-place                in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    12.50    0.08    0.12       0    12.40    0.08    0.12       0
     1048576        262144     float     sum      -1    40.00   26.21   39.32       0    41.00   25.58   38.36     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 19.4
"""  # noqa: E501
EARLY = f"""# nThread 1 nGpus 4 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
{RANKS.replace("Group  0 ", "")}
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     4194304        262144   float           100.00   41.94   31.46  0e+00   100.00   41.94   31.46  N/A
"""  # noqa: E501


def test_a_log_of_late():
    (sweep,) = read_log(LATE, "a.log")
    assert (sweep.collective, sweep.data_type, sweep.reduction) == ("all-reduce", "float", "sum")
    assert sweep.library == "nccl 2.28.5"
    assert [(r.host, r.device, r.device_name) for r in sweep.ranks[1:3]] == [
        ("host0", "cuda:1", "NVIDIA H200"),
        ("host1", "cuda:0", "NVIDIA H200"),
    ]
    assert [(p.size_bytes, p.in_place, p.wrong) for p in sweep.points] == [
        (1024, False, 0),
        (1024, True, 0),
        (1048576, False, 0),
        (1048576, True, None),
    ]
    assert sweep.points[2].time_s == pytest.approx(40e-6)


def test_a_log_of_long_ago_does_not_name_its_operation_nor_count_wrong_elements():
    text = EARLY.replace("float           100", "float    none   100")
    (sweep,) = read_log(text, "b.log", "all_gather_perf")
    assert (sweep.collective, sweep.library) == ("all-gather", "nccl")
    assert [p.wrong for p in sweep.points] == [None, None]
    with pytest.raises(DataError, match=r"line 9\b.*--collective"):
        read_log(text, "b.log")


def test_several_types_are_several_sweeps():
    line = "     1048576        524288      half     max      -1    40.00   26.21   39.32       0    41.00   25.58   38.36       0"  # noqa: E501
    first, second = read_log(LATE + line, "a.log")
    assert (second.data_type, second.reduction, len(second.points)) == ("half", "max", 2)
    assert len(first.points) == 4


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("26.21   39.32", "26.21   99.99", r"line 15, field busbw: 99\.99 .*39\.32"),
        ("40.00   26.21", "0.00   26.21", r"line 15, field time: 0\.00 "),
        ("40.00   26.21", "nan   26.21", "line 15, field time: 'nan' "),
        ("40.00   26.21", "-4   26.21", "line 15, field time: '-4' "),
        ("262144     float", "262143     float", r"line 15: 262143 .*float.*\b4\b"),
        ("262144     float", "262144     quad", "line 15, field type: 'quad' "),
        ("262144     float     sum", "262144     float     xor", "line 15, field redop: 'xor'"),
        ("262144     float     sum", "262144     float", r"line 15: 12 .*\b13\b"),
        ("1048576        262144", "1048576        " + "9" * 30, "line 15, field count: '9+' "),
        ("#  Rank  2", "#  Rank  7", r"line 14: .*\b4 were"),
        (RANKS, "", r"line 11: .*\b0 were"),
        ("all_reduce_perf", "all_mixed_perf", "'all_mixed_perf' .*all-reduce"),
        (
            "     1048576",
            "1024   256 float sum -1 " + "12.5 0.08 0.12 0 " * 2 + "\n1",
            r"line 15: .*1024",
        ),
        ("#       size", "#       bytes", r"^a\.log"),
        ("# Using devices", "x" * 3000, r"line 5\b.*3,000"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(before, after, words):
    assert before in LATE
    with pytest.raises(DataError, match=words):
        read_log(LATE.replace(before, after, 1), "a.log")


@given(st.text(max_size=300), st.integers(0, len(LATE)))
def test_whatever_a_file_holds_is_read_or_refused(text, cut):
    for hostile in (text, LATE[:cut] + text + LATE[cut:]):
        try:
            for sweep in read_log(hostile, "x"):
                assert all(p.time_s > 0 and p.size_bytes > 0 for p in sweep.points)
        except DataError:
            continue
