"""Encoders trained by others: each kind, its image preparation, its signature, and refusals."""

import sys
import types
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

from bayesncl.codes.encoders import (
    DEFAULT,
    PhotoEncoder,
    Request,
    View,
    open_encoder,
    same_signature,
)
from bayesncl.errors import InputError

RNG = np.random.default_rng(0)


class Net(nn.Module):
    """Six numbers per image: mean colors through a small matrix."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mean((2, 3)))


def encoder(network: object, monkeypatch: pytest.MonkeyPatch, **options: object):
    """An encoder from a function of a module made up here."""
    module = types.ModuleType("made_up")
    module.make = lambda: network
    monkeypatch.setitem(sys.modules, "made_up", module)
    return open_encoder(Request("made_up:make", **options))


def with_preprocess(value: object) -> Net:
    network = Net()
    network.preprocess = value
    return network


def test_module_is_prepared_like_imagenet_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = Image.fromarray(RNG.integers(0, 256, (90, 120, 3), dtype=np.uint8))
    plain = encoder(Net(), monkeypatch)
    assert plain.features == 6 and plain.view == View()
    side = 90 * 224 / 256
    box = (120 - side) / 2, (90 - side) / 2, (120 + side) / 2, (90 + side) / 2
    x = torch.from_numpy(np.array(photo.resize((224, 224), Image.Resampling.BICUBIC, box=box)))
    x = (x / 255 - torch.tensor(View().mean)) / torch.tensor(View().std)
    expected = Net()(x.permute(2, 0, 1)[None])
    found = plain.embed(plain.prepare(photo)[None])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.detach(), atol=2e-2)  # Pillow rounds differently
    asked = encoder(Net(), monkeypatch, size=64, mean=(0.5,) * 3, std=(0.25,) * 3).view
    assert (asked.crop, asked.resize, asked.std) == (64, 73, (0.25,) * 3)


def test_module_with_its_own_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = Image.fromarray(RNG.integers(0, 256, (90, 120, 3), dtype=np.uint8))
    given = {"size": 32, "resize": 40, "mean": (0, 0, 0), "std": (1, 1, 1)}
    given["interpolation"] = "bilinear"
    own = encoder(with_preprocess(given), monkeypatch)
    assert (own.view.crop, own.view.resize, own.view.mean) == (32, 40, (0.0, 0.0, 0.0))
    assert own.prepare(photo).shape == (3, 32, 32)
    function = with_preprocess(lambda image: torch.full((3, 8, 8), image.width / 100))
    by_function = encoder(function, monkeypatch)
    with torch.no_grad():
        expected = Net()(torch.full((1, 3, 8, 8), 1.2))
    found = by_function.embed(by_function.prepare(photo)[None])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for bad in (
        {"sise": 3}, {"interpolation": "cubist"}, {"size": 0}, {"mean": (0, 1)}, {"std": (1, 0, 1)},
        {"size": "x"},
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"preprocess|pixels|mean|std|keys|interpolation"):
            encoder(with_preprocess(bad), monkeypatch)


def test_signature_follows_what_the_encoder_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Squared(Net):
        """The same weights and layers, another computation."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x**2)

    class Rounded(Net):
        """As another device or version of torch would round."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1 + 1e-4)

    other = Net()
    with torch.no_grad():
        other.layer.weight *= 1.1
    def signature(network: nn.Module, **options: object):
        return encoder(network, monkeypatch, **options).request.signature

    base = signature(Net())
    for network, same in ((Net(), True), (Rounded(), True), (Squared(), False), (other, False)):
        assert same_signature(base, signature(network)) is same
    for options in ({"size": 64}, {"mean": (0.5,) * 3}, {"mirror": True}):
        assert not same_signature(base, signature(Net(), **options))
    shifted, twice = Net(), Net()  # a large constant part must not hide a change of the rest
    with torch.no_grad():
        shifted.layer.bias += 1e4
        twice.layer.bias += 1e4
        twice.layer.weight *= 2
    one, two = map(signature, (shifted, twice))
    assert not same_signature(one, two)


def test_weights_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = {name: t + 1 for name, t in Net().state_dict().items()}
    changed["classifier.weight"] = torch.zeros(2)
    safetensors.torch.save_file(changed, tmp_path / "w.safetensors")
    prefixed = {f"module.{name}": t for name, t in changed.items()}
    torch.save({"state_dict": prefixed}, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        network = Net()
        found = encoder(network, monkeypatch, weights=str(tmp_path / name))
        assert torch.equal(network.layer.weight, changed["layer.weight"])
        assert found.request.weights == str(tmp_path / name)
    torch.save({"layer.weight": torch.zeros(6, 3)}, tmp_path / "less.pt")
    wrong = {"layer.weight": torch.zeros(6, 4), "layer.bias": torch.zeros(6)}
    torch.save(wrong, tmp_path / "shape.pt")
    torch.save(Net(), tmp_path / "pickled.pt")
    (tmp_path / "text.safetensors").write_text("no")
    for name, keyword in (
        ("less.pt", "layer.bias"), ("shape.pt", "layer.weight"), ("pickled.pt", "state_dict"),
        ("text.safetensors", "safetensors"), ("none.pt", "no such file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=keyword):
            encoder(Net(), monkeypatch, weights=str(tmp_path / name))
    with pytest.raises(InputError, match="--weights"):
        open_encoder(Request(str(tmp_path), weights="w.pt"))


class StandIn(types.ModuleType):
    """The part of timm that is used."""

    options: dict[str, object]
    repository = "timm/tiny"

    def is_model(self, name: str) -> bool:
        return name.split(".")[0] in ("tiny", "square", DEFAULT[5:].split(".")[0])

    def list_models(self) -> list[str]:
        return ["tiny", "square"]

    def get_pretrained_cfg(self, name: str) -> object:
        return types.SimpleNamespace(hf_hub_id=self.repository, url=None)

    def create_model(self, name: str, **options: object) -> nn.Module:
        self.options = {"name": name, **options}
        if name == "square" and options["pretrained"]:
            raise OSError("no connection\nto the hub")
        network = Net()
        network.pretrained_cfg = {
            "input_size": (3, 48, 48), "crop_pct": 0.8, "interpolation": "bilinear",
            "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "test_input_size": None,
        }  # fmt: skip
        return network


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn("timm")
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    return stand_in


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for huggingface_hub whose cache is empty."""
    stand_in = types.ModuleType("huggingface_hub")
    stand_in.try_to_load_from_cache = lambda repository, file: None
    stand_in.constants = types.SimpleNamespace(ENDPOINT="https://hub", HF_HUB_OFFLINE=False)
    answer = types.SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: answer)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    return stand_in


