"""A measure of a model in training: the kNN accuracy on some of the training images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bayesncl.data.images import Images, spread_evenly
from bayesncl.measure.retrieval import knn_accuracies
from bayesncl.method.encoder import Encoder, in_eval_mode
from bayesncl.method.features import center_crop

MAX_IMAGES = 4000  # half of them are queries
NEIGHBORS = 20


@torch.no_grad()
def record_knn(model: Encoder, images: Images, epoch: int) -> dict[str, Any] | None:
    """Accuracy (percent) of the kNN classifier on h, with chance; None between two records.

    Labeled training images, at most 4,000, without augmentation and in eval mode: every second one
    is classified by the others. Labels are used nowhere else; the weights do not change.
    """
    if epoch % model.recipe.run.knn_every:
        return None
    assert images.labels is not None
    chosen = spread_evenly(len(images), MAX_IMAGES)
    labels, rows = np.asarray(images.labels)[chosen], []
    with in_eval_mode(model):
        for part in np.array_split(chosen, -(-len(chosen) // 256)):
            pixels = torch.from_numpy(np.array(images.pixels[part])).to(model.mean.device)
            x = model.normalize_pixels(center_crop(pixels, model.recipe.views.size))
            rows.append(model.embed(x).float().cpu())
    h = torch.cat(rows).numpy()
    known, asked = slice(0, None, 2), slice(1, None, 2)
    shuffled = np.random.default_rng(0).permutation(labels[known])
    k = min(NEIGHBORS, len(h[known]))
    knn, chance = knn_accuracies(h[known], [labels[known], shuffled], h[asked], labels[asked], k)
    return {"kind": "knn", "epoch": epoch, "knn": knn, "chance": chance}
