"""The command line as a user meets it: real stores, real workers, the null framework."""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cubemesh import __version__
from cubemesh.cli import app
from cubemesh.experiments.registry import SUITES
from cubemesh.schema import ClaimState

pytestmark = pytest.mark.usefixtures("forked_servers")

SCRIPTED = ("--set", "framework=null", "--set", "script=step=0.002,per_sample=0.0001,jitter=0.02")
MINIBATCH = ("run", "minibatch", "--set", "batch_sizes=8,16,32", *SCRIPTED)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, cubemesh) -> tuple[str, dict]:
    """The store of one `MINIBATCH`, and its output."""
    folder = tmp_path_factory.mktemp("ran")
    store = str(folder / "s.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # locks of its own, as tests have
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return store, document(cubemesh(*MINIBATCH, "--json", "--store", store))


def document(result: subprocess.CompletedProcess[str], code: int = 0) -> dict:
    """The one JSON object on stdout."""
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("verb", [None, *typer.main.get_command(app).commands])
def test_help(verb: str | None, golden):
    """Whole pages, as a terminal of 80 columns shows them. A flag is a promise: read the diff."""
    words = [verb, "--help"] if verb else ["--help"]
    shown = CliRunner().invoke(app, words, prog_name="cubemesh", env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    golden.check(f"help-{verb or 'main'}.txt", shown.stdout)


def test_help_imports_nothing_heavy():
    code = (
        "import sys, cubemesh.cli\n"
        "try:\n    cubemesh.cli.app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'networkx', 'pandas', 'pydantic', 'sqlalchemy', 'altair',\n"
        "         'psutil'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"--help imports {result.stderr}"
    assert "cubemesh run quick" in result.stdout


def test_reading_results_imports_no_framework(ran):
    store, _ = ran
    code = (
        "import sys, cubemesh.cli\n"
        f"sys.argv = ['cubemesh', 'results', '--store', {store!r}]\n"
        "try:\n    cubemesh.cli.main()\nexcept SystemExit: pass\n"
        "sys.exit('torch' if 'torch' in sys.modules else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0
    assert "little-cnn" in result.stdout


def test_version_of_the_command_as_a_process_of_its_own():
    command = [sys.executable, "-m", "cubemesh", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"cubemesh {__version__}"


def test_probe_as_json(cubemesh):
    output = document(cubemesh("probe", "--json"))
    assert output["schema"] == 1
    assert output["cpu"]["usable_cores"] >= 1


def test_networks_as_json_has_the_reference_counts(cubemesh):
    output = document(cubemesh("networks", "--json"))
    found = {n["name"]: n for n in output["networks"]}
    assert {
        n: found[n]["parameters"] for n in ("little-cnn", "cifarnet", "vgg16", "resnet-50")
    } == {
        "little-cnn": 2_168_362,
        "cifarnet": 89_578,
        "vgg16": 138_357_544,
        "resnet-50": 25_557_032,
    }
    assert found["alexnet"]["input_shape"] == [3, 224, 224]
    assert found["resnet-50"]["forward_flops"] == pytest.approx(2 * 4.09e9, rel=0.01)


def test_networks_layer_by_layer(cubemesh):
    result = cubemesh("networks", "resnet-18")
    assert result.returncode == 0
    assert "layer1.0.conv1" in result.stdout


@pytest.mark.parametrize("name", ["minibatch", "batch-accuracy"])
def test_experiments_lists_every_setting(cubemesh, name: str):
    output = document(cubemesh("experiments", name, "--json"))
    assert "networks" in {s["name"] for s in output["settings"]}
    assert all(s["means"] for s in output["settings"])
    assert "precision" in {f["name"] for f in output["fields"]}


def test_experiments_of_a_suite_in_their_order(cubemesh):
    output = document(cubemesh("experiments", "doc-003", "--json"))
    assert [e["experiment"] for e in output["experiments"]][-2:] == [
        "time-to-accuracy",
        "batch-accuracy",
    ]
    assert output["experiments"][0] == {
        "experiment": "weak-scaling",
        "reproduces": "Dell EMC 2016 [003], figure 2",
        "settings": {"networks": "googlenet", "samples": "8192", "cpu": "true"},
        "quick": False,
    }
    assert "networks=googlenet samples=8192" in cubemesh("experiments", "doc-003").stdout


def test_run_prints_records_and_answer(ran):
    _, output = ran
    steps = output["records"][:3]
    assert [r["spec"]["batch_per_device"] for r in steps] == [8, 16, 32]
    for record in steps:
        assert record["outcome"] == "ok"
        assert record["spec"]["framework"] == "null"
        assert record["spec"]["devices"] == 1
        expected = 0.002 + 1e-4 * record["spec"]["batch_per_device"]
        assert record["step_s"]["median"] == pytest.approx(expected, rel=0.05)
        batch = record["spec"]["batch_per_device"]
        assert record["throughput_per_s"] == pytest.approx(batch / expected, rel=0.05)
    assert output["answer"]["experiment"] == "minibatch"
    assert output["answer"]["findings"]


def test_the_same_command_measures_nothing_twice(ran, cubemesh, tmp_path: Path):
    store, first = ran
    shutil.copy(store, tmp_path / "s.sqlite")
    command = (*MINIBATCH, "--json", "--store", str(tmp_path / "s.sqlite"))
    second, again = document(cubemesh(*command)), document(cubemesh(*command, "--no-cache"))
    ids = [[r["run_id"] for r in output["records"]] for output in (first, second, again)]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])


def test_results_lists_and_shows(ran, cubemesh):
    store, output = ("--store", ran[0]), ran[1]
    listed = document(cubemesh("results", *store, "--json"))
    assert {r["run_id"] for r in listed["records"]} == {r["run_id"] for r in output["records"]}
    one = output["records"][-1]["run_id"]
    shown = document(cubemesh("results", one[:8], *store, "--json"))
    assert shown["record"]["run_id"] == one
    assert shown["record"]["windows"]
    for option, name, nearest in (
        ("--network", "litle-cnn", "little-cnn"),
        ("--framework", "pytorhc", "pytorch"),
    ):
        refused = cubemesh("results", *store, option, name)
        assert refused.returncode == 2
        assert f"Nearest: {nearest}" in refused.stderr
    spelt = document(cubemesh("results", *store, "--network", "LittleCNN", "--json"))
    assert len(spelt["records"]) == len([8, 16, 32])


def test_report_is_written_from_the_store(ran, cubemesh, tmp_path: Path):
    store = ("--store", ran[0])
    page, charts = tmp_path / "page.html", tmp_path / "charts"
    result = cubemesh("report", *store, "--output", str(page), "--charts", str(charts))
    assert result.returncode == 0, result.stderr
    assert str(page) in result.stdout
    text = html.unescape(page.read_text()).replace("\N{NO-BREAK SPACE}", " ")
    assert all(f["text"] in text for f in ran[1]["answer"]["findings"])
    assert sorted(p.suffix for p in charts.iterdir()) == [".csv", ".png", ".svg"]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("run", "minibatch", "--set", "networks=resnet-5O"), 2, "resnet-50"),
        (("run", "minibatch", "--set", "framework=pytorhc"), 2, "pytorch"),
        (("run", "minibatch", "--set", "data=digts"), 2, "digits"),
        (("run", "minibatch", "--set", "batch_sizes=0"), 2, "batch_per_device"),
        (("run", "minibatch", "--set", "batch_sizes=-8"), 2, "batch_per_device"),
        (("run", "minibatch", "--set", "colour=red"), 2, "colour"),
        (("run", "minibtach"), 2, "minibatch"),
        (("run", "quick", "--set", "colour=red"), 2, "colour"),
        (("run", "quick", "--set", "netwerk=a"), 2, "network"),
        (("run", "minibatch", "--set", "batch_per_device=8"), 2, "batch_sizes="),
        (("run", "batch-accuracy", "--set", "epochs=0"), 2, "epochs"),
        (("run", "batch-accuracy", "--set", "learning_rates=nan"), 2, "learning_rates=nan"),
        (("run", "batch-accuracy", "--set", "data_location=device"), 2, "data_location"),
        (("run", "minibatch", *SCRIPTED[:2], "--set", "script=segfoult@5"), 2, "segfault"),
        (("run", "minibatch", "--set", "script=step=1"), 2, "framework=null"),
        (("run", "minibatch", "--quick", "--full"), 2, "--full"),
        (("run", "minibatch", "--set", "networks=vgg16", "--set", "image_size=4"), 2, "vgg16"),
        (("run", "minibatch", "--set", "data=cifar-10"), 2, "data_path"),
        (("run",), 2, "NAME"),
        (("frobnicate",), 2, "frobnicate"),
        (("networks", "vgg"), 2, "vgg16"),
        (("results", "--store", "/nonexistent/s.sqlite"), 1, "/nonexistent"),
        (("report", "minibtach"), 2, "minibatch"),
    ],
)
def test_wrong_use_names_what_is_wrong(cubemesh, arguments, code, named):
    result = cubemesh(*arguments)
    assert result.returncode == code, result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_the_report_of_an_empty_store_names_the_command_that_fills_it(cubemesh, tmp_path: Path):
    store = tmp_path / "s.sqlite"
    wrong = cubemesh("run", "minibatch", "--set", "batch_sizes=0", "--store", str(store))
    assert wrong.returncode == 2
    result = cubemesh("report", "--store", str(store), "--output", str(tmp_path / "p.html"))
    assert result.returncode == 2
    assert "cubemesh run quick" in result.stderr


