"""ImageNet-100 and Tiny-ImageNet in their official layouts, from made-up trees."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bayesncl import data
from bayesncl.data.imagenet import imagenet100_classes
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from tests.data.conftest import of, save

WNIDS = ("n01443537", "n01629819", "n02058221")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Class c has gray value 10 c; validation image i has class i % 3 and value 100 + i."""
    root = tmp_path / "tiny-imagenet-200"
    for c, wnid in enumerate(WNIDS):
        for i in range(4):
            save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * c, (64, 64))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("boxes")
    lines = []
    for i in range(7):
        save(root / "val" / "images" / f"val_{i}.JPEG", 100 + i, (64, 64))
        lines.append(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t62\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    save(root / "test" / "images" / "test_0.JPEG", 255, (64, 64))
    return root


def load(root: Path, split: str) -> Images:
    return data.load(of("tinyimagenet", root, 64), split)


def test_both_splits(root: Path) -> None:
    train, test = (load(root, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == WNIDS
    assert train.pixels.shape == (12, 3, 64, 64) and test.pixels.shape == (7, 3, 64, 64)
    assert [int(p.mean().round()) for p in train.pixels] == [10 * c for c in train.labels]
    assert test.labels.tolist() == [i % 3 for i in range(7)]
    assert [int(p.mean().round()) for p in test.pixels] == list(range(100, 107))


def test_missing_and_damaged_files(root: Path) -> None:
    (root / "val" / "images" / "val_3.JPEG").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="val_3"):
        test = load(root, "test")
    assert (len(test), test.broken, test.labels.tolist()) == (6, 1, [0, 1, 2, 1, 2, 0])
    path = root / "val" / "val_annotations.txt"
    lines = path.read_text().replace(WNIDS[2], "n99999999")
    for text, problem in ((lines, "n99999999"), ("val_0.JPEG\n", "val_annotations")):
        path.write_text(text)
        with pytest.raises(InputError, match=problem):
            load(root, "test")
    path.unlink()
    with pytest.raises(InputError, match="val_annotations"):
        load(root, "test")
    (root / "train").rename(root / "training")
    with pytest.raises(InputError, match="train"):
        load(root, "train")


def test_imagenet100_from_a_larger_set(tmp_path: Path) -> None:
    wnids = imagenet100_classes()
    assert len(set(wnids)) == 100 and all(w[0] == "n" and len(w) == 9 for w in wnids)
    for i, wnid in enumerate([*wnids, "n00000000"]):
        for split in ("train", "val"):
            save(tmp_path / "in" / split / wnid / "x.JPEG", 2 * i, (20, 16))
    where = of("imagenet100", tmp_path / "in", 32)
    train, test = data.load(where, "train"), data.load(where, "test")
    assert train.pixels.shape == (100, 3, 32, 32) and test.pixels.shape == (100, 3, 28, 28)
    for part in (train, test):
        assert part.labels.tolist() == list(range(100)) and list(part.class_names) == wnids
        assert np.abs(part.pixels[:, 0, 9, 9] - 2.0 * np.arange(100)).max() <= 2
    shutil.rmtree(tmp_path / "in" / "train" / wnids[3])
    with pytest.raises(InputError, match=wnids[3]):
        data.load(where, "train")
    shutil.rmtree(tmp_path / "in" / "val")
    with pytest.raises(InputError, match="no folder val"):
        data.load(where, "test")
