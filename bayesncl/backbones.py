"""Backbones h = f(x): ResNet-18 and -50 with a CIFAR or an ImageNet stem, a small one for CPUs, or any of timm's.

BatchNorm takes its statistics over one view at a time, although both views pass through the convolutions together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import distributed
from .errors import InputError, import_extra, or_refuse
from .recipes import Model


class Kernels:
    """Whether layers take the kernels of `kernels`; set by `use_kernels`."""

    on = False


class ViewBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose batch statistics are those of each of `views` equal parts of the batch.

    The parts update the running statistics one after the other, as if they had been forwarded one after the other.
    With several processes the statistics of a part are taken over all of them. A shortcut is added to the result, and
    with `relu` negative values become 0.
    """

    views = 1
    relu = False
    batch_only = False  # the published evaluation: the batch's own statistics; running ones neither used nor changed
    seen: tuple[Tensor, Tensor] | None = None  # mean and unbiased variance [views, C] not yet in the running statistics

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:  # [views * B, C, H, W]
        if Kernels.on and self.training and not self.batch_only:
            from .kernels.norms import NormReLU

            y, *seen = NormReLU.apply(x, self.weight, self.bias, shortcut, self.views, self.eps, int(self.relu))
            self.seen = tuple(seen)
            return y
        y = self.normalise(x) if shortcut is None else self.normalise(x) + shortcut
        return F.relu(y) if self.relu else y

    def normalise(self, x: Tensor) -> Tensor:
        """BatchNorm without shortcut and ReLU."""
        if self.batch_only:
            # not F.batch_norm, which refuses a last batch of one image once the map is 1 x 1: then y = bias
            cudnn = torch.backends.cudnn.enabled
            return torch.batch_norm(x, self.weight, self.bias, None, None, True, 0.0, self.eps, cudnn)
        if not self.training:
            return super().forward(x)
        if x.is_cuda:
            return self._normalise_parts(x)
        if distributed.world_size() > 1:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(self.views)  # as the built-in kernel below counts them
            return self._normalise_parts(x)
        # on a CPU the built-in kernel, a part at a time, is the fastest
        return torch.cat([super(ViewBatchNorm2d, self).forward(part) for part in x.chunk(self.views)])

    def _normalise_parts(self, x: Tensor) -> Tensor:
        """All parts at once: for the compiler to fuse, and for statistics over all processes."""
        mean, var = part_statistics(x.detach(), self.views)
        n = part_size(x, self.views)
        self.seen = mean, var * (n / (n - 1))
        return _PartNorm.apply(x, self.weight, self.bias, mean, torch.rsqrt(var + self.eps))


