"""What a linear classifier reads from frozen features: logistic regression, penalty chosen on held-out images.

`paper_probe` is the published probe, which trains on fresh crops of the images for 50 epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..arrays import Array, as_features, as_labels, as_numpy
from ..errors import InputError
from .counts import place as default_place

Rows = Any  # features [N, F]: a tensor, or a scipy CSR array, which stays on the CPU

SEEDS = (0, 1, 2)  # one held-out part each
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of ||W||^2 / 2 beside the mean cross-entropy, strongest first
HISTORY = 10  # steps that L-BFGS remembers
SEARCHES = 20  # points tried along a direction
ENOUGH, LITTLE = 1e-4, 1e-6  # largest gradient of a minimum; change of the loss or the weights at which it is left
VALIDATION = 0.2  # share of the training images the penalty is chosen on
# rows per block: on a CPU the logits of one block stay in cache; a GPU takes few and large steps
ROWS = {"cpu": 8192, "cuda": 131072}


class Ranking(NamedTuple):
    """Classes of the test images, best first, by the probe of one seed."""

    top: np.ndarray  # labels [N, min(5, C)]
    penalty: float
    validation: float  # percent, at the chosen penalty


def fast_probe(
    train_h: Array, train_y: Array, test_h: Array, test_y: Array, seeds: Sequence[int] = SEEDS,
    device: str | torch.device | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy of multinomial logistic regression on frozen features.

    Features are standardised with the training mean and deviation. The penalty is chosen per seed on a fifth of the
    training images, then the classifier is fitted on all of them. The problem is convex: a seed moves nothing but the
    held-out fifth, so the spread is that of the choice of penalty. It is fitted on a GPU if there is one.

    Returns
    -------
    `acc1`, `acc5` (percent, mean over seeds; top min(5, C)), their `_spread` (standard deviation), `_per_seed` and
    `_chance` (the same predictions against shuffled labels, in expectation), `penalty`, `validation_acc1`, and the
    parameters `seeds`, `penalties`, `validation_share`.
    """
    truth = as_numpy(test_y)
    if truth.shape != (len(test_h),):
        raise InputError(f"test labels must be [{len(test_h)}], one per image, got {list(truth.shape)}")
    rankings = rank_classes(train_h, train_y, test_h, seeds, device)
    return summarise([(r.top[:, :1], r.top) for r in rankings], truth) | {
        "penalty": [r.penalty for r in rankings],
        "validation_acc1": [r.validation for r in rankings],
        "seeds": list(seeds),
        "penalties": list(PENALTIES),
        "validation_share": VALIDATION,
    }


def rank_classes(
    train_h: Array, train_y: Array, test_h: Array, seeds: Sequence[int] = SEEDS, device: Any = None
) -> list[Ranking]:
    """Predictions behind `fast_probe`: the min(5, C) likeliest classes of every test image, for every seed."""
    if len(seeds) == 0:
        raise InputError("a probe needs at least one seed, got none")
    place = torch.device(device) if device is not None else default_place()
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
    start = torch.zeros(x.shape[1] + 1, len(classes), device=place)
    held = max(1, round(VALIDATION * len(x)))
    fitted: dict[float, np.ndarray] = {}  # seeds that agree on the penalty share the final fit
    rankings = []
    for seed in seeds:
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))).to(place)
        rest, out = ((x[rows], y[rows]) for rows in (order[held:], order[:held]))
        penalty, validation = choose_penalty(rest, out, start, PENALTIES, patience=2)
        if penalty not in fitted:
            weight = fit(x, y, start, penalty)
            fitted[penalty] = classes[_top(x_test, weight).cpu().numpy()]
        rankings.append(Ranking(fitted[penalty], penalty, validation))
    return rankings


def choose_penalty(
    rest: tuple[Rows, Tensor], out: tuple[Rows, Tensor], start: Tensor, penalties: Sequence[float], patience: int,
    steps: int = 60,
) -> tuple[float, float]:  # fmt: skip
    """Penalty with the best accuracy on the rows and labels held `out`, and that, percent; the stronger wins a tie.

    The search ends after `patience` penalties in a row that are no better: weaker ones only fit the rest more closely.
    """
    weight, best, since = start, (penalties[0], -1.0), 0
    for penalty in penalties:
        weight = fit(*rest, weight, penalty, steps)  # from the last solution: each step along the path is short
        found = _top(out[0], weight, 1)[:, 0]
        accuracy = 100 * float((found == out[1]).double().mean())
        best, since = ((penalty, accuracy), 0) if accuracy > best[1] else (best, since + 1)
        if since == patience:
            break
    return best


