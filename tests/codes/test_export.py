"""ONNX files: the same numbers as torch, an exported run as an encoder, and refusals."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bayesncl
from bayesncl.codes.encoders import Request, open_encoder
from bayesncl.codes.export import export
from bayesncl.errors import InputError
from bayesncl.method.encoder import build_model
from bayesncl.training.run_folder import model_bytes
from tests.codes.test_encoders import Net
from tests.codes.test_fit import COMPONENTS, FIT, NET
from tests.commands import draw_folder, refused
from tests.conftest import tiny_images, tiny_recipe


def run_onnx(path: Path, x: np.ndarray) -> list[np.ndarray]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    return session.run(None, {session.get_inputs()[0].name: x})


@pytest.fixture
def onnx() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match="pip install onnx"):
        export(build_model(tiny_recipe()), tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(InputError, match="pip install onnxruntime"):
        open_encoder(Request(str(tmp_path / "m.onnx")))


@pytest.mark.parametrize("method", ["ncl", "bayesncl", "ncl-topk"])
def test_exported_run_is_an_encoder(
    onnx, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written where onnxruntime and torch differ."""
    flip = 0.5 * (method == "ncl")
    changes = ["model.top_k=4"] if method == "ncl-topk" else []
    model = build_model(tiny_recipe(method, f"views.flip={flip}", *changes)).eval()
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    with monkeypatch.context() as patch:
        patch.setattr("bayesncl.codes.export.TOLERANCE", -1.0)
        with pytest.raises(InputError, match="not written"):
            export(model, tmp_path / "m.onnx")
    outputs, worst = export(model, tmp_path / "m.onnx")
    assert outputs == ["h", "codes"] and 0 <= worst < 1e-4
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "m.onnx"}
    pixels = tiny_images(5).pixels
    h, codes = run_onnx(tmp_path / "m.onnx", pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(codes, model.encode(pixels), atol=1e-4)
    names = ("model.safetensors", "m.onnx")
    whole, file = (open_encoder(Request(str(tmp_path / name))) for name in names)
    assert (file.features, file.view.crop) == (whole.features, whole.view.crop)
    np.testing.assert_allclose(file.embed(pixels), whole.embed(pixels), rtol=1e-3, atol=1e-4)
    plain = open_encoder(Request(str(tmp_path / "m.onnx"), mirror=False))
    np.testing.assert_allclose(plain.embed(pixels), h, rtol=1e-3, atol=1e-4)
    assert file.view.mirror is bool(flip)  # mirror images, if the run was trained on them


@pytest.mark.parametrize("method", ["prototypes", "factors", "ncl", "bayesncl", "sae", "csr"])
def test_codes_of_arrays(onnx, method: str, tmp_path: Path, run) -> None:
    x = np.random.default_rng(0).normal(0, 1, (40, 24)).astype(np.float32)
    np.save("x.npy", x)
    options = ("--method", method, COMPONENTS, "8", "--active", "3", "--quiet")
    assert run("fit", "x.npy", "-o", "codes", *options).status == 0
    assert run("export", "codes", "-o", "c.onnx").status == 0
    z = bayesncl.load("codes").transform(x)
    np.testing.assert_allclose(run_onnx(tmp_path / "c.onnx", x)[0], z, atol=1e-4)
    np.testing.assert_allclose(run_onnx(tmp_path / "c.onnx", x[:1])[0], z[:1], atol=1e-4)


@pytest.mark.parametrize("mirror", ["--mirror", "--no-mirror"])
def test_codes_of_photos(onnx, mirror: str, tmp_path: Path, run) -> None:
    draw_folder(tmp_path / "p")
    assert run("fit", "p", "-o", "codes", *FIT, mirror).status == 0
    refused(run("export", "codes", "-o", "c.onnx", "--quiet"), "which is code")
    assert run("export", "codes", "-o", "c.onnx", "--encoder", NET, "--quiet").status == 0
    model = bayesncl.load("codes", encoder=NET)
    photos = sorted((tmp_path / "p").rglob("*.png"))
    x = np.stack([model.encoder.prepare(Image.open(path).convert("RGB")) for path in photos])
    h, codes = run_onnx(tmp_path / "c.onnx", x.astype(np.float32) / 255)
    np.testing.assert_allclose(codes, model.encode(photos), atol=1e-4)
    np.testing.assert_allclose(h, model.embed(photos), atol=1e-4)
    assert run("export", "codes", "-o", "head.onnx", "--head", "--quiet").status == 0
    np.testing.assert_allclose(run_onnx(tmp_path / "head.onnx", h)[0], codes, atol=1e-4)


def test_onnx_file_with_a_fixed_batch(onnx, tmp_path: Path) -> None:
    x = torch.rand(2, 3, 32, 32)
    flat = (torch.nn.Linear(4, 2), torch.rand(1, 4), "flat")
    for network, example, name in ((Net(), x, "net"), flat):
        path = str(tmp_path / f"{name}.onnx")
        options = {"dynamo": True, "external_data": False, "verbose": False}
        torch.onnx.export(network.eval(), (example,), path, **options)
    notes: list[str] = []
    found = open_encoder(Request(str(tmp_path / "net.onnx")), notify=notes.append)
    assert (found.view.crop, found.features) == (32, 6) and "ImageNet" in notes[0]
    three = x[[0, 1, 1]]
    np.testing.assert_allclose(found.compute(three), Net()(three).detach(), atol=1e-5)
    (tmp_path / "text.onnx").write_text("no")
    for name, options in (("net", {"size": 64}), ("flat", {}), ("text", {})):
        with pytest.raises(InputError, match=f"{name}.onnx"):
            open_encoder(Request(str(tmp_path / f"{name}.onnx"), **options))
