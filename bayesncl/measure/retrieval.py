"""Neighbours: precision of retrieval with the strongest dimensions, and the kNN classifier.

Similarities are computed a block of queries against a block of rows at a time, in float64, and compared as float32, so
that equal rows tie exactly. Ties are common among sparse features. They are not broken by position: a rank inside a tie
scores the share of the tie that has the right class, which is the expectation over all orders of it. A query whose kept
part is zero ties with everything and scores the share of its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..arrays import Array, as_features, as_labels, as_numpy
from ..errors import InputError
from .counts import Labellings, Progress, as_tensor, column_sums, divide, norms, place, release

KS = (1, 3, 5, 10)
QUERY_ROWS = {"cpu": 1024, "cuda": 2048}  # at a time: on a CPU they stay in cache, a GPU takes few and large steps
GALLERY_ROWS = {"cpu": 4096, "cuda": 16384}
KEPT_BYTES = 2**28  # of prepared rows that a CPU keeps for the next queries
MOST_VOTES = 1 << 23  # queries times classes at a time


def retrieval(
    features: Array,
    labels: Array,
    dims: int | None = None,
    ks: Sequence[int] = KS,
    definition: str = "sound",
    ranking: Array | None = None,
    *,
    weights: Array | None = None,
    queries: Array | None = None,
) -> dict[int, float]:
    """Precision at k of retrieval among the rows themselves, by cosine similarity.

    Parameters
    ----------
    features, labels : [N, D], [N]; rows are made unit length, cut to the kept dimensions and made unit length again.
    dims : keep this many dimensions, those of the highest `ranking`; None keeps all.
    ks : precision at these many neighbours.
    definition : ``sound`` leaves the query itself out by identity; ``paper`` drops whatever comes first.
    ranking : [D]; default the column sums of the unit-norm features. Pass those of the training split to be strict.
    weights : [D] non-negative factors of each dimension's part of the similarity; 1 / prevalence for the
        inverse-prevalence similarity.
    queries : numbers of the rows that serve as queries; default all.

    Returns
    -------
    dict of percent by k.
    """
    if definition not in ("paper", "sound"):
        raise InputError(f"definition must be paper or sound, got {definition!r}")
    features = as_features(features)
    index, _ = as_labels(labels, len(features))
    columns = choose(features, dims, ranking)
    if not ks or min(ks) < 1 or max(ks) >= len(features):
        raise InputError(f"ks must be 1 to {len(features) - 1}, the rows other than the query, got {list(ks)}")
    relevance = rank_relevance(features, [index], max(ks), columns, weights=weights, queries=queries)
    return precision(relevance[definition][0], ks)


def retrieval_curve(
    features: Array, labels: Array, dims: Iterable[int], ks: Sequence[int] = KS, definition: str = "sound",
    ranking: Array | None = None,
) -> dict[int, dict[int, float]]:  # fmt: skip
    """`retrieval` for several numbers of kept dimensions: percent by k, by number of dimensions."""
    features = as_features(features)
    ranking = column_sums(features) if ranking is None else ranking
    return {kept: retrieval(features, labels, kept, ks, definition, ranking) for kept in dims}


def knn_accuracy(
    features: Array, labels: Array, queries: Array, query_labels: Array, k: int = 20, temperature: float = 0.07
) -> float:
    """Accuracy, in percent, of the kNN classifier: features [N, D] and labels [N] of the training split, M queries.

    A query gets the class with the greatest sum of exp(cosine / temperature) over its k nearest rows; of equal classes
    the first. Where more rows are equally near than there are places left, they share these places.
    """
    return knn_accuracies(features, [labels], queries, query_labels, k, temperature)[0]


def knn_accuracies(
    features: Array, labellings: Sequence[Array], queries: Array, query_labels: Array, k: int = 20,
    temperature: float = 0.07,
) -> list[float]:  # fmt: skip
    """`knn_accuracy` for several labellings of the training split, such as its labels and the same shuffled.

    One search serves all but for ties, which are counted for each: the neighbours do not depend on the labels.
    """
    features, queries = as_features(features), as_features(queries)
    if features.shape[1] != queries.shape[1]:
        raise InputError(f"features have {features.shape[1]} dimensions, queries {queries.shape[1]}")
    if not 0 < k <= len(features):
        raise InputError(f"k = {k} neighbours of {len(features)} rows")
    if not temperature > 0:
        raise InputError(f"the temperature must be positive, got {temperature}")
    known, wanted, classes = [], [], 1
    for labels in labellings:
        both = as_numpy(labels), as_numpy(query_labels)
        if len({y.dtype.kind in "US" for y in both}) > 1:
            raise InputError("labels and query labels must both be numbers or both be words")
        index, names = as_labels(np.concatenate(both), len(features) + len(queries))
        known.append(torch.from_numpy(index[: len(features)]).to(place()))
        wanted.append(torch.from_numpy(index[len(features) :]).to(place()))
        classes = max(classes, len(names))
    right = torch.zeros(len(labellings), dtype=torch.int64, device=place())
    gallery = _Gallery(features, None)
    step = max(1, min(QUERY_ROWS[place().type], MOST_VOTES // classes))
    for start in range(0, len(queries), step):
        part = slice(start, min(start + step, len(queries)))
        q = _prepare(queries, part, None)
        values, found = _nearest(q, gallery, min(k + 1, len(features)))
        open_end = torch.nonzero(values[:, k - 1] == values[:, -1]).flatten()
        values, found, last = values[:, :k], found[:, :k], values[:, k - 1 : k]
        # less the largest, which no comparison feels and exp survives
        weight = ((values.double() - values[:, :1]) / temperature).exp()
        beyond = torch.zeros(len(q), 1, dtype=torch.bool, device=q.device)
        beyond[open_end] = True
        sure = weight.where((values > last) | ~beyond, 0.0)
        places = weight.where(values == last, 0.0).sum(1)[open_end]
        for i, (labels, truth) in enumerate(zip(known, wanted)):
            votes = torch.zeros(len(q), classes, dtype=torch.float64, device=q.device)
            votes.scatter_add_(1, labels[found], sure)
            if len(open_end):  # the last tie shares the places that are left
                counts = _count_classes(q[open_end], last[open_end], gallery, labels, classes)
                votes[open_end] += places[:, None] * counts / counts.sum(1, keepdim=True).clamp_min(1)
            right[i] += (votes.argmax(1) == truth[part]).sum()
    return [100 * hits / len(queries) for hits in right.tolist()]


def choose(features: np.ndarray, dims: int | None, ranking: Array | None = None) -> np.ndarray | None:
    """The `dims` dimensions of the highest ranking, best first and of equals the first; None for all."""
    if dims is None:
        return None
    width = features.shape[1]
    if not isinstance(dims, int | np.integer) or not 1 <= dims <= width:
        raise InputError(f"dims must be a whole number from 1 to {width}, the width of the features, got {dims}")
    order = column_sums(features) if ranking is None else as_numpy(ranking)
    if order.shape != (width,) or not np.isfinite(order).all():
        raise InputError(f"ranking must be {width} finite numbers, one per dimension, got shape {list(order.shape)}")
    return np.argsort(-order, kind="stable")[:dims]


def precision(relevance: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """Percent by k from the mean relevance of each rank."""
    return {k: float(100 * relevance[:k].mean()) for k in ks}


def rank_relevance(
    features: np.ndarray, labellings: Labellings, depth: int, columns: np.ndarray | None = None, *,
    weights: Array | None = None, queries: Array | None = None, progress: Progress | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Share of queries whose neighbour at each rank has their class, for both definitions and several labellings.

    One search serves all: the neighbours do not depend on the labels, and ``paper`` is the list of ``sound`` with the
    query itself put back where its similarity belongs and the first entry taken off.

    Returns `sound` and `paper`: float64 [labellings, depth], mean over the queries.
    """
    n = len(features)
    rows = np.arange(n) if queries is None else np.asarray(queries, np.int64)
    weight = _checked_weights(weights, features.shape[1], columns)
    labels = torch.from_numpy(np.stack(labellings)).to(place())  # [L, N]
    ranks = min(depth + 1, n - 1)
    gallery = _Gallery(features, columns)
    zeros = torch.zeros(len(labels), depth, dtype=torch.float64, device=labels.device)
    totals = {"sound": zeros, "paper": zeros.clone()}
    step = QUERY_ROWS[place().type]
    for start in range(0, len(rows), step):
        own = torch.from_numpy(rows[start : start + step]).to(labels.device)
        q = gallery.take(rows[start : start + step])
        weighted = q if weight is None else q * weight
        values, found = _nearest(weighted, gallery, min(ranks + 1, n - 1), own)
        match = (labels[:, found] == labels[:, own, None]).double()  # [L, q, ranks + 1]
        size, hits = _ties(values, match)
        # the last tie of these queries may go on beyond the list
        open_end = torch.nonzero(values[:, ranks - 1] == values[:, -1]).flatten()
        if values.shape[1] > ranks and len(open_end):
            last = values[open_end, -1:]
            more, hit = _count_ties(weighted[open_end], last, gallery, labels, own[open_end])
            tied = values[open_end] == last
            size[open_end] = torch.where(tied, torch.maximum(more[:, None], size[open_end]), size[open_end])
            hits[:, open_end] = torch.where(tied, torch.maximum(hit[..., None], hits[:, open_end]), hits[:, open_end])
        size, hits, values = size[:, :ranks], hits[:, :, :ranks], values[:, :ranks]
        totals["sound"] += (hits / size)[:, :, :depth].sum(1)
        self_value = (weighted * q).sum(1, keepdim=True).float()
        totals["paper"] += _with_self(values, size, hits, self_value)[:, :, 1 : depth + 1].sum(1)
        if progress:
            progress(min(start + step, len(rows)), len(rows), "nearest neighbours")
    return {name: (total / len(rows)).cpu().numpy() for name, total in totals.items()}


