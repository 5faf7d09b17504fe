"""Extreme settings and images: training stays finite, or stops and names the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from tests.conftest import tiny_images, tiny_recipe

MAX_WEIGHT = 1e3  # far above any weight of a tiny model after three epochs
FLAT = Images(np.full((40, 3, 16, 16), 128, np.uint8))
TWICE = Images(np.repeat(tiny_images(20).pixels, 2, 0))


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        (["objective.temperature=0.001", "gate.temperature=0.001"], tiny_images()),
        (["run.batch=2", "model.dim=1"], tiny_images(9)),
        ([], FLAT),
        ([], TWICE),
        (["gate.threshold=1.0"], tiny_images()),  # all gates closed
        (["gate.threshold=0.53"], tiny_images()),  # nearly all
        (["gate.lr=100"], tiny_images()),
    ],
)
def test_training_stays_finite(changes: list[str], images: Images, tmp_path: Path) -> None:
    model = train(tiny_recipe("bayesncl", *changes), images, tmp_path, device="cpu")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert weights.isfinite().all()
    assert weights.abs().max() < MAX_WEIGHT or "gate.lr=100" in changes
    lines = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in lines and "Infinity" not in lines


@pytest.mark.parametrize(
    "changes", [["model.rectifier=exp", "optimizer.lr=1e6"], ["optimizer.lr=1e20"]]
)
def test_overflow_stops_the_run(changes: list[str], tmp_path: Path) -> None:
    recipe = tiny_recipe("bayesncl", "optimizer.clip=false", *changes)
    with pytest.raises(InputError, match="by step"):
        train(recipe, tiny_images(), tmp_path, device="cpu")