def test_a_run_that_crashes_is_recorded_and_the_others_go_on(cubemesh, tmp_path: Path):
    result = cubemesh(
        "run",
        "minibatch",
        *("--set", "batch_sizes=8,16", "--set", "ceiling=false", "--set", "framework=null"),
        *("--set", "script=segfault@5", "--json", "--store", str(tmp_path / "s.sqlite")),
    )
    output = document(result, code=1)
    assert [r["outcome"] for r in output["records"]] == ["crashed", "crashed"]
    assert "SIGSEGV" in output["records"][0]["outcome_detail"]["message"]


def test_unsupported_is_an_outcome_with_its_reason(cubemesh, tmp_path: Path):
    result = cubemesh(
        *("run", "minibatch", "--set", "batch_sizes=8", "--set", "devices=2", *SCRIPTED),
        *("--json", "--store", str(tmp_path / "s.sqlite")),
    )
    output = document(result, code=1)
    assert {r["outcome"] for r in output["records"]} == {"unsupported"}
    assert "devices=1" in output["records"][-1]["outcome_detail"]["message"]


def test_a_ceiling_alone_is_not_a_measurement(cubemesh, tmp_path: Path):
    command = (*MINIBATCH, "--set", "memory_limit_bytes=1000000", "--json")
    output = document(cubemesh(*command, "--store", str(tmp_path / "s.sqlite")), code=1)
    outcomes = {r["outcome"]: r["spec"]["work"]["kind"] for r in output["records"]}
    assert set(outcomes) == {"oom", "ok"}
    assert outcomes["ok"] == "ceiling"


