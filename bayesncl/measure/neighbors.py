"""Nearest rows by inner product: one exact search in blocks, and faiss for sets too large for it.

`search` serves retrieval, the kNN classifier, jobs, the atlas and `nearest`, which finds the
partners a head is fitted with.
"""

import importlib.util
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.data.images import Progress
from bayesncl.device import find_device
from bayesncl.measure.rows import slices

DUPLICATE = 1 - 1e-5  # rows of a higher cosine are copies of each other
# beyond, exact search takes over ten minutes
EXACT_ROWS = {"cpu": 200_000, "mps": 200_000, "cuda": 2_000_000}
QUERIES_PER_BLOCK = {"cpu": 512, "mps": 512, "cuda": 4096}
# a block of cosines takes 32 MiB, 2 GiB
ROWS_PER_BLOCK = {"cpu": 16_384, "mps": 16_384, "cuda": 131_072}
THIN = 0.03  # share of non-zero entries up to which a sparse product is faster than a dense one
RECALL = 0.95  # share of the exact neighbors that faiss must find
PROBED_ROWS = 256  # rows on which recall is measured
ASKED = 16  # times the wanted neighbors that faiss is asked for

Rows = Any  # [N, F]: a tensor, or a scipy CSR array


def as_rows(x: sp.csr_array) -> Rows:
    """Rows for products: sparse on a CPU if few entries are not zero, else a dense tensor."""
    device = find_device()
    thin = device.type == "cpu" and x.nnz <= THIN * x.shape[0] * x.shape[1]
    return x if thin else torch.from_numpy(x.toarray()).to(device)


def device_of(rows: Rows) -> torch.device:
    """The device of products with these rows."""
    return rows.device if isinstance(rows, Tensor) else torch.device("cpu")


