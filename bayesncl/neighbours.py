"""The nearest rows of each row by cosine: exact, in blocks; with faiss where rows are too many for that."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import distributed
from .data.images import Progress
from .rows import Stream

DUPLICATE = 1 - 1e-5  # rows of a higher cosine are one row twice
EXACT_ROWS = {"cpu": 200_000, "cuda": 2_000_000}  # beyond, exact search takes more than some ten minutes
QUERIES, ROWS = {"cpu": 512, "cuda": 4096}, {"cpu": 16_384, "cuda": 131_072}  # a block of cosines: 32 MiB, 2 GiB
CHUNK = 32  # cosines of which only the largest is looked at first
RECALL = 0.95  # of the exact neighbours that faiss is made to find
PROBE = 256  # rows on which that is measured


Rows = Tensor | Stream  # in memory or out of it


def nearest(rows: Rows, k: int, progress: Progress | None = None) -> tuple[Tensor, float]:
    """The k nearest rows of each row by cosine, above 0.

    Rows of cosine above 0.99999 are duplicates, not neighbours. Nor are rows of 0 or less, which have no more in common
    than two drawn at random: where all rows are copies of a few, the nearest others are strangers.

    Rows [N, F] are centred. The search is exact up to 200,000 rows (2,000,000 on a GPU), beyond that by faiss where it
    is installed. Several processes share the work; each gets all of the result.

    Returns int64 [N, k], nearest first (a row with fewer repeats those it has, one with none is its own), and the share
    of the exact neighbours found, measured; 1 for exact search.
    """
    n, device = len(rows), rows[:1].device
    if n > EXACT_ROWS.get(device.type, EXACT_ROWS["cpu"]):
        if importlib.util.find_spec("faiss") is not None:
            return _with_faiss(rows, k)
        warnings.warn(
            f"exact search for the neighbours of {n:,} rows will take long: "
            "pip install 'bayesncl[faiss]', or fit on fewer rows with max_rows",
            stacklevel=2,
        )
    share = math.ceil(n / distributed.world_size())
    first = min(distributed.rank() * share, n)
    index, _ = _exact(rows, torch.arange(first, min(first + share, n), device=device), k, progress)
    return distributed.gather_arrays(index), 1.0


def _exact(rows: Rows, queries: Tensor, k: int, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
    """Index and cosine [Q, k] of the neighbours of the rows numbered `queries`."""
    device = queries.device
    step = QUERIES.get(device.type, QUERIES["cpu"])
    size = ROWS.get(device.type, ROWS["cpu"])
    held = list(_blocks(rows, size)) if isinstance(rows, Tensor) else None
    index = torch.empty(len(queries), k, dtype=torch.int64, device=device)
    cosine = torch.empty(len(queries), k, device=device)
    for start in range(0, len(queries), step):
        own = queries[start : start + step]
        q = _unit(rows, own)
        value, place = _search(q, own, held or _blocks(rows, size), k, twins=False)
        # only rows that have a duplicate pay for looking at every cosine once more
        again = (value[:, 0] > DUPLICATE).nonzero().squeeze(1)
        if len(again):
            value[again], place[again] = _search(q[again], own[again], held or _blocks(rows, size), k, twins=True)
        index[start : start + step], cosine[start : start + step] = _repeat(value, place, own)
        if progress is not None:
            progress(min(start + step, len(queries)), len(queries), "neighbours")
    return index, cosine


def _unit(rows: Rows, index: Any) -> Tensor:
    return F.normalize(rows[index].float())


def _blocks(rows: Rows, size: int) -> Iterator[tuple[int, Tensor]]:
    """Blocks of rows at unit length, each with the number of its first row."""
    for start in range(0, len(rows), size):
        yield start, _unit(rows, slice(start, start + size))


def _search(
    q: Tensor, own: Tensor, blocks: Iterable[tuple[int, Tensor]], k: int, *, twins: bool
) -> tuple[Tensor, Tensor]:
    """The k largest cosines [n, k] and whose they are; -2 where there are fewer. `twins`: leave duplicates out."""
    value = q.new_full((len(q), k), -2.0)
    place = torch.zeros(len(q), k, dtype=torch.int64, device=q.device)
    for start, block in blocks:
        s = q @ block.T  # [n, rows of the block]
        if twins:
            s.masked_fill_(s > DUPLICATE, -2.0)
        mine = own - start
        inside = ((mine >= 0) & (mine < len(block))).nonzero().squeeze(1)
        s[inside, mine[inside]] = -2.0
        v, i = largest(s, min(k, len(block)))
        value, order = torch.cat([value, v], 1).topk(k, 1)
        place = torch.cat([place, i + start], 1).gather(1, order)
    return value, place


def largest(s: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`s.topk(k, 1)` of wide rows, faster: the k largest entries lie in the k chunks with the largest maxima."""
    n, width = s.shape
    chunks = width // CHUNK
    if chunks <= 2 * k:
        return s.topk(k, 1)
    body = s[:, : chunks * CHUNK].unflatten(1, (chunks, CHUNK))
    best = body.amax(2).topk(k, 1).indices  # [n, k]
    inside = body.gather(1, best[..., None].expand(n, k, CHUNK)).flatten(1)
    place = (best[..., None] * CHUNK + torch.arange(CHUNK, device=s.device)).flatten(1)
    if width % CHUNK:
        inside = torch.cat([inside, s[:, chunks * CHUNK :]], 1)
        tail = torch.arange(chunks * CHUNK, width, device=s.device).expand(n, -1)
        place = torch.cat([place, tail], 1)
    value, order = inside.topk(k, 1)
    return value, place.gather(1, order)


