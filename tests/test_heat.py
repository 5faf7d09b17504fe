"""Where a dimension fires in an image."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from bayesncl.evaluate import evaluate
from bayesncl.heat import Heat, Sight, as_map, find_layer, heat_maps, masking_drop, see_model, strongest_heat
from bayesncl.measure.measures import named, value
from bayesncl.model import Encoder, build_model
from bayesncl.report.tables import render
from tests.conftest import tiny_images, tiny_recipe


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


def see(model: Encoder, side: int = 32) -> Sight:
    """The sight of a model on images of another size than its recipe's."""
    return dataclasses.replace(see_model(model), side=side)


def spots(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Grey images with one red part each, and its place."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 16, n)
    pixels = np.full((n, 3, 32, 32), 140, np.uint8)
    for image, p in zip(pixels, place):
        y, x = 8 * (p // 4), 8 * (p % 4)
        image[0, y : y + 8, x : x + 8] = 255
    return pixels, place


def test_maps_are_hottest_where_the_image_is(model: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesncl.heat.BATCH", 16)
    pixels, place = spots()
    sight = see(model)
    layer = find_layer(sight, pixels)
    maps = heat_maps(sight, layer, pixels, np.array([0]))
    assert maps.shape == (40, 1, 4, 4)
    assert maps.reshape(40, 16).argmax(1).tolist() == place.tolist()
    swapped = heat_maps(sight, layer, pixels[:, [1, 0, 2]], np.tile([1, 0], (40, 1)))
    assert np.allclose(swapped[:, 0] - swapped[:, 0].min(), maps[:, 0] - maps[:, 0].min(), atol=0.3)


def test_masking_the_hottest_quarter_lowers_the_dimension_more_than_chance(model: Encoder) -> None:
    pixels, _ = spots()
    sight = see(model)
    drop = masking_drop(sight, pixels, find_layer(sight, pixels))
    assert drop["images"] == 40
    assert drop["hottest"] > drop["random"] + 0.05 > 0.05 + drop["error"]


def test_an_evaluation_has_the_check_with_its_control() -> None:
    model = Encoder(tiny_recipe("ncl", "data.name=arrays"), Positions()).eval()
    result = evaluate(model, tiny_images(60), tiny_images(50, seed=1))
    sight, pixels = see_model(model), tiny_images(50, seed=1).pixels
    drop = masking_drop(sight, pixels, find_layer(sight, pixels))
    assert result.heat == drop
    assert value(result.to_dict(), named("heat/hottest").path()) == drop["hottest"]
    assert result.chance["heat"] == {"hottest": drop["random"]}
    line = next(line for line in render(result).splitlines() if "without its hottest quarter" in line)
    assert f"{drop['hottest']:.3f}" in line
    assert f"{drop['random']:.3f}" in line


def test_maps_that_pass_the_check_are_shown_of_the_strongest_dimensions(
    model: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayesncl.heat.STRONGEST", 2)
    pixels, place = spots()
    z = model.encode(pixels, gated=False).numpy()
    heat = strongest_heat(see(model), pixels, z)
    assert isinstance(heat, Heat)
    assert (heat.dims == np.argsort(-z, axis=1, kind="stable")[:, :2]).all()
    assert heat.maps[:, 0].reshape(40, 16).argmax(1).tolist() == place.tolist()
    assert (heat.maps.max((2, 3)) == 255).all()


def test_maps_that_fail_the_check_are_not_shown(model: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def coldest(*args: object, **given: object) -> np.ndarray:
        return -heat_maps(*args, **given)

    monkeypatch.setattr("bayesncl.heat.heat_maps", coldest)
    pixels, _ = spots()
    answer = strongest_heat(see(model), pixels, model.encode(pixels, gated=False).numpy())
    assert isinstance(answer, str)
    assert "mean nothing" in answer


def test_our_encoder_gives_maps_and_stays_as_it_was() -> None:
    encoder = build_model(tiny_recipe())
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    was = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    sight = see(encoder, 64)
    assert heat_maps(sight, find_layer(sight, pixels), pixels, np.arange(3)).shape[:2] == (6, 3)
    assert all((was[name] == tensor).all() for name, tensor in encoder.state_dict().items())
    assert encoder.training
    assert not any(module._forward_hooks for module in encoder.modules())


def test_of_larger_images_the_maps_cover_the_middle(model: Encoder) -> None:
    pixels, place = spots()
    framed = np.pad(pixels, ((0, 0), (0, 0), (4, 4), (4, 4)), constant_values=140)
    heat = strongest_heat(see(model), framed, model.encode(pixels, gated=False).numpy())
    assert heat.share == 32 / 40
    assert heat.maps[:, 0].reshape(40, 16).argmax(1).tolist() == place.tolist()


class Tokens(nn.Module):
    """As vision transformers do: a token for the whole before those of the parts; h is the first, or their mean."""

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
    layer = find_layer(sight, pixels)
    assert layer[0] is model.backbone.norm
    maps = heat_maps(sight, layer, pixels, np.array([0]))
    assert maps.reshape(40, 16).argmax(1).tolist() == place.tolist()


def test_shapes_of_maps() -> None:
    f = torch.randn(2, 5, 3, 4)
    assert torch.equal(as_map(f, 5), f.permute(0, 2, 3, 1))
    assert torch.equal(as_map(f, 4), f)  # channels last
    tokens = torch.randn(2, 14, 6)
    assert torch.equal(as_map(tokens, 6), tokens[:, 5:].reshape(2, 3, 3, 6))  # five that are no part of the image
    for bad, width in ((f, 7), (tokens, 14), (torch.randn(2, 6), 6), (torch.randn(2, 1, 6), 6), (None, 3)):
        assert as_map(bad, width) is None


def test_a_backbone_without_positions_is_told(model: Encoder) -> None:
    model.backbone = nn.Sequential(nn.AvgPool2d(32), nn.Flatten())
    sight = see(model)
    assert strongest_heat(sight, spots()[0], np.ones((40, 3))) == "its encoder gives no features by position"
