"""The tutorial notebook runs from top to bottom and gives named columns."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def run_shell(line: str) -> None:
    """Run a line that begins with ! in the notebook, as a shell would run bayesncl."""
    command = shlex.split(line)
    assert command[0] == "bayesncl"
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": places, "COLUMNS": "80"}
    command = [sys.executable, "-m", "bayesncl", *command[1:]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    print(done.stdout + done.stderr, end="")


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
