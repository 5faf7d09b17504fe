"""The dataset `arrays`: images from .npz and .npy files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayesncl import data
from bayesncl.errors import InputError
from tests.data.conftest import of

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)


def load(path: Path, split: str = "train", holdout: float = 0.0) -> data.Images:
    return data.load(of("arrays", path, 16, holdout=holdout), split)


def test_splits_are_disjoint_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=PIXELS, labels=np.arange(20), backgrounds=np.arange(20) % 2)
    train, test = (load(path, split, 0.25) for split in ("train", "test"))
    assert len(test) == 5 and sorted([*train.labels, *test.labels]) == list(range(20))
    for images in (train, test):
        assert (images.pixels == PIXELS[images.labels].transpose(0, 3, 1, 2)).all()
        assert (images.backgrounds == images.labels % 2).all()


def test_class_names_are_printable(tmp_path: Path) -> None:
    names = np.array(["<b>a</b>", "x" * 10_000 + "\x1b"])
    np.savez_compressed(tmp_path / "a.npz", images=PIXELS, y=np.arange(20) % 2, class_names=names)
    first, second = load(tmp_path / "a.npz").class_names
    assert first == "<b>a</b>" and len(second) <= 400 and second.isprintable()


def test_layouts_and_floats_agree(tmp_path: Path) -> None:
    first = PIXELS.transpose(0, 3, 1, 2)
    for images in (first, (PIXELS / 255).astype(np.float32), first / 255):
        np.savez(tmp_path / "a.npz", images=images)
        assert (load(tmp_path / "a.npz").pixels == first).all()
    np.save(tmp_path / "a.npy", PIXELS)
    mapped = load(tmp_path / "a.npy").pixels
    assert isinstance(mapped, np.memmap) and (mapped == first).all()


NAN = PIXELS / np.float32(255)
NAN[3, 0, 0, 0] = np.nan
WORDS = np.array(["sea", "sky"] * 10)


@pytest.mark.parametrize(
    "arrays",
    [
        {"pictures": PIXELS},
        {"images": PIXELS.astype(np.int32)},
        {"images": NAN},
        {"images": PIXELS.astype(np.float32)},
        {"images": PIXELS[:1]},
        {"images": PIXELS, "labels": np.arange(19)},
        {"images": PIXELS, "labels": np.linspace(0, 1, 20)},
        {"images": PIXELS, "labels": WORDS, "class_names": np.array(["a"])},
        {"images": PIXELS, "labels": np.arange(20), "class_names": np.array(["a", "b"])},
    ],
)
def test_bad_arrays_get_one_line(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=r"a\.npz") as caught:
        load(tmp_path / "a.npz")
    assert "\n" not in str(caught.value)


def test_words_and_numbers_with_gaps_are_labels(tmp_path: Path) -> None:
    test = {"test_images": PIXELS[:3], "test_labels": np.array(["fig", "kiwi", "fig"])}
    words, gaps = np.array(["plum", "fig"] * 10), np.array([64_000_000, 5] * 10)
    np.savez(tmp_path / "a.npz", images=PIXELS, y=words, backgrounds=gaps, **test)
    train, test = (load(tmp_path / "a.npz", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (20, 3)
    assert train.class_names == test.class_names == ("fig", "kiwi", "plum")
    assert train.labels.tolist() == [2, 0] * 10 and test.labels.tolist() == [0, 1, 0]
    assert train.backgrounds.tolist() == [1, 0] * 10
    assert train.background_names == ("5", "64000000")
