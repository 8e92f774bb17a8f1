"""The documentation site: builds without a warning, links to pages that exist, has a search."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("furo", reason="needs the extra docs")
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """`make docs`, into another folder: a warning, such as a missing page, is an error."""
    options = f"-W --keep-going -q -b html -c {DOCS / 'site'} -d {out / 'doctrees'}".split()
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of docs/."""
    folder = tmp_path_factory.mktemp("site")
    done = build(DOCS, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site_and_the_recipes_come_first(site):
    pages = {p.relative_to(DOCS).with_suffix(".html") for p in DOCS.rglob("*.md")}
    assert [p for p in pages if not (site / p).exists()] == []
    menu = re.findall(r'toctree-l1[^>]*><a[^>]*href="([^"]+)"', (site / "index.html").read_text())
    assert menu[:5] == [
        "recipes/accept-a-machine.html",
        "recipes/choose-a-batch-size.html",
        "recipes/slow-scaling.html",
        "recipes/catch-a-regression.html",
        "recipes/decide-what-to-buy.html",
    ]
    assert "cli.html" in menu


def test_links_in_the_site_lead_to_files_and_headings(site):
    wrong = []
    pages = [p for p in site.rglob("*.html") if p.name not in ("search.html", "genindex.html")]
    ids = {p: set(re.findall(r' id="([^"]+)"', p.read_text())) for p in pages}
    for page in pages:
        for target in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text()):
            path, _, anchor = unquote(target).partition("#")
            if "://" in path:
                continue
            found = (page.parent / path).resolve() if path else page
            if not found.exists() or (anchor and found in ids and anchor not in ids[found]):
                wrong.append((page.name, target))
    assert wrong == []


def test_the_search_finds_a_term(site):
    index = (site / "searchindex.js").read_text()
    assert '"straggler"' in index or "straggler:" in index
    assert (site / "search.html").exists()


def test_the_build_fails_on_a_link_to_a_missing_page(tmp_path):
    (tmp_path / "index.md").write_text("# Title\n\n[text](missing.md)\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    assert "missing.md" in done.stderr
