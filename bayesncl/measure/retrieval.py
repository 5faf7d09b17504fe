"""Retrieval precision with the strongest dimensions, and the kNN classifier.

Ties are common among sparse features and are not broken by position: a rank inside a tie scores the
share of the tie that has the right class, which is the expectation over all its orders. A query
whose kept part is zero ties with everything and scores the share of its class.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_labels, as_numpy
from bayesncl.measure.dimensions import Labelings
from bayesncl.measure.neighbors import QUERIES_PER_BLOCK, Rows, device_of, search, similarities
from bayesncl.measure.rows import as_tensor, column_sums, lengths, slices
from bayesncl.method.losses import unit_rows

KS = (1, 3, 5, 10)
TEMPERATURE = 0.07  # of the votes of the kNN classifier
MAX_VOTES = 2**23  # queries times classes in a block of queries


def retrieval(
    features: Array, labels: Array, dims: int | None = None, ks: Sequence[int] = KS,
    definition: str = "sound", ranking: Array | None = None, *, weights: Array | None = None,
    queries: Array | None = None,
) -> dict[int, float]:  # fmt: skip
    """Precision at k, in percent, of retrieval among the rows themselves by cosine similarity.

    Parameters
    ----------
    features, labels : [N, D], [N]; rows are cut to the kept dimensions and normalized.
    dims : keep this many dimensions, those of the highest `ranking`; None keeps all.
    ks : numbers of neighbors.
    definition : ``sound`` leaves the query out by identity; ``paper`` drops the first result.
    ranking : [D]; default the column sums of the unit-length features. Pass those of the training
        split to be strict.
    weights : [D] non-negative factors of each dimension's part of the similarity, 1 / prevalence
        for the inverse-prevalence similarity.
    queries : row numbers of the queries; default all.

    Returns
    -------
    dict of percent by k.
    """
    if definition not in ("paper", "sound"):
        raise InputError(f"definition must be paper or sound, got {definition!r}")
    features = as_features(features)
    index, _ = as_labels(labels, len(features))
    columns = choose_columns(features, dims, ranking)
    if not ks or min(ks) < 1 or max(ks) >= len(features):
        most = len(features) - 1
        raise InputError(f"ks must be 1 to {most}, the rows other than the query, got {list(ks)}")
    weight = None
    if weights is not None:
        factors = as_numpy(weights).astype(np.float64)
        valid = (factors >= 0) & (factors < np.inf)
        if factors.shape != features.shape[1:] or not valid.all():
            shapes = f"{features.shape[1]} finite numbers from 0 up, got {list(factors.shape)}"
            raise InputError(f"weights must be {shapes}")
        weight = as_tensor(factors if columns is None else factors[columns]).to(find_device())
    rows = prepare(features, columns)
    found = relevance(rows, [index], max(ks), weights=weight, queries=queries)
    return precision(found[definition][0], ks)


def choose_columns(
    features: np.ndarray, dims: int | None, ranking: Array | None = None
) -> np.ndarray | None:
    """The `dims` dimensions of the highest ranking, best first; None for all."""
    if dims is None:
        return None
    width = features.shape[1]
    if not isinstance(dims, int | np.integer) or not 1 <= dims <= width:
        raise InputError(f"dims must be a whole number from 1 to {width}, the width, got {dims}")
    order = column_sums(features) if ranking is None else as_numpy(ranking)
    if order.shape != (width,) or not np.isfinite(order).all():
        raise InputError(f"ranking must be {width} finite numbers, got {list(order.shape)}")
    return np.argsort(-order, kind="stable")[:dims]


def prepare(features: np.ndarray, columns: np.ndarray | None = None) -> Tensor:
    """Rows cut to the kept columns, at unit length, float64, on the device of the search."""
    if columns is not None:
        features = features[:, columns]
    lengths(features)  # raises for NaN and infinity
    return unit_rows(as_tensor(features).to(find_device(), torch.float64))


def draw_queries(n: int, count: int | None, seed: int) -> np.ndarray | None:
    """So many rows of n, drawn at random, sorted; None, for all, if n is no more than that."""
    if count is None or count >= n:
        return None
    return np.sort(np.random.default_rng(seed).choice(n, count, replace=False))


def precision(relevance: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """Percent by k from the mean relevance of each rank."""
    return {k: float(100 * relevance[:k].mean()) for k in ks}


def relevance(
    rows: Rows, labelings: Labelings, depth: int, *, weights: Tensor | None = None,
    queries: Array | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Share of queries whose neighbor at each rank has their class, by definition.

    One search serves all: neighbors do not depend on labels, and the ``paper`` list is the
    ``sound`` list with the query put back where its similarity belongs and the first entry removed.
    Rows are as `prepare` gives them, or float64 CSR; the shares are float64 [labelings, depth].
    """
    n = rows.shape[0]
    asked = np.arange(n) if queries is None else np.asarray(queries, np.int64)
    device = device_of(rows)
    labels = torch.from_numpy(np.stack(labelings)).to(device)  # [L, N]
    classes = int(labels.max()) + 1
    totals = {name: torch.zeros(len(labels), depth, dtype=torch.float64, device=device)
              for name in ("sound", "paper")}
    for part in _query_blocks(len(asked), classes, device):
        own = torch.from_numpy(asked[part]).to(device)
        plain = rows[asked[part]]
        q = plain if weights is None else plain * weights
        # two more than needed: one for the query in the paper's list, one to see ties go on
        value, index = search(q, rows, min(depth + 2, n - 1), own)
        match = (labels[:, index] == labels[:, own, None]).double()  # [L, q, ranks]
        last = value[:, -1:]
        equal = (value[:, :, None] == value[:, None, :]).double()  # [q, ranks, ranks]
        size, hits = equal.sum(2), torch.einsum("qij,lqj->lqi", equal, match)  # of each rank's tie
        open_end = (value[:, -2:-1] == last).squeeze(1).nonzero().squeeze(1)
        if value.shape[1] < n - 1 and len(open_end):  # their last tie may go on beyond the list
            args = q[open_end.cpu().numpy()], rows, last[open_end]
            tied = value[open_end] == last[open_end]
            for i, each in enumerate(labels):
                counts = _count_ties(*args, each, classes, own[open_end])
                good = counts.gather(1, each[own[open_end], None])
                size[open_end] = torch.where(tied, counts.sum(1, keepdim=True), size[open_end])
                hits[i, open_end] = torch.where(tied, good, hits[i, open_end])
        totals["sound"] += (hits / size)[:, :, :depth].sum(1)
        self_value = torch.as_tensor((q * plain).sum(1), device=device).float()[:, None]
        totals["paper"] += _put_back(value, size, hits, self_value)[:, :, 1 : depth + 1].sum(1)
    return {name: (total / len(asked)).cpu().numpy() for name, total in totals.items()}


