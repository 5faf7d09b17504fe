"""Gradient dynamics: what InfoNCE does to each feature dimension during training.

The gradient of a batch is g = 2B dL/dz, [2B, D]: L is the InfoNCE loss, z the matrix given to it (unit-norm, gated
where the model has gates), and the factor 2B undoes the mean over anchors, so that a row does not shrink with the
batch. Row i holds what the loss asks of image i's features, as anchor, as positive and as negative. Per dimension we
take mean and variance over the rows of several batches of training views, all at the current weights: nothing is
updated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from ..objective import ACTIVE, info_nce

CONFLICTS = (0.9, 0.5)  # products of firing probabilities from which a dimension counts as conflicting
SUPPORT = 10  # firing rows a dimension needs to enter the sound correlations


class Gradients:
    """Streaming per-dimension statistics of z and of the InfoNCE gradient with respect to it.

    Parameters
    ----------
    temperature : tau.
    classes : number of classes; labels lie in [0, classes). 0 if there are no labels.
    """

    def __init__(self, temperature: float, classes: int = 0) -> None:
        self.temperature = temperature
        self.classes = classes
        self.rows = 0
        self.sums: Tensor | None = None  # [5, D]: g and g^2 over all rows, over rows where z fires; firing rows
        self.fired: Tensor | None = None  # [2, C, D] firing rows by class, and by shuffled class
        self.class_rows: Tensor | None = None  # [C] rows by class
        self.generator = torch.Generator().manual_seed(0)  # of the shuffled labels

    def update(self, z: Tensor, labels: Tensor | None = None) -> None:
        """Add one batch: z [2B, D] as given to InfoNCE, labels [B] of its images."""
        if z.ndim != 2 or len(z) % 2:
            raise InputError(f"a batch must be [2B, D] with both views of each image, got {list(z.shape)}")
        z = z.detach().float()
        g = gradient(z, self.temperature).double()
        active = (z.abs() > ACTIVE).double()
        sums = torch.stack(
            [g.sum(0), g.square().sum(0), (g * active).sum(0), (g.square() * active).sum(0), active.sum(0)]
        )
        self.sums = sums if self.sums is None else self.sums + sums
        self.rows += len(z)
        if labels is not None and self.classes:
            mixed = labels[torch.randperm(len(labels), generator=self.generator).to(labels.device)]
            onehot = nn.functional.one_hot(torch.stack([labels, mixed]).long().repeat(1, 2), self.classes).double()
            fired = onehot.mT @ active  # [2, C, 2B] @ [2B, D]
            self.fired = fired if self.fired is None else self.fired + fired
            rows = onehot[0].sum(0)
            self.class_rows = rows if self.class_rows is None else self.class_rows + rows

    def result(self) -> dict[str, np.ndarray]:
        """Arrays [D] in float64; NaN where a dimension has no firing row.

        `frequency` (share of rows where |z_k| > 1e-5), `support` (their number), `mean` and `variance` of the gradient
        over all rows, `mean_active` and `variance_active` over the firing rows, `consistency` (share of the commonest
        class among the firing rows, percent), `chance_consistency` (the same with shuffled labels),
        `conflict` (the greatest P(z_k fires | c) P(z_k fires | c') of two classes).
        """
        if self.sums is None:
            raise InputError("gradient dynamics need at least one batch, got none")
        g, square, g_active, square_active, support = self.sums.cpu().numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            mean, mean_active = g / self.rows, g_active / support
            unknown = np.full((2, len(support)), np.nan)
            consistency = unknown if self.fired is None else 100 * self.fired.amax(1).cpu().numpy() / support
            return {
                "frequency": support / self.rows,
                "support": support,
                "mean": mean,
                "variance": np.maximum(square / self.rows - mean**2, 0),
                "mean_active": mean_active,
                "variance_active": np.maximum(square_active / support - mean_active**2, 0),
                "consistency": consistency[0],
                "chance_consistency": consistency[1],
                "conflict": self._conflict(len(support)),
            }

    def _conflict(self, dims: int) -> np.ndarray:
        if self.fired is None or self.class_rows is None or self.classes < 2:
            return np.full(dims, np.nan)
        probability = self.fired[0] / self.class_rows[:, None].clamp_min(1)  # [C, D]
        return probability.topk(2, dim=0).values.prod(0).cpu().numpy()


def gradient(z: Tensor, temperature: float) -> Tensor:
    """2B dL/dz of InfoNCE at z [2B, D], a row per view."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (g,) = torch.autograd.grad(info_nce(leaf, temperature), leaf)
    return g * len(z)


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation over the entries finite in both, ties at their average rank; None where a side is constant."""
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < 2:
        return None
    from scipy.stats import rankdata  # half a second to import: not for those who only measure a file

    ranks = [rankdata(v[both]) for v in (a, b)]
    x, y = (r - r.mean() for r in ranks)
    size = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / size) if size > 0 else None


def correlations(statistics: dict[str, np.ndarray], support: int = 1) -> dict[str, float | None]:
    """Spearman correlations across dimensions of activation frequency, gradient variance and consistency.

    Parameters
    ----------
    statistics : of `Gradients.result`.
    support : firing rows a dimension needs to count.

    Returns
    -------
    dict
        `af_gv`, `af_sc`, `gv_sc` with the variance over all rows, `af_gv_active`, `gv_sc_active` with the variance over
        firing rows; None where one is constant or unknown.
    """
    counted = statistics["support"] >= support
    af, gv, gv_active, sc = (
        statistics[k][counted] for k in ("frequency", "variance", "variance_active", "consistency")
    )
    return {
        "af_gv": spearman(af, gv),
        "af_sc": spearman(af, sc),
        "gv_sc": spearman(gv, sc),
        "af_gv_active": spearman(af, gv_active),
        "gv_sc_active": spearman(gv_active, sc),
    }


def dynamics(
    batches: Iterable[tuple[Tensor, Tensor | None]], temperature: float, classes: int = 0
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Gradient dynamics over batches of (z [2B, D], labels [B] or None).

    Returns
    -------
    row : dict
        `paper` (every dimension that fires), `sound` (support of 10 rows) and `chance` (as sound, labels shuffled):
        correlations each; `dims` and `dims_sound` counted; `rows`; medians over the sound dimensions of the gradient's
        `variance` and `mean_to_deviation`, |mean| / standard deviation;
        `instability`: the proposition's test at the thresholds 0.9 and 0.5 of the conflict, and without a threshold
        the Spearman correlations of the conflict with variance (the proposition wants it positive) and with
        mean_to_deviation (negative).
    statistics : dict of arrays [D], see `Gradients.result`.
    """
    gradients = Gradients(temperature, classes)
    for z, labels in batches:
        gradients.update(z, labels)
    statistics = gradients.result()
    counted = statistics["support"] >= SUPPORT
    ratio = _mean_to_deviation(statistics)
    row = {
        "paper": correlations(statistics),
        "sound": correlations(statistics, SUPPORT),
        "chance": correlations(statistics | {"consistency": statistics["chance_consistency"]}, SUPPORT),
        "rows": gradients.rows,
        "dims": int((statistics["support"] >= 1).sum()),
        "dims_sound": int(counted.sum()),
        "variance": _median(statistics["variance"][counted]),
        "mean_to_deviation": _median(ratio[counted]),
        "instability": {
            **{str(t): instability(statistics, statistics["conflict"] >= t) for t in CONFLICTS},
            "spearman_variance": spearman(statistics["conflict"][counted], statistics["variance"][counted]),
            "spearman_mean_to_deviation": spearman(statistics["conflict"][counted], ratio[counted]),
        },
    }
    return row, statistics


def instability(statistics: dict[str, np.ndarray], conflicting: np.ndarray) -> dict[str, Any]:
    """Whether conflicting dimensions have gradients of near-zero mean and high variance, as the proposition says.

    Parameters
    ----------
    statistics : of `Gradients.result` or `dynamics`.
    conflicting : bool [D], or the numbers of the conflicting dimensions.

    Returns
    -------
    dict
        `conflicting` and `others`, each with `dims`, and medians of `mean_size` (|mean|), `variance`,
        `mean_to_deviation` over all rows and of `variance_active`, `mean_to_deviation_active` over firing rows;
        `holds`: the conflicting dimensions have the smaller |mean| / deviation and the larger variance (None without
        dimensions on both sides), and `note`.
    """
    marked = np.zeros(len(statistics["support"]), dtype=bool)
    marked[np.asarray(conflicting)] = True
    counted = statistics["support"] >= SUPPORT
    sides = {name: _side(statistics, counted & side) for name, side in (("conflicting", marked), ("others", ~marked))}
    a, b = sides["conflicting"], sides["others"]
    if not a["dims"] or not b["dims"]:
        note = f"nothing to compare: {a['dims']} conflicting dimensions, {b['dims']} others"
        return {**sides, "holds": None, "note": note}
    unsteadier = a["mean_to_deviation"] < b["mean_to_deviation"]
    wilder = a["variance"] > b["variance"]
    note = (
        f"|mean| / deviation is {'smaller' if unsteadier else 'not smaller'} "
        f"and the variance {'larger' if wilder else 'not larger'} "
        f"on the {a['dims']} conflicting dimensions than on the {b['dims']} others"
    )
    return {**sides, "holds": bool(unsteadier and wilder), "note": note}


def _side(statistics: dict[str, np.ndarray], dims: np.ndarray) -> dict[str, Any]:
    with np.errstate(invalid="ignore", divide="ignore"):
        active = np.abs(statistics["mean_active"]) / np.sqrt(statistics["variance_active"])
    return {
        "dims": int(dims.sum()),
        "mean_size": _median(np.abs(statistics["mean"])[dims]),
        "variance": _median(statistics["variance"][dims]),
        "mean_to_deviation": _median(_mean_to_deviation(statistics)[dims]),
        "variance_active": _median(statistics["variance_active"][dims]),
        "mean_to_deviation_active": _median(active[dims]),
    }


def _mean_to_deviation(statistics: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(statistics["mean"]) / np.sqrt(statistics["variance"])


def _median(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None
