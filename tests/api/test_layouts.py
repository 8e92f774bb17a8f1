"""Forecast of a transformer by layout, as Python and on the command line."""

import json

import pytest
from typer.testing import CliRunner

from cubemesh import predict_layout
from cubemesh.cli import app
from cubemesh.errors import CubemeshError, UsageError

pytestmark = pytest.mark.usefixtures("forked_servers")

GPT3 = ("predict", "gpt3-175b", "--machine", "selene", "--global-batch", "1536")


def typed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, CubemeshError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_layout_gives_its_number_of_devices():
    found = predict_layout("gpt3-175b", "selene", layout="tp=8,pp=8,dp=16", global_batch=1536)
    assert found.forecast.plan.layout.devices == 1024
    assert found.search is None
    assert "1024 devices of selene, tp=8,pp=8,dp=16" in repr(found)


def test_the_step_is_within_its_band_of_the_published_one():
    """NVIDIA's recipe: GPT-3 175B on 512 H100, 8.42 s a step of 1,024 sequences."""
    found = predict_layout(
        "gpt:hidden=12288,layers=96,heads=96,vocabulary=51200",
        "eos",
        layout="tp=4,pp=8,dp=16,vp=12",
        global_batch=1024,
    )
    assert found.forecast.step_s / found.band < 8.42 < found.forecast.step_s * found.band


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layout": ""}, "give a layout, such as tp=8"),
        ({"layout": "tp=8", "search": True}, "a search chooses the layout itself"),
        ({"layout": "", "search": True}, "give the number of devices"),
        ({"layout": "dp=5000", "global_batch": 5000}, "selene has 4480. Name a larger cluster"),
        ({"machine": "dgx-a100", "layout": "dp=16"}, "dgx-a100 has 8"),
        ({"recompute": "half"}, "is not a recomputation"),
        ({"attention": "fast"}, "is not an attention"),
        ({"style": "ddp"}, "is not a style of transformers"),
        ({"precision": "fp32"}, "is not a precision of transformers"),
        ({"devices": 0}, "devices=0: give the number of devices"),
        (
            {"layout": "tp=8,dp=2", "global_batch": 64, "micro_batch": 4},
            r"does not fit: .* GiB per device, .* GiB more than a100-sxm4-80gb has. Try full "
            r"recomputation, .*smaller micro-batch, zero=3 or more pp",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes, says):
    given = {"machine": "selene", "layout": "tp=8,pp=8,dp=1", "global_batch": 64, **changes}
    recompute = given.pop("recompute", "none")
    with pytest.raises(UsageError, match=says):
        predict_layout("gpt3-175b", recompute=recompute, **given)


def test_json_has_the_step_with_its_parts_and_memory():
    found = json.loads(typed(*GPT3, "--layout", "tp=8,pp=8,dp=16", "--json"))
    assert (found["kind"], found["devices"]) == ("layout-prediction", 1024)
    assert found["parameters"] == 174_604_259_328
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert found["low_s"] < found["step_s"] < found["high_s"]
    assert found["memory"]["total_bytes"] < 80e9
    assert found["fits"] is True
    assert found["search"] is None
    assert {factor["origin"] for factor in found["factors"].values()} == {"fitted", "assumed"}


def test_a_search_lists_the_others_with_their_reasons():
    arguments = ("--devices", "256", "--search", "--sequence-length", "2048")
    found = json.loads(typed(*GPT3, *arguments, "--json"))
    assert found["devices"] == 256
    assert found["search"]["fitting"] > 0
    first, *others = found["search"]["candidates"]
    assert (first["reason"], first["layout"]) == ("", found["layout"])
    assert all(one["reason"] for one in others)
    page = typed(*GPT3, *arguments)
    assert "Best layout for each tensor- and pipeline-parallel size" in page
    assert "fastest" in page
    assert found["layout"] in page


def test_the_page_has_parts_memory_and_limit():
    page = typed(*GPT3, "--layout", "tp=8,pp=8,dp=16", "--micro-batch", "2", "--style", "megatron")
    for words in ("Breakdown of the step time", "bubble", "Memory per device", "MFU (%)"):
        assert words in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--layout", "tp=8", "--sync", "local-sgd"), "--sync is not for a transformer"),
        (("--layout", "tp=8", "--devices", "8,16"), "a layout has one number of devices"),
    ],
)
def test_options_of_other_forecasts_are_refused(arguments, says):
    with pytest.raises(UsageError, match=says):
        typed(*GPT3, *arguments)


LLAMA = ("predict", "llama3-70b", "--machine", "eos", "--global-batch", "1024")


def test_a_measured_rate_of_fewer_devices_calibrates_the_device():
    """MaxText on H100: 6.999 s on 64 with 128 sequences, 7.153 s on 256 with 512."""
    given = {"global_batch": 512, "layout": "dp=256,zero=3", "micro_batch": 2, "style": "jax"}
    plain = predict_layout("llama2-70b", "eos", **given)
    found = predict_layout("llama2-70b", "eos", measured={64: 128 / 6.999}, **given)
    assert abs(found.forecast.step_s - 7.153) < abs(plain.forecast.step_s - 7.153)
    assert found.forecast.step_s == pytest.approx(7.153, rel=0.03)
    assert found.band < plain.band
    assert found.forecast.peak_flops_per_s == plain.forecast.peak_flops_per_s


