"""Share bundles of a real store: the same page elsewhere, filters, and the messages of the verb."""

import importlib.util
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import cubemesh as api
from cubemesh.errors import UsageError
from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")

if importlib.util.find_spec("altair") is None:
    pytest.skip("pages need the extra `views`", allow_module_level=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two runs of the null framework, and two experiment runs: of both, and of one of them."""
    folder = tmp_path_factory.mktemp("shared")
    path = str(folder / "s.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        found = api.run(
            "minibatch",
            networks=["little-cnn"],
            batch_sizes=[8, 16],
            ceiling=False,
            settings={"framework": "null", "script": "step=0.002,per_sample=0.0001"},
            quick=True,
            store=path,
        )
    assert found.ok
    with Store.open(path) as opened:
        (run,) = opened.experiment_runs()
        settings = {**run.settings, "batch_sizes": [8]}
        fewer = replace(run, experiment_run_id="e2", run_ids=run.run_ids[:1], settings=settings)
        opened.save_experiment_run(fewer)
    return path


@pytest.fixture(scope="module")
def bundle(store: str, tmp_path_factory: pytest.TempPathFactory, cubemesh) -> tuple[Path, dict]:
    """A bundle of everything, and what the command printed as JSON."""
    path = tmp_path_factory.mktemp("bundle") / "share" / "b.html"
    done = cubemesh("bundle", "create", str(path), "--store", store, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return path, json.loads(done.stdout)


def body(page: str) -> str:
    """A page without its moment and what is only in a bundle."""
    page = page.partition('<script type="application/x-cubemesh-bundle">')[0]
    page = re.sub(r"<p>This page is a share bundle.*\n", "", page)
    page = re.sub(r'"made_utc":"[^"]*"|<span class="when">.*?</span>', "", page)
    page = re.sub(r"(cubemesh [0-9.]+ · ).*?( · machine)", "", page)
    return re.sub(r"</body>|</html>", "", page).strip()


def test_the_page_of_the_imported_store_is_the_page_of_the_bundle(bundle, tmp_path, cubemesh):
    path, created = bundle
    other = str(tmp_path / "other.sqlite")
    done = cubemesh("import", str(path), "--store", other, "--json")
    merged = json.loads(done.stdout)
    assert (sorted(merged["new"]), merged["known"]) == (sorted(created["run_ids"]), [])
    page = tmp_path / "report.html"
    assert cubemesh("report", "-o", str(page), "--store", other).returncode == 0
    assert body(page.read_text()) == body(path.read_text())
    again = cubemesh("import", str(path), "--store", other)
    assert "0 runs" in again.stdout
    assert "2 were stored already" in again.stdout
    assert len(api.results(store=other)) == 2


def test_verify_says_what_it_holds(bundle, cubemesh):
    path, created = bundle
    found = json.loads(cubemesh("bundle", "verify", str(path), "--json").stdout)
    assert found["sha256"] == created["sha256"]
    assert sorted(found["run_ids"]) == sorted(created["run_ids"])
    assert found["experiment_run_ids"] == created["experiment_run_ids"]
    shown = cubemesh("bundle", "verify", str(path)).stdout
    assert "complete and unchanged: 2 runs, 2 answers, 0 files" in shown


def test_a_changed_bundle_is_one_sentence_and_exit_code_1(bundle, tmp_path, cubemesh):
    damaged = tmp_path / "b.html"
    shutil.copy(bundle[0], damaged)
    text = damaged.read_bytes()
    damaged.write_bytes(text.replace(b"little-cnn", b"little-CNN", 1))
    store = tmp_path / "s.sqlite"
    for words in (("bundle", "verify", str(damaged)), ("import", str(damaged))):
        options = ("--store", str(store)) if words[0] == "import" else ()
        done = cubemesh(*words, *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "damaged" in done.stderr
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("make", "b.html"), "create, verify"),
        (("verify", "b.html", "minibatch"), "one too many"),
        (("verify", "b.html", "--limit", "3"), "--limit"),
        (("create", "b.html", "--network", "vgg16"), "nothing to share"),
        (("create", "b.html", "--run", "zzzz"), "begins with"),
        (("create", "b.html", "--outcome", "fine"), "outcome"),
        (("create", "b.html", "--framework", "torch"), "framework"),
        (("create", "b.html", "minibach"), "minibatch"),
        (("create", "/dev/null/b.html"), "cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words, named, store, cubemesh):
    options = ("--store", store) if words[0] == "create" else ()
    done = cubemesh("bundle", *words, *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert named in done.stderr


def test_chosen_runs_take_the_answers_that_are_whole(store):
    table = api.results(store=store)
    ids = [r.run_id for r in table.records]
    with Store.open(store, read_only=True) as opened:
        smaller, larger = sorted(opened.experiment_runs(), key=lambda q: len(q.run_ids))
    few = api.bundle(run_ids=smaller.run_ids, store=store)
    assert {*few.report.records} == {*smaller.run_ids}
    assert few.experiment_runs == (smaller,)
    one = api.bundle(limit=1, store=store)
    assert [*one.report.records] == ids[-1:]
    assert (one.experiment_runs, [*one.report.answers]) == ((), [])
    every = api.bundle("minibatch", network="little-cnn", store=store)
    assert {q.experiment_run_id for q in every.experiment_runs} == {
        smaller.experiment_run_id,
        larger.experiment_run_id,
    }
    with pytest.raises(UsageError, match="nothing to share"):
        api.bundle("weak-scaling", network="little-cnn", store=store)


def test_a_bundle_of_one_run_is_a_page_too(store, tmp_path):
    from cubemesh.views.report.bundle import write_bundle

    path = tmp_path / "b.html"
    sha256 = write_bundle(path, api.bundle(limit=1, store=store))
    checked = api.verify_bundle(path)
    assert checked.file.sha256 == sha256
    (run,) = checked.contents.runs
    assert f'id="run-{run.record.run_id}"' in path.read_text()