@pytest.mark.parametrize(("accuracy", "code"), [(0.5, 0), (0.95, 99)])
@pytest.mark.parametrize("verb", [("train", "little-cnn"), ("run", "time-to-accuracy")])
def test_a_missed_target_is_99(cubemesh, tmp_path: Path, verb, accuracy, code):
    script = ("--set", "framework=null", "--set", "script=accuracy=0.1:0.9")
    epochs = (
        ("--epochs", "3") if verb[0] == "train" else ("--set", "epochs=3", "--set", "devices=1")
    )
    store = ("--store", str(tmp_path / "s.sqlite"))
    command = (*verb, *script, *epochs, *store)
    done = cubemesh(*command, "--set", f"target_accuracy={accuracy}")
    assert done.returncode == code, done.stderr
    # The default target of an experiment was not requested.
    assert cubemesh(*command).returncode == 0


@pytest.mark.parametrize("scale", ["--quick", None, "--full"])
def test_the_cost_is_the_first_line(cubemesh, tmp_path: Path, scale):
    options = (*SCRIPTED, "--set", "batch_sizes=8,16", *([scale] if scale else []))
    command = ("run", "minibatch", *options, "--store", str(tmp_path / "s.sqlite"))
    done = cubemesh(*command)
    assert done.returncode == 0, done.stderr
    cost, *lines = done.stderr.splitlines()
    planned = re.match(r"At least (\d+) runs: \d.* s\.$", cost)
    assert planned, cost
    runs = int(planned[1])
    assert 3 <= runs <= len(lines), "two sizes and a ceiling"
    expected = [f"{n}/≥{max(n, runs)}" for n in range(1, len(lines) + 1)]
    assert [line.split()[0] for line in lines] == expected


