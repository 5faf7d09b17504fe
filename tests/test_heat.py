"""Where a dimension fires in an image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bayesncl.errors import InputError
from bayesncl.heat import Heat, heat_maps, masking_drop, strongest_heat
from bayesncl.model import Encoder, build_model
from tests.conftest import tiny_recipe


class Positions(nn.Module):
    """Colour of each of 4 x 4 parts of an image, averaged: a backbone whose positions are known."""

    features = 3

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.AvgPool2d(8)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.parts(x)).flatten(1)


@pytest.fixture
def model() -> Encoder:
    """Three dimensions: redder, greener, bluer than grey."""
    made = Encoder(tiny_recipe("ncl"), Positions())
    made.head.projector = nn.Sequential(nn.Linear(3, 3, bias=False))
    made.head.projector[0].weight.data = torch.eye(3)
    return made.eval()


def spots(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Grey images with one red part each, and its place."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 16, n)
    pixels = np.full((n, 3, 32, 32), 140, np.uint8)
    for image, p in zip(pixels, place):
        y, x = 8 * (p // 4), 8 * (p % 4)
        image[0, y : y + 8, x : x + 8] = 255
    return pixels, place


def test_maps_are_hottest_where_the_image_is(model: Encoder) -> None:
    pixels, place = spots()
    maps = heat_maps(model, pixels, np.array([0]), batch=16)
    assert maps.shape == (40, 1, 4, 4)
    assert maps.reshape(40, 16).argmax(1).tolist() == place.tolist()
    swapped = heat_maps(model, pixels[:, [1, 0, 2]], np.tile([1, 0], (40, 1)))
    assert np.allclose(swapped[:, 0] - swapped[:, 0].min(), maps[:, 0] - maps[:, 0].min(), atol=0.3)


def test_masking_the_hottest_quarter_lowers_the_dimension_more_than_chance(model: Encoder) -> None:
    pixels, _ = spots()
    drop = masking_drop(model, pixels)
    assert drop["images"] == 40
    assert drop["hottest"] > drop["random"] + 0.05 > 0.05 + drop["error"]


def test_maps_that_pass_the_check_are_shown_of_the_strongest_dimensions(model: Encoder) -> None:
    pixels, place = spots()
    z = model.encode(pixels, gated=False).numpy()
    heat = strongest_heat(model, pixels, z, 2)
    assert isinstance(heat, Heat)
    assert (heat.dims == np.argsort(-z, axis=1, kind="stable")[:, :2]).all()
    assert heat.maps[:, 0].reshape(40, 16).argmax(1).tolist() == place.tolist()
    assert (heat.maps.max((2, 3)) == 255).all()


def test_maps_that_fail_the_check_are_not_shown(model: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def coldest(*args: object) -> np.ndarray:
        return -heat_maps(*args)

    monkeypatch.setattr("bayesncl.heat.heat_maps", coldest)
    pixels, _ = spots()
    answer = strongest_heat(model, pixels, model.encode(pixels, gated=False).numpy())
    assert isinstance(answer, str)
    assert "mean nothing" in answer


def test_our_encoder_gives_maps_and_stays_as_it_was() -> None:
    encoder = build_model(tiny_recipe())
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    was = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    assert heat_maps(encoder, pixels, np.arange(3)).shape[:2] == (6, 3)
    assert all((was[name] == tensor).all() for name, tensor in encoder.state_dict().items())
    assert encoder.training


def test_a_backbone_without_positions_is_told(model: Encoder) -> None:
    model.backbone = nn.Flatten()
    assert strongest_heat(model, spots()[0], np.ones((40, 3))) == "its backbone gives no features by position"
    with pytest.raises(InputError, match="no features by position"):
        heat_maps(model, spots()[0], np.array([0]))
