"""Links, imports and commands in the documentation work; versions agree."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import bayesncl
from bayesncl.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")]
CODE = re.compile(r"^```.*?^```$|^ {4}[^\n]*$|`[^`\n]+`", re.M | re.S)
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and mkdocs write them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@every_page
def test_files_of_the_repository_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md" or page.parent.name == "log":  # also name what is gone
        return
    folders = [path.name for path in (ROOT / "bayesncl").iterdir() if path.is_dir()]
    named = rf"`((?:tests|benchmarks|examples|{'|'.join(folders)})/[a-z_/]+\.(?:py|md))[`: ]"
    for path in re.findall(named, page.read_text()):
        assert any((root / path).exists() for root in (ROOT, ROOT / "bayesncl")), path


@every_page
def test_python_snippets_import_what_exists(page: Path) -> None:
    for snippet in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        for node in ast.parse(snippet).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), {})


def test_benchmarks_import_what_exists() -> None:
    """Nothing else runs those that need a GPU or data."""
    for path in ROOT.glob("benchmarks/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bayesncl"):
                exec(ast.unparse(node), {})


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # also names what is gone
        return
    text = page.read_text().replace("\\\n", " ")
    code = "\n".join(CODE.findall(text))
    for name, rest in re.findall(r"\bbayesncl ([a-z]+)\b([^`\n#|;&]*)", code):
        options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest))
        if not options:
            continue
        known = {o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts)}
        assert options <= known, f"bayesncl {name}{rest}"


def test_the_training_loop_with_a_gate_learns() -> None:
    text = (ROOT / "docs" / "gate.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/gate.md", "exec"), names)
    losses, codes = names["losses"], names["codes"]
    assert losses[-1] < losses[0] - 0.5
    mask = names["logits"] > 0
    assert codes.min() == 0 and not codes[~mask].any() and 0 < mask.float().mean() < 1


def test_one_version() -> None:
    assert f"## [{bayesncl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {bayesncl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
