"""The scripts in examples/ run, at a size that takes seconds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(script: str, *options: str | Path) -> str:
    """Return what an example prints; its exit status must be 0."""
    here = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    here["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, options)]
    done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_run_here() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert scripts == set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    readme = (ROOT / "examples" / "README.md").read_text()
    assert scripts == set(re.findall(r"\]\((\w+\.py)\)", readme))


def test_photos(tmp_path: Path) -> None:
    out = run("photos.py", "--out", tmp_path, "--count", "30", "--components", "8")
    named = int(re.search(r"(\d) of 8 dimensions have a name", out).group(1))  # type: ignore[union-attr]
    assert named >= 5
    assert re.search(r"sky/\d+\.jpg +sky ", out)
    assert (tmp_path / "codes" / "codes.safetensors").exists()


def test_embeddings() -> None:
    out = run("embeddings.py", "--rows", "800", "--components", "32")
    assert float(re.search(r"per row: ([\d.]+)", out).group(1)) > 0.7  # type: ignore[union-attr]  # chance is 0.1
    assert re.search(r"dimension \d: fires on \d+ rows", out)


def test_paper(tmp_path: Path) -> None:
    out = run("paper.py", "--out", tmp_path, "--images", "140", "--epochs", "1")
    assert re.search(r"cl +ncl +bayesncl", out)
    assert len(re.findall(r"^\S.*\d+\.\d +\d+\.\d +\d+\.\d *$", out, re.M)) == 5
    assert (tmp_path / "bayesncl" / "model.safetensors").exists()


def test_custom(tmp_path: Path) -> None:
    out = run("custom.py", "--out", tmp_path, "--images", "200", "--epochs", "1")
    assert re.search(r"evenness of use.* 0\.\d+", out)
    share = float(re.search(r"open gates \(share\).*?(0\.\d+)", out).group(1))  # type: ignore[union-attr]
    assert abs(share - 0.5) < 0.02
