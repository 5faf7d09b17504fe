"""Heatmaps: where in an image a dimension is active."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from bayesncl.codes.heat import (
    HeatmapModel,
    Heatmaps,
    compute_maps,
    heatmaps_of_run,
    masking_drop,
    strongest_heatmaps,
)
from bayesncl.evaluate import evaluate
from bayesncl.method.encoder import Encoder, build_model
from tests.conftest import tiny_images, tiny_recipe


class Positions(nn.Module):
    """A backbone with known positions: the mean of the colors of 4 x 4 parts."""

    features = 3

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.AvgPool2d(8)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.parts(x)).flatten(1)


@pytest.fixture
def model() -> Encoder:
    """Three dimensions: redder, greener, bluer than gray."""
    made = Encoder(tiny_recipe("ncl"), Positions())
    made.head.projector = nn.Sequential(nn.Linear(3, 3, bias=False))
    made.head.projector[0].weight.data = torch.eye(3)
    return made.eval()


def see(model: Encoder, side: int = 32) -> HeatmapModel:
    """Heatmaps of a model on images of another size than its recipe's."""
    found = heatmaps_of_run(model)
    return dataclasses.replace(found, view=dataclasses.replace(found.view, crop=side))


def spots(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gray images with one red part each, and the index of that part."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 16, n)
    pixels = np.full((n, 3, 32, 32), 140, np.uint8)
    for image, p in zip(pixels, place):
        y, x = 8 * (p // 4), 8 * (p % 4)
        image[0, y : y + 8, x : x + 8] = 255
    return pixels, place


def test_maps_are_hottest_at_the_spot(model: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And masking the hottest quarter lowers the dimension more than chance."""
    monkeypatch.setattr("bayesncl.codes.heat.BATCH_SIZE", 16)
    pixels, place = spots()
    sight = see(model)
    maps = compute_maps(sight, pixels, np.zeros((40, 1), int))
    assert maps.shape == (40, 1, 4, 4)
    assert maps.reshape(40, 16).argmax(1).tolist() == place.tolist()
    swapped = compute_maps(sight, pixels[:, [1, 0, 2]], np.tile([1, 0], (40, 1)))
    assert np.allclose(swapped[:, 0] - swapped[:, 0].min(), maps[:, 0] - maps[:, 0].min(), atol=0.3)
    drop = masking_drop(sight, pixels)
    assert drop["images"] == 40
    assert drop["hottest"] > drop["random"] + 0.05 > 0.05 + drop["error"]


def test_evaluation_reports_the_check_with_its_control() -> None:
    model = Encoder(tiny_recipe("ncl", "data.name=arrays"), Positions()).eval()
    result = evaluate(model, tiny_images(60), tiny_images(50, seed=1))
    sight, pixels = heatmaps_of_run(model), tiny_images(50, seed=1).pixels
    drop = masking_drop(sight, pixels)
    assert result.heat == drop
    assert result["heat/hottest"].value == drop["hottest"]
    assert result.chance["heat"] == {"hottest": drop["random"]}


def test_maps_of_the_strongest_dimensions(
    model: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of larger images they cover the center; maps that fail the check are not shown."""
    monkeypatch.setattr("bayesncl.codes.heat.N_STRONGEST", 2)
    pixels, place = spots()
    framed = np.pad(pixels, ((0, 0), (0, 0), (4, 4), (4, 4)), constant_values=140)
    z = model.encode(pixels, gated=False).numpy()
    for images, share in ((pixels, 1), (framed, 32 / 40)):
        heat = strongest_heatmaps(see(model), images, z)
        assert isinstance(heat, Heatmaps) and heat.share == share
        assert (heat.dims == np.argsort(-z, axis=1, kind="stable")[:, :2]).all()
        assert heat.maps[:, 0].reshape(40, 16).argmax(1).tolist() == place.tolist()
        assert (heat.maps.max((2, 3)) == 255).all()
    monkeypatch.setattr("bayesncl.codes.heat.compute_maps", lambda *given: -compute_maps(*given))
    answer = strongest_heatmaps(see(model), pixels, z)
    assert isinstance(answer, str) and "not meaningful" in answer


def test_maps_leave_the_encoder_unchanged() -> None:
    encoder = build_model(tiny_recipe())
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    was = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    sight = see(encoder, 64)
    assert compute_maps(sight, pixels, np.tile(np.arange(3), (6, 1))).shape[:2] == (6, 3)
    assert all((was[name] == tensor).all() for name, tensor in encoder.state_dict().items())
    assert encoder.training
    assert not any(module._forward_hooks for module in encoder.modules())


class Tokens(nn.Module):
    """Like a vision transformer: a class token, then the parts; h is the first, or their mean."""

    features = 3

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.parts, self.norm, self.first = nn.AvgPool2d(8), nn.Identity(), first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.parts(x).flatten(2).transpose(1, 2)
        tokens = self.norm(torch.cat([parts.amax(1, keepdim=True), parts], 1))
        return tokens[:, 0] if self.first else tokens[:, 1:].mean(1)


@pytest.mark.parametrize("first", [True, False])
def test_tokens_of_a_transformer_are_positions(model: Encoder, first: bool) -> None:
    model.backbone = Tokens(first)
    pixels, place = spots()
    sight = see(model)
    assert sight.layer[0] is model.backbone.norm
    maps = compute_maps(sight, pixels, np.zeros((40, 1), int))
    assert maps.reshape(40, 16).argmax(1).tolist() == place.tolist()


def test_backbone_without_positions(model: Encoder) -> None:
    model.backbone = nn.Sequential(nn.AvgPool2d(32), nn.Flatten())
    sight = see(model)
    reason = strongest_heatmaps(sight, spots()[0], np.ones((40, 3)))
    assert isinstance(reason, str) and "position" in reason
