"""The paper's own measures of a run: theory, conflicting features, background, published probe.

`evaluate` takes `paper_measures` as its `extra`: it measures what any run has, this adds what only
the paper asks about.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bayesncl.data import DATASETS
from bayesncl.data import load as load_split
from bayesncl.data.images import Images
from bayesncl.measure.dimensions import (
    CONFLICTS,
    Dimensions,
    describe,
    most_mixed,
    most_suppressed,
)
from bayesncl.measure.linear import fast_probe, group_probe
from bayesncl.measure.result import Tree, rounded
from bayesncl.method.encoder import Encoder, Extracted, Progress, extract
from bayesncl.method.heads import Projector
from bayesncl.paper import conflict, theory
from bayesncl.paper.probe import paper_probe

PROBE_SEEDS = (42, 43, 44)
DIGITS = 6  # significant digits of values per dimension
KINDS = ("h", "z", "gated")
SHOWN_DIMS, SHOWN_IMAGES, SHOWN_PAIRS = 3, 10, 6  # in the sheets of images
PAIR_IMAGES = 20  # strongest images of a dimension among which pairs are sought


def paper_measures(
    model: Encoder, train: Images, test: Images, seen: Extracted, found: Extracted, *,
    published_probe: bool = False, background: str | None = None, progress: Progress | None = None,
) -> Tree:  # fmt: skip
    """Branches of a Result that only the paper asks about.

    `seen` and `found` are the sound features of the training and of the labeled test split.
    `published_probe` adds the 50-epoch linear probe, which takes minutes; `background` is the path
    of a dataset in the layout of waterbirds, to probe for its backgrounds.
    """
    labels, backgrounds = test.labels, test.backgrounds
    assert labels is not None
    name = test.class_names.__getitem__ if test.class_names else str
    found_at = partial(conflict.conflicting_features, found.gated, labels, name)
    out: Tree = {"conflicting": {str(t): found_at(t) for t in CONFLICTS}}
    if backgrounds is not None:
        out |= background_measures(model, train, test, seen, found)
    if found.open is not None:
        prior = model.recipe.gate.prior
        if isinstance(model.head, Projector) and model.head.prevalence is not None:
            prior = float(torch.as_tensor(model.head.prior()).mean())  # over dimensions
        pairs = []
        if backgrounds is not None:
            steps = found.z, found.z * found.open, found.gated
            pairs = [conflict.pair_similarity(x, labels, backgrounds) for x in steps]
            out["gate_effect"] = conflict.gate_effect(*pairs)
        out["theory"] = theory.compare(found.z, found.gated, found.open, prior, pairs)
    if published_probe and train.labels is not None:
        out["probe"] = {"paper": run_published_probe(model, train, test, progress)}
    if background is not None:
        out["background"] = probe_background(model, background)
    return out


def run_published_probe(
    model: Encoder, train: Images, test: Images, progress: Progress | None = None
) -> Tree:
    """The 50-epoch probe of the published experiments, with their pixel statistics."""
    data = model.recipe.data
    return paper_probe(
        model.backbone, train, test, data.paper_mean or data.mean, data.paper_std or data.std,
        variant=DATASETS[data.name].probe, size=model.recipe.views.size, device=model.mean.device,
        seeds=PROBE_SEEDS, progress=progress,
    )  # fmt: skip


def background_measures(
    model: Encoder, train: Images, test: Images, seen: Extracted, found: Extracted
) -> Tree:
    """Conflict, and where the data allow it probes for both labels and stability."""
    assert test.labels is not None and test.backgrounds is not None
    out: Tree = {}
    data, dataset = model.recipe.data, DATASETS[model.recipe.data.name]
    both = test.labels, test.backgrounds
    if train.backgrounds is not None and train.labels is not None:
        out["background"], group = background_probes(seen, train, found, test)
        out["worst_group"] = {k: v for k, v in group.items() if not isinstance(v, list)}
        out["worst_group"]["groups"] = group["groups"][: conflict.MAX_LISTED]
    if dataset.balanced:  # object and background are independent there: neither predicts the other
        fit = load_split(data, dataset.balanced)
        h = extract(model, fit, "sound").h
        out["balanced"] = {
            "object": fast_probe(h, fit.labels, found.h, test.labels),
            "background": fast_probe(h, fit.backgrounds, found.h, test.backgrounds),
        }
    out["conflict"] = {name: conflict.conflict(getattr(found, name), *both) for name in KINDS[1:]}
    for error in out["conflict"].values():
        error["by_dimension"] = rounded(error["by_dimension"], DIGITS)
    out["ipw"] = rounded(theory.ipw_effect(found.gated, *both, pi=theory.prevalence(seen.z)))
    moved_images = dataset.counterfactual(data) if dataset.counterfactual else None
    if moved_images is not None:
        moved = extract(model, moved_images, "sound")
        out["stability"] = {
            kind: conflict.stability(getattr(found, kind), getattr(moved, kind)) for kind in KINDS
        }
    return out


def background_probes(
    seen: Extracted, train: Images, found: Extracted, test: Images
) -> tuple[Tree, Tree]:
    """Background probes by kind of feature, and the object probe on h by group.

    Where object and background are tied in training, the object gives part of the background away.
    """
    here, there = train.backgrounds, test.backgrounds
    probes = {k: fast_probe(getattr(seen, k), here, getattr(found, k), there) for k in KINDS}
    return probes, group_probe(seen.h, train.labels, here, found.h, test.labels, there)


def probe_background(model: Encoder, root: str) -> Tree:
    """Background probes of a frozen encoder on images scaled to its view size.

    `root` is the path of a dataset in the layout of waterbirds; empty: the model's own images.
    `worst_group` is that of the object probe on h.
    """
    data, size = model.recipe.data, model.recipe.views.size
    if root:
        data = replace(data, name="waterbirds", root=root, size=size)
    train, test = (load_split(data, split) for split in ("train", "test"))
    probes, group = background_probes(extract(model, train), train, extract(model, test), test)
    return {
        **{k: {m: probes[k][m] for m in ("acc1", "acc1_spread", "acc1_chance")} for k in KINDS},
        "worst_group": {k: group[k] for k in ("worst", "average", "balanced")},
        "size": size,
        "images": [len(train), len(test)],
    }


def exemplars(model: Encoder, test: Images) -> Tree:
    """Dimensions to look at, each with the test images to look at; empty without labels.

    Returns the lists `high_entropy` (dimensions of the highest class entropy), `pairs` (see
    `shared_pairs`) and, with gates, `suppressed`. Each item has `dim`, `value` (nats, a product of
    two features, the share of closed gates), `support`, `images` (indices) and `classes` (names).
    """
    if test.labels is None:
        return {}
    names, features = image_names(test), extract(model, test)

    def item(table: Dimensions, dim: int, value: float, images: list[int]) -> Tree:
        row = {"dim": int(dim), "value": float(value), "support": int(table.support[dim])}
        return row | {"images": images, "classes": [names[i] for i in images]}

    def strongest(table: Dimensions, z: np.ndarray, dims: np.ndarray, values: Any) -> list[Tree]:
        order = {dim: np.argsort(-z[:, dim], kind="stable") for dim in dims[:SHOWN_DIMS]}
        return [item(table, d, values[d], i[:SHOWN_IMAGES].tolist()) for d, i in order.items()]

    z, table = features.gated, describe(features.gated, test.labels)
    pairs = shared_pairs(z, test.labels, test.backgrounds)[:SHOWN_PAIRS]
    out = {
        "high_entropy": strongest(table, z, most_mixed(table), table.entropy_sum),
        "pairs": [item(table, *pair) for pair in pairs],
    }
    if features.open is not None:
        gates = describe(features.z, open=features.open)
        closed = np.asarray(gates.closed_rate) / 100
        out["suppressed"] = strongest(gates, features.z, most_suppressed(gates), closed)
    return out


def image_names(images: Images) -> list[str]:
    """Class of each image, with its background if that is known."""

    def words(index: Any, names: Sequence[str] | None) -> list[str]:
        return [names[i] if names else str(i) for i in index.tolist()]

    classes = words(images.labels, images.class_names)
    if images.backgrounds is None:
        return classes
    places = words(images.backgrounds, images.background_names)
    return [f"{name} on {place}" for name, place in zip(classes, places)]


def shared_pairs(
    z: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray | None
) -> list[tuple[int, float, list[int]]]:
    """Pairs of images of different classes found by their most similar shared dimension.

    For each dimension k, of its 20 strongest images: the pair of different classes (on the same
    background, if known) with the greatest z_k z'_k among the pairs that have it in k. Items are
    (k, product, images), greatest product first; dimensions without such a pair are left out.
    """
    found = []
    for k in range(z.shape[1]):
        top = np.argsort(-z[:, k], kind="stable")[:PAIR_IMAGES]
        product = z[top, None] * z[None, top]  # [20, 20, D]
        allowed = np.triu(labels[top, None] != labels[None, top]) & (product.argmax(2) == k)
        if backgrounds is not None:
            allowed &= backgrounds[top, None] == backgrounds[None, top]
        value = np.where(allowed, product[:, :, k], 0)
        i, j = np.unravel_index(value.argmax(), value.shape)
        if value[i, j] > 0:
            found.append((k, float(value[i, j]), [int(top[i]), int(top[j])]))
    return sorted(found, key=lambda pair: -pair[1])
