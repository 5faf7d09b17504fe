"""What a training step costs: parameters, multiply-adds in the published counting, floating-point operations.

Everything is counted on torch's meta device, where tensors have shapes and no values.

The published "FLOPs" are multiply-adds of a forward pass over the two views of an image, counted layer by layer:
convolutions and linear layers (without bias), BatchNorm at 4 per element (2 without affine parameters), adaptive
average pooling at (window + 1) per output; the rest is free. Backbone, projector, gating head and online classifier
all count.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .backbones import set_views
from .data import DATASETS
from .model import Encoder, build_model
from .recipes import Recipe
from .train import assemble


def cost(recipe: Recipe, classes: int | None = None) -> dict[str, Any]:
    """Count parameters and operations of a recipe; the online classifier, a linear layer on h, has `classes` outputs.

    Returns `recipe` (its name), `params` (of the encoder; `params_by_part` adds the online classifier),
    `macs_per_image` (the published counting: both views of one image; also `macs_by_part`), `macs_per_batch`,
    `flops_per_step` (forward and backward, two per multiply-add, by torch's counter, similarities included), `batch`
    and `classes`.
    """
    classes = classes or DATASETS[recipe.data.name].classes
    with torch.device("meta"):
        model = build_model(recipe)
        classifier = nn.Linear(int(model.backbone.features), classes)  # type: ignore[arg-type]
    parts = parts_of(model) | {"classifier": classifier}
    params = {name: sum(p.numel() for p in part.parameters()) if part else 0 for name, part in parts.items()}
    macs = multiply_adds(model, parts)
    return {
        "recipe": recipe.name,
        "params": sum(params.values()) - params["classifier"],
        "params_by_part": params,
        "macs_per_image": sum(macs.values()),
        "macs_by_part": macs,
        "macs_per_batch": sum(macs.values()) * recipe.run.batch,
        "flops_per_step": _step_flops(model, classifier, recipe),
        "batch": recipe.run.batch,
        "classes": classes,
    }


def time_steps(
    recipe: Recipe, device: torch.device, steps: int = 20, images: int = 50_000, warm: int = 3
) -> dict[str, float]:
    """Run real training steps on random pixels: `steps` are timed, after `warm` others, for epochs of `images`.

    Returns `seconds_per_step`, `seconds_per_epoch`, `seconds_in_all` (the recipe's epochs), `images_per_second`, and on
    a GPU `peak_memory_gib`.
    """
    side, batch = recipe.data.size, recipe.run.batch
    pixels = torch.randint(0, 256, (2 * batch, 3, side, side), dtype=torch.uint8, device=device)
    _, optimiser, _, step = assemble(recipe, pixels, device)
    rates = torch.full((len(optimiser.param_groups),), 0.01, device=device)
    index = torch.arange(batch, device=device)
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
    for i in range(steps + warm):
        if i == warm:
            if gpu:
                torch.cuda.synchronize(device)
            began = time.perf_counter()
        step(pixels[i % 2 :: 2], index, i, rates)
    if gpu:
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - began) / steps
    out = {
        "seconds_per_step": seconds,
        "seconds_per_epoch": seconds * (images // batch),
        "seconds_in_all": seconds * (images // batch) * recipe.run.epochs,
        "images_per_second": batch / seconds,
    }
    return out | ({"peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30} if gpu else {})


def parts_of(model: Encoder) -> dict[str, Any]:
    """The parts of an encoder by name."""
    return {"backbone": model.backbone, "projector": model.projector, "gate": model.gate}


def multiply_adds(model: Encoder, parts: dict[str, Any]) -> dict[str, int]:
    """Multiply-adds of each part for two views of an image, in the published counting."""
    macs, size = dict.fromkeys(parts, 0), model.recipe.views.size

    def add(part: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        macs[part] += operations(layer, inputs[0], output)

    model.eval()
    with ExitStack() as hooks, torch.no_grad():
        for name, part in parts.items():
            for layer in part.modules() if part else ():
                hooks.enter_context(layer.register_forward_hook(partial(add, name)))
        h = model(torch.zeros(2, 3, size, size, device=model.mean.device)).h
        if "classifier" in parts:
            parts["classifier"](h)
    return macs


def operations(layer: nn.Module, x: Tensor, y: Tensor) -> int:
    """Operations of one layer from input x to output y, in the published counting."""
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


def _step_flops(model: Encoder, classifier: nn.Module, recipe: Recipe) -> int:
    """Of one training step at the recipe's batch: both views, all similarities, online classifier, backward.

    The counter sees matrix products and convolutions. InfoNCE is its similarity matrix: in blocks it makes the same
    three products, one forward and two backward. The KL has none.
    """
    batch, size = recipe.run.batch, recipe.views.size
    model.train()
    set_views(model, 2)
    uniform = torch.empty(2 * batch, recipe.model.dim, device="meta")
    counter = FlopCounterMode(display=False)
    with counter:
        features = model(torch.empty(2 * batch, 3, size, size, device="meta"), uniform)
        loss = (features.gated @ features.gated.T).logsumexp(1).mean()
        loss = loss + classifier(features.h.detach()).logsumexp(1).mean()
        loss.backward()
    return int(counter.get_total_flops())
