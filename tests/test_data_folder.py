from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl import data, recipes
from bayesncl.data import decode, imagenet100, images
from bayesncl.data.decode import Square, Undecodable
from bayesncl.errors import InputError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def of(root: Path, **more: object) -> recipes.Data:
    return recipes.Data(**{"name": "folder", "root": str(root), "size": 8, **more})  # type: ignore[arg-type]


def flat(value: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def save(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flat(value).save(path)


def packed(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


# Decoding


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "JPEG"])
def test_every_format(kind: str) -> None:
    got = decode.decode(packed(flat(77), kind, **({"lossless": True} if kind == "WEBP" else {})), Square(8, 8))
    assert got.shape == (3, 8, 8)
    assert np.abs(got.astype(int) - 77).max() <= 1


def test_only_the_first_frame_of_a_gif() -> None:
    raw = packed(flat(10), "GIF", save_all=True, append_images=[flat(200)])
    assert (decode.decode(raw, Square(8, 8)) == 10).all()


def test_sixteen_bits_are_scaled() -> None:
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for kind in ("PNG", "TIFF"):
        got = decode.decode(packed(Image.fromarray(values), kind), Square(8, 8))
        assert np.abs(got[0] - values / 257.0).max() <= 0.5
    dark = np.full((8, 8), 200, np.uint16)  # 16 bits stay 16 bits where all values are small
    assert (decode.decode(packed(Image.fromarray(dark), "PNG"), Square(8, 8)) == 1).all()


def test_float_and_integer_tiffs() -> None:
    for values, want in (
        (np.full((8, 8), 0.5, np.float32), 128),
        (np.full((8, 8), 200, np.float32), 200),
        (np.full((8, 8), 200, np.int32), 200),
        (np.full((8, 8), 32896, np.int32), 128),
    ):
        assert (decode.decode(packed(Image.fromarray(values), "TIFF"), Square(8, 8)) == want).all()
    with pytest.raises(Undecodable, match="NaN"):
        decode.decode(packed(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"), Square(8, 8))


def test_transparency_is_laid_on_white() -> None:
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    assert (decode.decode(packed(clear, "PNG"), Square(8, 8)) == 255).all()
    half = Image.new("LA", (8, 8), (0, 128))
    assert np.abs(decode.decode(packed(half, "PNG"), Square(8, 8)).astype(int) - 127).max() <= 1
    palette = flat(50).quantize(4)
    assert (decode.decode(packed(palette, "PNG", transparency=palette.getpixel((0, 0))), Square(8, 8)) == 255).all()
    assert (decode.decode(packed(palette, "PNG"), Square(8, 8)) == 50).all()


def test_grey_cmyk_and_one_bit() -> None:
    assert (decode.decode(packed(flat(90).convert("L"), "PNG"), Square(8, 8)) == 90).all()
    assert (decode.decode(packed(flat(255).convert("1"), "PNG"), Square(8, 8)) == 255).all()
    cmyk = decode.decode(packed(flat(90).convert("CMYK"), "JPEG"), Square(8, 8))
    assert np.abs(cmyk.astype(int) - 90).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation(orientation: int) -> None:
    scene = Image.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    upright = np.asarray(scene).transpose(2, 0, 1)
    how = Image.Transpose  # what a camera did that held its sensor so
    stored_by = {2: how.FLIP_LEFT_RIGHT, 3: how.ROTATE_180, 4: how.FLIP_TOP_BOTTOM, 5: how.TRANSPOSE, 6: how.ROTATE_90}
    stored_by |= {7: how.TRANSVERSE, 8: how.ROTATE_270}
    stored = scene.transpose(stored_by[orientation]) if orientation > 1 else scene
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = packed(stored, "PNG", exif=exif)
    assert (decode.decode(raw, Square(8, 8)) == upright).all()


def test_resize_and_crop_agree_with_resize_then_crop() -> None:
    """Slow twin: Pillow's resize of the whole image, then its crop."""
    y, x = np.mgrid[:60, :92]
    smooth = np.stack([127 + 120 * np.sin(x / 9), 127 + 120 * np.cos(y / 7), (x + y) * 1.6], -1).astype(np.uint8)
    for (width, height), resize, crop in (((92, 60), 30, 30), ((90, 60), 32, 28), ((60, 60), 16, 16)):
        image = Image.fromarray(smooth[:height, :width])
        whole = image.resize((round(width * resize / height), resize), Image.Resampling.BICUBIC)
        left, top = (whole.width - crop) // 2, (whole.height - crop) // 2
        want = np.asarray(whole.crop((left, top, left + crop, top + crop))).astype(int)
        got = decode.decode(packed(image, "PNG"), Square(resize, crop)).transpose(1, 2, 0).astype(int)
        assert np.abs(got - want)[1:-1, 1:-1].max() <= 4
        assert np.abs(got - want).mean() < 1


def test_large_jpegs_are_reduced_while_decoding() -> None:
    y, x = np.mgrid[:800, :1000]
    scene = Image.fromarray(np.stack([x / 4, y / 4, (x + y) / 8], -1).astype(np.uint8))
    got = decode.decode(packed(scene, "JPEG", quality=95), Square(32, 32)).astype(int)
    want = decode.decode(packed(scene, "PNG"), Square(32, 32)).astype(int)
    assert np.abs(got - want).max() <= 4


def test_bombs_and_strips_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    header = (50_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Undecodable):
            decode.decode(bomb, Square(8, 8))
        strip = packed(Image.new("L", (60_000, 1)), "PNG")
        assert decode.decode(strip, Square(64, 64)).shape == (3, 64, 64)
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    monkeypatch.setattr(decode, "MOST_PIXELS", 63)
    with pytest.raises(Undecodable, match="8 x 8 pixels, more than 63"):
        decode.decode(packed(flat(0), "PNG"), Square(8, 8))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "F"])
def test_strips_do_not_show(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    if mode in ("I;16", "F"):
        values = rng.integers(0, 65536, (30, 20)).astype(np.uint16)
        image = Image.fromarray(values if mode == "I;16" else values.astype(np.float32) / 65535)
    else:
        image = Image.fromarray(rng.integers(0, 256, (30, 20, 4), dtype=np.uint8), "RGBA").convert(mode)
        if mode == "P":
            image.info["transparency"] = 3
    whole = decode.to_rgb(image).tobytes()
    monkeypatch.setattr(decode, "STRIP", 70)
    assert decode.to_rgb(image).tobytes() == whole


def test_small_files_of_many_pixels(tmp_path: Path) -> None:
    """Files of some 100 kB: refused if too large; those that are not are decoded one at a time."""
    for name, side in (("a", 7_000), ("b", 7_000), ("c", 9_000)):
        Image.new("1", (side, side)).save(tmp_path / f"{name}.png")
    script = (
        "import sys, resource; from bayesncl import data, recipes;"
        "data.load(recipes.Data(name='folder', root=sys.argv[1], holdout=0), 'train');"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert "c.png (9000 x 9000 pixels, more than 50,000,000)" in done.stderr
    assert int(done.stdout) < 1_300_000  # kB; 1.7 GB if they were decoded at once


def test_other_formats_are_not_tried() -> None:
    for raw in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"P6 2 2 255\n" + bytes(12), b"", b"<svg/>"):
        with pytest.raises(Undecodable, match="not a JPEG"):
            decode.decode(raw, Square(8, 8))


def test_mutated_images_never_escape() -> None:
    """Whatever is done to the bytes: pixels or Undecodable, nothing else. The fault harness runs 10,000."""
    rnd = random.Random(0)
    scene = Image.fromarray(RNG.integers(0, 256, (24, 24, 3), dtype=np.uint8))
    seeds = [packed(scene, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")]
    read = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(600):
            raw = bytearray(seeds[i % len(seeds)])
            for _ in range(rnd.randrange(1, 8)):
                raw[rnd.randrange(len(raw))] = rnd.randrange(256)
            if rnd.random() < 0.2:
                del raw[rnd.randrange(len(raw)) :]
            try:
                assert decode.decode(bytes(raw), Square(8, 8)).shape == (3, 8, 8)
                read += 1
            except Undecodable:
                pass
    assert 0 < read < 600


# Folders


def test_class_folders_nested_and_held_out(tmp_path: Path) -> None:
    root = tmp_path / "photos with spaces and ünïcode"
    for i in range(20):
        save(root / ("cat" if i % 2 else "dog") / f"deep{i % 3}" / f"{i}.png", i)
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / ".hidden").mkdir()
    save(root / ".hidden" / "x.png", 99)
    train, test = data.load(of(root, holdout=0.25), "train"), data.load(of(root, holdout=0.25), "test")
    assert (len(train), len(test)) == (15, 5)
    assert train.class_names == ("cat", "dog")
    values = []
    for part in (train, test):
        assert isinstance(part.pixels, np.memmap)
        assert part.labels is not None
        assert part.names is not None
        for pixels, label, name in zip(part.pixels, part.labels, part.names):
            value = int(Path(name).stem)
            values.append(value)
            assert (pixels == value).all()
            assert label == (0 if value % 2 else 1)
    assert sorted(values) == list(range(20))


def test_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "d" / f"{i}.PNG", i)
    got = data.load(of(tmp_path / "d", holdout=0.0), "train")
    assert got.labels is None
    assert got.class_names is None
    assert got.names == ("0.PNG", "1.PNG", "2.PNG", "3.PNG", "4.PNG")
    with pytest.raises(InputError, match=r"data\.holdout is 0"):
        data.load(of(tmp_path / "d", holdout=0.0), "test")
    save(tmp_path / "d" / "sub" / "5.png", 5)
    with pytest.warns(UserWarning, match="taken as unlabelled"):
        assert data.load(of(tmp_path / "d", holdout=0.0), "train").labels is None


@pytest.mark.parametrize("other", ["test", "val"])
def test_split_folders_share_class_numbers(tmp_path: Path, other: str) -> None:
    for i, name in enumerate(("ant", "bee", "cow")):
        save(tmp_path / "d" / "train" / name / "a.png", i)
        save(tmp_path / "d" / other / name / "b.png", i)
    (tmp_path / "d" / other / "ant" / "b.png").unlink()
    test = data.load(of(tmp_path / "d"), "test")
    assert test.class_names == ("ant", "bee", "cow")
    assert list(test.labels if test.labels is not None else []) == [1, 2]
    assert len(data.load(of(tmp_path / "d"), "train")) == 3


def test_train_is_a_class_among_others_and_a_split_alone(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / "d" / "train" / "x" / f"{i}.png", i)
    assert data.load(of(tmp_path / "d"), "train").class_names == ("x",)
    save(tmp_path / "d" / "bus" / "3.png", 3)
    assert data.load(of(tmp_path / "d"), "train").class_names == ("bus", "train")


def test_held_out_choice_is_stable() -> None:
    names = [f"{i}.png" for i in range(200)]
    first = {n for n, o in zip(names, images.held_out(names, 0.2, 0)) if o}
    assert len(first) == 40
    shuffled = random.Random(1).sample(names, 200)
    assert {n for n, o in zip(shuffled, images.held_out(shuffled, 0.2, 0)) if o} == first
    assert {n for n, o in zip(names, images.held_out(names, 0.2, 1)) if o} != first
    more = [*names, "new.png"]
    assert len({n for n, o in zip(more, images.held_out(more, 0.2, 0)) if o} ^ first) <= 2
    assert images.held_out(["a", "b"], 0.01, 0).sum() == 1


def test_undecodable_files_are_named_and_skipped(tmp_path: Path) -> None:
    for i in range(6):
        save(tmp_path / "d" / "a" / f"{i}.png", i)
    for i in range(7):
        (tmp_path / "d" / "a" / f"bad{i}.jpg").write_bytes(b"garbage")
    for i in range(2):
        (tmp_path / "d" / "a" / f"{i}.HEIC").write_bytes(b"a phone's")
    for _ in range(2):  # decoded, then from the cache
        with pytest.warns(UserWarning, match=r": 9 files skipped: 2 .heic, 7 broken, e.g. a/bad0.jpg \("):
            got = data.load(of(tmp_path / "d", holdout=0.0), "train")
        assert [int(p[0, 0, 0]) for p in got.pixels] == list(range(6))
        assert got.names == tuple(f"a/{i}.png" for i in range(6))
    with pytest.raises(InputError, match=r"7 of 13 .* a/bad0.jpg"):
        data.load(of(tmp_path / "d", holdout=0.0, strict=True), "train")


def test_bad_folders_get_one_line(tmp_path: Path) -> None:
    root = tmp_path / "d"
    with pytest.raises(InputError, match=r"/d: no such folder"):
        data.load(of(root), "train")
    root.mkdir()
    with pytest.raises(InputError, match="no image files"):
        data.load(of(root), "train")
    save(root / "1.png", 1)
    for split in ("train", "test"):
        with pytest.raises(InputError, match="one image"):
            data.load(of(root), split)
    with pytest.raises(InputError, match="expected a folder"):
        data.load(of(root / "1.png"), "train")
    for name in ("folder", "imagenet100", "cifar10", "waterbirds", "shards", "arrays"):
        with pytest.raises(InputError, match="--data"):
            data.load(recipes.Data(name=name), "train")
        with pytest.raises(InputError, match=r"no such f|home directory"):
            data.load(recipes.Data(name=name, root="~nobody-of-this-name/x"), "train")
        with pytest.raises(InputError):
            data.load(recipes.Data(name=name, root="x" * 10_000), "train")
    for hostile in ("x" * 10_000, "a\0b", "\x1b[31m"):
        with pytest.raises(InputError) as caught:
            data.load(of(root / hostile), "train")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000
    (root / "1.png").unlink()
    for i in range(3):
        (root / f"{i}.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="3 files skipped"), pytest.raises(InputError, match="none of the 3 files"):
        data.load(of(root, holdout=0.0), "train")


def test_hostile_names(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>"[:20].replace("/", ""), "\x1b[31mred\n", "日本語", "x" * 200, "-rf", "a b"]
    for i, name in enumerate(names):
        save(tmp_path / "d" / name / f"{name}.png"[-250:], i)
    os.makedirs(os.fsencode(tmp_path / "d") + b"/\xff\xfe")
    (Path(os.fsdecode(os.fsencode(tmp_path / "d") + b"/\xff\xfe")) / "x.png").write_bytes(packed(flat(9), "PNG"))
    got = data.load(of(tmp_path / "d", holdout=0.0), "train")
    assert len(got) == 7
    assert got.class_names is not None
    assert got.names is not None
    for name in got.class_names + got.names:
        assert name.isprintable()
        name.encode("utf-8")
    assert r"\x1b[31mred\n" in got.class_names
    assert "日本語" in got.class_names


def test_links_are_followed_without_loops(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for i in range(4):
        save(store / f"{i}.png", i)
    root = tmp_path / "d"
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    for i in range(4):
        (root / ("a" if i % 2 else "b") / f"{i}.png").symlink_to(store / f"{i}.png")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to(".")
    (root / "a" / "none.png").symlink_to("nowhere.png")
    (root / "a" / "knot.png").symlink_to("knot.png")
    os.mkfifo(root / "a" / "pipe.png")
    got = data.load(of(root, holdout=0.0), "train")
    assert got.names == ("a/1.png", "a/3.png", "b/0.png", "b/2.png")


# ImageNet-100


def test_imagenet100_out_of_a_larger_set(tmp_path: Path) -> None:
    wnids = imagenet100.classes()
    assert len(set(wnids)) == 100
    assert all(w[0] == "n" and len(w) == 9 for w in wnids)
    for i, wnid in enumerate([*wnids, "n00000000"]):
        for split in ("train", "val"):
            folder = tmp_path / "in" / split / wnid
            folder.mkdir(parents=True)
            (folder / "x.JPEG").write_bytes(packed(flat(2 * i, (20, 16)), "JPEG", quality=95))
    where = recipes.Data(name="imagenet100", root=str(tmp_path / "in"), size=32)
    train, test = data.load(where, "train"), data.load(where, "test")
    assert train.pixels.shape == (100, 3, 32, 32)
    assert test.pixels.shape == (100, 3, 28, 28)
    for part in (train, test):
        assert list(part.labels if part.labels is not None else []) == list(range(100))
        assert np.abs(part.pixels[:, 0, 9, 9] - 2.0 * np.arange(100)).max() <= 2
        assert part.class_names == wnids
    shutil.rmtree(tmp_path / "in" / "train" / wnids[3])
    with pytest.raises(InputError, match=f"1 of the 100 classes have no images, the first is {wnids[3]}"):
        data.load(where, "train")
    shutil.rmtree(tmp_path / "in" / "val")
    with pytest.raises(InputError, match="no folder val"):
        data.load(where, "test")
