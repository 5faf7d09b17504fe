"""Cost of a training step: parameters, multiply-adds as published, floating-point operations.

Everything is counted on torch's meta device, where tensors have shapes but no values.

The published "FLOPs" are multiply-adds of a forward pass over the two views of an image, layer by
layer: convolutions and linear layers (without bias), BatchNorm at 4 per element (2 without affine
parameters), adaptive average pooling at (window + 1) per output. Backbone, projector, gating head
and online classifier count; everything else is free.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bayesncl.data import DATASETS
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, find_recipe
from bayesncl.training.loop import assemble
from bayesncl.training.prepare import prepare_run


def cost(recipe: Recipe, classes: int | None = None) -> dict[str, Any]:
    """Count parameters and operations of a recipe.

    `classes` are the outputs of the online classifier, a linear layer on h; default the dataset's.
    `params` are without it; `macs_per_image` are as published, for both views; `flops_per_step` are
    forward and backward, two per multiply-add, by torch's counter, with similarities.
    """
    model, parts = build_parts(recipe, classes)
    params = {k: sum(p.numel() for p in part.parameters()) for k, part in parts.items()}
    macs = multiply_adds(recipe, classes)
    return {
        "recipe": recipe.name,
        "params": sum(params.values()) - params["classifier"],
        "params_by_part": params,
        "macs_per_image": sum(macs.values()),
        "macs_by_part": macs,
        "macs_per_batch": sum(macs.values()) * recipe.run.batch,
        "flops_per_step": step_flops(model, parts["classifier"], recipe),
        "batch": recipe.run.batch,
        "classes": parts["classifier"].out_features,
    }


def build_parts(recipe: Recipe, classes: int | None) -> tuple[Encoder, dict[str, Any]]:
    """The model on the meta device and its parts, with an online classifier on h."""
    with torch.device("meta"):
        model = build_model(recipe)
        classes = classes or DATASETS[recipe.data.name].classes
        classifier = nn.Linear(int(model.backbone.features), classes)  # type: ignore[arg-type]
    gate, projector = model.gate or nn.Identity(), getattr(model.head, "projector", model.head)
    parts = {"backbone": model.backbone, "projector": projector, "gate": gate}
    return model, parts | {"classifier": classifier}


def multiply_adds(recipe: Recipe, classes: int | None = None) -> dict[str, int]:
    """Multiply-adds of each part for two views of an image, as published."""
    model, parts = build_parts(recipe, classes)
    macs, size = dict.fromkeys(parts, 0), recipe.views.size

    def add(part: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        macs[part] += operations(layer, inputs[0], output)

    for name, part in parts.items():
        for layer in part.modules():
            layer.register_forward_hook(partial(add, name))
    with torch.no_grad():
        features = model.eval()(torch.zeros(2, 3, size, size, device="meta"))
        parts["classifier"](features.h)
    return macs


def operations(layer: nn.Module, x: Tensor, y: Tensor) -> int:
    """Operations of one layer from input x to output y, as published."""
    match layer:
        case nn.Conv2d():
            return y.numel() * (layer.in_channels // layer.groups) * math.prod(layer.kernel_size)
        case nn.Linear():
            return y.numel() * layer.in_features
        case nn.BatchNorm2d():
            return x.numel() * (4 if layer.affine else 2)
        case nn.AdaptiveAvgPool2d():
            window = math.prod(x.shape[2:]) // math.prod(y.shape[2:])
            return y.numel() * (window + 1)
    return 0


def step_flops(model: Encoder, classifier: nn.Module, recipe: Recipe) -> int:
    """Floating-point operations of one training step, forward and backward.

    The counter sees matrix products and convolutions. InfoNCE counts as its similarity matrix: in
    blocks it takes the same three products, one forward and two backward. The KL term has none.
    """
    batch, size = recipe.run.batch, recipe.views.size
    model.train()
    uniform = torch.empty(2 * batch, recipe.model.dim, device="meta")
    counter = FlopCounterMode(display=False)
    with counter:
        features = model(torch.empty(2 * batch, 3, size, size, device="meta"), uniform)
        loss = (features.gated @ features.gated.T).logsumexp(1).mean()
        loss = loss + classifier(features.h.detach()).logsumexp(1).mean()
        loss.backward()
    return int(counter.get_total_flops())


def time_steps(
    recipe: Recipe, device: torch.device, steps: int = 20, images: int = 50_000, warm: int = 3
) -> dict[str, float]:
    """Time `steps` training steps on random pixels, after `warm` others.

    Returns `seconds_per_step`, `seconds_per_epoch` (of `images` images), `seconds_in_all`,
    `images_per_second` and, on a GPU, `peak_memory_gib`.
    """
    side, batch, on_gpu = recipe.data.size, recipe.run.batch, device.type == "cuda"
    pixels = torch.randint(0, 256, (2 * batch, 3, side, side), dtype=torch.uint8, device=device)
    _, optimizer, _, step = assemble(recipe, pixels, device)
    rates = torch.full((len(optimizer.param_groups),), 0.01, device=device)
    index = torch.arange(batch, device=device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    times = {}
    for i in range(steps + warm + 1):
        if i in (warm, steps + warm):
            if on_gpu:
                torch.cuda.synchronize(device)
            times[i] = time.perf_counter()
        step(pixels[i % 2 :: 2], index, i, rates)
    seconds = (times[steps + warm] - times[warm]) / steps
    out = {
        "seconds_per_step": seconds,
        "seconds_per_epoch": seconds * (images // batch),
        "seconds_in_all": seconds * (images // batch) * recipe.run.epochs,
        "images_per_second": batch / seconds,
    }
    if on_gpu:
        out["peak_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return out


def count_costs(
    names: Sequence[str], changes: Sequence[str] | None, root: str | None,
    device: torch.device | None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """`cost` of each recipe; with a device also `time_steps`, with `root` for the images there."""
    display = Display()
    chosen = [find_recipe(name, changes) for name in names]
    titles = [recipe.name for recipe in chosen]
    if len(set(titles)) < len(titles):  # files of one recipe with different values
        titles = list(names)
    results: dict[str, dict[str, Any]] = {}
    for title, name, recipe in zip(titles, names, chosen):
        more, classes, images = {}, None, 50_000
        if root is not None and device is not None:
            recipe, split = prepare_run(name, changes or [], root, device, display)
            images, classes = len(split), len(split.class_names or ()) or None
            more = {"images": images, "epochs": recipe.run.epochs}
        display.busy("timing steps" if device else "counting")
        times = time_steps(recipe, device, images=images) if device else {}
        results[title] = cost(recipe, classes) | more | times
        display.close()
    return results