def test_a_repeated_training_names_the_option_that_trains_again(cubemesh, tmp_path: Path):
    store = ("--store", str(tmp_path / "s.sqlite"))
    command = ("train", "little-cnn", "--epochs", "2", "--set", "framework=null", *store, "--json")
    first, stored, again = cubemesh(*command), cubemesh(*command), cubemesh(*command, "--no-cache")
    run_ids = [json.loads(done.stdout)["record"]["run_id"] for done in (first, stored, again)]
    assert run_ids[0] == run_ids[1] != run_ids[2]
    hints = ["--no-cache" in done.stderr.splitlines()[0] for done in (first, stored, again)]
    assert hints == [False, True, False]


def test_the_runs_of_a_suite_are_counted_before_the_first(cubemesh, tmp_path: Path):
    options = ("--set", "networks=little-cnn", "--set", "framework=null", "--quick")
    names = ("power", "lr-scaling")
    done = cubemesh("run", *names, *options, "--json", "--store", str(tmp_path / "s.sqlite"))
    positions = [line.split()[0] for line in done.stderr.splitlines()[1:]]
    total = len(json.loads(done.stdout)["records"])
    assert positions == [f"{n}/{total}" for n in range(1, total + 1)]


def test_a_paper_is_replayed_and_the_report_has_its_claims(cubemesh, tmp_path: Path):
    store, page = str(tmp_path / "results.sqlite"), tmp_path / "page.html"
    sets = ("batch_sizes=16,64", "epochs=1", "ceiling=false", "framework=null", "seconds=0.05")
    sets += ("networks=little-cnn", "image_sizes=32", "data_location=host", "warmup_seconds=0")
    script = "script=step=0.002,per_sample=0.0001,jitter=0.02"
    options = [word for text in (*sets, script) for word in ("--set", text)]
    ran = document(cubemesh("run", "doc-001", "--quick", "--json", "--store", store, *options))
    *answers, claims = ran["answers"]
    assert claims["experiment"] == "doc-001"
    verdicts = {row[0]["text"]: row[1]["text"] for row in claims["tables"][0]["rows"]}
    assert len(verdicts) == 24
    assert verdicts["001-3"] == ClaimState.CANNOT_BE_TESTED_HERE  # a run with --quick
    assert verdicts["001-15"] == ClaimState.HOLDS  # by forecast
    quick = [ask for ask in SUITES["doc-001"].entries if ask.quick]
    assert [answer["experiment"] for answer in answers] == [ask.experiment for ask in quick]
    assert [a["title"].partition(" · ")[0] for a in answers] == [ask.reproduces for ask in quick]
    for names in ((), ("doc-001",)):
        document(cubemesh("report", *names, "--json", "--store", store, "-o", str(page)))
        assert claims["title"] in html.unescape(page.read_text())
    document(cubemesh("report", "minibatch", "--json", "--store", store, "-o", str(page)))
    assert claims["title"] not in html.unescape(page.read_text())


def simulated(*more: str) -> tuple[str, ...]:
    """`run quick` on the null framework."""
    return (
        *("run", "quick", "--set", "frameworks=null", "--set", "script=step=0.001"),
        *("--set", "networks=little-cnn", "--set", "seconds=0", "--set", "windows=6"),
        *("--set", "warmup_seconds=0", *more),
    )


