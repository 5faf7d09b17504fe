"""Backbones h = f(x): ResNet-18 and -50, two small networks for CPUs, and the models of timm.

Both views pass through the convolutions together, but BatchNorm takes its statistics per view.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesncl import distributed
from bayesncl.errors import InputError, as_input_error, import_extra
from bayesncl.method.gates import at_least_float32
from bayesncl.recipes import Model, check_known


class Kernels:
    """GPU kernels for BatchNorm and max-pooling in training, set by `training.compile`."""

    norm: Callable[..., Any] | None = None
    pool: Callable[[Tensor], Tensor] | None = None


class ViewBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d with separate batch statistics in training for each of the `views` of the images.

    Running statistics are updated as if the parts had been forwarded one after the other. With
    several processes, the statistics of a part cover all of them. The layer also adds a shortcut,
    if given, and applies a ReLU if `relu` is set.
    """

    views = 2  # equal parts of a batch
    relu = False
    batch_only = False  # use the batch's statistics and leave the running ones alone
    seen: tuple[Tensor, Tensor] | None = None  # mean and unbiased variance [views, C] of the batch

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:  # [views * B, C, H, W]
        if Kernels.norm is not None and self.training and not self.batch_only:
            y, *seen = Kernels.norm(
                x, self.weight, self.bias, shortcut, self.views, self.eps, int(self.relu)
            )
            self.seen = tuple(seen)
            return y
        y = self.normalize(x)
        if shortcut is not None:
            y = y + shortcut
        return F.relu(y) if self.relu else y

    def normalize(self, x: Tensor) -> Tensor:
        """BatchNorm without shortcut and ReLU."""
        if self.batch_only:
            # F.batch_norm refuses a batch of one image with a 1 x 1 map; here its output is `bias`
            cudnn = torch.backends.cudnn.enabled
            return torch.batch_norm(
                x, self.weight, self.bias, None, None, True, 0.0, self.eps, cudnn
            )
        if not self.training:
            return super().forward(x)
        if x.is_cuda:
            return self._normalize_parts(x)
        if distributed.world_size() > 1:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(self.views)  # as torch does below
            return self._normalize_parts(x)
        # on a CPU, the built-in kernel applied to each part is fastest
        return torch.cat([super(ViewBatchNorm2d, self).forward(p) for p in x.chunk(self.views)])

    def _normalize_parts(self, x: Tensor) -> Tensor:
        """All parts at once: the compiler fuses this, and it covers several processes."""
        f, n = at_least_float32(x.detach()), part_size(x, self.views)
        mean, square = (
            distributed.all_reduce_sum(sum_parts(t, self.views)) / n for t in (f, f.square())
        )
        var = (square - mean.square()).clamp_min(0)  # [V, C]
        self.seen = mean, var * (n / (n - 1))
        return _PartNorm.apply(x, self.weight, self.bias, mean, torch.rsqrt(var + self.eps))


class _PartNorm(torch.autograd.Function):
    """y = (x - mean) inverse weight + bias for x [V * B, C, H, W] and its statistics [V, C].

    With inverse = 1 / sqrt(var + eps), x^ = (x - mean) inverse, and means over a part,
    dx = weight inverse (g - mean(g) - x^ mean(g x^)). The last two terms are the gradient through
    mean and inverse, so `mean` and `inverse` must be those of x and receive no gradient.
    In this form the compiler needs one reduction and one pass over memory each way.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        y = (x - expand(mean, x)) * expand(inverse * weight, x) + bias[:, None, None]
        # torch 2.11 drops the gradient of a compiled function that ends in a cast without effect
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        g = gradients[0].to(mean.dtype)
        normal = (x - expand(mean, x)) * expand(inverse, x)
        sum_g, sum_gx = sum_parts(g, len(mean)), sum_parts(g * normal, len(mean))
        n = part_size(x, len(mean))
        mean_g = distributed.all_reduce_sum(sum_g) / n
        mean_gx = distributed.all_reduce_sum(sum_gx) / n
        centered = g - expand(mean_g, x) - normal * expand(mean_gx, x)
        dx = expand(inverse * weight, x) * centered
        return dx.to(x.dtype), sum_gx.sum(0), sum_g.sum(0), None, None


def part_size(x: Tensor, views: int) -> int:
    """Values per channel in one part of x [V * B, C, H, W], over all processes."""
    return x.numel() // (views * x.shape[1]) * distributed.world_size()


def sum_parts(x: Tensor, views: int) -> Tensor:
    """Sums [V, C] over each part of x [V * B, C, H, W].

    Sums per image first: a view of x in V parts would make the compiler store it channels first.
    """
    return x.sum((2, 3)).unflatten(0, (views, -1)).sum(1)


def expand(channels: Tensor, x: Tensor) -> Tensor:
    """[V, C] to [V * B, C, 1, 1], for x [V * B, C, H, W]."""
    return channels.repeat_interleave(len(x) // len(channels), 0)[:, :, None, None]


@torch.no_grad()
def update_running_statistics(model: nn.Module) -> None:
    """Update the running statistics of all layers, part by part, in a few fused operations."""
    layers = [layer for layer in norms(model) if layer.seen is not None]
    if not layers:
        return
    for part in range(layers[0].views):
        for running, which in (("running_mean", 0), ("running_var", 1)):
            now = [getattr(layer, running) for layer in layers]
            new = [layer.seen[which][part] for layer in layers if layer.seen is not None]
            torch._foreach_lerp_(now, new, layers[0].momentum or 0.0)
    for layer in layers:
        layer.seen = None


def norms(model: nn.Module) -> list[ViewBatchNorm2d]:
    """All BatchNorm layers."""
    return [module for module in model.modules() if isinstance(module, ViewBatchNorm2d)]


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Make every BatchNorm use the statistics of its batch, as the published evaluation does."""
    for layer in norms(model):
        layer.batch_only = True
    try:
        yield
    finally:
        for layer in norms(model):
            layer.batch_only = False


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, Kaiming-normal (fan out) as in the original ResNets."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    if not layer.weight.is_meta:  # initializing a meta tensor imports sympy: one second
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def norm_relu(width: int) -> ViewBatchNorm2d:
    """BatchNorm and ReLU."""
    layer = ViewBatchNorm2d(width)
    layer.relu = True
    return layer


