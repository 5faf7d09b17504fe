"""What makes a dimension readable: heads on the frozen embeddings of one encoder, judged on test rows.

    python benchmarks/readable.py train.npz test.npz --name cifar100-cl        # arrays z [N, F] and y [N] in each
    python benchmarks/readable.py train.npz test.npz --name cifar100-cl --only width,method --seeds 1
    python benchmarks/readable.py CODES --name cifar100-cl                     # embeddings that bayesncl fit RUN made
    python benchmarks/readable.py results/readable/cifar100-cl.json --figure docs/images/readable.png

No label is used to fit a code. Each variant differs from the default in one thing. With several seeds it reports mean
and spread, and how many dimensions come back: columns of two seeds matched on test rows, beside two untrained heads.
Neighbors are searched once for all variants, which seconds leave out. Writes results/readable/NAME.json, with a
checksum, after every variant; variants that are in it are not fitted again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl import InputError, ReadableCodes
from bayesncl.codes.estimator import choose_neighbors
from bayesncl.codes.folder import CodesFolder
from bayesncl.inputs import read_embeddings
from bayesncl.io import write_atomic
from bayesncl.measure import coverage, preprocess
from bayesncl.measure import topk as kept
from bayesncl.measure.columns import stability
from bayesncl.measure.interpretability import interpretability
from bayesncl.measure.neighbors import nearest
from bayesncl.method.heads import HEADS, Features, Projector, Prototypes, Terms, mlp
from bayesncl.method.losses import swapped_cross_entropy
from bayesncl.recipes import Gate, Model, Objective
from bayesncl.training.run_folder import environment

K = 5  # dimensions kept of a row
TOP, ALIKE = 10, 7  # a dimension is readable if so many of its strongest rows share a class
PROBE_ROWS = 20_000
MOST = 100  # neighbors searched


class Unbalanced(Prototypes):
    """Prototypes that do not share the rows equally: a row's target is its own sharpened prediction."""

    def loss(self, features: Features) -> Terms:
        assert features.aux is not None
        s = features.aux.unflatten(0, (2, -1))
        loss = swapped_cross_entropy(s, (s.detach() / self.sharpness).softmax(-1), self.temperature) / len(features.aux)
        return Terms(loss, loss.detach(), torch.zeros_like(loss), torch.ones_like(loss))


class Deep(Prototypes):
    """Prototypes over two layers in place of one."""

    def __init__(self, features: int, dim: int, **options: Any) -> None:
        super().__init__(features, dim, **options)
        self.projection = mlp(features, 2 * features, self.projection.out_features, depth=2)  # type: ignore[assignment]

    def start(self, h: torch.Tensor) -> None:
        """Layers and prototypes stay as they were drawn."""


HEADS |= {
    "unbalanced": Unbalanced,
    "1 round": partial(Prototypes, rounds=1),
    "3 rounds": partial(Prototypes, rounds=3),
    "warmer": partial(Prototypes, rounds=3, temperature=0.12),
    "deep": partial(Deep, rounds=3),
    "deep ncl": lambda features, dim: Projector(features, Model(dim=dim), Gate(kind="none"), Objective(), depth=2),
}

