from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from bayesncl import data, recipes
from bayesncl.errors import InputError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)


def of(path: Path, holdout: float = 0.1, size: int = 16) -> recipes.Data:
    return recipes.Data(name="arrays", root=str(path), size=size, holdout=holdout)


def test_npz_splits_are_disjoint_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=PIXELS, labels=np.arange(20), backgrounds=np.arange(20) % 2)
    train, test = data.load(of(path, 0.25), "train"), data.load(of(path, 0.25), "test")
    assert train.labels is not None
    assert test.labels is not None
    assert len(test) == 5
    assert sorted([*train.labels, *test.labels]) == list(range(20))
    for images in (train, test):
        assert images.labels is not None
        assert (images.pixels == PIXELS[images.labels].transpose(0, 3, 1, 2)).all()
        assert (images.backgrounds == images.labels % 2).all()


def test_own_test_split_and_names(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(
        path, images=PIXELS, y=np.arange(20) % 2, test_images=PIXELS[:3], test_labels=np.array([0, 1, 0]),
        class_names=np.array(["<b>a</b>", "x" * 10_000 + "\x1b"]),
    )  # fmt: skip
    train, test = data.load(of(path), "train"), data.load(of(path), "test")
    assert (len(train), len(test)) == (20, 3)
    assert list(test.labels if test.labels is not None else []) == [0, 1, 0]
    assert train.class_names is not None
    assert train.class_names[0] == "<b>a</b>"
    assert len(train.class_names[1]) <= 400
    assert train.class_names[1].isprintable()


def test_layouts_and_floats_agree(tmp_path: Path) -> None:
    first = PIXELS.transpose(0, 3, 1, 2)
    for name, images in {"u8": first, "f32": (PIXELS / 255).astype(np.float32), "f64": first / 255}.items():
        np.savez(tmp_path / f"{name}.npz", images=images)
        assert (data.load(of(tmp_path / f"{name}.npz", 0), "train").pixels == first).all()


def test_npy_is_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", PIXELS)
    images = data.load(of(tmp_path / "a.npy", 0), "train")
    assert isinstance(images.pixels, np.memmap)
    assert (images.pixels == PIXELS.transpose(0, 3, 1, 2)).all()


def test_other_sizes_are_resized(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((4, 20, 30, 3), 77, np.uint8))
    images = data.load(of(tmp_path / "a.npy", 0, size=8), "train")
    assert images.pixels.shape == (4, 3, 8, 8)
    assert (images.pixels == 77).all()


NAN = PIXELS / np.float32(255)
NAN[3, 0, 0, 0] = np.nan
BAD = {
    "no array named images": {"pictures": PIXELS},
    "expected uint8": {"images": PIXELS.astype(np.int32)},
    r"images are uint8 \[20, 16, 16\]": {"images": PIXELS[..., 0]},
    "NaN": {"images": NAN},
    "expected 0 to 1": {"images": PIXELS.astype(np.float32)},
    "one image": {"images": PIXELS[:1]},
    "no image": {"images": PIXELS[:0]},
    "labels of shape": {"images": PIXELS, "labels": np.arange(19)},
    "labels are float64, expected integers": {"images": PIXELS, "labels": np.linspace(0, 1, 20)},
    "names go into class_names": {"images": PIXELS, "labels": np.array(["cat"] * 20), "class_names": np.array(["a"])},
    "names go into background_names": {
        "images": PIXELS,
        "backgrounds": np.array(["sea", "sky"] * 10),
        "background_names": np.array(["sea", "sky"]),
    },
    "expected 0 or more": {"images": PIXELS, "labels": np.arange(20) - 1},
    "only 2 class_names": {"images": PIXELS, "labels": np.arange(20), "class_names": np.array(["a", "b"])},
    "list of strings": {"images": PIXELS, "class_names": np.arange(3)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_npz_gets_one_line(tmp_path: Path, message: str) -> None:
    np.savez(tmp_path / "a.npz", **BAD[message])
    with pytest.raises(InputError, match=f": .*{message}") as caught:  # after the path, which holds the test's name
        data.load(of(tmp_path / "a.npz", 0), "train")
    assert "\n" not in str(caught.value)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "owned"),))  # type: ignore[return-value]

    np.savez(tmp_path / "a.npz", images=np.array([Evil(), Evil()], dtype=object), allow_pickle=True)
    np.save(tmp_path / "a.npy", np.array([Evil(), Evil()], dtype=object), allow_pickle=True)
    for name in ("a.npz", "a.npy"):
        with pytest.raises(InputError):
            data.load(of(tmp_path / name), "train")
    assert not (tmp_path / "owned").exists()


