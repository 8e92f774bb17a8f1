"""What can be typed is written down: verbs, options, networks, experiments, settings, warnings."""

import dataclasses
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import typer

from cubemesh.api.catalogue import experiment_settings
from cubemesh.cli import app
from cubemesh.data import SOURCES, input_threads
from cubemesh.experiments.core.settings import spec_fields
from cubemesh.experiments.registry import EXPERIMENTS, SUITES
from cubemesh.exports import FORMATS
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.networks import NETWORKS
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema import WARNINGS, Status

DOCS = Path(__file__).parent.parent / "docs"
VERBS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def documented() -> list[tuple[str, str]]:
    """(page, what it must name in code style) for everything there is."""
    wanted = []
    for verb in VERBS.values():
        wanted.append(("cli.md", f"cubemesh {verb.name}"))
        wanted += [("cli.md", o) for p in verb.params for o in p.opts if o.startswith("--")]
    for experiment in EXPERIMENTS.values():
        wanted.append(("experiments.md", experiment.name))
        wanted += [("experiments.md", f.name) for f in dataclasses.fields(experiment.settings)]
        wanted += [("settings.md", field) for field in spec_fields(experiment)]
    wanted += [("experiments.md", suite) for suite in SUITES]
    wanted += [("networks.md", network) for network in NETWORKS]
    wanted += [("frameworks.md", framework) for framework in FRAMEWORKS]
    wanted += [("data.md", source) for source in SOURCES]
    wanted += [("warnings.md", code) for code in WARNINGS]
    wanted += [("running.md", status.value) for status in Status]
    wanted += [("settings.md", sync) for sync in STRATEGIES]
    for name, entry in FORMATS.items():
        wanted += [("exports.md", word) for word in (name, *entry.suffixes)]
    return sorted(set(wanted))


def missing(page: str, name: str) -> bool:
    """Whether a page does not name something in code style."""
    text = (DOCS / page).read_text()
    return f"`{name}" not in text


@pytest.mark.parametrize("page", sorted({page for page, _ in documented()}))
def test_everything_is_documented(page: str) -> None:
    names = [name for other, name in documented() if other == page]
    assert [name for name in names if missing(page, name)] == [], f"not described in docs/{page}"


def test_the_docs_test_detects_a_gap() -> None:
    assert missing("cli.md", "cubemesh frobnicate")


SECTIONS = dict(
    re.findall(
        r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", (DOCS / "experiments.md").read_text(), re.M | re.S
    )
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_setting_is_described_where_its_experiment_is(name: str) -> None:
    settings = [field.name for field in dataclasses.fields(EXPERIMENTS[name].settings)]
    assert [s for s in settings if f"`{s}`" not in SECTIONS[name]] == []


PAGES = [
    *DOCS.rglob("*.md"),
    *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
]


def anchors(page: Path) -> set[str]:
    """What can follow a # in a link to a page: its headings, as GitHub and others name them."""
    headings = [
        line.lstrip("#").strip() for line in page.read_text().splitlines() if line[:1] == "#"
    ]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for target, _, heading in re.findall(r"\]\(([^)#:\s]*)(#([^)]*))?\)", page.read_text()):
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name} links to {target}"
        if heading and found.suffix == ".md":
            assert heading in anchors(found), f"{page.name} links to {target}#{heading}"


