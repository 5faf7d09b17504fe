"""Folders of images, and holding out a test split."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from bayesncl import data
from bayesncl.data.folder import folder_classes, safe_name
from bayesncl.data.images import held_out
from bayesncl.errors import InputError
from tests.data.conftest import of, save


def load(root: Path, split: str = "train", **more: float | bool) -> data.Images:
    return data.load(of("folder", root, **more), split)


def test_class_folders_nested_and_held_out(tmp_path: Path) -> None:
    root = tmp_path / "photos with spaces and ünïcode"
    for i in range(20):
        save(root / ("dog", "cat")[i % 2] / f"deep{i % 3}" / f"{i}.png", i)
    save(root / ".hidden" / "x.png", 99)
    train, test = (load(root, split, holdout=0.25) for split in ("train", "test"))
    assert (len(train), len(test)) == (15, 5) and train.class_names == ("cat", "dog")
    for part in (train, test):
        values = np.array([int(Path(name).stem) for name in part.names])
        assert isinstance(part.pixels, np.memmap)
        assert (part.pixels == values[:, None, None, None]).all()
        assert (part.labels == 1 - values % 2).all()
    assert len({*train.names, *test.names}) == 20


def test_a_flat_folder_is_unlabeled(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "d" / f"{i}.PNG", i)
    images = load(tmp_path / "d")
    assert images.labels is None and images.class_names is None
    assert images.names == ("0.PNG", "1.PNG", "2.PNG", "3.PNG", "4.PNG")
    with pytest.raises(InputError, match=r"data\.holdout"):
        load(tmp_path / "d", "test")
    save(tmp_path / "d" / "sub" / "5.png", 5)
    with pytest.warns(UserWarning, match=r"e\.g\. 0\.PNG.*unlabeled"):
        assert load(tmp_path / "d").labels is None


@pytest.mark.parametrize("other", ["test", "val"])
def test_splits_share_class_numbers(tmp_path: Path, other: str) -> None:
    for i, name in enumerate(("ant", "bee", "cow")):
        save(tmp_path / "d" / "train" / name / "a.png", i)
        save(tmp_path / "d" / other / name / "b.png", i)
    (tmp_path / "d" / other / "ant" / "b.png").unlink()
    test = load(tmp_path / "d", "test")
    assert test.class_names == ("ant", "bee", "cow") and test.labels.tolist() == [1, 2]
    assert len(load(tmp_path / "d")) == 3
    assert folder_classes(["train/ant/a.png"], tmp_path / "d") == ["ant"]
    with pytest.warns(UserWarning, match=r"e\.g\. b\.png.*unlabeled"):
        assert folder_classes(["train/ant/a.png", "train/b.png"], tmp_path / "d") is None


def test_train_is_a_split_alone_and_a_class_among_others(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / "d" / "train" / "x" / f"{i}.png", i)
    assert load(tmp_path / "d").class_names == ("x",)
    save(tmp_path / "d" / "bus" / "3.png", 3)
    assert load(tmp_path / "d").class_names == ("bus", "train")


def test_the_held_out_choice_is_stable() -> None:
    def chosen(names: list[str], seed: int = 0) -> set[str]:
        return {name for name, out in zip(names, held_out(names, 0.2, seed)) if out}

    names = [f"{i}.png" for i in range(200)]
    assert len(chosen(names)) == 40
    assert chosen(random.Random(1).sample(names, 200)) == chosen(names)
    assert chosen(names, seed=1) != chosen(names)
    assert len(chosen([*names, "new.png"]) ^ chosen(names)) <= 2
    assert held_out(["a", "b"], 0.01, 0).sum() == 1


def test_broken_images_are_named_and_skipped(tmp_path: Path) -> None:
    for i in range(7):
        save(tmp_path / "d" / "a" / f"{i}.png", i)
        (tmp_path / "d" / "a" / f"bad{i}.jpg").write_bytes(b"garbage")
    (tmp_path / "d" / "a" / "notes.txt").write_text("not an image")
    for _ in range(2):  # decoded, then from the cache
        with pytest.warns(UserWarning, match=r"1 .txt, 7 broken\), e.g. a/bad0.jpg \("):
            images = load(tmp_path / "d")
        assert [int(p[0, 0, 0]) for p in images.pixels] == list(range(7)) and images.broken == 7
        assert images.names == tuple(f"a/{i}.png" for i in range(7))
    with pytest.raises(InputError, match=r"7 of 14 .* a/bad0.jpg"):
        load(tmp_path / "d", strict=True)


def test_hostile_names(tmp_path: Path) -> None:
    names = ["<script>alert(1)<", "\x1b[31mred\n", "日本語", "-rf", os.fsdecode(b"\xff\xfe")]
    for i, name in enumerate(names):
        save(tmp_path / "d" / name / f"{name}.png", i)
    images = load(tmp_path / "d")
    assert len(images) == 5 and images.class_names and images.names
    for name in images.class_names + images.names:
        assert name.isprintable()
        name.encode("utf-8")
    assert {r"\x1b[31mred\n", "日本語"} <= set(images.class_names)


def test_links_are_followed_without_loops(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / "store" / f"{i}.png", i)
    inside = tmp_path / "d" / "a"
    inside.mkdir(parents=True)
    links = {"0.png": tmp_path / "store/0.png", "1.png": "../../store/1.png", "up": tmp_path / "d"}
    links |= {"self": ".", "none.png": "nowhere.png", "knot.png": "knot.png"}
    for name, target in links.items():
        (inside / name).symlink_to(target)
    os.mkfifo(inside / "pipe.png")
    assert load(tmp_path / "d").names == ("a/0.png", "a/1.png")


def test_folders_that_fit_or_atlas_wrote_are_skipped(tmp_path: Path) -> None:
    save(tmp_path / "d" / "a.png", 1)
    save(tmp_path / "d" / "b.png", 2)
    for file in ("codes/codes.json", "codes/rows.json", "page/atlas.json", "page/atlas.js"):
        save((tmp_path / "d" / file).with_name("x.png"), 3)
        (tmp_path / "d" / file).touch()
    assert load(tmp_path / "d").names == ("a.png", "b.png")


def test_names_that_leave_their_folder() -> None:
    assert safe_name("./a/./b.png") == "a/b.png"
    for name in ("", ".", "/a", "..", "a/../b", "a\\b", "a\0b"):
        assert safe_name(name) is None
