"""What to check in a dataset: likely wrong labels, odd images and duplicates.

Everything is read from the embeddings, centered and scaled to unit length. Codes are too coarse
for it: two images with the same few active dimensions need not be copies.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy import stats
from torch import Tensor

from bayesncl.codes.folder import CodesFolder, checksum
from bayesncl.data.cache import read_files
from bayesncl.device import find_device
from bayesncl.errors import InputError, printable
from bayesncl.inputs import Array, as_features, as_numpy, factorize
from bayesncl.measure.neighbors import search
from bayesncl.method.losses import unit_rows
from bayesncl.progress import plural

WRONG, ODD, EXACT, NEAR, ACROSS = KINDS = (
    "wrong label", "odd image", "exact duplicate", "near-duplicate", "train-test duplicate"
)  # fmt: skip
N_NEIGHBORS = 10  # of each image; copies beyond them are not listed
PENALTY = 1.0  # of the linear classifier, on rows of unit length
ODD_DEVIATIONS = 3.0  # below the median, in robust standard deviations
THUMBNAIL = 16  # side in gray pixels
# least correlation of two copies; and where they differ by few gray levels (root mean square)
SAME_PIXELS, ALMOST_SAME, LEVELS = 0.99, 0.95, 5.0
SHOWN, SHOWN_CLASS = 34, 15  # characters of a file name and of a class
CANDIDATES = 3  # nearest thumbnails of each, among which copies are found


class Finding(NamedTuple):
    """One line of the table."""

    kind: str  # one of KINDS
    image: str
    other: str  # the copy; of a wrong label, the nearest image with the suggested label
    label: str
    suggested: str
    score: float  # larger is worse: margin, cosine of a pair, 1 - cosine of an odd image
    decision: str = ""  # of a person in the atlas: accepted, dismissed or none


def audit(
    embeddings: Array, labels: Array | None = None, names: Sequence[str] | None = None, *,
    held_out: Array | None = None, contents: Sequence[Hashable] | None = None,
    thumbnails: Sequence[np.ndarray | None] | None = None, near: float = 0.95,
    device: str = "auto",
) -> list[Finding]:  # fmt: skip
    """Find likely wrong labels, odd images and duplicates.

    Parameters
    ----------
    embeddings : [N, F].
    labels : [N], numbers or strings; without them no label is checked.
    names : of the images; default their row numbers.
    held_out : bool [N], test rows; pairs of a test and a training row are listed again.
    contents : [N], equal for exact duplicates (None: never); default the embeddings themselves.
    thumbnails : [N], gray pixels [S, S], 0 to 255, or None; find copies that `near` misses.
    near : least cosine of near-duplicates, centered.
    device : auto, cpu, cuda, cuda:N or mps.

    Returns
    -------
    list of Finding, ordered by kind and falling score; `pandas.DataFrame` accepts it.
    """
    x = as_features(embeddings)
    n = len(x)
    columns = {"labels": labels, "names": names, "held_out": held_out, "contents": contents}
    for what, column in columns.items():
        if column is not None and len(column) != n:
            raise InputError(f"{len(column)} {what} for {n} rows of embeddings")
    if n < 3:
        raise InputError(f"an audit needs at least 3 images, got {n}")
    names = list(map(str, range(n)) if names is None else names)
    held = None if held_out is None else as_numpy(held_out).astype(bool)
    y, classes = factorize([""] * n if labels is None else labels)
    text = [str(c) for c in classes]
    rows = torch.from_numpy(np.array(x, np.float32)).to(find_device(device))
    rows = unit_rows(rows - rows.mean(0))
    cosine, index = find_neighbors(rows, min(N_NEIGHBORS, n - 1))
    found: list[Finding] = []

    def add(kind: str, i: int, j: int | None, score: float, suggested: str = "") -> None:
        other = "" if j is None else names[j]
        found.append(Finding(kind, names[i], other, text[y[i]], suggested, float(score)))

    best, margin = best_other_class(rows, y) if len(classes) > 1 else (y, np.zeros(n))
    for i in np.flatnonzero(margin > 0).tolist():
        others = index[i][y[index[i]] == best[i]]
        add(WRONG, i, others[0] if len(others) else None, margin[i], text[best[i]])
    mean = cosine.mean(1)
    spread = stats.median_abs_deviation(mean, scale="normal")
    for i in np.flatnonzero(mean < np.median(mean) - ODD_DEVIATIONS * spread - 1e-6).tolist():
        add(ODD, i, index[i, 0], 1 - mean[i])
    hashes = (hashlib.sha256(row.tobytes()).digest() for row in x)
    keys = list(hashes if contents is None else contents)
    by_pixels = pixel_pairs(thumbnails or (), rows.device)
    alike = {(i, j): float(rows[i] @ rows[j]) for i, j in by_pixels}
    for kind, i, j, c in find_copies(keys, alike | near_pairs(cosine, index, near)):
        add(kind, i, j, c)
        if held is not None and held[i] != held[j]:
            add(ACROSS, i, j, c)
    return sorted(found, key=lambda f: (KINDS.index(f.kind), -f.score))


def best_other_class(rows: Tensor, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class [N] that a row resembles most beside its own, and by how much more [N]."""
    votes, row = predict_left_out(rows, y), np.arange(len(y))
    own = votes[row, y]
    votes[row, y] = -np.inf
    return votes.argmax(1), votes.max(1) - own