def fit(x: Rows, y: Tensor, start: Tensor, penalty: float, steps: int = 60) -> Tensor:
    """Minimise mean CE(x W + b, y) + penalty/2 ||W||^2 by L-BFGS; rows of the result [F + 1, C] are W, then b."""
    if isinstance(x, Tensor):
        rows = ROWS[x.device.type]
        parts = [(block, block.T, target) for block, target in zip(x.split(rows), y.split(rows))]
    else:
        parts = [(x, x.T.tocsr(), y)]
    less = start.new_full((len(parts[0][2]), 1), -1.0)
    decay = torch.full_like(start, penalty)
    decay[-1] = 0  # the intercept is free

    def loss_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
        weight = flat.view_as(start)
        gradient = decay * weight
        loss = torch.dot(gradient.flatten(), flat) / 2
        for block, transposed, target in parts:
            # d CE / d logits = softmax - onehot
            log_p = scores(block, weight).log_softmax(1)
            loss = loss.add(F.nll_loss(log_p, target, reduction="sum"), alpha=1 / len(y))
            residual = log_p.exp_().scatter_add_(1, target[:, None], less[: len(target)])
            if isinstance(transposed, Tensor):
                gradient[:-1].addmm_(transposed, residual, alpha=1 / len(y))
            else:
                gradient[:-1] += torch.from_numpy(transposed @ residual.numpy()) / len(y)
            gradient[-1].add_(residual.sum(0), alpha=1 / len(y))
        return loss, gradient.flatten()

    return minimise(loss_and_gradient, start.flatten(), steps).view_as(start)


@torch.no_grad()
def minimise(function: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor, steps: int) -> Tensor:
    """L-BFGS from x [P]; `function` gives value and gradient [P].

    A direction is a combination of the last steps s, the changes y of the gradient over them, and the gradient g. Its
    shares follow from their products alone (`combine`), so that a step takes a few large operations, and waits for a
    GPU twice.
    """
    value, g = function(x)
    now, steepest, pairs = float(value), float(g.norm(torch.inf)), list[tuple[Tensor, Tensor]]()
    for _ in range(steps):
        if steepest <= ENOUGH:
            break
        basis = torch.stack([*(s for s, _ in pairs), *(y for _, y in pairs), g])
        products = (basis @ basis.T).cpu().double().numpy()
        shares = combine(products)
        d, slope = torch.from_numpy(shares).to(g) @ basis, float(products[-1] @ shares)
        t, low, high = 1.0 if pairs else min(1.0, 1 / float(g.abs().sum())), 0.0, math.inf
        for _ in range(SEARCHES):  # until the value falls as it should, and less steeply than at first (Wolfe)
            value, ahead = function(x + t * d)
            found = torch.stack([value, ahead @ d, ahead.norm(torch.inf), d.norm(torch.inf)])
            new, new_slope, steepest, longest = found.tolist()
            if not new <= now + 1e-4 * t * slope:  # NaN too
                high = t
            elif new_slope < 0.9 * slope:
                low = t
            else:
                break
            further = slope / min(slope - new_slope, -1e-30)  # so much: there the slope would be 0, if it went on so
            t = (low + high) / 2 if high < math.inf else t * min(max(further, 2), 100)
        else:
            break  # rounding hides what is left to gain
        s, change = t * d, now - new
        x, pairs = x + s, [*pairs, (s, ahead - g)][-HISTORY:]
        g, now = ahead, new
        if change < LITTLE or t * longest <= LITTLE:
            break
    return x


def combine(products: np.ndarray) -> np.ndarray:
    """Shares [2 m + 1] of (s_1 .. s_m, y_1 .. y_m, g) in the direction -H g of L-BFGS, from their scalar products.

    The usual two loops over the pairs, newest first and back, on shares in place of vectors.
    """
    m = len(products) // 2
    shares = np.zeros(len(products))
    shares[-1] = -1
    a = np.zeros(m)
    for i in reversed(range(m)):
        a[i] = products[i] @ shares / products[i, m + i]
        shares[m + i] -= a[i]
    if m:
        shares *= products[m - 1, 2 * m - 1] / products[2 * m - 1, 2 * m - 1]
    for i in range(m):
        shares[i] += a[i] - products[m + i] @ shares / products[i, m + i]
    return shares


def scores(x: Rows, weight: Tensor) -> Tensor:
    """x W + b, [N, C]."""
    if isinstance(x, Tensor):
        return torch.addmm(weight[-1], x, weight[:-1])
    return torch.from_numpy(x @ weight[:-1].detach().numpy()) + weight[-1]


