"""What is new in other images: a novelty per image, and dimensions that grew or shrank in use."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bayesncl.codes.embed import codes_of
from bayesncl.codes.folder import file_stat
from bayesncl.codes.open import PhotoCodes
from bayesncl.data.images import Progress
from bayesncl.errors import printable, wrap
from bayesncl.inputs import Array
from bayesncl.measure.topk import keep
from bayesncl.progress import plural

N_ACTIVE = 5  # strongest dimensions of an image that count as used
KEPT_IMAGES = 120  # the most novel ones, for the atlas
MIN_DEVIATIONS = 4.0  # standard errors beyond which a change in use is listed


class Novel(NamedTuple):
    """An image with its novelty, and the share of the reference images that score lower."""

    image: str
    rank: float
    novelty: float


class Change(NamedTuple):
    """A dimension with the share of images that use it, in the reference and in the new images."""

    dimension: int
    name: str
    before: float
    after: float


class Comparison(NamedTuple):
    """New images by novelty, largest first, and dimensions by change in use, largest first."""

    headline: str
    images: list[Novel]
    changes: list[Change]


def usage(z: Array, k: int = N_ACTIVE) -> np.ndarray:
    """Share of the images that have each dimension among their k strongest, [D]."""
    kept = keep(z, k)
    return np.bincount(kept.indices, minlength=kept.shape[1]) / kept.shape[0]


def deviations(before: np.ndarray, after: np.ndarray, n: int, m: int) -> np.ndarray:
    """Difference of two shares, of n and of m images, in standard errors of equal shares."""
    pooled = (n * before + m * after) / (n + m)
    error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return np.divide(after - before, error, out=np.zeros_like(error), where=error > 0)


def compare(model: PhotoCodes, source: Path, progress: Progress | None = None) -> Comparison:
    """Compare the images or embeddings at `source` with those that the codes were fitted on.

    The most novel images, with the sizes of their files, and the changes are kept in compare.json.
    The reference is the held-out rows where there are any, since fitted rows look too familiar.
    """
    folder, reference = model.folder, model.novelty.reference
    new = codes_of(model, source, None, progress)
    assert new.novelty is not None
    rank = np.searchsorted(np.sort(reference), new.novelty) / len(reference)
    images = list(map(Novel, new.names, rank.tolist(), new.novelty.tolist()))
    images.sort(key=lambda each: -each.novelty)
    old = model.codes.dense(model.embeddings[model.novelty.index])
    before, after = usage(old), usage(new.z)
    sigma = deviations(before, after, len(old), len(new.z))
    names = model.codes.get_feature_names_out()
    changes = [
        Change(int(k), str(names[k]), float(before[k]), float(after[k]))
        for k in np.argsort(-np.abs(sigma), kind="stable") if abs(sigma[k]) >= MIN_DEVIATIONS
    ]  # fmt: skip
    kind, expected = ("held-out", "5 %") if model.rows.held else ("fitted", "7 to 12 %")
    headline = (
        f"{100 * np.mean(rank >= 0.95):.0f} % of {len(images):,} images are more novel than 95 % "
        f"of {len(old):,} {kind} images (if nothing is new: {expected})"
    )
    kept = [(i.image, i.novelty, file_stat(source / i.image)[0]) for i in images[:KEPT_IMAGES]]
    result = {"source": folder.relative(source), "headline": headline, "images": kept}
    shares = [(each.dimension, each.before, each.after) for each in changes]
    folder.save_result("compare", {**result, "changes": shares})
    return Comparison(headline, images, changes)


def summarize(found: Comparison, n: int) -> str:
    """The n most novel images and the n largest changes, as text."""
    lines = [wrap(found.headline)]
    lines += [f"  {each.novelty:.3f}  {printable(each.image, 200)}" for each in found.images[:n]]
    meaning = " (share of images, before, after)" if found.changes and n else ""
    lines.append(f"{plural(len(found.changes), 'dimension')} changed in use{meaning}")
    for _, name, before, after in found.changes[:n]:
        lines.append(f"  {100 * before:5.1f} %  {100 * after:5.1f} %  {printable(name, 60)}")
    return "\n".join(lines)
