"""The built-in scenes: balance, disjoint digits, and pixels against a slow twin."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import ndimage

from bayesncl import data, recipes
from bayesncl.data import scenes

DATA = recipes.Data(name="scenes", train_images=1000, test_images=400)


@pytest.fixture(autouse=True)
def few_patches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Draw few background patches: that takes longest."""
    monkeypatch.setattr(scenes, "MAX_PATCHES", 16)
    scenes._bank.cache_clear()
    yield
    scenes._bank.cache_clear()


def test_same_seed_same_bytes_other_seed_other_bytes() -> None:
    first = data.load(DATA, "train")
    scenes._bank.cache_clear()
    assert (first.pixels == data.load(DATA, "train").pixels).all()
    other = data.load(dataclasses.replace(DATA, seed=1), "train")
    assert (first.pixels != other.pixels).mean() > 0.5


@pytest.mark.parametrize("tied", [0.0, 0.95, 1.0])
def test_share_of_tied_objects_is_exact(tied: float) -> None:
    plan = scenes.plan(dataclasses.replace(DATA, tied=tied), "train")
    assert (plan.labels == plan.backgrounds).sum() == round(tied * 1000)
    assert (np.bincount(plan.labels, minlength=10) == 100).all()


def test_training_never_sees_a_test_digit() -> None:
    big = dataclasses.replace(DATA, train_images=5000, test_images=5000, seed=1)
    train, test = scenes.plan(big, "train"), scenes.plan(dataclasses.replace(big, seed=0), "test")
    assert not set(train.digits) & set(test.digits)
    _, targets, for_test = scenes.digits()
    assert (targets[test.digits] == test.labels).all()
    assert 0.15 < for_test.mean() < 0.25


@pytest.mark.parametrize(("split", "each"), [("test", 4), ("val", 10)])
def test_objects_and_backgrounds_are_balanced(split: str, each: int) -> None:
    plan = scenes.plan(dataclasses.replace(DATA, tied=0.95), split)
    assert (np.bincount(plan.labels * 10 + plan.backgrounds, minlength=100) == each).all()
    assert (scenes.digits()[2][plan.digits] == (split == "test")).all()


def test_objects_are_tinted_and_stay_on_another_background() -> None:
    images, other, plan = data.load(DATA, "test"), scenes.redraw(DATA), scenes.plan(DATA, "test")
    assert (other.backgrounds != images.backgrounds).all()
    assert (other.labels == images.labels).all()
    inside = _slow_fill(plan, 32) > 0.9999  # the object covers these pixels
    assert inside.any((1, 2)).all() and inside.mean() > 0.03
    same = (images.pixels == other.pixels).all(1)[: len(inside)]
    assert same[inside].all() and not same[~inside].all()
    tints = np.broadcast_to(plan.tints[:, :, None, None], images.pixels.shape)[: len(inside)]
    error = np.abs(images.pixels[: len(inside)] - tints).max(1)
    assert error[inside].max() <= 1.5


def _slow_fill(plan: scenes.Plan, size: int) -> np.ndarray:
    """Masks of the first 20 objects, one by one, bilinear in the zero-padded digit."""
    fill, masks = np.zeros((20, size, size)), scenes.digits()[0][0].astype(float)
    for i, digit in enumerate(plan.digits[:20]):
        side = plan.scales[i] * size
        starts = plan.positions[i] * (size - side)  # top, left
        at = [(np.arange(size) + 0.5 - start) / side * 8 + 1.5 for start in starts]
        values = ndimage.map_coordinates(masks[digit], np.meshgrid(*at, indexing="ij"), order=1)
        fill[i] = np.clip(values * 2.2 - 0.5, 0, 1)
    return fill
