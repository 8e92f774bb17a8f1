"""NCCL's graphs: what NCCL writes, what others may send, and the comparison with the model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import DataError
from cubemesh.machines.topology.nccl_graphs import (
    cycle,
    nccl_topology,
    read_adapters,
    read_nccl_graphs,
    ring_differences,
)

GPUS = (0, 1, 2, 3)


def channel(order, net=None):
    inside = "".join(f'<gpu dev="{n}"/>' for n in order)
    outside = "" if net is None else f'<net dev="{net}"/>'
    return f"<channel>\n{outside}{inside}{outside}</channel>\n"


def graph(pattern, channels, speed="20", inside="NVL"):
    return (
        f'<graph id="0" pattern="{pattern}" crossnic="0" nchannels="{len(channels)}" '
        f'speedintra="{speed}" speedinter="{speed}" latencyinter="0" typeintra="{inside}" '
        f'typeinter="PIX" samechannels="0">\n{"".join(channels)}</graph>\n'
    )


def graphs(*inside):
    return f'<graphs version="1">\n{"".join(inside)}</graphs>\n'


def gpu(number, others, links):
    joined = "".join(
        f'<nvlink target="0000:0{other}:00.0" count="{links}" tclass="0x030200"/>'
        for other in others
    )
    return (
        f'<pci busid="0000:0{number}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" '
        f'link_width="16"><gpu dev="{number}" sm="70" rank="{number}" gdr="1">{joined}</gpu></pci>'
    )


def system(nets="", links=1):
    """Four GPUs, each joined with each other."""
    gpus = "".join(gpu(n, [o for o in GPUS if o != n], links) for n in GPUS)
    nic = (
        '<pci busid="0000:a0:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">'
        f"<nic>{nets}</nic></pci>"
        if nets
        else ""
    )
    return (
        '<system version="1"><cpu numaid="0" vendor="GenuineIntel" familyid="6" modelid="85">'
        f"{gpus}{nic}</cpu></system>"
    )


def test_channels_of_one_order_are_counted_together():
    ring, tree = read_nccl_graphs(
        graphs(
            graph(4, [channel((0, 1, 3, 2))] * 2 + [channel((0, 2, 3, 1))]),
            graph(1, [channel(GPUS)], speed="12.5"),
            graph(2, []),
        )
    )
    assert (ring.pattern, ring.channels, ring.channel_bytes_per_s) == ("ring", 3, 20e9)
    assert [(o.order, o.count) for o in ring.orders] == [
        (("gpu0", "gpu1", "gpu3", "gpu2"), 2),
        (("gpu0", "gpu2", "gpu3", "gpu1"), 1),
    ]
    assert (ring.inside, ring.outside, ring.bytes_per_s) == ("NVL", "", 60e9)
    assert (tree.pattern, tree.channel_bytes_per_s) == ("balanced tree", 12.5e9)


def test_a_channel_between_hosts_begins_and_ends_at_its_adapter():
    (ring,) = read_nccl_graphs(graphs(graph(4, [channel((0, 1), net=2)])))
    assert ring.orders[0].order == ("net2", "gpu0", "gpu1", "net2")
    assert ring.outside == "PIX"
    assert cycle(ring.orders[0].order) == ("gpu0", "gpu1")


def test_numbers_of_newer_versions_are_hexadecimal():
    (ring,) = read_nccl_graphs(graphs(graph(4, [channel(("0", "0x1", "0xa"), net="0x2")])))
    assert ring.orders[0].order == ("net2", "gpu0", "gpu1", "gpu10", "net2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not XML"),
        ("<system/>", "must be <graphs>, as NCCL_GRAPH_DUMP_FILE"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><graphs>&a;</graphs>', "document type or entities"),
        ("<graphs>" + "<a>" * 50 + "</a>" * 50 + "</graphs>", "deeper"),
        (graphs(graph(4, [channel(GPUS)], speed="fast")), "speedintra of <graph>: is 'fast'"),
        (graphs(graph(4, [channel(GPUS)], speed="inf")), "speedintra"),
        (graphs(graph("", [channel(GPUS)])), "pattern of <graph>"),
        (graphs(graph(4, ["<channel><gpu/></channel>"])), "dev of <gpu>: is missing"),
        (graphs(graph(4, [channel((0,))] * 300)), "300 channels"),
        (graphs(*[graph(4, [])] * 20), "20 graphs"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(text, message):
    with pytest.raises(DataError, match=message):
        read_nccl_graphs(text)


@settings(max_examples=30)
@given(st.text(max_size=60))
def test_any_text_is_graphs_or_an_error_with_a_reason(text):
    found = nccl_topology(text, text)
    assert found.graphs or found.notes


def test_adapters_have_gpudirect_where_nccl_says_so():
    nets = (
        '<net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/>'
        '<net name="eth0" dev="1" speed="x" gdr="0"/><net name="&lt;b&gt;" dev="2"/>'
    )
    found = read_adapters(system(nets))
    assert [(a.name, a.bytes_per_s, a.gdr) for a in found] == [
        ("mlx5_0", 50e9, True),
        ("eth0", None, False),
        ("net2", None, None),
    ]


def test_the_model_finds_rings_for_the_same_devices():
    model = nccl_topology(system(), None)
    assert model.model_rings
    assert model.rings is None
    assert model.notes == ("NCCL wrote no graphs.",)
    assert ring_differences(model) == []
    orders = [
        channel([int(name.removeprefix("gpu")) for name in (*o.order[1:], o.order[0])])
        for o in model.model_rings
        for _ in range(o.count)
    ]
    same = nccl_topology(system(), graphs(graph(4, orders)))
    assert ring_differences(same) == [], "a ring is the same wherever it begins"
    assert same.model_bytes_per_s == model.model_bytes_per_s


def test_differences_are_named():
    found = nccl_topology(system(), graphs(graph(4, [channel((0, 1, 2, 3))])))
    text = "; ".join(ring_differences(found))
    assert "NCCL has 1 channels and the model" in text or "only the model has" in text
    fewer = nccl_topology(system(), graphs(graph(4, [channel((0, 1))])))
    assert "different devices" in ring_differences(fewer)[0]
    assert nccl_topology(None, graphs(graph(4, [channel((0, 1))]))).model_bytes_per_s is None
