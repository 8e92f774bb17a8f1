"""Models of Hugging Face by their configuration: which input they take, what is refused."""

import importlib.util
import json
import types

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.frameworks.pytorch.own import hugging_face
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


@pytest.fixture
def bert_is_known(monkeypatch):
    """In place of transformers: every model is a linear layer of 40 × 50."""

    class Configuration:
        model_type, architectures = "bert", None

        def __init__(self, given):
            self.given = given
            self.vocab_size = 50

        @classmethod
        def from_dict(cls, given):
            return cls(given)

        def to_dict(self):
            return self.given

    class Builder:
        _model_mapping = (Configuration,)

        @staticmethod
        def from_config(configuration, trust_remote_code):
            return torch.nn.Linear(40, 50)

    kinds = dict.fromkeys(("bert", "timm_wrapper", "timm_backbone"), Configuration)
    builders = dict.fromkeys(hugging_face.DEFAULTS, Builder)
    library = types.SimpleNamespace(CONFIG_MAPPING=kinds, __version__="5", **builders)
    monkeypatch.setattr(hugging_face, "_transformers", lambda named: library)


@pytest.mark.parametrize(
    ("configuration", "word"),
    [
        ({"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "x"}}, "timm_wrapper"),
        ({**BERT, "vision_config": {"model_type": "timm_wrapper"}}, "timm_wrapper"),
        ({**BERT, "parts": [{"backbone_config": {"model_type": "timm_backbone"}}]}, "timm_backb"),
        ({**BERT, "text_config": {"use_timm_backbone": True}}, "use_timm_backbone"),
        ({**BERT, "use_pretrained_backbone": True}, "use_pretrained_backbone"),
    ],
)
def test_a_model_that_another_package_builds_is_refused(
    configured, bert_is_known, configuration, word
):
    assert f"config.json has {word}" in configured(configuration).fault


def test_a_model_that_does_not_fit_the_memory_is_refused(configured, bert_is_known, monkeypatch):
    memory = types.SimpleNamespace(total=12 * 2050 - 1)
    monkeypatch.setattr(hugging_face.psutil, "virtual_memory", lambda: memory)
    assert configured(BERT).fault == (
        "model/ has 2,050 parameters, whose description takes 24 KiB of memory, and this machine "
        "has 24 KiB."
    )
    memory.total += 1
    assert "parameters, whose" not in configured(BERT).fault


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