def test_timm_model(timm: StandIn, hub: types.ModuleType, tmp_path: Path) -> None:
    notes: list[str] = []
    for spec in ("tiny", "timm:tiny"):
        found = open_encoder(Request(spec), notify=notes.append)
        assert timm.options == {"name": "tiny", "pretrained": True, "num_classes": 0}
        assert found.view == View(60, 48, 2, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
        assert found.name == found.request.spec == "timm:tiny"
    assert "timm/tiny" in notes[0]  # what is downloaded, and from where
    safetensors.torch.save_file(Net().state_dict(), tmp_path / "w.safetensors")
    notes.clear()
    weights = str(tmp_path / "w.safetensors")
    open_encoder(Request("square", weights=weights), notify=notes.append)
    assert timm.options["pretrained"] is False and not notes
    with pytest.raises(InputError, match=r"no connection to the hub.*--weights"):
        open_encoder(Request("square"))
    with pytest.raises(InputError, match="did you mean tiny"):
        open_encoder(Request("tinny"))
    default = open_encoder(Request(""), notify=notes.append)
    assert default.request.spec == DEFAULT and "--encoder" in notes[0]


def test_cached_weights_and_no_network(
    timm: StandIn, hub: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.constants.ENDPOINT = "http://127.0.0.1:9"  # nobody listens
    monkeypatch.setattr(urllib.request, "urlopen", URLOPEN)
    with pytest.raises(InputError, match="--weights"):
        open_encoder(Request("tiny"))
    assert not hasattr(timm, "options")  # timm, which waits for a minute, was not asked
    hub.try_to_load_from_cache = lambda repository, file: f"/cache/{repository}/{file}"
    open_encoder(Request("tiny"))
    assert timm.options["pretrained_cfg_overlay"] == {"file": "/cache/timm/tiny/model.safetensors"}


URLOPEN = urllib.request.urlopen


def test_what_is_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    for network in (3, nn.Linear(5, 2), nn.Sequential(nn.Flatten(0))):
        with pytest.raises(InputError):
            encoder(network, monkeypatch)
    monkeypatch.setitem(sys.modules, "timm", None)
    for spec in ("resnet18", ""):
        with pytest.raises(InputError, match="pip install timm"):
            open_encoder(Request(spec))


@pytest.mark.parametrize("shape", [(1, 3), (5, 4), (0, 3), (-1,)])  # the last raises
def test_encoder_that_fails_later(shape: tuple[int, ...]) -> None:
    class Moody(nn.Module):
        """Right for two images, wrong for more."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones((2, 3) if len(x) == 2 else shape)

    found = PhotoEncoder(Request("a:b"), View(32, 32), Moody())
    with pytest.raises(InputError, match="encoder a:b"):
        found.embed(np.zeros((5, 3, 32, 32), np.uint8))


def test_mirror_images_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[:, 0, 0, 0], x[:, 1, 0, 0]], 1)

    batch = RNG.normal(size=(3, 3, 8, 8)).astype(np.float32)
    plain, both = (encoder(Left(), monkeypatch, mirror=mirror) for mirror in (None, True))
    np.testing.assert_allclose(plain.embed(batch), batch[:, :2, 0, 0])
    expected = (batch[:, :2, 0, 0] + batch[:, :2, 0, -1]) / 2
    np.testing.assert_allclose(both.embed(batch), expected, rtol=1e-6)
