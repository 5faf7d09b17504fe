"""encode(): images in every form, kept dimensions, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayesncl.errors import InputError
from bayesncl.method.encoder import Encoder, build_model
from tests.conftest import tiny_images, tiny_recipe
from tests.method.test_encoder import D, unit


@pytest.fixture(scope="module")
def model() -> Encoder:
    """With some gates open and some closed, and BatchNorm statistics that are not the initial ones."""
    model = build_model(tiny_recipe()).train()
    with torch.no_grad():
        for seed in range(3):
            model(model.normalize_pixels(torch.from_numpy(tiny_images(32, seed=seed).pixels)))
    return model.eval()


def test_encode_is_the_forward_pass(model: Encoder) -> None:
    raw = tiny_images(10).pixels
    with torch.inference_mode():
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.recipe.data.mean, model.recipe.data.std))
        wanted = model((torch.from_numpy(raw).float() / 255 - mean) / std)
    found = model.encode(raw)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.gated, atol=1e-6, rtol=0)
    torch.testing.assert_close(model.encode(raw, gated=False), wanted.z, atol=1e-6, rtol=0)
    assert not torch.allclose(found, wanted.z, atol=1e-3)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(10))


def test_keep(model: Encoder) -> None:
    raw = tiny_images(8).pixels
    z = model.encode(raw)
    for keep in (1, 3, D):
        kept = model.encode(raw, n_active=keep)
        for row, full in zip(kept.tolist(), z.tolist()):
            best = sorted(range(D), key=lambda k: -full[k])[:keep]
            assert row == pytest.approx(unit([v if k in best else 0.0 for k, v in enumerate(full)]), abs=1e-6)
    for keep in (0, -1, D + 1, 2.0, True, "3"):
        with pytest.raises(InputError, match="n_active"):
            model.encode(raw, n_active=keep)


def test_encode_takes_images_in_any_form(model: Encoder, tmp_path: Path) -> None:
    raw = tiny_images(4).pixels
    wanted = model.encode(raw)
    last, readonly = raw.transpose(0, 2, 3, 1), raw.copy()
    readonly.flags.writeable = False
    pictures = [Image.fromarray(image) for image in last]
    for name, same in {
        "last": last,
        "tensor": torch.from_numpy(raw),
        "tensor, last": torch.from_numpy(last.copy()),
        "float": raw / 255,
        "float32": torch.from_numpy(raw).float() / 255,
        "pil": pictures,
        "tuple": tuple(pictures),
        "reversed": np.ascontiguousarray(raw[:, ::-1])[:, ::-1],
        "readonly": readonly,
    }.items():
        torch.testing.assert_close(model.encode(same), wanted, atol=1e-5, rtol=0, msg=name)
    torch.testing.assert_close(model.encode(raw, batch=2), wanted, atol=1e-6, rtol=0)
    odd = [Image.new("L", (40, 30), 99), Image.new("RGBA", (9, 70), (1, 2, 3, 0)), Image.new("P", (16, 16))]
    assert model.encode(odd).shape == (3, D)
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i}.png")
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for same in (paths, [str(path) for path in paths], [Image.open(path) for path in paths]):
        torch.testing.assert_close(model.encode(same), wanted, atol=1e-6, rtol=0)
    for one in (raw[0], last[0], paths[0], str(paths[0]), Image.open(paths[0])):
        torch.testing.assert_close(model.encode(one), wanted[:1], atol=1e-6, rtol=0)
    gray = raw[:, :1]
    wanted = model.encode(gray.repeat(3, 1))
    for same in (gray, gray.transpose(0, 2, 3, 1)):
        assert torch.equal(model.encode(same), wanted)
    torch.testing.assert_close(model.encode(gray[0, 0]), wanted[:1], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("images", "word"),
    [
        (np.zeros((5, 16, 16), np.uint8), r"\[5, 16, 16\]"),
        (np.zeros((2, 3, 0, 4), np.uint8), r"\[2, 3, 0, 4\]"),
        (np.zeros((2, 3, 4, 4), np.int64), "uint8"),
        (np.full((2, 3, 4, 4), 255.0), "255"),
        (torch.full((2, 3, 4, 4), float("nan")), "float"),
        ([np.zeros((16, 16, 3), np.uint8)], "ndarray"),
        (["a.png"], "a.png"),
        (__file__, "test_encode"),
        ({"a": 1}, "dict"),
    ],
)
def test_encode_refuses(model: Encoder, images: object, word: str) -> None:
    with pytest.raises(InputError, match=word):
        model.encode(images)  # type: ignore[arg-type]
