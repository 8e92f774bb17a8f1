"""The stock modules by hand compute what the networks of the zoo do, from the same weights."""

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.networks import build
from cubemesh.networks.transformer_sizes import TRANSFORMERS
from cubemesh.networks.zoo.gpt2 import gpt2
from cubemesh.networks.zoo.llama import llama

LLAMA = {
    "model.embed_tokens": "embed",
    "model.norm": "norm",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
    **{f"self_attn.{part}_proj": part for part in "qkvo"},
    **{f"mlp.{part}_proj": part for part in ("gate", "up", "down")},
}
GPT2 = {
    **{f"transformer.{part}": part for part in ("wte", "wpe", "ln_f")},
    "ln_1": "ln_1",
    "ln_2": "ln_2",
    "attn.c_attn": "attn",
    "attn.c_proj": "proj",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}


@pytest.fixture
def stock(script):
    return script("stock_modules")


@pytest.fixture
def zoo(script):
    return script("zoo_against_peers")


def own_name(name, parts):
    """The graph's name of a parameter → the module's."""
    layer, role = name.rsplit(".", 1)
    block = re.match(r"(model\.layers|transformer\.h)\.(\d+)\.", layer)
    if block is None:
        return f"{parts[layer]}.{role}"
    return f"blocks.{block[2]}.{parts[layer[block.end() :]]}.{role}"


@pytest.mark.parametrize(
    ("name", "make", "parts", "changes"),
    [
        ("llama-125m", llama, LLAMA, {"heads": 4, "kv_heads": 2, "ffn": 24}),
        ("gpt2", gpt2, GPT2, {"heads": 4, "kv_heads": 4, "ffn": 64}),
    ],
)
def test_a_transformer_by_hand_is_that_of_the_zoo(stock, zoo, name, make, parts, changes):
    sizes = replace(TRANSFORMERS[name], hidden=16, layers=2, **changes)
    network = make(sizes, 6, 30)
    built = build_modules(network, dtype=torch.float64, overwrite=False)
    built.load(network.draw(0))
    by_hand = (stock.Llama if make is llama else stock.Gpt2)(sizes, 6, 30).double()
    own = dict(by_hand.named_parameters())
    assert len(own) == len(built.parameters)
    with torch.no_grad():
        for parameter, array in built.parameters.items():
            own[own_name(parameter, parts)].copy_(array)
    tokens = torch.from_numpy(zoo.random_batch(network, 2).inputs[0])
    torch.testing.assert_close(by_hand(tokens), built.training(tokens)[0], rtol=1e-6, atol=1e-6)


def test_the_loss_of_a_graph_as_a_module_has_every_head_and_a_padded_vocabulary(stock, zoo):
    network = build("translator", sequence_length=4, vocabulary=30, hidden=8)
    batch = zoo.random_batch(network, 2)
    placed = [torch.from_numpy(array) for array in (*batch.inputs, batch.labels)]
    module, loss = stock.stock_loss(network)
    assert loss(*placed).item() == pytest.approx(3.4, abs=0.4)
    assert sum(p.numel() for p in module.parameters()) == network.parameter_count
    assert stock.padded_vocabulary(network) == 64


@pytest.mark.parametrize(
    ("name", "peers"),
    [
        ("vgg16", ("compiled, graph",)),
        ("gpt2", ("compiled, graph, padded",)),
        ("llama-125m", ("compiled, graph",)),
        ("captioner", ("graph", "compiled, graph")),
    ],
)
def test_the_best_peers_of_a_network(zoo, name, peers):
    assert zoo.best_peers(zoo.build(name)) == peers


def test_cases_name_length_batch_size_and_layers_in_fp8(zoo, monkeypatch, capsys):
    def read(*words):
        monkeypatch.setattr("sys.argv", ["zoo", *words])
        return zoo.arguments()

    assert read("--cases", "gpt2@64:4:transformer.h.*,vgg16:8").cases == [
        ("gpt2@64", "4", "transformer.h.*"),
        ("vgg16", "8", ""),
    ]
    cases = read("--cases", "zoo").cases
    assert len(cases) == len(set(cases)) == 2 * len(zoo.BATCH_SIZES)
    assert zoo.memory_bytes("vgg16", 64, "bf16", "x") > zoo.memory_bytes("vgg16", 64, "bf16", "")
    with pytest.raises(SystemExit):
        read("--cases", "vgg16")
    assert "NETWORK:BATCH" in capsys.readouterr().err


def test_processes_take_turns(script, tmp_path, monkeypatch):
    """A process in a turn stops the others, but none that compiles, and resumes them."""
    turns = script("gpu_turns")
    monkeypatch.setattr(turns.torch, "zeros", lambda *_, **more: torch.ones(1))
    monkeypatch.setattr(turns.torch.cuda, "synchronize", lambda: None)
    sent = []
    monkeypatch.setattr(turns.os, "kill", lambda pid, number: sent.append((pid, number.name)))
    for pid in (1001, 1002):
        (tmp_path / "members").mkdir(exist_ok=True)
        (tmp_path / "members" / str(pid)).touch()
    (tmp_path / "compiling-1002").touch()
    mine = turns.Turns(tmp_path)
    with mine.compiling():
        pass
    with mine:
        assert sent == [(1001, "SIGSTOP")]
    with mine._own:  # its thread releases too
        mine._release()
    assert sorted(sent[1:]) == [(1001, "SIGCONT"), (1002, "SIGCONT")]
    mine.end()
    assert sent[-1] == (1001, "SIGSTOP")
    turns.resume(tmp_path, 1002)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "members"}
