"""The experiments as data: which runs stand behind each table and figure of the paper.

The published numbers are in paper.json. A row of a table names a method, a data set and what the table varies (its
axes); here it becomes the recipe of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..recipes import Recipe, change, named, nearest, replace_fields

SCALES = ("paper", "smoke")
MAIN = "cifar100"  # the data set of the claims and of the figures
ORDER = ("cifar100", "cifar10", "imagenet100", "waterbirds", "scenes")  # in which data sets are run
# keys of background probes in an entry's `extra`, by folder
BACKGROUND_SETS = {"waterbirds": "waterbirds", "waterbirds-like": "waterbirds_like"}
CHANGES = {
    "dim": "model.dim", "rho": "gate.prior", "lambda": "gate.weight", "gate_lr": "gate.lr", "batch_size": "run.batch"
}  # fmt: skip
DEPTHS = {"bayesncl-1layer": 1, "bayesncl-3layer": 3}
DYNAMIC = ("cifar100-ncl", "cifar100-bayesncl")  # runs that also record the gradient dynamics, which changes no weight

# A smoke run takes seconds on a CPU; of each axis the first and last value stay, these in place of the published ones.
# The backbone is the small one throughout, in the table of ResNet-50 too.
SMOKE = (
    "data.size=16", "views.size=16", "data.train_images=128", "data.test_images=100", "model.hidden=32", "model.dim=32",
    "run.batch=64", "run.epochs=2", "run.log_every=1", "run.checkpoint_every=1",
)  # fmt: skip
SMOKE_VALUES = {"dim": (16, 32), "batch_size": (32, 64), "K": (16, 32), "epoch": (1, 2)}


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str  # as on the command line
    tables: tuple[str, ...] = ()  # whose rows it shows, by their names in paper.json; the one of its own name if empty
    seeds: tuple[int, ...] = (0,)  # runs of each row
    changes: tuple[str, ...] = ()  # of every run
    methods: tuple[str, ...] = ()  # keep only these rows; all if empty
    datasets: tuple[str, ...] = ()  # likewise
    needs: str = ""  # what a run must have recorded besides: `dynamics`, or a background probe by its key in `extra`
    title: str = ""  # if it is not the table's

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", self.tables or (self.name,))

    @property
    def is_figure(self) -> bool:
        """Whether it is drawn."""
        return self.name.startswith("figure-")


PAIR = ("ncl", "bayesncl")
THREE = (0, 1, 2)  # seeds
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("interpretability", seeds=THREE),
        Experiment("downstream", seeds=THREE),
        Experiment("gradients", needs="dynamics"),
        *map(Experiment, ("ablation", "gating", "head-depth")),
        Experiment("resnet50", changes=("model.backbone=resnet50",)),
        Experiment("background", needs="waterbirds"),
        Experiment(
            "background-like", needs="waterbirds_like",
            title="Background probe on a Waterbirds-like set at 32 px, CIFAR-100 encoders (not the published set)",
        ),
        Experiment("efficiency"),
        Experiment("feature-selection", seeds=THREE),
        *map(Experiment, ("dimensions", "prior", "kl-weight", "gate-lr", "batch-size", "batch-tradeoff")),
        Experiment(
            "figure-support", ("interpretability",), THREE, methods=PAIR, datasets=(MAIN,),
            title="Consistency by minimum support, NCL against BayesNCL",
        ),
        Experiment("figure-retrieval", ("feature-selection",), THREE, title="Retrieval over selected dimensions"),
        Experiment("figure-dimensions", ("dimensions",), title="Consistency over feature dimension"),
        Experiment("figure-tradeoff", ("prior", "kl-weight"), title="Accuracy and consistency over prior, KL weight"),
        Experiment("figure-gradients", ("gradients",), needs="dynamics", title="Gradient dynamics over epochs"),
        Experiment(
            "figure-high-entropy", ("interpretability",), methods=("ncl",), title="High-entropy dimensions of NCL",
        ),
        Experiment(
            "figure-suppressed", ("interpretability",), methods=("bayesncl",),
            title="Most suppressed dimensions of BayesNCL",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of a table: what was run, and what the paper printed for it."""

    method: str
    dataset: str
    axes: dict[str, float]
    recipe: Recipe  # seed 0
    published: dict[str, float | None]


