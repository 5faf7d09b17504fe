"""The experiments as data: which runs each table and figure of the paper needs.

paper.json holds the published numbers. A row of a table names a method, a dataset and the values of
the table's axes; `rows` turns it into a recipe.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bayesncl.errors import InputError
from bayesncl.recipes import Recipe, change, did_you_mean, named, replace_fields

SCALES = ("paper", "smoke")
MAIN = "cifar100"  # dataset of the claims and the figures
DATASET_ORDER = ("cifar100", "cifar10", "imagenet100", "waterbirds", "scenes")
BACKGROUND_SETS = {"waterbirds": "waterbirds", "waterbirds-like": "waterbirds_like"}  # folder: key
AXIS_FIELDS = {
    "dim": "model.dim",
    "rho": "gate.prior",
    "lambda": "gate.weight",
    "gate_lr": "gate.lr",
    "batch_size": "run.batch",
}
VARIANTS = {  # methods of tables that are another method with a change
    "bayesncl-1layer": ("bayesncl", "gate.depth=1"),
    "bayesncl-3layer": ("bayesncl", "gate.depth=3"),
    "bayesncl-on-z": ("bayesncl", "gate.input=z"),
    "bayesncl-prevalence": ("bayesncl", "gate.prior_kind=prevalence"),
}
OWN_METHODS = {
    "ncl-ipw": "NCL, inverse-prevalence weighting",
    "bayesncl-on-z": "BayesNCL, gates read z",
    "bayesncl-prevalence": "BayesNCL, prior by prevalence",
}
DYNAMICS = ("af_gv", "af_sc", "gv_sc")  # columns that need gradient dynamics
ACCURACIES = ("acc1", "acc5")  # columns that need the published probe
PAIR = ("ncl", "bayesncl")
THREE_SEEDS = (0, 1, 2)

# A smoke run takes seconds on a CPU, with the small backbone. Of each axis it keeps the first and
# the last value, replaced by SMOKE_VALUES where the published ones are too large.
SMOKE = (
    "data.size=16", "views.size=16", "data.train_images=128", "data.test_images=100",
    "model.hidden=32", "model.dim=32",
    "run.batch=64", "run.epochs=2", "run.log_every=1", "run.checkpoint_every=1",
)  # fmt: skip
SMOKE_VALUES = {"dim": (16, 32), "batch_size": (32, 64), "K": (16, 32), "epoch": (1, 2)}


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    Attributes
    ----------
    name : as on the command line.
    tables : tables of paper.json whose rows it shows; empty: the one of its own name.
    seeds : seeds of every row.
    changes : changes to every recipe at paper scale, as on the command line.
    overrides : the user's changes, at any scale.
    methods : rows to keep; empty: all.
    title : empty: the table's.
    """

    name: str
    tables: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    changes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    title: str = ""
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tables = self.tables or (self.name,)
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "title", self.title or paper()["tables"][tables[0]]["title"])

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure-")

    @property
    def columns(self) -> list[str]:
        """Measures it shows: those of its first table."""
        return list(paper()["tables"][self.tables[0]]["columns"])

    @property
    def background(self) -> str | None:
        """Key of the background probe it shows, or None."""
        if "background_acc" in self.columns:
            return "waterbirds"
        return "waterbirds_like" if "background_h" in self.columns else None


@cache
def paper() -> dict[str, Any]:
    """The published tables, and two of ours without published values."""
    tree: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text())
    backgrounds = {f"background_{kind}": f"from {kind}" for kind in ("h", "z", "gated")}
    for key, symbol in backgrounds.items():
        tree["columns"][key] = {"symbol": symbol, "decimals": 2}
    tree["methods"] |= OWN_METHODS
    interpretability = tree["tables"]["interpretability"]["columns"]
    for name, title, columns, methods in (
        (
            "background-like",
            "Background probe on a Waterbirds-like set at 32 px, CIFAR-100 encoders "
            "(not the published set)",
            [*backgrounds], ("cl", *PAIR),
        ),
        (
            "variants",
            "Variants that the paper's text describes and its experiments lack",
            [*interpretability, *ACCURACIES], (*PAIR, *OWN_METHODS),
        ),
    ):  # fmt: skip
        rows = [{"method": method, "dataset": MAIN} for method in methods]
        tree["tables"][name] = {"title": title, "axes": [], "columns": columns, "rows": rows}
    return tree


