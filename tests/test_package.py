"""Version, changelog and citation agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import bayesncl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version() -> None:
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert f"## [{bayesncl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {bayesncl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
