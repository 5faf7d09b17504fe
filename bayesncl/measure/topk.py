"""The strongest dimensions of each image, and measures with k kept per image.

Consistency, owned classes, retrieval and a linear probe of the kept codes for k = 1, 2, 5, 10.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.preprocessing import normalize

from bayesncl.device import find_device
from bayesncl.inputs import Array, as_features, as_labels
from bayesncl.measure import dimensions as dims
from bayesncl.measure.dimensions import Labelings
from bayesncl.measure.interpretability import Values, shuffle_labels
from bayesncl.measure.linear import probe_kept
from bayesncl.measure.neighbors import as_rows
from bayesncl.measure.retrieval import draw_queries, precision, relevance
from bayesncl.measure.rows import active, blocks, unit_codes
from bayesncl.method.losses import ACTIVE

TOP = 10  # strongest images of a dimension
KEPT = 5  # dimensions kept per image where one number must do
CLASS_KEPT = 2  # ... to judge dimensions by classes: distinct ones describe an image by few
KS = (1, 2, 5, 10)  # ... elsewhere
FACTOR_KS = (5, 16)  # ... where images have several known factors
PRECISION_AT = 5
ABOUT_ONE_CLASS = 50  # percent of the largest class from which a dimension is about it


def strongest(z: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns [N, min(k, D)] of each row's k largest |entries|, and these entries, signed.

    The strongest comes first, of equal entries the one with the lower column.
    """
    device, found = find_device(), []
    for _, block in blocks(as_features(z)):
        entries = block.to(device)
        order = entries.abs().argsort(dim=1, descending=True, stable=True)
        top = order[:, :k].clone()  # a view would keep the whole order in memory
        found.append((top, entries.gather(1, top)))
    columns, values = (torch.cat(each).cpu().numpy() for each in zip(*found))
    return columns, values


def strongest_images(z: Array, count: int = TOP) -> np.ndarray:
    """The rows on which each dimension is strongest by unit-length |z|, int64 [D, count].

    Of equal rows the first; -1 where the dimension does not fire on as many.
    """
    size = active(z).abs().numpy()
    rows, values = strongest(size.T, count)
    missing = np.full((len(rows), count - rows.shape[1]), -1)
    return np.concatenate([np.where(values > 0, rows, -1), missing], axis=1)


def keep(z: Array, k: int) -> sp.csr_array:
    """Each row's k strongest entries that fire, at unit length, signed: CSR float32 [N, D]."""
    z = unit_codes(z)
    return _cut(*strongest(z, k), k, z.shape[1])


def _cut(columns: np.ndarray, values: np.ndarray, k: int, width: int) -> sp.csr_array:
    """The first k of each row's `strongest` entries that fire, as CSR with unit-length rows."""
    columns = columns[:, :k]
    values = values[:, :k].astype(np.float32)
    values[np.abs(values) <= np.float32(ACTIVE)] = 0
    values = normalize(values)
    indptr = np.arange(0, columns.size + 1, columns.shape[1])
    result = sp.csr_array((values.ravel(), columns.ravel(), indptr), shape=(len(columns), width))
    result.eliminate_zeros()
    result.sort_indices()
    return result


def class_counts(kept: sp.csr_array, labels: np.ndarray) -> np.ndarray:
    """Images of class c on which dimension j fires, float64 [C, D], for labels 0..C-1."""
    pattern = sp.csr_array((np.ones(kept.nnz), kept.indices, kept.indptr), shape=kept.shape)
    return (dims.one_hot(labels, int(labels.max()) + 1) @ pattern).toarray()


def kept_precision(
    kept: sp.csr_array, labelings: Labelings, queries: np.ndarray | None = None
) -> list[float | None]:
    """Precision at 5, percent, by cosine of kept codes; see `retrieval`. One value per labeling."""
    if kept.shape[0] <= PRECISION_AT:
        return [None for _ in labelings]
    live = np.flatnonzero(np.bincount(kept.indices, minlength=kept.shape[1]))
    codes = sp.csr_array(kept.tocsc()[:, live].astype(np.float64))
    length = np.sqrt(codes.power(2).sum(1))  # 1 but for rounding, which would break ties
    codes.data /= np.repeat(length, np.diff(codes.indptr))
    found = relevance(as_rows(codes), labelings, PRECISION_AT, queries=queries)["sound"]
    return [precision(each, (PRECISION_AT,))[PRECISION_AT] for each in found]


def summary(
    z: Array, labels: Array, *, train: tuple[Array, Array] | None = None, ks: Sequence[int] = KS,
    queries: int | None = None, seed: int = 0,
) -> tuple[dict[int, Values], dict[int, Values]]:  # fmt: skip
    """Every measure of codes [N, D] by k, with k dimensions kept per image.

    The second dict is by chance, with labels shuffled. `train`, codes and labels, adds the probe.
    Retrieval asks with `queries` random images, or with all.
    """
    z = unit_codes(z)
    n, width = z.shape
    index, _ = as_labels(labels, n)
    labelings, asked = (index, shuffle_labels(index, seed)), draw_queries(n, queries, seed)
    top, sizes = strongest(z, max(ks)), np.bincount(index)
    if train is not None:
        top_train = strongest(unit_codes(train[0]), max(ks))
    values: dict[int, Values] = {}
    chance: dict[int, Values] = {}
    for k in ks:
        kept = _cut(*top, k, width)
        # a class spread over many dimensions cannot reach a tenth in one: half of an even share
        live = len(np.unique(kept.indices))
        even_share = len(sizes) * kept.nnz / n / max(live, 1)
        values[k], chance[k] = {"l0": kept.nnz / n}, {}
        precisions = kept_precision(kept, labelings, asked)
        for tree, y, p5 in zip((values[k], chance[k]), labelings, precisions):
            fires = class_counts(kept, y)
            support, share = dims.largest_share(fires)
            share = share[support >= dims.MIN_SUPPORT]
            tree |= {
                "consistency": dims.mean(share),
                "about_one_class": dims.mean(100.0 * (share >= ABOUT_ONE_CLASS)),
                "classes_owned": dims.owned_classes(fires, sizes),
                "classes_owned_evenly": dims.owned_classes(
                    fires, sizes, recall=min(dims.OWNED_RECALL, even_share / 2)
                ),
                "p5": p5,
            }
        if train is not None:
            known = _cut(*top_train, k, width), train[1]
            values[k]["probe"], chance[k]["probe"] = probe_kept(*known, kept, labels, seed=seed)
    return values, chance
