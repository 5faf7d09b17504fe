"""Shards: order, labels and splits of tar files that stay packed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl import data
from bayesncl.errors import InputError
from tests.data.conftest import of


def load(root: Path, split: str = "train", holdout: float = 0.0) -> data.Images:
    return data.load(of("shards", root, holdout=holdout), split)


def image(value: int, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (value,) * 3).save(out, kind)
    return out.getvalue()


def shard(path: Path, files: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for member in extra:
            tar.addfile(member)
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def make(root: Path, shards: int = 3, each: int = 4) -> None:
    """Image i has gray value i and class i % 3; a shard is written backwards."""
    for s in range(shards):
        files: dict[str, bytes] = {}
        for i in reversed(range(s * each, (s + 1) * each)):
            label = f"{i % 3}\n".encode()
            files |= {f"{i:04}.cls": label, f"{i:04}.png": image(i), f"{i:04}.json": b"{}"}
        shard(root / f"part-{s:03}.tar", files)


def values(got: data.Images) -> list[int]:
    return [int(p[0, 0, 0]) for p in got.pixels]


def test_order_labels_and_nothing_unpacked(tmp_path: Path) -> None:
    make(tmp_path / "s")
    got = load(tmp_path / "s")
    assert values(got) == list(range(12))
    assert (got.labels == np.arange(12) % 3).all()
    assert got.names[4] == "part-001.tar/0004.png"
    assert isinstance(got.pixels, np.memmap)
    assert {p.suffix for p in (tmp_path / "s").iterdir()} == {".tar"}


def test_held_out_and_own_splits(tmp_path: Path) -> None:
    make(tmp_path / "s")
    train, test = (load(tmp_path / "s", split, 0.25) for split in ("train", "test"))
    assert len(test) == 3 and sorted(values(train) + values(test)) == list(range(12))
    for part in (train, test):
        assert (part.labels == np.array(values(part)) % 3).all()
    make(tmp_path / "t" / "train")
    make(tmp_path / "t" / "val", shards=1)
    assert len(load(tmp_path / "t", "train", 0.25)) == 12
    assert len(load(tmp_path / "t", "test", 0.25)) == 4


def test_unlabeled_broken_and_other_members(tmp_path: Path) -> None:
    files = {"a.jpg": image(50, "JPEG"), "b.webp": image(60, "WEBP"), "c.jpg": b"no image"}
    files |= {"b.seg.png": image(1), "./dir/a.png": image(70)}
    link = tarfile.TarInfo("link.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    shard(tmp_path / "s" / "x.tar", files, link)
    with pytest.warns(UserWarning, match="1 broken"):
        got = load(tmp_path / "s")
    assert got.labels is None and got.broken == 1
    assert got.names == ("x.tar/a.jpg", "x.tar/b.webp", "x.tar/dir/a.png")


def test_labels_must_be_class_numbers(tmp_path: Path) -> None:
    for raw in (b"cat", b"-1", b"", b"9" * 30, b"\xff"):
        files = {"0.png": image(0), "0.cls": raw, "1.png": image(1), "1.cls": b"1"}
        shard(tmp_path / "s" / "x.tar", files)
        with pytest.raises(InputError, match=r"0\.cls"):
            load(tmp_path / "s")
    shard(tmp_path / "s" / "x.tar", {"0.png": image(0), "1.png": image(1), "1.cls": b"1"})
    with pytest.raises(InputError, match=r"1 of 2 images"):
        load(tmp_path / "s")


def test_damaged_shards(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    path = shard(tmp_path / "s" / "x.tar", {})
    with pytest.raises(InputError, match="no images"):
        load(tmp_path / "s")
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(InputError, match="not a readable tar file"):
        load(tmp_path / "s")
    make(tmp_path / "t", shards=1)
    whole = (tmp_path / "t" / "part-000.tar").read_bytes()
    for cut in range(600, 5000, 277):  # cut anywhere: read what is whole, or one line
        (tmp_path / "t" / "part-000.tar").write_bytes(whole[:cut])
        with pytest.raises(InputError):
            load(tmp_path / "t")