# what is changed, by the question it answers; from three rounds of balancing where the label says so
STUDY: dict[str, dict[str, dict[str, Any]]] = {
    "default": {"prototypes": {}},
    "balance": {
        "prototypes, not balanced": {"method": "unbalanced"},
        "prototypes, 1 round": {"method": "1 round"},
        "prototypes, 3 rounds": {"method": "3 rounds"},
        "3 rounds, temperature 0.12": {"method": "warmer"},
    },
    "neighbors": {
        "3 rounds, itself as partner": {"method": "3 rounds", "positives": "self"},
        **{f"3 rounds, {k} neighbors": {"method": "3 rounds", "n_neighbors": k} for k in (3, 10, 100)},
    },
    "width": {
        "prototypes, D = 256": {"n_components": 256},
        **{f"3 rounds, D = {d}": {"method": "3 rounds", "n_components": d} for d in (64, 256, 4096)},
    },
    "gates": {f"{name}, D = 256": {"method": name, "n_components": 256} for name in ("ncl", "bayesncl")},
    "layers": {"3 rounds, two layers": {"method": "deep"}, "ncl, two layers": {"method": "deep ncl"}},
    "method": {name: {"method": name} for name in ("ncl", "bayesncl", "sae", "csr")},
    "positives": {
        f"{name}, itself as partner": {"method": name, "positives": "self"} for name in ("ncl", "bayesncl", "csr")
    },
}
SHOWN = {  # measure: heading, decimals
    "ap": ("AP", 3), "consistency": ("SC", 1), "classes_owned": ("owned", 0), "p5": ("P@5", 1), "probe": ("probe", 1),
    "dead": ("dead", 2), "readable": ("readable, %", 0),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="rows to fit on, a folder of codes, or the .json of a study to show")
    parser.add_argument("test", type=Path, nargs="?")
    parser.add_argument("--name", default="study")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="questions, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("results/readable"))
    parser.add_argument("--figure", type=Path, help="picture of the study to write")
    options = parser.parse_args()
    if options.train.suffix == ".json":
        entry = read(options.train)
    else:
        entry = study(options)
    print(table(entry))
    if options.figure:
        draw(entry, options.figure)


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Fit and judge what the file does not have yet."""
    path = options.out / f"{options.name}.json"
    (train, y_train), (test, y_test) = load_rows(options.train, options.test)
    asked = [q for q in STUDY if not options.only or q in options.only.split(",")]
    entry = read(path) if path.exists() else {}
    variants = {one["label"]: one for one in entry.get("variants", ())}
    near = find(train, min(MOST, len(train) - 1))
    entry = {
        "kind": "readable",
        "name": options.name,
        "rows": [len(train), len(test)],
        "width": int(test.shape[1]),
        "p5_embedding": whole(train, test, y_test),
        "neighbors_alike": float(100 * (y_train[near[:, :10]] == y_train[:, None]).mean()),
        "environment": {k: v for k, v in environment().items() if k != "command"},
    }
    print(f"of the ten nearest rows {entry['neighbors_alike']:.1f} % share the class", flush=True)
    for question, label in [(q, label) for q in asked for label in STUDY[q]]:
        if len(variants.get(label, {}).get("seeds", ())) >= options.seeds:
            continue
        changes = STUDY[question][label]
        fits = [fit(changes, options.dim, s, train, near) for s in range(options.seeds)]
        codes = [model.transform(test) for model, _ in fits]
        some = sample(len(train))
        seeds = [
            {"seed": s, "seconds": seconds, **judge(model.transform(train[some]), y_train[some], z, y_test)}
            for s, ((model, seconds), z) in enumerate(zip(fits, codes))
        ]
        row = {"question": question, "label": label, "changes": changes, "seeds": seeds}
        if len(codes) > 1:
            control = [fit(changes | {"max_iter": 0}, options.dim, s, train, near)[0].transform(test) for s in range(2)]
            untrained = stability(control[0], control[1])
            beside = {f"{name}_control": untrained[name] for name in ("mean_cosine", "share_same")}
            row["stability"] = stability(codes[0], codes[1]) | beside
        variants[label] = row
        print(line(row), flush=True)
        entry["variants"] = [variants[label] for q in STUDY for label in STUDY[q] if label in variants]
        entry.pop("checksum", None)
        entry["checksum"] = checksum(entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(entry, indent=1) + "\n")
    return read(path)


def load_rows(path: Path, test: Path | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and classes to fit on and to judge by: of two files, or of a folder of codes."""
    if test is not None:
        return [load(path), load(test)]
    folder = CodesFolder(path)
    rows, x = folder.rows(), np.asarray(folder.embeddings())
    if rows.labels is None or not rows.held:
        raise InputError(f"{path}: needs classes and rows that were held out")
    return [(x[part], rows.labels[part]) for part in np.split(np.arange(len(rows)), [len(rows) - rows.held])]


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows as float32 [N, F], classes as whole numbers from 0."""
    x, _, y, _ = read_embeddings(path)
    if y is None:
        raise InputError(f"{path}: no classes in it, expected y [N]")
    return np.asarray(x, np.float32), np.unique(y, return_inverse=True)[1]


def read(path: Path) -> dict[str, Any]:
    """The entry of a study, refused if it was altered."""
    entry = json.loads(path.read_text())
    if checksum({k: v for k, v in entry.items() if k != "checksum"}) != entry.get("checksum"):
        raise InputError(f"{path}: does not match its checksum")
    return entry


def checksum(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def find(train: np.ndarray, k: int) -> np.ndarray:
    """[N, k] the nearest rows of each, as `ReadableCodes` finds them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = np.arange(len(train))
    moments = preprocess.measure_moments(train, chosen)
    return nearest(preprocess.load_rows(train, chosen, moments, device), k)[0].cpu().numpy()