class MaxPool(nn.MaxPool2d):
    """Max-pooling by a kernel where there is one, which is 3 x 3 with stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if Kernels.pool is None else Kernels.pool(x)


class Block(nn.Module):
    """Convolutions with BatchNorm and ReLU; the shortcut is added before the last ReLU.

    Two 3x3 convolutions, or 1x1, 3x3, 1x1 with 4 times the width at the end (a bottleneck). The
    shortcut is the identity if the shapes agree, else a 1x1 convolution with BatchNorm.
    """

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        first, middle = (1, stride) if bottleneck else (stride, 1)
        outputs = 4 * width if bottleneck else width
        self.conv1 = conv(inputs, width, 1 if bottleneck else 3, first)
        self.bn1 = norm_relu(width)
        self.conv2, self.bn2 = conv(width, width, 3, middle), norm_relu(width)
        if bottleneck:
            self.conv3, self.bn3 = conv(width, outputs, 1), norm_relu(outputs)
        self.bottleneck, self.shortcut = bottleneck, nn.Sequential()
        if inputs != outputs or stride != 1:
            self.shortcut.extend([conv(inputs, outputs, 1, stride), ViewBatchNorm2d(outputs)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.bn1(self.conv1(x)))
        if self.bottleneck:
            return self.bn3(self.conv3(self.bn2(y)), self.shortcut(x))
        return self.bn2(y, self.shortcut(x))


class ResNet(nn.Module):
    """A stem and four stages of blocks, averaged over space; h [N, features] is non-negative."""

    def __init__(self, depths: Sequence[int], bottleneck: bool, model: Model) -> None:
        super().__init__()
        if model.stem == "cifar":
            # 3x3 at full resolution with PyTorch's default initialization; with padding 2,
            # 32 x 32 pixels become a 34 x 34 map
            first = nn.Conv2d(3, 64, 3, 1, model.stem_padding, bias=False)
            self.stem = nn.Sequential(first, norm_relu(64))
        else:
            self.stem = nn.Sequential(conv(3, 64, 7, 2), norm_relu(64), MaxPool(3, 2, 1))
        self.blocks, self.features = nn.Sequential(), 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            for i in range(depth):
                stride = 2 if stage and i == 0 else 1
                self.blocks.append(Block(self.features, width, stride, bottleneck))
                self.features = 4 * width if bottleneck else width
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(x))).flatten(1)


class Small(nn.Module):
    """Four convolutions with BatchNorm: 3.8 M multiply-adds at 32 x 32, 15 M if stride 1 first."""

    features = 256

    def __init__(self, strides: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        widths, self.layers = (3, 32, 64, 128, 256), nn.Sequential()
        for inputs, outputs, stride in zip(widths, widths[1:], strides):
            layer = conv(inputs, outputs, 3, stride)
            self.layers.extend([layer, ViewBatchNorm2d(outputs), nn.ReLU()])
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.layers(x)).flatten(1)


class Timm(nn.Module):
    """A timm model without its classifier, with per-view statistics in its BatchNorm layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        timm = import_extra("timm", f"backbone timm:{name} needs timm: pip install timm")
        # is_model: a recipe from someone else must not download hf-hub:...
        if not timm.is_model(name):
            raise InputError(f"timm has no model {name!r}")
        with as_input_error(f"timm cannot build {name!r}", RuntimeError):
            self.body = timm.create_model(name, pretrained=False, num_classes=0)
        for module in self.body.modules():
            if type(module) is nn.BatchNorm2d:  # subclasses may behave differently
                module.__class__ = ViewBatchNorm2d
        self.features = int(self.body.num_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


# names for `model.backbone`, besides timm:NAME
BACKBONES: dict[str, Callable[[Model], nn.Module]] = {
    "resnet18": lambda model: ResNet((2, 2, 2, 2), False, model),
    "resnet50": lambda model: ResNet((3, 4, 6, 3), True, model),
    "small": lambda _: Small(),
    "medium": lambda _: Small((1, 2, 2, 2)),
}


def build_backbone(model: Model) -> nn.Module:
    """Build the backbone of a recipe; `.features` is the width of h."""
    if model.backbone.startswith("timm:"):
        return Timm(model.backbone[5:])
    check_known("model.backbone", model.backbone, [*BACKBONES, "timm:NAME"])
    return BACKBONES[model.backbone](model)