@cache
def paper() -> dict[str, Any]:
    """The published tables; `background-like` is ours and has no published values."""
    tree: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text())
    tree["tables"]["background-like"] = {
        "title": "", "datasets": [MAIN], "axes": [],
        "columns": ["background_h", "background_z", "background_gated"],
        "rows": [{"method": method, "dataset": MAIN} for method in ("cl", *PAIR)],
    }  # fmt: skip
    for kind in ("h", "z", "gated"):
        tree["columns"][f"background_{kind}"] = {"symbol": f"from {kind}", "decimals": 2}
    return tree


def find(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise InputError(f"no table or figure {name!r}{nearest(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def title(experiment: Experiment) -> str:
    """What it shows, in words."""
    return experiment.title or str(paper()["tables"][experiment.tables[0]]["title"])


def recipe_of(name: str, changes: Sequence[str] = ()) -> Recipe:
    """A named recipe with changes; the main runs also record the gradient dynamics."""
    extra = ["run.dynamics_every=10"] if name in DYNAMIC and all(c.startswith("run.seed=") for c in changes) else []
    return change(named(name), [*changes, *extra])


def rows(experiment: Experiment, scale: str = "paper") -> list[Row]:
    """Every row of an experiment, in the paper's order."""
    return list(_smoke_rows(experiment) if scale == "smoke" else _paper_rows(experiment))


def runs(experiment: Experiment, scale: str = "paper") -> list[Recipe]:
    """The runs an experiment needs, in the order to do them: data set by data set, every row's first seed first."""
    seeds = experiment.seeds if scale == "paper" else experiment.seeds[:1]
    chosen = rows(experiment, scale)
    todo = [replace_fields(row.recipe, run={"seed": seed}) for seed in seeds for row in chosen]
    todo.sort(key=lambda recipe: ORDER.index(recipe.data.name))
    return list({recipe.to_json(): recipe for recipe in todo}.values())


def _paper_rows(experiment: Experiment) -> Iterator[Row]:
    for table, row in _published(experiment):
        axes = {axis: row[axis] for axis in table["axes"]}
        dataset = table.get("pretrained_on", row["dataset"])
        usual = paper()["settings"][dataset]  # what the recipe has anyway
        method, changes = _method(row["method"])
        changes += [f"{CHANGES[a]}={value}" for a, value in axes.items() if a in CHANGES and value != usual[a]]
        recipe = recipe_of(f"{dataset}-{method}", [*experiment.changes, *changes])
        yield Row(row["method"], row["dataset"], axes, recipe, {c: row.get(c) for c in table["columns"]})


def _smoke_rows(experiment: Experiment) -> Iterator[Row]:
    """The rows of the first data set, on scenes, with the ends of every axis."""
    everything = list(_published(experiment))
    published = [(table, row) for table, row in everything if row["dataset"] == everything[0][1]["dataset"]]
    for table, row in published:
        axes: dict[str, float] = {}
        for axis in table["axes"]:
            grid = sorted({r[axis] for t, r in published if t is table})
            ends = dict(zip((grid[0], grid[-1]), SMOKE_VALUES.get(axis, (grid[0], grid[-1]))))
            if row[axis] in ends:
                axes[axis] = ends[row[axis]]
        if len(axes) < len(table["axes"]):
            continue
        method, changes = _method(row["method"])
        changes += [f"{CHANGES[axis]}={value}" for axis, value in axes.items() if axis in CHANGES]
        if method == "ncl-topk":
            changes.append("model.top_k=26")
        if method in PAIR:
            changes.append("run.dynamics_every=1")
        recipe = change(named(f"scenes-{method}"), [*SMOKE, *changes])
        yield Row(row["method"], "scenes", axes, recipe, {})


def _published(experiment: Experiment) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(table, row) of what the paper printed, less the rows the experiment leaves out."""
    for name in experiment.tables:
        table = paper()["tables"][name]
        for row in table["rows"]:
            kept = not experiment.methods or row["method"] in experiment.methods
            if kept and (not experiment.datasets or row["dataset"] in experiment.datasets):
                yield table, row


def _method(name: str) -> tuple[str, list[str]]:
    """Recipe method and changes behind a method of the tables."""
    return ("bayesncl", [f"gate.depth={DEPTHS[name]}"]) if name in DEPTHS else (name, [])
