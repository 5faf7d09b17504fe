"""The published probe against a loop over its steps."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.method.augment import make_views
from bayesncl.paper import probe as published
from bayesncl.recipes import Views


class Backbone(nn.Module):
    """A few random filters with BatchNorm and dropout, so that the mode matters."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 10, 3, stride=2)
        self.norm, self.drop = nn.BatchNorm2d(10), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x)).relu()).mean((2, 3))


HALVES = (0.5,) * 3, (0.25,) * 3  # mean and standard deviation of the pixels


def colored(n: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    pixels = rng.integers(0, 120, (n, 3, 12, 12))
    pixels[np.arange(n), labels] += 60
    return Images(pixels.astype(np.uint8), labels + 4)


def slow_paper_probe(
    net: Backbone, train: Images, test: Images, variant: str, epochs: int, batch: int, seed: int
) -> float:
    """One classifier in plain numpy, step by step from the protocol."""
    net.eval()
    size, classes = 12, np.unique(train.labels)
    interpolation = "bilinear" if variant == "cifar" else "bicubic"
    views = Views(size=size, interpolation=interpolation, jitter=0, grayscale=0, blur=0)
    head = published.make_head(10, len(classes), seed)
    params = [head.weight.detach().numpy().astype(float), head.bias.detach().numpy().astype(float)]
    v = [np.zeros_like(p) for p in params]
    steps, t = len(train) // batch, 0
    base = (0.4 if variant == "cifar" else 1.0) * batch / 256
    for epoch in range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(train))
        for s in range(steps):
            rows = order[s * batch : (s + 1) * batch]
            pixels, index = torch.from_numpy(train.pixels[rows]), torch.from_numpy(rows)
            x = make_views(pixels, index, epoch, seed, views)[:batch]
            with torch.no_grad():
                h = net((x - 0.5) / 0.25).double().numpy()
            logits = h @ params[0].T + params[1]
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(batch), np.searchsorted(classes, train.labels[rows])] -= 1
            grads = [p.T @ h / batch, p.sum(0) / batch]
            lr, warm = base, min(10, epochs - 1) * steps
            if variant == "cifar":
                if t < warm:
                    lr = 3e-5 + t * (base - 3e-5) / (warm - 1)
                else:
                    lr = base * (1 + math.cos(math.pi * (t - warm) / (epochs * steps - warm))) / 2
                w, g = np.linalg.norm(params[0]), np.linalg.norm(grads[0])
                trust = 0.02 * w / (g + 1e-4 * w + 1e-8)
                grads[0] = min(trust / lr, 1) * (grads[0] + 1e-4 * params[0])
            for i in range(2):
                v[i] = 0.9 * v[i] + grads[i]
                params[i] = params[i] - lr * v[i]
            t += 1
    with torch.no_grad():
        h = net((torch.from_numpy(test.pixels) / 255 - 0.5) / 0.25).double().numpy()
    predicted = classes[np.argmax(h @ params[0].T + params[1], axis=1)]
    return 100 * float((predicted == test.labels).mean())


def run(net: Any, train: Images, test: Images, **options: Any) -> dict[str, Any]:
    return published.paper_probe(net, train, test, *HALVES, **{"device": "cpu"} | options)


@pytest.mark.parametrize("variant", ["cifar", "imagenet"])
def test_the_probe_follows_the_published_steps(variant: str) -> None:
    train, test, net = colored(70, 0), colored(40, 1), Backbone()
    found = run(net, train, test, variant=variant, epochs=12, batch=16, seeds=(3,))
    slow = slow_paper_probe(net, train, test, variant, 12, 16, 3)
    assert found["acc1"] == pytest.approx(slow, abs=1e-6)
    assert 45 < found["acc1"] <= found["acc1_best"] and found["acc5"] == 100


def test_seeds_that_share_the_backbone_are_independent() -> None:
    train, test, net = colored(64, 2), colored(50, 3), Backbone()
    together = run(net, train, test, epochs=3, batch=32, seeds=(3, 8, 9))
    alone = run(net, train, test, epochs=3, batch=32, seeds=(3,))
    assert together["acc1_per_seed"][0] == alone["acc1"]
    assert len(set(together["acc1_per_seed"])) > 1, "different initial weights"


def test_the_probe_leaves_the_backbone_as_it_was() -> None:
    net, train = Backbone().train(), colored(64, 4)
    net.conv.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    run(net, train, train, epochs=2, batch=32)
    assert net.training and not net.conv.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_the_backbone_sees_the_center_in_testing() -> None:
    seen: list[Tensor] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(x)
        return x.mean((2, 3))

    images, plain = colored(32, 5), ((0.0,) * 3, (1.0,) * 3)
    options: Any = {"epochs": 1, "batch": 32, "seeds": (3,), "size": 8, "device": "cpu"}
    published.paper_probe(spy, images, images, *plain, **options)
    torch.testing.assert_close(seen[0], torch.from_numpy(images.pixels[:, :, 2:10, 2:10]) / 255)
    assert seen[1].shape == seen[0].shape


def test_bad_input_is_refused() -> None:
    images = colored(32, 6)
    for train, keyword in ((images, "33"), (Images(images.pixels), "labels")):
        with pytest.raises(InputError, match=keyword):
            run(Backbone(), train, images, batch=33)


@pytest.mark.gpu
def test_gpu_and_cpu_agree() -> None:
    train, net = colored(64, 2), Backbone().cuda()
    assert run(net, train, train, epochs=12, batch=32, device="cuda")["acc1"] > 45
    options: Any = {"epochs": 4, "batch": 32, "precision": "float32"}
    for variant in ("cifar", "imagenet"):
        cpu, gpu = (
            run(net.to(d), train, train, variant=variant, device=d, **options)["acc1"]
            for d in ("cpu", "cuda")
        )
        assert gpu == pytest.approx(cpu, abs=3.2)  # two of the 64 images