def _repeat(value: Tensor, place: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Index and cosine with the missing filled up: those there are over again, or the row itself."""
    found = (value > 0).sum(1, keepdim=True)  # [n, 1], nearest first
    turn = torch.arange(value.shape[1], device=value.device) % found.clamp_min(1)
    index, cosine = place.gather(1, turn), value.gather(1, turn)
    return torch.where(found > 0, index, own[:, None]), torch.where(found > 0, cosine, 1.0)


def _with_faiss(rows: Rows, k: int) -> tuple[Tensor, float]:
    """Inverted lists, as many of them read as it takes to find 95 % of the exact neighbours of 256 rows."""
    import faiss

    n, width, device = len(rows), rows[:1].shape[1], rows[:1].device
    lists = max(1, min(int(4 * math.sqrt(n)), n // 40))
    index = faiss.index_factory(width, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    spread = torch.linspace(0, n - 1, min(n, 64 * lists), device=device).long()
    index.train(_unit(rows, spread).cpu().numpy())
    size = ROWS["cpu"]
    for _, block in _blocks(rows, size):
        index.add(block.cpu().numpy())
    probe = torch.linspace(0, n - 1, min(n, PROBE), device=device).long()
    least = _exact(rows, probe, k)[1].amin(1, keepdim=True)  # whoever is as near is as good
    index.nprobe = 8
    while True:
        recall = float((_ask(index, rows, probe, k)[1] >= least - 1e-5).float().mean())
        if recall >= RECALL or index.nprobe >= lists:
            break
        index.nprobe = min(2 * index.nprobe, lists)
    parts = torch.arange(n, device=device).split(size)
    return torch.cat([_ask(index, rows, part, k)[0] for part in parts]), recall


def _ask(index: Any, rows: Rows, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`_exact` by a faiss index; a row crowded by duplicates asks for more until it has k others."""
    q = _unit(rows, queries).cpu().numpy()
    ask = min(2 * k + 2, index.ntotal)
    while True:
        value, place = (torch.from_numpy(a).to(queries.device) for a in index.search(q, ask))
        value = torch.where((value > DUPLICATE) | (place == queries[:, None]) | (place < 0), -2.0, value)
        if ask >= min(16 * k, index.ntotal) or bool(((value > -1.5).sum(1) >= k).all()):
            break
        ask = min(2 * ask, index.ntotal)
    value, order = value.topk(k, 1)
    return _repeat(value, place.gather(1, order), queries)
