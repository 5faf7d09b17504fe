"""Decoding image files: formats, orientation, transparency, size limits, damage."""

import io
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from bayesncl.data.decode import Square, Undecodable
from bayesncl.data.decode import decode as decode_file

RNG = np.random.default_rng(0)
EIGHT = Square(8, 8)


def decode(data: bytes, square: Square) -> np.ndarray:
    return decode_file(data, square.cut, square.min_side)


def flat(value: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def pack(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "JPEG", "AVIF", "HEIF"])
def test_every_format(kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow without AVIF")
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    raw = pack(flat(77, (64, 64)), kind, **({"lossless": True} if kind == "WEBP" else {}))
    pixels = decode(raw, EIGHT)
    assert pixels.shape == (3, 8, 8) and np.abs(pixels.astype(int) - 77).max() <= 2


def test_other_formats_are_not_tried() -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    for raw in (postscript, b"P6 2 2 255\n" + bytes(12), b"", b"<svg/>"):
        with pytest.raises(Undecodable, match="not an image"):
            decode(raw, EIGHT)


def test_more_than_eight_bits_are_scaled() -> None:
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for kind in ("PNG", "TIFF"):
        pixels = decode(pack(Image.fromarray(values), kind), EIGHT)
        assert np.abs(pixels[0] - values / 257.0).max() <= 0.5
    for value, dtype, expected in [
        (200, np.uint16, 1), (0.5, np.float32, 128), (200, np.float32, 200), (200, np.int32, 200),
        (32896, np.int32, 128),
    ]:  # fmt: skip
        image = Image.fromarray(np.full((8, 8), value, dtype))
        assert (decode(pack(image, "TIFF"), EIGHT) == expected).all()
    with pytest.raises(Undecodable, match="NaN"):
        decode(pack(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"), EIGHT)


def test_transparency_is_laid_on_white() -> None:
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    assert (decode(pack(clear, "PNG"), EIGHT) == 255).all()
    half = Image.new("LA", (8, 8), (0, 128))
    assert np.abs(decode(pack(half, "PNG"), EIGHT).astype(int) - 127).max() <= 1
    palette = flat(50).quantize(4)
    raw = pack(palette, "PNG", transparency=palette.getpixel((0, 0)))
    assert (decode(raw, EIGHT) == 255).all()
    assert (decode(pack(palette, "PNG"), EIGHT) == 50).all()


def test_exif_orientation() -> None:
    scene, exif = Image.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)), Image.Exif()
    inverses = (0, 3, 1, 5, 2, 6, 4)  # of orientations 2 to 8, as members of Image.Transpose
    for orientation, inverse in enumerate(inverses, 2):
        exif[0x0112] = orientation
        pixels = decode(pack(scene.transpose(inverse), "PNG", exif=exif), EIGHT)
        assert (pixels == np.asarray(scene).transpose(2, 0, 1)).all()


def test_resize_and_crop_agree_with_resize_then_crop() -> None:
    """Slow twin: Pillow's resize of the whole image, then its crop."""
    y, x = np.mgrid[:60, :92]
    waves = [127 + 120 * np.sin(x / 9), 127 + 120 * np.cos(y / 7), (x + y) * 1.6]
    smooth = np.stack(waves, -1).astype(np.uint8)
    for width, resize, crop in [(92, 30, 30), (90, 32, 28), (60, 16, 16)]:
        image = Image.fromarray(smooth[:, :width])
        size = (round(width * resize / 60), resize)
        whole = image.resize(size, Image.Resampling.BICUBIC)
        left, top = (whole.width - crop) // 2, (whole.height - crop) // 2
        twin = np.asarray(whole.crop((left, top, left + crop, top + crop))).astype(int)
        pixels = decode(pack(image, "PNG"), Square(resize, crop)).transpose(1, 2, 0)
        assert np.abs(pixels - twin)[1:-1, 1:-1].max() <= 4
        assert np.abs(pixels - twin).mean() < 1


@pytest.mark.filterwarnings("ignore")
def test_too_many_pixels_are_refused() -> None:
    data = bytearray(pack(flat(0), "PNG"))
    data[16:24] = (50_000).to_bytes(4, "big") * 2  # width and height in the header
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(Undecodable, match="pixels"):
        decode(bytes(data), EIGHT)
    strip = pack(Image.new("L", (60_000, 1)), "PNG")  # 64 x 3,840,000 pixels if resized whole
    assert decode(strip, Square(64, 64)).shape == (3, 64, 64)


SCENE = Image.fromarray(RNG.integers(0, 256, (24, 24, 3), dtype=np.uint8))
SEEDS = [pack(SCENE, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")]


@settings(deadline=None, max_examples=150)
@given(
    raw=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=8),
    cut=st.one_of(st.none(), st.integers(0, 1 << 12)),
)
def test_damaged_images_decode_or_raise_undecodable(raw: bytes, changes, cut) -> None:
    data = bytearray(raw)
    for at, value in changes:
        data[at % len(data)] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert decode(bytes(data[:cut]), EIGHT).shape == (3, 8, 8)
        except Undecodable:
            assert changes or cut is not None
