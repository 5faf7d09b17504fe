"""Version, extras, changelog and citation agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
