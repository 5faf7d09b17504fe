"""Measures at k kept dimensions: each image keeps its k strongest, as users of sparse codes do.

Consistency, classes owned, retrieval and a linear probe of the same kept codes, for k = 1, 2, 5, 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ..arrays import Array, as_labels, as_numpy
from ..errors import InputError
from .counts import MIN_SUPPORT, place
from .dimensions import largest_share, mean, owned_classes
from .probe import chance, choose_penalty, fit, scores
from .sparse import as_codes, strongest

KS = (1, 2, 5, 10)
ABOUT = 50  # percent of the largest class from which a dimension is about it
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)  # of ||W||^2 / 2 beside the mean cross-entropy, strongest first
PROBE_ROWS = 20_000  # training rows the probe uses at most
STEPS = 40  # of L-BFGS
QUERY_ENTRIES = 2**22  # similarities held at once
GALLERY_ENTRIES = 2**26  # of kept codes held dense, 512 MB


def keep(z: Array, k: int) -> sp.csr_array:
    """Each row's k strongest entries by |z|, at unit length, signed: CSR float32 [N, D].

    Of equal entries the lower columns are kept. Entries that do not fire (|z| of the unit-length row up to 1e-5) are
    never kept, so that a row may keep fewer than k; k beyond D keeps all that fire.
    """
    z = as_codes(z)
    return _cut(*strongest(z, k), k, z.shape[1])


def _cut(columns: np.ndarray, values: np.ndarray, k: int, width: int) -> sp.csr_array:
    """The first k of each row's `strongest` entries as CSR, rows at unit length."""
    columns, values = columns[:, :k], values[:, :k]
    length = np.linalg.norm(values, axis=1, keepdims=True)
    values = values / np.where(length > 0, length, 1)
    indptr = np.arange(0, columns.size + 1, columns.shape[1])
    result = sp.csr_array((values.ravel(), columns.ravel(), indptr), shape=(len(columns), width))
    result.eliminate_zeros()
    result.sort_indices()
    return result


def class_counts(kept: sp.csr_array, labels: np.ndarray) -> np.ndarray:
    """Images of class c on which dimension j fires, float64 [C, D], from labels 0..C-1."""
    n = len(labels)
    onehot = sp.csr_array((np.ones(n), labels, np.arange(n + 1)), shape=(n, int(labels.max()) + 1))
    pattern = sp.csr_array((np.ones(kept.nnz), kept.indices, kept.indptr), shape=kept.shape)
    return (onehot.T @ pattern).toarray()


