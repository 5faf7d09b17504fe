"""What features say of the background, and what the background does to the object probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from .probe import fast_probe, rank_classes


def background_probe(
    train: Mapping[str, np.ndarray],
    train_backgrounds: np.ndarray,
    test: Mapping[str, np.ndarray],
    test_backgrounds: np.ndarray,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | torch.device | None = None,
) -> dict[str, dict[str, Any]]:
    """Linear probe for the second label, for every kind of feature.

    Parameters
    ----------
    train, test : features by name (`h`, `z`, `gated`), [N, F] each.
    train_backgrounds, test_backgrounds : [N] integers.

    Returns
    -------
    dict
        `fast_probe`'s result by name. Where object and background are tied in training, part of it is read off the
        object.
    """
    if set(train) != set(test):
        raise InputError(f"train features are {sorted(train)}, test features {sorted(test)}")
    return {
        name: fast_probe(train[name], train_backgrounds, test[name], test_backgrounds, seeds, device) for name in train
    }


def group_probe(
    train_h: np.ndarray,
    train_y: np.ndarray,
    train_backgrounds: np.ndarray,
    test_h: np.ndarray,
    test_y: np.ndarray,
    test_backgrounds: np.ndarray,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Object probe by group, a group being a class on a background.

    The probe is `fast_probe`'s, fitted without a look at the groups.

    Returns
    -------
    dict
        `worst` (lowest group accuracy, percent, mean over seeds; with few images in a group it is low by chance alone),
        `worst_spread`, `worst_per_seed`, `average` over images, `balanced` over groups, `usual` and `unusual`: over the
        images that stand, or do not stand, on the commonest training background of their class (None without such
        images); `groups`: a row each with `label`, `background`, `images`, `train_images`, `accuracy`, worst first.
        Groups without test images are left out; `missing` counts them.
    """
    train_pairs = _pairs(train_y, train_backgrounds, len(train_h), "train")
    pairs = _pairs(test_y, test_backgrounds, len(test_h), "test")
    groups, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    size = np.bincount(group)
    truth = pairs[:, 0]
    rankings = rank_classes(train_h, train_y, test_h, seeds, device)
    # [seeds, G], percent
    accuracy = np.array([100 * np.bincount(group, weights=r.top[:, 0] == truth) / size for r in rankings])
    worst = accuracy.min(1)
    mean = accuracy.mean(0)
    usual = np.array([d == _commonest(train_pairs, c) for c, d in groups])

    def over_images(chosen: np.ndarray) -> float | None:
        return float(mean[chosen] @ size[chosen] / size[chosen].sum()) if chosen.any() else None

    rows = [
        {
            "label": int(groups[g, 0]),
            "background": int(groups[g, 1]),
            "images": int(size[g]),
            "train_images": int((train_pairs == groups[g]).all(1).sum()),
            "accuracy": float(mean[g]),
        }
        for g in np.argsort(mean, kind="stable")
    ]
    return {
        "worst": float(worst.mean()),
        "worst_spread": float(worst.std(ddof=1)) if len(worst) > 1 else 0.0,
        "worst_per_seed": worst.tolist(),
        "average": over_images(np.ones(len(groups), dtype=bool)),
        "balanced": float(mean.mean()),
        "usual": over_images(usual),
        "unusual": over_images(~usual),
        "groups": rows,
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
