"""Encoders that others trained: each kind opened, its view, its fingerprint, and what is refused."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

from bayesncl.encoders import DEFAULT, Request, View, default_request, find_kind, open_encoder, pool
from bayesncl.errors import InputError
from bayesncl.model import build_model, model_bytes
from tests.conftest import tiny_recipe

RNG = np.random.default_rng(0)


class Net(nn.Module):
    """Six numbers a photo: mean colours through a small matrix."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mean((2, 3)))


def encoder(network: object, monkeypatch: pytest.MonkeyPatch, **options: object):
    """An encoder from a module that is made up here."""
    module = types.ModuleType("made_up")
    module.make = lambda: network
    monkeypatch.setitem(sys.modules, "made_up", module)
    return open_encoder(Request("made_up:make", **options))


def test_kinds() -> None:
    specs = ("resnet18", "timm:x", "a.onnx", "b/a.ONNX", "m:f", "runs/a", "a.safetensors")
    assert [find_kind(spec) for spec in specs] == ["timm", "timm", "onnx", "onnx", "module", "run", "run"]


def test_module_is_prepared_as_imagenet_unless_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = Image.fromarray(RNG.integers(0, 256, (90, 120, 3), dtype=np.uint8))
    plain = encoder(Net(), monkeypatch)
    assert plain.features == 6 and plain.view == View()
    cut = photo.resize((224, 224), Image.Resampling.BICUBIC, box=box(photo, 224 / 256))
    x = torch.from_numpy(np.array(cut)) / 255
    x = (x - torch.tensor(View().mean)) / torch.tensor(View().std)
    wanted = Net()(x.permute(2, 0, 1)[None])
    found = plain.embed(plain.prepare(photo)[None])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.detach().numpy(), atol=2e-2)  # Pillow reduces in another order

    said = Net()
    said.preprocess = {"size": 32, "resize": 40, "mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bilinear"}
    own = encoder(said, monkeypatch)
    assert (own.view.crop, own.view.resize, own.view.mean) == (32, 40, (0.0, 0.0, 0.0))
    assert own.prepare(photo).shape == (3, 32, 32)
    assert own.fingerprint != plain.fingerprint

    function = Net()
    function.preprocess = lambda image: torch.full((3, 8, 8), image.width / 100)
    by_function = encoder(function, monkeypatch)
    with torch.no_grad():
        wanted = Net()(torch.full((1, 3, 8, 8), 1.2))
    np.testing.assert_allclose(by_function.embed(by_function.prepare(photo)[None]), wanted, rtol=1e-6)


def box(image: Image.Image, share: float) -> tuple[float, ...]:
    side = min(image.size) * share
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return left, top, left + side, top + side