def _ties(values: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
    """For each rank of values [q, m], the size of its tie [q, m] and how many of it match [L, q, m]."""
    equal = (values[:, :, None] == values[:, None, :]).double()
    return equal.sum(2), torch.einsum("qij,lqj->lqi", equal, match)


def _with_self(values: Tensor, size: Tensor, hits: Tensor, self_value: Tensor) -> Tensor:
    """Relevance by rank [L, q, m + 1] once the query itself, a match, is back in the list."""
    joins = (values == self_value).double()
    size, hits = size + joins, hits + joins
    equal = joins.any(1, keepdim=True)
    first = joins.argmax(1, keepdim=True)  # a rank whose tie the query joins, if there is one
    self_share = torch.where(
        equal, hits.gather(2, first.expand(len(hits), -1, -1)) / size.gather(1, first), torch.ones_like(size[:, :1])
    )
    share = torch.cat([hits / size, self_share], 2)
    order = torch.cat([values, self_value], 1).argsort(dim=1, descending=True, stable=True)
    return share.gather(2, order.expand(len(hits), -1, -1))


def _prepare(features: np.ndarray, rows: slice | np.ndarray, columns: np.ndarray | None) -> Tensor:
    """Rows cut to the kept columns, at unit length, float64; zero rows stay zero."""
    block = as_tensor(features[rows]).to(place())
    kept = (block if columns is None else block[:, torch.from_numpy(columns).to(place())]).double()
    # rows picked by number are rows of the gallery too, which names them
    return divide(kept, norms(kept, rows.start if isinstance(rows, slice) else 0))


class _Gallery:
    """Blocks of prepared rows: kept for the next queries where there is room for them all, else made anew."""

    def __init__(self, features: np.ndarray, columns: np.ndarray | None) -> None:
        self.features, self.columns = features, columns
        size = 8 * len(features) * (features.shape[1] if columns is None else len(columns))
        self.keeps = size < (torch.cuda.mem_get_info()[0] / 4 if place().type == "cuda" else KEPT_BYTES)
        self.step = GALLERY_ROWS[place().type]
        self.kept: dict[int, Tensor] = {}

    def take(self, rows: np.ndarray) -> Tensor:
        """Some rows, prepared; where all are kept in one block, they are there already."""
        if self.keeps and len(self.features) <= self.step:
            known = next(iter(self))[1]
            return known[torch.from_numpy(rows).to(known.device)]
        return _prepare(self.features, rows, self.columns)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(self.features), self.step):
            part = slice(start, min(start + self.step, len(self.features)))
            rows = self.kept.get(start)
            if rows is None:
                rows = _prepare(self.features, part, self.columns)
                release(self.features)
                if self.keeps:
                    self.kept[start] = rows
            yield part, rows


