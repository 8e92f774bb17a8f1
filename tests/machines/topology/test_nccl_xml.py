"""NCCL's topology XML: what machines dump, and what strangers may send."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import CubemeshError, DataError
from cubemesh.machines.topology import find_rings, route
from cubemesh.machines.topology.nccl_xml import read_nccl_xml


def pci(bus: str, inside: str, speed: str = "16.0 GT/s PCIe", width: str = "16") -> str:
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x060400" link_speed="{speed}" '
        f'link_width="{width}">\n{inside}\n</pci>'
    )


def gpu(number: int, links: str, sm: int = 80) -> str:
    return f'<gpu dev="{number}" sm="{sm}" rank="{number}" gdr="1">\n{links}\n</gpu>'


SWITCHES = "\n".join(
    f'<nvlink target="0000:c{i}:00.0" count="2" tclass="0x068000"/>' for i in range(4, 10)
)
NIC = '<nic>\n<net name="mlx5_{0}" dev="{0}" speed="200000" port="1" maxconn="1"/>\n</nic>'


def dgx_a100() -> str:
    """Two pairs of GPUs of such a system, each pair with an adapter below nested switches."""
    sockets = []
    for socket in range(2):
        first = 2 * socket
        below = pci(f"{socket}7", gpu(first, SWITCHES)) + pci(
            f"{socket}8", gpu(first + 1, SWITCHES)
        )
        nics = pci(f"{socket}3", pci(f"{socket}4", NIC.format(socket)))
        sockets.append(
            f'<cpu numaid="{socket}" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" '
            f'familyid="143" modelid="49">\n{pci(f"{socket}1", pci(f"{socket}5", below) + nics)}'
            "\n</cpu>"
        )
    return '<system version="1">\n' + "\n".join(sockets) + "\n</system>\n"


def test_a_dgx_a100_is_read_whole():
    topology = read_nccl_xml(dgx_a100(), "a100.xml")
    assert [n.name for n in topology.gpus] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    switch = topology.node("nvswitch")
    assert (switch.kind, switch.count) == ("nvswitch", 6)
    found = find_rings(topology)
    assert [len(found.rings), found.bandwidth_bytes_per_s] == [12, 300e9]
    # A bridge with one thing below it is no node: of each socket's five, two branch.
    assert len(topology.of_kind("pcie-switch")) == 4
    assert route(topology, "nic0", "nic1").reach == "system"
    assert route(topology, "nic0", "gpu1").reach == "pcie-switch"
    assert route(topology, "gpu0", "nic0").bandwidth_bytes_per_s == pytest.approx(31.5e9, rel=1e-2)
    assert topology.of_kind("nic")[0].label == "mlx5_0"
    assert "one xGMI-2" in topology.notes[-1]


def test_links_between_gpus_go_by_address():
    link = '<nvlink target="0000:0{}:00.0" count="2" tclass="0x030200"/>'
    text = (
        '<system version="1"><cpu numaid="0" vendor="GenuineIntel" familyid="6" modelid="79">'
        + pci("01", gpu(0, link.format(2), sm=70), speed="8 GT/s")
        + pci("02", gpu(1, link.format(1), sm=70), speed="8 GT/s", width="8")
        + "</cpu></system>"
    )
    topology = read_nccl_xml(text)
    assert [len(find_rings(topology).rings), topology.links_of("gpu1", "nvlink")[0].count] == [2, 2]
    narrow = topology.links_of("gpu1", "pcie")[0]
    assert (narrow.name, narrow.bandwidth_bytes_per_s) == (
        "PCIe 3 x8",
        pytest.approx(7.877e9, rel=1e-3),
    )


ENTITY = '<!DOCTYPE system [<!ENTITY a "b">]>\n<system version="1">&a;</system>'
OUTSIDE = '<!DOCTYPE system SYSTEM "http://example.invalid/x.dtd">\n<system version="1"/>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTITY, "line 1: it declares a document type or entities"),
        (OUTSIDE, "line 1: it declares a document type or entities"),
        ("<a>" * 40 + "</a>" * 40, "deeper, than any system has"),
        ("<system>" + "<cpu/>" * 20_000 + "</system>", "more elements"),
        ("<system>\n<cpu>\n</system>", "line 3: not XML"),
        ("", "not XML"),
        ("<html/>", "line 1: the outermost element is <html>"),
        ('<system version="1"/>', "line 1, cpu of <system>: there is none"),
        ("<system>\n<cpu/>\n</system>", "gpu of <system>: there is none: 0 devices"),
    ],
)
def test_unsafe_xml_is_refused(text: str, message: str):
    with pytest.raises(DataError, match=message):
        read_nccl_xml(text, "strange.xml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('sm="80"', 'sm="77"', "line 6, sm of <gpu>: is 77, an unknown GPU"),
        ('dev="0" sm', 'dev="zero" sm', "line 6, dev of <gpu>: is 'zero'"),
        ('dev="1" sm', 'dev="0" sm', "dev of <gpu>: there are two called gpu0"),
        ('count="2"', 'count="0"', "line 7, count of <nvlink>: is 0"),
        (
            'tclass="0x068000"',
            'tclass="0x99"',
            "target of <nvlink>: is '0000:c4:00.0', not",
        ),
        ('"16.0 GT/s PCIe"', '"fast"', "line 3, link_speed of <pci>: is 'fast'"),
        ('link_width="16"', 'link_width="7"', "line 3, link_width of <pci>: is '7'"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(old: str, new: str, message: str):
    assert old in dgx_a100()
    with pytest.raises(DataError, match=message):
        read_nccl_xml(dgx_a100().replace(old, new), "a100.xml")


def test_missing_speeds_are_assumed_with_a_note():
    topology = read_nccl_xml(dgx_a100().replace("16.0 GT/s PCIe", "Unknown speed"))
    assert topology.links_of("gpu0", "pcie")[0].name == "PCIe 3 x16"
    assert any("PCIe 3 x16 is assumed" in note for note in topology.notes)


WORDS = ["system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "x"]
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        ["dev", "sm", "count", "busid", "target", "tclass", "link_speed", "link_width"]
    ),
    st.sampled_from(["0", "1", "80", "16", "8 GT/s", "0000:01:00.0", "0x068000", "-1", "", "é"]),
    max_size=5,
)


@st.composite
def elements(draw: st.DrawFn, depth: int = 0) -> str:
    name = WORDS[0] if not depth else draw(st.sampled_from(WORDS))
    given_here = "".join(f' {k}="{v}"' for k, v in draw(ATTRIBUTES).items())
    inside = "".join(draw(st.lists(elements(depth + 1), max_size=3))) if depth < 4 else ""
    return f"<{name}{given_here}>{inside}</{name}>"


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.text(max_size=100),
        elements(),
        st.tuples(st.integers(0, 3000), st.text(max_size=3)).map(
            lambda cut: dgx_a100()[: cut[0]] + cut[1] + dgx_a100()[cut[0] + 1 :]
        ),
    )
)
def test_any_text_is_a_topology_or_an_error_with_a_reason(text: str):
    with contextlib.suppress(CubemeshError):  # any other kind of error fails the test
        assert read_nccl_xml(text).gpus
