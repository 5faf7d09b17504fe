"""The built-in scenes: balance, disjoint digits, and pixels against a slow twin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bayesncl import data, recipes
from bayesncl.data import scenes
from bayesncl.errors import InputError

DATA = recipes.Data(name="scenes", train_images=1000, test_images=400)


def test_same_seed_same_bytes_other_seed_other_bytes() -> None:
    first, again = data.load(DATA, "train"), data.load(DATA, "train")
    scenes._bank.cache_clear()
    fresh = data.load(DATA, "train")
    assert (first.pixels == again.pixels).all()
    assert (first.pixels == fresh.pixels).all()
    other = data.load(dataclasses.replace(DATA, seed=1), "train")
    assert (first.pixels != other.pixels).mean() > 0.5


@pytest.mark.parametrize("tied", [0.0, 0.5, 0.95, 1.0])
def test_share_of_tied_objects_is_exact(tied: float) -> None:
    plan = scenes.plan(dataclasses.replace(DATA, tied=tied), "train")
    assert (plan.labels == plan.backgrounds).sum() == round(tied * 1000)
    assert (np.bincount(plan.labels, minlength=10) == 100).all()


def test_test_split_is_balanced_over_object_and_background() -> None:
    plan = scenes.plan(DATA, "test")
    assert (np.bincount(plan.labels * 10 + plan.backgrounds, minlength=100) == 4).all()


def test_training_never_sees_a_test_digit() -> None:
    big = dataclasses.replace(DATA, train_images=5000, test_images=5000)
    for seed in (0, 1):
        train = scenes.plan(dataclasses.replace(big, seed=seed), "train").digits
        assert not set(train) & set(scenes.plan(big, "test").digits)
    _, targets, for_test = scenes.digits()
    plan = scenes.plan(big, "test")
    assert (targets[plan.digits] == plan.labels).all()
    assert 0.15 < for_test.mean() < 0.25


def test_val_is_balanced_and_shows_digits_of_training() -> None:
    plan = scenes.plan(dataclasses.replace(DATA, tied=0.95), "val")
    assert (np.bincount(plan.labels * 10 + plan.backgrounds, minlength=100) == 10).all()
    assert not scenes.digits()[2][plan.digits].any()


def test_patterns_can_be_seen() -> None:
    for kind in ("stripes", "checks", "dots", "gradient"):
        patches = scenes._texture(kind, 200, 32, np.random.default_rng(0)).astype(int)
        spans = patches.max((2, 3)) - patches.min((2, 3))  # [200, 3]
        assert spans.min() >= 57  # 60 but for rounding and the pixels at a gradient's ends
        assert patches.min() >= 30 and patches.max() <= 200


def test_redraw_changes_the_background_and_keeps_the_object() -> None:
    images, other = data.load(DATA, "test"), scenes.redraw(DATA, "test")
    assert (other.backgrounds != images.backgrounds).all()
    assert (other.labels == images.labels).all()
    inside = _slow_fill(scenes.plan(DATA, "test"), 32)[:60] > 0.9999  # the object covers these
    assert inside.mean() > 0.03
    same = (images.pixels == other.pixels).all(1)[:60]
    assert same[inside].all()
    assert not same[~inside].all()


def _slow_fill(plan: scenes.Plan, size: int) -> np.ndarray:
    """Masks of the first 60 objects, pixel by pixel, bilinear in the zero-padded digit."""
    fill = np.zeros((len(plan.labels), size, size))
    masks = scenes.digits()[0][0].astype(float)
    grid = masks.shape[-1]
    for i, digit in enumerate(plan.digits[:60]):
        side = plan.scales[i] * size
        top, left = plan.positions[i] * (size - side)
        for r in range(size):
            for c in range(size):
                y, x = (r + 0.5 - top) / side * 8 + 1.5, (c + 0.5 - left) / side * 8 + 1.5
                value = 0.0
                for a in (int(np.floor(y)), int(np.floor(y)) + 1):
                    for b in (int(np.floor(x)), int(np.floor(x)) + 1):
                        if 0 <= a < grid and 0 <= b < grid:
                            value += (1 - abs(y - a)) * (1 - abs(x - b)) * masks[digit, a, b]
                fill[i, r, c] = min(max(value * 2.2 - 0.5, 0), 1)
    return fill


def test_pixels_are_tint_where_the_object_is() -> None:
    images, plan = data.load(DATA, "test"), scenes.plan(DATA, "test")
    fill = _slow_fill(plan, 32)
    for i in range(60):
        inside = fill[i] > 0.9999
        assert inside.any()
        assert np.abs(images.pixels[i][:, inside] - plan.tints[i][:, None]).max() <= 1.5


def test_objects_are_learnable_and_backgrounds_too() -> None:
    """A nearest neighbor on pixels beats chance for both labels when nothing is tied."""
    loose = dataclasses.replace(DATA, train_images=4000, test_images=400, tied=0.1)
    train, test = data.load(loose, "train"), data.load(loose, "test")
    a, b = (x.pixels.reshape(len(x), -1).astype(np.float32) / 255 for x in (train, test))
    nearest = ((b**2).sum(1)[:, None] - 2 * b @ a.T + (a**2).sum(1)).argmin(1)
    assert (train.labels[nearest] == test.labels).mean() > 0.13
    assert (train.backgrounds[nearest] == test.backgrounds).mean() > 0.3
    # Template matching on the undistorted digits tells their class.
    masks, targets, for_test = scenes.digits()
    flat = masks[0].reshape(len(targets), -1)
    match = (flat[for_test] @ flat[~for_test].T / np.linalg.norm(flat[~for_test], axis=1)).argmax(1)
    assert (targets[~for_test][match] == targets[for_test]).mean() > 0.95


def test_other_sizes_and_progress() -> None:
    seen: list[tuple[int, int, str]] = []
    for size in (8, 48):
        small = dataclasses.replace(DATA, size=size, train_images=7)
        images = data.load(small, "train", lambda *step: seen.append(step))
        assert images.pixels.shape == (7, 3, size, size) and len(images.background_names) == 10
    assert seen[-1][:2] == (7, 7)


def test_too_many_scenes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("train_images", "test_images"):
        with pytest.raises(InputError, match=what):
            dataclasses.replace(DATA, **{what: 10**9})
    monkeypatch.setattr("bayesncl.inputs.physical_memory", lambda: 2_000_000)
    with pytest.raises(InputError, match="memory"):
        data.load(DATA, "train")


def test_unknown_split_and_name() -> None:
    with pytest.raises(InputError, match="val"):
        data.load(DATA, "valid")
    with pytest.raises(InputError, match="scenes"):
        data.load(dataclasses.replace(DATA, name="sceens"), "train")
