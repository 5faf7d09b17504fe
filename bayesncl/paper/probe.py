"""The published linear probe: fresh random crops every epoch, LARS or SGD, 50 epochs.

`measure.linear.fast_probe` answers the same question from features that exist already.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesncl.data.images import Images, Progress
from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.inputs import as_labels
from bayesncl.measure.linear import summarize
from bayesncl.method.augment import make_views
from bayesncl.method.encoder import center_crop, in_eval_mode
from bayesncl.method.lars import LARS, warmup_cosine
from bayesncl.recipes import Views
from bayesncl.training.compile import record_at_first_call
from bayesncl.training.loader import take, to_device

WARMUP_EPOCHS = 10
INTERPOLATION = {"cifar": "bilinear", "imagenet": "bicubic"}
RATES = {"cifar": 0.4, "imagenet": 1.0}  # at batch 256


def paper_probe(
    backbone: Callable[[Tensor], Tensor], train: Images, test: Images, mean: Sequence[float],
    std: Sequence[float], variant: str = "cifar", epochs: int = 50, batch: int = 256,
    seeds: Sequence[int] = (42,), size: int | None = None, device: str | torch.device | None = None,
    precision: str = "auto", progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Linear probe of the published experiments: h of the frozen backbone, random crops and flips.

    Parameters
    ----------
    backbone : normalized images [B, 3, S, S] to h [B, F]; on a GPU it is recorded as a CUDA graph,
        so it must not wait for the host.
    mean, std : channel statistics of pixels in [0, 1].
    variant : `cifar` is LARS (lr 0.4, weight decay 1e-4, 10 epochs of warm-up, cosine) with
        bilinear crops; `imagenet` is SGD (lr 1.0, momentum 0.9, constant: the published milestones
        lie beyond the last epoch) with bicubic crops. Rates are scaled by batch / 256.
    seeds : one classifier each. They share the order and crops of the first seed and differ in
        their initial weights.
    size : side of the crops; default that of the images.
    precision : `auto` is bf16 on a GPU and float32 on a CPU.

    Returns
    -------
    As `fast_probe`, after the last epoch; `acc1_best` is the mean of the best epoch, because the
    paper does not say which one it prints.
    """
    if train.labels is None or test.labels is None:
        raise InputError("the published probe needs labels of training and test images")
    if len(train) < batch:
        raise InputError(f"the published probe needs {batch} training images, got {len(train)}")
    device, side = find_device(device), size or train.pixels.shape[-1]
    index, classes = as_labels(train.labels, len(train))
    views = Views(
        size=side, interpolation=INTERPOLATION[variant], jitter=0.0, grayscale=0.0, blur=0.0
    )
    half = device.type == "cuda" and precision in ("auto", "bf16")
    shift, scale = (torch.tensor(v, device=device).view(3, 1, 1) for v in (mean, std))

    @torch.no_grad()
    def encode(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            return backbone((images - shift) / scale).float()

    with in_eval_mode(backbone):
        h_test = torch.cat([
            encode(center_crop(take(test.pixels, rows), side).float() / 255)
            for rows in torch.arange(len(test), device=device).split(batch)
        ])  # fmt: skip
        heads = [make_head(h_test.shape[1], len(classes), seed).to(device) for seed in seeds]
        params = [p for head in heads for p in head.parameters()]
        rate = RATES[variant] * batch / 256
        optimizer: torch.optim.Optimizer = torch.optim.SGD(params, lr=rate, momentum=0.9)
        if variant == "cifar":
            optimizer = LARS(params, lr=rate, momentum=0.9, weight_decay=1e-4, eta=0.02, clip=True)
        steps = len(train) // batch  # per epoch, without the last, smaller batch
        warmup = min(WARMUP_EPOCHS, epochs - 1) * steps
        pixels, targets = to_device(train.pixels, device), torch.from_numpy(index).to(device)
        encode_view = view_encoder(encode, (batch, *pixels.shape[1:]), seeds[0], views, device)
        best = 0.0
        summary: dict[str, Any] = {}
        for epoch in range(epochs):
            now = torch.tensor(epoch, device=device)
            order = np.random.default_rng((seeds[0], epoch)).permutation(len(train))
            batches = torch.from_numpy(order[: steps * batch]).to(device).split(batch)
            for step, rows in enumerate(batches, epoch * steps):
                if variant == "cifar":
                    for group in optimizer.param_groups:
                        group["lr"] = warmup_cosine(step, rate, warmup, epochs * steps, 3e-5)
                h, target = encode_view(take(pixels, rows), rows, now), targets[rows]
                optimizer.zero_grad()
                # the gradient of the sum is each head's own: they share no weights
                torch.stack([F.cross_entropy(head(h), target) for head in heads]).sum().backward()
                optimizer.step()
            with torch.no_grad():
                k = min(5, len(classes))
                best_k = [head(h_test).topk(k, dim=1).indices.cpu().numpy() for head in heads]
            predictions = [(classes[top[:, :1]], classes[top]) for top in best_k]
            summary = summarize(predictions, np.asarray(test.labels))
            best = max(best, summary["acc1"])
            if progress is not None:
                progress(epoch + 1, epochs, "published probe")
    settings = {"variant": variant, "epochs": epochs, "batch": batch, "lr": rate}
    return summary | {"acc1_best": best} | settings | {"seeds": list(seeds)}


def make_head(width: int, classes: int, seed: int) -> nn.Linear:
    """A linear layer whose initial weights depend on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Linear(width, classes)


def view_encoder(
    encode: Callable[[Tensor], Tensor], shape: Sequence[int], seed: int, views: Views,
    device: torch.device,
) -> Callable[..., Tensor]:  # fmt: skip
    """Function of (pixels, rows, epoch) that returns h of a random view of each image.

    On a GPU it replays a graph, and every call overwrites the previous result.
    """
    inputs = (
        torch.zeros(*shape, dtype=torch.uint8, device=device),
        torch.zeros(shape[0], dtype=torch.int64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )
    h: list[Tensor] = []

    def body() -> None:
        h[:] = [encode(make_views(*inputs, seed, views)[: shape[0]])]  # the first of two views

    run = record_at_first_call(body, [], device) if device.type == "cuda" else body

    def encode_view(*values: Tensor) -> Tensor:
        for tensor, value in zip(inputs, values):
            tensor.copy_(value)
        run()
        return h[0]

    return encode_view
