"""Names that stay: they move to the matching dimensions when codes are fitted again."""

from __future__ import annotations

import numpy as np

from bayesncl.codes.dense import dense_codes
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Annotations, merge_names
from bayesncl.data.images import spread_evenly
from bayesncl.errors import InputError
from bayesncl.measure.stability import match_columns

SAME = 0.7  # cosine of the squared activations from which two dimensions are the same
MIN_SHARED, MAX_SHARED = 20, 20_000  # images in both codes


def carry_names(old: CodesFolder, new: CodesFolder) -> tuple[Annotations, list[str]]:
    """The names of `new` with those that move there from `old`, and lines that say which did."""
    names, into = old.names(), new.names()
    if not names.dimensions or names.fingerprint == into.fingerprint:
        return into, []
    return transfer_names(names, into, *match_columns(*shared_codes(old, new))[:2])


def transfer_names(
    old: Annotations, new: Annotations, partner: np.ndarray, cosine: np.ndarray
) -> tuple[Annotations, list[str]]:
    """Add entries of old dimensions to those of their partners [D], where the cosine [D] allows."""
    added, doubtful = Annotations(new.fingerprint, new.run, new.dims), []
    for k, entries in sorted(old.dimensions.items()):
        if cosine[k] >= SAME:
            added.dimensions[int(partner[k])] = list(entries)
        else:
            best = f"best match z{partner[k]}, cosine {cosine[k]:.2f}"
            best = best if partner[k] >= 0 else "no match"
            doubtful.append(f"- not moved: z{k} {old.name(k)!r} ({best})")
    moved, total = len(old.dimensions) - len(doubtful), len(old.dimensions)
    lines = [f"names: {moved} of {total} moved to the matching dimensions", *doubtful]
    return merge_names([new, added])[0], lines


def shared_codes(old: CodesFolder, new: CodesFolder) -> tuple[np.ndarray, np.ndarray]:
    """Squared codes [N, D] and [N, E] of the images, found by name, that are in both folders.

    Squares weigh the strongest images, by which people name a dimension.
    """
    index = {name: i for i, name in enumerate(new.rows().names)}
    pairs = [(i, index[name]) for i, name in enumerate(old.rows().names) if name in index]
    if len(pairs) < MIN_SHARED:
        need = f"names move by at least {MIN_SHARED} shared images"
        raise InputError(f"{old} and {new} have {len(pairs)} images in common: {need}")
    chosen = np.array(pairs)[spread_evenly(len(pairs), MAX_SHARED)]
    both = zip((old, new), chosen.T)
    a, b = (dense_codes(f.codes(), f.embeddings()[rows]) ** 2 for f, rows in both)
    return a, b
