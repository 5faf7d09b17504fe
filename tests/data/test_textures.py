"""Textures: balanced crops, disjoint between the splits."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from bayesncl import data
from bayesncl.data import textures
from bayesncl.recipes import Data

pytest.importorskip("skimage")
DATA = Data(name="textures", train_images=240, test_images=120)


def test_splits_are_balanced_and_fixed_by_the_seed() -> None:
    train, again = data.load(DATA, "train"), data.load(DATA, "train")
    assert train.pixels.shape == (240, 3, 32, 32)
    assert train.labels is not None and train.class_names == textures.NAMES
    assert (np.bincount(train.labels) == 240 // len(textures.NAMES)).all()
    assert (train.pixels == again.pixels).all()
    other = data.load(dataclasses.replace(DATA, seed=1), "train")
    assert (other.pixels != train.pixels).mean() > 0.5


def test_crops_are_where_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """In photographs whose red channel counts columns, test crops are right of the border."""
    ramp = np.zeros((256, 400, 3), np.uint8)
    ramp[:, :, 0] = np.arange(400) * 255 // 399
    monkeypatch.setattr(textures, "_photos", lambda: [Image.fromarray(ramp)] * len(textures.NAMES))
    border = 0.7 * 255
    train, test = (data.load(DATA, split).pixels[:, 0].astype(float) for split in ("train", "test"))
    assert train.max() <= border + 2
    assert test.min() >= border - 2
    assert train.min() < 15 and test.max() > 240  # and reach into the corners
    widths = (train.max((1, 2)) - train.min((1, 2))) * 400 / 255
    assert widths.min() > 36 and widths.max() < 74


def test_the_same_crops_at_every_size() -> None:
    small, large = (data.load(dataclasses.replace(DATA, size=size), "test") for size in (32, 64))
    assert (small.labels == large.labels).all()
    halved = large.pixels.reshape(120, 3, 32, 2, 32, 2).mean((3, 5))
    assert np.abs(halved - small.pixels).mean() < 6
