"""The tutorial notebook runs from top to bottom and gives named columns."""

import csv
import json
import shlex
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from tests.commands import call

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"


def run_shell(line: str) -> None:
    """Run a command that begins with ! in the notebook, in this process, and print its output."""
    program, *words = shlex.split(line)
    assert program == "bayesncl"
    with redirect_stderr(sys.stdout), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        assert call(*words) == 0


def run_cell(source: str, names: dict[str, Any]) -> None:
    """Run one code cell."""
    lines = [f"run_shell({s[1:]!r})" if s.startswith("!") else s for s in source.splitlines()]
    exec(compile("\n".join(lines), str(NOTEBOOK), "exec"), names)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {"run_shell": run_shell}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            run_cell("".join(cell["source"]), names)
    with open(tmp_path / "named.csv") as file:
        rows = list(csv.DictReader(file))
    named = [column for column in rows[0] if any(column.startswith(k) for k in names["KINDS"])]
    assert len(rows) == 600
    assert len(named) >= 8  # of 16 dimensions
    assert (tmp_path / "codes" / "atlas" / "index.html").is_file()
