"""Linear classifiers on codes: with few dimensions, and without some of them (the trim test).

All classes weigh the same in the fit, so that a rare class is not given up for a common one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_labels, as_numpy
from bayesncl.measure.probe import PENALTIES, VALIDATION_SHARE, choose_penalty, expected_chance, fit

MAX_ROWS = 20_000  # training rows, drawn at random
SPARSE_PENALTIES = tuple(2.0**-k for k in range(1, 9))  # times the least that leaves no weight
SPARSE_STEPS = 200  # of the proximal gradient
RANDOM_TRIMS = 3  # random sets of dimensions left out, as a control


@dataclass(frozen=True)
class Linear:
    """A linear classifier of standardized features."""

    classes: np.ndarray  # [C], labels
    mean: np.ndarray  # [D]
    scale: np.ndarray  # [D]; 0 where a feature is constant
    weight: np.ndarray  # [D, C], per standard deviation
    bias: np.ndarray  # [C]

    def contributions(self, z: Array) -> np.ndarray:
        """What each feature adds to the score of each class [N, D, C], relative to the mean row."""
        scaled = (as_features(z) - self.mean) * self.scale
        return np.asarray(scaled[:, :, None] * self.weight)

    def predict(self, z: Array) -> np.ndarray:
        """The class of the highest score [N]."""
        scores = (as_features(z) - self.mean) * self.scale @ self.weight + self.bias
        return np.asarray(self.classes[scores.argmax(1)])

    @property
    def used(self) -> np.ndarray:
        """bool [D], dimensions with a weight."""
        return np.asarray((self.weight != 0).any(1))


def fit_linear(
    z: Array, labels: Array, *, sparse: bool = False,
    validation: tuple[Array, Array] | None = None, seed: int = 0,
) -> Linear:  # fmt: skip
    """Multinomial logistic regression of labels [N] on features [N, D].

    The penalty, of ||W||^2 / 2 or with `sparse` of |W|_1, is chosen on a fifth of the rows, or on
    the features and labels of `validation`: the best, or with `sparse` the strongest within one
    standard error of the best.
    """
    x = np.array(as_features(z), np.float32)
    index, classes = as_labels(labels, len(x))
    order = np.random.default_rng(seed).permutation(len(x))[:MAX_ROWS]
    x, index = x[order], index[order]
    mean, deviation = x.mean(0), x.std(0)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-9)
    rows, y = torch.from_numpy((x - mean) * scale), torch.from_numpy(index)
    count = torch.bincount(y, minlength=len(classes)).clamp_min(1)
    balance = len(y) / (len(classes) * count.float())
    start = torch.zeros(x.shape[1] + 1, len(classes))
    held = max(1, round(VALIDATION_SHARE * len(y)))
    rest, out = (rows[held:], y[held:]), (rows[:held], y[:held])
    if validation is not None:
        given = (np.array(as_features(validation[0]), np.float32) - mean) * scale
        own = np.searchsorted(classes, as_numpy(validation[1]))
        rest, out = (rows, y), (torch.from_numpy(given), torch.from_numpy(own))
    if sparse:
        weight = _fit_path(rest, out, (rows, y), start, balance)
    else:
        penalty, _ = choose_penalty(rest, out, start, PENALTIES, patience=2, balance=balance)
        weight = fit(rows, y, start, penalty, balance=balance)
    w = weight.numpy()
    return Linear(classes, mean, scale, w[:-1], w[-1])


def _fit_path(
    rest: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], both: tuple[Tensor, Tensor],
    start: Tensor, balance: Tensor,
) -> Tensor:  # fmt: skip
    """Weights [D + 1, C] by the strongest L1 penalty within a standard error of the best."""
    largest = float(_gradient(*rest, start, balance)[:-1].abs().max())
    penalties = [largest * share for share in SPARSE_PENALTIES]
    weight, accuracies = start, []
    share = balance[out[1]] / balance[out[1]].sum()
    for penalty in penalties:
        weight = fit_sparse(*rest, weight, penalty, balance)
        hits = (out[0] @ weight[:-1] + weight[-1]).argmax(1) == out[1]
        accuracies.append(float((hits * share).sum()))
    best = max(accuracies)
    error = (best * (1 - best) / len(share)) ** 0.5
    chosen = next(p for p, found in zip(penalties, accuracies) if found >= best - error)
    return fit_sparse(*both, start, chosen, balance, 2 * SPARSE_STEPS)


def _gradient(x: Tensor, y: Tensor, weight: Tensor, balance: Tensor) -> Tensor:
    """Gradient of the balanced mean cross-entropy by weights [D + 1, C]."""
    residual = (x @ weight[:-1] + weight[-1]).softmax(1)
    residual -= F.one_hot(y, weight.shape[1])
    residual *= balance[y, None] / len(y)
    return torch.cat([x.T @ residual, residual.sum(0, keepdim=True)])


def fit_sparse(
    x: Tensor, y: Tensor, start: Tensor, penalty: float, balance: Tensor, steps: int = SPARSE_STEPS
) -> Tensor:
    """Minimize balanced mean CE(x W + b, y) + penalty |W|_1 by accelerated proximal gradient.

    Returns [D + 1, C]; the last row, the intercept, is not penalized. Steps are 1 / L with
    L = |sqrt(balance) [x 1]|^2 / 2 N, which bounds the curvature.
    """
    ones = torch.cat([x, torch.ones(len(x), 1)], 1) * balance[y, None].sqrt()
    live = ones[:, ones.any(0)]  # columns of zeros make LAPACK fail
    length = float(torch.linalg.eigvalsh((live.T @ live).double())[-1]) / (2 * len(x))
    weight, ahead, speed = start, start, 1.0
    for _ in range(steps):
        new = ahead - _gradient(x, y, ahead, balance) / length
        new[:-1] = F.softshrink(new[:-1], penalty / length)
        if float(((ahead - new) * (new - weight)).sum()) > 0:  # overshot: start to accelerate anew
            speed = 1.0
        faster = (1 + (1 + 4 * speed**2) ** 0.5) / 2
        ahead = new + (speed - 1) / faster * (new - weight)
        weight, speed = new, faster
    return weight


def group_accuracy(predicted: Array, labels: Array, groups: Array | None = None) -> dict[str, Any]:
    """Percent right over all rows (`average`), in the worst group (`worst`), and by group.

    A group is a class and a value of `groups` [N]; without `groups` it is a class.
    """
    truth = as_numpy(labels)
    right = as_numpy(predicted) == truth
    second = np.full(len(truth), "") if groups is None else as_numpy(groups)
    if second.shape != truth.shape:
        raise InputError(f"{len(second)} groups for {len(truth)} rows")
    index, pairs = _pairs(truth, second)
    size = np.bincount(index)
    shares = 100 * np.bincount(index, right) / size
    rows = [
        {"class": c, "group": g, "images": int(many), "accuracy": float(share)}
        for (c, g), many, share in zip(pairs, size, shares)
    ]
    rows.sort(key=lambda row: row["accuracy"])
    average = 100 * float(right.mean())
    return {"average": average, "worst": rows[0]["accuracy"], "groups": rows}


def _pairs(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, list[tuple[Any, Any]]]:
    """Index [N] of each row's pair of values among the distinct pairs, and these pairs."""
    (a, i), (b, j) = (np.unique(each, return_inverse=True) for each in (one, two))
    met, index = np.unique(i.reshape(-1) * len(b) + j.reshape(-1), return_inverse=True)
    pairs = [(a[k // len(b)].item(), b[k % len(b)].item()) for k in met]
    return index.reshape(-1), pairs


def trim(
    train_z: Array, train_labels: Array, test_z: Array, test_labels: Array, groups: Array | None,
    irrelevant: Sequence[int], *, validation: tuple[Array, Array] | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy of logistic regression with and without the dimensions a person calls irrelevant.

    Parameters
    ----------
    train_z, train_labels : codes [N, D] and labels [N] to fit on.
    test_z, test_labels : codes [M, D] and labels [M] to test on.
    groups : [M], such as the background; a group is a class and one of these. None: classes.
    irrelevant : dimensions to leave out.
    validation : codes and labels on which penalties are chosen; default a fifth of the training
        rows. Rows with the same shortcut as the training rows choose a penalty that uses it.
    seed : of the rows that choose the penalty, and of the control.

    Returns
    -------
    dict with `all`, `trimmed` and `random` (as many others left out at random, mean of three), each
    with `average` and `worst` in percent, the first two with `groups`; `left`, the number of
    dimensions left; `chance`, the accuracy with test labels shuffled.
    """
    z, test = as_features(train_z), as_features(test_z)
    width = z.shape[1]
    dropped = np.unique(np.asarray(irrelevant, np.int64))
    if test.shape[1] != width:
        raise InputError(f"train codes have {width} dimensions, test codes {test.shape[1]}")
    if len(dropped) and not (dropped[0] >= 0 and dropped[-1] < width):
        raise InputError(f"dimensions to leave out must be 0 to {width - 1}")
    if len(dropped) == width:
        raise InputError("all dimensions are irrelevant: none is left to classify by")

    def measure(kept: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        chosen = None
        if validation is not None:
            chosen = as_features(validation[0])[:, kept], validation[1]
        model = fit_linear(z[:, kept], train_labels, validation=chosen, seed=seed)
        predicted = model.predict(test[:, kept])
        return group_accuracy(predicted, test_labels, groups), predicted

    rng, every = np.random.default_rng(seed), np.arange(width)
    full, predicted = measure(every)
    left = np.setdiff1d(every, dropped)
    result = {"all": full, "left": len(left)}
    result["chance"] = expected_chance(predicted[:, None], as_numpy(test_labels))
    if not len(dropped):
        return result | {"trimmed": full, "random": full}
    draws = [measure(np.sort(rng.permutation(width)[: len(left)]))[0] for _ in range(RANDOM_TRIMS)]
    result["random"] = {
        key: float(np.mean([draw[key] for draw in draws])) for key in ("average", "worst")
    }
    return result | {"trimmed": measure(left)[0]}