def _similarities(q: Tensor, gallery: _Gallery, own: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Similarities of queries q [q, K] to blocks of rows, float32; to the query's own row -infinity."""
    for part, rows in gallery:
        s = (q @ rows.T).float()
        if own is not None:
            here = torch.nonzero((own >= part.start) & (own < part.stop)).flatten()
            s[here, own[here] - part.start] = -torch.inf
        yield part, s


def _nearest(q: Tensor, gallery: _Gallery, k: int, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k most similar rows of each query: similarity, descending, and row. Which of equals is not defined."""
    values, rows = q.new_empty(len(q), 0, dtype=torch.float32), q.new_empty(len(q), 0, dtype=torch.int64)
    for part, s in _similarities(q, gallery, own):
        top, column = s.topk(min(k, s.shape[1]), dim=1)
        values, rows = torch.cat([values, top], 1), torch.cat([rows, column + part.start], 1)
        values, order = values.topk(min(k, values.shape[1]), dim=1)
        rows = rows.gather(1, order)
    return values, rows


def _count_ties(q: Tensor, value: Tensor, gallery: _Gallery, labels: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """How many rows have just the similarity value [q, 1] to each query, and how many of these its label: [q], [L, q].

    Only its own class is counted: a table of all would take [L, q, C], gigabytes for many classes.
    """
    size = torch.zeros(len(q), dtype=torch.float64, device=q.device)
    hits = torch.zeros(len(labels), len(q), dtype=torch.float64, device=q.device)
    for part, s in _similarities(q, gallery, own):
        equal = s == value
        size += equal.sum(1)
        for hit, label in zip(hits, labels):
            hit += (equal & (label[part] == label[own, None])).sum(1)
    return size, hits


def _count_classes(q: Tensor, value: Tensor, gallery: _Gallery, labels: Tensor, classes: int) -> Tensor:
    """By class, how many rows have just the similarity value [q, 1] to each query: [q, C] for labels [N]."""
    counts = torch.zeros(classes, len(q), device=q.device)
    for part, s in _similarities(q, gallery, None):
        counts.index_add_(0, labels[part], (s == value).T.float())
    return counts.T.double()


def _checked_weights(weights: Array | None, width: int, columns: np.ndarray | None) -> Tensor | None:
    if weights is None:
        return None
    weight = as_numpy(weights).astype(np.float64)
    if weight.shape != (width,) or not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise InputError(f"weights must be {width} finite numbers from 0 up, got shape {list(weight.shape)}")
    return torch.from_numpy(weight if columns is None else weight[columns]).to(place())