def test_asked_for_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = encoder(Net(), monkeypatch, size=64, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert (found.view.crop, found.view.resize, found.view.std) == (64, 73, (0.25,) * 3)


def test_fingerprint_follows_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, other = Net(), Net(), Net()
    with torch.no_grad():
        other.layer.bias[0] += 1e-3
    marks = [encoder(network, monkeypatch).fingerprint for network in (one, same, other)]
    assert marks[0] == marks[1] != marks[2]


def test_weights_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = {name: t + 1 for name, t in Net().state_dict().items()} | {"classifier.weight": torch.zeros(2)}
    safetensors.torch.save_file(changed, tmp_path / "w.safetensors")
    torch.save({"state_dict": {f"module.{name}": t for name, t in changed.items()}}, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        network = Net()
        found = encoder(network, monkeypatch, weights=str(tmp_path / name))
        assert torch.equal(network.layer.weight, changed["layer.weight"])
        assert found.request.weights == str(tmp_path / name)
    torch.save({"layer.weight": torch.zeros(6, 3)}, tmp_path / "less.pt")
    torch.save({"layer.weight": torch.zeros(6, 4), "layer.bias": torch.zeros(6)}, tmp_path / "shape.pt")
    torch.save(Net(), tmp_path / "pickled.pt")
    (tmp_path / "text.safetensors").write_text("no")
    for name, message in (
        ("less.pt", "of another model: it lacks 1 of 2 tensors, e.g. layer.bias"),
        ("shape.pt", r"layer.weight is \[6, 4\], expected \[6, 3\]"),
        ("pickled.pt", "not a .safetensors file or a plain state_dict"),
        ("text.safetensors", "not a .safetensors file"),
        ("none.pt", "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            encoder(Net(), monkeypatch, weights=str(tmp_path / name))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (3, "gives int, expected a torch.nn.Module"),
        (nn.Linear(5, 2), "does not take photos of 224 x 224"),
        (nn.Sequential(nn.Flatten(0)), r"gives \[301056\] for 2 photos"),
    ],
)
def test_modules_that_are_no_encoders(network: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=message):
        encoder(network, monkeypatch)


def test_preprocess_that_is_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, message in (
        ({"sise": 3}, "preprocess has"),
        ({"interpolation": "cubist"}, "no interpolation"),
        ({"size": 0}, "pixels a side"),
        ({"mean": (0, 1)}, "mean must be three"),
        ({"std": (1, 0, 1)}, "std must be three"),
        ({"size": "x"}, "not a view"),
    ):
        network = Net()
        network.preprocess = said
        with pytest.raises(InputError, match=message):
            encoder(network, monkeypatch)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "--encoder is empty"),
        ("no_such_module:f", "ModuleNotFoundError: No module named"),
        ("json:nothing", "has no attribute 'nothing'"),
        ("json:dumps", "missing 1 required positional argument"),
        ("none.onnx", "no such file"),
        ("runs/none", "no trained model"),
        ("none.safetensors", "no trained model"),
    ],
)
def test_encoders_that_are_not_there(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_encoder(Request(spec))


def test_a_run_is_an_encoder(tmp_path: Path) -> None:
    model = build_model(tiny_recipe("ncl"))
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    photo = Image.fromarray(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    for spec in (tmp_path, tmp_path / "model.safetensors"):
        found = open_encoder(Request(str(spec)))
        with torch.no_grad():
            h = model.eval().backbone(model.normalise_pixels(torch.from_numpy(found.prepare(photo).copy())[None]))
        np.testing.assert_allclose(found.embed(found.prepare(photo)[None]), h, atol=1e-5)
    with pytest.raises(InputError, match="has its own"):
        open_encoder(Request(str(tmp_path), weights="w.pt"))


class LocalEntryNotFoundError(OSError):
    """As huggingface_hub calls it."""


class StandIn(types.ModuleType):
    """As much of timm as is used."""

    made: dict[str, object]

    def is_model(self, name: str) -> bool:
        return name.split(".")[0] in ("tiny", "square", DEFAULT[5:].split(".")[0])

    def list_models(self) -> list[str]:
        return ["tiny", "square"]

    def create_model(self, name: str, pretrained: bool, num_classes: int) -> nn.Module:
        if pretrained and name != "tiny":
            logging.getLogger("huggingface_hub").warning("Retrying in 1s")
            raise OSError("no connection\nto the hub") if name == "square" else LocalEntryNotFoundError("An error")
        self.made = {"name": name, "pretrained": pretrained, "num_classes": num_classes}
        network = Net()
        network.pretrained_cfg = {
            "input_size": (3, 48, 48), "crop_pct": 0.8, "interpolation": "bilinear", "mean": (0.1, 0.2, 0.3),
            "std": (0.5, 0.6, 0.7), "test_input_size": None,
        }  # fmt: skip
        return network


def test_timm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timm = StandIn("timm")
    monkeypatch.setitem(sys.modules, "timm", timm)
    said: list[str] = []
    for spec in ("tiny", "timm:tiny"):
        found = open_encoder(Request(spec), say=said.append)
        assert timm.made == {"name": "tiny", "pretrained": True, "num_classes": 0}
        assert found.view == View(60, 48, 2, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
        assert found.name == found.request.spec == "timm:tiny"
    assert "from the Hugging Face hub" in said[0]  # nothing is fetched unsaid
    safetensors.torch.save_file(Net().state_dict(), tmp_path / "w.safetensors")
    said.clear()
    open_encoder(Request("square", weights=str(tmp_path / "w.safetensors")), say=said.append)
    assert timm.made["pretrained"] is False and not said
    with pytest.raises(InputError, match=r"no connection to the hub; --weights FILE"):
        open_encoder(Request("square"))
    with pytest.raises(InputError, match=r"no connection to the Hugging Face hub, nothing in its cache; --weights"):
        open_encoder(Request(DEFAULT))
    assert not caplog.records and logging.getLogger("huggingface_hub").isEnabledFor(logging.WARNING)
    with pytest.raises(InputError, match=r"timm has no model 'tinny'; did you mean tiny\?"):
        open_encoder(Request("tinny"))
    assert default_request(said.append).spec == DEFAULT and "trained without labels" in said[0]


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    for act in (lambda: open_encoder(Request("resnet18")), lambda: default_request(print)):
        with pytest.raises(InputError, match=r"pip install 'bayesncl\[timm\]'"):
            act()


def test_pool() -> None:
    x = torch.randn(2, 5, 3, 3)
    assert torch.equal(pool(x), x.mean((2, 3)))
    assert torch.equal(pool((x[:, :, 0],)), x[:, 0, 0])
    assert torch.equal(pool({"last_hidden_state": x, "pooler_output": x[:, :, 0, 0]}), x[:, :, 0, 0])
    with pytest.raises(InputError, match="got NoneType"):
        pool(None)


@pytest.mark.parametrize(
    "wrong",
    [{"spec": 5}, {"spec": "a\0b"}, {"weights": 3}, {"size": "x"}, {"size": 10**9}, {"size": True}, {"mean": "abc"},
     {"std": [None, 1, 1]}, {"mean": [10**400] * 3}, {"mean": "123"}, {"mean": {"1": 1, "2": 2, "3": 3}}, {"mean": 0},
     {"mean": [1e300] * 3}, {"std": [True] * 3}, {"mean": [1, 2]}, {"size": 0}, {"mirror": 1}, {"mirror": "no"}],
)  # fmt: skip
def test_a_request_from_a_file_has_the_right_types(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Request(**({"spec": "x.onnx"} | wrong))  # type: ignore[arg-type]


def test_a_size_that_no_float_holds_is_called_a_size() -> None:
    with pytest.raises(InputError, match="photos are cut to 1 to 4096 pixels a side, got 1000"):
        Request("x.onnx", size=10**400)
    assert Request("x.onnx", size=4096).size == 4096


@pytest.mark.parametrize("spec", ["/" + "9" * 5000, "9" * 300 + ".safetensors", "9" * 300 + ".onnx"])
def test_names_too_long_for_a_file_are_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"no such file|File name too long"):
        open_encoder(Request(spec))


def test_timm_beside_another_build_of_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="timm cannot be imported: operator torchvision::nms does not exist"):
        open_encoder(Request("resnet18"))
