"""The kernels between convolutions against the same formulas as written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.backbones import ResNet, ViewBatchNorm2d, build_backbone, kernels_in_use, set_views
from bayesncl.recipes import Model

pytestmark = pytest.mark.gpu

# images, channels, height, width; views: channels and rows that fill no tile, and many of both
SHAPES = [((4, 32, 5, 5), 2), ((6, 130, 3, 2), 3), ((2, 64, 1, 1), 1), ((64, 64, 34, 34), 2), ((32, 512, 5, 5), 2)]


def layer(channels: int, views: int, relu: bool) -> ViewBatchNorm2d:
    norm = ViewBatchNorm2d(channels).cuda().train()
    norm.views, norm.relu = views, relu
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    return norm


def outcome(norm: ViewBatchNorm2d, x: Tensor, shortcut: Tensor | None, g: Tensor) -> list[Tensor]:
    """Result, statistics, and gradients by x, weight, bias and shortcut."""
    inputs = [t.detach().requires_grad_() for t in (x, shortcut) if t is not None]
    y = norm(*inputs)
    assert norm.seen is not None
    return [y.detach(), *norm.seen, *torch.autograd.grad(y, [*inputs, norm.weight, norm.bias], g)]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("with_shortcut", [True, False])
@pytest.mark.parametrize(("shape", "views"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_computes_what_is_written(
    shape: tuple[int, ...], views: int, dtype: torch.dtype, with_shortcut: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    if shape[0] // views * shape[2] * shape[3] < 2:
        shape = (4, *shape[1:])
    norm = layer(shape[1], views, relu)
    x, s, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(3))
    x = (2 * x + 1).contiguous(memory_format=torch.channels_last)
    shortcut = s if with_shortcut else None
    written = outcome(norm, x, shortcut, g)
    with kernels_in_use():
        ours = outcome(norm, x, shortcut, g)
    for name, a, b in zip(("y", "mean", "variance", "dx", "d1", "d2", "d3"), ours, written):
        assert a.dtype == b.dtype and a.shape == b.shape, name
        apart = (a.float() - b.float()).norm() / b.float().norm()
        assert apart < (1e-5 if dtype == torch.float32 else 2e-2), (name, float(apart))


def test_the_same_input_gives_the_same_bits() -> None:
    norm = layer(64, 2, True)
    x, g = (torch.randn(32, 64, 17, 17, device="cuda").bfloat16() for _ in range(2))
    with kernels_in_use():
        first, second = outcome(norm, x, None, g), outcome(norm, x, None, g)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_a_resnet_has_the_gradients_of_the_one_as_written(backbone: str) -> None:
    torch.manual_seed(0)
    net = build_backbone(Model(backbone=backbone)).cuda().to(memory_format=torch.channels_last).train()
    assert isinstance(net, ResNet)
    set_views(net, 2)
    x = torch.randn(16, 3, 32, 32, device="cuda")
    target = torch.randn(16, net.features, device="cuda")

    def gradients() -> dict[str, Tensor]:
        net.zero_grad(set_to_none=True)
        F.mse_loss(net(x), target).backward()
        return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}

    written = gradients()
    with kernels_in_use():
        ours = gradients()
    assert ours.keys() == written.keys() and len(ours) == len(list(net.parameters()))
    for name, g in written.items():
        assert (ours[name] - g).norm() < 2e-2 * g.norm() + 1e-6, name
