"""Names that programs can give: from labels, and from words with vectors in the same space."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from sklearn.preprocessing import normalize

from bayesncl.codes import names
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import SUGGESTED, Annotations, Entry
from bayesncl.codes.open import PhotoCodes
from bayesncl.codes.transfer import carry_names
from bayesncl.data.images import spread_evenly
from bayesncl.errors import InputError, as_input_error
from bayesncl.inputs import as_features, read_embeddings
from bayesncl.io import read_json
from bayesncl.measure.figures import readable
from bayesncl.measure.topk import TOP, strongest_images

MAX_ROWS = 50_000  # rows that names are found on, spread evenly
CONTROL_FACTOR = 3.0  # a word must score this many times the best of shuffled vectors


def name_by_labels(z: np.ndarray, labels: np.ndarray) -> list[tuple[int, int, float]]:
    """Each readable dimension, the class most of its 10 strongest images share, and their share."""
    top = strongest_images(z)
    found = []
    for k in np.flatnonzero(readable(top, [labels])):
        count = np.bincount(labels[top[k]])
        found.append((int(k), int(count.argmax()), float(count.max() / TOP)))
    return found


def directions(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Unit directions [D, F]: mean of the centered embeddings x, weighted by z squared."""
    e = normalize(np.asarray(x, np.float32))
    return normalize((z.T**2) @ normalize(e - e.mean(0)))


def name_by_words(
    direction: np.ndarray, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """The word of highest cosine per dimension [D], that cosine [D], and the least to trust.

    Vectors [W, F] are centered. The least is 3 times the best cosine of any dimension with vectors
    whose columns are shuffled over the words: 3 is a choice, see docs/naming.md.
    """
    vectors = vectors - vectors.mean(0)
    cosine = direction @ normalize(vectors).T
    shuffled = np.random.default_rng(0).permuted(vectors, axis=0)
    control = float((direction @ normalize(shuffled).T).max())
    return cosine.argmax(1), cosine.max(1), CONTROL_FACTOR * control


def suggest_from_labels(model: PhotoCodes) -> None:
    """Name the readable dimensions by the classes of the fitted rows."""
    rows, folder = model.rows, model.folder
    if rows.labels is None or rows.class_names is None:
        raise InputError(f"{folder} has no labels: fit with class subfolders or --labels")
    z, _, chosen = _codes_and_rows(model)
    words, found = names.clean_names(list(rows.class_names)), name_by_labels(z, rows.labels[chosen])
    add_suggestions(folder, [(k, words[c], share) for k, c, share in found], "labels")


def suggest_from_words(
    model: PhotoCodes, source: str, words: list[str], vectors: np.ndarray
) -> str:
    """Name the dimensions that a word fits; returns how many and the least cosine, as text."""
    z, x, _ = _codes_and_rows(model)
    if vectors.shape != (len(words), x.shape[1]):
        wanted = f"{len(words)} words of {x.shape[1]} numbers"
        raise InputError(f"vectors are {list(vectors.shape)}, expected {wanted}")
    if not np.isfinite(vectors).all():
        raise InputError("vectors contain NaN or infinity")
    best, cosine, least = name_by_words(directions(z, x), vectors.astype(np.float64))
    kept = np.flatnonzero(cosine >= least).tolist()
    suggested = [(k, words[best[k]], float(cosine[k])) for k in kept]
    add_suggestions(model.folder, suggested, source)
    return f"{len(kept)} dimensions have a word with a cosine of {least:.2f} or more"


def read_words(words: Path, vectors: Path) -> tuple[list[str], np.ndarray]:
    """Words, one per line, and their vectors [W, F]."""
    with as_input_error(f"cannot read {words}", OSError, ValueError):
        lines = [line.strip() for line in words.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line], as_features(read_embeddings(vectors).z)


def add_file(folder: CodesFolder, file: Path) -> None:
    """Add the names of a names.json that the atlas exported from these codes."""
    own, given = folder.names(), names.parse_names(read_json(file), str(file))
    found = names.find_names(given, own.fingerprint, own.dims)
    folder.save_names(names.merge_names([own, found])[0])


def add_from_codes(folder: CodesFolder, old: CodesFolder) -> list[str]:
    """Move names from other codes of the same images; returns lines that say which."""
    if not old.names().dimensions:
        raise InputError(f"{old} has no names")
    moved, lines = carry_names(old, folder)
    folder.save_names(moved)
    return lines


def describe(named: Annotations) -> list[str]:
    """A line per dimension with a name or mark, with the source of suggestions, and a count."""
    lines, count = [], 0
    marked = {mark: named.marked(mark) for mark in names.CHOICES["mark"]}
    for k in sorted(named.dimensions):
        name, entries = named.name(k), named.dimensions[k]
        count += bool(name)
        by = [e for e in entries if e.suggested and e.name == name]
        person = any(not e.suggested and e.name for e in entries)
        source = by[0].author.removeprefix(SUGGESTED) if by and not person else ""
        notes = [f"({by[0].note}, from {source})"] if source else []
        notes += [f"[{mark}]" for mark, found in marked.items() if k in found]
        if name or notes:
            lines.append("  ".join([f"z{k:<5} {name or '-'}", *notes]))
    return [*lines, f"{count:,} of {named.dims:,} dimensions have a name"]


def add_suggestions(folder: CodesFolder, found: list[tuple[int, str, float]], source: str) -> None:
    """Replace the names (dimension, name, score) from one source; names by people stay."""
    author, time = f"{SUGGESTED}{source}", datetime.now(UTC).isoformat(timespec="seconds")
    own = folder.names()
    for k, entries in own.dimensions.items():
        own.dimensions[k] = [entry for entry in entries if entry.author != author]
    for k, name, score in found:
        entry = Entry(name, f"suggested, score {score:.2f}", "", author, time)
        own.dimensions.setdefault(k, []).append(entry)
    folder.save_names(own)


def _codes_and_rows(model: PhotoCodes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dense codes and embeddings of the fitted rows, and the indices of these rows."""
    chosen = spread_evenly(len(model.rows), MAX_ROWS)
    x = np.asarray(model.embeddings[chosen])
    return model.codes.dense(x), x, chosen
