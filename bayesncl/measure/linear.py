"""Linear classifiers: probes of frozen features, classes read from few dimensions, the trim test.

`paper.probe` has the published probe, which trains on fresh crops of the images for 50 epochs.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_labels, as_numpy
from bayesncl.measure.dimensions import mean
from bayesncl.measure.neighbors import Rows, as_rows
from bayesncl.measure.result import Tree
from bayesncl.measure.rows import as_tensor, unit_codes

SEEDS = (0, 1, 2)  # one held-out part each
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of ||W||^2 / 2 beside the mean cross-entropy
KEPT_STEPS = 40  # of L-BFGS, on codes with few dimensions kept
MAX_ROWS = 20_000  # training rows of these and of `fit_linear`, drawn at random
VALIDATION_SHARE = 0.2  # of the training images, on which the penalty is chosen
ROWS_PER_BLOCK = {"cpu": 8192, "cuda": 131072}  # on a CPU the logits of a block stay in cache
MAX_STEPS = 60  # of L-BFGS
HISTORY = 10  # steps that L-BFGS remembers
MAX_SEARCHES = 20  # points tried along a direction
GRADIENT_TOLERANCE, CHANGE_TOLERANCE = 1e-4, 1e-6  # of the largest gradient; of loss or weights
SPARSE_PENALTIES = tuple(2.0**-k for k in range(1, 9))  # times the least that leaves no weight
SPARSE_STEPS = 200  # of the proximal gradient
RANDOM_TRIMS = 3  # random sets of dimensions left out, as a control
FEW_DIMS = (1, 2, 4)  # numbers of dimensions a class is read from
RIDGE = 1e-3  # share of the mean variance added to their covariance

Labeled = tuple[Rows, Tensor]  # features [N, F] and classes [N]
Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # from weights to value and gradient


class Ranking(NamedTuple):
    """Predictions for the test images by the probe of one seed."""

    top: np.ndarray  # labels [N, min(5, C)], best first
    penalty: float
    validation: float  # held-out accuracy at that penalty, percent


def fast_probe(train_h: Array, train_y: Array, test_h: Array, test_y: Array) -> Tree:
    """Accuracy of multinomial logistic regression on frozen features, percent, mean over seeds.

    Features are standardized with the training mean and deviation. The penalty is chosen per seed
    on a fifth of the training images, then the classifier is fitted on all. The problem is convex:
    the spread over seeds is that of the choice of penalty.
    """
    rankings = rank_classes(train_h, train_y, test_h)
    return summarize([(r.top[:, :1], r.top) for r in rankings], as_numpy(test_y)) | {
        "penalty": [r.penalty for r in rankings],
        "validation_acc1": [r.validation for r in rankings],
    }


def rank_classes(train_h: Array, train_y: Array, test_h: Array) -> list[Ranking]:
    """The predictions behind `fast_probe`, for every seed."""
    device = find_device()
    x, x_test = (as_tensor(as_features(h)).float().to(device) for h in (train_h, test_h))
    if len(x) < 5:
        raise InputError(f"a probe needs at least 5 training images, got {len(x)}")
    index, classes = as_labels(train_y, len(x))
    y = torch.from_numpy(index).to(device)
    deviation, center = torch.std_mean(x, dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    x, x_test = (x - center) / deviation, (x_test - center) / deviation
    start = torch.zeros(x.shape[1] + 1, len(classes), device=device)
    tops: dict[float, np.ndarray] = {}  # seeds that agree on the penalty share the final fit
    rankings = []
    for seed in SEEDS:
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))).to(device)
        penalty, validation = choose_penalty(*_split(x[order], y[order]), start)
        if penalty not in tops:
            weight = fit(x, y, start, penalty)
            tops[penalty] = classes[_top_classes(x_test, weight).cpu().numpy()]
        rankings.append(Ranking(tops[penalty], penalty, validation))
    return rankings


def probe_kept(
    train: sp.csr_array, train_labels: Array, test: sp.csr_array, test_labels: Array, *,
    seed: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """Accuracy and chance of logistic regression on codes with few dimensions kept per image.

    Columns are scaled to unit deviation over the training rows but not centered, as the intercept
    is free.
    """
    index, names = as_labels(train_labels, train.shape[0])
    order = np.random.default_rng(seed).permutation(train.shape[0])[:MAX_ROWS]
    x, y = train[order].astype(np.float32), torch.from_numpy(index[order]).to(find_device())
    center = np.asarray(x.mean(0)).ravel()
    deviation = np.sqrt(np.maximum(np.asarray(x.power(2).mean(0)).ravel() - center**2, 0))
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    scaled = ((rows @ sp.diags_array(scale)).tocsr() for rows in (x, test.astype(np.float32)))
    x, x_test = scaled if y.device.type == "cpu" else map(as_rows, scaled)
    start = torch.zeros(x.shape[1] + 1, len(names), device=y.device)
    penalty, _ = choose_penalty(*_split(x, y), start, PENALTIES[1:], 1, KEPT_STEPS)
    weight = fit(x, y, start, penalty, KEPT_STEPS)
    predicted = names[_top_classes(x_test, weight, 1).cpu().numpy()]
    truth = as_numpy(test_labels)
    return float(100 * (predicted[:, 0] == truth).mean()), expected_chance(predicted, truth)


def _split(x: Rows, y: Tensor) -> tuple[Labeled, Labeled]:
    """The rows to fit on, and the first fifth, held out."""
    held = max(1, round(VALIDATION_SHARE * len(y)))
    return (x[held:], y[held:]), (x[:held], y[:held])


def choose_penalty(
    rest: Labeled, out: Labeled, start: Tensor, penalties: Sequence[float] = PENALTIES,
    patience: int = 2, steps: int = MAX_STEPS, balance: Tensor | None = None,
) -> tuple[float, float]:  # fmt: skip
    """The penalty with the best held-out accuracy, of equals the stronger, and that accuracy.

    The search stops after `patience` penalties in a row without a gain. `balance` [C] weighs the
    rows of a class, in the fit and in the accuracy.
    """
    weight, best, since = start, (penalties[0], -1.0), 0
    for penalty in penalties:
        weight = fit(*rest, weight, penalty, steps, balance)  # starts from the last solution
        accuracy = 100 * _accuracy(out, weight, balance)
        best, since = ((penalty, accuracy), 0) if accuracy > best[1] else (best, since + 1)
        if since == patience:
            break
    return best


def _accuracy(out: Labeled, weight: Tensor, balance: Tensor | None) -> float:
    hits = _top_classes(out[0], weight, 1)[:, 0] == out[1]
    share = torch.ones_like(hits).double() if balance is None else balance[out[1]].double()
    return float((hits * share).sum() / share.sum())


def fit(
    x: Rows, y: Tensor, start: Tensor, penalty: float, steps: int = MAX_STEPS,
    balance: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Minimize mean CE(x W + b, y) + penalty/2 ||W||^2; returns [F + 1, C], the last row is b.

    `balance` [C] multiplies the cross-entropy of the rows of each class.
    """
    entropy = cross_entropy(x, y, balance)
    decay = torch.full_like(start, penalty)
    decay[-1] = 0  # the intercept is free

    def penalized(flat: Tensor) -> tuple[Tensor, Tensor]:
        weight = flat.view_as(start)
        pull = decay * weight
        loss, gradient = entropy(weight)
        return loss + torch.dot(pull.flatten(), flat) / 2, (gradient + pull).flatten()

    return minimize(penalized, start.flatten(), steps).view_as(start)


