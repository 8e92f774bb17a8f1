"""Sizes of transformers against what their papers and released weights have."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.networks.transformer_sizes import TRANSFORMERS, is_transformer, transformer


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("bert-base", 108_891_648),  # of the released encoder, without its pooler
        ("bert-large", 334_092_288),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameters_are_those_of_the_released_weights(name, parameters):
    assert transformer(name).parameters() == parameters


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "length", "parameters"),
    [
        (4096, 32, 32, 2048, 6_658_859_008),
        (4096, 32, 32, 65536, 6_918_905_856),
        (8192, 80, 64, 2048, 64_862_437_376),
    ],
)
def test_sizes_by_columns_have_the_parameters_that_llm_foundry_states(
    hidden, layers, heads, length, parameters
):
    columns = f"gpt:hidden={hidden},layers={layers},heads={heads},vocabulary=50368"
    assert transformer(columns).parameters(length) == parameters


def test_parameters_of_gpt3_follow_megatrons_equation_2():
    network = transformer("gpt:hidden=12288,layers=96,heads=96,vocabulary=51200")
    h, layers, v, s = 12288, 96, 51200, 2048
    by_equation = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    last_norm = 2 * h
    assert network.parameters(s) == pytest.approx(by_equation + last_norm, abs=1)
    assert network.parameters(s) / 1e9 == pytest.approx(174.6, abs=0.05)


def test_operations_of_a_token_of_gpt3_are_those_of_nvidias_recipe():
    """dgxc-benchmarking, nemo_megatron/README_175b.md: attention, feed-forward, embedding."""
    network = transformer("gpt:hidden=12288,layers=96,heads=96,vocabulary=51200")
    assert network.token_flops(2048) == 376_883_380_224 + 695_784_701_952 + 3_774_873_600


def test_operations_of_a_token_of_llama_are_those_of_nvidias_recipe():
    """dgxc-benchmarking, llama3.1/README_70b.md: grouped-query attention, gated feed-forward."""
    network = transformer("llama3-70b")
    assert network.token_flops(8192) == 136_902_082_560 + 338_228_674_560 + 6_304_038_912


def test_a_gated_network_without_ffn_has_that_of_llama_2():
    assert transformer("llama:hidden=4096,layers=32,heads=32").ffn == 11008
    assert transformer("llama:hidden=5120,layers=40,heads=40").ffn == 13824


def test_an_output_matrix_of_its_own_counts():
    tied = transformer("gpt:hidden=64,layers=1,heads=1,vocabulary=100")
    own = transformer("gpt:hidden=64,layers=1,heads=1,vocabulary=100,tied=no")
    assert own.parameters() - tied.parameters() == 6400


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt3-175", "gpt3-175b"),
        ("opt:hidden=1,layers=1,heads=1", "family of transformers"),
        ("gpt:hidden=64,heads=2", "layers is missing"),
        ("gpt:hidden=64,layers=2,heads=3", "cannot be divided among heads=3"),
        ("gpt:hidden=64,layers=2,heads=4,kv_heads=3", "not a multiple of kv_heads=3"),
        ("gpt:hidden=64,layers=0,heads=4", "layers=0 must be 1 or more"),
        ("gpt:hidden=64,layers=-2,heads=4", "layers=-2 must be a whole number"),
        ("gpt:hidden=64,layers=2,heads=4,tied=maybe", "tied=maybe must be yes or no"),
        ("gpt:width=64", "size of a transformer"),
        ("gpt:hidden=" + "9" * 40 + ",layers=1,heads=1", "must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(name, says):
    with pytest.raises(UsageError, match=says):
        transformer(name)


def test_names_and_columns_are_told_from_other_networks():
    assert is_transformer("gpt3-175b")
    assert is_transformer("gpt:hidden=1")
    assert not is_transformer("resnet-50")
    assert all(name == network.name for name, network in TRANSFORMERS.items())
