"""Contracts of every network in NETWORKS, and its row in docs/networks.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cubemesh.errors import UsageError
from cubemesh.networks import NETWORKS, build, canonical_name, entry
from cubemesh.networks.cost import totals
from cubemesh.networks.describe import layer_rows, summary
from cubemesh.networks.graph import BOX_COLUMNS, MAX_BOXES
from cubemesh.networks.transformer_sizes import OTHER_NAMES, TRANSFORMERS, transformer

DOCUMENT = Path(__file__).parents[2] / "docs" / "networks.md"

PARAMETERS = {
    "little-cnn": 2_168_362,
    "little-cnn-unpadded": 1_250_858,
    "cifarnet": 89_578,
    "alexnet": 61_100_840,
    "overfeat": 145_920_872,
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_624_904,
    "googlenet-paper": 13_378_280,
    "inception-bn": 11_285_224,
    "inception-v3": 27_161_264,
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "efficientnet-b0": 5_288_548,
    "convnext-t": 28_589_128,
    "unet": 31_030_850,
    "detectnet": 5_978_677,
    "detectnet-little": 135_127,
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "llama-125m": 124_635_456,
    "llama3-1b": 1_235_814_400,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mixtral-1b": 1_214_940_160,
    "mixtral-8x7b": 46_702_792_704,
    "translator": 54_699_264,
    "translator-plain": 54_173_952,
    "translator-2x": 59_686_656,
    "deep-speech-gru": 41_179_933,
    "deep-speech-rnn": 13_909_533,
    "captioner": 25_186_272,
    "dlrm-small": 2_394_209,
    "dlrm-kaggle": 540_677_217,
    "dlrm-benchmark": 514_499_137,
    "dlrm-terabyte": 3_144_845_185,
    "dlrm-mlperf": 24_036_595_969,
}
"""As published, or worked out by hand from the layers."""
PUBLISHED_GFLOP = {
    "resnet-50": (2 * 4.089, "torchvision"),
    "efficientnet-b0": (2 * 0.386, "torchvision; 2 · 0.39 in the paper"),
    "convnext-t": (2 * 4.456, "torchvision; 2 · 4.5 in the paper"),
    "vit-s16": (2 * 4.6, "the paper of DeiT-S"),
    "vit-b16": (2 * 17.564, "torchvision"),
    "vit-l16": (2 * 61.555, "torchvision"),
}
"""Forward operations of an image and who states them, there as multiply-adds."""
TIED = {
    **{name: {"lm_head.weight": "transformer.wte.weight"} for name in PARAMETERS if "gpt" in name},
    **{
        name: {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
        for name in ("bert-base", "bert-large")
    },
    **{
        name: {"lm_head.weight": "model.embed_tokens.weight"}
        for name in ("llama-125m", "llama3-1b")
    },
}
"""Parameters that are another node's."""
OF_IMAGES = [name for name, line in NETWORKS.items() if line.classes]
OF_SPEECH = [name for name in NETWORKS if name.startswith("deep-speech")]
OF_RECORDS = [name for name in NETWORKS if name.startswith("dlrm")]
OF_TOKENS = [n for n in NETWORKS if n not in (*OF_IMAGES, *OF_SPEECH, *OF_RECORDS, "captioner")]
WITHOUT_AUXILIARY = {"googlenet-paper": 6_998_552, "inception-v3": 23_834_568}
"""Of what an evaluation uses, where that is less."""


def test_parameters_are_the_published_ones():
    assert {name: build(name).parameter_count for name in NETWORKS} == PARAMETERS


def test_a_mixture_of_experts_is_active_in_part():
    """12.9 of 46.7 billion, as transformers' MixtralForCausalLM has them with 2 of its 8 experts;
    13 of 47 in the paper, section 2.2."""
    assert summary("mixtral-8x7b").active_parameters == 12_879_925_248
    assert summary("llama-125m").active_parameters == 124_635_456


def test_auxiliary_heads_are_not_counted_for_an_evaluation():
    found = {name: build(name).evaluation_parameter_count for name in NETWORKS}
    assert found == PARAMETERS | WITHOUT_AUXILIARY


@pytest.mark.parametrize("name", PUBLISHED_GFLOP)
def test_operations_are_the_published_ones(name):
    gflop, _ = PUBLISHED_GFLOP[name]
    assert summary(name).forward_flops / 1e9 == pytest.approx(gflop, rel=0.001)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name in TRANSFORMERS])
def test_sizes_of_transformers_agree_with_the_table(name):
    """The table has no head of BERT's: a matrix with its bias, a norm, a bias for each word."""
    network, sizes = build(name), TRANSFORMERS[name]
    head = sizes.hidden**2 + 3 * sizes.hidden + sizes.vocabulary if "bert" in name else 0
    assert network.parameter_count == sizes.parameters() + head
    in_head = 2 * sizes.hidden**2 if head else 0
    flops = totals(network).forward.matrix_flops / sizes.sequence_length
    assert flops == sizes.token_flops() / 3 + in_head


