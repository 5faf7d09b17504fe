"""Linear probes of frozen features: logistic regression, its penalty chosen on held-out images.

`paper.probe` has the published probe, which trains on fresh crops of the images for 50 epochs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_labels, as_numpy

SEEDS = (0, 1, 2)  # one held-out part each
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of ||W||^2 / 2 beside the mean cross-entropy
VALIDATION_SHARE = 0.2  # of the training images, on which the penalty is chosen
ROWS_PER_BLOCK = {"cpu": 8192, "cuda": 131072}  # on a CPU the logits of a block stay in cache
MAX_STEPS = 60  # of L-BFGS
HISTORY = 10  # steps that L-BFGS remembers
MAX_SEARCHES = 20  # points tried along a direction
GRADIENT_TOLERANCE, CHANGE_TOLERANCE = 1e-4, 1e-6  # of the largest gradient; of loss or weights

Rows = Any  # features [N, F]: a tensor, or a scipy CSR array on the CPU


class Ranking(NamedTuple):
    """Predictions for the test images by the probe of one seed."""

    top: np.ndarray  # labels [N, min(5, C)], best first
    penalty: float
    validation: float  # held-out accuracy at that penalty, percent


def fast_probe(
    train_h: Array, train_y: Array, test_h: Array, test_y: Array, seeds: Sequence[int] = SEEDS,
    device: str | torch.device | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy of multinomial logistic regression on frozen features, percent, mean over seeds.

    Features are standardized with the training mean and deviation. The penalty is chosen per seed
    on a fifth of the training images, then the classifier is fitted on all. The problem is convex:
    the spread over seeds is that of the choice of penalty.
    """
    truth = as_numpy(test_y)
    if truth.shape != (len(test_h),):
        raise InputError(f"test labels must be [{len(test_h)}], got {list(truth.shape)}")
    rankings = rank_classes(train_h, train_y, test_h, seeds, device)
    return summarize([(r.top[:, :1], r.top) for r in rankings], truth) | {
        "penalty": [r.penalty for r in rankings],
        "validation_acc1": [r.validation for r in rankings],
        "seeds": list(seeds),
        "penalties": list(PENALTIES),
        "validation_share": VALIDATION_SHARE,
    }


def rank_classes(
    train_h: Array, train_y: Array, test_h: Array, seeds: Sequence[int] = SEEDS,
    device: Any = None,
) -> list[Ranking]:  # fmt: skip
    """The predictions behind `fast_probe`, for every seed."""
    device = find_device(device)
    x, x_test = _features(train_h, device), _features(test_h, device)
    if x.shape[1] != x_test.shape[1]:
        widths = f"{x.shape[1]} dimensions, test features {x_test.shape[1]}"
        raise InputError(f"train features have {widths}")
    if len(x) < 5:
        raise InputError(f"a probe needs at least 5 training images, got {len(x)}")
    index, classes = as_labels(train_y, len(x))
    y = torch.from_numpy(index).to(device)
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    start = torch.zeros(x.shape[1] + 1, len(classes), device=device)
    held_out = max(1, round(VALIDATION_SHARE * len(x)))
    tops: dict[float, np.ndarray] = {}  # seeds that agree on the penalty share the final fit
    rankings = []
    for seed in seeds:
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))).to(device)
        rest, out = ((x[rows], y[rows]) for rows in (order[held_out:], order[:held_out]))
        penalty, validation = choose_penalty(rest, out, start, PENALTIES, patience=2)
        if penalty not in tops:
            weight = fit(x, y, start, penalty)
            tops[penalty] = classes[_top_classes(x_test, weight).cpu().numpy()]
        rankings.append(Ranking(tops[penalty], penalty, validation))
    return rankings


