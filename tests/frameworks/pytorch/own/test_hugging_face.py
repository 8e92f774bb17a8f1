"""Models of Hugging Face by their configuration: which input they take, what is refused."""

import importlib.util
import json

import pytest

pytest.importorskip("torch")

from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.frameworks.pytorch.own.description import describe
from cubemesh.networks.own_networks import network_of
from cubemesh.user_code import locate_network

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**SMALL, "intermediate_size": 32, "vocab_size": 50, "max_position_embeddings": 12}
BERT = {"model_type": "bert", **TEXT}
GPT2 = {"model_type": "gpt2", "vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}


@pytest.fixture
def configured(tmp_path):
    """The description of a configuration in a folder."""

    def make(configuration, **given):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        text = configuration if isinstance(configuration, str) else json.dumps(configuration)
        (folder / "config.json").write_text(text)
        return describe(DescriptionRequest(named=locate_network(f"{folder}/"), **given))

    return make


def test_without_transformers_one_sentence_says_what_to_install(configured, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert configured(BERT).fault == (
        "model/ is a configuration of Hugging Face, and transformers is not installed. Install it "
        "with: pip install transformers"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "config.json cannot be read"),
        ("[]", "has no model_type"),
        ('{"hidden_size": 3}', "has no model_type"),
        ('{"model_type": 7}', "has no model_type"),
        ('"' + "x" * (1 << 20) + '"', "more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_configuration_is_refused_before_transformers_is_imported(
    configured, text, words
):
    assert words in configured(text).fault


needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@needs_transformers
@pytest.mark.parametrize(
    ("configuration", "given", "shape", "classes"),
    [
        ({**GPT2, "architectures": ["GPT2LMHeadModel"], "n_positions": 9}, {}, (9,), 50),
        ({**BERT, "architectures": ["BertForSequenceClassification"]}, {}, (12,), 2),
        ({**BERT, "architectures": ["BertModel"]}, {"sequence_length": 5}, (5,), 50),
        ({"model_type": "llama", **TEXT, "dtype": "bfloat16"}, {}, (12,), 50),
        ({"model_type": "vit", **SMALL, "image_size": 32, "patch_size": 16}, {}, (3, 32, 32), 2),
        ({"model_type": "roberta", **TEXT}, {}, (10,), 50),
    ],
    ids=["gpt2", "bert", "encoder", "llama", "vit", "roberta"],
)
def test_a_configuration_becomes_a_network(configured, configuration, given, shape, classes):
    own = configured(configuration, **given)
    assert (own.fault, own.name) == ("", "model/")
    assert bool(own.untraced) == (configuration["model_type"] == "roberta")
    network = network_of(own)
    assert network.inputs[0].shape == shape
    assert network.targets[0].classes == classes


@needs_transformers
@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"model_type": "mine", "auto_map": {"AutoModel": "code.Net"}}, "in its folder is not run"),
        ({"model_type": "t5", "vocab_size": 50}, "has no scores of one input"),
        ({**GPT2, "n_head": 3}, "building it raised ValueError"),
    ],
)
def test_what_cannot_be_built_is_a_fault(configured, configuration, words, tmp_path):
    (tmp_path / "model").mkdir()
    ran = tmp_path / "ran"
    (tmp_path / "model" / "code.py").write_text(f"open({str(ran)!r}, 'w')\n")
    assert words in configured(configuration).fault
    assert not ran.exists()


@needs_transformers
def test_the_same_configuration_has_the_same_weights_and_another_digest_when_changed(configured):
    first, again = configured(GPT2), configured(GPT2)
    assert first == again
    assert configured({**GPT2, "n_layer": 2}).digest != first.digest
