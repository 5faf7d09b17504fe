"""What the package says of itself agrees: version, extras, change log, citation; and README's links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import bayesncl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version() -> None:
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert f"## [{bayesncl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {bayesncl.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for path in (ROOT / "bayesncl").rglob("*.py"):
        named |= set(re.findall(r"bayesncl\[(\w+)\]", path.read_text()))
    assert named and named <= set(PROJECT["optional-dependencies"])


PAGES = ("README.md", "CONTRIBUTING.md", "docs/README.md", "docs/photos.md", "docs/extending.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links and all((ROOT / page).parent.joinpath(link).exists() for link in links if link)


def test_the_readme_has_one_table_of_at_most_five_columns() -> None:
    heads = re.findall(r"^(\|.*\|)\n\|[-:| ]+\|$", (ROOT / "README.md").read_text(), re.M)
    assert len(heads) == 1 and heads[0].count("|") - 1 <= 5
