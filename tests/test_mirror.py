"""Embeddings that are the mean of a photo's and its mirror image's: by request, and by themselves for some runs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesncl
from bayesncl.codes_folder import CodesFolder
from bayesncl.data import load as load_split
from bayesncl.encoders import Request, open_encoder
from bayesncl.errors import InputError
from bayesncl.model import build_model, model_bytes
from tests.commands import draw_folder, refused
from tests.conftest import tiny_recipe
from tests.test_encoders import RNG, encoder
from tests.test_fit import NET


def test_a_photo_and_its_mirror_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Averaged on request, and by itself for a run that was trained on mirror images."""

    class Left(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[:, 0, 0, 0], x[:, 1, 0, 0]], 1)

    batch = RNG.normal(size=(3, 3, 8, 8)).astype(np.float32)
    plain, both = (encoder(Left(), monkeypatch, mirror=mirror) for mirror in (None, True))
    np.testing.assert_allclose(plain.embed(batch), batch[:, :2, 0, 0])
    np.testing.assert_allclose(both.embed(batch), (batch[:, :2, 0, 0] + batch[:, :2, 0, -1]) / 2, rtol=1e-6)
    assert plain.fingerprint != both.fingerprint
    pixels = RNG.integers(0, 256, (2, 3, 16, 16), dtype=np.uint8)
    for flip in (0.5, 0.0):
        (tmp_path / "model.safetensors").write_bytes(model_bytes(build_model(tiny_recipe("ncl", f"views.flip={flip}"))))
        usual, alone, mean = (open_encoder(Request(str(tmp_path), mirror=choice)) for choice in (None, False, True))
        turned = np.ascontiguousarray(pixels[..., ::-1])
        wanted = (alone.embed(pixels) + alone.embed(turned)) / 2
        np.testing.assert_allclose(mean.embed(pixels), wanted, rtol=1e-4, atol=1e-6)
        assert np.abs(mean.embed(pixels) - alone.embed(pixels)).max() > 1e-3
        assert usual.fingerprint == (mean if flip else alone).fingerprint


def test_mirror_images_of_a_run(run, trained: Path) -> None:
    """Asked for, they are in the embeddings, and codes of new photos have them too."""
    for name, choice in (("both", "--mirror"), ("plain", "--no-mirror"), ("usual", "--quiet")):
        assert run("fit", trained, "-o", name, "--dim", "8", choice).status == 0
    both, plain, usual = (CodesFolder(name).embeddings()[96:] for name in ("both", "plain", "usual"))
    assert np.array_equal(plain, usual)  # scenes are not mirrored in training: digits would be no digits
    pixels = np.asarray(load_split(bayesncl.load(trained).recipe.data, "test").pixels)
    h, turned = (bayesncl.load("plain").embed(each) for each in (pixels, np.ascontiguousarray(pixels[..., ::-1])))
    np.testing.assert_allclose(both, (h + turned) / 2, atol=1e-4)
    np.testing.assert_allclose(bayesncl.load("both").embed(pixels), both, atol=1e-4)
    assert np.abs(both - plain).max() > 1e-2


@pytest.mark.parametrize("choice", ["--no-mirror", "--mirror"])
def test_codes_from_before_there_was_a_choice_have_no_mirror_images(choice: str, run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "p")
    flips = build_model(tiny_recipe("ncl", "views.flip=0.5"))  # now they would
    (tmp_path / "m.safetensors").write_bytes(model_bytes(flips))
    words = ("fit", "p", "-o", "codes", "--encoder", tmp_path / "m.safetensors", "--dim", "4", "--quiet", choice)
    assert run(*words).status == 0
    folder = CodesFolder("codes")
    about = json.loads(folder.about_file.read_text())
    assert about["encoder"].pop("mirror") is (choice == "--mirror")
    folder.about_file.write_text(json.dumps(about))
    with nullcontext() if choice == "--no-mirror" else pytest.raises(InputError, match="has changed"):
        photo = next((tmp_path / "p").rglob("*.png"))
        row = folder.rows().names.index(photo.relative_to(tmp_path / "p").as_posix())
        np.testing.assert_allclose(bayesncl.load("codes").embed([photo])[0], folder.embeddings()[row], atol=1e-4)


def test_options_of_an_encoder_are_of_the_one_in_use(run, trained: Path, tmp_path: Path) -> None:
    draw_folder(tmp_path / "p")
    assert run("fit", "p", "-o", "codes", "--encoder", trained, "--dim", "4", "--quiet").status == 0
    answer = run("fit", "p", "-o", "codes", "--mirror", "--dim", "4")
    assert answer.status == 0 and "numbers a photo and its mirror image" in answer.err.replace("\n", " ")
    about = CodesFolder("codes").about()
    assert about.encoder["mirror"] is True and about.encoder["spec"] == str(trained.resolve())
    refused(run("fit", trained, "-o", "other", "--encoder", "", "--quiet"), "--encoder is for photos")
    refused(run("fit", trained, "-o", "other", "--mirror", "--size", "8", "--quiet"), "--size is for photos")
    assert run("fit", "p", "-o", "code", "--encoder", NET, "--dim", "4", "--quiet").status == 0
    refused(run("fit", "p", "-o", "code", "--mirror", "--quiet"), "which is code")