def test_a_network_of_two_names_is_one():
    for other, name in OTHER_NAMES.items():
        assert canonical_name(other) == canonical_name(other.upper()) == name
        assert transformer(other) is TRANSFORMERS[name]
        assert name in NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_whole(name):
    network, line = build(name), entry(name)
    assert network.name == name
    assert line.source
    if name == "captioner":
        assert [i.shape for i in network.inputs] == [(3, 224, 224), (line.sequence_length,)]
        assert network.shapes[network.output] == (line.sequence_length, line.vocabulary)
    elif name in OF_SPEECH:
        assert network.inputs[0].shape == (1, 161, line.sequence_length)
        assert network.shapes[network.output] == (line.sequence_length // 2, line.vocabulary)
    elif name in OF_RECORDS:
        numbers, categories = network.inputs
        assert (numbers.dtype, categories.dtype) == ("float", "integer")
        assert categories.classes == max(categories.vocabularies) == line.vocabulary
        assert network.shapes[network.output] == (2,)
    elif line.image_size:
        assert network.inputs[0].shape == (3, line.image_size, line.image_size)
        assert network.targets[0].classes == line.classes
        positions = (line.image_size**2,) if name == "unet" else ()
        if name.startswith("detectnet"):
            cells = (line.image_size // 16) ** 2
            assert network.targets[0].shape == (cells + MAX_BOXES, BOX_COLUMNS)
            assert network.shapes[network.output] == (cells, line.classes + 4)
        else:
            assert network.targets[0].shape == positions
            assert network.shapes[network.output] == (*positions, line.classes)
    else:
        assert {i.shape for i in network.inputs} == {(line.sequence_length,)}
        assert network.targets[0].shape == (line.sequence_length,)
        assert network.targets[0].classes == network.inputs[0].classes == line.vocabulary
        assert network.shapes[network.output] == (line.sequence_length, line.vocabulary)
    known = {i.name: i.shape for i in network.inputs}
    for node in network.nodes:
        shapes = [known[i] for i in node.inputs]  # every input comes before its reader
        assert node.layer.output_shape(*shapes) == node.shape
        owned = node.layer.parameters(*shapes) | node.layer.state(*shapes)
        assert owned.keys() == node.parameters.keys() | node.state.keys()
        for role, array in (node.parameters | node.state).items():
            own = f"{node.name}.{role}"
            assert array == TIED.get(name, {}).get(own, own)
            assert (network.parameters | network.state)[array] == owned[role]
        known[node.name] = node.shape
    used = {p for n in network.nodes for p in (*n.parameters.values(), *n.state.values())}
    assert used == network.parameters.keys() | network.state.keys()
    read = {i for n in network.nodes for i in n.inputs} | {h.value for h in network.heads}
    assert read == known.keys()  # nothing is computed in vain


@pytest.mark.parametrize("name", NETWORKS)
def test_segments_are_named_and_cover_the_network(name):
    network = build(name)
    assert [n for s in network.segments for n in s.nodes] == [n.name for n in network.nodes]
    assert all(s.name for s in network.segments)
    assert len(network.segments) >= 3


@pytest.mark.parametrize("name", OF_RECORDS)
def test_a_network_of_records_takes_any_number_of_indices_rows_and_features(name):
    small = build(name, sequence_length=2, vocabulary=5, hidden=3)
    (embeddings,) = (node for node in small.nodes if node.name == "embeddings")
    assert max(embeddings.layer.rows) <= 5
    assert small.inputs[1].shape == (2 * len(embeddings.layer.rows),)
    assert embeddings.shape == (len(embeddings.layer.rows), 3)
    assert entry(name).samples == "samples"
    with pytest.raises(UsageError, match=r"classes=2 .*sequence_length, vocabulary, hidden"):
        build(name, classes=2)


@pytest.mark.parametrize("name", [*OF_TOKENS, *OF_SPEECH])
def test_a_network_of_tokens_takes_any_length_and_vocabulary(name):
    small = build(name, sequence_length=1, vocabulary=1)
    assert small.shapes[small.output] == (1, 1)
    with pytest.raises(UsageError, match=f"sequence_length=0 .*{name}"):
        build(name, sequence_length=0)
    with pytest.raises(UsageError, match=r"image_size=32 .*sequence_length, vocabulary"):
        build(name, image_size=32)


def test_a_network_of_images_takes_no_sequence():
    with pytest.raises(UsageError, match=r"sequence_length=10 .*vit-b16.*\bimage_size, classes"):
        build("vit-b16", sequence_length=10)
    for name in ("vit-b16", "unet", "detectnet"):
        with pytest.raises(UsageError, match=r"image_size=100 .*\b96\b"):
            build(name, 100)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_smallest_image_is_the_smallest_that_works(name):
    line = entry(name)
    small = build(name, image_size=line.smallest_image_size, classes=3)
    corners = 4 if name.startswith("detectnet") else 0
    assert small.shapes[small.output][-1] == 3 + corners
    with pytest.raises(UsageError, match="does not fit"):
        line.make(line.smallest_image_size - 1, 3)
    with pytest.raises(UsageError, match=rf"{name}.*\b{line.smallest_image_size}\b"):
        build(name, image_size=line.smallest_image_size - 1)


@pytest.mark.parametrize(
    ("name", "from_size"),
    [("resnet-18", 33), ("googlenet", 47), ("inception-bn", 39), ("inception-v3", 347)],
)
def test_one_sample_is_enough_once_every_normalization_sees_several_positions(name, from_size):
    assert build(name, image_size=from_size).smallest_batch == 1
    assert build(name, image_size=from_size - 1).smallest_batch == 2


def test_where_nothing_is_normalized_one_sample_is_enough():
    assert build("googlenet-paper", image_size=47).smallest_batch == 1


@pytest.mark.parametrize("name", [n for n in NETWORKS if PARAMETERS[n] < 28_000_000])
def test_drawn_arrays_have_the_shapes_of_the_graph(name):
    network = build(name)
    specs = network.parameters | network.state
    arrays = network.draw()
    assert {k: v.shape for k, v in arrays.items()} == {k: s.shape for k, s in specs.items()}
    assert {str(v.dtype) for v in arrays.values()} == {"float32"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("resnet-50", "resnet-50"),
        ("resnet50", "resnet-50"),
        ("ResNet_50", "resnet-50"),
        ("VGG-16", "vgg16"),
        ("LittleCNN", "little-cnn"),
        ("Inception_v3", "inception-v3"),
        ("GoogLeNet", "googlenet"),
    ],
)
def test_spelling_does_not_matter(given, expected):
    assert canonical_name(given) == expected
    assert entry(given) is NETWORKS[expected]
    assert build(given).name == expected


def test_spellings_are_unique():
    names = [*NETWORKS, *OTHER_NAMES]
    bare = {re.sub("[-_]", "", name).lower() for name in names}
    assert len(bare) == len(names)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(UsageError, match=r"'resnet-51' .*\bresnet-50\b"):
        build("resnet-51")
    with pytest.raises(UsageError, match="classes=0 "):
        build("alexnet", classes=0)


def test_listing_networks_loads_no_numpy():
    code = "import sys, cubemesh.networks.describe; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_document_derives_inception_bn_block_by_block():
    network, text = build("inception-bn"), DOCUMENT.read_text(encoding="utf-8")
    rows = layer_rows(network)
    before = 192
    for segment in network.segments[1:-1]:
        own = [r for r in rows if r.segment == segment.name]
        after = own[-1].output_shape[0]
        block = segment.name.removeprefix("inception")
        (line,) = re.findall(rf"^\| {block} \| {before:,} → {after:,} \|.*$", text, re.MULTILINE)
        assert line.endswith(f" | {sum(r.parameters for r in own):,} |")
        weights = [r.parameters for r in own if r.layer == "convolution"]
        *cells, normalization = re.findall(r"[\d,]+", line.split("→")[1])[1:-1]
        assert cells == [f"{w:,}" for w in weights]
        assert normalization == f"{sum(r.parameters for r in own) - sum(weights):,}"
        before = after


@pytest.mark.parametrize("name", NETWORKS)
def test_the_document_describes_it(name):
    text, found = DOCUMENT.read_text(encoding="utf-8"), summary(name)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert sum(f"`{name}`" in heading for heading in headings) == 1
    side = found.input_shape[-1]
    fed = f"{side:,} frames" if name in OF_SPEECH else f"{side:,} tokens"
    if name in OF_RECORDS:
        indices = build(name).inputs[1].shape[0]
        fed = f"{side:,} numbers, {indices:,} indices"
    elif name not in (*OF_TOKENS, *OF_SPEECH):
        fed = f"{side} × {side}" if name in OF_IMAGES else f"{side} × {side}, 20 tokens"
    row = (
        f"| {name} | {fed} | {found.classes:,} | {found.parameters:,} "
        f"| {found.forward_flops / 1e9:.3f} | {found.backward_flops / 1e9:.3f} "
        f"| {found.saved_bytes / 2**20:.1f} | {found.smallest_image_size or '1'} |"
    )
    assert row in text