def similarities(q: Rows, rows: Rows, own: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Inner products [Q, n] of queries with blocks of rows; a query's `own` row gets -infinity.

    Queries are CSR if rows are. float64 products become float32, so that equal rows tie exactly.
    """
    for part in slices(rows.shape[0], ROWS_PER_BLOCK[device_of(rows).type]):
        s = q @ rows[part].T
        s = (torch.from_numpy(s.toarray()) if sp.issparse(s) else s).float()
        if own is not None:
            inside = ((own >= part.start) & (own < part.stop)).nonzero().squeeze(1)
            s[inside, own[inside] - part.start] = -torch.inf
        yield part, s


def search(
    q: Rows, rows: Rows, k: int, own: Tensor | None = None, most: float = math.inf,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k largest inner products [Q, k] of each query, descending, and their row numbers.

    Products above `most` are left out; missing entries are -infinity. Which of several equal rows
    is found is not defined.
    """
    device = device_of(rows)
    value = torch.full((q.shape[0], k), -torch.inf, device=device)
    index = torch.zeros(q.shape[0], k, dtype=torch.int64, device=device)
    for asked in slices(q.shape[0], QUERIES_PER_BLOCK[device.type]):
        for part, s in similarities(q[asked], rows, None if own is None else own[asked]):
            if most < math.inf:
                s.masked_fill_(s > most, -torch.inf)
            v, i = s.topk(min(k, s.shape[1]), 1)
            value[asked], order = torch.cat([value[asked], v], 1).topk(k, 1)
            index[asked] = torch.cat([index[asked], i + part.start], 1).gather(1, order)
        if progress is not None:
            progress(asked.stop, q.shape[0], "neighbors")
    return value, index


def nearest_rows(
    x: sp.csr_array, count: int, other: sp.csr_array | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers [N, count] of the largest inner products of each row of x, and these products.

    They are those with the other rows of x, or with the rows of `other`.
    """
    rows = as_rows(x if other is None else other)
    q = x if sp.issparse(rows) else torch.from_numpy(x.toarray()).to(rows.device)
    own = None if other is not None else torch.arange(x.shape[0]).to(find_device())
    found = search(q, rows, min(count, rows.shape[0] - (other is None)), own)
    value, index = (each.cpu().numpy() for each in found)
    return index, value


def shared_neighbors(a: Tensor, b: Tensor, k: int = 10) -> float:
    """Mean share of the k nearest rows of each row of a [N, F] that are so in b [N, G] too."""
    found, wanted = (nearest(rows, min(k, len(rows) - 1))[0] for rows in (b, a))  # [N, k]
    return float((wanted[:, :, None] == found[:, None, :]).any(2).float().mean())


def nearest(rows: Tensor, k: int, progress: Progress | None = None) -> tuple[Tensor, float]:
    """The k nearest rows of each row by cosine, among rows that are similar but not duplicates.

    Rows of cosine above 0.99999 are duplicates, and rows of 0 or less have no more in common than
    two random ones; neither are neighbors. The search is exact up to 200,000 rows (2,000,000 on a
    GPU), beyond that by faiss if it is installed. `rows` [N, F] are centered.

    Returns int64 [N, k], nearest first (a row with fewer neighbors repeats them, a row without any
    is its own), and the measured share of the exact neighbors that was found, 1 for exact search.
    """
    n, unit = len(rows), F.normalize(rows.float())
    if n > EXACT_ROWS[rows.device.type]:
        if importlib.util.find_spec("faiss") is not None:
            return _search_by_faiss(unit, k)
        warnings.warn(
            f"exact search for the neighbors of {n:,} rows will take long: "
            "pip install faiss-cpu, or fit on fewer rows with max_samples",
            stacklevel=2,
        )
    return _nearest_exactly(unit, torch.arange(n, device=rows.device), k, progress)[0], 1.0


def _nearest_exactly(
    rows: Tensor, queries: Tensor, k: int, progress: Progress | None = None
) -> tuple[Tensor, Tensor]:
    """Index and cosine [Q, k] of the neighbors of the rows numbered `queries`."""
    q = rows if len(queries) == len(rows) else rows[queries]
    value, index = search(q, rows, k, queries, progress=progress)
    # only rows that have a duplicate pay for a second search
    again = (value[:, 0] > DUPLICATE).nonzero().squeeze(1)
    if len(again):
        value[again], index[again] = search(q[again], rows, k, queries[again], DUPLICATE)
    return _fill(value, index, queries)


def _fill(value: Tensor, index: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Index and cosine with missing neighbors replaced by the others in turn, or by the row."""
    found = (value > 0).sum(1, keepdim=True)  # [n, 1], nearest first
    turn = torch.arange(value.shape[1], device=value.device) % found.clamp_min(1)
    index, cosine = index.gather(1, turn), value.gather(1, turn)
    return torch.where(found > 0, index, own[:, None]), torch.where(found > 0, cosine, 1.0)


def _search_by_faiss(rows: Tensor, k: int) -> tuple[Tensor, float]:
    """Inverted lists, of which enough are read to find 95 % of the exact neighbors of 256 rows."""
    import faiss

    (n, width), device = rows.shape, rows.device
    lists = max(1, min(int(4 * math.sqrt(n)), n // 40))
    index: Any = faiss.index_factory(width, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    spread = torch.linspace(0, n - 1, min(n, 64 * lists), device=device).long()
    index.train(rows[spread].cpu().numpy())
    parts = torch.arange(n, device=device).split(ROWS_PER_BLOCK["cpu"])
    for part in parts:
        index.add(rows[part].cpu().numpy())
    probed = torch.linspace(0, n - 1, min(n, PROBED_ROWS), device=device).long()
    least = _nearest_exactly(rows, probed, k)[1].amin(1, keepdim=True)  # any row as near is as good
    index.nprobe = 8
    while True:
        recall = float((_ask_faiss(index, rows, probed, k)[1] >= least - 1e-5).float().mean())
        if recall >= RECALL or index.nprobe >= lists:
            break
        index.nprobe = min(2 * index.nprobe, lists)
    return torch.cat([_ask_faiss(index, rows, part, k)[0] for part in parts]), recall


def _ask_faiss(index: Any, rows: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`_nearest_exactly` by a faiss index, which is asked for more: duplicates crowd out others."""
    asked = index.search(rows[queries].cpu().numpy(), min(ASKED * k, index.ntotal))
    value, row = (torch.from_numpy(each).to(queries.device) for each in asked)
    skip = (value > DUPLICATE) | (row == queries[:, None]) | (row < 0)
    value, order = value.masked_fill(skip, -torch.inf).topk(k, 1)
    return _fill(value, row.gather(1, order), queries)