def cross_entropy(x: Rows, y: Tensor, balance: Tensor | None = None) -> Objective:
    """Mean cross-entropy of x W + b as a function of weights [F + 1, C]."""
    parts = _blocks(x)
    targets = y.split([part.shape[0] for part in parts])

    def objective(weight: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = weight.new_zeros(()), torch.zeros_like(weight)
        for block, target in zip(parts, targets):
            log_p = logits(block, weight).log_softmax(1)
            loss = loss.add(F.nll_loss(log_p, target, balance, reduction="sum"), alpha=1 / len(y))
            # d CE / d logits = softmax - onehot
            minus_one = log_p.new_full((len(target), 1), -1.0)
            residual = log_p.exp_().scatter_add_(1, target[:, None], minus_one)
            if balance is not None:
                residual *= balance[target, None]
            if isinstance(block, Tensor):
                gradient[:-1].addmm_(block.T, residual, alpha=1 / len(y))
            else:
                gradient[:-1] += torch.from_numpy(block.T @ residual.numpy()) / len(y)
            gradient[-1].add_(residual.sum(0), alpha=1 / len(y))
        return loss, gradient

    return objective


@torch.no_grad()
def minimize(function: Objective, x: Tensor, steps: int) -> Tensor:
    """L-BFGS from x [P].

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
    shares, a = np.zeros(len(products)), np.zeros(m)
    shares[-1] = -1
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


def _blocks(x: Rows) -> Sequence[Rows]:
    return x.split(ROWS_PER_BLOCK[x.device.type]) if isinstance(x, Tensor) else [x]


def _top_classes(x: Rows, weight: Tensor, most: int = 5) -> Tensor:
    k = min(most, weight.shape[1])
    return torch.cat([logits(part, weight).topk(k, dim=1).indices for part in _blocks(x)])


def summarize(predictions: list[tuple[np.ndarray, np.ndarray]], truth: np.ndarray) -> Tree:
    """Accuracies over seeds with spread and chance, from top-1 [N, 1] and top-5 [N, k] labels."""
    result: Tree = {}
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


def _accuracy_by_group(
    right: Sequence[np.ndarray], one: Array, two: Array
) -> tuple[list[tuple[Any, Any]], np.ndarray, np.ndarray]:
    """The distinct pairs of values, sorted, the rows of each [G], and percent `right` [S, G]."""
    keys = list(zip(as_numpy(one).tolist(), as_numpy(two).tolist()))
    pairs = sorted(set(keys))
    number = {pair: i for i, pair in enumerate(pairs)}
    group = np.array([number[key] for key in keys])
    size = np.bincount(group)
    return pairs, size, np.array([100 * np.bincount(group, each) / size for each in right])


def group_accuracy(predicted: Array, labels: Array, groups: Array | None = None) -> Tree:
    """Percent right over all rows (`average`), in the worst group (`worst`), and by group.

    A group is a class and a value of `groups` [N]; without `groups` it is a class.
    """
    truth = as_numpy(labels)
    second = np.full(len(truth), "") if groups is None else as_numpy(groups)
    if second.shape != truth.shape:
        raise InputError(f"{len(second)} groups for {len(truth)} rows")
    right = as_numpy(predicted) == truth
    pairs, size, (shares,) = _accuracy_by_group([right], truth, second)
    rows = [
        {"class": c, "group": g, "images": many, "accuracy": share}
        for (c, g), many, share in zip(pairs, size.tolist(), shares.tolist())
    ]
    rows.sort(key=lambda row: row["accuracy"])
    average = 100 * float(right.mean())
    return {"average": average, "worst": rows[0]["accuracy"], "groups": rows}


def group_probe(
    train_h: Array, train_y: Array, train_backgrounds: Array, test_h: Array, test_y: Array,
    test_backgrounds: Array,
) -> Tree:  # fmt: skip
    """Accuracy of `fast_probe` by group, a group being a class on a background, worst first.

    `worst` is low by chance alone in small groups. `usual` are the images on the most frequent
    training background of their class. `missing` is the number of groups without test images.
    """
    seen = Counter(zip(as_numpy(train_y).tolist(), as_numpy(train_backgrounds).tolist()))
    ranked = sorted(seen, key=lambda pair: (seen[pair], -pair[1]))
    most_frequent = dict(ranked)  # background by class: the last, of equals the lowest
    truth = as_numpy(test_y)
    right = [r.top[:, 0] == truth for r in rank_classes(train_h, train_y, test_h)]
    pairs, size, accuracy = _accuracy_by_group(right, truth, test_backgrounds)
    worst, by_group = accuracy.min(1), accuracy.mean(0)
    usual = np.array([most_frequent.get(c) == d for c, d in pairs])

    def over_images(chosen: np.ndarray) -> float | None:
        many = size[chosen]
        return float(by_group[chosen] @ many / many.sum()) if chosen.any() else None

    rows = [
        {"label": c, "background": d, "images": many, "train_images": seen[c, d], "accuracy": share}
        for (c, d), many, share in zip(pairs, size.tolist(), by_group.tolist())
    ]
    labels, backgrounds = zip(*pairs)
    return {
        "worst": float(worst.mean()),
        "worst_spread": float(worst.std(ddof=1)),
        "worst_per_seed": worst.tolist(),
        "average": over_images(np.ones_like(usual)),
        "balanced": float(by_group.mean()),
        "usual": over_images(usual),
        "unusual": over_images(~usual),
        "groups": sorted(rows, key=lambda row: row["accuracy"]),
        "missing": len(set(labels)) * len(set(backgrounds)) - len(pairs),
    }


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
    validation: tuple[Array, Array] | None = None,
) -> Linear:  # fmt: skip
    """Multinomial logistic regression of labels [N] on features [N, D], classes weighing the same.

    The penalty, of ||W||^2 / 2 or with `sparse` of |W|_1, is chosen on a fifth of the rows, or on
    the features and labels of `validation`: the best, or with `sparse` the strongest within one
    standard error of the best.
    """
    x = np.array(as_features(z), np.float32)
    index, classes = as_labels(labels, len(x))
    order = np.random.default_rng(0).permutation(len(x))[:MAX_ROWS]
    x, index = x[order], index[order]
    center, deviation = x.mean(0), x.std(0)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-9)
    rows, y = torch.from_numpy((x - center) * scale), torch.from_numpy(index)
    count = torch.bincount(y, minlength=len(classes)).clamp_min(1)
    balance = len(y) / (len(classes) * count.float())
    start = torch.zeros(x.shape[1] + 1, len(classes))
    rest, out = _split(rows, y)
    if validation is not None:
        given = (np.array(as_features(validation[0]), np.float32) - center) * scale
        own = np.searchsorted(classes, as_numpy(validation[1]))
        rest, out = (rows, y), (torch.from_numpy(given), torch.from_numpy(own))
    if sparse:
        penalty = choose_sparse_penalty(rest, out, start, balance)
        weight = fit_sparse(rows, y, start, penalty, balance, 2 * SPARSE_STEPS)
    else:
        penalty, _ = choose_penalty(rest, out, start, balance=balance)
        weight = fit(rows, y, start, penalty, balance=balance)
    w = weight.numpy()
    return Linear(classes, center, scale, w[:-1], w[-1])


def choose_sparse_penalty(rest: Labeled, out: Labeled, start: Tensor, balance: Tensor) -> float:
    """The strongest L1 penalty whose held-out accuracy is within a standard error of the best."""
    _, gradient = cross_entropy(*rest, balance)(start)
    penalties = [float(gradient[:-1].abs().max()) * share for share in SPARSE_PENALTIES]
    weight, accuracies = start, []
    for penalty in penalties:
        weight = fit_sparse(*rest, weight, penalty, balance)
        accuracies.append(_accuracy(out, weight, balance))
    best = max(accuracies)
    error = (best * (1 - best) / len(out[1])) ** 0.5
    return next(p for p, found in zip(penalties, accuracies) if found >= best - error)


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
    weight, ahead, speed, entropy = start, start, 1.0, cross_entropy(x, y, balance)
    for _ in range(steps):
        new = ahead - entropy(ahead)[1] / length
        new[:-1] = F.softshrink(new[:-1], penalty / length)
        if float(((ahead - new) * (new - weight)).sum()) > 0:  # overshot: start to accelerate anew
            speed = 1.0
        faster = (1 + (1 + 4 * speed**2) ** 0.5) / 2
        ahead = new + (speed - 1) / faster * (new - weight)
        weight, speed = new, faster
    return weight


def trim(
    train_z: Array, train_labels: Array, test_z: Array, test_labels: Array, groups: Array | None,
    irrelevant: Sequence[int], *, validation: tuple[Array, Array] | None = None,
) -> Tree:  # fmt: skip
    """Accuracy of logistic regression with and without the dimensions a person calls irrelevant.

    Parameters
    ----------
    train_z, train_labels : codes [N, D] and labels [N] to fit on.
    test_z, test_labels : codes [M, D] and labels [M] to test on.
    groups : [M], such as the background; a group is a class and one of these. None: classes.
    irrelevant : dimensions to leave out.
    validation : codes and labels on which penalties are chosen; default a fifth of the training
        rows. Rows with the same shortcut as the training rows choose a penalty that uses it.

    Returns
    -------
    dict with `all`, `trimmed` and `random` (as many others left out at random, mean of three), each
    with `average` and `worst` in percent, the first two with `groups`; `left`, the number of
    dimensions left; `chance`, the accuracy with test labels shuffled.
    """
    z, test = as_features(train_z), as_features(test_z)
    width = z.shape[1]
    dropped = np.unique(np.asarray(irrelevant, np.int64))
    if len(dropped) and not (dropped[0] >= 0 and dropped[-1] < width):
        raise InputError(f"dimensions to leave out must be 0 to {width - 1}")
    if len(dropped) == width:
        raise InputError("all dimensions are irrelevant: none is left to classify by")

    def measure(kept: np.ndarray) -> tuple[Tree, np.ndarray]:
        chosen = None
        if validation is not None:
            chosen = as_features(validation[0])[:, kept], validation[1]
        model = fit_linear(z[:, kept], train_labels, validation=chosen)
        predicted = model.predict(test[:, kept])
        return group_accuracy(predicted, test_labels, groups), predicted

    rng, every = np.random.default_rng(0), np.arange(width)
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


def sparse_probe(train: tuple[Array, Array], test: tuple[Array, Array]) -> dict[int, float | None]:
    """Balanced accuracy of reading each class from its few best dimensions; chance is 50.

    On the training codes and labels: choose the dimensions with the largest |mean on the class -
    mean on the rest|, fit their linear discriminant with pooled covariance, and put the threshold
    where balanced accuracy is best, halfway between two scores. Then measure on the test rows, in
    percent by number of dimensions, mean over the classes with rows in both sets.
    """
    z, z_test = unit_codes(train[0]), unit_codes(test[0])
    y, names = as_labels(train[1], z.shape[0])
    truth = as_numpy(test[1])
    scores: dict[int, list[float]] = {k: [] for k in FEW_DIMS}
    total = z.sum(0, dtype=np.float64)
    for c, name in enumerate(names.tolist()):
        own, own_test = y == c, truth == name
        if not own_test.any() or own_test.all():
            continue
        inside, many = z[own].sum(0, dtype=np.float64), own.sum()
        gap = np.abs(inside / many - (total - inside) / (len(y) - many))
        chosen = np.argsort(-gap, kind="stable")[: max(FEW_DIMS)]
        x, x_test = (codes[:, chosen].T.astype(np.float32) for codes in (z, z_test))  # best first
        shift = x[:, own].mean(1, dtype=np.float64) - x[:, ~own].mean(1, dtype=np.float64)
        within = sum(np.cov(x[:, part], bias=True) * part.mean() for part in (own, ~own))
        within = np.atleast_2d(within)
        for k in FEW_DIMS:
            covariance = within[:k, :k]
            ridge = RIDGE * np.trace(covariance) / len(covariance) + 1e-12
            inverted = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), shift[:k])
            weight = inverted.astype(np.float32)
            predicted = weight @ x_test[:k] > _best_threshold(weight @ x[:k], own)
            recall, false = predicted[own_test].mean(), predicted[~own_test].mean()
            scores[k].append(50 * float(recall + 1 - false))
    return {k: mean(np.array(accuracies)) for k, accuracies in scores.items()}


def _best_threshold(score: np.ndarray, own: np.ndarray) -> float:
    """The highest threshold on scores [N] with the best balanced accuracy.

    It lies halfway between a score of the class and the next lower score: lowering it further only
    adds others, until the next score of the class.
    """
    ranked, hits = np.sort(score), np.sort(score[own])
    below = np.searchsorted(ranked, hits)
    caught = len(hits) - np.searchsorted(hits, hits)
    others = len(ranked) - below - caught
    gain = caught / len(hits) - others / (len(ranked) - len(hits))
    best = len(hits) - 1 - int(gain[::-1].argmax())
    following = ranked[below[best] - 1] if below[best] else -np.inf
    return float((hits[best] + following) / 2)