def precision(
    kept: sp.csr_array, labellings: Sequence[np.ndarray], k: int = 5, queries: np.ndarray | None = None
) -> list[float | None]:
    """Retrieval precision at k, percent: cosine similarity of kept codes among the rows, the query left out.

    Equally similar rows share the places they compete for (the expectation over random order), also those that share
    no dimension with the query; the same as `retrieval` of the dense codes, for a fraction of its products. One search
    serves all labellings (int [N] from 0). `queries` are the numbers of the rows that ask; default all.
    """
    n = kept.shape[0]
    if n <= k:
        return [None for _ in labellings]
    queries = np.arange(n) if queries is None else queries
    live = np.flatnonzero(np.bincount(kept.indices, minlength=kept.shape[1]))
    codes = sp.csr_array(kept.tocsc()[:, live].astype(np.float64))
    length = np.sqrt(codes.power(2).sum(1))  # 1 but for rounding, which would part what is equal
    codes.data /= np.repeat(length, np.diff(codes.indptr))
    # a query has at most as many similarities that are not zero as its dimensions have images
    work = np.minimum((codes != 0) @ np.bincount(codes.indices, minlength=len(live)).astype(float), n)[queries]
    device, labels, hits = place(), np.stack(labellings), np.zeros(len(labellings))
    known = torch.from_numpy(labels).to(device)
    fits = len(live) * n <= GALLERY_ENTRIES
    gpu = fits and device.type == "cuda"
    thin = not gpu and work.sum() < n * len(queries) / 8
    # not thin: k axpys of length N a query, whatever the hubs, where the gallery fits as a dense array
    gallery: Any = codes.T.toarray() if fits and not thin else codes.T.tocsr()
    gallery = torch.from_numpy(gallery).to(device) if gpu else gallery
    for own in np.array_split(queries, int(-(-(work.sum() if thin else n * len(queries)) // QUERY_ENTRIES)) or 1):
        if thin:
            hits += _sparse_hits(codes[own] @ gallery, own, labels, k)
            continue
        asked = torch.from_numpy(own).to(device)
        product = gallery[:, asked].T @ gallery if gpu else codes[own] @ gallery
        product = product.toarray() if sp.issparse(product) else product
        hits += _hits(torch.as_tensor(product, device=device), asked, known, k)
    return [float(100 * hit / (k * len(queries))) for hit in hits]


def _sparse_hits(similar: sp.csr_array, own: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """As `_hits`, where the similarities not stored are zero: tie by tie from the highest, until k places are taken."""
    n, rows = similar.shape[1], len(own)
    query, found = np.repeat(np.arange(rows), np.diff(similar.indptr)), similar.indices
    value = similar.data.astype(np.float32)
    stored = (found != own[query]) & (value != 0)
    query, found, value = query[stored], found[stored], value[stored]
    match = labels[:, found] == labels[:, own[query]]  # [L, entries]
    sizes = np.stack([np.bincount(y)[y[own]] for y in labels])
    zeros = n - 1 - np.bincount(query, minlength=rows)
    zero_hits = sizes - 1 - np.stack([np.bincount(query[m], minlength=rows) for m in match])
    left, hits = np.full(rows, k), np.zeros(len(labels))
    while left.any():
        best = np.full(rows, -np.inf, np.float32)
        np.maximum.at(best, query, value)
        best[(zeros > 0) & (best < 0)] = 0
        tied = value == best[query]
        many = np.where(best == 0, zeros, np.bincount(query[tied], minlength=rows))
        good = np.stack([np.bincount(query[tied & m], minlength=rows) for m in match])
        good = np.where(best == 0, zero_hits, good)
        taken = np.minimum(many, left)
        hits += (taken * good / np.maximum(many, 1)).sum(1)
        left, zeros = left - taken, np.where(best == 0, 0, zeros)
        again = ~tied & (left[query] > 0)
        query, value, match = query[again], value[again], match[:, again]
    return hits


def _hits(similar: Tensor, own: Tensor, labels: Tensor, k: int) -> np.ndarray:
    """Expected matches among the k nearest by similar [q, N], summed over queries, for labels [L, N]."""
    value = similar.float()  # rounded: what differs by less counts as equal
    value[torch.arange(len(own), device=own.device), own] = -torch.inf
    top, found = value.topk(k, dim=1)
    last = top[:, -1:]
    sure, equal = top > last, value == last
    match = labels[:, found] == labels[:, own, None]  # [L, q, k]
    hits = (match & sure).sum((1, 2)).double()
    places, many = k - sure.sum(1), equal.sum(1)
    # of those tied for the last places all have one, but where there are more of them
    hits += (match & ~sure)[:, many == places].sum((1, 2))
    rest = torch.nonzero(many > places).squeeze(1)
    if len(rest):
        good = (equal[rest] & (labels[:, None] == labels[:, own[rest], None])).sum(2)
        hits += (places[rest] / many[rest].double() * good).sum(1)
    return hits.cpu().numpy()


def probe(
    train: sp.csr_array, train_labels: Array, test: sp.csr_array, test_labels: Array, *, seed: int = 0
) -> dict[str, float]:
    """Accuracy of multinomial logistic regression on kept codes: `fast_probe` for sparse rows.

    Columns are scaled to unit deviation over the training rows; the intercept is free, so that centring them would
    change nothing. Of many training rows PROBE_ROWS are drawn by the seed; the penalty is chosen on a fifth of them.
    A GPU, if there is one, takes the rows dense.

    Returns `acc1` and `chance` (the same predictions against shuffled labels, in expectation), percent, and `penalty`.
    """
    known, names = as_labels(train_labels, train.shape[0])
    order = np.random.default_rng(seed).permutation(train.shape[0])[:PROBE_ROWS]
    x, y = train[order].astype(np.float32), torch.from_numpy(known[order]).to(place())
    centre = np.asarray(x.mean(0)).ravel()
    deviation = np.sqrt(np.maximum(np.asarray(x.power(2).mean(0)).ravel() - centre**2, 0))
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    x, x_test = (_on(place(), (rows @ sp.diags_array(scale)).tocsr()) for rows in (x, test.astype(np.float32)))
    held = max(1, len(order) // 5)
    start = torch.zeros(x.shape[1] + 1, len(names), device=place())
    rest, out = ((x[rows], y[rows]) for rows in (slice(held, None), slice(held)))
    penalty, _ = choose_penalty(rest, out, start, PENALTIES, patience=1, steps=STEPS)
    weight = fit(x, y, start, penalty, STEPS)
    predicted = names[scores(x_test, weight).argmax(1).cpu().numpy()]
    truth = as_numpy(test_labels)
    return {"acc1": float(100 * (predicted == truth).mean()), "chance": chance(predicted, truth), "penalty": penalty}


def _on(device: torch.device, x: sp.csr_array) -> Any:
    """Rows for products on a device: sparse on a CPU, dense elsewhere."""
    return x if device.type == "cpu" else torch.from_numpy(x.toarray()).to(device)


def summary(
    z: Array, labels: Array, *, train: tuple[Array, Array] | None = None, ks: Sequence[int] = KS,
    queries: int | None = None, seed: int = 0,
) -> dict[int, dict[str, float | None]]:  # fmt: skip
    """Every measure at each k.

    `train` are codes and labels of training rows, for the probe; None leaves it out. Retrieval asks with so many
    `queries`, drawn by the seed; None asks with all rows.

    Returns
    -------
    by k: `l0` (dimensions an image really keeps); `consistency`, `about_one_class` and `p5` (percent) and
    `classes_owned`, each with `_chance` (labels shuffled by the seed); with `train` also `probe` and `probe_chance`.
    """
    z = as_codes(z)
    n, width = z.shape
    index, _ = as_labels(labels, n)
    shuffled = np.random.default_rng(seed).permutation(index)
    asked = None if queries is None or queries >= n else np.random.default_rng(seed).choice(n, queries, replace=False)
    strong = strongest(z, max(ks))
    if train is not None:
        known = as_codes(train[0])
        if known.shape[1] != width:
            raise InputError(f"train features have {known.shape[1]} dimensions, test features {width}")
        strong_train = strongest(known, max(ks))
    result: dict[int, dict[str, float | None]] = {}
    for k in ks:
        kept = _cut(*strong, k, width)
        row: dict[str, float | None] = {"l0": kept.nnz / n}
        for y, end in ((index, ""), (shuffled, "_chance")):
            fires = class_counts(kept, y)
            support, share = largest_share(fires)
            share = share[support >= MIN_SUPPORT]
            row["consistency" + end] = mean(share)
            row["about_one_class" + end] = mean(100.0 * (share >= ABOUT))
            row["classes_owned" + end] = owned_classes(fires, np.bincount(index))
        row["p5"], row["p5_chance"] = precision(kept, [index, shuffled], 5, asked)
        if train is not None:
            found = probe(_cut(*strong_train, k, width), train[1], kept, labels, seed=seed)
            row |= {"probe": found["acc1"], "probe_chance": found["chance"]}
        result[k] = row
    return result