def part_statistics(x: Tensor, views: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [V, C] of each part of x [V * B, C, H, W], over all processes, in float32 or better."""
    f = x.float() if x.dtype != torch.float64 else x
    n = part_size(x, views)
    mean, square = (distributed.all_reduce_sum(sum_parts(t, views)) / n for t in (f, f.square()))
    return mean, (square - mean.square()).clamp_min(0)


class _PartNorm(torch.autograd.Function):
    """y = (x - mean) inverse weight + bias for x [V * B, C, H, W] and the statistics [V, C] of its parts.

    With inverse = 1 / sqrt(var + eps), x^ = (x - mean) inverse and means over a part,
    dx = weight inverse (g - mean(g) - x^ mean(g x^)). The last two terms are the gradient through mean and inverse,
    which get none of their own: they must be those of x.
    Written out because the compiler makes of it one reduction and one pass over memory each way.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        y = (x - wide(mean, x)) * wide(inverse * weight, x) + bias[:, None, None]  # in the type of the statistics
        # torch 2.11 compiles a function whose result went through a cast that casts nothing without its gradient
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        g = gradients[0].to(mean.dtype)
        normal = (x - wide(mean, x)) * wide(inverse, x)
        sum_g, sum_gx = sum_parts(g, len(mean)), sum_parts(g * normal, len(mean))
        n = part_size(x, len(mean))
        mean_g, mean_gx = distributed.all_reduce_sum(sum_g) / n, distributed.all_reduce_sum(sum_gx) / n
        dx = wide(inverse * weight, x) * (g - wide(mean_g, x) - normal * wide(mean_gx, x))
        return dx.to(x.dtype), sum_gx.sum(0), sum_g.sum(0), None, None


def part_size(x: Tensor, views: int) -> int:
    """Values per channel of one part of x [V * B, C, H, W], over all processes."""
    return x.numel() // (views * x.shape[1]) * distributed.world_size()


def sum_parts(x: Tensor, views: int) -> Tensor:
    """Sums [V, C] over each part of x [V * B, C, H, W].

    Image by image at first: to view x itself in V parts would make the compiler store it with its channels apart.
    """
    return x.sum((2, 3)).unflatten(0, (views, -1)).sum(1)


def wide(channels: Tensor, x: Tensor) -> Tensor:
    """[V, C] to [V * B, C, 1, 1], for x [V * B, C, H, W]."""
    return channels.repeat_interleave(len(x) // len(channels), 0)[:, :, None, None]


@torch.no_grad()
def update_running_statistics(model: nn.Module) -> None:
    """Take what the layers saw into their running statistics, part after part; all layers in a few fused operations."""
    layers = [module for module in model.modules() if isinstance(module, ViewBatchNorm2d) and module.seen is not None]
    if not layers:
        return
    for part in range(layers[0].views):
        for running, which in (("running_mean", 0), ("running_var", 1)):
            now = [getattr(layer, running) for layer in layers]
            new = [layer.seen[which][part] for layer in layers if layer.seen is not None]
            torch._foreach_lerp_(now, new, layers[0].momentum or 0.0)
    for layer in layers:
        layer.seen = None


def set_views(model: nn.Module, views: int) -> None:
    """Set how many views the coming batches hold."""
    for module in model.modules():
        if isinstance(module, ViewBatchNorm2d):
            module.views = views


@contextlib.contextmanager
def use_kernels() -> Iterator[None]:
    """Within: training on a GPU in one process takes our own kernels."""
    before, Kernels.on = Kernels.on, True
    try:
        yield
    finally:
        Kernels.on = before


@contextlib.contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Within: every BatchNorm uses the statistics of the batch it is given and changes nothing of its own."""
    layers = [module for module in model.modules() if isinstance(module, ViewBatchNorm2d)]
    try:
        for layer in layers:
            layer.batch_only = True
        yield
    finally:
        for layer in layers:
            layer.batch_only = False


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, Kaiming-normal (fan out) as in the original ResNets."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    if not layer.weight.is_meta:  # of which shapes are wanted alone: torch would import sympy, for a second
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def norm_relu(width: int) -> ViewBatchNorm2d:
    """BatchNorm and ReLU."""
    layer = ViewBatchNorm2d(width)
    layer.relu = True
    return layer


class MaxPool(nn.MaxPool2d):
    """The largest of 3 x 3, at every second place."""

    def __init__(self) -> None:
        super().__init__(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        if Kernels.on:
            from .kernels import pool

            return pool.MaxPool.apply(x)
        return super().forward(x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), norm_relu(width)
        self.conv2, self.bn2 = conv(width, width, 3), norm_relu(width)
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x))
        return self.bn2(self.conv2(y), self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1 and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 1), norm_relu(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), norm_relu(width)
        self.conv3, self.bn3 = conv(width, 4 * width, 1), norm_relu(4 * width)
        self.shortcut = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x))
        y = self.bn2(self.conv2(y))
        return self.bn3(self.conv3(y), self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Identity where shapes agree, else a 1x1 convolution with BatchNorm."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), ViewBatchNorm2d(outputs))


class ResNet(nn.Module):
    """Four stages of blocks after a stem, averaged over space. h [N, features] is non-negative (post-ReLU)."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], model: Model) -> None:
        super().__init__()
        if model.stem == "cifar":
            # 3x3 at full resolution, PyTorch's default initialisation; padding 2 makes a 34 x 34 map of 32 x 32 pixels
            self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, model.stem_padding, bias=False), norm_relu(64))
        else:
            self.stem = nn.Sequential(conv(3, 64, 7, 2), norm_relu(64), MaxPool())
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            for i in range(depth):
                blocks.append(block(inputs, width, 2 if stage and i == 0 else 1))
                inputs = block.expansion * width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.features = inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(x))).flatten(1)


class Small(nn.Module):
    """Four convolutions with BatchNorm, for CPUs: 3.8 million multiply-adds at 32 x 32, 15 with stride 1 first."""

    features = 256

    def __init__(self, strides: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        layers: list[nn.Module] = []
        for inputs, outputs, stride in zip(widths, widths[1:], strides):
            layers += [conv(inputs, outputs, 3, stride), ViewBatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.layers(x)).flatten(1)


class Timm(nn.Module):
    """A timm model without its classifier; its BatchNorm layers, if any, become per-view ones."""

    def __init__(self, name: str) -> None:
        super().__init__()
        timm = import_extra("timm", f"backbone timm:{name} needs the extra: pip install 'bayesncl[timm]'")
        with or_refuse(f"timm has no model {name!r}", RuntimeError):
            if not timm.is_model(name):  # a stranger's recipe may say hf-hub:..., which would be fetched
                raise RuntimeError("not one of its own")
            self.body = timm.create_model(name, pretrained=False, num_classes=0)
        per_view(self.body)
        self.features = int(self.body.num_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def per_view(model: nn.Module) -> None:
    """Give every plain BatchNorm2d of a foreign model per-view statistics, in place; subclasses stay as they are."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = ViewBatchNorm2d


# What a recipe may name, besides timm:NAME.
BACKBONES: dict[str, Callable[[Model], nn.Module]] = {
    "resnet18": lambda model: ResNet(BasicBlock, (2, 2, 2, 2), model),
    "resnet50": lambda model: ResNet(Bottleneck, (3, 4, 6, 3), model),
    "small": lambda _: Small(),
    "medium": lambda _: Small((1, 2, 2, 2)),
}


def build_backbone(model: Model) -> nn.Module:
    """The backbone a recipe names; `.features` is the width of h."""
    if model.backbone.startswith("timm:"):
        return Timm(model.backbone[5:])
    if model.backbone not in BACKBONES:
        raise InputError(f"no backbone {model.backbone!r}; there are {', '.join(BACKBONES)} and timm:NAME")
    return BACKBONES[model.backbone](model)