def test_the_measured_layout_itself_is_met():
    layout = ("--layout", "tp=4,pp=4,cp=2,vp=5,dp=16", "--measured", "512=68.8")
    found = json.loads(typed(*LLAMA, *layout, "--json"))
    assert found["samples_per_s"] == pytest.approx(68.8, rel=1e-3)
    assert found["measured"] == {"512": 68.8}
    assert "Fitted to what was measured on 512 devices" in typed(*LLAMA, *layout)


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({48: 5.0}, "the layout needs a multiple of 32"),
        ({0: 5.0}, "measured on 0 devices"),
        ({64: 0.0}, "the rate must be above 0"),
        ({64: 1e9}, "no speed of h100-sxm5-80gb gives this rate"),
        ({"llama3-8b@8": 5.0}, "A layout is measured on a number of devices"),
    ],
)
def test_a_measured_rate_that_cannot_be_is_refused(measured, says):
    with pytest.raises(UsageError, match=says):
        predict_layout(
            *("llama3-70b", "eos"),
            global_batch=1024,
            layout="tp=4,pp=4,cp=2,vp=5,dp=16",
            measured=measured,
        )


def test_a_search_takes_no_measured_rate():
    with pytest.raises(UsageError, match="give it without search"):
        predict_layout(
            "llama3-8b", "eos", global_batch=64, devices=8, search=True, measured={8: 1.0}
        )


def test_a_layout_needs_a_global_batch():
    with pytest.raises(UsageError, match="Give --global-batch"):
        typed("predict", "llama3-8b", "--machine", "eos", "--layout", "dp=8")


def test_other_networks_take_no_options_of_a_layout():
    with pytest.raises(UsageError, match="--micro-batch is for a transformer with a layout"):
        typed("predict", "resnet-50", "--machine", "dgx1-p100", "--micro-batch", "2")


@pytest.mark.parametrize("name", ["gpt2-xl", "bert-large", "llama-8b"])
def test_a_network_of_the_zoo_is_forecast_as_trained_unless_a_layout_is_given(name):
    asked = ("predict", name, "--machine", "hgx-h100", "--json")
    plain = json.loads(typed(*asked, "--batch-per-device", "1"))
    shaped = json.loads(typed(*asked, "--layout", "dp=8,zero=3", "--global-batch", "64"))
    assert (plain["kind"], shaped["kind"]) == ("prediction", "layout-prediction")
    with pytest.raises(UsageError, match="give --layout or --search"):
        typed(*asked, "--global-batch", "64")


def test_the_strategy_tensor_parallel_is_a_layout():
    """Over all devices, with all optimizer states on each replica and its batch at once."""
    found = predict_layout(
        "gpt2", "hgx-h100", sync="tensor-parallel", devices=2, global_batch=16
    ).forecast.plan
    assert (str(found.layout), found.micro_batch) == ("tp=2,pp=1,dp=1,zero=0", 16)
    mesh = predict_layout(
        "gpt2", "hgx-h100", sync="tensor-parallel", layout="tp=3,dp=2", global_batch=16
    ).forecast.plan
    assert (str(mesh.layout), mesh.micro_batch) == ("tp=3,pp=1,dp=2,zero=0,sp=0", 8)
    split = predict_layout(
        "gpt2", "hgx-h100", sync="context-parallel", layout="cp=2,dp=2", global_batch=16
    ).forecast
    assert (str(split.plan.layout), split.plan.micro_batch) == ("tp=1,pp=1,cp=2,dp=2,zero=0", 8)
    assert split.parts_s["context"] > 0
    output = typed(
        *("predict", "llama-1b", "--machine", "hgx-h100", "--sync", "tensor-parallel"),
        *("--devices", "2", "--batch-per-device", "1", "--sequence-length", "2048"),
    )
    assert "2 sequences of 2048 tokens per step" in output
    assert "tp=2,pp=1,dp=1,zero=0" in output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("gpt2 --sync tensor-parallel --global-batch 4", "give the devices that divide each layer"),
        ("gpt2 --sync tensor-parallel --devices 5 --global-batch 4", "Possible: 1, 2, 3, 4, 6"),
        (
            "gpt2 --sync tensor-parallel --layout tp=2,zero=3 --global-batch 4",
            "has tp, dp and sp only",
        ),
        ("gpt2 --sync context-parallel --global-batch 4", "that divide each sequence"),
        ("gpt2 --sync context-parallel --layout cp=2,tp=2 --global-batch 4", "has cp and dp only"),
        ("gpt2 --sync context-parallel --layout cp=2,sp=1 --global-batch 4", "has cp and dp only"),
        ("gpt2 --sync context-parallel --devices 5 --global-batch 5", "10 parts, two a device"),
        ("resnet-50 --sync context-parallel", "is forecast for transformers by their sizes"),
        ("gpt2 --sync tensor-parallel --devices 2", "Give --global-batch"),
        (
            "gpt2 --sync tensor-parallel --devices 2 --batch-per-device 2 --global-batch 8",
            "Give one of --batch-per-device and --global-batch",
        ),
        ("resnet-50 --sync tensor-parallel", "is forecast for transformers by their sizes"),
        ("gpt2 --sync pipeline --layout tp=2 --global-batch 4", "--sync is not for a transformer"),
    ],
)
def test_what_tensor_parallel_cannot_be_is_refused(words, says):
    network, *options = words.split()
    with pytest.raises(UsageError, match=says):
        typed("predict", network, "--machine", "hgx-h100", *options)


def test_another_strategy_is_no_layout():
    with pytest.raises(UsageError, match="only tensor-parallel and context-parallel are"):
        predict_layout("gpt2", "hgx-h100", sync="pipeline", devices=2, global_batch=4)
