"""Linear probes: what a linear classifier reads from frozen features.

`fast_probe` works on cached features (logistic regression, penalty chosen on held-out training images).
`paper_probe` follows the published protocol: fresh random crops every epoch, LARS or SGD, 50 epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..augment import make_views
from ..data.images import Images
from ..errors import InputError
from ..features import Progress, centre_crop
from ..feed import Pixels, settle
from ..lars import LARS
from ..recipes import Views
from ..schedule import warmup_cosine
from ..train import capture
from .arrays import Array, as_features, as_labels

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of ||W||^2 / 2 beside the mean cross-entropy, strongest first
VALIDATION = 0.2  # share of the training images the penalty is chosen on
# rows per block: on a CPU the logits of one block stay in cache; a GPU takes few and large steps
ROWS = {"cpu": 8192, "cuda": 131072}


class Ranking(NamedTuple):
    """Classes of the test images, best first, by the probe of one seed."""

    top: np.ndarray  # labels [N, min(5, C)]
    penalty: float
    validation: float  # percent, at the chosen penalty


def fast_probe(
    train_h: Array,
    train_y: Array,
    test_h: Array,
    test_y: Array,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Accuracy of multinomial logistic regression on frozen features.

    Features are standardised with the training mean and deviation. The penalty is chosen per seed on a fifth of the
    training images, then the classifier is fitted on all of them. The problem is convex: a seed moves nothing but the
    held-out fifth, so the spread is that of the choice of penalty.

    Parameters
    ----------
    train_h, test_h : [N, F] features.
    train_y, test_y : [N] integer labels.
    seeds : one held-out fifth each.
    device : where to fit; a GPU if there is one.

    Returns
    -------
    dict
        `acc1`, `acc5` (percent, mean over seeds; top min(5, C)), their `_spread` (standard deviation), `_per_seed` and
        `_chance` (the same predictions against shuffled labels, in expectation), `penalty`, `validation_acc1`,
        and the parameters `seeds`, `penalties`, `validation_share`.
    """
    truth = test_y.cpu().numpy() if isinstance(test_y, Tensor) else np.asarray(test_y)
    if truth.shape != (len(test_h),):
        raise InputError(f"test labels must be [{len(test_h)}], one per image, got {list(truth.shape)}")
    rankings = rank_classes(train_h, train_y, test_h, seeds, device)
    result = _summary([(r.top[:, :1], r.top) for r in rankings], truth)
    result |= {
        "penalty": [r.penalty for r in rankings],
        "validation_acc1": [r.validation for r in rankings],
        "seeds": list(seeds),
        "penalties": list(PENALTIES),
        "validation_share": VALIDATION,
    }
    return result


def rank_classes(
    train_h: Array,
    train_y: Array,
    test_h: Array,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | torch.device | None = None,
) -> list[Ranking]:
    """Predictions behind `fast_probe`: the min(5, C) likeliest classes of every test image, for every seed."""
    if len(seeds) == 0:
        raise InputError("a probe needs at least one seed, got none")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    x, x_test = _features(train_h, place), _features(test_h, place)
    if x.shape[1] != x_test.shape[1]:
        raise InputError(f"train features have {x.shape[1]} dimensions, test features {x_test.shape[1]}")
    if len(x) < 5:
        raise InputError(f"a probe needs at least 5 training images, got {len(x)}")
    index, classes = as_labels(train_y, len(x))
    y = torch.from_numpy(index).to(place)
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation

    fitted: dict[float, np.ndarray] = {}  # seeds that agree on the penalty share the final fit
    rankings = []
    for seed in seeds:
        penalty, validation = _choose_penalty(x, y, len(classes), seed)
        if penalty not in fitted:
            weight = _fit(x, y, torch.zeros(x.shape[1] + 1, len(classes), device=place), penalty)
            fitted[penalty] = classes[_top(x_test, weight).cpu().numpy()]
        rankings.append(Ranking(fitted[penalty], penalty, validation))
    return rankings


def _choose_penalty(x: Tensor, y: Tensor, classes: int, seed: int) -> tuple[float, float]:
    """Penalty with the best accuracy on the held-out part, and that accuracy; the stronger one wins a tie.

    The search ends after two penalties in a row that are no better: weaker ones only fit the rest more closely.
    """
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))).to(x.device)
    held = max(1, round(VALIDATION * len(x)))
    out, rest = order[:held], order[held:]
    x_rest, y_rest, x_out = x[rest], y[rest], x[out]
    weight = torch.zeros(x.shape[1] + 1, classes, device=x.device)
    best, since = (0.0, -1.0), 0
    for penalty in PENALTIES:
        weight = _fit(x_rest, y_rest, weight, penalty)  # from the last solution: each step along the path is short
        accuracy = 100 * float((_top(x_out, weight)[:, 0] == y[out]).double().mean())
        best, since = ((penalty, accuracy), 0) if accuracy > best[1] else (best, since + 1)
        if since == 2:
            break
    return best