def fit(
    changes: dict[str, Any], dim: int, seed: int, train: np.ndarray, near: np.ndarray
) -> tuple[ReadableCodes, float]:
    """A variant fitted on rows whose neighbors are known, and the seconds of that."""
    options = {"n_components": dim} | changes
    k = options.get("n_neighbors") or choose_neighbors(len(train), options["n_components"])
    codes = ReadableCodes(**options, random_state=seed)
    began = time.perf_counter()
    codes.fit(train, pairs=None if options.get("positives") == "self" or codes.method == "sae" else near[:, :k])
    return codes, time.perf_counter() - began


def sample(n: int) -> np.ndarray:
    """Numbers of the training rows that the probe is fitted on."""
    return np.random.default_rng(0).permutation(n)[:PROBE_ROWS]


def whole(train: np.ndarray, test: np.ndarray, y: np.ndarray) -> float | None:
    """P@5 of the embedding with all its numbers."""
    return kept.kept_precision(kept.keep(test - train.mean(0), test.shape[1]), [y])[0]


def judge(z_train: np.ndarray, y_train: np.ndarray, z: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """What is measured of codes [N, D]; those of training rows serve the probe."""
    at, chance = (by_k[K] for by_k in kept.summary(z, y, train=(z_train, y_train), ks=(K,)))
    strongest = np.argsort(-z, axis=0)[:TOP]  # [10, D]
    alike = np.array([np.bincount(column).max() for column in y[strongest].T])
    return {
        "ap": interpretability(z, y)["detector_ap"],
        "top10": float(100 / TOP * alike.mean()),
        "readable": float(100 * (alike >= ALIKE).mean()),
        "dead": 1 - len(np.unique(kept.keep(z, K).indices)) / z.shape[1],  # no row keeps it
        "collapsed": coverage.summary(z)["collapsed"],
        **{key: at[key] for key in ("consistency", "classes_owned", "p5", "probe")},
        "chance": {key: chance[key] for key in ("consistency", "classes_owned", "p5", "probe")},
    }


def cell(row: dict[str, Any], key: str) -> str:
    """Mean and, with several seeds, spread."""
    values, decimals = [one[key] for one in row["seeds"]], SHOWN[key][1]
    spread = f" ± {np.std(values, ddof=1):.{decimals}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{decimals}f}{spread}"


def again(row: dict[str, Any]) -> str:
    """Mean cosine of the dimensions of two seeds, in brackets that of two untrained heads."""
    same = row.get("stability")
    return f"{same['mean_cosine']:.2f} ({same['mean_cosine_control']:.2f})" if same else ""


def line(row: dict[str, Any]) -> str:
    """A variant as a line on the terminal."""
    text = "  ".join(f"{name} {cell(row, key)}" for key, (name, _) in SHOWN.items())
    return f"{row['label']:32} {text}  {again(row)}{'  COLLAPSED' if row['seeds'][0]['collapsed'] else ''}"


def table(entry: dict[str, Any]) -> str:
    """Everything tried, as a table in markdown."""
    lines = [["variant", *(name for name, _ in SHOWN.values()), "again"], ["---"] * (len(SHOWN) + 2)]
    lines += [[row["label"], *(cell(row, key) for key in SHOWN), again(row)] for row in entry["variants"]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def draw(entry: dict[str, Any], path: Path) -> None:
    """Dots: a row for each variant in groups by what is changed, a panel for each measure; a line at the default."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = entry["variants"]
    gaps = [0.0, *(1 + 0.7 * (a["question"] != b["question"]) for a, b in zip(rows, rows[1:]))]
    places = np.cumsum(gaps)  # a gap before each question
    default = next(row for row in rows if row["question"] == "default")
    keys = ("ap", "consistency", "classes_owned", "p5")
    titles = ("average precision", "consistency, %", "classes owned", "P@5, %")
    figure, panels = plt.subplots(1, len(keys), sharey=True, figsize=(9, 0.5 + 0.24 * places[-1]), layout="constrained")
    for panel, key, title in zip(panels, keys, titles):
        panel.axvline(np.mean([one[key] for one in default["seeds"]]), color="0.8", linewidth=1)
        for row, place in zip(rows, places):
            values = [one[key] for one in row["seeds"]]
            color = "#c0392b" if row is default else "#1f5a8a"
            panel.plot(values, [place] * len(values), "o", ms=5, color=color, mec="white", mew=0.5)
        panel.set_title(title, fontsize=9)
        panel.tick_params(labelsize=8, length=0)
        panel.grid(axis="x", color="0.93")
        panel.set_axisbelow(True)
        panel.spines[:].set_visible(False)
        panel.set_xlim(left=0)
    panels[0].set_yticks(places, [row["label"] for row in rows])
    panels[0].invert_yaxis()
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr,call-arg]
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