def test_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((3000, 32, 32, 3), np.uint8))  # 9 MB in a few kB
    monkeypatch.setattr("bayesncl.arrays.memory", lambda: 1 << 20)
    with pytest.raises(InputError, match="would take 8 MiB, over half of free memory"):
        data.load(of(tmp_path / "a.npz"), "train")


def test_header_that_promises_too_much(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", PIXELS)
    raw = (tmp_path / "images.npy").read_bytes().replace(b"(20, 16, 16, 3), }     ", b"(2000000, 16, 16, 3), }")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", raw)
    with pytest.raises(InputError, match=r"array images: it is cut short: \[2000000, 16, 16, 3\]"):
        data.load(of(tmp_path / "a.npz"), "train")


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS)
    np.save(tmp_path / "a.npy", PIXELS)
    for suffix in ("npz", "npy"):
        raw = (tmp_path / f"a.{suffix}").read_bytes()
        for cut in range(0, len(raw), len(raw) // 20):
            (tmp_path / f"c.{suffix}").write_bytes(raw[:cut])
            with pytest.raises(InputError):
                data.load(of(tmp_path / f"c.{suffix}"), "train")
    with pytest.raises(InputError, match="no such file"):
        data.load(of(tmp_path / "none.npz"), "train")
    with pytest.raises(InputError, match="a folder, expected a file"):
        data.load(of(tmp_path), "train")
    (tmp_path / "x.txt").write_text("1,2")
    with pytest.raises(InputError, match=r"not an .npz, .npy"):
        data.load(of(tmp_path / "x.txt"), "train")


def test_no_holdout_no_test(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS)
    with pytest.raises(InputError, match=r"data\.holdout"):
        data.load(of(tmp_path / "a.npz", 0), "test")


@pytest.mark.parametrize("header", [b"{'descr': '<f8', ", b"{[]: 1}", b"(((((", b"\x00" * 20])
def test_malformed_headers_are_one_line(tmp_path: Path, header: bytes) -> None:
    """NumPy's header parser raises tokenizer, type and syntax errors over these."""
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match="cannot be read"):
        data.load(recipes.Data(name="arrays", root=str(path)), "train")


def test_large_labels_take_no_more_than_small_ones(tmp_path: Path) -> None:
    labels = np.array([64_000_000, 5] * 10)
    np.savez(tmp_path / "a.npz", images=PIXELS, y=labels, backgrounds=np.array(["sky", "sea"] * 10))
    images = data.load(of(tmp_path / "a.npz", 0), "train")
    assert images.labels is not None and images.backgrounds is not None
    assert images.labels.tolist() == [1, 0] * 10
    assert images.class_names == ("5", "64000000")
    assert images.backgrounds.tolist() == [1, 0] * 10
    assert images.background_names == ("sea", "sky")


def test_words_are_labels(tmp_path: Path) -> None:
    words = np.array(["plum", "fig"] * 10)
    np.savez(
        tmp_path / "a.npz", images=PIXELS, y=words, test_images=PIXELS[:3], test_labels=np.array(["fig", "kiwi", "fig"])
    )
    place = recipes.Data(name="arrays", root=str(tmp_path / "a.npz"), size=16)
    train, test = (data.load(place, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("fig", "kiwi", "plum")
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [2, 0] * 10
    assert test.labels.tolist() == [0, 1, 0]
