"""The published linear probe: fresh random crops every epoch, LARS or SGD, 50 epochs.

`measure.probe.fast_probe` answers the same question from features that are already there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .arrays import as_labels
from .augment import make_views
from .data.images import Images, Progress
from .errors import InputError
from .features import centre_crop
from .feed import Pixels, settle
from .graph import fast
from .lars import LARS
from .measure.probe import summarise
from .model import in_eval_mode
from .recipes import Views
from .schedule import warmup_cosine


def paper_probe(
    backbone: Callable[[Tensor], Tensor],
    train: Images,
    test: Images,
    mean: Sequence[float],
    std: Sequence[float],
    variant: str = "cifar",
    epochs: int = 50,
    batch: int = 256,
    seeds: Sequence[int] = (42,),
    size: int | None = None,
    device: str | torch.device | None = None,
    precision: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Linear probe of the published experiments: raw h of the frozen backbone, random crops and flips every epoch.

    Parameters
    ----------
    backbone : normalised images [B, 3, S, S] to h [B, F]; a module is put in eval mode and given back as it was. On a
        GPU it is recorded as a CUDA graph, so it must not wait for the host.
    train, test : labelled images; the test split is seen once, without augmentation.
    mean, std : channel statistics, of pixels in [0, 1].
    variant : `cifar` is LARS (lr 0.4, weight decay 1e-4, 10 epochs of warm-up, cosine), bilinear crops; `imagenet` is
        SGD (lr 1.0, momentum 0.9, no decay, constant: the published milestones lie beyond the last epoch), bicubic
        crops. Both rates are for batch 256 and scaled by batch / 256.
    seeds : one classifier each. All share the forward pass of the backbone, so they see the same order and crops
        (those of the first seed) and differ in their initial weights.
    size : side of the crops; the side of the images if None.
    precision : `auto` is bf16 on a GPU and float32 on a CPU.
    progress : called with (epochs done, epochs, what).

    Returns
    -------
    As `fast_probe`, after the last epoch; `acc1_best` is the best epoch's mean, for the paper does not say which it
    prints.
    """
    if variant not in ("cifar", "imagenet"):
        raise InputError(f"probe variant must be cifar or imagenet, got {variant!r}")
    if train.labels is None or test.labels is None:
        raise InputError(f"a probe needs labels, and the {'train' if train.labels is None else 'test'} split has none")
    if len(train) < batch:
        raise InputError(f"a probe with batches of {batch} needs at least as many training images, got {len(train)}")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    index, classes = as_labels(train.labels, len(train))
    side = size or train.pixels.shape[-1]
    views = Views(
        size=side, interpolation="bilinear" if variant == "cifar" else "bicubic", jitter=0.0, greyscale=0.0, blur=0.0
    )
    half = place.type == "cuda" and precision in ("auto", "bf16")
    shift, scale = (torch.tensor(v, device=place).view(3, 1, 1) for v in (mean, std))

    @torch.no_grad()
    def encode(images: Tensor) -> Tensor:
        with torch.autocast(place.type, torch.bfloat16, enabled=half):
            return backbone((images - shift) / scale).float()

    with in_eval_mode(backbone):
        h_test = torch.cat(
            [encode(centre_crop(part, side).float() / 255) for _, part in _batches(test.pixels, batch, place)]
        )
        heads = [_head(h_test.shape[1], len(classes), seed).to(place) for seed in seeds]
        rate = (0.4 if variant == "cifar" else 1.0) * batch / 256
        params = [p for head in heads for p in head.parameters()]
        optimiser: torch.optim.Optimizer
        if variant == "cifar":
            optimiser = LARS(params, lr=rate, momentum=0.9, weight_decay=1e-4, eta=0.02, clip=True)
        else:
            optimiser = torch.optim.SGD(params, lr=rate, momentum=0.9)
        per_epoch = len(train) // batch  # the last, smaller batch is dropped
        encode_view = _view_encoder(encode, train.pixels.shape[1:], batch, seeds[0], views, place)
        pixels, targets = settle(train.pixels, place), torch.from_numpy(index).to(place)
        best = 0.0
        summary: dict[str, Any] = {}
        for epoch in range(epochs):
            order = np.random.default_rng((seeds[0], epoch)).permutation(len(train))[: per_epoch * batch]
            for step, (rows, part) in enumerate(_batches(pixels, batch, place, order), epoch * per_epoch):
                if variant == "cifar":
                    lr = warmup_cosine(step, rate, min(10, epochs - 1) * per_epoch, epochs * per_epoch, 3e-5)
                    for group in optimiser.param_groups:
                        group["lr"] = lr
                h, target = encode_view(part, rows, epoch), targets[rows]
                optimiser.zero_grad()
                # each head has its own weights: the gradient of the sum is each one's own gradient
                torch.stack([F.cross_entropy(head(h), target) for head in heads]).sum().backward()
                optimiser.step()
            with torch.no_grad():
                tops = [head(h_test).topk(min(5, len(classes)), dim=1).indices.cpu().numpy() for head in heads]
            summary = summarise([(classes[t[:, :1]], classes[t]) for t in tops], np.asarray(test.labels))
            best = max(best, summary["acc1"])
            if progress is not None:
                progress(epoch + 1, epochs, "paper probe")
    settings = {"variant": variant, "epochs": epochs, "batch": batch, "lr": rate, "seeds": list(seeds)}
    return summary | {"acc1_best": best} | settings


def _head(width: int, classes: int, seed: int) -> nn.Linear:
    """A linear layer with torch's default initial weights, drawn from its own generator."""
    head = nn.Linear(width, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in (head.weight, head.bias):
            p.uniform_(-(width**-0.5), width**-0.5, generator=generator)
    return head


def _view_encoder(
    encode: Callable[[Tensor], Tensor], shape: Sequence[int], batch: int, seed: int, views: Views, place: torch.device
) -> Callable[[Tensor, Tensor, int], Tensor]:
    """h of a random view of each image as a function of (pixels, row numbers, epoch); on a GPU a recorded graph.

    The graph writes every result to the same place: use it before the next call.
    """
    held = torch.zeros(batch, *shape, dtype=torch.uint8, device=place)
    held_rows = torch.zeros(batch, dtype=torch.int64, device=place)
    held_epoch = torch.zeros((), dtype=torch.int64, device=place)
    h = torch.empty(0)

    def body() -> None:
        nonlocal h
        h = encode(make_views(held, held_rows, held_epoch, seed, views)[:batch])  # one view of the two

    run = fast(body, list, place) if place.type == "cuda" else body

    def encode_view(pixels: Tensor, rows: Tensor, epoch: int) -> Tensor:
        held.copy_(pixels)
        held_rows.copy_(rows)
        held_epoch.fill_(epoch)
        run()
        return h

    return encode_view


def _batches(
    pixels: Pixels, batch: int, place: torch.device, order: np.ndarray | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers and uint8 pixels on the device, one batch at a time; the images may be memory-mapped."""
    rows_in_order = np.arange(len(pixels)) if order is None else order
    on_device = torch.from_numpy(rows_in_order).to(place)
    for start in range(0, len(rows_in_order), batch):
        rows = on_device[start : start + batch]
        if isinstance(pixels, Tensor):
            yield rows, pixels.index_select(0, rows)
        else:
            part = np.ascontiguousarray(pixels[rows_in_order[start : start + batch]])
            yield rows, torch.from_numpy(part).to(place)