def _fit(x: Tensor, y: Tensor, start: Tensor, penalty: float, steps: int = 60) -> Tensor:
    """Minimise mean CE(x W + b, y) + penalty/2 ||W||^2 by L-BFGS; rows of the result [F + 1, C] are W, then b."""
    weight = start.clone().requires_grad_()
    rows = ROWS[x.device.type]
    lbfgs = torch.optim.LBFGS(
        [weight], max_iter=steps, tolerance_grad=1e-4, tolerance_change=1e-6, line_search_fn="strong_wolfe"
    )

    @torch.no_grad()
    def loss_and_gradient() -> Tensor:
        gradient = penalty * weight
        gradient[-1] = 0  # the intercept is free
        loss = penalty / 2 * weight[:-1].square().sum()
        for block, target in zip(x.split(rows), y.split(rows)):
            # d CE / d logits = softmax - onehot
            log_p = torch.addmm(weight[-1], block, weight[:-1]).log_softmax(1)
            loss -= log_p.gather(1, target[:, None]).sum() / len(x)
            residual = log_p.exp_()
            residual.scatter_add_(1, target[:, None], torch.full_like(residual[:, :1], -1.0))
            gradient[:-1].addmm_(block.T, residual, alpha=1 / len(x))
            gradient[-1] += residual.sum(0) / len(x)
        weight.grad = gradient
        return loss

    lbfgs.step(loss_and_gradient)
    return weight.detach()


def _top(x: Tensor, weight: Tensor) -> Tensor:
    k, blocks = min(5, weight.shape[1]), x.split(ROWS[x.device.type])
    return torch.cat([torch.addmm(weight[-1], block, weight[:-1]).topk(k, dim=1).indices for block in blocks])


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
    dict
        As `fast_probe`, after the last epoch; `acc1_best` is the best epoch's mean, for the paper does not say which
        it prints.
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
            summary = _summary([(classes[t[:, :1]], classes[t]) for t in tops], np.asarray(test.labels))
            best = max(best, summary["acc1"])
            if progress is not None:
                progress(epoch + 1, epochs, "paper probe")
    summary |= {
        "acc1_best": best,
        "variant": variant,
        "epochs": epochs,
        "batch": batch,
        "lr": rate,
        "seeds": list(seeds),
    }
    return summary


@contextmanager
def in_eval_mode(model: Any) -> Iterator[None]:
    """Eval mode inside, every submodule's own mode again afterwards; a plain function has none."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for module, _ in modes:
            module.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


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
    if place.type != "cuda":
        return lambda pixels, rows, epoch: encode(make_views(pixels, rows, epoch, seed, views)[: len(rows)])
    held = torch.zeros(batch, *shape, dtype=torch.uint8, device=place)
    held_rows = torch.zeros(batch, dtype=torch.int64, device=place)
    held_epoch = torch.zeros((), dtype=torch.int64, device=place)
    h = torch.empty(0)

    def body() -> None:
        nonlocal h
        h = encode(make_views(held, held_rows, held_epoch, seed, views)[:batch])  # one view of the two

    replay = capture(body, [], place)

    def replayed(pixels: Tensor, rows: Tensor, epoch: int) -> Tensor:
        held.copy_(pixels)
        held_rows.copy_(rows)
        held_epoch.fill_(epoch)
        replay()
        return h

    return replayed


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


def _summary(predictions: list[tuple[np.ndarray, np.ndarray]], truth: np.ndarray) -> dict[str, Any]:
    """Accuracies over seeds from (top-1 [N, 1], top-5 [N, k]) labels."""
    result: dict[str, Any] = {}
    for name, tops in zip(("acc1", "acc5"), zip(*predictions)):
        values = [100 * float((top == truth[:, None]).any(1).mean()) for top in tops]
        result[name] = float(np.mean(values))
        result[f"{name}_spread"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        result[f"{name}_per_seed"] = values
        result[f"{name}_chance"] = float(np.mean([_chance(top, truth) for top in tops]))
    return result


def _chance(top: np.ndarray, truth: np.ndarray) -> float:
    """Expected accuracy, percent, once the test labels are shuffled: sum_c P(c predicted) P(c)."""
    values, counts = np.unique(truth, return_counts=True)
    predicted = dict(zip(*np.unique(top, return_counts=True)))
    return 100 * sum(predicted.get(v, 0) * n for v, n in zip(values, counts)) / len(truth) ** 2


def _features(h: Array, place: torch.device) -> Tensor:
    x = torch.from_numpy(np.array(as_features(h), dtype=np.float32)).to(place)
    if not bool(torch.isfinite(x).all()):
        raise InputError("features hold NaN or infinity")
    return x
