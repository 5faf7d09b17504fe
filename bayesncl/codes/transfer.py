"""Move names to the matching dimensions when codes are fitted again."""

from typing import NamedTuple

import numpy as np
from torch.nn.functional import normalize

from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Annotations, merge_names
from bayesncl.data.images import spread_evenly
from bayesncl.errors import InputError
from bayesncl.measure.rows import active
from bayesncl.measure.topk import strongest_images
from bayesncl.progress import plural

SAME = 0.7  # cosine of the squared activations from which two dimensions may be the same
STILL_STRONG = 0.8  # share of its strength on its strongest images that a dimension must keep
MIN_SHARED, MAX_SHARED = 20, 20_000  # images in both codes


class Match(NamedTuple):
    """The dimension of new codes that is most like an old one."""

    dimension: int
    cosine: float
    strength: float  # on the ten strongest images of the old one, relative to its own ten

    @property
    def certain(self) -> bool:
        """Whether a name may move."""
        return self.cosine >= SAME and self.strength >= STILL_STRONG


def carry_names(old: CodesFolder, new: CodesFolder) -> tuple[Annotations, list[str]]:
    """The names of `new` with those that move there from `old`, and lines that say which did."""
    names, into = old.names(), new.names()
    if not names.dimensions or names.fingerprint == into.fingerprint:
        return into, []
    for known in old.all_names():
        if (known.fingerprint, known.dimensions) == (into.fingerprint, names.dimensions):
            return known, []  # codes that continue the old ones have the same dimensions
    index = new.rows().index
    pairs = [(i, index[name]) for i, name in enumerate(old.rows().names) if name in index]
    if len(pairs) < MIN_SHARED:
        need = f"names move by at least {MIN_SHARED} shared images"
        raise InputError(f"{old} and {new} have {len(pairs)} images in common: {need}")
    shared = zip((old, new), np.array(pairs)[spread_evenly(len(pairs), MAX_SHARED)].T)
    codes = (folder.codes().dense(folder.embeddings()[rows]) for folder, rows in shared)
    return transfer_names(names, into, match_dimensions(*codes))


def match_dimensions(a: np.ndarray, b: np.ndarray) -> list[Match]:
    """The best match of each column of codes a [N, D] among those of codes b [N, E].

    Several may have the same one. Cosines are of squares, which weigh the strongest images: people
    name a dimension by these.
    """
    columns = [normalize(active(z**2), dim=0) for z in (a, b)]
    cosine = (columns[0].T @ columns[1]).numpy()  # [D, E]
    best, top, top_b = cosine.argmax(1), strongest_images(a), strongest_images(b)
    found = []
    for k, partner in enumerate(best.tolist()):
        z = b[:, partner]
        own = z[top_b[partner][top_b[partner] >= 0]].sum()
        strength = float(z[top[k][top[k] >= 0]].sum() / own) if own > 0 else 0.0
        found.append(Match(partner, float(cosine[k, partner]), strength))
    return found


def transfer_names(
    old: Annotations, new: Annotations, matches: list[Match]
) -> tuple[Annotations, list[str]]:
    """Add entries of old dimensions to those of their matches, where these are certain.

    Of different names for one dimension, that of the best match moves; equal names are merged. Of
    one author the entry of the best match moves, one with a name before one without.
    """
    added, doubtful = Annotations(new.fingerprint, new.run, new.dims), []
    taken: dict[int, str] = {}
    for k in sorted(old.dimensions, key=lambda k: (not old.name(k), -matches[k].cosine)):
        match, name = matches[k], old.name(k)
        if match.certain and (not name or taken.setdefault(match.dimension, name) == name):
            there = added.dimensions.setdefault(match.dimension, [])
            authors = {entry.author for entry in there}
            there += [entry for entry in old.dimensions[k] if entry.author not in authors]
        else:
            doubtful.append(k)
    own = [k for k in sorted(doubtful) if not all(e.suggested for e in old.dimensions[k])]
    lines = [_describe(k, old.name(k), matches[k]) for k in own]
    if suggested := len(doubtful) - len(own):
        lines.append(f"- not moved: {plural(suggested, 'suggestion')}, which can be made again")
    moved, total = len(old.dimensions) - len(doubtful), len(old.dimensions)
    into = plural(len(added.dimensions), "matching dimension")
    lines.insert(0, f"names: {moved} of {total} moved to {into}")
    return merge_names([new, added])[0], lines


def _describe(k: int, name: str, match: Match) -> str:
    best = f"best match z{match.dimension}, cosine {match.cosine:.2f}"
    if match.certain:
        best += ", which fits another name better"
    elif match.cosine >= SAME:
        best += f", but its strongest images keep {100 * match.strength:.0f} % of their strength"
    called = repr(name) if name else "without a name"
    return f"- not moved: z{k} {called} ({best if match.cosine > 0 else 'no match'})"
