"""Feature extraction: `sound` and `paper` against slow loops; evaluation changes nothing."""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor, nn

from bayesncl.data.images import Images
from bayesncl.evaluate import evaluate
from bayesncl.method.backbones import ViewBatchNorm2d
from bayesncl.method.encoder import Encoder, Extracted, build_model, extract
from bayesncl.recipes import Recipe
from tests.conftest import tiny_images, tiny_recipe

PAPER = [
    "data.mean=0.4,0.5,0.6", "data.paper_mean=0.45,0.5,0.55",
    "data.std=0.2,0.25,0.3", "data.paper_std=0.3,0.3,0.2",
]  # fmt: skip


def warm(recipe: Recipe) -> Encoder:
    """A model whose running statistics and gates are not those of a fresh one."""
    model = build_model(recipe).train()
    with torch.no_grad():
        for seed in range(4):
            model(model.normalize_pixels(torch.from_numpy(tiny_images(32, seed=seed).pixels)))
    return model


def batch_norm_by_hand(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """Channel by channel, with the mean and the biased variance of the batch at hand."""
    out = torch.empty_like(x)
    for c in range(x.shape[1]):
        values = x[:, c].double()
        mean = values.sum() / values.numel()
        variance = ((values - mean) ** 2).sum() / values.numel()
        normal = (values - mean) / math.sqrt(variance + layer.eps)
        out[:, c] = normal * layer.weight[c].item() + layer.bias[c].item()
    return out


@torch.no_grad()
def paper_by_hand(model: Encoder, images: Images, batch: int) -> list[np.ndarray]:
    """h, z, gated and open of the published evaluation: batches in order, with their own BatchNorm statistics."""
    data = model.recipe.data
    parts = []
    for start in range(0, len(images), batch):
        raw = images.pixels[start : start + batch]
        x = np.empty(raw.shape, np.float32)
        for c in range(3):
            mean, std = (data.paper_mean or data.mean)[c], (data.paper_std or data.std)[c]
            x[:, c] = (raw[:, c] / 255 - mean) / std
        y = torch.from_numpy(x)
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