def _query_blocks(count: int, classes: int, device: torch.device) -> list[slice]:
    return slices(count, max(1, min(QUERIES_PER_BLOCK[device.type], MAX_VOTES // classes)))


def _count_ties(
    q: Rows, rows: Rows, value: Tensor, labels: Tensor, classes: int, own: Tensor | None = None
) -> Tensor:
    """Rows of each class [q, C] that have exactly the similarity value [q, 1] to each query."""
    counts = torch.zeros(classes, len(value), device=value.device)
    for part, s in similarities(q, rows, own):
        counts.index_add_(0, labels[part], (s == value).T.float())
    return counts.T.double()


def _put_back(value: Tensor, size: Tensor, hits: Tensor, self_value: Tensor) -> Tensor:
    """Relevance by rank [L, q, m + 1] with the query, a match, put back into the list."""
    joined = (value == self_value).double()
    size, hits = size + joined, hits + joined
    first = joined.argmax(1, keepdim=True)  # a rank whose tie the query joins, if there is one
    tied = (hits / size).gather(2, first.expand(len(hits), -1, -1))
    own = torch.where(joined.any(1, keepdim=True), tied, 1.0)
    order = torch.cat([value, self_value], 1).argsort(dim=1, descending=True, stable=True)
    return torch.cat([hits / size, own], 2).gather(2, order.expand(len(hits), -1, -1))


def knn_accuracies(
    features: Array, labelings: Sequence[Array], queries: Array, query_labels: Array, k: int = 20
) -> list[float]:
    """Accuracy of the kNN classifier, percent, for each labeling of the training features [N, D].

    A query gets the class with the greatest sum of exp(cosine / TEMPERATURE) over its k nearest
    rows, of equal classes the first. Rows that tie for the last places share them.
    """
    features, queries = as_features(features), as_features(queries)
    n = len(features)
    device = find_device()
    indexed = []
    for labels in labelings:
        joint, _ = as_labels(np.concatenate([labels, query_labels]), n + len(queries))
        indexed.append(torch.from_numpy(joint).to(device).split([n, len(queries)]))
    classes = 1 + max(int(each.max()) for pair in indexed for each in pair)
    rows, asked = prepare(features), prepare(queries)
    right = np.zeros(len(labelings))
    for part in _query_blocks(len(queries), classes, device):
        q = asked[part]
        value, index = search(q, rows, min(k + 1, n))
        open_end = (value[:, k - 1] == value[:, -1]).nonzero().squeeze(1)
        open_end = open_end if k < n else open_end[:0]
        value, index, last = value[:, :k], index[:, :k], value[:, k - 1 : k]
        weight = ((value.double() - value[:, :1]) / TEMPERATURE).exp()  # relative to the nearest
        shared = torch.zeros_like(weight, dtype=torch.bool)
        shared[open_end] = (value == last)[open_end]
        places = weight.where(shared, 0.0).sum(1, keepdim=True)
        for i, (labels, truth) in enumerate(indexed):
            votes = torch.zeros(len(q), classes, dtype=torch.float64, device=device)
            votes.scatter_add_(1, labels[index], weight.where(~shared, 0.0))
            if len(open_end):
                counts = _count_ties(q[open_end], rows, last[open_end], labels, classes)
                votes[open_end] += places[open_end] * counts / counts.sum(1, keepdim=True)
            right[i] += int((votes.argmax(1) == truth[part]).sum())
    return [100 * float(hits) / len(queries) for hits in right]
