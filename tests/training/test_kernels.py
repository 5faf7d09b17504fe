"""The Triton kernels against the same formulas in torch."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from bayesncl.method import augment
from bayesncl.method.backbones import MaxPool, ResNet, ViewBatchNorm2d, build_backbone
from bayesncl.method.encoder import build_model
from bayesncl.method.lars import LARS
from bayesncl.recipes import Model, Views, change, named
from bayesncl.training.compile import (
    choose_parts,
    draw_with_kernel,
    embed_with_kernels,
    use_kernels,
)
from bayesncl.training.step import Batch, Parts, forward

pytestmark = pytest.mark.gpu

# (images, channels, height, width), views: some fill no tile, some fill many
SHAPES = [
    ((4, 32, 5, 5), 2), ((6, 130, 3, 2), 3), ((4, 64, 1, 1), 1), ((64, 64, 34, 34), 2),
    ((32, 512, 5, 5), 2),
]  # fmt: skip


def layer(channels: int, views: int, relu: bool) -> ViewBatchNorm2d:
    norm = ViewBatchNorm2d(channels).cuda().train()
    norm.views, norm.relu = views, relu
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    return norm


def outcome(norm: ViewBatchNorm2d, x: Tensor, shortcut: Tensor | None, g: Tensor) -> list[Tensor]:
    """Result, statistics, and gradients by x, shortcut, weight and bias."""
    inputs = [t.detach().requires_grad_() for t in (x, shortcut) if t is not None]
    y = norm(*inputs)
    assert norm.seen is not None
    return [y.detach(), *norm.seen, *torch.autograd.grad(y, [*inputs, norm.weight, norm.bias], g)]


def apart(a: Tensor, b: Tensor) -> float:
    """Distance of a from b, as a share of the length of b."""
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("with_shortcut", [True, False])
@pytest.mark.parametrize(("shape", "views"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_as_exact_as_in_torch(
    shape: tuple[int, ...], views: int, dtype: torch.dtype, with_shortcut: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    norm = layer(shape[1], views, relu)
    x, s, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(3))
    x = (2 * x + 1).contiguous(memory_format=torch.channels_last)
    shortcut = s if with_shortcut else None
    double = None if shortcut is None else s.double()
    exact = outcome(copy.deepcopy(norm).double(), x.double(), double, g.double())
    written = outcome(norm, x, shortcut, g)
    with use_kernels():
        ours = outcome(norm, x, shortcut, g)
    names = ("y", "mean", "variance", "dx", "d1", "d2", "d3")
    for name, a, b, c in zip(names, ours, written, exact):
        assert a.dtype == b.dtype and a.shape == b.shape, name
        # an entry near 0 may fall on either side of the ReLU
        assert apart(a, c) < 3 * apart(b, c) + (3e-3 if relu else 1e-5), name


def test_the_same_input_gives_the_same_bits() -> None:
    norm = layer(64, 2, True)
    x, g = (torch.randn(32, 64, 17, 17, device="cuda").bfloat16() for _ in range(2))
    with use_kernels():
        first, second = outcome(norm, x, None, g), outcome(norm, x, None, g)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_nan_passes_through() -> None:
    """A run stops when its loss is not finite, so ReLU and maximum must not hide NaN."""
    x = torch.randn(4, 64, 8, 8, device="cuda")
    x[0, 3, 2, 2] = float("nan")
    with use_kernels():
        y, pooled = layer(64, 2, True)(x), MaxPool(3, 2, 1)(x)
    assert y[:2, 3].isnan().all()
    assert not y[2:].isnan().any() and not y[:, 4:].isnan().any()
    assert torch.equal(pooled.isnan(), torch.nn.functional.max_pool2d(x, 3, 2, 1).isnan())


@pytest.mark.parametrize(
    "shape", [(2, 64, 7, 9), (3, 70, 8, 8), (1, 5, 1, 2), (16, 64, 112, 112)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_is_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    pool = MaxPool(3, 2, 1)
    x = torch.randn(shape, device="cuda").relu().to(dtype).requires_grad_()  # many equal zeros
    written = pool(x)
    with use_kernels():
        ours = pool(x)
    g = torch.randn_like(written)
    assert torch.equal(ours, written)
    a, b = (torch.autograd.grad(y, x, g)[0] for y in (ours, written))
    assert apart(a, b) < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_gradients_of_a_resnet(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    stem = "cifar" if backbone == "resnet18" else "imagenet"
    net = build_backbone(Model(backbone=backbone, stem=stem)).cuda().train()
    net = net.to(memory_format=torch.channels_last)
    assert isinstance(net, ResNet)
    x = torch.randn(16, 3, 32, 32, device="cuda")

    def gradients(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
        net.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}

    exact = gradients(copy.deepcopy(net).double(), x.double())
    written = gradients(net, x)
    with use_kernels():
        ours = gradients(net, x)
    assert ours.keys() == exact.keys() and len(ours) == len(list(net.parameters()))
    worst = max(apart(written[name], g) for name, g in exact.items())
    for name, g in exact.items():
        assert apart(ours[name], g) < 3 * worst + 1e-4, name


def smooth(count: int, height: int, width: int) -> Tensor:
    coarse = torch.rand(count, 3, 6, 6)
    pixels = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return pixels.clamp(0, 1).mul(255).to(torch.uint8).cuda()


CIFAR = named("cifar100-bayesncl").views


@pytest.mark.parametrize(
    ("views", "size"),
    [
        (CIFAR, (32, 32)),
        (named("cifar100-prototypes").views, (32, 32)),
        (dataclasses.replace(CIFAR, solarize=0.5, interpolation="bilinear"), (32, 32)),
        (dataclasses.replace(CIFAR, size=24), (40, 20)),
        (dataclasses.replace(CIFAR, size=64, jitter=1.0, hue=0.0), (64, 64)),
        (dataclasses.replace(CIFAR, crop_scale=(0.9, 1.0), crop_ratio=(0.2, 0.3)), (32, 32)),
    ],
)
def test_views_are_those_of_torch(views: Views, size: tuple[int, int]) -> None:
    from bayesncl.training.kernels.views import fits, make_views

    assert fits(views, size)
    torch.manual_seed(0)
    pixels, index = smooth(64, *size), torch.randint(0, 10**6, (64,), device="cuda")
    epoch, seed = torch.tensor(7, device="cuda"), torch.tensor(2**62 + 3, device="cuda")
    mean = torch.tensor([0.4, 0.5, 0.6], device="cuda")
    std = torch.tensor([0.2, 0.25, 0.3], device="cuda")
    written = augment.make_views(pixels, index, epoch, seed, views)
    written = (written - mean[:, None, None]) / std[:, None, None]
    ours = make_views(pixels, index, epoch, seed, views, mean, std)
    assert ours.shape == written.shape and ours.is_contiguous(memory_format=torch.channels_last)
    assert float((ours - written).abs().max()) < 0.05  # half precision; values span 5


def test_the_update_of_lars() -> None:
    from bayesncl.training.kernels import layers

    torch.manual_seed(0)

    def parameters() -> list[Tensor]:
        torch.manual_seed(1)
        shapes = ((64, 3, 3, 3), (130, 70), (7,))
        made = [torch.randn(shape, device="cuda") for shape in shapes]
        made[0] = made[0].contiguous(memory_format=torch.channels_last)
        return [p.requires_grad_() for p in made]

    results = []
    for kernel in (False, True):
        params = parameters()
        optimizer = LARS(params, lr=torch.tensor(0.3, device="cuda"))
        if kernel:
            optimizer.move = layers.move
        for _ in range(3):
            optimizer.zero_grad()
            sum((p.square() * (1 + p)).sum() for p in params).backward()  # type: ignore[union-attr]
            optimizer.step()
        results.append([p.detach().clone() for p in params])
    for a, b in zip(*results):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_step_with_kernels_is_the_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    recipe = change(named("cifar100-bayesncl"), ["run.batch=16"])
    model = build_model(recipe).cuda().to(memory_format=torch.channels_last).train()
    written = copy.deepcopy(model)
    pixels, index = smooth(16, 32, 32), torch.arange(16, device="cuda")
    epoch = torch.tensor(3, device="cuda")
    parts = choose_parts(model, pixels)
    assert parts == Parts(draw=draw_with_kernel, embed=embed_with_kernels)
    batch = Batch(pixels, index, epoch, torch.float32)
    ours, theirs = forward(model, batch, parts), forward(written, batch)
    assert torch.allclose(ours[1], theirs[1], rtol=1e-2)  # loss, its terms, open gates, l0
    for (name, a), b in zip(model.named_buffers(), written.buffers()):
        if name.endswith(("running_mean", "running_var")):
            assert apart(a, b) < 1e-2, name
    ours[0].backward()
    theirs[0].backward()
    for (name, p), q in zip(model.named_parameters(), written.parameters()):
        assert p.grad is not None and q.grad is not None, name
    a, b = (torch.cat([p.grad.flatten() for p in m.backbone.parameters()]) for m in (model, written))
    assert float(torch.nn.functional.cosine_similarity(a, b, 0)) > 0.9
