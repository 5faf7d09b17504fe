"""The encoder against slow twins: forward pass, gradients, initial weights; `encode`; features."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import special
from torch import Tensor, nn

from bayesncl import bernoulli_kl, info_nce
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.evaluate import evaluate
from bayesncl.method.backbones import ViewBatchNorm2d
from bayesncl.method.encoder import Encoder, Extracted, build_model, extract
from bayesncl.method.gates import GATES, RECTIFIERS
from bayesncl.recipes import METHODS, Recipe
from tests.conftest import tiny_images, tiny_recipe

N, FEATURES, D = 6, 5, 12


class Flat(nn.Module):
    """A one-layer backbone."""

    features = FEATURES

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x.flatten(1)))


def flat_model(recipe: Recipe) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Encoder(recipe, Flat()).double()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = random(N, 3, 4, 4)
U = torch.rand(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def dense(x: np.ndarray, layer: nn.Linear) -> np.ndarray:
    return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def perceptron(x: np.ndarray, layers: nn.Sequential) -> np.ndarray:
    *hidden, last = (layer for layer in layers if isinstance(layer, nn.Linear))
    for layer in hidden:
        x = np.maximum(dense(x, layer), 0)
    return dense(x, last)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.sqrt((x**2).sum(1, keepdims=True)), 1e-12)


ACTIVATIONS = {
    "none": lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "rep_relu": lambda v: np.maximum(v, 0),
    "gelu": lambda v: v * (1 + special.erf(v / np.sqrt(2))) / 2,
    "softplus": lambda v: np.log1p(np.exp(v)),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "exp": np.exp,
}
NOISE = {
    "gumbel": lambda u: np.log(u) - np.log(1 - u),
    "gumbel-paper": lambda u: -np.log(-np.log(u + 1e-4) + 1e-4),
}


def slow_forward(model: Encoder) -> tuple[np.ndarray, ...]:
    """h, z, mask, gated in the published order: rectify, top-k, unit length; gate; unit length."""
    m, g = model.recipe.model, model.recipe.gate
    h = np.maximum(dense(X.flatten(1).numpy(), model.backbone.layer), 0)  # type: ignore[arg-type]
    z = perceptron(h, model.head.projector)
    if m.layer_norm:
        z = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
    z = ACTIVATIONS[m.rectifier](z)
    if m.top_k:
        z = np.where(z < np.sort(z)[:, [-m.top_k]], 0, z)
    z = unit(z)
    if model.gate is None:
        return h, z, z, z
    logits = perceptron(h, model.gate)
    if g.kind in NOISE and model.training:
        logits = logits + NOISE[g.kind](U.numpy())
    q = 1 / (1 + np.exp(-logits / g.temperature))
    mask = q if g.kind == "soft" else (q > g.threshold).astype(float)
    return h, z, mask, unit(z * mask)


CASES = [
    *[(method, ()) for method in METHODS if method != "ncl-topk"],
    *[("bayesncl", (f"model.rectifier={name}",)) for name in RECTIFIERS],
    ("ncl-topk", ("model.top_k=3",)),
    ("bayesncl", ("model.layer_norm=true", "model.top_k=4", "model.rectifier=softplus")),
    ("bayesncl", ("gate.depth=1",)),
    ("bayesncl", ("gate.depth=3", "gate.hidden=10")),
    ("bayesncl", ("gate.threshold=0.52", "gate.temperature=0.5")),
    ("bayesncl-soft", ("gate.temperature=2",)),
    ("bayesncl", ("gate.kind=gumbel",)),
]


@pytest.mark.parametrize(("method", "changes"), CASES)
@pytest.mark.parametrize("training", [True, False])
def test_forward_pass(method: str, changes: tuple[str, ...], training: bool) -> None:
    model = flat_model(tiny_recipe(method, "model.hidden=7", *changes)).train(training)
    found = model(X, U if model.recipe.gate.kind in NOISE else None)
    h, z, mask, gated = map(torch.from_numpy, slow_forward(model))
    for tensor, twin in ((found.h, h), (found.z, z), (found.gated, gated)):
        torch.testing.assert_close(tensor, twin, atol=1e-7, rtol=1e-6)
    if model.gate is None:
        assert found.mask is found.logits is None and found.gated is found.z
        return
    torch.testing.assert_close(found.mask, mask, atol=1e-6, rtol=0)
    if model.recipe.gate.kind != "soft":
        assert set(found.mask.unique().tolist()) == {0.0, 1.0}


def slow_loss(model: Encoder, weight: float) -> Tensor:
    """InfoNCE + weight KL with torch's own operations."""
    h = model.backbone(X)
    raw = model.head.projector(h)
    z = raw.relu().detach() + nn.functional.gelu(raw) - nn.functional.gelu(raw).detach()
    z = z / z.norm(dim=1, keepdim=True)
    q = 1 / (1 + torch.exp(-model.gate(h.detach() if model.recipe.gate.detach else h)))  # type: ignore[misc]
    z = z * (q if model.recipe.gate.kind == "soft" else (q > 0.5).double() + q - q.detach())
    z = z / z.norm(dim=1, keepdim=True)
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(N):
        terms = sum(torch.exp(z[i] @ z[j] / 0.2) for j in range(N) if j != i)
        loss = loss - torch.log(torch.exp(z[i] @ z[(i + N // 2) % N] / 0.2) / terms) / N
    p = q.clamp(0.01, 0.99)
    kl = p * torch.log(p / 0.8) + (1 - p) * torch.log((1 - p) / 0.2)
    return loss + weight * kl.sum() / N


@pytest.mark.parametrize("method", ["bayesncl", "bayesncl-soft", "bayesncl-nodetach"])
def test_gradients(method: str) -> None:
    model = flat_model(tiny_recipe(method, "model.hidden=7"))
    names, weights = zip(*model.named_parameters())
    features = model(X)
    loss = info_nce(features.gated) + 0.3 * bernoulli_kl(GATES["ste"].probability(features.logits), 0.8)
    found = torch.autograd.grad(loss, weights)
    expected = torch.autograd.grad(slow_loss(model, 0.3), weights)
    for name, a, b in zip(names, found, expected):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8, msg=name)


def test_weights_depend_only_on_the_seed() -> None:
    before = torch.get_rng_state()
    first = build_model(tiny_recipe()).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again = build_model(tiny_recipe()).state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in again.items())
    other = build_model(tiny_recipe("bayesncl", "run.seed=1")).state_dict()
    matrices = [name for name, t in first.items() if name.endswith("weight") and t.ndim > 1]
    assert not any(torch.equal(first[name], other[name]) for name in matrices)


def warm(recipe: Recipe) -> Encoder:
    """A model whose running statistics and gates are not those of a fresh one."""
    model = build_model(recipe).train()
    with torch.no_grad():
        for seed in range(4):
            model(model.normalize_pixels(torch.from_numpy(tiny_images(32, seed=seed).pixels)))
    return model


@pytest.fixture(scope="module")
def model() -> Encoder:
    return warm(tiny_recipe()).eval()


def test_keep(model: Encoder) -> None:
    raw = tiny_images(8).pixels
    z = model.encode(raw).numpy()
    for keep in (1, 3, D):
        strongest = unit(np.where(z < np.sort(z)[:, [-keep]], 0, z))
        np.testing.assert_allclose(model.encode(raw, n_active=keep), strongest, atol=1e-6)


def test_encode_takes_images_in_any_form(model: Encoder, tmp_path: Path) -> None:
    raw = tiny_images(4).pixels
    wanted = model.encode(raw)
    last, tensor = raw.transpose(0, 2, 3, 1), torch.from_numpy(raw)
    reversed_twice = np.ascontiguousarray(raw[:, ::-1])[:, ::-1]
    arrays = [last, reversed_twice, raw / 255, tensor, tensor.float() / 255]
    pictures, paths = [Image.fromarray(image) for image in last], []
    for i, picture in enumerate(pictures):
        paths.append(tmp_path / f"{i}.png")
        picture.save(paths[-1])
    opened = [Image.open(path) for path in paths]
    for same in (*arrays, pictures, paths, [str(path) for path in paths], opened):
        torch.testing.assert_close(model.encode(same), wanted, atol=1e-5, rtol=0)
    for one in (raw[0], last[0], paths[0], opened[0]):
        torch.testing.assert_close(model.encode(one), wanted[:1], atol=1e-6, rtol=0)
    torch.testing.assert_close(model.encode(raw, batch=2), wanted, atol=1e-6, rtol=0)
    odd = [Image.new("L", (40, 30), 99), Image.new("RGBA", (9, 70), (1, 2, 3, 0)), Image.new("P", (16, 16))]
    assert model.encode(odd).shape == (3, D)
    gray = raw[:, :1]
    wanted = model.encode(gray.repeat(3, 1))
    for same in (gray, gray.transpose(0, 2, 3, 1)):
        assert torch.equal(model.encode(same), wanted)
    torch.testing.assert_close(model.encode(gray[0, 0]), wanted[:1], atol=1e-6, rtol=0)


def test_encode_refuses(model: Encoder) -> None:
    for images, word in (
        (np.zeros((5, 16, 16), np.uint8), r"\[5, 16, 16\]"),
        (np.zeros((2, 3, 0, 4), np.uint8), r"\[2, 3, 0, 4\]"),
        (np.zeros((2, 3, 4, 4), np.int64), "uint8"), (np.full((2, 3, 4, 4), 255.0), "255"),
        (torch.full((2, 3, 4, 4), float("nan")), "float"), ([np.zeros((16, 16, 3))], "ndarray"),
        (["a.png"], "a.png"), (__file__, "test_encoder"), ({"a": 1}, "dict"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=word):
            model.encode(images)


PAPER = [
    "data.mean=0.4,0.5,0.6", "data.paper_mean=0.45,0.5,0.55",
    "data.std=0.2,0.25,0.3", "data.paper_std=0.3,0.3,0.2",
]  # fmt: skip


def batch_norm_by_hand(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """With the mean and the biased variance of the batch at hand, per channel."""
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    weight, bias = (p.view(-1, 1, 1) for p in (layer.weight, layer.bias))
    return (x - mean) / (variance + layer.eps).sqrt() * weight + bias


@torch.no_grad()
def paper_by_hand(model: Encoder, images: Images, batch: int) -> list[np.ndarray]:
    """h, z, gated and open of the published evaluation: batches in order, with their own BatchNorm statistics."""
    data = model.recipe.data
    parts = []
    for start in range(0, len(images), batch):
        raw = torch.from_numpy(images.pixels[start : start + batch])
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.paper_mean, data.paper_std))
        y = (raw / 255 - mean) / std
        for layer in model.backbone.layers:
            y = batch_norm_by_hand(y, layer) if isinstance(layer, nn.BatchNorm2d) else layer(y)
        h = y.mean((2, 3))
        z = torch.relu(model.head.projector(h))
        z = z / z.norm(dim=1, keepdim=True)
        opened = torch.sigmoid(model.gate(h)) > 0.5
        gated = z * opened
        gated = gated / gated.norm(dim=1, keepdim=True).clamp_min(1e-12)
        parts.append((h, z, gated, opened))
    return [torch.cat(part).numpy() for part in zip(*parts)]


def assert_same(found: Extracted, wanted: list[np.ndarray], atol: float = 2e-4) -> None:
    for name, array in zip(("h", "z", "gated"), wanted):
        np.testing.assert_allclose(getattr(found, name), array, atol=atol, err_msg=name)
    assert (found.open == wanted[3]).mean() > 0.999


def test_paper_mode_is_the_published_loop() -> None:
    images = tiny_images(45)
    model = warm(tiny_recipe("bayesncl", *PAPER))
    one_left = extract(model, tiny_images(33), "paper")  # a batch of one image, a map of 1 x 1
    assert np.isfinite(one_left.gated).all()
    found = extract(model, images, "paper")  # batches of 16, 16, 13
    assert_same(found, paper_by_hand(model, images, 16))
    assert_same(extract(model, images, "paper", batch=20), paper_by_hand(model, images, 20))
    # it does depend on the batch and the order, and on the pixel statistics: the test above is of something
    assert np.abs(found.z - extract(model, images, "paper", batch=20).z).max() > 1e-2
    order = np.argsort(images.labels, kind="stable")
    by_class = dataclasses.replace(images, pixels=images.pixels[order], labels=images.labels[order])
    assert_same(extract(model, by_class, "paper"), paper_by_hand(model, by_class, 16))
    assert np.abs(extract(model, by_class, "paper").z - found.z[order]).max() > 1e-2


def test_sound_mode_and_encode_are_the_forward_pass_in_eval_mode() -> None:
    images = tiny_images(45)
    model = warm(tiny_recipe("bayesncl", *PAPER))
    found = extract(model, images, "sound")
    for batch in (1, 7, 45):
        again = extract(model, images, "sound", batch=batch)
        for name in ("h", "z", "gated"):
            np.testing.assert_allclose(getattr(again, name), getattr(found, name), atol=1e-5)
        assert (again.open == found.open).all()
    model.eval()
    with torch.no_grad():
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.recipe.data.mean, model.recipe.data.std))
        wanted = model((torch.from_numpy(images.pixels).float() / 255 - mean) / std)
    for gated, tensor in ((found.gated, wanted.gated), (found.z, wanted.z)):
        np.testing.assert_allclose(gated, tensor, atol=1e-5)
        np.testing.assert_allclose(model.encode(images.pixels, gated is found.gated), tensor, atol=1e-6)
    assert not np.allclose(found.gated, found.z, atol=1e-3)
    assert np.array_equal(found.open, wanted.logits.numpy() > 0)


def state(model: Encoder) -> dict[str, Tensor]:
    tensors = {**model.state_dict(), "mean": model.mean, "std": model.std}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_evaluation_changes_nothing() -> None:
    model, images = warm(tiny_recipe("bayesncl", "data.name=arrays")), tiny_images(40)
    before, rng = state(model), torch.get_rng_state()
    extract(model, images, "sound")
    extract(model, images, "paper")
    model.encode(images.pixels)
    evaluate(model, images, images)
    for name, tensor in state(model).items():
        assert torch.equal(tensor, before[name]), name
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert {module.training for module in model.modules()} == {True}
    norms = [m for m in model.modules() if isinstance(m, ViewBatchNorm2d)]
    assert not any(m.batch_only or m.seen is not None for m in norms)
    assert torch.equal(torch.get_rng_state(), rng)


def test_features_are_of_the_center() -> None:
    images = tiny_images(20, size=24)
    model = warm(tiny_recipe("bayesncl", "data.size=24"))  # views of 16
    middle = Images(images.pixels[:, :, 4:20, 4:20])
    for mode in ("sound", "paper"):
        assert np.array_equal(extract(model, images, mode).gated, extract(model, middle, mode).gated)