def test_the_digits_have_fewer_samples_than_the_largest_batch_size(cubemesh, tmp_path: Path):
    command = (
        *("run", "minibatch", "--set", "data=digits", "--set", "framework=null", "--quick"),
        *("--set", "script=step=0.001", "--set", "seconds=0", "--set", "windows=6"),
        *("--set", "warmup_seconds=0", "--json", "--store", str(tmp_path / "s.sqlite")),
    )
    output = document(cubemesh(*command))
    batches = [r["spec"]["batch_per_device"] for r in output["records"]]
    assert 1024 in batches
    assert 2048 not in batches
    reduced = [w["cause"] for w in output["answers"][0]["warnings"] if w["code"] == "reduced"]
    assert "1,438" in reduced[0]


def test_the_quick_suite_is_one_screen_and_one_page(cubemesh, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = tmp_path / "page.html"
    result = cubemesh(*simulated("--store", str(tmp_path / "s.sqlite"), "--report", str(page)))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) <= 45
    copied = ("  cubemesh ", f"  {page}")  # lines to copy are not wrapped
    assert max(len(line) for line in lines if not line.startswith(copied)) <= 80
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings[1] == "How fast"
    assert headings[-2:] == ["Next", "Report"]
    assert str(page) in result.stdout
    assert "<html" in page.read_text()
    assert "2 min 45 s" in result.stderr  # announced before the first run
    assert result.stderr.index("2 min 45 s") < result.stderr.index("1/")


def test_a_page_that_cannot_be_written_loses_no_figures(cubemesh, tmp_path: Path):
    folder = tmp_path / "a-file"
    folder.write_text("")
    page = folder / "page.html"
    result = cubemesh(*simulated("--store", str(tmp_path / "s.sqlite"), "--report", str(page)))
    assert result.returncode == 2
    assert "How fast" in result.stdout
    assert str(folder) in result.stderr


def test_a_wait_for_a_quiet_machine_must_be_a_duration(cubemesh):
    result = cubemesh("run", "quick", "--wait-quiet", "soon")
    assert result.returncode == 2
    assert "soon" in result.stderr


def test_published_figures(cubemesh, golden):
    found = document(cubemesh("published", "vgg19", "--device", "v100", "--json"))
    assert found["kind"] == "published"
    assert found["matching"] == len(found["figures"])
    above = [f for f in found["figures"] if f["warning"]]
    assert above
    assert all(f["peak_share"] > 1 for f in above)
    page = cubemesh("published", "vgg19", "--above-peak", "--limit", "3")
    golden.check("published.txt", page.stdout)
    wrong = cubemesh("published", "vgg19", "--device", "abacus")
    assert wrong.returncode == 2
    assert "abacus" in wrong.stderr


@pytest.mark.parametrize("arguments", [("networks",), ("networks", "little-cnn")])
def test_lists_of_networks(cubemesh, golden, arguments):
    golden.check(f"{'-'.join(arguments)}.txt", cubemesh(*arguments).stdout)


def test_a_training_to_a_target_is_a_run_like_any_other(cubemesh, tmp_path: Path):
    store = ("--store", str(tmp_path / "s.sqlite"))
    script = ("--set", "framework=null", "--set", "script=accuracy=0.1:0.9")
    asked = ("train", "little-cnn", "--epochs", "5", "--target-accuracy", "0.6", *script, *store)
    output = document(cubemesh(*asked, "--tensorboard", str(tmp_path / "tb"), "--json"))
    assert output["kind"] == "record"
    assert output["record"]["figures"]["target_epoch"]["value"] == 4
    assert output["record"]["figures"]["epochs_trained"]["value"] == 4
    assert len(list((tmp_path / "tb").glob("events.out.tfevents.*"))) == 1
    page = tmp_path / "page.html"
    assert cubemesh("report", "train", "--output", str(page), *store).returncode == 0
    assert "epoch 4" in page.read_text()
    refused = cubemesh(*asked, "--checkpoints", str(tmp_path / "saved"), "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["record"]["outcome"] == "unsupported"
