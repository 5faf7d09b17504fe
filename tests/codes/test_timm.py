"""Real timm models, wherever timm is installed; nothing is downloaded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import bayesncl
from bayesncl.codes.encoders import Request, open_encoder
from bayesncl.codes.heat import compute_maps, heatmaps_of_codes
from tests.commands import SETTINGS, draw_folder

timm = pytest.importorskip("timm", exc_type=ImportError)  # it needs torchvision

MODELS = ("resnet18", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050")
# h is the mean of these maps or comes with these tokens; the others change h after pooling
WITH_POSITIONS = {"resnet18": (7, 7), "vit_tiny_patch16_224": (14, 14)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw_folder(tmp_path / "photos")


def save_weights(name: str, path: Path) -> Any:
    """Save random weights, classifier included, as a checkpoint has it; the model without it."""
    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=False)
    safetensors.torch.save_file(network.state_dict(), path)
    network.reset_classifier(0)
    return network.eval()


@pytest.mark.parametrize("name", MODELS)
def test_photos_to_codes(name: str, run: Any, photos: Path, tmp_path: Path) -> None:
    network = save_weights(name, tmp_path / "w.safetensors")
    encoder = ("--encoder", name, "--weights", "w.safetensors")
    answer = run("fit", photos, "-o", "codes", *encoder, "--components", 4, "--device", "cpu")
    assert answer.status == 0, answer.err
    config = network.pretrained_cfg
    side = config["input_size"][-1]
    found = open_encoder(Request(name, weights="w.safetensors"))
    assert found.view.crop == side and found.view.mean == tuple(config["mean"])
    pixels = found.prepare(Image.open(photos / "cat" / "00.png"))
    mean, std = (np.array(config[key], np.float32)[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        expected = network(torch.from_numpy((pixels / np.float32(255) - mean) / std)[None])
    names = json.loads(Path("codes/rows.json").read_text())["names"]
    row = np.load("codes/embeddings.npy")[names.index("cat/00.png")]
    np.testing.assert_allclose(row, expected[0], rtol=1e-3, atol=1e-4)
    model = bayesncl.load("codes")
    z = model.encode([photos / "cat" / "00.png"])
    assert run("embed", "codes", photos / "cat", "-o", "cat.npz").status == 0
    np.testing.assert_allclose(np.load("cat.npz")["z"][0], z[0], atol=1e-4)
    assert run("export", "codes", "-o", "codes.onnx").status == 0  # it compares with torch
    sight = heatmaps_of_codes(model)
    assert (sight.layer is not None) == (name in WITH_POSITIONS)
    if sight.layer is not None:
        maps = compute_maps(sight, pixels[None], np.arange(4)[None])[0]
        assert maps.shape == (4, *WITH_POSITIONS[name]) and np.ptp(maps) > 0
    answer = run("atlas", "codes", "--heat")  # random weights give no map that means anything
    assert answer.status == 0 and Path("codes/atlas/index.html").is_file(), answer.err


def test_backbone_of_a_run(run: Any, photos: Path) -> None:
    settings = (*SETTINGS, "--set", "data.size=32", "--set", "views.size=32")
    answer = run("train", "scenes", *settings, "--backbone", "timm:resnet18", "--out", "run")
    assert answer.status == 0, answer.err
    assert run("evaluate", "run").status == 0
    model = bayesncl.load("run")
    fresh = timm.create_model("resnet18", pretrained=False, num_classes=0)
    fresh.load_state_dict(model.backbone.body.state_dict())
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():  # its BatchNorm layers were replaced for training
        torch.testing.assert_close(model.backbone(x), fresh.eval()(x))
    assert run("embed", "run", photos, "-o", "z.npz").status == 0
    assert np.load("z.npz")["z"].shape == (24, 12)
