"""bayesncl fit with mirror images, and encoder options of a folder that was fitted before."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import bayesncl
from bayesncl.codes.folder import CodesFolder
from bayesncl.data import load as load_split
from tests.codes.test_fit import COMPONENTS, FIT
from tests.commands import draw_folder, refused


def test_mirror_images_of_a_run(run, trained: Path) -> None:
    for name, choice in (("both", "--mirror"), ("plain", "--no-mirror"), ("usual", "--quiet")):
        assert run("fit", trained, "-o", name, COMPONENTS, "8", choice).status == 0
    both, plain, usual = (CodesFolder(n).embeddings()[96:] for n in ("both", "plain", "usual"))
    assert np.array_equal(plain, usual)  # scenes are not mirrored in training
    pixels = np.asarray(load_split(bayesncl.load(trained).recipe.data, "test").pixels)
    turned = np.ascontiguousarray(pixels[..., ::-1])
    h, mirrored = (bayesncl.load("plain").embed(each) for each in (pixels, turned))
    np.testing.assert_allclose(both, (h + mirrored) / 2, atol=1e-4)
    np.testing.assert_allclose(bayesncl.load("both").embed(pixels), both, atol=1e-4)
    assert np.abs(both - plain).max() > 1e-2


def test_options_apply_to_the_encoder_used_before(run, trained: Path, tmp_path: Path) -> None:
    draw_folder(tmp_path / "p")
    command = ("fit", "p", "-o", "codes", COMPONENTS, "4")
    assert run(*command, "--encoder", trained, "--quiet").status == 0
    answer = run(*command, "--mirror")
    assert answer.status == 0 and "mirror images" in answer.err
    encoder = CodesFolder("codes").about().encoder
    assert encoder["mirror"] is True and encoder["spec"] == str(trained.resolve())
    refused(run("fit", trained, "-o", "other", "--encoder", "", "--quiet"), "--encoder")
    refused(run("fit", trained, "-o", "other", "--mirror", "--size", "8", "--quiet"), "--size")
    assert run("fit", "p", "-o", "code", *FIT).status == 0
    refused(run("fit", "p", "-o", "code", "--mirror", "--quiet"), "which is code")