def test_each_option_of_a_verb_is_once_in_the_table() -> None:
    table = (DOCS / "cli.md").read_text().partition("## Options")[2].partition("\n## ")[0]
    rows = [row.replace("\\|", "/").split("|")[1:3] for row in table.splitlines() if row[:1] == "|"]
    found = Counter(
        (option, verb)
        for options, verbs in rows
        for option in re.findall(r"`(--[a-z_-]+)", options)
        for verb in re.findall(r"`([a-z]+)`", verbs)
    )
    assert len(found) > 50
    assert [pair for pair, times in found.items() if times > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_samples_import_what_exists(page: Path) -> None:
    samples = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    for statement in re.findall(r"^(?:from|import) cubemesh.*$", "\n".join(samples), re.M):
        exec(statement, {})


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """(experiment, settings it is given) of each `cubemesh run` on a page."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"cubemesh run ([a-z][a-z0-9-]+)([^\n`]*)", text)
    return [(name, re.findall(r"--set (\w+)=", rest)) for name, rest in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_a_page_set_what_exists(page: Path) -> None:
    wrong = []
    for name, settings in commands(page):
        assert name in {*EXPERIMENTS, *SUITES}, f"{page.name}: cubemesh run {name}"
        if name in EXPERIMENTS:
            known = {f.name for f in dataclasses.fields(EXPERIMENTS[name].settings)}
            known |= {*spec_fields(EXPERIMENTS[name])} - {*EXPERIMENTS[name].varies}
            wrong += [f"{name}: {setting}" for setting in settings if setting not in known]
    assert wrong == []


def command_lines(page: Path) -> list[list[str]]:
    """The words of each complete `cubemesh …` line in an indented block of a page."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^ {4,}cubemesh (?!:)(.+)$", text, re.M)
    lines = [re.split(r" {2,}#| \| ", line)[0] for line in lines]  # comments, other programs
    parts = [part for line in lines for part in line.split(" && cubemesh ")]
    return [shlex.split(p) for p in parts if re.match(r"[a-z-]+", p) and "…" not in p]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_a_page_have_options_and_values_that_exist(page: Path) -> None:
    """Each is parsed by the command line, which refuses an unknown option or a wrong value."""
    for name, *words in command_lines(page):
        VERBS[name].make_context(name, words)


def test_the_command_test_detects_an_unknown_option(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    good, wrong = "cubemesh run quick && cubemesh report   # then", "cubemesh run quick --fats"
    page.write_text(f"    {good}\n    {wrong}\n")
    assert command_lines(page)[:2] == [["run", "quick"], ["report"]]
    with pytest.raises(Exception, match="--fats"):
        test_commands_on_a_page_have_options_and_values_that_exist(page)


SOURCE = DOCS.parent / "src" / "cubemesh"


def named_paths(section: str) -> list[str]:
    """Paths that the tables in a section of docs/architecture.md name in code style."""
    text = (DOCS / "architecture.md").read_text().partition(f"\n## {section}\n")[2]
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return re.findall(r"`([\w/]+(?:/|\.py|\.toml))`", "\n".join(rows))


def test_the_index_names_files_that_exist() -> None:
    paths = named_paths("Where is …?")
    assert len(paths) > 40
    assert [path for path in paths if not (SOURCE / path).exists()] == []


def test_every_room_is_in_the_table() -> None:
    rooms = {p.name + "/" for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    rooms |= {p.name for p in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert rooms - {*named_paths("Rooms")} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_on_a_page_exist(page: Path) -> None:
    """Paths with a folder, below src/cubemesh or the repository."""
    paths = set(
        re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|toml|csv|cpp|md|json|sqlite))`", page.read_text())
    )
    found = (SOURCE, DOCS.parent, page.parent)
    made_up = {"frameworks/NAME.py"}
    assert sorted(p for p in paths - made_up if not any((f / p).exists() for f in found)) == []


def test_help_docs_and_code_agree_on_the_default_of_input_threads() -> None:
    in_memory = {name for name in SOURCES if input_threads(name, None, 8) == 0}
    text = (DOCS / "data.md").read_text()
    (listed,) = re.findall(r"default: 0 for data in memory \(([^)]*)\)", text)
    assert set(re.findall("`([^`]+)`", listed)) == in_memory
    for name in SOURCES.keys() - in_memory:
        assert input_threads(name, None, 8) == 8
        assert input_threads(name, None, 8, "device") == 2
    default = (
        "0 for data in memory, one per usable core for images decoded on the host, at most two for "
        "those decoded on a device"
    )
    (help_text,) = (
        f.means for f in experiment_settings("minibatch").fields if f.name == "input_threads"
    )
    assert f"None: {default}." in " ".join(help_text.split())
    settings = (DOCS / "settings.md").read_text()
    assert f"| `input_threads` | none: {default} |" in settings
    (row,) = re.findall(r"\| `data` \|.*", settings)
    assert SOURCES.keys() <= set(re.findall("`([^`]+)`", row))