def choose_penalty(
    rest: tuple[Rows, Tensor], out: tuple[Rows, Tensor], start: Tensor, penalties: Sequence[float],
    patience: int, steps: int = MAX_STEPS, balance: Tensor | None = None,
) -> tuple[float, float]:  # fmt: skip
    """The penalty with the best held-out accuracy, of equals the stronger, and that accuracy.

    The search stops after `patience` penalties in a row without a gain. `balance` [C] weighs the
    rows of a class, in the fit and in the accuracy.
    """
    weight, best, since = start, (penalties[0], -1.0), 0
    share = torch.ones(len(out[1])).to(start) if balance is None else balance[out[1]]
    for penalty in penalties:
        weight = fit(*rest, weight, penalty, steps, balance)  # starts from the last solution
        hits = _top_classes(out[0], weight, 1)[:, 0] == out[1]
        accuracy = 100 * float((hits * share).double().sum() / share.double().sum())
        best, since = ((penalty, accuracy), 0) if accuracy > best[1] else (best, since + 1)
        if since == patience:
            break
    return best


def fit(
    x: Rows, y: Tensor, start: Tensor, penalty: float, steps: int = MAX_STEPS,
    balance: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Minimize mean CE(x W + b, y) + penalty/2 ||W||^2; returns [F + 1, C], the last row is b.

    `balance` [C] multiplies the cross-entropy of the rows of each class.
    """
    if isinstance(x, Tensor):
        step = ROWS_PER_BLOCK[x.device.type]
        parts = [(block, block.T, target) for block, target in zip(x.split(step), y.split(step))]
    else:
        parts = [(x, x.T.tocsr(), y)]
    minus_one = start.new_full((len(parts[0][2]), 1), -1.0)
    decay = torch.full_like(start, penalty)
    decay[-1] = 0  # the intercept is free

    def loss_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
        weight = flat.view_as(start)
        gradient = decay * weight
        loss = torch.dot(gradient.flatten(), flat) / 2
        for block, transposed, target in parts:
            log_p = logits(block, weight).log_softmax(1)
            loss = loss.add(F.nll_loss(log_p, target, balance, reduction="sum"), alpha=1 / len(y))
            # d CE / d logits = softmax - onehot
            residual = log_p.exp_().scatter_add_(1, target[:, None], minus_one[: len(target)])
            if balance is not None:
                residual *= balance[target, None]
            if isinstance(transposed, Tensor):
                gradient[:-1].addmm_(transposed, residual, alpha=1 / len(y))
            else:
                gradient[:-1] += torch.from_numpy(transposed @ residual.numpy()) / len(y)
            gradient[-1].add_(residual.sum(0), alpha=1 / len(y))
        return loss, gradient.flatten()

    return minimize(loss_and_gradient, start.flatten(), steps).view_as(start)


@torch.no_grad()
def minimize(function: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor, steps: int) -> Tensor:
    """L-BFGS from x [P]; `function` returns value and gradient [P].

    A direction is a combination of the last steps s, the changes y of the gradient over them, and
    the gradient g, whose coefficients follow from their scalar products. A step is a few large
    operations and waits for a GPU twice; torch's L-BFGS takes a dozen small ones.
    """
    value, g = function(x)
    now, steepest, pairs = float(value), float(g.norm(torch.inf)), list[tuple[Tensor, Tensor]]()
    for _ in range(steps):
        if steepest <= GRADIENT_TOLERANCE:
            break
        basis = torch.stack([*(s for s, _ in pairs), *(y for _, y in pairs), g])
        products = (basis @ basis.T).cpu().double().numpy()
        shares = combine(products)
        d, slope = torch.from_numpy(shares).to(g) @ basis, float(products[-1] @ shares)
        t, low, high = 1.0 if pairs else min(1.0, 1 / float(g.abs().sum())), 0.0, math.inf
        for _ in range(MAX_SEARCHES):  # until both Wolfe conditions hold
            value, ahead = function(x + t * d)
            waited = torch.stack([value, ahead @ d, ahead.norm(torch.inf), d.norm(torch.inf)])
            new, new_slope, steepest, longest = waited.tolist()
            if not new <= now + 1e-4 * t * slope:  # NaN too
                high = t
            elif new_slope < 0.9 * slope:
                low = t
            else:
                break
            further = slope / min(slope - new_slope, -1e-30)  # where the slope would reach 0
            t = (low + high) / 2 if high < math.inf else t * min(max(further, 2), 100)
        else:
            break  # rounding hides what is left to gain
        s, change = t * d, now - new
        x, pairs = x + s, [*pairs, (s, ahead - g)][-HISTORY:]
        g, now = ahead, new
        if change < CHANGE_TOLERANCE or t * longest <= CHANGE_TOLERANCE:
            break
    return x


def combine(products: np.ndarray) -> np.ndarray:
    """Coefficients [2 m + 1] of (s_1 .. s_m, y_1 .. y_m, g) in -H g, from their scalar products.

    The two loops of L-BFGS over the pairs, on coefficients in place of vectors.
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


def logits(x: Rows, weight: Tensor) -> Tensor:
    """x W + b, [N, C]."""
    if isinstance(x, Tensor):
        return torch.addmm(weight[-1], x, weight[:-1])
    return torch.from_numpy(x @ weight[:-1].detach().numpy()) + weight[-1]


def _top_classes(x: Rows, weight: Tensor, most: int = 5) -> Tensor:
    parts = x.split(ROWS_PER_BLOCK[x.device.type]) if isinstance(x, Tensor) else [x]
    k = min(most, weight.shape[1])
    return torch.cat([logits(part, weight).topk(k, dim=1).indices for part in parts])


def _features(h: Array, device: torch.device) -> Tensor:
    x = torch.from_numpy(np.array(as_features(h), dtype=np.float32)).to(device)
    if not bool(torch.isfinite(x).all()):
        raise InputError("features must be finite numbers, got NaN or infinity")
    return x


def summarize(
    predictions: list[tuple[np.ndarray, np.ndarray]], truth: np.ndarray
) -> dict[str, Any]:
    """Accuracies over seeds with spread and chance, from top-1 [N, 1] and top-5 [N, k] labels."""
    result: dict[str, Any] = {}
    for name, tops in zip(("acc1", "acc5"), zip(*predictions)):
        values = [100 * float((top == truth[:, None]).any(1).mean()) for top in tops]
        result[name] = float(np.mean(values))
        result[f"{name}_spread"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        result[f"{name}_per_seed"] = values
        result[f"{name}_chance"] = float(np.mean([expected_chance(top, truth) for top in tops]))
    return result


def expected_chance(top: np.ndarray, truth: np.ndarray) -> float:
    """Expected accuracy with shuffled test labels, percent: sum_c P(c predicted) P(c)."""
    values, counts = np.unique(truth, return_counts=True)
    predicted = dict(zip(*np.unique(top, return_counts=True)))
    return 100 * sum(predicted.get(v, 0) * n for v, n in zip(values, counts)) / len(truth) ** 2


def group_probe(
    train_h: Array, train_y: Array, train_backgrounds: Array, test_h: Array, test_y: Array,
    test_backgrounds: Array,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy of `fast_probe` by group, a group being a class on a background, worst first.

    `worst` is low by chance alone in small groups. `usual` are the images on the most frequent
    training background of their class. `missing` is the number of groups without test images.
    """
    seen = Counter(zip(as_numpy(train_y).tolist(), as_numpy(train_backgrounds).tolist()))
    ranked = sorted(seen, key=lambda pair: (seen[pair], -pair[1]))
    most_frequent = dict(ranked)  # background by class: the last, of equals the lowest
    pairs = np.stack([test_y, test_backgrounds], axis=1)
    groups, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    size = np.bincount(group)
    right = [r.top[:, 0] == pairs[:, 0] for r in rank_classes(train_h, train_y, test_h)]
    accuracy = np.array([100 * np.bincount(group, weights=each) / size for each in right])  # [S, G]
    worst, mean = accuracy.min(1), accuracy.mean(0)
    usual = np.array([most_frequent.get(c) == d for c, d in groups.tolist()])

    def over_images(chosen: np.ndarray) -> float | None:
        return float(mean[chosen] @ size[chosen] / size[chosen].sum()) if chosen.any() else None

    rows = [
        {"label": c, "background": d, "images": many, "train_images": seen[c, d], "accuracy": share}
        for (c, d), many, share in zip(groups.tolist(), size.tolist(), mean.tolist())
    ]
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
