"""Weight files: what is saved comes back, and damaged or foreign files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesncl import load
from bayesncl.errors import InputError
from bayesncl.io import digest
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.training.run_folder import model_bytes
from tests.conftest import tiny_images, tiny_recipe


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes(build_model(tiny_recipe())))
    return path


@pytest.mark.parametrize("method", ["cl", "ncl-topk", "ncl-ipw", "bayesncl"])
def test_weights_come_back(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, *(["model.top_k=4"] if method == "ncl-topk" else []))
    model = build_model(recipe)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)  # unlike a new model
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    raw = tiny_images(4).pixels
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        again = load(path)
        assert isinstance(again, Encoder) and not again.training and again.recipe == recipe
        assert all(torch.equal(t, model.state_dict()[n]) for n, t in again.state_dict().items())
        assert torch.equal(again.encode(raw), model.encode(raw))


def test_every_damage_is_noticed(saved: Path, tmp_path: Path) -> None:
    good, rng = saved.read_bytes(), np.random.default_rng(0)
    damaged = [good[:n] for n in (0, 1, 8, 100, len(good) // 2, len(good) - 1)] + [good + b"\0"]
    for place in rng.integers(0, len(good), 20):
        flipped = bytearray(good)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    expected, broken = digest(load(saved).state_dict()), tmp_path / "broken.safetensors"
    for data in damaged:
        broken.write_bytes(data)
        try:
            model = load(broken)
        except InputError as error:
            assert "broken.safetensors" in str(error)
        else:  # the bit was in the text of the recipe
            assert digest(model.state_dict()) == expected


def test_buffers_that_files_do_not_contain_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the masks and positions of some transformers."""

    class Masked(nn.Module):
        features = 8

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 8)
            self.register_buffer("mask", torch.arange(3.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mean((2, 3)) * self.mask)

    monkeypatch.setattr("bayesncl.method.encoder.build_backbone", lambda _: Masked())
    model = build_model(tiny_recipe("ncl")).eval()
    (tmp_path / "m.safetensors").write_bytes(model_bytes(model))
    found, x = load(tmp_path / "m.safetensors"), torch.rand(4, 3, 8, 8)
    assert isinstance(found, Encoder) and found(x).z.any()
    assert torch.equal(found(x).z, model(x).z)
