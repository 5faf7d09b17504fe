"""Per-view BatchNorm in its two forms, and the shapes and initial weights of the backbones."""


import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesncl.method.backbones import (
    Block,
    ViewBatchNorm2d,
    build_backbone,
    update_running_statistics,
)
from bayesncl.recipes import Model


def layer(channels=3):
    torch.manual_seed(1)
    norm = ViewBatchNorm2d(channels).double().train()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def one_after_the_other(norm, x):
    """The definition: a plain BatchNorm2d forwarded on each view in turn."""
    plain = nn.BatchNorm2d(norm.num_features).double().train()
    plain.load_state_dict(norm.state_dict())
    return torch.cat([plain(part) for part in x.chunk(2)]), plain


@pytest.mark.parametrize("fused", [False, True], ids=["built-in", "fused"])
def test_per_view_statistics(fused):
    """Values, gradients of everything and running statistics, of the CPU's form and of the GPU's."""
    x = torch.randn(8, 3, 5, 4, dtype=torch.float64)
    weight = torch.randn_like(x)
    norm = layer()
    expected, plain = one_after_the_other(norm, first := x.clone().requires_grad_())
    got = (norm._normalize_parts if fused else norm)(second := x.clone().requires_grad_())
    update_running_statistics(norm)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    (expected * weight).sum().backward()
    (got * weight).sum().backward()
    torch.testing.assert_close(second.grad, first.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad)
    torch.testing.assert_close(norm.bias.grad, plain.bias.grad)
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    torch.testing.assert_close(norm.running_var, plain.running_var)
    assert norm.seen is None


@pytest.mark.parametrize(
    ("backbone", "stem", "size", "features", "parameters"),
    [
        ("resnet18", "cifar", 32, 512, 11_168_832),
        ("resnet18", "imagenet", 64, 512, 11_176_512),
        ("resnet50", "imagenet", 64, 2048, 23_508_032),
        ("small", "cifar", 32, 256, 388_896),
    ],
)
def test_shapes(backbone, stem, size, features, parameters):
    net = build_backbone(Model(backbone=backbone, stem=stem)).eval()
    h = net(torch.randn(2, 3, size, size))
    assert h.shape == (2, features) == (2, net.features)
    assert (h >= 0).all()  # post-ReLU
    assert sum(p.numel() for p in net.parameters()) == parameters


def test_initial_weights():
    """Kaiming-normal by fan out everywhere but in the CIFAR stem, which keeps PyTorch's uniform default."""
    torch.manual_seed(0)
    net = build_backbone(Model())
    stem = net.stem[0].weight
    assert stem.abs().max() <= 1 / 27**0.5
    assert stem.std().item() == pytest.approx(1 / (3 * 27) ** 0.5, rel=0.1)
    inner = net.blocks[-1].conv2.weight
    assert inner.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in net.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize(("stride", "bottleneck"), [(1, False), (2, False), (1, True), (2, True)])
def test_a_block_is_what_it_says(stride: int, bottleneck: bool) -> None:
    """Convolutions and BatchNorm with ReLU between, the shortcut added before the last ReLU."""
    torch.manual_seed(0)
    inputs = 32 if bottleneck else 8
    block = Block(inputs, 8, stride, bottleneck).eval()
    for norm in (module for module in block.modules() if isinstance(module, ViewBatchNorm2d)):
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)

    def normed(norm: ViewBatchNorm2d, x: Tensor) -> Tensor:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)

    x = torch.randn(3, inputs, 6, 6)
    y = normed(block.bn2, block.conv2(F.relu(normed(block.bn1, block.conv1(x)))))
    if bottleneck:
        y = normed(block.bn3, block.conv3(F.relu(y)))
    plain = not len(block.shortcut)
    beside = x if plain else normed(block.shortcut[1], block.shortcut[0](x))  # type: ignore[index]
    assert plain == (stride == 1)
    torch.testing.assert_close(block(x), F.relu(y + beside))
