"""Where networks are cut, and which cannot be: the parts, put together, are the network."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh import networks
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import costs
from cubemesh.parallel.model_parallel import cut_where_possible, parts

CHAINS = ("little-cnn", "alexnet", "vgg16", "resnet-18", "vit-b16")


def flops(network, part):
    counted = costs(network)
    return sum(counted[node.name].total.flops for node in part.nodes)


def in_a_row(widths):
    net = NetworkBuilder("row")
    x = net.input("features", (8,))
    for number, width in enumerate(widths):
        with net.segment(f"part{number}"):
            x = net.relu(net.linear(x, width))
    net.classify(x)
    return net.build()


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_the_output_of_a_part_is_the_input_of_the_next(name, devices):
    network = networks.build(name)
    found = parts(network, devices)
    assert len(found) == devices
    assert found[0].inputs == network.inputs
    assert found[-1].heads == network.heads
    for before, after in itertools.pairwise(found):
        (head,), (fed,) = before.heads, after.inputs
        assert (fed.name, fed.shape) == (head.value, network.shapes[head.value])
    assert tuple(node for part in found for node in part.nodes) == network.nodes
    assert [n for part in found for n in part.parameters] == [*network.parameters]
    assert [n for part in found for n in part.state] == [*network.state]


@given(st.lists(st.integers(2, 40), min_size=3, max_size=6), st.integers(2, 3))
def test_no_other_cut_would_make_the_largest_part_smaller(widths, devices):
    network = in_a_row(widths)
    counted = costs(network)
    each = [sum(counted[n].total.flops for n in s.nodes) for s in network.segments]
    largest = max(flops(network, part) for part in parts(network, devices))

    def best(first, left):
        if left == 1:
            return sum(each[first:])
        ends = range(first + 1, len(each) - left + 2)
        return min(max(sum(each[first:end]), best(end, left - 1)) for end in ends)

    assert largest == best(0, devices)


def test_more_devices_than_parts_are_refused():
    with pytest.raises(Unsupported, match=r"3 parts.*devices=4"):
        parts(in_a_row([4, 4, 4]), 4)


def test_shared_weights_prevent_a_cut():
    with pytest.raises(Unsupported, match=r"transformer\.wte\.weight"):
        parts(networks.build("gpt2"), 2)


def test_a_skip_connection_prevents_a_cut():
    net = NetworkBuilder("skipping")
    x = first = net.input("features", (8,))
    for number in range(3):
        with net.segment(f"part{number}"):
            x = net.add(net.linear(x, 8, name=f"linear{number}"), first)
        first = x if number == 1 else first
    net.classify(x)
    network = net.build()
    links = cut_where_possible(network)
    assert [[s.name for s in link] for link in links] == [["part0", "part1"], ["part2"]]
    assert len(parts(network, 2)) == 2
    with pytest.raises(Unsupported, match=r"features.*'part0'"):
        parts(network, 3)


def test_auxiliary_heads_belong_to_the_last_part():
    network = networks.build("googlenet-paper")
    assert len(cut_where_possible(network)) < len(network.segments)
    (_, last) = parts(network, 2)
    assert last.heads == network.heads
