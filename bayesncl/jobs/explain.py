"""Why a classifier decides as it does: a sparse linear classifier on codes, and its dimensions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayesncl.codes.folder import Rows
from bayesncl.codes.open import PhotoCodes
from bayesncl.data.images import held_out
from bayesncl.errors import InputError, printable
from bayesncl.evaluate import backgrounds_of, read_factors
from bayesncl.inputs import Array, as_features, as_labels, as_numpy
from bayesncl.measure.factors import MAX_ROWS, average_auc, beyond_luck
from bayesncl.measure.linear import Linear, expected_chance, fit_linear, group_accuracy, trim

# names of the sparse classifiers in the report, of all dimensions and without irrelevant ones
SPARSE, SPARSE_TRIMMED = "codes, few dimensions", "few, irrelevant ones off"
TEST_SHARE = 0.2  # of the rows, where `fit` held none out
WIDTH, MAX_CLASSES = 80, 10  # of the report
SHOWN = 0.005  # smallest weight in the report, which has two decimals
Scores = dict[str, Any]  # of `group_accuracy`


class Weight(NamedTuple):
    """One line of the table: what a dimension says about a class."""

    label: str
    dimension: int
    name: str
    weight: float  # added to the score of the class by one standard deviation of the dimension
    group: str  # that it is about, the one where it is strongest; empty if it is neutral
    irrelevant: str  # yes or no


class Explanation(NamedTuple):
    """A sparse linear classifier on codes, and how well it and others do on held-out images."""

    names: list[str]  # [D], of the dimensions
    model: Linear  # the sparse classifier, without irrelevant dimensions
    rows: tuple[int, int]  # images to fit on, held out
    scores: dict[str, Scores]  # by classifier, in the order of the report
    chance: float
    irrelevant: list[int]
    groups: list[str] | None  # [D], the group a dimension is about, or ""; None without groups

    @property
    def weights(self) -> list[Weight]:
        """Every weight that is not 0, by class, the strongest first."""
        columns = zip(self.model.classes, self.model.weight.T)
        return [line for label, column in columns for line in self.lines(label, column)]

    def lines(self, label: Any, weights: np.ndarray) -> list[Weight]:
        """The weights [D] for a class that are not 0, the strongest first."""
        found = []
        for k in np.argsort(-np.abs(weights), kind="stable")[: np.count_nonzero(weights)].tolist():
            group = "" if self.groups is None else self.groups[k]
            off = "yes" if k in self.irrelevant else "no"
            found.append(Weight(str(label), k, self.names[k], float(weights[k]), group, off))
        return found

    @property
    def group_share(self) -> float | None:
        """Percent of all |weights| on dimensions about a group; None without groups."""
        if self.groups is None:
            return None
        size = np.abs(self.model.weight).sum(1)
        related = np.array([group != "" for group in self.groups])
        return 100 * float(size[related].sum() / max(size.sum(), 1e-12))


def explain(
    z: Array, labels: Array, test: Array, *, embeddings: Array | None = None,
    groups: Array | None = None, names: Sequence[str] | None = None,
    irrelevant: Sequence[int] = (),
) -> Explanation:  # fmt: skip
    """Fit a sparse linear classifier on codes, and compare it with others on held-out images.

    Parameters
    ----------
    z : codes [N, D].
    labels : [N], numbers or strings.
    test : bool [N], held-out rows.
    embeddings : [N, F] of the same images, for a classifier on them.
    groups : [N], such as the background. A group is a class and one of these.
    names : of the dimensions; default z0, z1, ...
    irrelevant : dimensions to switch off.

    Returns
    -------
    Explanation; `weights` is the table. A dimension is about a group by the rule of
    `measure.factors.beyond_luck`, comparing images of the same class only.
    """
    z, test = as_features(z), as_numpy(test).astype(bool)
    embeddings = None if embeddings is None else as_features(embeddings)
    n, width = z.shape
    y, classes = as_numpy(labels), as_labels(labels, n)[0]
    for what, column in (("held-out marks", test), ("groups", groups), ("embeddings", embeddings)):
        if column is not None and len(column) != n:
            raise InputError(f"{len(column)} {what} for {n} rows of codes")
    if not 0 < test.sum() < n or len(np.unique(y[~test])) < 2:
        raise InputError("explain needs two classes to fit on, and held-out rows")
    tested_groups = None if groups is None else as_numpy(groups)[test]
    dropped = sorted(set(irrelevant))
    trimmed = trim(z[~test], y[~test], z[test], y[test], tested_groups, dropped)
    scores: dict[str, Scores] = {}

    def fit(name: str, x: np.ndarray, sparse: bool = True) -> Linear:
        model = fit_linear(x[~test], y[~test], sparse=sparse)
        scores[name] = group_accuracy(model.predict(x[test]), y[test], tested_groups)
        return model

    model = fit(SPARSE, z)
    scores["codes, all dimensions"] = trimmed["all"]
    if dropped:
        model = fit(SPARSE_TRIMMED, np.where(np.isin(np.arange(width), dropped), 0, z))
        scores["all, irrelevant ones off"] = trimmed["trimmed"]
        scores["all, as many others off"] = trimmed["random"]
    if embeddings is not None:
        fit("full embedding", embeddings, sparse=False)
    related = None if groups is None else find_groups(z, classes, groups)
    titles = [f"z{k}" for k in range(width)] if names is None else list(names)
    sizes = int((~test).sum()), int(test.sum())
    chance = expected_chance(model.predict(z[test])[:, None], y[test])
    return Explanation(titles, model, sizes, scores, chance, dropped, related)


def find_groups(z: np.ndarray, classes: np.ndarray, groups: Array) -> list[str]:
    """The group that each dimension is about [D], or ""; only images of one class are compared."""
    index, values = as_labels(groups, len(z))
    sample = np.random.default_rng(0).permutation(len(z))[:MAX_ROWS]
    found = average_auc(z[sample], index[sample], classes[sample])
    strongest = values[found.auc.argmax(0)]
    return [str(group) if on else "" for group, on in zip(strongest, beyond_luck(found))]


def explain_codes(
    model: PhotoCodes, labels: Path | None = None, groups: Path | None = None,
    without: Sequence[str] = (),
) -> tuple[Explanation, np.ndarray]:  # fmt: skip
    """Explain a classifier on fitted codes, and keep it in explain.json; returns the codes too.

    Labels are those of the folder unless a file has others. Groups are read from a file, or are the
    backgrounds of a run's dataset. Dimensions with the mark "irrelevant", or named in `without`,
    are switched off. The held-out rows are those of `fit`, or a fifth.
    """
    folder, rows, codes = model.folder, model.rows, model.codes
    x = np.asarray(model.embeddings)
    n, texts = len(rows), rows.texts()
    if labels is None and texts is None:
        raise InputError(f"{folder} has no labels: use --labels FILE")
    files = {name: file for name, file in (("y", labels), ("groups", groups)) if file is not None}
    given = read_factors(files, np.array(rows.names), n)
    group_of = given["groups"] if groups else backgrounds_of(folder, rows, np.arange(n))
    y = np.array(texts) if labels is None else given["y"]
    test = np.arange(n) >= rows.fitted if rows.held else held_out(rows.names, TEST_SHARE, 0)
    annotations = folder.names(codes)
    off = {k for name in without for k in annotations.find(name)}
    off |= set(annotations.marked("irrelevant"))
    z, names = codes.dense(x), annotations.columns(codes.n_components_)
    found = explain(z, y, test, embeddings=x, groups=group_of, names=names, irrelevant=[*off])
    scores = {
        name: {key: score[key] for key in ("average", "worst")} | {"where": _worst_group(score)}
        for name, score in found.scores.items()
    }
    scores["chance"] = {"average": found.chance, "worst": None, "where": ""}
    weights = [weight._asdict() for weight in found.weights]
    result = {"scores": scores, "group_share": found.group_share, "weights": weights}
    folder.save_result("explain", result)
    return found, z


def find_image(rows: Rows, name: str) -> int:
    """The row with this name, or the only one whose path ends so."""
    ends = [i for i, each in enumerate(rows.names) if f"/{each}".endswith(f"/{name}")]
    matches = [i for i in ends if rows.names[i] == name] or ends
    if len(matches) != 1:
        raise InputError(f"{len(matches) or 'no'} images are named {printable(name)}")
    return matches[0]


def summarize(found: Explanation, n: int = 5) -> str:
    """The accuracies, and the n strongest dimensions for and against each class, worst first."""
    model = found.model
    used = int(model.used.sum())
    fitted, tested = found.rows
    worst = "worst class" if found.groups is None else "worst group"
    lines = [
        f"{len(model.classes)} classes; {fitted:,} images to fit on, {tested:,} held out",
        f"{used} of {len(found.names)} dimensions used, {len(found.irrelevant)} switched off",
        "",
        f"{'accuracy on held-out images, %':30}{'all':>8}{worst:>14}",
    ]
    for name, score in found.scores.items():
        figures = f"{name:30}{score['average']:8.1f}{score['worst']:14.1f}"
        lines.append(f"{figures}   {_worst_group(score)}".rstrip()[:WIDTH])
    lines.append(f"{'chance':30}{found.chance:8.1f}")
    if (share := found.group_share) is not None:
        lines += ["", f"Dimensions about a group carry {share:.0f} % of the weight."]
    own_score = found.scores.get(SPARSE_TRIMMED, found.scores[SPARSE])
    worst_first = list(dict.fromkeys(str(row["class"]) for row in own_score["groups"]))
    for label in worst_first[:MAX_CLASSES]:
        lines += ["", printable(label, WIDTH)]
        own = [each for each in found.weights if each.label == label and abs(each.weight) >= SHOWN]
        for sign in (1, -1):
            lines += [_show(each) for each in own if sign * each.weight > 0][:n]
    if len(worst_first) > MAX_CLASSES:
        lines += ["", f"{len(worst_first) - MAX_CLASSES} more classes: see -o FILE"]
    return "\n".join(lines)


def _worst_group(score: Scores) -> str:
    """Class and group of the lowest accuracy, which come first in `groups`."""
    if not score.get("groups"):
        return ""
    worst = score["groups"][0]
    names = str(worst["class"]), str(worst["group"])
    return printable(", ".join(name for name in names if name), 24)


def _show(line: Weight) -> str:
    word = "for" if line.weight > 0 else "against"
    number = f"z{line.dimension}"
    named = "" if line.name == number else printable(line.name.removesuffix(f" ({number})"), 30)
    group = f"about {printable(line.group, 20)}" if line.group else ""
    return f"  {word:8}{line.weight:+7.2f}  {number:7}{named:30}  {group}".rstrip()


def explain_image(found: Explanation, z: np.ndarray, n: int = 8) -> str:
    """What the dimensions of one code [D] add to the score of the predicted class, as text."""
    model = found.model
    code = np.where(np.isin(np.arange(len(z)), found.irrelevant), 0, z)[None]
    label = model.predict(code)[0]
    added = model.contributions(code)[0, :, list(model.classes).index(label)]
    lines = [_show(each) for each in found.lines(label, added)[:n] if abs(each.weight) >= SHOWN]
    return "\n".join([f"predicted: {printable(str(label), 60)}", *lines])