def find_copies(
    keys: Sequence[Hashable], alike: dict[tuple[int, int], float]
) -> Iterator[tuple[str, int, int, float]]:
    """Pairs of rows with equal keys, then those of `alike` with other keys: kind and cosine."""
    first: dict[Hashable, int] = {}
    for j, key in enumerate(keys):
        if key is not None and (i := first.setdefault(key, j)) != j:
            yield EXACT, i, j, 1.0
    for (i, j), c in alike.items():
        if keys[i] is None or keys[i] != keys[j]:
            yield NEAR, i, j, c


def find_neighbors(rows: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and number [N, k] of the nearest other rows of each row, nearest first."""
    found = search(rows, rows, k, torch.arange(len(rows), device=rows.device))
    cosine, index = (each.cpu().numpy() for each in found)
    return cosine, index


def predict_left_out(rows: Tensor, y: np.ndarray) -> np.ndarray:
    """Class scores [N, C] of each row by ridge regression on all other rows.

    With fitted scores p_i and leverage h_i = 1/N + x_i (X'X + PENALTY)^-1 x_i', the regression
    without row i gives (p_i - h_i y_i) / (1 - h_i).
    """
    x = rows - rows.mean(0)
    onehot = torch.nn.functional.one_hot(torch.from_numpy(y)).to(x)
    prior = onehot.mean(0)
    gram = (x.T @ x).cpu().double()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + PENALTY * torch.eye(len(gram))))
    solved = x @ inverse.to(x)  # [N, F]
    leverage = (solved * x).sum(1, keepdim=True) + 1 / len(x)
    scores = solved @ (x.T @ (onehot - prior)) + prior
    return ((scores - leverage * onehot) / (1 - leverage)).cpu().numpy()


def near_pairs(cosine: np.ndarray, index: np.ndarray, least: float) -> dict[tuple[int, int], float]:
    """Cosines of the pairs i < j of neighbors that have one of at least `least`."""
    i, slot = np.nonzero(cosine >= least)
    both = np.sort(np.stack([i, index[i, slot]], 1), 1)
    pairs, at = np.unique(both, axis=0, return_index=True)
    return dict(zip(map(tuple, pairs.tolist()), cosine[i, slot][at].tolist()))


def pixel_pairs(
    thumbnails: Sequence[np.ndarray | None], device: torch.device
) -> list[tuple[int, int]]:
    """Pairs i < j of thumbnails that show the same picture; flat or missing ones never do.

    Copies correlate, whatever their brightness and contrast. Saving a picture of low contrast again
    changes the correlation more, but only by a few gray levels.
    """
    seen = {i: t.ravel() for i, t in enumerate(thumbnails) if t is not None and t.std() >= 1}
    if len(seen) < 2:
        return []
    number = list(seen)
    pixels = torch.from_numpy(np.stack([*seen.values()])).float().to(device)
    rows = unit_rows(pixels - pixels.mean(1, keepdim=True))
    found = []
    nearest = find_neighbors(rows, min(CANDIDATES, len(rows) - 1))
    for (a, b), c in near_pairs(*nearest, ALMOST_SAME).items():
        if c >= SAME_PIXELS or (pixels[a] - pixels[b]).square().mean() <= LEVELS**2:
            found.append((number[a], number[b]))
    return found


def audit_folder(folder: CodesFolder, **options: Any) -> list[Finding]:
    """`audit` of the rows of a codes folder, with the decisions in names.json; writes audit.json.

    Files are compared if they are still there.
    """
    rows = folder.rows()
    options["labels"] = rows.texts()
    with contextlib.suppress(InputError):  # no images, or they were moved
        paths = folder.photo_paths(rows, range(len(rows)))
        sizes = [path and path.stat().st_size for path in paths]
        shared = {size for size, count in Counter(sizes).items() if size and count > 1}
        options["contents"] = [
            checksum(path) if path and size in shared else None for path, size in zip(paths, sizes)
        ]
        files = (path or Path("\0") for path in paths)  # "\0" is never a file
        pixels = read_files(files, shrink, 4 * THUMBNAIL)
        options["thumbnails"] = [None if isinstance(t, Exception) else t for t in pixels]
    held_out = np.arange(len(rows)) >= rows.fitted
    found = audit(folder.embeddings(), names=rows.names, held_out=held_out, **options)
    checks = [check for each in folder.all_names() for check in each.checks]
    decided = {(c.kind, c.image, c.other): c.decision for c in sorted(checks, key=lambda c: c.time)}
    found = [f._replace(decision=decided.get(f[:3], "")) for f in found]
    folder.save_result("audit", {"findings": found})
    return found


def shrink(image: Image.Image) -> np.ndarray:
    """A small gray version of an image [16, 16]."""
    small = image.convert("L").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small, np.float32)


def summarize(found: Sequence[Finding], n: int = 5) -> str:
    """Count of each kind and its first `n` findings, as text."""
    lines = []
    for kind in KINDS:
        some = [finding for finding in found if finding.kind == kind]
        lines.append(plural(len(some), f"possible {kind}" if kind == WRONG else kind))
        for f in some[:n]:
            classes = [printable(label, SHOWN_CLASS) for label in (f.label, f.suggested)]
            what = " -> ".join(classes) if f.suggested else _ending(f.other)
            lines.append(f"  {f.score:5.2f}  {_ending(f.image):{SHOWN}}  {what}".rstrip())
    return "\n".join(lines)


def _ending(text: str) -> str:
    """The end of a path, where images of one folder differ."""
    return printable(text if len(text) <= SHOWN else f"…{text[1 - SHOWN :]}", SHOWN)
