"""The scripts in examples/ run, at a size that takes seconds."""

import io
import os
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

from bayesncl.measure.registry import MEASURES
from bayesncl.method.gates import GATES

ROOT = Path(__file__).parent.parent


def run(script: str, *options: str | Path) -> str:
    """Run an example in this process and return what it prints."""
    path, measures, out = ROOT / "examples" / script, list(MEASURES), io.StringIO()
    argv, paths = [str(path), *map(str, options)], {"PYTHONPATH": str(ROOT)}
    here = patch.object(sys, "argv", argv), patch.dict(os.environ, paths), patch.dict(GATES)
    with here[0], here[1], here[2], redirect_stdout(out):
        runpy.run_path(str(path), run_name="__main__")
    MEASURES[:] = measures
    return out.getvalue()


def number(pattern: str, text: str) -> float:
    """The number that a pattern finds."""
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])


def test_every_script_is_run_here() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert scripts == set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    readme = (ROOT / "examples" / "README.md").read_text()
    assert scripts == set(re.findall(r"\]\((\w+\.py)\)", readme))


def test_photos(tmp_path: Path) -> None:
    out = run("photos.py", "--out", tmp_path, "--count", "20", "--components", "8")
    assert number(r"(\d) of 8 dimensions have a name", out) >= 5
    assert re.search(r"sky/\d+\.jpg +sky ", out)
    assert (tmp_path / "codes" / "codes.safetensors").exists()


def test_embeddings() -> None:
    out = run("embeddings.py", "--rows", "800", "--components", "32")
    assert number(r"per row: ([\d.]+)", out) > 0.7  # chance is 0.1
    assert re.search(r"dimension \d: fires on \d+ rows", out)


def test_paper(tmp_path: Path) -> None:
    small = ("--images", "140", "--epochs", "1", "--methods", "cl", "bayesncl")
    out = run("paper.py", "--out", tmp_path, *small)
    assert re.search(r"cl +bayesncl", out)
    assert len(re.findall(r"^\S.*\d+\.\d +\d+\.\d *$", out, re.M)) == 5
    assert (tmp_path / "bayesncl" / "model.safetensors").exists()


def test_custom(tmp_path: Path) -> None:
    out = run("custom.py", "--out", tmp_path, "--images", "140", "--epochs", "1")
    assert re.search(r"evenness of use.* 0\.\d+", out)
    assert abs(number(r"open gates \(share\).*?(0\.\d+)", out) - 0.5) < 0.02