MAIN_TABLE = ("interpretability",)
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("interpretability", seeds=THREE_SEEDS),
        Experiment("downstream", seeds=THREE_SEEDS),
        *map(Experiment, ("gradients", "ablation", "gating", "head-depth")),
        Experiment("resnet50", changes=("model.backbone=resnet50",)),
        *map(Experiment, ("background", "background-like", "efficiency")),
        Experiment("feature-selection", seeds=THREE_SEEDS),
        *map(Experiment, ("dimensions", "prior", "kl-weight", "gate-lr")),
        *map(Experiment, ("batch-size", "batch-tradeoff", "variants")),
        Experiment(
            "figure-support", MAIN_TABLE, THREE_SEEDS, methods=PAIR,
            title="Consistency by minimum support, NCL against BayesNCL",
        ),
        Experiment(
            "figure-comparison", MAIN_TABLE, THREE_SEEDS, methods=PAIR,
            title="Consistency and class entropies, NCL against BayesNCL",
        ),
        Experiment(
            "figure-retrieval", ("feature-selection",), THREE_SEEDS,
            title="Retrieval over selected dimensions",
        ),
        Experiment(
            "figure-dimensions", ("dimensions",), title="Consistency over feature dimension"
        ),
        Experiment(
            "figure-tradeoff", ("prior", "kl-weight"),
            title="Accuracy and consistency over prior, KL weight",
        ),
        Experiment("figure-gradients", ("gradients",), title="Gradient dynamics over epochs"),
        Experiment(
            "figure-compositionality", MAIN_TABLE, methods=("ncl",),
            title="Pairs of images of different classes that share a dimension of NCL",
        ),
        Experiment(
            "figure-high-entropy", MAIN_TABLE, methods=("ncl",),
            title="High-entropy dimensions of NCL",
        ),
        Experiment(
            "figure-suppressed", MAIN_TABLE, methods=("bayesncl",),
            title="Most suppressed dimensions of BayesNCL",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of a table: method, dataset, axes, recipe with seed 0, published numbers."""

    method: str
    dataset: str
    axes: dict[str, float]
    recipe: Recipe
    published: dict[str, float | None]


def choose(name: str | None, seeds: Sequence[int], changes: Sequence[str]) -> list[Experiment]:
    """The experiments of a name (None or `all`: every one), with other seeds and recipe changes."""
    if name not in (None, "all", *EXPERIMENTS):
        raise InputError(f"no table or figure {name!r}{did_you_mean(str(name), EXPERIMENTS)}")
    return [
        dataclasses.replace(e, seeds=tuple(seeds) or e.seeds, overrides=tuple(changes))
        for e in EXPERIMENTS.values()
        if name in (None, "all", e.name)
    ]


def rows(experiment: Experiment, scale: str = "paper") -> list[Row]:
    """Every row of an experiment, in the paper's order."""
    return list(_smoke_rows(experiment) if scale == "smoke" else _paper_rows(experiment))


def runs(experiment: Experiment, scale: str = "paper") -> list[Recipe]:
    """The runs of an experiment in the order to do them: by dataset, first seeds first."""
    seeds = experiment.seeds if scale == "paper" else experiment.seeds[:1]
    recipes = [row.recipe for row in rows(experiment, scale)]
    todo = [replace_fields(recipe, run={"seed": seed}) for seed in seeds for recipe in recipes]
    todo.sort(key=lambda recipe: DATASET_ORDER.index(recipe.data.name))
    return list({recipe.to_json(): recipe for recipe in todo}.values())


def _paper_rows(experiment: Experiment) -> Iterator[Row]:
    for table, row in _published(experiment):
        axes = {axis: row[axis] for axis in table["axes"]}
        dataset = table.get("pretrained_on", row["dataset"])
        default = paper()["settings"][dataset]
        changed = {a: v for a, v in axes.items() if a in AXIS_FIELDS and v != default[a]}
        # the main runs also record the gradient dynamics, which changes no weight
        main = dataset == MAIN and row["method"] in PAIR and not changed
        more = [*experiment.changes, *["run.dynamics_every=10"] * main, *experiment.overrides]
        recipe = _recipe(dataset, row["method"], changed, more)
        published = {column: row.get(column) for column in table["columns"]}
        yield Row(row["method"], row["dataset"], axes, recipe, published)


def _smoke_rows(experiment: Experiment) -> Iterator[Row]:
    """The rows of the first dataset, on scenes, with the ends of every axis."""
    every = list(_published(experiment))
    published = [(table, row) for table, row in every if row["dataset"] == every[0][1]["dataset"]]
    for table, row in published:
        axes: dict[str, float] = {}
        for axis in table["axes"]:
            grid = sorted({r[axis] for t, r in published if t is table})
            ends = grid[0], grid[-1]
            if row[axis] in ends:
                axes[axis] = SMOKE_VALUES.get(axis, ends)[ends.index(row[axis])]
        if len(axes) < len(table["axes"]):
            continue
        more = list(experiment.overrides)
        if row["method"] == "ncl-topk":
            more.insert(0, "model.top_k=26")
        if row["method"] in PAIR:
            more.insert(0, "run.dynamics_every=1")
        recipe = _recipe("scenes", row["method"], axes, more, SMOKE)
        yield Row(row["method"], "scenes", axes, recipe, {})


def _recipe(
    dataset: str, method: str, axes: dict[str, float], changes: Sequence[str],
    base: Sequence[str] = (),
) -> Recipe:  # fmt: skip
    """The recipe of a table's method with the values of its axes."""
    method, *own = VARIANTS.get(method, (method,))
    fields = [f"{AXIS_FIELDS[a]}={value}" for a, value in axes.items() if a in AXIS_FIELDS]
    return change(named(f"{dataset}-{method}"), [*base, *own, *fields, *changes])


def _published(experiment: Experiment) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(table, row) of the published rows that the experiment keeps."""
    for name in experiment.tables:
        table = paper()["tables"][name]
        for row in table["rows"]:
            if not experiment.methods or row["method"] in experiment.methods:
                yield table, row
