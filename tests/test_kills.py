"""SIGKILL during `fit` and `atlas`: the same command then ends in the same bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bayesncl.method.encoder import build_model
from bayesncl.training.run_folder import model_bytes
from tests.commands import draw_folder
from tests.conftest import tiny_recipe

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def start(folder: Path, *words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bayesncl", *map(str, words), "--quiet"]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT)


@pytest.mark.parametrize("kind", ["fit an array", "fit photos", "atlas"])
def test_a_killed_command_ends_in_the_same_bytes(kind: str, tmp_path: Path) -> None:
    draw_folder(tmp_path / "photos")
    rows = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    (tmp_path / "m.safetensors").write_bytes(model_bytes(build_model(tiny_recipe())))
    words: list[object] = ["fit", "x.npy", "--components", 16]
    if kind != "fit an array":
        words = ["fit", "photos", "--encoder", "m.safetensors", "--components", 16]
    if kind == "atlas":
        assert start(tmp_path, *words, "-o", "codes").wait() == 0
        words = ["atlas", "codes"]
    began = time.monotonic()
    assert start(tmp_path, *words, "-o", "whole").wait() == 0
    seconds, rng = time.monotonic() - began, random.Random(kind)
    for _ in range(2):
        child = start(tmp_path, *words, "-o", "killed")
        time.sleep(rng.uniform(0.5, 0.95) * seconds)
        child.kill()
        child.wait()
    assert start(tmp_path, *words, "-o", "killed").wait() == 0
    whole, killed = (contents(tmp_path / name) for name in ("whole", "killed"))
    assert killed.keys() == whole.keys()
    assert [name for name in whole if killed[name] != whole[name]] == []