def _top(x: Rows, weight: Tensor, most: int = 5) -> Tensor:
    k, blocks = min(most, weight.shape[1]), x.split(ROWS[x.device.type]) if isinstance(x, Tensor) else [x]
    return torch.cat([scores(block, weight).topk(k, dim=1).indices for block in blocks])


def summarise(predictions: list[tuple[np.ndarray, np.ndarray]], truth: np.ndarray) -> dict[str, Any]:
    """Accuracies over seeds, with spread and chance, from predicted labels (top-1 [N, 1], top-5 [N, k]) of each."""
    result: dict[str, Any] = {}
    for name, tops in zip(("acc1", "acc5"), zip(*predictions)):
        values = [100 * float((top == truth[:, None]).any(1).mean()) for top in tops]
        result[name] = float(np.mean(values))
        result[f"{name}_spread"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        result[f"{name}_per_seed"] = values
        result[f"{name}_chance"] = float(np.mean([chance(top, truth) for top in tops]))
    return result


def chance(top: np.ndarray, truth: np.ndarray) -> float:
    """Expected accuracy, percent, once the test labels are shuffled: sum_c P(c predicted) P(c)."""
    values, counts = np.unique(truth, return_counts=True)
    predicted = dict(zip(*np.unique(top, return_counts=True)))
    return 100 * sum(predicted.get(v, 0) * n for v, n in zip(values, counts)) / len(truth) ** 2


def _features(h: Array, place: torch.device) -> Tensor:
    x = torch.from_numpy(np.array(as_features(h), dtype=np.float32)).to(place)
    if not bool(torch.isfinite(x).all()):
        raise InputError("features hold NaN or infinity")
    return x


def group_probe(
    train_h: Array, train_y: Array, train_backgrounds: Array, test_h: Array, test_y: Array, test_backgrounds: Array
) -> dict[str, Any]:
    """Object probe by group, a group being a class on a background.

    The probe is `fast_probe`'s, fitted without a look at the groups.

    Returns
    -------
    `worst` (lowest group accuracy, percent, mean over seeds; with few images in a group it is low by chance alone),
    `worst_spread`, `worst_per_seed`, `average` over images, `balanced` over groups, `usual` and `unusual`: over the
    images that stand, or do not stand, on the commonest training background of their class (None without such images);
    `groups`: a row each with `label`, `background`, `images`, `train_images`, `accuracy`, worst first. Groups without
    test images are left out; `missing` counts them.
    """
    train_pairs = _pairs(train_y, train_backgrounds, len(train_h), "train")
    pairs = _pairs(test_y, test_backgrounds, len(test_h), "test")
    groups, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    size = np.bincount(group)
    right = [r.top[:, 0] == pairs[:, 0] for r in rank_classes(train_h, train_y, test_h)]
    accuracy = np.array([100 * np.bincount(group, weights=each) / size for each in right])  # [seeds, G]
    worst, mean = accuracy.min(1), accuracy.mean(0)
    usual = np.array([d == _commonest(train_pairs, c) for c, d in groups])

    def over_images(chosen: np.ndarray) -> float | None:
        return float(mean[chosen] @ size[chosen] / size[chosen].sum()) if chosen.any() else None

    names = ("label", "background", "images", "train_images", "accuracy")
    train_size = [int((train_pairs == pair).all(1).sum()) for pair in groups]
    columns = (*groups.T.tolist(), size.tolist(), train_size, mean.tolist())
    rows = [dict(zip(names, row)) for row in zip(*columns)]
    return {
        "worst": float(worst.mean()),
        "worst_spread": float(worst.std(ddof=1)),
        "worst_per_seed": worst.tolist(),
        "average": over_images(np.ones(len(groups), dtype=bool)),
        "balanced": float(mean.mean()),
        "usual": over_images(usual),
        "unusual": over_images(~usual),
        "groups": sorted(rows, key=lambda row: row["accuracy"]),
        "missing": len(np.unique(pairs[:, 0])) * len(np.unique(pairs[:, 1])) - len(groups),
    }


def _commonest(pairs: np.ndarray, label: int) -> int | None:
    """The background a class stands on most often; None for an unknown class."""
    places, counts = np.unique(pairs[pairs[:, 0] == label, 1], return_counts=True)
    return int(places[counts.argmax()]) if len(places) else None


def _pairs(labels: np.ndarray, backgrounds: np.ndarray, count: int, split: str) -> np.ndarray:
    """[N, 2] of class and background."""
    for what, values in (("labels", labels), ("backgrounds", backgrounds)):
        if np.shape(values) != (count,):
            raise InputError(f"{split} {what} must be [{count}], one per image, got {list(np.shape(values))}")
    return np.stack([labels, backgrounds], axis=1)
